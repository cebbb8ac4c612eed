"""Vulkan devices of each memory kind, small kernels compiled on the spot, and arenas of plain f32 slots."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlx.backends.gpu.program.steps import FileKernel, Launch, Ref
from rlx.backends.vulkan import api, backend, pipelines
from rlx.backends.vulkan.arena import VulkanArena
from rlx.backends.vulkan.device import VulkanDevice
from rlx.backends.vulkan.discovery import Physical, physical_devices
from rlx.backends.vulkan.memory import KINDS, MemoryKind, has_kind
from rlx.driver import MemoryPlan, Slot
from rlx.dtypes import f32
from rlx.errors import DeviceUnavailable

HEAD = """
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
layout(local_size_x = 64) in;
layout(buffer_reference, scalar) buffer F { float at[]; };
"""
# y = a x + y
AXPY = """
layout(push_constant, scalar) uniform P { F x; F y; float a; uint n; };
void main() { uint i = gl_GlobalInvocationID.x; if (i < n) y.at[i] = a * x.at[i] + y.at[i]; }
"""
# y = x + C0 + C1 / 4
SHIFT = """
layout(constant_id = 0) const int C0 = 100;
layout(constant_id = 1) const uint C1 = 100;
layout(push_constant, scalar) uniform P { F x; F y; uint n; };
void main() { uint i = gl_GlobalInvocationID.x; if (i < n) y.at[i] = x.at[i] + float(C0) + float(C1) / 4.0; }
"""
# y = x, needlessly through doubles
DOUBLE = """
layout(push_constant, scalar) uniform P { F x; F y; uint n; };
void main() { uint i = gl_GlobalInvocationID.x; if (i < n) y.at[i] = float(double(x.at[i])); }
"""
SOURCES = {"test_axpy": AXPY, "test_shift": SHIFT, "test_shift-wide": SHIFT, "test_double": DOUBLE}


@pytest.fixture(scope="session")
def physical() -> Physical:
    """The first device of this machine."""
    try:
        return physical_devices()[0]
    except DeviceUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spirv(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The test kernels, compiled."""
    compiler = shutil.which("glslangValidator")
    if compiler is None:
        pytest.skip("glslangValidator is not installed; tools/system.sh glslang")
    folder: Path = tmp_path_factory.mktemp("spirv")
    made = {}
    for name, body in SOURCES.items():
        source, target = folder / f"{name}.comp", folder / f"{name}.spv"
        source.write_text((HEAD + body).lstrip())
        subprocess.run(
            [compiler, "-V", "--target-env", "vulkan1.2", "--quiet", str(source), "-o", str(target)],
            check=True,
        )
        made[name] = target.read_bytes()
    return made


@pytest.fixture
def kernels(spirv: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Makes the test kernels known to every device of this test."""
    shipped = pipelines.load_spirv
    monkeypatch.setattr(pipelines, "load_spirv", lambda name: spirv[name] if name in spirv else shipped(name))
    return spirv


def open_kind(physical: Physical, kind: MemoryKind) -> VulkanDevice:
    if not has_kind(physical, kind):
        pytest.skip(f"{physical.info.name} has no {kind} memory")
    return VulkanDevice(physical, kind)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Every Vulkan object that the test makes is destroyed, and the validation layers, where on, say nothing."""
    before, said = api.live_objects(), len(api.instance().messages)
    yield
    # Fewer than before is no leak: a device that earlier tests of this process opened may have been closed meanwhile.
    assert {kind: n for kind, n in api.live_objects().items() if n > before.get(kind, 0)} == {}
    assert api.instance().messages[said:] == []


@pytest.fixture
def device(physical: Physical, nothing_left: None) -> Iterator[VulkanDevice]:
    """A device of its own, with the memory it prefers."""
    with_default = VulkanDevice(physical)
    yield with_default
    with_default.close()


@pytest.fixture(params=KINDS)
def any_memory(
    request: pytest.FixtureRequest, physical: Physical, nothing_left: None
) -> Iterator[VulkanDevice]:
    """A device of its own for each kind of memory."""
    opened = open_kind(physical, request.param)
    yield opened
    opened.close()


@pytest.fixture
def opened(physical: Physical) -> Iterator[Callable[[], VulkanDevice]]:
    """Opens device 0 through the backend, and closes it at the end."""
    devices: list[VulkanDevice] = []

    def open_it() -> VulkanDevice:
        devices.append(backend.open(0))
        return devices[-1]

    yield open_it
    for device in devices:
        device.close()


def slots_plan(count: int, elements: int) -> MemoryPlan:
    """`count` f32 slots of `elements`, nodes 0, 1, …"""
    stride = -(-elements * 4 // 256) * 256
    slots = {i: Slot("arena0", i * stride, elements * 4, f32) for i in range(count)}
    return MemoryPlan("test", slots=slots, segments={"arena0": count * stride})


def ref(arena: VulkanArena, node: int) -> Ref:
    slot = arena.slot(node)
    return Ref(slot.segment, slot.offset, slot.nbytes)


def axpy(arena: VulkanArena, x: int, y: int, a: float) -> Launch:
    """y += a x"""
    n = arena.slot_elems(x)
    x_ref, y_ref = ref(arena, x), ref(arena, y)
    return Launch(
        FileKernel("test_axpy"),
        (-(-n // 64), 1, 1),
        (x_ref, y_ref, a, n),
        (x_ref, y_ref),
        (y_ref,),
        f"axpy {x} {y}",
    )


def shift(arena: VulkanArena, x: int, y: int, *constants: int, wide: bool = False) -> Launch:
    """y = x + C0 + C1 / 4"""
    n = arena.slot_elems(x)
    x_ref, y_ref = ref(arena, x), ref(arena, y)
    kernel = FileKernel("test_shift", (("WIDTH", "wide"),) if wide else (), constants)
    return Launch(kernel, (-(-n // 64), 1, 1), (x_ref, y_ref, n), (x_ref,), (y_ref,), f"shift {x} {y}")


def child(code: str, env: dict[str, str], **more: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**env, **more},
        capture_output=True,
        text=True,
        timeout=120,
    )
