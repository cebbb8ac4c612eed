"""Plants a fault in a copy of the kernel sources and asks the conformance cases whether they notice.

For Vulkan the modules that a case needs are compiled from the copy, by the functions of shaders/build.py, when the
device asks for them; for CUDA the host's compiler is given the copy's headers. The tree's own files stay as they are.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from rlx.backends.gpu.elementwise import emit_spirv
from rlx.backends.gpu.elementwise.spirv import Module
from rlx.backends.gpu.elementwise.spirv_template import Template
from rlx.backends.gpu.program.executable import load_rules
from rlx.backends.vulkan import pipelines
from rlx.conformance.case import Case
from rlx.conformance.guarded import guarded_faults
from rlx.driver.registry import open_device
from tests.gpu import cuda_host
from tests.gpu.lowered import carried_out, lower
from tests.mutation.fault import CUDA, Fault, cases_for

ROOT = Path(__file__).resolve().parent.parent.parent
GPU = Path("rlx/backends/device_code")
NARROW = (3, 65535, 65535)


def planted_copy(fault: Fault, root: Path) -> list[Path]:
    """A copy of the kernel sources with the fault; the files that have it.

    Raises: AssertionError where its text is not there any more."""
    shutil.copytree(ROOT / "shaders", root / "shaders", ignore=shutil.ignore_patterns("__pycache__"))
    (root / GPU).mkdir(parents=True)
    for path in (ROOT / GPU).glob("*.h"):
        shutil.copyfile(path, root / GPU / path.name)
    shutil.copytree(ROOT / GPU / "bodies", root / GPU / "bodies")
    changed = []
    for file in (*(root / GPU).glob(fault.file), *(root / "shaders").glob(fault.file)):
        text = file.read_text(encoding="utf-8")
        if fault.old in text:
            file.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
            changed.append(file)
    assert changed, f"{fault.name}: {fault.file} no longer holds {fault.old!r}"
    return changed


def builder(root: Path) -> ModuleType:
    """shaders/build.py, working on the copy."""
    spec = importlib.util.spec_from_file_location("planted_build", ROOT / "shaders/build.py")
    assert spec is not None and spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = build  # where its dataclasses look for their own module
    spec.loader.exec_module(build)
    build.ROOT, build.SHADERS, build.SPIRV = root, root / "shaders", root / "spirv"  # type: ignore[attr-defined]
    build.INCLUDE = (root / "shaders/include", root / GPU)  # type: ignore[attr-defined]
    build.SPIRV.mkdir()
    return build


@contextmanager
def planted_modules(root: Path, changed: list[Path]) -> Iterator[None]:
    """While it lasts, shaders that include a changed file are compiled from the copy."""
    build = builder(root)
    whole = build.expected()
    found = {path.resolve() for path in changed}
    own = pipelines.load_spirv

    def is_hit(file: str) -> bool:
        shader = whole[file][0]
        return not found.isdisjoint([*shader.includes, (build.SHADERS / f"{shader.stem}.comp").resolve()])

    def load(name: str) -> bytes:
        file = f"{name}.spv"
        if not is_hit(file):
            return own(name)
        target = build.SPIRV / file
        if not target.is_file():
            problem = build.compile_one(*whole[file], target)
            assert problem is None, f"the fault does not compile: {problem}"
        return bytes(target.read_bytes())

    template = emit_spirv.template

    @cache
    def planted(wide: bool = False, fused: bool = False) -> Template:
        name = "tree64" if wide else "tree_fused" if fused else "tree"
        return Template(Module.parse(load(name))) if is_hit(f"{name}.spv") else template(wide, fused)

    pipelines.load_spirv, emit_spirv.template = load, planted  # type: ignore[assignment]
    try:
        yield
    finally:
        pipelines.load_spirv, emit_spirv.template = own, template


@contextmanager
def narrow_grids(device: Any) -> Iterator[None]:
    """Within this context, the device takes grids of at most three workgroups along X."""
    own = device.limits, device.target
    device.limits = own[0]._replace(max_groups=NARROW)
    device.target = dataclasses.replace(own[1], limits=device.limits)
    try:
        yield
    finally:
        device.limits, device.target = own


def through_cuda(case: Case) -> str:
    """The error of a case run by the CUDA sources on the host, which must not write elsewhere; "" for none."""
    load_rules()
    inputs = case.arrays()
    graph, planned, lowering = lower(case.op, inputs, dict(case.attrs), CUDA)
    try:
        outputs = carried_out(graph, planned, lowering, inputs, CUDA)
    except AssertionError as error:
        return str(error)
    return case.check(outputs).message


def first_notice(fault: Fault, folder: Path) -> tuple[str, str] | None:
    """The first case that the fault fails, and what is wrong; None where all pass. A fault may also crash."""
    changed = planted_copy(fault, folder)
    if fault.where == CUDA:
        cuda_host.planted = folder / GPU
        try:
            found = ((case.id, through_cuda(case)) for case in cases_for(fault))
            return next(((name, wrong) for name, wrong in found if wrong), None)
        finally:
            cuda_host.planted = None
    device = open_device("vulkan")
    with planted_modules(folder, changed), narrow_grids(device) if fault.narrow else _nothing():
        found = ((case.id, guarded_faults(device, case)) for case in cases_for(fault))
        return next(((name, wrong) for name, wrong in found if wrong), None)


@contextmanager
def _nothing() -> Iterator[None]:
    yield
