"""Ranks on CUDA with a runtime and an NCCL without effect: how they connect, record, launch and are watched."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cuda import api, backend, blas, device, libraries, nccl, nvrtc, peers, recorder
from rlx.errors import RankLost, RlxError
from rlx.models import load
from tests.cuda.unreal import Library, Raised, Runtime
from tests.models.language import tiny

X = np.ones(6, np.float32)


class Two(Runtime):
    """A runtime of two devices, on which work is done, or where it `hangs` never done."""

    hangs = False
    reach = False  # whether the devices reach each other's memory

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[tuple[Any, ...]] = []

    def deviceCanAccessPeer(self, device: int, peer: int) -> bool:
        return self.reach

    def deviceEnablePeerAccess(self, peer: int) -> None:
        raise Raised(704)  # enabled before

    def launchKernel(self, function: int, *args: Any) -> None:
        self.launched.append(args)

    def getDeviceCount(self) -> int:
        return 2

    def eventQuery(self, event: int) -> int:
        return device.NOT_READY if self.hangs else 0


class Nccl:
    """CuPy's module of NCCL; calls are noted, with the rank of their communicator."""

    NcclError = ZeroDivisionError

    def __init__(self, identifier: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._identifier, module = identifier, self

        class Communicator:
            def __init__(self, n: int, identifier: Any, rank: int) -> None:
                assert identifier == module._identifier
                self.rank = rank
                module.calls.append(("connect", n, rank))

            def __getattr__(self, name: str) -> Any:
                return lambda *args: module.calls.append((name, self.rank, *args[2:-1]))

        self.NcclCommunicator = Communicator

    def get_unique_id(self) -> Any:
        return self._identifier

    def groupStart(self) -> None:
        pass

    groupEnd = groupStart


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    runtime = Two()
    loaded = api.Api(runtime, runtime, (Raised,), 13, os.getpid())
    monkeypatch.setattr(device, "load", lambda: loaded)
    monkeypatch.setattr(device, "gpu_uuid", lambda index: bytes([index]) * 16)
    monkeypatch.setattr(backend, "_opened", {})
    monkeypatch.setattr(backend, "_infos", {})
    for each in (device, blas, recorder, nvrtc, libraries):
        monkeypatch.setattr(each, "load_library", Library)
    nvrtc.nvrtc.cache_clear()
    monkeypatch.setenv("RLX_CUDA_PTX_CACHE", "off")
    yield runtime
    runtime.hangs = False
    nvrtc.nvrtc.cache_clear()


def work(mesh: rlx.Mesh) -> Any:
    f = rlx.jit(lambda x: rlx.all_reduce(rlx.all_gather(x * 2.0, "r") + 1.0, "r"), device=mesh.devices[mesh.rank])
    return [f(X).shape for _ in range(3)], str(f.report())


@pytest.mark.parametrize("identifier", [bytes(range(128)), tuple(range(128))])
def test_ranks_connect_once_and_record_their_calls(
    runtime: Two, monkeypatch: pytest.MonkeyPatch, identifier: Any
) -> None:
    module = Nccl(identifier)
    monkeypatch.setattr(nccl, "library", lambda: module)
    mesh = rlx.Mesh({"r": 2}, devices=("cuda:0", "cuda:1"), timeout=20)
    for shapes, report in mesh.run(work, mesh):
        assert shapes == [(12,)] * 3
        assert "nccl:all_gather" in report and "nccl:all_reduce" in report
    for rank in range(2):
        own = [call for call in module.calls if rank == call[2 if call[0] == "connect" else 1]]
        assert [call[0] for call in own if call[0] not in ("send", "recv")] == [
            "connect", "allReduce", "allGather", "allReduce",  # the first sum is NCCL's own start
        ]  # fmt: skip
        assert own[-2:] == [("allGather", rank, 24, 1), ("allReduce", rank, 12, 7, 0)]


def test_a_sum_is_on_a_stream_of_its_own_until_something_reads_it(
    runtime: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[Any, ...]] = []

    class Streams(Nccl):
        def __init__(self) -> None:
            super().__init__(bytes(128))

            class Communicator(self.NcclCommunicator):  # type: ignore[misc,name-defined]
                def allReduce(self, *args: Any) -> None:
                    events.append(("sum", args[-1]))

            self.NcclCommunicator = Communicator

    module = Streams()
    monkeypatch.setattr(nccl, "library", lambda: module)
    monkeypatch.setattr(Two, "launchKernel", lambda self, f, *args: events.append(("kernel", args[7])))
    monkeypatch.setattr(Two, "streamWaitEvent", lambda self, stream, event: events.append(("wait", stream)),
                        raising=False)  # fmt: skip
    mesh = rlx.Mesh({"r": 2}, devices=("cuda:0", "cuda:1"), timeout=20)

    def sums() -> list[tuple[Any, ...]]:
        if mesh.rank:
            return []
        f = rlx.jit(
            lambda x: (rlx.sort(rlx.exp(x)), rlx.all_reduce(x * 2.0, "r", op="mean") + 1.0), device="cuda:0"
        )
        f(np.ones(5000, np.float32))
        return events

    monkeypatch.setattr(nccl.Group, "meet", lambda *args: None)
    monkeypatch.setattr(nccl.Group, "broadcast", lambda self, x, root: x)
    monkeypatch.setattr(nccl.Group, "all_gather", lambda self, x: x)
    seen = mesh.run(sums)[0]
    place = seen.index(("sum", backend._opened[0].aside_stream))
    main = backend._opened[0].capture_streams[0]
    assert seen[place - 1] == ("wait", backend._opened[0].aside_stream)  # for the product
    after = seen[place + 1 :]
    assert ("kernel", main) in after[: after.index(("wait", main))]  # the sort begins before the sum has ended


def test_small_sums_go_through_memory_that_the_gpus_share(runtime: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL keeps those of more bytes, of other dtypes, and what is no sum; a kernel that gave up loses the device."""
    module = Nccl(bytes(128))
    monkeypatch.setattr(nccl, "library", lambda: module)
    monkeypatch.setattr(peers, "MOST", 4000)
    runtime.reach = True
    mesh = rlx.Mesh({"r": 2}, devices=("cuda:0", "cuda:1"), timeout=20)

    def sums() -> str:
        f = rlx.jit(
            lambda a, b, c: [rlx.all_reduce(a, "r"), rlx.all_reduce(b, "r"), rlx.all_reduce(c, "r"),
                             rlx.all_reduce(a, "r", op="mean")],
            device=mesh.devices[mesh.rank] if mesh.devices else "",
        )  # fmt: skip
        given = np.ones(1000, np.float32), np.ones(1001, np.float32), np.ones(9, np.int32)
        f(*given)
        (peers_of,) = f_collectives(mesh.rank)
        peers_of._word.value = 2
        try:
            f(*given)
        except RankLost as error:
            return str(error)
        return "nothing"

    def f_collectives(rank: int) -> list[Any]:
        return [p for p in backend._opened[rank].collectives._peers.values() if p is not None]

    assert all(text.startswith("rank 1 did not come to a sum within 20 seconds; ") for text in mesh.run(sums))
    own = [args for args in runtime.launched if args[3:6] == (peers.THREADS, 1, 1)]
    assert [args[:3] for args in own] == [(2, 1, 1)] * 2  # 500 units of 8 bytes, on each rank
    kept = [call for call in module.calls if call[0] == "allReduce" and call[2] > 1]
    assert sorted(kept) == sorted(("allReduce", r, n, kind, how) for r in range(2)
                                  for n, kind, how in ((1001, 7, 0), (9, 2, 0), (1000, 7, 4)))  # fmt: skip


def test_a_residual_is_added_in_the_kernel_of_the_sum(runtime: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "library", lambda: Nccl(bytes(128)))
    runtime.reach = True
    mesh = rlx.Mesh({"r": 2}, devices=("cuda:0", "cuda:1"), timeout=20)

    addends: list[bool] = []
    monkeypatch.setattr(peers, "kernel_of", lambda *args, added=False, kernel_of=peers.kernel_of: (
        addends.append(added), kernel_of(*args, added=added))[1])  # fmt: skip
    for f, count, fused in (
        (lambda x, r: rlx.all_reduce(x * 2.0, "r") + r, 4, True),
        (lambda x, r: (lambda y: (y, r + y))(rlx.all_reduce(x * 2.0, "r")), 4, True),
        (lambda x, r: rlx.all_reduce(x * 2.0, "r") - r, 6, False),
        (lambda x, r: rlx.all_reduce(x * 2.0, "r") + r[:1], 6, False),
    ):
        runtime.launched.clear()
        addends.clear()
        mesh.run(lambda f=f: rlx.jit(f, device=mesh.devices[mesh.rank])(X, X))
        assert len(runtime.launched) == count and set(addends) == {fused}


def test_caches_are_written_in_place_between_sums(
    runtime: Two, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A copy of all caches in each step, so that a lost rank leaves the old ones, could take longer than the step."""
    monkeypatch.setattr(nccl, "library", lambda: Nccl(bytes(128)))
    folder = tiny.write_language_model(tmp_path / "m")
    with load(folder, "cuda:0", context=40, tensor_parallel=2) as model:
        program = model.decoder.program(1, "next")
        program.prepare()
        for part in program.parts:
            kinds = Counter(type(step).__name__ for step in part.executable.steps)
            assert kinds["Collective"] == 5 and not kinds["Copy"]


def test_a_launch_that_does_not_end_is_given_up(runtime: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Nccl(bytes(128))
    monkeypatch.setattr(nccl, "library", lambda: module)
    monkeypatch.setattr(nccl, "_EACH", 0.02)
    monkeypatch.setattr(nccl, "_CALL", 0.2)
    mesh = rlx.Mesh({"r": 2}, devices=("cuda:0", "cuda:1"), timeout=0.5)

    def hung() -> str:
        f = rlx.jit(lambda x: rlx.all_reduce(x, "r"), device=mesh.devices[mesh.rank])
        f(X)
        runtime.hangs = True
        f(X)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            time.sleep(0.02)
            try:
                f(X)
            except RankLost as error:
                return str(error)
        return "nothing"

    for said in mesh.run(hung):
        assert "did not" in said
    for each in backend._opened.values():
        each.collectives.wait_for_abort()
    assert {call for call in module.calls if call[0] == "abort"} == {("abort", 0), ("abort", 1)}


def test_no_wait_ends_well_where_the_work_was_given_up(runtime: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of a state, as decoding reads tokens, waits until the kernels of a lost rank are ended."""
    monkeypatch.setattr(nccl, "library", lambda: Nccl(bytes(128)))
    mesh = rlx.Mesh({"r": 2}, devices=("cuda:0", "cuda:1"), timeout=20)
    mesh.run(lambda: rlx.jit(lambda x: rlx.all_reduce(x, "r"), device=mesh.devices[mesh.rank])(X))
    own, buffer = backend._opened[0], backend._opened[0].acquire(8)
    mark = own.mark()

    def ended(at: int) -> None:
        own.lose_ranks("rank 1 is lost")

    for name in ("streamSynchronize", "eventSynchronize"):
        monkeypatch.setattr(runtime, name, ended)
    for wait in (lambda: buffer.read(0, np.empty(8, np.uint8)), mark.wait, own.synchronize):
        own._lost = ""
        with pytest.raises(RankLost, match="rank 1 is lost"):
            wait()


def test_what_waits_for_a_rank_that_failed_is_given_up_before_the_next_run(
    runtime: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would take the next run's numbers for its own."""
    monkeypatch.setattr(nccl, "library", lambda: Nccl(bytes(128)))
    monkeypatch.setattr(nccl, "_EACH", 0.05)
    monkeypatch.setattr(nccl, "_GRACE", 0.1)
    mesh = rlx.Mesh({"r": 2}, devices=("cuda:0", "cuda:1"), timeout=20)
    fs = [rlx.jit(lambda x: rlx.all_reduce(x, "r"), device=f"cuda:{i}") for i in range(2)]
    mesh.run(lambda: fs[mesh.rank](X))
    runtime.hangs = True

    def half() -> None:
        if mesh.rank == 1:
            raise ValueError("no")
        fs[0](X)

    with pytest.raises(ValueError, match="no"):
        mesh.run(half)
    with pytest.raises(RankLost, match=r"rank 1 ended: ValueError: no; what was on cuda:[01] is void: make sessions"):
        mesh.run(lambda: fs[mesh.rank](X))


def test_a_device_whose_work_was_given_up_can_be_opened_again(runtime: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is freed then, and what is left of it refuses work."""
    module = Nccl(bytes(128))
    monkeypatch.setattr(nccl, "library", lambda: module)
    monkeypatch.setattr(nccl, "_EACH", 0.05)
    monkeypatch.setattr(nccl, "_GRACE", 0.1)

    def functions() -> list[Any]:
        return [rlx.jit(lambda x: rlx.all_reduce(x, "r"), device=f"cuda:{i}") for i in range(2)]

    mesh, before = rlx.Mesh({"r": 2}, devices=("cuda:0", "cuda:1"), timeout=20), functions()
    mesh.run(lambda: before[mesh.rank](X))
    held = rlx.array(X, device="cuda:0")
    for each in backend._opened.values():
        each.collectives._settle()  # the watch has seen that all is done
    runtime.hangs = True

    def half() -> None:
        if mesh.rank == 1:
            raise ValueError("no")
        before[0](X)

    with pytest.raises(ValueError, match="no"):
        mesh.run(half)
    mesh.world.begin()  # waits until the first rank's work is given up; the second had none
    runtime.hangs = False
    lost = backend._opened[0]
    for again in (mesh, rlx.Mesh({"r": 2}, devices=("cuda:0", "cuda:1"), timeout=20)):
        fresh = functions()
        assert [y.shape for y in again.run(lambda again=again, fresh=fresh: fresh[again.rank](X))] == [(6,)] * 2
    assert backend._opened[0] is not lost and lost.closed and not lost._allocated
    assert [call for call in module.calls if call[0] == "abort"] == [("abort", 0)]
    assert not [call for call in module.calls if call[0] == "destroy"]
    for stale in (lambda: mesh.run(lambda: before[0](X) if mesh.rank == 0 else None), held.numpy):
        with pytest.raises(RankLost, match="make sessions, arrays and functions there anew"):
            stale()


def test_a_device_is_opened_again_where_nothing_waited(runtime: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel gave up, and its launch ended: the watch of the device has nothing to give up, and ends too."""
    monkeypatch.setattr(nccl, "library", lambda: Nccl(bytes(128)))
    monkeypatch.setattr(nccl, "_EACH", 0.02)
    runtime.reach = True
    mesh = rlx.Mesh({"r": 2}, devices=("cuda:0", "cuda:1"), timeout=20)

    def sums() -> None:
        f = rlx.jit(lambda x: rlx.all_reduce(x, "r"), device=mesh.devices[mesh.rank])
        launch = f.launch(X)
        own = backend._opened[mesh.rank].collectives
        own._settle()
        (each,) = own._peers.values()
        each._word.value = 1
        with pytest.raises(RankLost, match="rank 0 did not come to a sum"):
            launch.wait()
        own._watch.join(20)
        assert not own._watch.is_alive()

    mesh.run(sums)
    mesh.run(lambda: rlx.jit(lambda x: rlx.all_reduce(x, "r"), device=mesh.devices[mesh.rank])(X))
    watches = [each.collectives._watch for each in backend._opened.values()]
    for opened in backend._opened.values():
        opened.close()
    for watch in watches:
        watch.join(20)
        assert not watch.is_alive()


def test_failures_of_nccl_are_typed(runtime: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Nccl(bytes(128))
    monkeypatch.setattr(nccl, "library", lambda: module)

    def fails(*args: Any) -> None:
        raise ZeroDivisionError("no connection")

    monkeypatch.setattr(module.NcclCommunicator, "__init__", fails)
    mesh = rlx.Mesh({"r": 2}, devices=("cuda:0", "cuda:1"), timeout=5)
    with pytest.raises(RlxError, match="connecting the GPUs: NCCL failed: no connection"):
        mesh.run(work, mesh)


def test_without_nccl_they_are_host_steps(runtime: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "library", lambda: None)
    mesh = rlx.Mesh({"r": 2}, devices=("cuda:0", "cuda:1"), timeout=5)
    for _, report in mesh.run(work, mesh):
        assert "host:all_gather" in report and "host:all_reduce" in report
