"""Devices that are not here skip with their reason; so does the real model when its folder is not there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from examples.demo import model_folder
from tests.devices import device_here
from tests.models.tiny import write_model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what needs the real model, which a command that downloads fetches and `make judges` does not."""
    for item in items:
        if "minilm" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.download)


@pytest.fixture(params=["cpu", "vulkan", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    device_here(name)
    return name


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    """Embeddings by `transformers` in float64; make_golden.py made them."""
    made: dict[str, Any] = json.loads(Path(__file__).with_name("golden.json").read_text(encoding="utf-8"))
    return made


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with default settings."""
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of the real MiniLM: RLX_TEST_MINILM, or what the demo has fetched."""
    asked = os.environ.get("RLX_TEST_MINILM")
    folder = Path(asked) if asked else model_folder()
    if not (folder / "model.safetensors").is_file():
        if asked:
            pytest.fail(f"RLX_TEST_MINILM={asked} holds no model.safetensors")
        pytest.skip(f"no MiniLM in {folder}: `make demo` fetches it, or RLX_TEST_MINILM names a folder")
    return folder
