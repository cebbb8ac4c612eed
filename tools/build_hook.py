"""Hatchling's hooks: a wheel has the SPIR-V modules in one archive; its page on an index has no relative links."""

from __future__ import annotations

import importlib.util
import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")


def absolute_links(text: str, source: str) -> str:
    """Markdown whose links into the repository are addresses: `source` is that of the repository."""
    return _LINK.sub(lambda m: f"{m[1]}{m[2]}({source}/{'raw' if m[1] else 'blob'}/HEAD/{m[3]})", text)


class Readme(MetadataHookInterface):
    """The README, whose links work beside it, with links that work on a page elsewhere."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown", "text": absolute_links(text, metadata["urls"]["Source"]),
        }  # fmt: skip


class PackedModules(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the archive to a wheel, whose own configuration leaves the loose modules out. An editable one needs none:
    it points at the source tree."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        spec = importlib.util.spec_from_file_location("modules", ROOT / "rlx/backends/gpu/modules.py")
        assert spec and spec.loader
        modules = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(modules)
        self._folder = tempfile.TemporaryDirectory()
        archive = Path(self._folder.name) / modules.ARCHIVE
        archive.write_bytes(modules.pack(ROOT / "rlx/backends/vulkan/spirv"))
        build_data["force_include"][str(archive)] = f"rlx/backends/vulkan/{modules.ARCHIVE}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()
