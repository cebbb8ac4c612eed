"""`rlx bench --profile`: each step of a model's run, its share of what the device can do, and a trace of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlx.cli import contenders
from rlx.cli.bandwidth import product_rate, read_bandwidth
from rlx.cli.gguf import is_gguf
from rlx.cli.inputs import dims_of, feeds_of, load_model
from rlx.cli.outputs import check_file
from rlx.cli.saved import feeds_of_saved, is_saved
from rlx.errors import RlxError
from rlx.host.progress import drawn
from rlx.records import replace
from rlx.runtime import CompiledGraph, Session
from rlx.runtime.timings import Timings

RUNS = 4  # the last of which is shown: kernels are loaded and caches filled by then


def profile(
    model: Path, file: Path, device: str, precision: str, threads: int | None, input: Sequence[str] | None,
    dim: Sequence[str] | None, seed: int, limits: Mapping[str, Any],
) -> None:  # fmt: skip
    """Prints the timings of a model's run on a device and writes their trace."""
    check_file("--profile", file, ".json")
    session = Session(device, precision=precision, threads=threads, timings=True)
    with drawn(session.info.id):
        timings = _timings(model, session, input, dim, seed, threads, limits)
        timings = replace(timings, bandwidth=read_bandwidth(session), rate=product_rate(session))
    print(timings)
    try:
        timings.save(file)
    except OSError as error:
        raise RlxError(f"--profile: {file} cannot be written: {error.strerror}") from error
    print(f"\n{file} is a trace of this run; open it at https://ui.perfetto.dev")


def _timings(
    file: Path, session: Session, input: Sequence[str] | None, dim: Sequence[str] | None, seed: int,
    threads: int | None, limits: Mapping[str, Any],
) -> Timings:  # fmt: skip
    if is_saved(file):
        from rlx.runtime.saved.load import load_program

        with load_program(file, session) as program:
            return _last(program, feeds_of_saved(program, input, seed)[0])
    if file.is_dir() or is_gguf(file):
        from rlx.models import load

        if input:
            raise RlxError(f"{file} holds a sentence encoder: --input is for ONNX files and saved programs")
        with load(file, session.info.id, precision=session.options.precision, threads=threads) as encoder:
            encoder.session = session
            feeds = contenders.encoder_feeds(encoder, dims_of(dim), seed)
            return _last(encoder.compiled(*feeds["ids"].shape), feeds)
    with load_model(file, dim, threads, **limits) as model:
        feeds = feeds_of(model, input, seed)[0]
        for _ in range(RUNS):
            model.run(feeds, session)
        last = model.programs[-1]
        if hasattr(last, "block"):
            print("The model is cut where shapes depend on values: these are the steps before the first cut.\n")
        return last.graph.timings()


def _last(program: CompiledGraph, feeds: Mapping[str, Any]) -> Timings:
    for _ in range(RUNS):
        program.run(feeds)
    return program.timings()
