"""The files in which long runs keep their outcomes; a change of the sources starts a new file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def kept(name: str) -> Path:
    """The file of outcomes of the sources as they are now."""
    total = hashlib.sha256()
    for path in sorted([*(ROOT / "rlx").rglob("*.py"), *Path(__file__).parent.glob("*.py")]):
        total.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    file = ROOT / ".cache" / f"{name}-{total.hexdigest()[:12]}.jsonl"
    file.parent.mkdir(exist_ok=True)
    return file


def lines(file: Path) -> list[dict[str, Any]]:
    """The outcomes in a file; the last line of a run that was killed may be half of one."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
