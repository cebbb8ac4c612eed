"""Scripts of users end without a word, whatever they leave at module level.

Each runs as a process's main module, in a fork of one process that has imported rlx, and ends as an interpreter does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import tiny as encoders
from tests.models.language import tiny

RUN = """
import json, os, sys
import numpy as np, rlx
from rlx.models import load

def main():  # as most scripts have; it keeps what is at module level until modules cannot be imported any more
    pass

folder, *models = sys.argv[1:]
graph = rlx.Graph("first")  # imports for all
graph.output("y", graph.input("x", (3, 3)) @ graph.param("w", (3, 3)))
rlx.Session("cpu").compile(graph).close()
for number, script in enumerate(json.load(sys.stdin)):
    child = os.fork()
    if not child:
        out = os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT)
        os.dup2(out, 2)
        break
    if os.waitpid(child, 0)[1]:
        os.write(1, f"{number} ".encode())
else:
    script = ""
del number, child, graph
exec(script)
"""
PROGRAM = """
g = rlx.Graph("p")
g.output("y", rlx.tanh(g.input("x", (1, 256)) @ g.param("w", (256, 256))))
program = rlx.Session("cpu").compile(g)
program.set_param("w", np.eye(256, dtype=np.float32))
x = {"x": np.ones((1, 256), np.float32)}
y = program.run(x)["y"]
"""
MODEL = """
os.environ["RLX_CPU"] = "numpy"  # whose start takes less
model = load(models[0], "cpu", context=64)
"""
SCRIPTS = [
    PROGRAM,
    PROGRAM + "other = program.clone(); other.run(x)",
    PROGRAM + "program.close()",
    PROGRAM + "launched = program.launch(x)",
    PROGRAM + "kept = [program]; kept.append(kept)",
    PROGRAM + "sys.kept = program, y; del program",
    PROGRAM + "class Holder:\n    def __del__(self): self.program.run(x)\nholder = Holder(); holder.program = program",
    PROGRAM + "import builtins; builtins.kept = program",
    PROGRAM + "sys.exit(program.report() and None)",
    PROGRAM + "view = np.from_dlpack(rlx.array(np.ones((512, 512), np.float32))); del program",
    PROGRAM + """
import threading, time
def later():
    threading.main_thread().join()
    g = rlx.Graph("q")
    g.output("y", rlx.exp(g.input("x", (3, 5))) @ g.param("w", (5, 257)))
    made = rlx.Session("cpu").compile(g)
    made.set_param("w", np.ones((5, 257), np.float32))
    made.run({"x": np.ones((3, 5), np.float32)})
    made.set_param("w", np.ones((5, 257), np.float32))
    program.save(folder + "/program")
    rlx.load_program(folder + "/program", "cpu").run(x)
threading.Thread(target=later).start()
""",
    PROGRAM + """
import threading
begun = threading.Event()
def work():
    while True:
        program.run(x)
        begun.set()
threading.Thread(target=work, daemon=True).start()
begun.wait()
""",
    PROGRAM + """
import atexit
atexit.register(program.run, x)
""",
    "a = rlx.array(np.ones((300, 300), np.float32)); b = np.asarray(a); c = np.from_dlpack(a)",
    "f = rlx.jit(lambda a: a @ a, device='cpu'); f(np.ones((1, 256, 256), np.float32))",
    "def step(w, x): return rlx.sum((x @ w) ** 2)\n"
    "g = rlx.grad(step, device='cpu'); g(np.ones((128, 128), np.float32), np.ones((4, 128), np.float32))",
    MODEL + "said = list(model.generate([1, 2, 3], 4))",
    MODEL + "said = model.generate([1, 2, 3], 20); next(said)",
    MODEL + "batch = model.batch(2); batch.add(np.array([1, 2, 3])); batch.step()",
    MODEL + """
import threading
def later():
    threading.main_thread().join()
    with load(models[1], "cpu") as encoder:
        encoder.encode(["the cat"])
    list(model.generate([1, 2, 3], 4))
threading.Thread(target=later).start()
""",
    "os.environ['RLX_CPU'] = 'numpy'; encoder = load(models[1], 'cpu'); vectors = encoder.encode(['the cat', 'a dog'])",
    "f = rlx.jit(lambda a: a @ a, device='cpu', out='device'); x = np.ones((128, 128), np.float32)\n"
    "def forever():\n"
    "    try:\n"
    "        while True: yield f(x)\n"
    "    finally: f(x)\n"
    "g = forever(); a = next(g)",
    PROGRAM + "program.save(folder + '/saved'); again = rlx.load_program(folder + '/saved', 'cpu')",
    # Kernels stay in memory when the interpreter has emptied the module that mapped them.
    "import gc; from rlx.backends.cpu import code_memory; x = np.ones((64, 64), np.float32)\n"
    "f = rlx.jit(lambda a: a @ a, device='cpu'); f(x); vars(code_memory).clear(); gc.collect(); f(x)",
]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork, which saves each script the imports")
@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.late)])
def test_scripts_end_without_a_word(few: bool, tmp_path: Path) -> None:
    scripts = SCRIPTS[:11:5] + SCRIPTS[17:18] + SCRIPTS[-1:] if few else SCRIPTS
    language = tiny.write_language_model(tmp_path / "language", text=True)
    encoder = encoders.write_model(tmp_path / "encoder")
    said = tmp_path / "said"
    said.mkdir()
    env = {name: value for name, value in os.environ.items() if name != "RLX_CPU"}  # compiled kernels pack weights
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN, said, language, encoder], input=json.dumps(scripts), text=True,
        capture_output=True, timeout=300, cwd=Path(__file__).parents[2], check=False, env=env,
    )  # fmt: skip
    assert done.stderr == ""
    words = {number: (said / str(number)).read_text() for number in range(len(scripts))}
    wrong = {scripts[number]: text for number, text in words.items() if text}
    assert not wrong and (done.returncode, done.stdout, done.stderr) == (0, "", ""), (wrong, done)
