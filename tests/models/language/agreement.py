"""`python -m tests.models.language.agreement cpu vulkan:0 [--model llama …] [--folder tiny-pages]`: the same tokens on
every device, however they are computed, in f32.

Each model goes on from random prompts on every device: alone, with its prompt taken in by random parts, as a row of a
batch whose sequences come and go, the same with caches in pages, with guesses by look-up and by a draft model, and with
draws of a seed. Each text is compared with the device's own text (draws and the text itself with the first device's),
and every token with the greatest logit of one run over the whole text. Two texts may part where two logits are equal up
to rounding: the table counts them, and has the largest difference there of the two tokens' logits, or of draws, of the
two devices' logits. The exit status is 1 where one is 1e-4 or more. A device is one of rlx, or `numpy` for the CPU
without compiled kernels.

Models: tiny random ones of each architecture, made with `transformers`; a `--folder`, with prompts of the repository's
pages and `--draft` as its draft; `1b`, random weights of that shape in benchmarks/language/decoding.py. `--rings` gives
layers with windows rings of 64 rows, which the texts go round. `--bits` compares rows of products, norms and attention
alone with those of several rows, bit by bit.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx.models.language import caches, decoder
from rlx.models.language.decoder import Sampling
from rlx.models.language.model import LanguageModel
from rlx.ops.random.draws import key as key_of
from tests.models.language.test_beside_transformers import MODELS, _model

LIMIT = 1e-4  # of the difference of two logits that may change places
CONTEXT = 128
SLOTS = 6
PAGES = 8  # fewer than the sequences of a batch may need, so that some wait
WAYS = ("device", "forward", "parts", "batch", "pages", "lookup", "draft", "draws")
Ids = list[int]


@dataclass
class Row:
    """What was found of a model on a device: by way, how many texts part; and the largest difference where they do."""

    model: str
    device: str
    texts: int
    tokens: int
    parted: dict[str, int] = field(default_factory=dict)
    largest: float = 0.0
    seconds: float = 0.0

    def __str__(self) -> str:
        cells = [str(self.parted.get(way, "-")) for way in WAYS]
        gap = f"{self.largest:.1e}" if self.largest else "-"
        return f"| {self.model} | {self.device} | {self.texts} x {self.tokens} | {' | '.join(cells)} | {gap} | " \
               f"{self.seconds:.0f} |"  # fmt: skip


def session_of(device: str) -> rlx.Session:
    return rlx.Session("cpu", engine="numpy") if device == "numpy" else rlx.Session(device)


def loaded(path: Path, device: str, **more: Any) -> LanguageModel:
    """The model of a file without its tokenizer, so that no token ends a text."""
    engine: Any = "numpy" if device == "numpy" else None
    model = rlx.models.load(path, "cpu" if engine else device, context=CONTEXT, engine=engine, **more)
    assert isinstance(model, LanguageModel)
    return LanguageModel(model.decoder, None, model.where)


# -- the ways


def alone(model: LanguageModel, prompts: list[Ids], count: int) -> list[Ids]:
    return [list(model.tokens(prompt, count)) for prompt in prompts]


def forward(model: LanguageModel, prompts: list[Ids], texts: list[Ids]) -> list[Ids]:
    """The token of the greatest logit after each token of a text but the last, all in one run."""
    made = []
    for prompt, text in zip(prompts, texts, strict=True):
        made.append(model.logits(prompt + text[:-1])[len(prompt) - 1 :].argmax(1).tolist())
    return made


def in_parts(model: LanguageModel, prompts: list[Ids], count: int) -> list[Ids]:
    """The prompt by parts of random lengths, each a run of its own or several."""
    pick, d, made = random.Random(1), model.decoder, []
    for prompt in prompts:
        model._forget(0)
        rest, token = np.asarray(prompt, np.int32), -1
        while len(rest):
            some = pick.randint(1, len(rest))
            token, rest = d.prefill(rest[:some], Sampling()), rest[some:]
        steps = d.decode(token, Sampling())
        made.append([token, *(next(steps) for _ in range(count - 1))])
        model._forget(0)
    return made


def in_batch(model: LanguageModel, prompts: list[Ids], count: int, pages: int | None = None) -> list[Ids]:
    """Rows of a batch, which come one after the other as others end, their prompts taken in between steps."""
    pick, waiting = random.Random(2), list(enumerate(prompts))
    made: dict[int, Ids] = {}
    place: dict[int, int] = {}
    with model.batch(SLOTS, pages=pages) as batch:
        while waiting or batch.free < SLOTS:
            if waiting and batch.free and pick.random() < 0.5:
                index, prompt = waiting.pop(0)
                place[batch.begin(prompt, count)] = index
                made[index] = []
            batch.fill(pick.randint(1, 40))
            for sequence, token, *_ in batch.step(pick.randint(1, 5)):
                made[place[sequence]].append(token)
    return [made[i] for i in range(len(prompts))]


def drawn(model: LanguageModel, prompts: list[Ids], count: int) -> list[Ids]:
    return [list(model.tokens(prompt, count, draws(i))) for i, prompt in enumerate(prompts)]


def draws(index: int) -> Sampling:
    return Sampling(0.9, None if index % 2 else 20, 0.9 if index % 3 else None, seed=index)


# -- what is compared


def last_logits(model: LanguageModel, ids: Ids) -> Any:
    return model.logits(ids)[-1].astype(np.float64)


Gap = Callable[[int, Ids, int, int], float]


def of_model(model: LanguageModel) -> Gap:
    """The difference of the logits of two tokens that follow some ids."""

    def gap(index: int, ids: Ids, one: int, other: int) -> float:
        logits = last_logits(model, ids)
        return abs(float(logits[one] - logits[other]))

    return gap


def of_draws(model: LanguageModel, oracle: LanguageModel) -> Gap:
    """The largest difference of two models' logits, from which their draws come; infinity where they do not."""

    def gap(index: int, ids: Ids, one: int, other: int) -> float:
        held = [last_logits(m, ids).astype(np.float32) for m in (model, oracle)]
        again = [_sampled(logits, draws(index), len(ids) - 1) for logits in held]
        return float(np.abs(held[0] - held[1]).max()) if again == [one, other] else np.inf

    return gap


