"""`rlx tune`: measures the algorithms that a model's nodes may be computed by on the user's card, and keeps the
fastest."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from rlx.cli.bench_language import makes_text
from rlx.cli.devices import full_name
from rlx.cli.gguf import is_gguf
from rlx.cli.inputs import dims_of, feeds_of, load_model
from rlx.cli.language import Loading
from rlx.cli.long_commands import each_device, kept, limit
from rlx.cli.options import (
    AnyModel,
    Devices,
    Dims,
    Inputs,
    MaxBytes,
    MaxSteps,
    Precision,
    Seconds,
    Seed,
    Strict,
)
from rlx.cli.outputs import check_name
from rlx.cli.saved import feeds_of_saved, is_saved, refuse_options
from rlx.cli.table import format_table
from rlx.errors import FileMissing, RlxError
from rlx.host.progress import drawn

if TYPE_CHECKING:
    from rlx.runtime import CompiledGraph
    from rlx.runtime.tuning.search import Found
    from rlx.runtime.tuning.table import Measured

PROMPT = 512  # tokens of a language model's prompt
_Programs = Iterator[list[tuple["CompiledGraph", Mapping[str, Any]]]]


def tune(
    model: AnyModel = None,
    device: Devices = None,
    seconds: Seconds = 60,
    input: Inputs = None,
    dim: Dims = None,
    seed: Seed = 0,
    precision: Precision = "f32",
    strict: Strict = False,
    max_bytes: MaxBytes = None,
    max_steps: MaxSteps = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write a saved program here that follows what was measured; it keeps its own otherwise."),
    ] = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Instead, remove what was measured on the devices; no model is needed.")
    ] = False,
) -> None:
    """Measure which algorithms compute a model's convolutions, attentions and products the fastest on a GPU, and keep
    them: programs compiled from then on follow them.

    Candidates are measured where they stand, in runs of the whole model, the likely ones first, until --seconds are
    over. What gains 3 % and more, and does not make a run slower, is kept for this device, driver, version of rlx and
    its kernels. Results stay within the same tolerances; their last bits may differ from those by other algorithms.
    Programs that live keep what they were compiled with, saved ones too. RLX_TUNING=off ignores what was measured.
    """
    if forget:
        each_device(device, _forget)
        return
    if model is None:
        raise RlxError("tune: give a model: an ONNX file, a saved program, a GGUF file or a folder")
    if not model.exists():
        what = "give an ONNX model, a saved program, a GGUF file or a folder"
        raise FileMissing(f"{model} does not exist; {what}", model)
    saved = is_saved(model)
    if out is not None and (not saved or len(device or []) > 1):
        raise RlxError("tune --out writes one saved program anew; give one, or leave --out out")
    check_name("--out", out, ".rlx")
    if out is not None and not out.absolute().parent.is_dir():
        raise RlxError(f"{out}: cannot be written: there is no such folder")
    from rlx.runtime.tuning.table import keep, place, read

    place()  # before anything is measured
    limits = {"strict": strict, "max_bytes": max_bytes, "max_steps": max_steps}
    end = time.monotonic() + limit(seconds)
    left = [len(device or [None])]

    def one(name: str) -> None:
        from rlx.runtime.tuning.search import search

        fastest: dict[str, Measured] = {}
        tried: dict[str, set[str]] = {}
        until = time.monotonic() + (end - time.monotonic()) / max(1, left[0])
        left[0] -= 1
        with drawn(name), _programs(model, name, precision, input, dim, seed, limits) as programs:
            for k, (program, feeds) in enumerate(programs):
                part = (until - time.monotonic()) / (len(programs) - k)
                result = search(program, feeds, part)
                print("\n".join([f"{model} on {full_name(program.device.info)}", *_lines(result), ""]), flush=True)
                fastest |= result.choices
                for problem, lines in result.lines.items():
                    tried.setdefault(problem, set()).update(lines)
            if fastest or (tried and _loses(read(programs[0][0].device), tried)):
                print(f"kept in {keep(programs[0][0].device, fastest, tried)}")
            if out is not None:
                program = programs[0][0]
                before = program.options.build.choices or {}
                own = {p: line for p, line in before.items() if line not in tried.get(p, ())}
                own |= {p: m.chosen for p, m in fastest.items()}
                try:
                    with program.chosen_by(own) as chosen:
                        chosen.save(out)
                except OSError as error:
                    raise RlxError(f"{out}: cannot be written: {error.strerror or error}") from error
                print(f"{out} follows it")

    if saved:
        refuse_options(model, dim=dim, precision=None if precision == "f32" else precision, **limits)
        device = device or ["auto"]
    with kept(lambda: None):
        able = each_device(device, one)
    if not able:
        raise typer.Exit(2)


def _loses(kept: Mapping[str, Measured], tried: Mapping[str, set[str]]) -> bool:
    """Whether a choice of before was measured again."""
    return any(one.chosen in tried.get(problem, ()) for problem, one in kept.items())


def _forget(name: str) -> None:
    from rlx.driver.registry import open_device
    from rlx.runtime.tuning.table import forget

    gone = forget(open_device(name))
    print("\n".join(f"removed {path}" for path in gone) or f"nothing was measured on {name}")


@contextmanager
def _programs(
    model: Path, device: str, precision: str, input: Sequence[str] | None, dim: Sequence[str] | None, seed: int,
    limits: Mapping[str, Any],
) -> Iterator[list[tuple[CompiledGraph, Mapping[str, Any]]]]:  # fmt: skip
    """The programs of a model on a device, each with inputs for it."""
    from rlx.runtime import Session

    if is_saved(model):
        from rlx.runtime.saved.load import load_whole

        with load_whole(model, None if device == "auto" else device) as program:
            yield [(program, feeds_of_saved(program, input, seed)[0])]
    elif model.is_dir() or is_gguf(model):
        if input:
            raise RlxError(f"{model} is no ONNX file: --input is for ONNX files and saved programs")
        if makes_text(model):
            yield from _language(model, device, precision, seed)
        else:
            yield from _encoder(model, device, precision, dims_of(dim), seed)
    else:
        session = Session(device, precision=precision)
        with load_model(model, dim, **limits) as loaded:
            feeds = feeds_of(loaded, input, seed)[0]
            loaded.run(feeds, session)
            programs = {id(p.graph): p for p in loaded.programs}.values()
            if any(hasattr(p, "block") for p in programs):
                print("rlx: the model is cut where shapes depend on values: what is before the first cut is measured",
                      file=sys.stderr)  # fmt: skip
            yield [(p.graph, feeds_of_saved(p.graph, None, seed)[0]) for p in programs]


def _encoder(model: Path, device: str, precision: str, dims: dict[str, int], seed: int) -> _Programs:
    from rlx.cli.contenders import encoder_feeds
    from rlx.models import load

    with load(model, device, precision=precision) as encoder:
        feeds = encoder_feeds(encoder, dims, seed)
        yield [(encoder.compiled(*feeds["ids"].shape), feeds)]


def _language(model: Path, device: str, precision: str, seed: int) -> _Programs:
    """The programs of a prompt and of the tokens behind it."""
    from rlx.models.language.decoder import Sampling
    from rlx.runtime import CompiledGraph

    with Loading(device=device, precision=precision).load(model) as loaded:
        decoder, greedy = loaded.decoder, Sampling()
        length = min(PROMPT, decoder.context // 2)
        ids = np.random.default_rng(seed).integers(0, loaded.config.vocabulary, length).astype(np.int32)
        decoder.reset(0)
        token = decoder.prefill(ids, greedy)
        for _ in decoder.decode(token, greedy, most=2):
            pass
        # The two programs, of one graph, run in turns.
        programs = {str(p.graph): p for p in decoder.programs if isinstance(p, CompiledGraph)}
        yield [(p, _of_length(p, length)) for p in programs.values()]


def _of_length(program: CompiledGraph, length: int) -> dict[str, Any]:
    """Inputs of a language model's program: the token 0, at this place."""
    feeds = {name: np.zeros(t.shape, t.dtype.np) for name, t in program.graph.inputs.items()}
    if "at" in feeds:
        feeds["at"][...] = length
    return feeds


def _lines(result: Found) -> list[str]:
    """What a search found, as a table."""
    rows = []
    for problem, m in result.problems.items():
        gain = m.rule_us / m.us if m.us else 1.0
        chosen = m.chosen if m.chosen != m.rule else "as the rules"
        rows.append([problem, str(result.nodes[problem]), f"{m.rule_us:.1f}", f"{m.us:.1f}", f"{gain:.2f} ×", chosen])
    if not rows:
        return ["no node has a choice between algorithms"]
    lines = format_table(["problem", "nodes", "rules µs", "best µs", "gain", "chosen"], rows,
                         {"nodes", "rules µs", "best µs", "gain"})  # fmt: skip
    lines.append(
        f"{result.tried} candidates measured, {result.left} left for want of time; a run takes "
        f"{result.rule_us / 1e3:.3f} ms by the rules, {result.us / 1e3:.3f} ms by what was the fastest "
        f"({result.rule_us / result.us:.2f} ×)"
    )
    if not result.kept:
        lines.append("a run is not faster by it: the rules choose as before")
    return lines
