"""`rlx check`: every device against the float64 reference, node by node."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlx.cli.inputs import COMPUTED, feeds_of, load_model, said
from rlx.cli.long_commands import each_device, kept
from rlx.cli.options import Devices, Dims, FileOrFolder, Inputs, MaxBytes, MaxSteps, Seconds, Seed, Strict
from rlx.cli.table import Rows
from rlx.driver.registry import find_device
from rlx.errors import RlxError
from rlx.formats.files import plain
from rlx.host.progress import drawn

if TYPE_CHECKING:
    from rlx.conformance.compare import NodeDistance
    from rlx.driver import DeviceInfo

_TITLES = ("device", "name", "nodes", "on the host", "worst nmse", "largest error", "of the node", "verdict")
_SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "A second sentence, a little longer than the first one, so that there is padding to be masked.",
    "Short.",
]
Show = Callable[["NodeDistance"], None]
Run = Callable[[str, Show], int]
"""Runs the model on a device and shows each node's distance; returns how many nodes the host ran."""


def check(
    model: FileOrFolder,
    device: Devices = None,
    input: Inputs = None,
    dim: Dims = None,
    seed: Seed = 0,
    strict: Strict = False,
    max_bytes: MaxBytes = None,
    max_steps: MaxSteps = None,
    seconds: Seconds = 600,
    dtype: Annotated[str | None, typer.Option(help='Keep an encoder\'s matrices as "f16" or "bf16".')] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print every node, not only those that stray.")
    ] = False,
) -> None:
    """Run a model on every device and compare each node's result with the float64 reference of the same program.

    Nodes behind a cut, where shapes depend on values, are not compared; the verdict is then "part", not "ok", and
    "nothing" where devices run no node at all.
    Exit status 1 when a node strays; the first one is named, with its error. 2 when a device could not run the model,
    or not in time; Ctrl-C, with what was compared so far: 130.
    """
    rows = Rows(_TITLES, right=set(_TITLES[2:6]), widths={"device": 8, "name": 34, "of the node": 24})
    strays: list[tuple[str, NodeDistance]] = []

    def one(name: str) -> None:
        seen: list[NodeDistance] = []

        def show(found: NodeDistance) -> None:
            seen.append(found)
            if verbose:
                print(_line(found))

        host: int | None = None  # known when every node was compared
        try:
            with drawn(name):
                host = run(name, show)
        finally:
            if seen or host is not None:
                info = find_device(name)
                strays.extend((info.id, d) for d in seen if not d.ok)
                rows.add(_row(info, seen, host, later))
                if host is not None and not seen and not later:
                    print(f"{name}: nothing to compare: {COMPUTED}", file=sys.stderr)

    limits = {"strict": strict, "max_bytes": max_bytes, "max_steps": max_steps}
    def explain() -> None:
        for name in dict(strays):
            _explain(name, next(d for n, d in strays if n == name))

    with kept(explain), _checker(model, input, dim, seed, limits, dtype) as (run, later):
        able = each_device(device, one, seconds)
    explain()
    if strays or not able:
        raise typer.Exit(1 if able else 2)


@contextmanager
def _checker(
    path: Path, input: Sequence[str] | None, dim: Sequence[str] | None, seed: int, limits: dict[str, Any],
    dtype: str | None,
) -> Iterator[tuple[Run, int]]:  # fmt: skip
    """Gives a function that runs the model at `path` on a device and compares its nodes, and how many it leaves out."""
    if path.is_dir():
        if input or dim:
            raise RlxError(f"{path} is a folder of a sentence encoder: --input and --dim are for ONNX files")
        yield (lambda name, show: _check_encoder(path, name, dtype, show)), 0
        return
    if dtype is not None:
        raise RlxError("--dtype is for a sentence encoder's folder; an ONNX model runs in its own precision")
    with drawn():
        loaded = load_model(path, dim, **limits)
        feeds, drawn_at_random = feeds_of(loaded, input, seed)
        for name in drawn_at_random:
            print(f"input {plain(name)}: random, {said(feeds[name])}", file=sys.stderr)
        built = loaded.built(feeds)
        if later := len(built.builder.later):
            count = loaded.operators.total()
            said_so = f"{later:,} of {count:,} nodes not compared: they are behind a cut, where shapes depend on values"
            print(said_so, file=sys.stderr)
    yield (lambda name, show: _check_built(built, name, show)), later


