"""Decoding of random language models: `python benchmarks/language/decoding.py [--shape 1b] [--dtype bf16] [device …]`.

Prints tokens a second while decoding (the best of three runs), the share of a measured bandwidth that reading the
weights once a token takes, launches a token, the time of a prompt, and with `--steps` the time of each kernel. The
shapes are those of Llama 3.2 1B ("1b"), of models of half a billion ("half", "0.5b"), of Llama 3.1 8B ("8b"), a small
one, and a mixture of 64 experts as in Qwen3-MoE, 8 of which a token uses ("experts": 1.3 billion weights in all).
Weights are random, the same rows again and again, so that making them takes no time. `--file model.gguf` (or a folder)
times that model instead, and its loading. With `--tensor-parallel N` its matrices are cut over N devices from each
device on, and adding them up takes part in all times; `--text` prints the tokens that follow a prompt, to be compared.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import numpy.typing as npt

import rlx
from benchmarks.harness import options
from rlx.dtypes import DType, as_dtype
from rlx.models.language.architectures import architecture_of
from rlx.models.language.architectures.base import same_name
from rlx.models.language.batch import Batch
from rlx.models.language.config import Fields, LanguageConfig
from rlx.models.language.decoder import Decoder, Sampling
from rlx.models.language.model import LanguageModel
from rlx.models.language.weights import ModelWeights
from rlx.models.loading import load as load_model
from rlx.packed import PackedArray
from rlx.packed.array import copy_into

if TYPE_CHECKING:
    from rlx.models.language.ranks import Meeting

_LLAMA = {"model_type": "llama", "vocab_size": 128256, "max_position_embeddings": 8192, "rope_theta": 5e5,
          "head_dim": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-5}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "1b": {**_LLAMA, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
           "intermediate_size": 8192, "tie_word_embeddings": True},
    "8b": {**_LLAMA, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
           "intermediate_size": 14336, "head_dim": 128},
    "0.5b": {**_LLAMA, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "vocab_size": 32000,
             "num_key_value_heads": 4, "intermediate_size": 4864},
    "half": {**_LLAMA, "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "vocab_size": 151936,
             "num_key_value_heads": 2, "intermediate_size": 4864, "tie_word_embeddings": True},
    "experts": {**_LLAMA, "model_type": "qwen3_moe", "hidden_size": 1024, "num_hidden_layers": 12, "vocab_size": 32000,
                "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 3072, "num_experts": 64,
                "num_experts_per_tok": 8, "moe_intermediate_size": 512, "norm_topk_prob": True},
    "small": {**_LLAMA, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 1024,
              "num_key_value_heads": 2, "intermediate_size": 512, "tie_word_embeddings": True},
}  # fmt: skip


def shaped(doc: str | None) -> argparse.ArgumentParser:
    """Options that say which random model, in which dtypes, and where."""
    parser = options(doc)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--dtype", default="q8_0")
    parser.add_argument("--activations", default="f32")
    parser.add_argument("--device", default="cpu")
    return parser


class Random:
    """A Source of random weights: one block of numbers, repeated."""

    where = "random weights"

    def __init__(self, config: LanguageConfig, kind: DType) -> None:
        self.kind = kind
        self.scales: dict[str, npt.NDArray[np.float32]] = {}
        # Names are added as the graph asks for them; of a file with fewer than some a layer no graph is made.
        self.kinds = {f"{i}": ((1,), as_dtype("f32")) for i in range(16 * config.layers)}
        # A prime number of them: no two rows of a matrix are equal then, nor the logits of two tokens.
        self._some = np.random.default_rng(0).standard_normal(1_048_583).astype(np.float32)
        self._made: dict[tuple[int, ...], Any] = {}

    def add(self, name: str, shape: tuple[int, ...]) -> DType:
        kind = self.kind if len(shape) > 1 else as_dtype("f32")
        self.kinds[name] = (shape, kind)
        return kind

    def read(self, name: str) -> Any:
        shape, kind = self.kinds[name]
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        if shape not in self._made:
            if kind.is_packed:
                few = rlx.quantize(np.resize(self._some * 0.02, (8, shape[-1])), kind)
                self._made[shape] = PackedArray(kind, shape, np.resize(few.data, (*shape[:-1], few.data.shape[1])))
            else:
                self._made[shape] = np.resize((self._some * 0.02).astype(kind.np), shape)
        return self._made[shape]

    def read_part(self, name: str, axis: int, start: int, stop: int) -> Any:
        from rlx.packed.array import (
            part_of,  # other builds than this one, which builds.py runs, may not have it
        )

        return part_of(self.read(name), axis, start, stop)

    def read_into(self, name: str, out: npt.NDArray[np.uint8]) -> None:
        copy_into(self.read(name), out)


def decoder_of(
    shape: str, kind: str, session: rlx.Session, context: int, activations: str, cache: str, chunk: int | None = None,
    meeting: Meeting | None = None,
) -> Decoder:  # fmt: skip
    fields = Fields(SHAPES[shape], shape)
    architecture = replace(architecture_of(fields), find=same_name)  # of an expert's weights too
    config = architecture.read(fields)
    source = Random(config, as_dtype(kind))

    class Weights(ModelWeights):
        def dtype_of(self, name: str, shape: tuple[int, ...]) -> DType:
            if not any(name in known for known in (self._tables, self._names, self._wanted)):
                part = None if meeting is None or self.parallel is None else self.parallel.part(name, shape)
                source.add(name, shape if part is None else part.whole)
                self._names[name] = name
            return super().dtype_of(name, shape)

        def joined(self, name: str, parts: Any) -> bool:
            for part, shape in parts:
                self.dtype_of(part, shape)
                del self._wanted[part]
            return super().joined(name, parts)

        def check(self) -> None:
            """Nothing to compare: the weights are made as they are asked for."""

    weights = Weights(source, architecture, config, context, None)
    kinds = {"activations": as_dtype(activations), "cache": as_dtype(cache)}
    if meeting is None:
        return Decoder(config, weights, session, context, **kinds, prefill_chunk=chunk)
    from rlx.models.language.ranks import Ranks

    ranks = Ranks.of(meeting, weights, [], lambda part: Weights(source, architecture, config, context, None,
                                                                parallel=part))  # fmt: skip
    return Decoder(config, ranks.weights[0], session, context, **kinds, prefill_chunk=chunk, ranks=ranks)


def measure(device: str, args: argparse.Namespace) -> None:
    def opened(name: str) -> rlx.Session:
        return rlx.Session(name, precision=args.precision)

    meeting, sums = None, as_dtype(args.sums)
    if args.tensor_parallel:
        from rlx.models.language.ranks import meeting_of

        meeting = meeting_of(args.tensor_parallel, device, sums, opened)
    session = opened(device) if meeting is None else meeting.sessions[0]
    start = time.perf_counter()
    kinds = (args.activations, args.cache, args.prefill_chunk)
    if args.file:
        loaded = load_model(args.file, device, context=args.context, prefill_chunk=args.prefill_chunk,
                            precision=args.precision, activations=args.activations, cache=args.cache,
                            tensor_parallel=args.tensor_parallel or None,
                            sums=args.sums if args.tensor_parallel else None)  # fmt: skip
        if not isinstance(loaded, LanguageModel):
            raise SystemExit(f"{args.file} is no language model")
        made, what = loaded.decoder, Path(args.file).name
    else:
        made = decoder_of(args.shape, args.dtype, session, args.context, *kinds, meeting)
        what = f"{args.shape} {args.dtype}"
    with made as d:
        load = time.perf_counter() - start
        start = time.perf_counter()
        for turn in range(2):
            d.program(1, "next", turn=turn).prepare()
        build = time.perf_counter() - start
        exe: Any = d.program(1, "next")
        nbytes = d.token_bytes
        rates = []
        for _ in range(3):
            d.reset(args.prompt)
            start, count = time.perf_counter(), 0
            for _token in d.decode(5, Sampling(), most=args.tokens):
                count += 1
            rates.append(count / (time.perf_counter() - start))
        steps = len(getattr((exe if meeting is None else exe.parts[0]).executable, "steps", ()))
        share = f", {100 * max(rates) * nbytes / args.bandwidth:.0f} % of the bandwidth" if args.bandwidth else ""
        print(f"{d.where} {what} x {args.activations}: {max(rates):.1f} tok/s "
              f"({', '.join(f'{r:.0f}' for r in rates)}){share}; {steps} steps, {nbytes / 1e9:.2f} GB a token; "
              f"load {load:.1f} s, build {build:.1f} s", flush=True)  # fmt: skip
        if args.text:
            d.reset()
            ids = np.random.default_rng(2).integers(0, d.config.vocabulary, 40).astype(np.int32)
            begun = d.prefill(ids, Sampling())
            print("  text:", begun, *(token for token in d.decode(begun, Sampling(), most=args.text)), flush=True)
        if args.steps:
            show_steps(d, session, args)
            show_steps(d, session, args, max((c for c in d.sizes if c <= args.prompt), default=d.sizes[0]))
        if args.batch:
            measure_batch(d, args)
        ids = np.random.default_rng(1).integers(0, d.config.vocabulary, args.prompt).astype(np.int32)
        times = []
        for _ in range(3):
            d.reset()
            start = time.perf_counter()
            d.prefill(ids, Sampling())
            times.append(time.perf_counter() - start)
        print(f"  prompt of {args.prompt}: {1e3 * min(times):.1f} ms ({args.prompt / min(times):,.0f} tok/s), first "
              f"{times[0]:.2f} s", flush=True)  # fmt: skip


def measure_batch(d: Decoder, args: argparse.Namespace) -> None:
    """Several sequences at once: tokens a second of all together."""
    with Batch(d, args.batch, min(args.context, args.prompt + 4 * args.tokens)) as batch:
        for i in range(args.batch):
            batch.add(np.full(args.prompt, i, np.int32))
        batch.step()
        rates = []
        for _ in range(3):
            start, count = time.perf_counter(), 0
            while count < args.tokens * args.batch // 2:
                count += len(batch.step(16))
            rates.append(count / (time.perf_counter() - start))
        listed = ", ".join(f"{r:,.0f}" for r in rates)
        print(f"  {args.batch} sequences: {max(rates):,.0f} tok/s ({listed})", flush=True)


def show_steps(d: Decoder, session: rlx.Session, args: argparse.Namespace, chunk: int = 1) -> None:
    """The time of each kernel of a decoding step, or of a prompt's run over `chunk` tokens, summed by kernel."""
    timed = rlx.Session(session.info.id, precision=args.precision, timings=True)
    graph = d.graph(chunk, "next" if chunk == 1 else "token")
    given = {name: np.zeros(t.shape, t.dtype.np) for name, t in graph.inputs.items()}
    with timed.compile(graph, weights=d.stages[0].weights, state=d.state) as exe:
        for _ in range(3):
            exe.run(given)
        total, count = Counter[str](), Counter[str]()
        for label, us, *_ in exe.executable.timings():
            kernel = label.split(" ")[0]
            total[kernel] += us
            count[kernel] += 1
        print(f"  {chunk} tokens: sum of steps {sum(total.values()):.0f} us")
        for label, us in total.most_common(14):
            print(f"    {us:8.1f} us {count[label]:4} x {label}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("devices", nargs="*", default=["cpu"])
    parser.add_argument("--file", help="a model's file or folder")
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--dtype", default="bf16", help="of the matrices")
    parser.add_argument("--activations", default="f32")
    parser.add_argument("--cache", default="bf16")
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--prefill-chunk", type=int, help="tokens of a prompt in one run")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--bandwidth", type=float, default=0.0, help="bytes a second, to compare with")
    parser.add_argument("--batch", type=int, default=0, help="time so many sequences at once too")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--tensor-parallel", type=int, default=0, help="cut the matrices over so many devices")
    parser.add_argument("--sums", default="f32", help="the dtype in which they add")
    parser.add_argument("--text", type=int, default=0, help="print so many tokens")
    args = parser.parse_args()
    for device in args.devices:
        measure(device, args)


if __name__ == "__main__":
    main()
