"""`rlx doctor`, and what a shell completes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlx import Graph, Session, exp
from rlx.backends.cpu import compile
from rlx.cli import doctor
from tests.cli.conftest import Rlx


def machine(root: Path, vendors: dict[str, str], driver: str | None = None) -> None:
    """The files by which a kernel says which display controllers a machine has, and which driver of NVIDIA's."""
    for number, (vendor, kind) in enumerate(vendors.items()):
        folder = root / f"sys/bus/pci/devices/{number}"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    if driver is not None:
        (root / "proc/driver/nvidia").mkdir(parents=True)
        text = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Wed\nGCC version: 12\n"
        (root / "proc/driver/nvidia/version").write_text(text)


REASONS = {"cuda": "CUDA: CuPy is not installed; pip install …", "vulkan": "no Vulkan loader (libvulkan.so.1)"}
DISPLAY, NETWORK = "0x030000", "0x020000"


@pytest.mark.parametrize(
    ("vendors", "driver", "manager", "lines", "commands"),
    [
        ({}, None, "apt-get", ["lists no GPU", "lists no NVIDIA GPU"], []),
        ({"0x1002": NETWORK}, None, "apt-get", ["lists no GPU"], []),
        ({"0x1002": DISPLAY}, None, "apt-get", ["there is a GPU of AMD"], [doctor._INSTALL["apt-get"]]),
        ({"0x8086": DISPLAY}, None, "pacman", ["there is a GPU of Intel"], [doctor._INSTALL["pacman"]]),
        ({"0x10de": DISPLAY}, "580.65.06", "dnf", ["NVIDIA's driver 580.65.06"], ["pip install 'rlx[cuda13x]'"]),
        ({"0x10de": DISPLAY}, "535.1", "dnf", ["NVIDIA's driver 535.1"], ["pip install 'rlx[cuda12x]'"]),
        ({"0x10de": DISPLAY}, "470.1", "dnf", ["CUDA 12 needs 525 or newer"], []),
        ({"0x10de": DISPLAY}, None, "apt-get", ["without NVIDIA's driver"], ["sudo apt-get install nvidia-driver"]),
    ],
    ids=str,
)
def test_what_is_missing_and_the_command_that_mends_it(
    rlx: Rlx, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vendors: dict[str, str], driver: str | None,
    manager: str, lines: list[str], commands: list[str],
) -> None:  # fmt: skip
    machine(tmp_path, vendors, driver)
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    monkeypatch.setattr(doctor, "probe_all", lambda: ([], REASONS))
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}" if name == manager else None)
    ran = rlx("doctor")
    broken = DISPLAY in vendors.values()
    assert ran.status == (1 if broken else 0) and ran.err == "", ran
    assert ("  missing  " in ran.out) is broken
    for words in (*lines, *(f"\n  {command}   #" for command in commands)):
        assert words in ran.out, words


def test_a_package_and_a_setting_that_are_missing(
    rlx: Rlx, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in ("tokenizers", "huggingface_hub") else "1.0")
    monkeypatch.setenv("RLX_DEVICE", "vulkan:77")
    ran = rlx("doctor")
    assert ran.status == 1 and "unset RLX_DEVICE   # auto" in ran.out
    assert "pip install 'rlx[hf]'" in ran.out and "pip install huggingface_hub" in ran.out
    assert "tokenizers missing, jinja2 1.0: for model folders" in ran.out and "rlx[serve]" not in ran.out


@pytest.mark.parametrize(
    ("words", "offered"),
    [("rlx ben", {"bench"}), ("rlx generate --temp", {"--temp", "--temperature"}), ("rlx run --device cp", {"cpu"})],
)
def test_a_shell_completes(rlx: Rlx, monkeypatch: pytest.MonkeyPatch, words: str, offered: set[str]) -> None:
    monkeypatch.setenv("_RLX_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    ran = rlx()
    assert ran.status == 0 and set(ran.out.split()) == offered, ran


def test_an_llvmlite_that_is_too_old(rlx: Rlx, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy runs programs then, and the report says why."""
    binding = pytest.importorskip("llvmlite.binding")
    monkeypatch.delenv("RLX_CPU", raising=False)
    monkeypatch.setattr(binding, "llvm_version_info", (20, 1, 8))
    for cached in (compile.too_old, compile._target):
        monkeypatch.setattr(compile, cached.__name__, cached.__wrapped__)
    monkeypatch.setattr(doctor, "probe_all", lambda: ([], REASONS))
    ran = rlx("doctor")
    words = "has LLVM 20, and kernels need 22 (pip install -U llvmlite)"
    assert ran.status == 1 and words in ran.out and "\n  pip install -U llvmlite   # cpu" in ran.out
    graph = Graph("old")
    graph.output("y", exp(graph.input("x", (3, 101, 7)) * 0.12347) - 0.7713)
    monkeypatch.setattr(compile, "_LOADED", compile._Loaded())
    with Session("cpu", engine="compiled").compile(graph) as program:
        program.run({"x": np.zeros((3, 101, 7), np.float32)})
        assert words in str(program.report())
