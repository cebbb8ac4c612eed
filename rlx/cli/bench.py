"""`rlx bench`: the latency of a model on every device, and of ONNX Runtime in the same run; of a language model its
tokens a second."""

from __future__ import annotations

import importlib.metadata
import json as json_module
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from rlx.cli import contenders
from rlx.cli.bench_language import Speed, bench_language, makes_text
from rlx.cli.contenders import Contender
from rlx.cli.generate import chosen_model
from rlx.cli.gguf import is_gguf
from rlx.cli.groups import spread
from rlx.cli.inputs import dims_of, feeds_of, load_model, said
from rlx.cli.language import GpuLayers, Loading, ModelName
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
from rlx.cli.outputs import check_file
from rlx.cli.saved import feeds_of_saved, is_saved, refuse_options
from rlx.cli.simulated import NONE, Scaling
from rlx.cli.table import format_table
from rlx.errors import FileMissing, RlxError
from rlx.formats.files import plain
from rlx.host.progress import drawn, report

First = Callable[[Contender, dict[str, Any]], None]  # takes a contender that was called once, and its inputs
ROUNDS = 5  # the contenders take turns in each, so that other load and heat affect all alike


@spread
def bench(
    model: AnyModel = None,
    device: Devices = None,
    runs: Annotated[
        int | None,
        typer.Option(
            "--runs", "--repetitions", "-r",
            help="How many runs of each are measured. Default: 50, of a language model 5.", min=1,
        ),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(
            help="How many runs of each go before, beside the first. Default: 5; of a language model the first alone.",
            min=0,
        ),
    ] = None,
    seconds: Seconds = 60,
    threads: Annotated[
        int | None,
        typer.Option("--threads", "-t", help="Of the CPU, and of ONNX Runtime. Default: all processors.", min=1),
    ] = None,
    name: ModelName = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option("--prompt-tokens", "--n-prompt", "-p", help="Of a language model's prompt. Default: 512.", min=0),
    ] = None,
    answer_tokens: Annotated[
        int | None,
        typer.Option("--answer-tokens", "--n-gen", "-n", help="Of a language model's answer. Default: 128.", min=0),
    ] = None,
    gpu_layers: GpuLayers = None,
    dtype: Annotated[str | None, typer.Option(help="Keep a language model's matrices as f32, f16 or bf16.")] = None,
    cache: Annotated[str | None, typer.Option(help="A language model's keys and values: f32, f16, bf16, q8_0.")] = None,
    input: Inputs = None,
    dim: Dims = None,
    seed: Seed = 0,
    precision: Precision = "f32",
    strict: Strict = False,
    max_bytes: MaxBytes = None,
    max_steps: MaxSteps = None,
    json: Annotated[Path | None, typer.Option(help="Write the figures here, as JSON.")] = None,
    profile: Annotated[
        Path | None,
        typer.Option(help="Instead, time each step of a run on one device, and write a trace for Perfetto here."),
    ] = None,
    scaling: Scaling = NONE,
) -> None:
    """Measure a model's latency on every device, and in ONNX Runtime where that is installed: NumPy arrays in and out;
    of a language model how many tokens a second it reads and writes, with the deviation over the runs.

    With --simulate-ranks a page says how a language model would go on more cards.
    The contenders take turns in one run, after a first call that compiles ("first ms"). Only ratios
    within one run are meaningful; other work on the machine disturbs them. Ctrl-C ends it with the table so far.
    """
    from rlx.host.processors import available_threads

    model = chosen_model("bench", model, name)
    if not model.exists():
        what = "give an ONNX model, a saved program, a GGUF file or a folder"
        raise FileMissing(f"{model} does not exist; {what}", model)
    check_file("--json", json, ".json")
    of_text = {"--prompt-tokens": prompt_tokens, "--answer-tokens": answer_tokens, "--gpu-layers": gpu_layers,
               "--dtype": dtype, "--cache": cache}  # fmt: skip
    of_graphs = {"--input": input, "--dim": dim, "--strict": strict or None, "--max-bytes": max_bytes,
                 "--max-steps": max_steps, "--warmup": warmup, "--profile": profile}  # fmt: skip
    text = makes_text(model)
    if scaling.simulate_ranks is not None or scaling.others():
        idle = [o for o, v in {**of_graphs, "--json": json, "--runs": runs, "--gpu-layers": gpu_layers}.items()
                if v is not None]  # fmt: skip
        if scaling.simulate_ranks is None or not text or idle or len(device or []) > 1:
            what = f"is for a language model, on one --device{', without ' + ', '.join(idle) if idle else ''}"
            named = "" if scaling.simulate_ranks is not None else f"; {', '.join(scaling.others())} is for it"
            raise RlxError(f"bench: --simulate-ranks PAGE {what}{named}")
        loading = Loading(device=(device or ["auto"])[0], dtype=dtype, cache=cache, threads=threads,
                          precision=precision, activations=scaling.activations)  # fmt: skip
        scaling.simulate(model, loading, prompt_tokens or 512, answer_tokens or 64)
        return
    if idle := [option for option, value in (of_graphs if text else of_text).items() if value is not None]:
        what = "a language model" if text else "no language model"
        raise RlxError(f"bench: {model} is {what}, for which {', '.join(idle)} means nothing; leave it out"
                       + ("; --runs N says how often it runs" if answer_tokens is not None else ""))
    if text:
        loading = Loading(dtype=dtype, cache=cache, threads=threads, gpu_layers=gpu_layers, precision=precision)
        prompt = 512 if prompt_tokens is None else prompt_tokens
        answer = 128 if answer_tokens is None else answer_tokens
        devices = ["auto"] if device is None and gpu_layers is not None else device
        _language(model, devices, loading, prompt, answer, runs or 5, seed, seconds, json)
        return
    if profile is not None:
        idle = [o for o, v in {"--runs": runs, "--warmup": warmup, "--json": json}.items() if v is not None]
        if idle or len(device or []) > 1:
            raise RlxError(f"bench --profile shows one run on one device; leave out {', '.join(idle) or 'a --device'}")
        from rlx.cli.profile import profile as show  # only here: it loads the runtime

        limits = {"strict": strict, "max_bytes": max_bytes, "max_steps": max_steps}
        show(model, profile, (device or ["auto"])[0], precision, threads, input, dim, seed, limits)
        return
    runs, warmup = runs or 50, 5 if warmup is None else warmup
    n_threads = threads or available_threads()
    found: list[Contender] = []
    facts: dict[str, Any] = {}
    end = time.monotonic() + limit(seconds)

    def first(made: Contender, feeds: dict[str, Any]) -> None:
        """Adds a contender and says how long its first call took; before the first of them, what is measured."""
        if not found:
            facts.update(_facts(model, feeds, precision, n_threads, runs, warmup))
            print("\n".join([*facts.pop("text"), ""]))
        found.append(made)
        print(f"{made.name}: first call {made.first_ms:.1f} ms", flush=True)

    def results() -> None:
        measured = [c for c in found if c.times]
        if measured:
            print("\n".join(["", *_table(measured), *_short(measured, runs)]), flush=True)
            if json is not None:
                _write(json, {**facts, "results": _figures(measured)})

    with ExitStack() as stack, kept(results):
        if is_saved(model):
            refuse_options(model, dim=dim, precision=None if precision == "f32" else precision, strict=strict,
                           max_bytes=max_bytes, max_steps=max_steps, threads=threads)  # fmt: skip
            able = _saved(stack, model, device, input, seed, first)
        elif model.is_dir() or is_gguf(model):
            if input:
                raise RlxError(f"{model} holds a sentence encoder: --input is for ONNX files and saved programs")
            able = _encoders(stack, model, device, dims_of(dim), seed, precision, n_threads, first, seconds)
        else:
            able = _models(
                stack, model, device, input, dim, seed, precision, n_threads, first, seconds,
                {"strict": strict, "max_bytes": max_bytes, "max_steps": max_steps},
            )  # fmt: skip
        with drawn():
            measure(found, runs, warmup, end)
        results()
    if not able:
        raise typer.Exit(2)