def _check_built(built: Any, name: str, show: Show) -> int:
    from rlx.conformance.compare import check_nodes
    from rlx.runtime import Session, Weights

    session = Session(name)
    with (
        closing(Weights(session.device)) as weights,
        session.compile(built.graph, weights=weights, planner="bump") as exe,
    ):
        built.budget.hold(exe)
        exe.set_params(built.weights)
        check_nodes(exe, built.feeds, built.weights, show, built.budget.steps)
        return len(exe.report().host_nodes)


def _check_encoder(folder: Path, name: str, dtype: str | None, show: Show) -> int:
    from rlx.conformance.compare import check_nodes
    from rlx.models.sentence import load

    with load(folder, name, dtype=dtype) as encoder:
        _, feeds, size = next(iter(encoder.batches(_SENTENCES)))
        graph = encoder.graph(*size)
        with encoder.session.compile(graph, weights=encoder.weights, planner="bump") as exe:
            check_nodes(exe, feeds, encoder.file_weights(), show)
            return len(exe.report().host_nodes)


def _row(info: DeviceInfo, found: Sequence[NodeDistance], host: int | None, later: int) -> tuple[str, ...]:
    """A row of the table. `host`: how many nodes the host ran; None where the check was stopped. `later`: how many
    nodes were left out."""
    strays = sum(not d.ok for d in found)
    verdict = f"FAIL: {strays} stray" if strays else "part" if later else "ok" if found else "nothing"
    if host is None:
        verdict += ", stopped there"
    if not found:  # every result was computed at build time
        return (info.id, info.name, "0", "0", "-", "-", "-", verdict)
    # Integers that a device rounded the other way differ from the reference, but count as right.
    judged = [d for d in found if not d.ok or d.own is None] or list(found)
    worst = max(judged, key=lambda d: (not d.ok, d.distance.nmse))
    d = worst.distance
    relative = f"{d.error / d.scale:.1e}" if d.scale else f"{d.error:.1e}"
    return (
        info.id, info.name, str(len(found)), "?" if host is None else str(host), f"{d.nmse:.1e}", relative,
        worst.tensor.node.name, verdict,
    )  # fmt: skip


def _line(found: NodeDistance) -> str:
    from rlx.ir.text import node_text

    d = found.distance
    return f"  {'ok ' if found.ok else 'BAD'} nmse {d.nmse:.1e} max {d.error:.1e}  {node_text(found.tensor.node)}"


def _explain(device: str, first: NodeDistance) -> None:
    from rlx.ir.text import node_text

    d, own, (nmse, relative) = first.distance, first.own, first.limits
    print(f"{device}: the first node that strays: {first.tensor.node.name}")
    print(f"  {node_text(first.tensor.node)}")
    if not d.specials:
        print("  it has NaN or infinity in other places than the reference")
    else:
        print(
            f"  nmse {d.nmse:.2e} (at most {nmse:.0e}), largest error {d.error:.2e} (at most {relative * d.scale:.2e}) "
            f"where the largest value is {d.scale:.2e}"
        )
    if first.narrow:
        print(
            "  in its own precision its result is right: numbers that nearly cancel, or a rounding, within the node"
        )
    elif own is not None and first.own_ok:
        print("  for what it read its result is right: it magnifies small errors of the nodes before it")
    elif own is not None and own.specials:
        print(f"  beside the reference of what it read: nmse {own.nmse:.2e}, so the error is its own")
