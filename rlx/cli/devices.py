"""`rlx devices`: what there is, and why something is missing."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from rlx.driver.registry import choose_auto, probe_all


def devices() -> None:
    """List the devices of this machine, and for each backend without one the reason."""
    found, reasons = probe_all()
    auto = choose_auto()
    console = Console()
    table = Table(box=None, pad_edge=False)
    for title in ("device", "name", "kind", "memory", "driver"):
        table.add_column(title, justify="right" if title == "memory" else "left")
    for info in found:
        mark = " *" if info.id == auto.id else ""
        table.add_row(
            info.id + mark, info.name, info.kind, f"{info.memory_bytes / 2**30:.1f} GiB", info.driver
        )
    console.print(table)
    console.print('* is what device="auto" uses', highlight=False)
    for backend, reason in reasons.items():
        console.print(f"{backend}: not available: {reason}", highlight=False, soft_wrap=True, markup=False)
