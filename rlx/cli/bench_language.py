"""`rlx bench` of a language model: tokens a second of prompts and of answers, as llama-bench counts them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlx.cli.devices import full_name
from rlx.cli.language import Loading
from rlx.cli.long_commands import each_device
from rlx.cli.table import Rows
from rlx.errors import RlxError
from rlx.host.progress import drawn
from rlx.records import Record, field, replace


def makes_text(path: Path) -> bool:
    """Whether these are the files of a language model: a GGUF file or a folder. Raises: as the files' readers."""
    from rlx.cli.gguf import is_gguf
    from rlx.formats.gguf.encoders import ENCODERS
    from rlx.formats.gguf.reader import GgufFile
    from rlx.formats.huggingface import ModelFolder
    from rlx.models.language.architectures import ARCHITECTURES

    if path.is_dir():
        return ModelFolder(path).config.get("model_type") in ARCHITECTURES
    if not is_gguf(path):
        return False
    with GgufFile(path) as file:
        return file.metadata.get("general.architecture") not in ENCODERS


class Speed(Record, frozen=False, slots=False):
    """A device's seconds for so many tokens, in each run."""

    device: str
    says: str
    test: str
    tokens: int
    seconds: list[float] = field(default_factory=list)

    def rates(self) -> tuple[float, float]:
        """Tokens a second: the mean of the runs, and their standard deviation."""
        each = [self.tokens / s for s in self.seconds]
        return statistics.fmean(each), statistics.stdev(each) if each[1:] else 0.0


def bench_language(
    path: Path, devices: Sequence[str] | None, loading: Loading, prompt: int, answer: int, runs: int, seed: int,
    seconds: float, found: list[Speed],
) -> bool:  # fmt: skip
    """Times prompts of `prompt` tokens and answers of `answer` tokens, `runs` times each after one that is not
    measured; a row for each is printed and added to `found` as it is known. 0 leaves a kind out. Returns: whether all
    devices could. Raises: RlxError for numbers of tokens that the model does not hold."""
    from rlx.models.language.stats import named_bytes

    if not prompt and not answer:
        raise RlxError("bench: --prompt-tokens 0 and --answer-tokens 0 leave nothing to measure")
    rows = Rows(("device", "test", "tokens a second", "", "of"), {"test", "tokens a second"}, {"device": 10, "": 10})

    def one(name: str) -> None:
        with replace(loading, device=name, context=max(prompt, answer + 1)).load(path) as model:
            d = model.decoder
            if d.context < (most := max(prompt, answer + 1)):
                raise RlxError(f"{path} was made for {d.context:,} tokens, fewer than the {most:,} to measure; give "
                               f"-p {min(prompt, d.context)} -n {min(answer, d.context - 1)}")  # fmt: skip
            says = full_name(model.session.info, model.session.options.engine)
            ids = np.random.default_rng(seed).integers(0, model.config.vocabulary, max(prompt, 1)).astype(np.int32)
            tests: list[tuple[str, int, Callable[[], float]]] = [
                (f"pp{prompt}", prompt, lambda: _read(d, ids)), (f"tg{answer}", answer, lambda: _write(d, ids, answer)),
            ]  # fmt: skip
            for test, tokens, call in tests:
                if not tokens:
                    continue
                speed = Speed(d.where, says, test, tokens)
                with drawn(f"{name} {test}"):
                    call()
                    speed.seconds = [call() for _ in range(runs)]
                found.append(speed)
                mean, spread = speed.rates()
                size = named_bytes(d.token_bytes)
                rows.add((speed.device, test, f"{mean:,.2f}", f"± {spread:,.2f}", f"{size} of weights a token; {says}"))

    return each_device(devices, one, seconds)


def _read(d: Any, ids: Any) -> float:
    """The seconds that a prompt takes."""
    from rlx.models.language.decoder import Sampling

    d.reset(0)
    return _timed(lambda: d.prefill(ids, Sampling()))


def _write(d: Any, ids: Any, count: int) -> float:
    """The seconds that an answer takes, whichever tokens it has."""
    from rlx.models.language.decoder import Sampling

    d.reset(0)
    token = d.prefill(ids[:1], Sampling())
    return _timed(lambda: [*d.decode(token, Sampling(), most=count)])


def _timed(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
