"""At the end of a network equal filters give equal results, to the bit: what compares classes finds them tied."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx.ops as ops
from rlx.backends.cpu.host.conv.last import last_convolutions, rows_alike
from rlx.ir import Graph
from tests.cpu.programs import assert_close, data, run_both
from tests.full import some

# (filters, channels, image, kernel, groups)
HEADS = [
    (1000, 512, (13, 13), 1, 1),
    (1003, 40, (7, 5), 1, 1),
    (42, 32, (33, 20), 3, 2),
    (12, 64, (40, 40), 1, 1),
    (8, 30, (1, 1), 1, 1),
    (100, 300, (1, 1), 1, 1),
    (5, 9, (6, 7), 3, 1),
    (3, 64, (16, 16), 3, 1),
]


def check_head(head: Any, dtype: str = "f32") -> None:
    """Filters that are the same numbers give the same bits in every place of a group, and the right ones."""
    filters, channels, image, kernel, groups = head
    x = data((2, channels, *image), dtype)
    w = np.tile(data((1, channels // groups, kernel, kernel), dtype, seed=1), (filters, 1, 1, 1))
    b = np.full(filters, 0.3, x.dtype)
    ((got, want),) = run_both(
        lambda *a: ops.conv(*a, pads=kernel // 2, groups=groups, activation="relu"), x, w, b
    )
    assert_close(got, want)
    parts = got.reshape(2, groups, filters // groups, -1)
    assert parts.tobytes() == np.ascontiguousarray(np.broadcast_to(parts[:, :, :1], parts.shape)).tobytes()


@pytest.mark.parametrize("head", HEADS)
def test_equal_filters_give_equal_bits(head: Any) -> None:
    check_head(head)


@pytest.mark.parametrize("dtype", ("f64", "f16", "bf16"))
def test_equal_filters_in_other_dtypes(dtype: str) -> None:
    check_head(HEADS[2], dtype)


def _kernels() -> list[str]:
    """Families of kernels that OpenBLAS has for this processor, besides those that it takes by itself."""
    flags = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not flags.exists():
        return []
    has = set(flags.read_text(encoding="utf-8").split())
    wanted = {"Nehalem": "sse4_2", "Sandybridge": "avx", "Haswell": "avx2", "SkylakeX": "avx512dq"}
    return [core for core, flag in wanted.items() if flag in has]


@pytest.mark.parametrize("core", some(_kernels(), 2))
@pytest.mark.late
def test_equal_filters_with_kernels_of_other_processors(core: str, repo: Path) -> None:
    code = "from tests.cpu.test_last import HEADS, check_head\nfor head in HEADS: check_head(head)"
    environment = {**os.environ, "OPENBLAS_CORETYPE": core}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=repo, check=True)


def test_only_what_no_product_takes_up_is_last() -> None:
    graph = Graph("two heads")
    x, w = graph.input("x", (1, 8, 4, 4)), graph.input("w", (8, 8, 1, 1))
    trunk = ops.relu(ops.conv(x, w))
    classes, features = ops.conv(trunk, w), ops.conv(trunk, w)
    graph.output("classes", ops.softmax(classes.mean((2, 3))))
    graph.output("embedding", features.reshape(8, 16) @ graph.input("p", (16, 3)))
    last = last_convolutions(graph)
    assert classes.id in last
    assert features.id not in last and len(last) == 1


@pytest.mark.parametrize("n", (1, 7, 8, 9, 16, 1003))
def test_calls_are_of_one_size_and_cover_every_row(n: int) -> None:
    calls = rows_alike(n)
    assert len({s.stop - s.start for s in calls}) == 1
    assert {r for s in calls for r in range(s.start, s.stop)} == set(range(n))