def compared(
    row: Row, way: str, prompts: list[Ids], got: list[Ids], want: list[Ids], gap: Gap
) -> None:
    """Counts the texts that part, with the difference where each does."""
    row.parted[way] = 0
    for index, (prompt, one, other) in enumerate(zip(prompts, got, want, strict=True)):
        at = next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)
        if at is not None:
            row.parted[way] += 1
            difference = gap(index, prompt + other[:at], one[at], other[at])
            row.largest = max(row.largest, difference)
            what = f"{row.model} on {row.device}, {way}: text {index} parts at token {at}"
            print(f"  {what}: {difference:.2e}", flush=True)


def compare(
    name: str, devices: Sequence[str], load: Callable[[str], LanguageModel],
    draft: Callable[[str], LanguageModel] | None, prompts: list[Ids], count: int,
) -> list[Row]:  # fmt: skip
    """A row of the table for each device."""
    rows: list[Row] = []
    with ExitStack() as stack:
        first: LanguageModel | None = None
        texts: list[Ids] = []
        seeded: list[Ids] = []
        for device in devices:
            start = time.perf_counter()
            row, model = Row(name, device, len(prompts), count), load(device)
            if first is None:
                stack.callback(model.close)
            own = of_model(model)
            made, random_ones = alone(model, prompts, count), drawn(model, prompts, count)
            if first is not None:
                compared(row, "device", prompts, made, texts, of_model(first))
                compared(row, "draws", prompts, random_ones, seeded, of_draws(model, first))
            compared(row, "forward", prompts, forward(model, prompts, made), made, own)
            compared(row, "parts", prompts, in_parts(model, prompts, count), made, own)
            compared(row, "batch", prompts, in_batch(model, prompts, count), made, own)
            if not model.config.recurrent:
                compared(row, "pages", prompts, in_batch(model, prompts, count, PAGES), made, own)
                found = [list(model.tokens(p, count, lookup=True)) for p in prompts]
                compared(row, "lookup", prompts, found, made, own)
            if draft is not None and not model.config.recurrent:
                with draft(device) as guessing:
                    found = [list(model.tokens(p, count, draft=guessing)) for p in prompts]
                compared(row, "draft", prompts, found, made, own)
            if first is None:
                first, texts, seeded = model, made, random_ones
            else:
                model.close()
            row.seconds = time.perf_counter() - start
            print(row, flush=True)
            rows.append(row)
    return rows


def _sampled(logits: Any, sampling: Sampling, place: int) -> int:
    """The draw of a row of logits, by the definition of rlx.sample on NumPy."""
    pick = rlx.jit(
        lambda x, key, position: rlx.sample(
            x, key, position, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p
        ),
        device="cpu",
    )
    key = np.asarray(key_of(sampling.seed)).reshape(1, 2)
    return int(np.asarray(pick(logits[None], key, np.full(1, place, np.int32)))[0])


# -- models


def of_architecture(name: str, devices: Sequence[str], given: argparse.Namespace) -> list[Row]:
    pick = np.random.default_rng(3)
    prompts = [pick.integers(3, 96, pick.integers(1, 45)).tolist() for _ in range(given.prompts or 20)]
    with tempfile.TemporaryDirectory() as folder:
        _model(Path(folder), name)

        def load(device: str, **more: Any) -> LanguageModel:
            return loaded(Path(folder), device, **more)

        half = lambda device: load(device, dtype="bf16")  # noqa: E731 - mostly right, and sometimes not
        return compare(name, devices, load, half, prompts, given.tokens)


