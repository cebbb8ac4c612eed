"""The archive of SPIR-V modules: what was packed is read again, one by one; damage is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlx.backends.gpu.modules import ARCHIVE, Modules, pack
from rlx.errors import UnsupportedOp


@pytest.fixture
def loose(tmp_path: Path) -> dict[str, bytes]:
    """Modules of several lengths, two of the same words."""
    rng = np.random.default_rng(0)
    codes = {f"k-{n}": rng.integers(0, 300, n, np.uint32).tobytes() for n in (0, 1, 5, 4001)}
    codes["k-5.subgroup"] = codes["k-5"]
    (tmp_path / "spirv").mkdir()
    for name, code in codes.items():
        (tmp_path / "spirv" / f"{name}.spv").write_bytes(code)
    return codes


def test_the_archive_is_read_where_there_is_one(loose: dict[str, bytes], tmp_path: Path) -> None:
    archive = pack(tmp_path / "spirv")
    assert {name: Modules(tmp_path).read(name) for name in loose} == loose
    elsewhere = tmp_path / "installed"
    elsewhere.mkdir()
    (elsewhere / ARCHIVE).write_bytes(archive)
    packed = Modules(elsewhere)
    assert {name: packed.read(name) for name in loose} == loose
    for modules in (packed, Modules(tmp_path)):
        assert "k-1" in modules and "k" not in modules
        with pytest.raises(UnsupportedOp, match=r"kernel 'k' has no SPIR-V in this installation.*make shaders"):
            modules.read("k")


def test_the_same_words_are_stored_once(loose: dict[str, bytes], tmp_path: Path) -> None:
    before = len(pack(tmp_path / "spirv"))
    (tmp_path / "spirv" / "again.spv").write_bytes(loose["k-4001"])
    assert len(pack(tmp_path / "spirv")) < before + 40


def test_a_damaged_archive_is_named(loose: dict[str, bytes], tmp_path: Path) -> None:
    archive = bytearray(pack(tmp_path / "spirv"))
    for wrong in (b"", bytes(archive[:9]), b"x" + bytes(archive[1:]), bytes(archive[:40])):
        (tmp_path / ARCHIVE).write_bytes(wrong)
        with pytest.raises(UnsupportedOp, match=r"spirv\.pack is damaged, its table.*install rlx anew"):
            Modules(tmp_path)
    archive[-3] ^= 255  # the last one's checksum
    (tmp_path / ARCHIVE).write_bytes(archive)
    assert Modules(tmp_path).read("k-0") == b""
    with pytest.raises(UnsupportedOp, match=r"is damaged, module 'k-5': "):
        Modules(tmp_path).read("k-5")
