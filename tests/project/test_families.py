"""One family, one stem, in every layer: the module that registers an op, its CPU kernel and its GPU rule."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from rlx.backends.cpu import step
from rlx.backends.cpu.host import kernels
from rlx.backends.cpu.host.kernels import BINDERS, load_kernels
from rlx.backends.cpu.step import ENGINE_BINDERS, load_binders
from rlx.backends.gpu.program.executable import load_rules
from rlx.backends.gpu.program.lowering import LOWERINGS
from rlx.backends.gpu.rules.rows import row_kernels
from rlx.ir import HOST, REGISTRY, get_op
from rlx.ops import places

ROOT = Path(__file__).resolve().parents[2]
# Imports the modules of rlx/ops one by one, without the package that imports them in its own order, and prints which
# of them called `register` for each op.
REGISTERED = """
import importlib, json, pkgutil, sys, types

for name in ("rlx", "rlx.ops"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [name.replace(".", "/")]

from rlx import ir
from rlx.ir import op as records

made, host = {}, records.register_host

def register(op, add=records.register):
    frame, called = sys._getframe(1), []
    while frame and "importlib" not in frame.f_code.co_filename:
        called.append(frame.f_globals["__name__"])
        frame = frame.f_back
    made[op.name] = called[-1]
    return add(op)

ir.register = records.register = register
ir.register_host = records.register_host = lambda op: register(op, host)
for name in sorted((m.name for m in pkgutil.walk_packages(["rlx/ops"], "rlx.ops.")), reverse="reversed" in sys.argv):
    importlib.import_module(name)
print(json.dumps(made))
"""


@cache
def _registered(order: str) -> dict[str, str]:
    """By the name of each op the module that registers it; the modules are imported in this order."""
    done = subprocess.run(
        [sys.executable, "-c", REGISTERED, order], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _strays(layer: str, modules: dict[str, str]) -> list[str]:
    """The ops whose module is neither `<layer>.<family>` nor in the folder of that name."""
    return [
        f"{op} (family {get_op(op).family}): {module}"
        for op, module in modules.items()
        if not f"{module}.".startswith(f"{layer}.{get_op(op).family}.")
    ]


def test_an_op_is_registered_in_the_module_of_its_family() -> None:
    modules = _registered("sorted")
    assert modules == places.OPS
    own = {**REGISTRY, **HOST}
    assert modules.keys() == {name for name, op in own.items() if not op.leaf and op.family != "custom"}
    assert _strays("rlx.ops", modules) == []


def test_no_module_of_ops_needs_another_to_be_imported_before() -> None:
    assert _registered("reversed") == _registered("sorted")


def test_a_cpu_kernel_is_in_the_module_of_its_family() -> None:
    load_kernels()
    modules = {op: binder.__module__ for op, binder in BINDERS.items()}
    with_kernels = {name: op for name, op in REGISTRY.items() if op.kernel and op.family != "custom"}
    assert modules.keys() <= with_kernels.keys()
    load_binders()
    # Only ops that are decomposed have kernels neither in NumPy nor in the engine: another would run by its NumPy
    # definition alone.
    assert modules.keys() | ENGINE_BINDERS >= {name for name, op in with_kernels.items() if op.decompose is None}
    assert _strays("rlx.backends.cpu.host", modules) == []


def test_the_tables_of_binders_name_the_modules_that_have_them() -> None:
    """A program imports the modules that the tables name for its ops; all modules are imported here."""
    for table, package in ((kernels.MODULES, "rlx.backends.cpu.host"), (step.MODULES, "rlx.backends.cpu")):
        where = ROOT / package.replace(".", "/")
        for path in where.rglob("*.py"):
            name = ".".join(path.relative_to(where).with_suffix("").parts)
            if package.endswith("host") or not name.startswith("host"):
                importlib.import_module(f"{package}.{name}".removesuffix(".__init__"))
        registered: dict[str, set[str]] = {}
        every = {op: [b] for op, b in BINDERS.items()} if table is kernels.MODULES else ENGINE_BINDERS
        for op, binders in every.items():
            for binder in binders:
                module = getattr(binder, "func", binder).__module__  # some are partial
                if module.startswith(package):
                    registered.setdefault(module.removeprefix(f"{package}."), set()).add(op)
        assert {module: set(names.split()) for module, names in table.items()} == registered


def test_a_gpu_rule_is_in_the_module_of_its_family() -> None:
    load_rules()
    # An elementwise op of any family is lowered by its tree, and has no rule of its own.
    own = {name for name, op in REGISTRY.items() if not op.elementwise and op.family != "custom"}
    modules = {op: found.rule.__module__ for op, found in LOWERINGS.items() if op in own}
    # The family of an op with a row program names it; the rule is the same for all of them.
    modules = {op: module for op, module in modules.items() if module != row_kernels.__module__}
    assert len(modules) > 50
    assert _strays("rlx.backends.gpu.rules", modules) == []


@pytest.mark.parametrize("op, module", [("softmax", "rlx.ops.norm.rows"), ("softmax", "rlx.ops.softmaxes")])
def test_a_stray_is_found(op: str, module: str) -> None:
    assert _strays("rlx.ops", {op: module}) == [f"softmax (family softmax): {module}"]
    assert (
        _strays("rlx.ops", {op: "rlx.ops.softmax"}) == _strays("rlx.ops", {op: "rlx.ops.softmax.rows"}) == []
    )
