"""A child of a fork uses the CPU as its parent did, is told that a GPU's session is not its own, and never hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rlx

CODE = """
import os, signal, sys, threading, warnings
import numpy as np
import rlx
from rlx.errors import DeviceUnavailable

warnings.simplefilter("ignore")  # of a fork beside threads, which is what is tried here
x = np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32)

def program(g):
    t = g.input("x", (300, 300))
    step = lambda c: (c[0] + 1, rlx.tanh(c[1] @ t / 20))
    _, last = rlx.while_loop(lambda c: c[0] < 3, step, (g.constant(0, "i32"), t))
    g.output("y", rlx.softmax(last))

g = rlx.Graph("forked")
program(g)
session = rlx.Session(sys.argv[1])
exe = session.compile(g)
wanted = exe.run({"x": x})["y"]
going = True

def work():
    while going:
        exe.run({"x": x})

threads = [threading.Thread(target=work) for _ in range(3)]
for t in threads:
    t.start()
words = []
for _ in range(5):
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # ends a child that hangs
        said = []
        anew = lambda: session.compile(g).run({"x": x})["y"]
        for use in (lambda: exe.run({"x": x})["y"], anew, exe.clone, lambda: rlx.Session(sys.argv[1])):
            try:
                made = use()
                right = not isinstance(made, np.ndarray) or np.array_equal(made, wanted)
                said.append("right" if right else "wrong")
            except DeviceUnavailable as error:
                said.append("told" if "fork" in str(error) else str(error))
        exe.close()
        os.write(told, " ".join(said).encode())
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    os.close(told)
    words.append(os.read(ready, 1000).decode() if status == 0 else f"status {status}")
    os.close(ready)
going = False
for t in threads:
    t.join()
assert np.array_equal(exe.run({"x": x})["y"], wanted)
print("\\n".join(words))
"""


@pytest.mark.late("vulkan")
def test_a_child_is_told_or_right_and_never_hangs(session: rlx.Session) -> None:
    device = session.device.info.id
    said = subprocess.run(
        [sys.executable, "-c", CODE, device], capture_output=True, text=True, timeout=240,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    expected = "right right right right" if device == "cpu" else "told told told told"
    assert said.stdout.splitlines() == [expected] * 5
