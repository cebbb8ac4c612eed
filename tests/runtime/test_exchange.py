"""Exchange with other libraries: the same bits in the same memory, whose owner lives as long as anyone uses it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.dtypes import ALL, DType
from rlx.errors import ArenaError, DTypeError, RlxError
from rlx.runtime.device_copies import cuda_twin

needs_torch = pytest.mark.judged


def values(dtype: DType, shape: tuple[int, ...] = (3, 4)) -> Any:
    raw = np.random.default_rng(3).integers(0, 2, (*shape, dtype.itemsize), np.uint8)
    return raw.view(dtype.np).reshape(shape)


def doubled() -> rlx.Graph:
    g = rlx.Graph("doubled")
    g.output("y", g.input("x", (3, 4)) * 2)
    return g


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_numpys_memory_is_used_in_place_and_given_back(dtype: DType) -> None:
    x = values(dtype)
    array = rlx.from_dlpack(x)
    assert (array.shape, array.dtype, array.device.info.id) == ((3, 4), dtype, "cpu")
    assert array.numpy().tobytes() == x.tobytes()
    x.view(np.uint8)[:] ^= 1
    assert array.numpy().tobytes() == x.tobytes()
    if dtype is not rlx.bf16:
        assert np.shares_memory(np.from_dlpack(array), x)


class Block(np.ndarray[Any, Any]):
    """An array that can be watched."""


def test_memory_lives_until_the_last_who_uses_it_has_gone() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4).view(Block)
    gone = weakref.ref(x)
    array = rlx.from_dlpack(x)
    back = np.from_dlpack(array)
    del x, array
    gc.collect()
    assert gone() is not None
    np.testing.assert_array_equal(back, np.arange(12).reshape(3, 4))
    del back
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("end", [rlx.Array.close, lambda array: None])
def test_what_was_lent_is_not_reused_while_it_is_borrowed(end: Callable[[rlx.Array], None]) -> None:
    array = rlx.array(np.full(1000, 7, np.float32), device="cpu")
    lent = np.from_dlpack(array)
    end(array)
    del array
    others = [rlx.array(np.zeros(1000, np.float32), device="cpu") for _ in range(20)]
    assert (lent == 7).all() and len(others) == 20


def test_elements_that_are_not_contiguous_are_copied_unless_that_is_refused() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(rlx.from_dlpack(x.T), x.T)
    np.testing.assert_array_equal(rlx.from_dlpack(x[::-1, ::2]), x[::-1, ::2])
    with pytest.raises(ArenaError, match="not contiguous"):
        rlx.from_dlpack(x.T, copy=False)
    assert rlx.from_dlpack(x[:0].T, copy=False).shape == x[:0].T.shape  # nothing to copy
    copied = rlx.from_dlpack(x, copy=True)
    x[:] = 0
    assert copied.numpy().any()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_shapes_without_elements_or_axes_pass(shape: tuple[int, ...]) -> None:
    x = np.ones(shape, np.float32)
    array = rlx.from_dlpack(x)
    assert array.shape == shape
    np.testing.assert_array_equal(np.from_dlpack(array), x)


def test_arrays_of_vulkan_are_copied_where_that_is_asked_for() -> None:
    try:
        array = rlx.array(np.arange(5, dtype=np.int64), device="vulkan")
    except RlxError as error:
        pytest.skip(str(error))
    if cuda_twin(array.device.info) is None:
        with pytest.raises(BufferError, match="numpy"):
            array.__dlpack__()
    np.testing.assert_array_equal(np.from_dlpack(array, device="cpu"), np.arange(5))
    there = rlx.from_dlpack(np.arange(5), device="vulkan")
    assert there.device is array.device
    np.testing.assert_array_equal(there, np.arange(5))
    with pytest.raises(ArenaError, match="copy=False"):
        rlx.from_dlpack(np.arange(5), device="vulkan", copy=False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([1, 2], "neither __dlpack__"),
        (np.zeros(3, np.complex64), "complex64"),
        (np.array(["a"]), "cannot be read"),
    ],
    ids=["list", "complex", "text"],
)
def test_what_cannot_be_exchanged_is_named(given: Any, said: str) -> None:
    with pytest.raises(DTypeError, match=said):
        rlx.from_dlpack(given)


def test_packed_weights_have_no_type_there() -> None:
    packed = rlx.array(rlx.quantize(np.ones((2, 32), np.float32), "q8_0"), device="cpu")
    with pytest.raises(BufferError, match="q8_0"):
        np.from_dlpack(packed)
    assert not hasattr(packed, "__cuda_array_interface__")


@needs_torch
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_torch_and_back_in_the_same_memory(dtype: DType) -> None:
    torch = pytest.importorskip("torch", reason="torch is installed by `make judges`")
    x = values(dtype)
    name = {"bool": "bool", "u8": "uint8"}.get(dtype.name, dtype.np.name)
    tensor = torch.from_numpy(x.view(np.uint8).copy()).view(getattr(torch, name)).reshape(3, 4)
    array = rlx.from_dlpack(tensor)
    assert array.dtype is dtype and array.numpy().tobytes() == x.tobytes()
    back = torch.from_dlpack(array)
    assert back.dtype == tensor.dtype and back.data_ptr() == tensor.data_ptr()
    del tensor, array
    assert back.view(torch.uint8).numpy().tobytes() == x.tobytes()


@needs_torch
def test_a_tensor_that_needs_gradients_is_refused_with_advice() -> None:
    torch = pytest.importorskip("torch", reason="torch is installed by `make judges`")
    with pytest.raises(DTypeError, match="detach"):
        rlx.from_dlpack(torch.ones(3, requires_grad=True))


def test_a_program_takes_what_was_borrowed_and_gives_what_is_lent() -> None:
    with rlx.Session("cpu").compile(doubled()) as exe:
        x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
        y = np.from_dlpack(exe.run({"x": rlx.from_dlpack(x)}, out="device")["y"])
    np.testing.assert_array_equal(y, x * 2)


def test_read_only_memory_stays_read_only() -> None:
    x = np.arange(4, dtype=np.float32)
    x.flags.writeable = False
    back = np.from_dlpack(rlx.from_dlpack(x))
    with pytest.raises(ValueError, match="read-only"):
        back[0] = 1
