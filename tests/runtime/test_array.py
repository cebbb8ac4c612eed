"""Values that stay on a device: their bits in each dtype, copies, conversions, errors, and how long they live."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest

import rlx
from rlx.errors import ArenaError, DeviceUnavailable, DTypeError, GraphError, ShapeError
from rlx.runtime import Session

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def doubled(session: Session) -> rlx.CompiledGraph:
    g = rlx.Graph("doubled")
    g.output("y", g.input("x", (3, 4), "f32") * 2.0)
    return session.compile(g)


@pytest.mark.parametrize("dtype", rlx.dtypes.ALL, ids=str)
@pytest.mark.parametrize("storage", ["typed", "f32"])
def test_each_dtype_goes_in_and_comes_out_with_its_bits(
    session: Session, dtype: rlx.dtypes.DType, storage: str
) -> None:
    values = (np.arange(10).reshape(2, 5) % 2 if dtype is rlx.bool_ else np.arange(10).reshape(2, 5)).astype(dtype.np)
    g = rlx.Graph("moved")
    g.output("y", rlx.transpose(g.input("x", (2, 5), dtype), (1, 0)))
    exe = session.compile(g, storage=storage)  # type: ignore[arg-type]
    held = rlx.array(values, device=session)
    assert (held.shape, held.dtype, held.nbytes, len(held)) == ((2, 5), dtype, values.nbytes, 2)
    y = exe.run({"x": held}, out="device")["y"]
    assert y.numpy().tobytes() == np.ascontiguousarray(values.T).tobytes()
    assert y.numpy().dtype == dtype.np and y.device is session.device


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 70_000)])
def test_any_size(session: Session, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    f = rlx.jit(lambda x: x + 1.0, device=session.info.id, out="device")
    np.testing.assert_array_equal(f(rlx.array(values, device=session)), values + np.float32(1))


def test_results_feed_other_programs_and_stay_as_they_are(session: Session) -> None:
    exe = doubled(session)
    first = exe.run({"x": X}, out="device")["y"]
    second = exe.run({"x": first}, out="device")["y"]
    np.testing.assert_array_equal(exe.run({"x": second})["y"], X * 8)
    np.testing.assert_array_equal(first, X * 2)
    exe.close()
    del exe
    gc.collect()
    np.testing.assert_array_equal(second, X * 4)


def test_memory_is_used_again_once_an_array_is_gone_and_never_before(session: Session) -> None:
    exe = doubled(session)
    results = [exe.run({"x": X + k}, out="device")["y"] for k in range(6)]
    views = [r.copy() for r in results[::2]]
    for r in results[::2]:
        r.close()
    del results[::2]
    later = [exe.run({"x": -X - k}, out="device")["y"] for k in range(6)]
    for k, r in zip((1, 3, 5), results, strict=True):
        np.testing.assert_array_equal(r, (X + k) * 2)
    for k, r in zip((0, 2, 4), views, strict=True):
        np.testing.assert_array_equal(r, (X + k) * 2)
    for k, r in enumerate(later):
        np.testing.assert_array_equal(r, (-X - k) * 2)


def test_jit_takes_arrays_and_runs_one_program_for_them(session: Session) -> None:
    f = rlx.jit(lambda d, rate: {"y": d["x"] * rate}, device=session.info.id)
    held = rlx.array(X, device=session)
    np.testing.assert_array_equal(f({"x": held}, 3.0)["y"], X * 3)
    np.testing.assert_array_equal(f({"x": X}, 3.0)["y"], X * 3)
    assert f.cache_info()["size"] == 1


def test_states_take_results_in_turn(session: Session) -> None:
    g = rlx.Graph("summed")
    s = g.state("s", (3, 4), "f32")
    g.update("s", s + g.input("x", (3, 4), "f32"))
    g.output("old", s + 0.0)
    exe = session.compile(g)
    for k in range(3):
        old = exe.run({"x": rlx.array(X, device=session)}, out="device")["old"]
        np.testing.assert_array_equal(old, X * k)


def test_array_converts_as_numpy_does() -> None:
    assert rlx.array([1.0, 2.0], device="cpu").dtype is rlx.f32
    assert rlx.array([1, 2], device="cpu").dtype is rlx.i64
    assert rlx.array(np.float64(1), device="cpu").dtype is rlx.f64
    assert rlx.array([0.1], "bf16", "cpu").numpy() == np.float32(0.1).astype(rlx.bf16.np)
    held = rlx.array(X, device="cpu")
    assert rlx.array(held, "f16", held).dtype is rlx.f16
    for twin in (copy.deepcopy(held), copy.copy(held), pickle.loads(pickle.dumps(held)), held.to("cpu")):
        np.testing.assert_array_equal(twin, X)
    assert held.to("cpu") is held
    assert (float(rlx.array(2.5, device="cpu")), int(rlx.array([3], device="cpu"))) == (2.5, 3)
    packed = rlx.quantize(np.ones((2, 32), np.float32), "q8_0")
    np.testing.assert_array_equal(rlx.array(packed, device="cpu").numpy().data, packed.data)
    with pytest.raises(DTypeError, match="is not a value of u8"):
        rlx.array([300], "u8", "cpu")
    for call in (rlx.Session, lambda device: rlx.array(1.0, device=device)):
        with pytest.raises(DeviceUnavailable, match="give its id, 'cpu'"):
            call(rlx.devices()[-1])  # type: ignore[arg-type]
    with pytest.raises(DeviceUnavailable, match="is no device"):
        rlx.array(X, device=3)
    with pytest.raises(ShapeError, match="is not one number"):
        held.item()
    with pytest.raises(ShapeError, match=r"is not one number; use \.all\(\) or \.any\(\)"):
        bool(held)
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":  # before, False is "where a copy is needed"
        with pytest.raises(ValueError, match="only as a copy"):
            np.array(held, copy=False)
    with pytest.raises(DTypeError, match=r"other order: \.astype\('int32'\)"):
        rlx.array(np.arange(3, dtype=np.dtype("i4").newbyteorder()), device="cpu")


def test_repr_shows_small_values_and_says_what_became_of_others() -> None:
    held = rlx.array([[1.5, 2.0]], device="cpu")
    assert repr(held) == "rlx.Array([[1.5, 2. ]], f32[1,2] on cpu)"
    assert repr(rlx.array(np.zeros(2000, np.float32), device="cpu")) == "rlx.Array(f32[2000] on cpu, 8,000 bytes)"
    with held:
        pass
    assert repr(held) == "rlx.Array(f32[1,2] on cpu, was closed)" and held.closed


def test_inputs_that_do_not_fit_are_refused_before_the_run(session: Session) -> None:
    exe = doubled(session)
    held = rlx.array(X, device=session)
    with pytest.raises(ShapeError, match=r"expected f32\[3,4\], got an rlx.Array of f32\[4,3\]"):
        exe.run({"x": rlx.array(X.T, device=session)})
    with pytest.raises(DTypeError, match=r"expected f32\[3,4\], got an rlx.Array of f64"):
        exe.run({"x": rlx.array(X.astype(np.float64), device=session)})
    with pytest.raises(GraphError, match='neither "host"'):
        exe.run({"x": held}, out="gpu")  # type: ignore[arg-type]
    held.close()
    for use in (lambda: exe.run({"x": held}), held.numpy, lambda: exe.launch({"x": held})):
        with pytest.raises(ArenaError, match="was closed; its values are gone"):
            use()
    if session.info.backend != "cpu":
        with pytest.raises(GraphError, match=rf'is an array on cpu, .*\.to\("{session.info.id}"\)'):
            exe.run({"x": rlx.array(X, device="cpu")})
        there = rlx.array(X, device="cpu").to(session)
        np.testing.assert_array_equal(exe.run({"x": there})["y"], X * 2)


def test_memory_of_another_library_is_read_in_place_and_let_go() -> None:
    class Owner:
        def __init__(self) -> None:
            self.values = np.arange(6, dtype=np.float32)

    owner, gone = Owner(), []
    address = owner.values.ctypes.data
    import weakref

    weakref.finalize(owner, gone.append, True)
    device = rlx.Session("cpu").device
    held = rlx.Array._foreign(device, address, (2, 3), rlx.f32, owner)
    owner.values[0] = 7.0
    assert held.numpy()[0, 0] == 7.0
    del owner
    gc.collect()
    assert not gone
    held.close()
    gc.collect()
    assert gone


def test_weights_and_states_are_set_from_arrays_on_the_device(session: Session) -> None:
    g = rlx.Graph("set")
    w, s = g.param("w", (3, 4), "f32"), g.state("s", (3, 4), "f32")
    g.output("y", w + s)
    exe, held = session.compile(g), rlx.array(X, device=session)
    exe.set_param("w", held)
    exe.set_state("s", held)
    held.close()
    np.testing.assert_array_equal(exe.run()["y"], X * 2)
    exe.set_param("w", exe.get_state("s", out="device").copy())
    exe.set_param("w", rlx.array(X, device=session), dtype="bf16")
    exe.set_param("w", rlx.array(X * 3, device=session))
    np.testing.assert_array_equal(exe.run()["y"], X * 4)
    with pytest.raises(ShapeError, match="expected shape"):
        exe.set_param("w", rlx.array(X.T, device=session))


def test_masked_elements_are_refused() -> None:
    with pytest.raises(DTypeError, match="masked"):
        rlx.array(np.ma.array([1.0, 2.0], mask=[True, False]), device="cpu")
    assert rlx.array(np.ma.array([1.0, 2.0]), device="cpu").numpy().tolist() == [1.0, 2.0]


def test_a_dtype_is_also_what_numpy_and_names_call_it() -> None:
    x = rlx.array(np.ones(2, np.float32), device="cpu")
    assert x.dtype == np.float32 and np.float32 == x.dtype and x.dtype == np.dtype("float32") == x.dtype
    assert x.dtype == "f32" and x.dtype == "float32" and x.dtype == rlx.float32 and x.dtype in (np.int32, np.float32)
    for other in (np.float64, np.dtype(">f4"), "f64", "f4", "q8_0", "no name", np.ndarray, float, None, 4):
        assert x.dtype != other
    assert rlx.array([1], device="cpu").dtype == np.int64
    assert x.astype("bf16").dtype == "bfloat16" and x.astype("bf16").dtype != np.float16
