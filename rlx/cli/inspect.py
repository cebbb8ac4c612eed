"""`rlx inspect`: what a model's file holds, and how each device would run it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlx.cli.array_files import dtype_said, shape_said
from rlx.cli.folder import inspect_folder
from rlx.cli.gguf import inspect_gguf, is_gguf
from rlx.cli.inputs import COMPUTED, feeds_of, load_model
from rlx.cli.long_commands import each_device, kept
from rlx.cli.options import Devices, Dims, Inputs, MaxBytes, MaxSteps, Strict
from rlx.cli.outputs import check_file
from rlx.cli.saved import draw_saved, inspect_saved, is_saved, refuse_options, write_picture
from rlx.cli.table import Rows, format_table
from rlx.errors import FileMissing, RlxError, UnsupportedOp
from rlx.formats.files import plain
from rlx.host.progress import drawn
from rlx.runtime.plan_svg import plan_svg

if TYPE_CHECKING:
    from rlx.onnx.model import Model, TensorInfo

_HOW = ("native", "alias", "decomposed", "control", "host")
_TITLES = ("device", "nodes", *_HOW, "arena bytes")


def inspect(
    file: Annotated[Path, typer.Argument(help="An ONNX model, a saved program, a GGUF file, or a model's folder.")],
    device: Devices = None,
    input: Inputs = None,
    dim: Dims = None,
    strict: Strict = False,
    max_bytes: MaxBytes = None,
    max_steps: MaxSteps = None,
    context: Annotated[
        int | None,
        typer.Option(help="Of a language model: whether it fits with so many tokens. Default: 4096, and 32768.", min=1),
    ] = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="List every node as each device runs it.")] = False,
    memory: Annotated[
        Path | None, typer.Option(help="Draw the memory plan of the first device here, as SVG.")
    ] = None,
) -> None:
    """Show a model's inputs, outputs, operators and weights, and its dispatch on each device; of a saved program, what
    it takes and returns and where it runs; of a GGUF file or a Hugging Face folder, its metadata and types, each
    tensor with --nodes, and on which devices it fits."""
    if not file.exists():
        raise FileMissing(f"{file} does not exist", file)
    check_file("--memory", memory, ".svg")
    if is_gguf(file) or file.suffix == ".gguf" or (file / "config.json").exists():
        kind = "a Hugging Face folder" if file.is_dir() else "a GGUF file"
        given = {"input": input, "dim": dim, "strict": strict or None, "max-bytes": max_bytes, "max-steps": max_steps,
                 "memory": memory}  # fmt: skip
        if named := [f"--{name}" for name, value in given.items() if value is not None]:
            raise RlxError(f"{file} is {kind}, which holds no graph: it takes no {', '.join(named)}")
        for line in (inspect_folder if file.is_dir() else inspect_gguf)(file, nodes, device, context):
            print(line)
        return
    if context is not None:
        raise RlxError(f"{file}: --context is for language models: a GGUF file, or a folder of config.json and weights")
    if is_saved(file):
        refuse_options(
            file, device=device, input=input, dim=dim, strict=strict, max_bytes=max_bytes, max_steps=max_steps
        )
        print("\n".join(inspect_saved(file)))
        print(draw_saved(file, nodes, memory), end="")
        return
    try:
        with drawn():
            model = load_model(file, dim, strict=strict, max_bytes=max_bytes, max_steps=max_steps)
    except UnsupportedOp as error:
        print("\n".join(_parts(file)))
        raise RlxError(f"{file}: rlx does not run it: {error}") from error
    print("\n".join(_signature("input", model.inputs) + _signature("output", model.outputs)))
    nbytes = sum(a.nbytes for a in model.weights.values())
    print(f"weights: {len(model.weights)}, {nbytes:,} bytes")
    kinds = sorted(model.operators.items(), key=lambda item: (-item[1], item[0]))
    print(f"operators: {sum(model.operators.values())}: " + ", ".join(f"{n} {plain(k)}" for k, n in kinds))
    feeds = feeds_of(model, input, 0)[0]
    rows = Rows(_TITLES, right=_TITLES[1:], widths={"device": 8})
    listed: list[str] = []
    plans: list[str] = []

    def one(name: str) -> None:
        with drawn(name):
            rows.add(_dispatch(model, name, feeds))
        if not model.programs[-1].report().nodes:
            print(f"{name} runs nothing: {COMPUTED}", file=sys.stderr)
        graph = model.programs[-1].graph
        plans.append(plan_svg(graph.plan, f"{plain(file.name)} on {name}", graph.program))
        if nodes:
            listed.append(str(model.programs[-1].report()))

    with kept(lambda: None):
        able = each_device(device, one)
    print("".join(f"{text}\n" for text in listed), end="")
    if memory is not None and plans:
        write_picture(memory, plans[0])
    if not able:
        raise typer.Exit(2)


def _signature(kind: str, infos: list[TensorInfo]) -> list[str]:
    def said(info: TensorInfo) -> str:
        shape = "any shape" if info.shape is None else shape_said(info.shape)
        return f"{kind} {plain(info.name)}: {info.type if info.around else dtype_said(info.dtype)} {shape}"

    return [said(info) for info in infos]


def _parts(file: Path) -> Iterator[str]:
    """What an ONNX model holds that rlx cannot build: its operators, the missing ones marked."""
    from rlx.onnx.reader.infos import info_of
    from rlx.onnx.reader.missing import lacking
    from rlx.onnx.reader.read import all_nodes, parse

    proto, _ = parse(file)
    held = {i.name for i in proto.graph.initializer}
    yield from _signature("input", [info_of(i) for i in proto.graph.input if i.name not in held])
    yield from _signature("output", [info_of(o) for o in proto.graph.output])
    yield f"weights: {len(held)}"
    missing = {(domain, name) for domain, name, _ in lacking(proto)}
    counts: Counter[tuple[str, str]] = Counter(
        ("" if node.domain == "ai.onnx" else node.domain, node.op_type) for node in all_nodes(proto.graph.node)
    )
    order = sorted(counts.items(), key=lambda item: (item[0] not in missing, -item[1], item[0]))
    rows = [(plain(f"{domain}::{name}" if domain else name), f"{count:,}",
             "missing" if (domain, name) in missing else "") for (domain, name), count in order]  # fmt: skip
    yield from format_table(("operator", "nodes", "in rlx"), rows, right={"nodes"})


def _dispatch(model: Model, name: str, feeds: dict[str, Any]) -> tuple[str, ...]:
    model.run(feeds, name)
    program = model.programs[-1]
    report = program.report()
    how: Counter[str] = Counter(d.how for d in report.nodes)
    arena = f"{program.graph.plan.arena_bytes:,}"
    return (
        name,
        str(len(report.nodes)),
        *(str(how[k]) for k in _HOW),
        arena,
    )