def measure(found: Sequence[Contender], runs: int, warmup: int, end: float = math.inf) -> None:
    """Times `runs` calls of each contender, in rounds; each turn begins with a call that is not measured.

    All of it ends near the time `end`: a turn has an equal part of the time that is left, and a contender that is too
    slow for its part is called less often, but once at least."""
    rounds = min(ROUNDS, runs)
    turns = [(c, 0, warmup) for c in found]
    turns += [(c, runs // rounds + (turn < runs % rounds), 1) for turn in range(rounds) for c in found]
    done = 0
    for k, (contender, measured, before) in enumerate(turns):
        now = time.monotonic()
        until = now + max(0.0, end - now) / (len(turns) - k)
        for _ in range(before):
            if time.monotonic() < until:
                contender.call()
        for _ in range(measured):
            if contender.times and time.monotonic() >= until:
                break
            begin = time.perf_counter()
            contender.call()
            contender.times.append(time.perf_counter() - begin)
            report("measuring", done, runs * len(found))
            done += 1


def _models(
    stack: ExitStack, file: Path, device: Sequence[str] | None, input: Sequence[str] | None,
    dim: Sequence[str] | None, seed: int, precision: str, threads: int, first: First, seconds: float,
    limits: dict[str, Any],
) -> bool:  # fmt: skip
    with drawn():
        model = stack.enter_context(load_model(file, dim, threads, **limits))
        feeds = feeds_of(model, input, seed)[0]

    ran = []

    def one(name: str) -> None:
        with drawn(name):
            first(contenders.of_model(model, feeds, name, precision), feeds)
        ran.append(name)

    able = each_device(device, one, seconds, share=0.5)  # the rest is for measuring
    if not contenders.has_onnxruntime():
        print("onnxruntime is not installed: nothing beside; pip install onnxruntime", file=sys.stderr)
    elif ran:
        names = [o.name for o in model.outputs]
        try:
            first(contenders.of_onnxruntime(file, feeds, names, threads), feeds)
        except RlxError as error:
            print(f"rlx: not beside it: {error}", file=sys.stderr)
    return able


def _encoders(
    stack: ExitStack, folder: Path, device: Sequence[str] | None, dims: dict[str, int], seed: int,
    precision: str, threads: int, first: First, seconds: float,
) -> bool:  # fmt: skip
    from rlx.models import load

    def one(name: str) -> None:
        with drawn(name):
            encoder = stack.enter_context(load(folder, name, precision=precision, threads=threads))
            feeds = contenders.encoder_feeds(encoder, dims, seed)
            first(contenders.of_encoder(encoder, feeds), feeds)

    return each_device(device, one, seconds, share=0.5)  # the rest is for measuring


def _saved(
    stack: ExitStack, file: Path, device: Sequence[str] | None, input: Sequence[str] | None, seed: int, first: First
) -> bool:  # fmt: skip
    """A saved program on the devices that are named, which must be of its kind; on its own where none is."""
    from rlx.runtime.saved.load import load_whole

    def one(name: str) -> None:
        program = stack.enter_context(load_whole(file, None if name == "auto" else name))
        feeds = feeds_of_saved(program, input, seed)[0]
        first(contenders.of_program(program, feeds), feeds)

    return each_device(device or ["auto"], one)


def _language(
    model: Path, device: Sequence[str] | None, loading: Loading, prompt: int, answer: int, runs: int, seed: int,
    seconds: float, json: Path | None,
) -> None:  # fmt: skip
    found: list[Speed] = []
    versions = _versions()
    facts = {"model": str(model), "threads": loading.threads, "runs": runs, "versions": versions}
    print(f"{model}\n{runs} runs of each after one that is not measured; {', '.join(_said(versions))}\n")

    def results() -> None:
        if json is not None and found:
            rows = [{"device": s.device, "says": s.says, "test": s.test, "tokens": s.tokens, "seconds": s.seconds}
                    for s in found]  # fmt: skip
            _write(json, {**facts, "results": rows})

    with kept(results):
        able = bench_language(model, device, loading, prompt, answer, runs, seed, seconds, found)
        results()
    if not able:
        raise typer.Exit(2)


def _versions() -> dict[str, str]:
    packages = ("rlx", "numpy", "onnx", "onnxruntime")
    return {"python": platform.python_version(), **{p: v for p in packages if (v := _version(p))}}


def _said(versions: dict[str, str]) -> list[str]:
    return [f"{name} {version}" for name, version in versions.items()]


def _facts(
    model: Path, feeds: dict[str, Any], precision: str, threads: int, runs: int, warmup: int
) -> dict[str, Any]:
    versions = _versions()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    inputs = {plain(name): said(value) for name, value in feeds.items()}
    text = [
        str(model),
        *(f"input {name}: {words}" for name, words in inputs.items()),
        f"precision {precision}; {threads} CPU threads; {runs} runs of each in {min(ROUNDS, runs)} turns, "
        f"{warmup} to warm up; the machine's load before {load:.1f}",
        ", ".join(_said(versions)),
    ]
    return {
        "text": text, "model": str(model), "inputs": inputs, "precision": precision, "threads": threads, "runs": runs,
        "warmup": warmup, "load": load, "versions": versions,
    }  # fmt: skip


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _figures(found: Sequence[Contender]) -> list[dict[str, Any]]:
    beside = next((c for c in found if c.name == "onnxruntime"), None)
    rows = []
    for c in found:
        row: dict[str, Any] = {"device": c.name, "says": c.says, "runs": len(c.times), "first_ms": c.first_ms}
        row |= c.percentiles()
        if beside is not None:
            row["of_onnxruntime"] = row["p50_ms"] / (beside.percentiles()["p50_ms"])
            apart = contenders.difference(c.results, beside.results)
            row["difference"] = apart if apart is None or math.isfinite(apart) else str(apart)  # JSON has no infinity
        rows.append(row)
    return rows


def _table(found: Sequence[Contender]) -> list[str]:
    titles = [
        "device",
        "first ms",
        "min ms",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "of onnxruntime",
        "difference",
        "",
    ]
    rows = []
    for row in _figures(found):
        times = [f"{row[k]:.3f}" for k in ("first_ms", "min_ms", "p50_ms", "p90_ms", "p99_ms")]
        ratio = f"{row['of_onnxruntime']:.2f} ×" if "of_onnxruntime" in row else ""
        apart = row.get("difference")
        shown = "" if apart is None else f"{float(apart):.1e}"
        rows.append([row["device"], *times, ratio, shown, row["says"]])
    if not any(row[6] for row in rows):
        titles, rows = [*titles[:6], ""], [[*row[:6], row[8]] for row in rows]
    return format_table(titles, rows, right=set(titles[1:-1]))


def _short(found: Sequence[Contender], runs: int) -> list[str]:
    """A line that names the contenders with fewer runs than asked for, if any."""
    few = [f"{c.name} {len(c.times)}" for c in found if len(c.times) < runs]
    return [f"runs that there was time for, of {runs}: {', '.join(few)}; --seconds gives more"] if few else []


def _write(file: Path, figures: dict[str, Any]) -> None:
    try:
        file.write_text(json_module.dumps(figures, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise RlxError(f"{file}: cannot be written: {error.strerror or error}") from error
