"""safetensors files written byte by byte, right or wrong on purpose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def blob(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A file's bytes: `header` as JSON (bytes are taken as they are), `length` what the file says it is."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype: Any, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    path.write_bytes(blob(header, data, length))
    return path
