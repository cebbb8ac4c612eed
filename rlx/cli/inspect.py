"""`rlx inspect`: what an ONNX model takes, gives and holds, and how each device would run it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlx.cli.plan_svg import plan_svg
from rlx.cli.run import dims_of, random_inputs
from rlx.cli.table import format_table
from rlx.driver.registry import probe_all
from rlx.errors import RlxError

if TYPE_CHECKING:
    from rlx.formats.onnx.model import Model, TensorInfo


def inspect(
    file: Annotated[Path, typer.Argument(help="An ONNX model.")],
    device: Annotated[list[str] | None, typer.Option(help="Device; may be repeated. Default: all.")] = None,
    dim: Annotated[
        list[str] | None, typer.Option(help="symbol=length of a dimension; 1 if not given.")
    ] = None,
    memory: Annotated[
        Path | None, typer.Option(help="Draw the memory plan of the first device here, as SVG.")
    ] = None,
) -> None:
    """Show a model's inputs, outputs, operators and weights, and its dispatch on each device."""
    from rlx.formats.onnx import load

    model = load(file)
    print("\n".join(_signature("input", model.inputs) + _signature("output", model.outputs)))
    nbytes = sum(a.nbytes for a in model.weights.values())
    print(f"weights: {len(model.weights)}, {nbytes:,} bytes")
    kinds = sorted(model.operators.items(), key=lambda item: (-item[1], item[0]))
    print(f"operators: {sum(model.operators.values())}: " + ", ".join(f"{n} {k}" for k, n in kinds))
    rows = [_dispatch(model, name, dims_of(dim), memory if i == 0 else None)
            for i, name in enumerate(device or [info.id for info in probe_all()[0]])]  # fmt: skip
    titles = ("device", "nodes", "native", "alias", "decomposed", "host", "arena bytes")
    print("\n".join(format_table(titles, rows, right=titles[1:])))


def _signature(kind: str, infos: list[TensorInfo]) -> list[str]:
    def said(info: TensorInfo) -> str:
        shape = "any shape" if info.shape is None else str([d if d is not None else "?" for d in info.shape])
        return f"{kind} {info.name}: {info.dtype} {shape}".replace("'", "")

    return [said(info) for info in infos]


def _dispatch(model: Model, name: str, dims: dict[str, int], memory: Path | None) -> tuple[str, ...]:
    model.run(random_inputs(model, dims, 0), name)
    program = model.programs[-1]
    report = program.report()
    if memory is not None:
        try:
            memory.write_text(plan_svg(program.graph.plan, name), encoding="utf-8")
        except OSError as error:
            raise RlxError(f"{memory}: cannot be written: {error.strerror or error}") from error
    how = Counter(d.how for d in report.nodes)
    arena = f"{program.graph.plan.arena_bytes:,}"
    return (
        name,
        str(len(report.nodes)),
        *(str(how[k]) for k in ("native", "alias", "decomposed", "host")),
        arena,
    )
