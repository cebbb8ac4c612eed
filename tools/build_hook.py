"""Hatchling's hooks: a wheel has the SPIR-V modules in one archive; its page on an index has addresses, no relative
links."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).resolve().parents[1]


def _module(path: str) -> Any:
    """A module of the source tree, loaded without its package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_address = _module("tools/repository.py")


class Addresses(MetadataHookInterface):
    """The addresses of the project, and the README, whose links work beside it, with links that work elsewhere."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        text, source = (ROOT / "README.md").read_text(encoding="utf-8"), _address.repository()
        pages = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md"}
        urls = {"Source": source, **{name: f"{source}/blob/HEAD/{at}" for name, at in pages.items()}}
        metadata["urls"] = urls if source else {}
        metadata["readme"] = {"content-type": "text/markdown", "text": _address.linked(text, "", source)}


class PackedModules(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the archive to a wheel, whose own configuration leaves the loose modules out. An editable one needs none:
    it points at the source tree."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        if not _address.repository():
            self.app.display_warning(f"rlx: the package has no project URLs, and {_address.UNKNOWN}")
        modules = _module("rlx/backends/gpu/modules.py")
        self._folder = tempfile.TemporaryDirectory()
        archive = Path(self._folder.name) / modules.ARCHIVE
        archive.write_bytes(modules.pack(ROOT / "rlx/backends/vulkan/spirv"))
        build_data["force_include"][str(archive)] = f"rlx/backends/vulkan/{modules.ARCHIVE}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()
