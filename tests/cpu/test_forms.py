"""Buffers whose bytes lie in another order: other threads, forked children and signals' handlers midway."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest

from rlx.backends.cpu.arena import CpuBuffer
from rlx.backends.cpu.device import CpuBackend, CpuDevice
from rlx.driver.device import Bytes
from tests.threads import at_once

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no system call that gives pages back")
NBYTES = 1 << 17
OLD, NEW = (np.random.default_rng(seed).integers(1, 256, NBYTES, np.uint8) for seed in (0, 1))


def nothing() -> None: ...


@pytest.fixture
def device() -> CpuDevice:
    return CpuBackend().open(0)


@pytest.fixture
def buffer(device: CpuDevice) -> Iterator[CpuBuffer]:
    with closing(device.acquire(NBYTES)) as made:
        made.write(0, OLD)
        yield made


class Program:
    """A program that reads a buffer's bytes in reverse, and nothing else of it. `midway` is called while the form is
    filled, and in the middle of restoring the bytes from it."""

    def __init__(self, buffer: CpuBuffer, device: CpuDevice) -> None:
        self.buffer, self.midway = buffer, nothing
        self.memory = device.acquire(NBYTES)
        self.form = buffer.forms.use("reversed", 0, NBYTES, lambda: self.memory, lambda _: self.unpack())

    def unpack(self) -> None:
        half, given = NBYTES // 2, self.memory.memory()[::-1]
        self.buffer.memory()[:half] = given[:half]
        self.midway()
        self.buffer.memory()[half:] = given[half:]

    def pack(self) -> None:
        self.memory.memory()[:] = self.buffer.memory()[::-1]
        self.midway()

    def run(self) -> Bytes:
        """The bytes as the program has them."""
        self.buffer.forms.fill(self.form, self.pack)
        return self.memory.memory()[::-1]

    def once(self, work: Callable[[], object]) -> None:
        """Sets `midway` to a call that works once."""

        def call() -> None:
            self.midway = nothing
            work()

        self.midway = call


def contents(buffer: CpuBuffer) -> Bytes:
    out = np.empty(NBYTES, np.uint8)
    buffer.read(0, out)
    return out


class Given:
    """Bytes to write; `midway` is called before they go into memory."""

    nbytes = NBYTES

    def __init__(self, data: Bytes, midway: Callable[[], object]) -> None:
        self.data, self.midway = data, midway

    def __array__(self, *_: object, **__: object) -> Bytes:
        self.midway()
        return self.data


class Target(np.ndarray[Any, Any]):
    """Memory to read into; `midway` is called before the bytes come."""

    midway: Callable[[], object] = nothing

    def __setitem__(self, key: Any, value: Any) -> None:
        self.midway()
        super().__setitem__(key, value)


def comes(buffer: CpuBuffer, device: CpuDevice) -> Callable[[], None]:
    """A call in which the first program comes that packs the buffer, as it may in another thread."""
    made: list[Program] = []

    def come() -> None:
        if not made:
            made.append(Program(buffer, device))
            made[0].run()
            assert buffer.forms.freed_bytes

    return come


def test_the_first_program_comes_while_bytes_are_read(buffer: CpuBuffer, device: CpuDevice) -> None:
    out: Any = np.zeros(NBYTES, np.uint8).view(Target)
    out.midway = comes(buffer, device)
    buffer.read(0, out)
    np.testing.assert_array_equal(out.view(np.ndarray), OLD)


def test_the_first_program_comes_while_bytes_are_written(buffer: CpuBuffer, device: CpuDevice) -> None:
    given: Any = Given(NEW, comes(buffer, device))
    buffer.write(0, given)
    np.testing.assert_array_equal(contents(buffer), NEW)
    np.testing.assert_array_equal(Program(buffer, device).run(), NEW)


def test_the_first_program_comes_while_work_writes_the_bytes(buffer: CpuBuffer, device: CpuDevice) -> None:
    come = comes(buffer, device)

    def work(out: Bytes) -> None:
        come()
        out[:] = NEW

    assert buffer.write_by(0, NBYTES, work)
    np.testing.assert_array_equal(contents(buffer), NEW)
    np.testing.assert_array_equal(Program(buffer, device).run(), NEW)


def test_all_threads_get_the_same_forms(device: CpuDevice) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(30):
            with closing(device.acquire(64)) as buffer:
                found = at_once(4, partial(lambda buffer, _: buffer.forms, buffer))
                assert all(forms is found[0] for forms in found)
    finally:
        sys.setswitchinterval(before)


def test_a_view_lasts_while_programs_come_and_go(buffer: CpuBuffer, device: CpuDevice) -> None:
    """One of them keeps the same bytes, those of the whole buffer."""
    first = Program(buffer, device)
    first.run()
    buffer.forms.keep(0, NBYTES)
    view = buffer.view()
    buffer.forms.let_go(0, NBYTES)
    np.testing.assert_array_equal(view, OLD)
    view[:] = NEW
    np.testing.assert_array_equal(contents(buffer), NEW)


def test_a_write_that_is_broken_off_leaves_the_old_bytes_of_a_form(buffer: CpuBuffer, device: CpuDevice) -> None:
    program = Program(buffer, device)
    program.run()
    stamp = buffer.stamp

    def interrupt() -> None:
        assert buffer.stamp != stamp  # the program looks again, wherever the write is broken off
        buffer.memory()[: NBYTES // 2] = 7  # a part has arrived
        raise KeyboardInterrupt

    given: Any = Given(NEW, interrupt)
    with pytest.raises(KeyboardInterrupt):
        buffer.write(0, given)
    np.testing.assert_array_equal(program.run(), OLD)
    np.testing.assert_array_equal(contents(buffer), OLD)


def test_a_handler_reads_while_bytes_are_restored(buffer: CpuBuffer, device: CpuDevice) -> None:
    program = Program(buffer, device)
    program.run()
    program.once(lambda: np.testing.assert_array_equal(contents(buffer), OLD))
    np.testing.assert_array_equal(contents(buffer), OLD)
    np.testing.assert_array_equal(contents(buffer), OLD)


def test_a_handler_writes_while_a_form_is_filled(buffer: CpuBuffer, device: CpuDevice) -> None:
    program = Program(buffer, device)
    program.once(lambda: buffer.write(0, NEW))
    program.run()
    np.testing.assert_array_equal(program.run(), NEW)
    np.testing.assert_array_equal(contents(buffer), NEW)


def test_a_fill_that_is_broken_off_is_done_again(buffer: CpuBuffer, device: CpuDevice) -> None:
    program = Program(buffer, device)

    def interrupt() -> None:
        raise KeyboardInterrupt

    program.once(interrupt)
    with pytest.raises(KeyboardInterrupt):
        program.run()
    np.testing.assert_array_equal(contents(buffer), OLD)
    np.testing.assert_array_equal(program.run(), OLD)


def test_threads_copy_both_ways(device: CpuDevice) -> None:
    with closing(device.acquire(NBYTES)) as one, closing(device.acquire(NBYTES)) as two:
        one.write(0, OLD)
        two.write(0, OLD)
        programs = Program(one, device), Program(two, device)

        def copy(i: int) -> None:
            (target, source), program = ((one, two), (two, one))[i % 2], programs[i % 2]
            for _ in range(20):
                target.copy_from(source, 0, 0, NBYTES)
                assert np.array_equal(program.run(), OLD)

        at_once(4, copy)
        for buffer in (one, two):
            np.testing.assert_array_equal(contents(buffer), OLD)


@pytest.mark.parametrize("to", [100, -100])
def test_a_copy_within_a_packed_buffer(buffer: CpuBuffer, device: CpuDevice, to: int) -> None:
    program = Program(buffer, device)
    program.run()
    source, target, n = max(0, -to), max(0, to), NBYTES - abs(to)
    buffer.copy_from(buffer, source, target, n)
    wanted = OLD.copy()
    wanted[target : target + n] = OLD[source : source + n]
    np.testing.assert_array_equal(contents(buffer), wanted)
    np.testing.assert_array_equal(program.run(), wanted)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_reads_what_another_thread_held_at_the_fork(buffer: CpuBuffer, device: CpuDevice) -> None:
    program, held, go_on = Program(buffer, device), threading.Event(), threading.Event()
    program.run()

    def hold() -> None:
        held.set()
        go_on.wait()

    program.once(hold)
    thread = threading.Thread(target=contents, args=(buffer,))
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends a child that waits for ever
        program.midway = nothing
        right = np.array_equal(contents(buffer), OLD) and np.array_equal(program.run(), OLD)
        os._exit(0 if right else 1)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(contents(buffer), OLD)
