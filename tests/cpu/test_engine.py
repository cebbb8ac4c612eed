"""The compiled engine: what it computes, how it runs, and what it does where it cannot be had."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx.backends.cpu import choice, code_memory, compile
from rlx.backends.cpu.compile import KIND, addresses, canonical, key_parts, machine_code
from rlx.backends.cpu.elementwise import Access, TreeSpec
from rlx.backends.cpu.ir import F32, Kernel, pointers
from rlx.backends.cpu.machine import Machine, this_machine
from rlx.backends.cpu.runner import RunnerSpec
from rlx.backends.cpu.workers import get_core
from rlx.dtypes import bf16, f16, f32, f64, i64
from rlx.errors import RlxError, UnsupportedOp
from rlx.host import diskcache
from rlx.host.diskcache import DiskCache
from rlx.ir import Expr
from rlx.ir import expr as ex
from rlx.runtime.saved.program import read_contents
from tests.threads import at_once

pytestmark = pytest.mark.skipif(
    choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}"
)
Array = npt.NDArray[Any]
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def machine() -> Machine:
    found = this_machine()
    assert found is not None
    return found


def session(threads: int | None = None, engine: Any = "compiled") -> rlx.Session:
    return rlx.Session("cpu", threads=threads, engine=engine)


def spec_of(tree: Expr, on: Machine, dtypes: Any = (f32, f32)) -> TreeSpec:
    *ins, out = (Access(d, "flat") for d in dtypes)
    return TreeSpec((tree,), tuple(ins), (out,), 0, on.lanes())


def apply(spec: TreeSpec, on: Machine, x: Array, out: Array) -> Array:
    """The kernel of a tree of one input, over the whole array as one item."""
    words = np.array(
        [1, 1, x.size, 1, x.size, x.ctypes.data, 0, x.itemsize, out.ctypes.data, 0, out.itemsize], np.int64
    )
    (place,) = addresses([spec], on)
    _CALL(place)(words.ctypes.data, 0, 1)
    return out


@dataclass(frozen=True)
class Causes:
    part: str


@dataclass(frozen=True)
class Effects:
    part: str


def chain(prims: str) -> Expr:
    made = ex.arg(0, f32)
    for prim in prims.split():
        made = ex.call(prim, made)
    return made


def layer(x: rlx.Tensor, y: rlx.Tensor) -> rlx.Tensor:
    return rlx.tanh(rlx.exp(x * 0.1) * y) + rlx.erf(x)


X = np.random.default_rng(0).standard_normal((300, 1001)).astype(np.float32)
Y = X[:, :1].copy()


def test_the_report_says_who_runs_a_node() -> None:
    graph = rlx.Graph("mixed")
    graph.output("y", rlx.exp(graph.input("x", (5, 7), "f32")))
    graph.output("z", rlx.signal.overlap_add(graph.input("frames", (5, 7), "f32"), 3))
    by = {d.op: d.by for d in session().compile(graph).report() if d.how == "native"}
    assert by["exp"] == "engine" and by["overlap_add"] == "numpy"
    assert "engine exp" in str(session().compile(graph).report())
    assert {d.by for d in session(engine="numpy").compile(graph).report() if d.how == "native"} == {"numpy"}


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    for word, engine in (("numpy", "numpy"), ("compiled", "engine")):
        monkeypatch.setenv("RLX_CPU", word)
        graph = rlx.Graph("one")
        graph.output("y", rlx.exp(graph.input("x", (5,), "f32")))
        (said,) = session(engine=None).compile(graph).report()
        assert said.by == engine
    monkeypatch.setenv("RLX_CPU", "fast")
    with pytest.raises(RlxError, match="RLX_CPU='fast' is none of numpy, compiled"):
        session(engine=None).compile(graph).run({"x": np.zeros(5, np.float32)})
    with pytest.raises(RlxError, match="neither"):
        session(engine="fast")


@pytest.mark.parametrize(
    "shapes", [((1,),), ((17,),), ((3, 1, 40), (5, 1)), ((2, 3, 4, 33), (3, 1, 33), (1,))]
)
def test_broadcasts_and_rests_of_vectors(shapes: tuple[tuple[int, ...], ...]) -> None:
    arrays = [np.random.default_rng(i).uniform(-2, 2, s).astype(np.float32) for i, s in enumerate(shapes)]

    def program(*tensors: rlx.Tensor) -> rlx.Tensor:
        total = rlx.tanh(tensors[0])
        for t in tensors[1:]:
            total = total * t + rlx.sin(t)
        return total

    made = rlx.jit(program, device=session())(*arrays)
    want = np.tanh(arrays[0].astype(np.float64))
    for a in arrays[1:]:
        want = want * a + np.sin(a.astype(np.float64))
    assert made.shape == want.shape
    np.testing.assert_allclose(made, want, rtol=1e-5, atol=1e-6)


def test_strided_and_reversed_operands() -> None:
    made = rlx.jit(lambda x: rlx.exp(x.transpose(1, 0)) * rlx.flip(x, 1).transpose(1, 0), device=session())(X)
    np.testing.assert_allclose(made, np.exp(X.astype(np.float64)).T * X[:, ::-1].T, rtol=1e-5)


def test_vectors_of_every_length_give_the_same_bits() -> None:
    on = machine()
    narrow = on.without("avx512f")
    trees = ("exp tanh erf", "sin log1p abs sqrt", "atan cosh floor")
    for tree in map(chain, trees):
        wide = apply(spec_of(tree, on), on, X, np.empty_like(X))
        assert np.array_equal(wide, apply(spec_of(tree, narrow), narrow, X, np.empty_like(X)), equal_nan=True)


def test_long_and_short_rows_give_the_same_bits() -> None:
    """A long row is worked on several vectors at once; 579 elements leave a part of such a group."""
    x = np.random.default_rng(0).integers(0, 1 << 32, 579, np.uint32).view(np.float32)
    run = rlx.jit(lambda x: (rlx.sin(x), rlx.tanh(x)), device=session())
    parts = zip(*(run(part) for part in np.split(x, 3)), strict=True)
    for whole, part in zip(run(x), parts, strict=True):
        assert np.array_equal(whole, np.concatenate(part), equal_nan=True)


def test_halves_are_rounded_once_and_special_values_kept() -> None:
    on = machine()
    x = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4e38, 65519.996, 65520.0, 1 + 2**-11], np.float32
    )
    with np.errstate(over="ignore"):
        for dtype in (f16, bf16):
            made = apply(
                spec_of(ex.cast(ex.arg(0, f32), dtype), on, (f32, dtype)), on, x, np.empty(x.size, dtype.np)
            )
            np.testing.assert_array_equal(made.astype(np.float32), x.astype(dtype.np).astype(np.float32))
        wide = x.astype(np.float64) * (1 + 2**-30)
        made = apply(
            spec_of(ex.cast(ex.arg(0, f64), f16), on, (f64, f16)), on, wide, np.empty(x.size, np.float16)
        )
        np.testing.assert_array_equal(made, wide.astype(np.float16))
    for dtype, patterns in ((f16, [0x7C01, 0xFE55]), (bf16, [0x7F81, 0xFFD5])):
        nan = np.array(patterns, np.uint16)
        copied = apply(spec_of(ex.arg(0, dtype), on, (dtype, dtype)), on, nan.view(dtype.np), np.empty(2, dtype.np))
        np.testing.assert_array_equal(copied.view(np.uint16), nan)


def test_integers_are_divided_as_numpy_divides_them() -> None:
    a = np.array([7, -7, 7, -7, 5, np.iinfo(np.int64).min, 0], np.int64)
    b = np.array([2, 2, -2, -2, 0, -1, 3], np.int64)
    made = rlx.jit(lambda x, y: (x // y, x % y), device=session())(a, b)
    np.testing.assert_array_equal(made[0], [3, -4, -4, 3, 0, np.iinfo(np.int64).min, 0])
    np.testing.assert_array_equal(made[1], [1, 1, -1, -1, 0, 0, 0])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_small_integers_wrap_within_a_kernel(dtype: Any) -> None:
    x = np.arange(256).astype(dtype)
    made = rlx.jit(lambda x: ((x + x) // 3, rlx.cast(x * x, "f32")), device=session())(x)
    for got, wanted in zip(made, ((x + x) // dtype(3), (x * x).astype(np.float32)), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    made = [rlx.jit(layer, device=session(n))(X, Y) for n in (1, 2, 3, 7)]
    assert all(np.array_equal(m, made[0]) for m in made)


def test_threads_of_the_callers_share_the_pool() -> None:
    programs = [rlx.jit(layer, device=session(2)) for _ in range(4)]
    want = programs[0](X, Y)

    def work(i: int) -> bool:
        return all(np.array_equal(programs[i](X, Y), want) for _ in range(20))

    assert all(at_once(4, work))


FORK = """
import os, signal, sys, warnings
import numpy as np, rlx
warnings.simplefilter("ignore")
x = np.linspace(-3, 3, 400_000, dtype=np.float32)
f = rlx.jit(lambda x: rlx.tanh(rlx.exp(x)), device=rlx.Session("cpu", threads=2, engine="compiled"))
want = f(x)
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        right = all(np.array_equal(f(x), want) for _ in range(5))
        os._exit(0 if right else 1)
    assert all(np.array_equal(f(x), want) for _ in range(5))
    assert os.waitpid(pid, 0)[1] == 0
