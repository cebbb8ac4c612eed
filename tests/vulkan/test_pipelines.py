"""Pipelines: compiled once, cached on disk, refused where the device lacks what they need."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlx.backends.gpu.program.steps import FileKernel
from rlx.backends.vulkan import api, pipelines
from rlx.backends.vulkan.device import VulkanDevice
from rlx.backends.vulkan.discovery import Physical
from rlx.dtypes import f32
from rlx.errors import UnsupportedOp
from tests.threads import at_once
from tests.vulkan.conftest import shift, slots_plan

pytestmark = pytest.mark.vulkan


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(pipelines, "HEADER_BYTES", 0)  # the software driver's caches are empty, and kept here
    return tmp_path / "vulkan"


@pytest.mark.usefixtures("kernels", "nothing_left")
def test_pipeline_cache_on_disk_and_its_faults(cached: Path, physical: Physical) -> None:
    def result() -> float:
        device = VulkanDevice(physical)
        with (
            device.arena(slots_plan(2, 4)) as arena,
            device.record([shift(arena, 0, 1, 3, 4)], arena) as recorded,
        ):
            recorded.launch()
            recorded.wait()
            value = float(arena.read_output_f32(1, f32, 1)[0])
        device.close()
        return value

    assert result() == 4
    records = list(cached.glob("*.bin"))
    assert len(records) == 1
    assert cached.stat().st_mode & 0o777 == 0o700
    good = records[0].read_bytes()
    assert result() == 4
    for damage in (b"", good[:40], good[:-1] + bytes([good[-1] ^ 1]), b"\xff" * len(good)):
        records[0].write_bytes(damage)
        assert result() == 4
        assert records[0].read_bytes()[:10] == good[:10]  # written anew


@pytest.mark.usefixtures("kernels", "nothing_left")
def test_pipeline_cache_off(monkeypatch: pytest.MonkeyPatch, physical: Physical) -> None:
    monkeypatch.setenv("RLX_CACHE_DIR", "off")
    device = VulkanDevice(physical)
    assert device.prepare(FileKernel("test_shift", (), (1, 2))).name == "test_shift"
    device.close()


@pytest.mark.usefixtures("kernels")
def test_a_kernel_is_compiled_once(device: VulkanDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [FileKernel("test_shift", (), (i,)) for i in range(6)]
    before = api.live_objects().get("Pipeline", 0)  # other tests of this process may hold some
    made = device.pipelines.get_all([*kernels, *kernels])
    handles = {kernel: pipeline.handle for kernel, pipeline in made.items()}
    assert len(set(map(int, (device.ffi.cast("uintptr_t", h) for h in handles.values())))) == 6
    at_once(8, lambda _: device.prepare(FileKernel("test_axpy")))
    assert api.live_objects()["Pipeline"] == before + 7
    assert device.prepare(kernels[0]).handle == handles[kernels[0]]


def test_kernel_that_is_not_shipped(device: VulkanDevice) -> None:
    with pytest.raises(UnsupportedOp, match="make shaders"):
        device.prepare(FileKernel("no_such_kernel", (("N", "2"),)))


def test_kernel_beyond_the_device(device: VulkanDevice, spirv: dict[str, bytes]) -> None:
    with pytest.raises(UnsupportedOp, match="needs 'f64'"):
        pipelines.check_capabilities("test_double", spirv["test_double"], frozenset())
    pipelines.check_capabilities("test_double", spirv["test_double"], frozenset({"f64"}))


@pytest.mark.parametrize("code", [b"", b"\x03\x02\x23\x07", b"x" * 40, b"\x03\x02\x23\x07" * 5 + b"x"])
def test_what_is_not_spirv(code: bytes) -> None:
    with pytest.raises(UnsupportedOp, match="not SPIR-V"):
        pipelines.check_capabilities("k", code, frozenset())


def test_truncated_spirv_ends(spirv: dict[str, bytes]) -> None:
    for end in range(20, 120, 4):
        pipelines.check_capabilities("k", spirv["test_axpy"][:end], frozenset())
