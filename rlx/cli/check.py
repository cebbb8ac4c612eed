"""`rlx check`: every device against the float64 reference, node by node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rlx.driver.registry import probe_all

_SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "A second sentence, a little longer than the first one, so that there is padding to be masked.",
    "Short.",
]


def check(
    folder: Annotated[Path, typer.Argument(help="A Hugging Face folder with a BERT sentence encoder.")],
    device: Annotated[
        list[str] | None, typer.Option(help="Device to check; may be repeated. Default: all.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help='Keep the matrices as "f16" or "bf16".')] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print every node, not only those that stray.")
    ] = False,
) -> None:
    """Run a model on every device and compare each node's result with the float64 reference of the same program.

    Exit status 1 when a node strays; the first one is named, with how far it is.
    """
    names = device or [info.id for info in probe_all()[0]]
    strayed = [name for name in names if not _check_device(folder, name, dtype, verbose)]
    if strayed:
        raise typer.Exit(1)


def _check_device(folder: Path, name: str, dtype: str | None, verbose: bool) -> bool:
    from rlx.conformance.compare import NodeDistance, check_nodes
    from rlx.ir.text import node_text
    from rlx.models import load

    encoder = load(folder, name, dtype=dtype)
    _, feeds, size = next(iter(encoder.batches(_SENTENCES)))

    def show(found: NodeDistance) -> None:
        if verbose:
            mark = "ok " if found.ok else "BAD"
            d = found.distance
            print(f"  {mark} nmse {d.nmse:.1e} max {d.error:.1e}  {node_text(found.tensor.node)}")

    with encoder.session.compile(encoder.graph(*size), weights=encoder.weights, planner="bump") as exe:
        found = check_nodes(exe, feeds, show)
        host = len(exe.report().host_nodes)
    bad = [n for n in found if not n.ok]
    worst = max(found, key=lambda n: n.distance.nmse)
    summary = f"{len(found)} nodes, worst nmse {worst.distance.nmse:.1e}, {host} on the host"
    print(f"{name} ({encoder.session.info.name}): {'FAIL' if bad else 'ok'}: {summary}")
    if bad:
        _explain(bad[0])
    encoder.close()
    return not bad


def _explain(first: Any) -> None:
    from rlx.ir.text import node_text

    d = first.distance
    print(f"  first node that strays: {node_text(first.tensor.node)}")
    where = "" if d.specials else "; NaN or infinity in other places than the reference has them"
    print(
        f"  nmse {d.nmse:.2e} (limit {first.limit:.0e}), largest error {d.error:.2e} of {d.scale:.2e}{where}"
    )