from rlx.backends.cpu.workers import POOL
assert POOL.cell[0]
print("well")
"""


def test_threads_are_told_their_core() -> None:
    place = get_core()
    assert not place or ctypes.CFUNCTYPE(ctypes.c_int)(place)() in os.sched_getaffinity(0)


def test_a_child_of_a_fork_has_workers_of_its_own() -> None:
    assert _python(FORK) == "well\n"


def _python(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class _Interrupted(Exception):
    pass


def _until_it_rings(work: Callable[[], None]) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    while True:
        work()


def _long(threads: int) -> Any:
    """A program of some 30 ms whose steps work in place, bound."""
    graph = rlx.Graph("long")
    t = graph.input("x", (3_000_000,), "f32")
    for _ in range(6):
        t = rlx.tanh(rlx.sin(t))
    graph.output("y", t)
    exe = session(threads).compile(graph, optimize=False).bind()
    exe.inputs["x"][...] = np.linspace(-3, 3, 3_000_000, dtype=np.float32)
    return exe


@pytest.mark.parametrize("threads", [1, 2])
def test_a_signal_ends_a_run_and_the_next_is_whole(threads: int) -> None:
    exe = _long(threads)
    exe.run()
    want = exe.outputs["y"].copy()

    def ring(number: int, frame: object) -> None:
        raise _Interrupted

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(_Interrupted):
            _until_it_rings(exe.run)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    exe.run()
    assert np.array_equal(exe.outputs["y"], want)


def test_programs_that_meet_at_the_pool_repeat_nothing() -> None:
    """A step that works in place would be wrong if it were begun again, whoever has the pool after a pause."""
    programs = [_long(2) for _ in range(2)]
    programs[0].run()
    want = programs[0].outputs["y"].copy()

    def work(i: int) -> bool:
        for _ in range(4):
            programs[i].run()
        return np.array_equal(programs[i].outputs["y"], want)

    assert all(at_once(2, work))


# -- machine code


@pytest.mark.parametrize("make", [code_memory.map_code, lambda images: [code_memory._protected(images[0])]])
def test_code_is_never_writable(make: Callable[[list[bytes]], list[int]]) -> None:
    code = machine_code(spec_of(chain("exp"), machine()).ir(), machine())
    (place,) = make([code])
    assert ctypes.string_at(place, len(code)) == code
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights = line.split()[:2]
        start, end = (int(n, 16) for n in span.split("-"))
        if start <= place < end or "rlx-kernels" in line:
            assert rights[:3] == "r-x", line


def test_an_image_needs_nothing_from_outside() -> None:
    k = Kernel("kernel", pointers("x"))
    k.store(k.call("expf", F32, k.load(F32, k.arg("x"))), k.arg("x"))
    with pytest.raises(UnsupportedOp, match="expf"):
        machine_code(k.text(), machine())


def test_kernels_are_compiled_for_aarch64_too() -> None:
    on = Machine("aarch64", frozenset())
    spec = TreeSpec((chain("tanh sin"),), (Access(f16, "strided"),), (Access(bf16, "flat"),), 1, on.lanes())
    assert len(machine_code(spec.ir(), on)) > 1000


def test_a_spec_is_named_by_all_that_it_is_of() -> None:
    on = machine()
    shared = chain("exp")
    for _ in range(40):  # the text of a tree with shared parts must not double with each of them
        shared = ex.call("add", shared, shared)
    texts = {
        canonical(s)
        for s in (
            spec_of(shared, on), spec_of(chain("exp"), on), spec_of(chain("log"), on), RunnerSpec("lead", on.arch),
            spec_of(chain("exp"), on, (f32, f16)), spec_of(ex.arg(0, i64), on, (i64, i64)),
            spec_of(ex.lit(0.0, f32), on), spec_of(ex.lit(float("nan"), f32), on),
        )
    }  # fmt: skip
    assert len(texts) == 8 and max(map(len, texts)) < 5000
    assert canonical(Causes("x")) != canonical(Effects("x"))


def test_damaged_records_are_misses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    specs = [spec_of(chain("exp"), machine()), spec_of(chain("sqrt"), machine())]
    made: list[str] = []

    def counted(text: str, on: Machine) -> bytes:
        made.append(text)
        return machine_code(text, on)

    monkeypatch.setattr(compile, "machine_code", counted)
    want = compile.images(specs, machine())
    assert len(made) == 2 and compile.images(specs, machine()) == want and len(made) == 2
    records = sorted((tmp_path / KIND).glob("*.bin"))
    good = [r.read_bytes() for r in records]
    for damage in (
        lambda b: b[:-1],
        lambda b: b[:-9] + b"\xcc" + b[-8:],
        lambda b: good[b == good[0]][:42] + b[42:],  # the key of another record
        lambda b: b"",
    ):
        for record, content in zip(records, good, strict=True):
            record.write_bytes(damage(content))
        assert compile.images(specs, machine()) == want
        assert sorted(r.read_bytes() for r in records) == sorted(good)
    made.clear()
    (tmp_path / KIND).chmod(0o777)  # others could have written to it
    assert compile.images(specs, machine()) == want and made


def test_the_kernels_of_a_program_lie_in_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    specs = [spec_of(chain(name), machine()) for name in ("exp", "sqrt", "log", "abs", "neg", "tanh", "sin")]
    want = compile.images(specs, machine())
    records = {p: p.read_bytes() for p in (tmp_path / KIND).glob("*.bin")}
    (together,) = (p for p, content in records.items() if all(image in content for image in want))
    assert len(records) == 2 * len(specs) + 1
    for path in records:
        if path != together:
            path.unlink()
    with monkeypatch.context() as within:
        within.setattr(compile, "machine_code", None)
        assert compile.images(specs, machine()) == want
    together.write_bytes(records[together][:-1])  # a damaged record is a miss
    assert compile.images(specs, machine()) == want and together.read_bytes() == records[together]
    assert compile.images(specs[::-1], machine()) == want[::-1]


def test_the_digest_of_the_sources_follows_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    source = tmp_path / "kernel.py"
    source.write_text("a = 1")
    monkeypatch.setattr(compile, "_sources", lambda names: [(str(source), source.stat())])
    digest = compile._digest.__wrapped__
    first = digest()
    with monkeypatch.context() as within:
        within.setattr(compile, "Path", None)  # nothing is read again
        assert digest() == first
    source.write_text("a = 22")
    assert digest() != first


CACHED = """
import sys
import numpy as np, rlx
assert not any(m.startswith("rlx.backends.cpu") for m in sys.modules)
f = rlx.jit(lambda x: rlx.tanh(rlx.exp(x)), device=rlx.Session("cpu", threads=1, engine="compiled"))
made = f(np.linspace(-3, 3, 1000, dtype=np.float32))
print(made.tobytes().hex(), "llvmlite" in sys.modules)
"""


def test_the_cache_saves_the_compiler(tmp_path: Path) -> None:
    bits, compiled = _python(CACHED, RLX_CACHE_DIR=str(tmp_path)).split()
    again, compiled_again = _python(CACHED, RLX_CACHE_DIR=str(tmp_path)).split()
    assert bits == again and (compiled, compiled_again) == ("True", "False")


def test_programs_that_follow_do_not_read_the_folder_of_kernels_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    compile.images([spec_of(chain("exp"), machine())], machine())
    monkeypatch.setattr(diskcache, "_sweep", None)
    assert all(compile.images([spec_of(chain(name), machine())], machine()) for name in ("tanh", "log"))
    assert len([*(tmp_path / KIND).glob("*.bin")]) == 6  # each kernel has one by its text


def test_other_features_are_other_kernels(tmp_path: Path) -> None:
    on, store = machine(), DiskCache(KIND, tmp_path)
    spec = spec_of(chain("exp"), on)
    assert store.path(key_parts(spec, on)) != store.path(
        key_parts(spec, on.without("avx512f", "fma", "dotprod"))
    )


def test_features_can_be_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    if machine().arch != "x86_64":
        pytest.skip("AArch64 has one vector length")
    monkeypatch.setenv("RLX_CPU_FEATURES", "avx2, fma, f16c")
    found = this_machine.__wrapped__()
    assert found is not None and found.vector_bytes == 32 and found.features == {"avx2", "fma", "f16c"}
    monkeypatch.setenv("RLX_CPU_FEATURES", "sse4.2")
    assert this_machine.__wrapped__() is None
    monkeypatch.setenv("RLX_CPU_FEATURES", "avx2,avx512")  # no feature's name, though it looks like one
    with pytest.raises(rlx.RlxError, match=r"'avx512'; kernels know .*avx512f"):
        this_machine.__wrapped__()


@pytest.mark.parametrize(
    "lacks, said", [("compiler", "llvmlite is not installed"), ("memory", "Permission denied")]
)
def test_without_a_compiler_or_memory_for_code_numpy_runs(
    lacks: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(code: bytes) -> int:
        raise PermissionError(13, "Permission denied")

    if lacks == "compiler":
        monkeypatch.setattr(choice, "find_spec", lambda name: None)
    else:
        monkeypatch.setattr(code_memory, "_sealed", refused)
        monkeypatch.setattr(code_memory, "_protected", refused)
    choice.why_not.cache_clear()
    try:
        assert said in str(choice.why_not())
        graph = rlx.Graph("small")
        graph.output("y", rlx.exp(graph.input("x", (5,), "f32")))
        exe = session().compile(graph)
        assert exe.run({"x": np.zeros(5, np.float32)})["y"].sum() == 5
        report = exe.report()
        assert [d.by for d in report] == ["numpy"] and said in str(report)
        assert said in caplog.text and "NumPy runs programs on the CPU" in caplog.text
    finally:
        choice.why_not.cache_clear()
        choice._warn.cache_clear()


@pytest.mark.parametrize("trusted", [False, True])
def test_a_saved_program_brings_no_machine_code(
    trusted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where it is loaded its kernels are compiled again, or come from that user's own cache; without a compiler NumPy
    runs it."""
    graph = rlx.Graph("layer")
    x = graph.input("x", (3, 8))
    graph.output("y", rlx.gelu(x @ graph.param("w", (8, 4))) * 0.5)
    given = {"x": np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)}
    with session().compile(graph) as exe:
        exe.set_param("w", np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32))
        want = exe.run(given)["y"]
        exe.save(tmp_path / "m.rlx")
    assert read_contents(tmp_path / "m.rlx").kernels == 0
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cold"))
    monkeypatch.setattr(compile._LOADED, "addresses", {})
    with rlx.load_program(tmp_path / "m.rlx", session(), trusted=trusted) as loaded:
        np.testing.assert_array_equal(loaded.run(given)["y"], want)
        assert "engine" in {d.by for d in loaded.report()}
    assert list((tmp_path / "cold" / KIND).iterdir())  # they were compiled
    monkeypatch.setattr(choice, "why_not", lambda: "llvmlite is not installed")
    with rlx.load_program(tmp_path / "m.rlx", rlx.Session("cpu"), trusted=trusted) as loaded:
        np.testing.assert_allclose(loaded.run(given)["y"], want, rtol=1e-5, atol=1e-6)
        assert {d.by for d in loaded.report()} == {"numpy"}


def test_a_kernel_that_cannot_be_made_leaves_its_program_to_numpy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(text: str, on: Machine) -> bytes:
        raise RuntimeError("LLVM is out of sorts")

    monkeypatch.setattr(compile, "machine_code", fails)
    monkeypatch.setenv("RLX_CACHE_DIR", "off")
    graph = rlx.Graph("never compiled")
    graph.output("y", rlx.exp(graph.input("x", (5,), "f32")) * 0.123)
    exe = session().compile(graph)
    np.testing.assert_allclose(exe.run({"x": np.zeros(5, np.float32)})["y"], 0.123)
    assert {d.by for d in exe.report()} == {"numpy"} and "out of sorts" in caplog.text
