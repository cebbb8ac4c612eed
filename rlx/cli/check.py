"""`rlx check`: every device against the float64 reference, node by node."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlx.driver.registry import probe_all
from rlx.errors import RlxError

if TYPE_CHECKING:
    from rlx.conformance.compare import NodeDistance

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

    Exit status 1 when a node strays; the first one is named, with how far it is. 2 when a device could not run it.
    """
    status = 0
    for name in device or [info.id for info in probe_all()[0]]:
        try:
            ok = _check_device(folder, name, dtype, verbose)
        except RlxError as error:
            if device is not None and len(device) == 1:
                raise
            print(f"rlx: {name}: {error}", file=sys.stderr)  # the other devices are checked all the same
            status = 2
        else:
            status = max(status, 0 if ok else 1)
    if status:
        raise typer.Exit(status)


def _check_device(folder: Path, name: str, dtype: str | None, verbose: bool) -> bool:
    from rlx.conformance.compare import check_nodes
    from rlx.models import load

    def show(found: NodeDistance) -> None:
        if verbose:
            print(_line(found))

    with load(folder, name, dtype=dtype) as encoder:
        _, feeds, size = next(iter(encoder.batches(_SENTENCES)))
        graph = encoder.graph(*size)
        with encoder.session.compile(graph, weights=encoder.weights, planner="bump") as exe:
            found = check_nodes(exe, feeds, encoder.file_weights(), show)
            host = len(exe.report().host_nodes)
        info = encoder.session.info
    bad = [n for n in found if not n.ok]
    worst = max(found, key=lambda n: n.distance.nmse)
    summary = f"{len(found)} nodes, worst nmse {worst.distance.nmse:.1e}, {host} on the host"
    verdict = f"FAIL, {len(bad)} of" if bad else "ok,"
    print(f"{info.id} ({info.name}): {verdict} {summary}")
    if bad:
        _explain(bad[0])
    return not bad


def _line(found: NodeDistance) -> str:
    from rlx.ir.text import node_text

    d = found.distance
    return f"  {'ok ' if found.ok else 'BAD'} nmse {d.nmse:.1e} max {d.error:.1e}  {node_text(found.tensor.node)}"


def _explain(first: NodeDistance) -> None:
    from rlx.ir.text import node_text

    d, (nmse, relative) = first.distance, first.limits
    print(f"  the first node that strays: {node_text(first.tensor.node)}")
    if not d.specials:
        print("  it has NaN or infinity in other places than the reference")
        return
    print(
        f"  nmse {d.nmse:.2e} (at most {nmse:.0e}), largest error {d.error:.2e} (at most {relative * d.scale:.2e}) "
        f"where the largest value is {d.scale:.2e}"
    )