def of_folder(folder: Path, draft: Path | None, devices: Sequence[str], given: argparse.Namespace) -> list[Row]:
    root = Path(__file__).resolve().parents[3]
    text = "\n".join(page.read_text("utf-8") for page in sorted([*root.glob("*.md"), *root.glob("docs/*.md")]))

    with rlx.models.load(folder, "cpu") as model:
        assert isinstance(model, LanguageModel)
        ids = model.tokenize(text, special=False)
    pick = random.Random(4)
    prompts = []
    for _ in range(given.prompts or 200):
        at = pick.randrange(len(ids) - 50)
        prompts.append(ids[at : at + pick.randint(1, 50)])
    guess = None if draft is None else lambda device: loaded(draft, device)
    return compare(folder.name, devices, lambda device: loaded(folder, device), guess, prompts, given.tokens)


def of_shape(shape: str, devices: Sequence[str], given: argparse.Namespace) -> list[Row]:
    from benchmarks.language.decoding import SHAPES, decoder_of

    pick = np.random.default_rng(5)
    top = SHAPES[shape]["vocab_size"]
    prompts = [pick.integers(0, top, pick.integers(1, 60)).tolist() for _ in range(given.prompts or 4)]

    def load(device: str) -> LanguageModel:
        return LanguageModel(decoder_of(shape, "f32", session_of(device), CONTEXT, "f32", "f32"), None, shape)

    return compare(shape, devices, load, None, prompts, given.tokens)


# -- bits


def bits(device: str) -> Iterator[str]:
    """Of each op of a decoding step whether a row among several has the bits that it has alone."""
    rng = np.random.default_rng(6)
    warnings.filterwarnings("ignore", message=".*is built into the program")  # the weights of one product

    def same(name: str, make: Callable[..., Any], *arrays: Any) -> str:
        """`make` of arrays whose first axis is rows, of each row alone and of all."""
        pick = rlx.jit(make, device=device)
        whole = np.asarray(pick(*arrays))
        one = [np.asarray(pick(*(a[i : i + 1] for a in arrays))) for i in range(len(whole))]
        parted = sum(not np.array_equal(a, b[0]) for a, b in zip(whole, one, strict=True))
        return f"| {device} | {name} | {parted} of {len(whole)} |"

    for rows in (4, 8, 64):
        for wide, tall in ((256, 512), (2048, 2048), (2048, 8192)):
            x = rng.standard_normal((rows, wide)).astype(np.float32)
            w = rng.standard_normal((tall, wide)).astype(np.float32)
            yield same(f"linear f32, {rows} x {wide} x {tall}", lambda x, w=w: rlx.linear(x, w), x)
        x = rng.standard_normal((rows, 2048)).astype(np.float32)
        for kind in ("q8_0", "q4_k"):
            packed = rlx.quantize(rng.standard_normal((2048, 2048)).astype(np.float32), kind)
            yield same(f"linear {kind}, {rows} x 2048 x 2048", lambda x, w=packed: rlx.linear(x, w), x)
        gamma = np.ones(2048, np.float32)
        yield same(f"rms_norm, {rows} x 2048", lambda x, gamma=gamma: rlx.rms_norm(x, gamma), x)
        yield same(f"silu x, {rows} x 2048", lambda x: rlx.silu(x) * x, x)
        q = rng.standard_normal((rows, 32, 1, 64)).astype(np.float32)
        k, v = (rng.standard_normal((rows, 8, 300, 64)).astype(np.float32) for _ in "kv")
        yield same(f"attention of one query, {rows} sequences", lambda q, k, v: rlx.attention(q, k, v), q, k, v)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("devices", nargs="+", help="the first is what the others are compared with")
    parser.add_argument("--model", action="append", choices=[*MODELS, "1b"], help="default: every architecture")
    parser.add_argument("--folder", type=Path, help="a model's folder or GGUF file")
    parser.add_argument("--draft", type=Path, help="the draft of --folder")
    parser.add_argument("--prompts", type=int, help="default: 20, 200 for --folder, 4 for 1b")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rings", action="store_true", help="rings of few rows for layers with windows")
    parser.add_argument("--bits", action="store_true", help="compare rows of ops")
    given = parser.parse_args()
    if given.rings:
        caches.LONGEST, decoder.CHUNKS = 32, (16, 32)
    rows: list[Row] = []
    if given.bits:
        print("| device | op | rows that differ |\n|---|---|---|")
        for device in given.devices:
            for line in bits(device):
                print(line, flush=True)
    elif given.folder is not None:
        rows += of_folder(given.folder, given.draft, given.devices, given)
    for name in given.model or ([] if given.folder or given.bits else MODELS):
        rows += (of_shape if name == "1b" else of_architecture)(name, given.devices, given)
    if rows:
        print(f"| model | device | texts x tokens | {' | '.join(WAYS)} | largest difference | s |")
        print("|---" * (len(WAYS) + 5) + "|")
        print("\n".join(map(str, rows)))
    return 1 if any(row.largest >= LIMIT for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
