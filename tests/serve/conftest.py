from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.serve.served import write_model

    return write_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[Any]:
    from tests.serve.served import served

    with served(folder) as made:
        yield made
