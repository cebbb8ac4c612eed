"""The arguments of the engine's kernels are declared once, and packed and read by name."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from rlx.backends.cpu.ir import F64, Kernel, floats, pointers, sizes

ARGS = pointers("x", "bias") + sizes("n") + floats("eps") + floats("scale", type=F64)


def test_values_become_words_in_the_declared_order() -> None:
    x = np.zeros(4, np.float32)
    words = ARGS(scale=-2.5, n=-7, x=x, bias=None, eps=0.1)
    bits = struct.unpack("<IQ", struct.pack("<fd", 0.1, -2.5).ljust(12))
    assert words == (x.ctypes.data, 0, -7, *bits)
    assert ARGS(x=64, bias=x[1:], n=np.int64(3), eps=1, scale=1)[:3] == (64, x.ctypes.data + 4, 3)


def test_names_that_are_missing_or_unknown_are_errors() -> None:
    with pytest.raises(ValueError, match=r"missing \['n'\], unknown \['m'\]; declared \['x', 'bias', 'n'"):
        ARGS(x=0, bias=0, m=1, eps=0.0, scale=0.0)
    with pytest.raises(ValueError, match=r"'m' is not declared; these are: .*'x'"):
        Kernel("kernel", ARGS).arg("m")
    with pytest.raises(ValueError, match=r"declared twice: \['n'\]"):
        ARGS + sizes("n")


@pytest.mark.parametrize("wrong", [{"n": 1.5}, {"x": 1.5}, {"eps": None}, {"n": None}])
def test_values_of_another_kind_are_errors(wrong: dict[str, float | None]) -> None:
    with pytest.raises(TypeError):
        ARGS(**{"x": 0, "bias": 0, "n": 1, "eps": 0.0, "scale": 0.0} | wrong)


def test_a_kernel_reads_an_argument_where_it_is_packed() -> None:
    k = Kernel("kernel", ARGS)
    eps, n = k.args("eps", "n")
    assert str(eps.type) == "float" and str(n.type) == "i64" and k.arg("n") is n
    text = k.text()
    assert "getelementptr i64, ptr %args, i64 3" in text and "getelementptr i64, ptr %args, i64 2" in text
    assert list(k.all_args("eps", "scale")) == ["x", "bias", "n"]
