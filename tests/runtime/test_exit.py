"""A process ends cleanly, whatever its devices are doing: no traceback, no crash, no wait for long work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rlx

BEGIN = """
import os, signal, sys, threading
import numpy as np
import rlx

def failed(info):
    os.write(2, f"unraisable: {info.exc_value!r} in {info.object!r}".encode())
sys.unraisablehook = failed
session = rlx.Session(sys.argv[1])

def chain(n, steps):
    g = rlx.Graph("chain")
    x = y = g.input("x", (n, n))
    for _ in range(steps):
        y = rlx.tanh(y @ x)
    g.output("y", y)
    return session.compile(g).prepare()

eye = np.eye(16, dtype=np.float32)
exe = chain(16, 3)
"""
WAYS = {
    "a thread runs": """
begun = threading.Event()
def work():
    while True:
        exe.run({"x": eye})
        begun.set()
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
begun.wait()
""",
    "all is open": """
exe.run({"x": eye})
class Cycle:
    def __init__(self):
        self.held, self.me = (exe, exe.clone(), rlx.Weights(session.device), rlx.State(session.device)), self
    def __del__(self):
        self.held[0].device.free_bytes
cycle = Cycle()
sys.kept = [rlx.jit(lambda a: a + 1, device=sys.argv[1]), cycle]
sys.kept[0](eye)
""",
    "an interrupted run goes on": """
signal.signal(signal.SIGALRM, signal.default_int_handler)
slow = chain(256, 200)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    while True:
        slow.run({"x": np.eye(256, dtype=np.float32)})
except KeyboardInterrupt:
    pass
""",
    "an error ends it": """
exe.run({"x": eye})
sys.exit("mine")
""",
}
LOST = """
class Gone:
    def __init__(self, real):
        self.real = real
    def __getattr__(self, name):
        return (lambda *a: -4) if name in ("vkQueueSubmit", "vkWaitForFences") else getattr(self.real, name)
exe.run({"x": eye})
session.device.lib = Gone(session.device.lib)
try:
    exe.run({"x": eye})
except rlx.errors.DeviceLost:
    pass
session = rlx.Session(sys.argv[1])
chain(16, 3).run({"x": eye})
"""
# A device whose work does not end: nothing that it uses may be freed.
STUCK = """
class Stuck:
    def __init__(self, real):
        self.real = real
    def __getattr__(self, name):
        return (lambda *a: 2) if name == "vkWaitForFences" else getattr(self.real, name)
exe.run({"x": eye})
device = session.device
device.lib = Stuck(device.lib)
import atexit
from rlx.backends.vulkan import api, opened as module
module.EXIT_SECONDS = 0.1
def left():
    os.write(1, f"{device.closed} {sorted(api.live_objects())[:3]}".encode())
atexit._run_exitfuncs()
left()
"""


def ended(code: str, device: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", BEGIN + code, device],
        capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2],
    )  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.sample(2, vulkan=2)
@pytest.mark.late("vulkan")
def test_the_end_is_quiet(session: rlx.Session, way: str) -> None:
    said = ended(WAYS[way], session.info.id)
    wanted = (1, "mine\n") if way == "an error ends it" else (0, "")
    assert (said.returncode, said.stderr) == wanted


@pytest.mark.vulkan
@pytest.mark.late
def test_the_end_is_quiet_after_a_lost_device() -> None:
    said = ended(LOST, "vulkan")
    assert (said.returncode, said.stderr) == (0, "")


@pytest.mark.vulkan
def test_a_device_that_works_on_is_left_to_the_system() -> None:
    said = ended(STUCK, "vulkan")
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("False ['Buffer', 'CommandPool', 'Device'")
