"""Pages of keys and values: what sequences share, and what happens where there are too few."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlx import CompiledGraph
from rlx.errors import DTypeError, GraphError, OutOfDeviceMemory
from rlx.models import LanguageModel, load
from rlx.models.language.batch import Batch
from rlx.models.language.pages import Pages
from tests.models.language import tiny

CONFIG = {**tiny.GEMMA, "max_position_embeddings": 512}
TOKENS = np.random.default_rng(5).integers(3, 60, 400).astype(np.int32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_language_model(tmp_path_factory.mktemp("pages") / "m", CONFIG)


def texts(batch: Batch, prompts: list[np.ndarray], counts: list[int]) -> list[list[int]]:
    """The tokens of prompts that all begin at once."""
    numbers = [batch.begin(prompt, count) for prompt, count in zip(prompts, counts, strict=True)]
    made: dict[int, list[int]] = {number: [] for number in numbers}
    for _ in range(2000):
        if batch.free == len(batch._held):
            break
        batch.fill()
        for token in batch.step(4):
            made[token.sequence].append(token.token)
    return [made[number] for number in numbers]


def alone(model: LanguageModel, prompts: list[np.ndarray], counts: list[int]) -> list[list[int]]:
    return [list(model.tokens(prompt, count)) for prompt, count in zip(prompts, counts, strict=True)]


@pytest.mark.late("vulkan")
def test_sequences_share_pages_and_what_they_begin_with(device: str, folder: Path) -> None:
    prompts = [TOKENS[:150], TOKENS[:150], np.concatenate([TOKENS[:130], TOKENS[200:230]]), TOKENS[300:310]]
    counts = [12, 20, 12, 70]
    with load(folder, device, context=256) as model:
        want = alone(model, prompts, counts)
        with model.batch(4, pages=20) as batch:
            assert batch.pages is not None
            state = batch._decoder.graph(1).states["keys.0"]
            assert state.shape == (20, 64, 2, 8) and batch._decoder.cache_bytes == 2 * 2 * 20 * 64 * 2 * 8 * 4
            assert texts(batch, prompts, counts) == want
            assert batch.pages.free == 19  # all came back; two pages of the common beginning are known
            assert texts(batch, prompts[:3], counts[:3]) == want[:3] and batch.pages.shared >= 3 * 128


@pytest.mark.late("vulkan")
def test_pages_of_8_bits_give_the_text_of_caches_of_8_bits(device: str, tmp_path: Path) -> None:
    folder = tiny.write_language_model(tmp_path / "m", {**CONFIG, "head_dim": 32})
    prompts = [TOKENS[:70], np.concatenate([TOKENS[:66], TOKENS[200:204]]), TOKENS[300:303]]
    counts = [3, 5, 63]
    with load(folder, device, context=128, cache="q8_0") as model:
        want = alone(model, prompts, counts)
        with model.batch(3, pages=11) as batch:
            assert batch.pages is not None
            states = batch._decoder.graph(1).states
            shapes = [(states[name].shape, states[name].dtype.name) for name in ("keys.0", "keys.0.scales")]
            assert shapes == [((11, 64, 2, 32), "i8"), ((11, 64, 2, 1), "f16")]
            assert batch._decoder.cache_bytes == 2 * 2 * 11 * 64 * 2 * 34
            assert texts(batch, prompts, counts) == want
            assert batch.pages.shared == 64 and batch.pages.free == 10
            programs = [p for p in batch._decoder._programs.values() if isinstance(p, CompiledGraph)]
            assert programs and not any(p.report().host_nodes for p in programs)


def test_who_came_last_waits_where_pages_are_too_few(folder: Path) -> None:
    """Four texts that would need three pages each, of which there are five: the last ones are computed again."""
    prompts, counts = [TOKENS[50 * i : 50 * i + 60] for i in range(4)], [100, 90, 80, 70]
    with load(folder, "cpu", context=256) as model:
        want = alone(model, prompts, counts)
        with model.batch(4, pages=6) as batch:
            assert texts(batch, prompts, counts) == want
            assert batch.pages is not None and batch.pages.free == 5
            batch.add(TOKENS[:250], 5)
            with pytest.raises(GraphError, match="too few free pages"):
                batch.add(TOKENS[200:400], 5)
            assert batch.free == 3


def test_known_pages_go_when_others_need_them() -> None:
    pages = Pages(5, 3, 256)
    first = np.arange(130, dtype=np.int32)
    assert pages.begin(0, first, -1) == 0 and pages.free == 1
    pages.know(0, first, -1)
    assert pages.begin(1, first, 3) is None  # other adapters have other keys
    assert pages.begin(1, first, -1) == 128 and pages.free == 0 and (pages.table[1, :2] == pages.table[0, :2]).all()
    assert not pages.grow(1, 200)
    pages.release(0)
    assert pages.free == 1 and pages.grow(1, 200) and pages.free == 0
    pages.release(1)
    assert pages.free == 4 and not pages.table.any()
    assert pages.begin(2, np.arange(1000, 1250, dtype=np.int32), -1) == 0 and pages.free == 0
    pages.release(2)
    assert pages.begin(0, first, -1) == 0  # its pages were given to the other


def test_pages_that_cannot_be_are_refused(folder: Path, tmp_path: Path) -> None:
    with load(folder, "cpu", context=256) as model:
        for pages in (4, 0, True, 1 << 25 | 1):
            with pytest.raises(DTypeError, match="integer from 5 to 33,554,432"):
                model.batch(2, pages=pages)
    with load(tiny.write_mamba(tmp_path), "cpu", context=64) as model, pytest.raises(DTypeError, match="recurrent"):
        model.batch(2, pages=9)


def test_pages_that_do_not_fit_name_how_many_would(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlx.backends.cpu.device import CpuDevice

    with load(folder, "cpu", context=256) as model:
        each = 2 * 2 * 64 * 2 * 8 * 4  # bytes of a page of both layers
        monkeypatch.setattr(CpuDevice, "free_bytes", lambda self: 7 * each + 5)
        with pytest.raises(OutOfDeviceMemory, match=rf"{9 * each:,} for the caches of 9 pages; .*: pages=7 would fit"):
            model.batch(2, pages=9)
        monkeypatch.setattr(CpuDevice, "free_bytes", lambda self: 4 * each)  # too few for a context
        with pytest.raises(OutOfDeviceMemory, match="close other programs"):
            model.batch(2, pages=9)


@pytest.mark.parametrize("pages", [None, 30])
@pytest.mark.parametrize("config", ["LLAMA", pytest.param("GEMMA", marks=pytest.mark.late)])
def test_a_talk_that_goes_on_is_not_computed_again(config: str, pages: int | None, tmp_path: Path) -> None:
    """The next prompts begin with an earlier one and its answer, or with a part of them, while other sequences run:
    only what is new is computed, and each text is that of the model alone."""
    folder = tiny.write_language_model(tmp_path, {**getattr(tiny, config), "max_position_embeddings": 512})
    with load(folder, "cpu", context=400) as model:
        prompt = TOKENS[:100]
        (answer,) = alone(model, [prompt], [80])
        talk = np.concatenate([prompt, np.asarray(answer, np.int32)])
        prompts = [np.concatenate([talk, TOKENS[200:210]]), np.concatenate([talk[:170], TOKENS[210:215]]),
                   TOKENS[300:320]]  # fmt: skip
        want = alone(model, prompts, [20, 20, 20])
        with model.batch(3, pages=pages) as batch:
            assert texts(batch, [prompt], [80]) == [answer] and batch.shared == 0
            for own, text in zip(prompts, want, strict=True):
                other = batch.begin(TOKENS[350:370], 60)
                before = batch.shared
                assert texts_beside(batch, own, 20, other) == text
                at_most = 0 if own is prompts[2] else 179 if own is prompts[0] else 170
                assert at_most - 64 < batch.shared - before <= at_most
            cut = batch.begin(talk, 20)
            batch.fill(40)
            batch.cancel(cut)
            assert texts(batch, [prompts[0]], [20]) == want[:1]


def texts_beside(batch: Batch, prompt: np.ndarray, count: int, other: int) -> list[int]:
    """The tokens of a prompt that begins while another sequence runs, until both have ended."""
    made = []
    while batch.fill():
        pass
    batch.step(4)
    number = batch.begin(prompt, count)
    while batch.free < len(batch._held):
        batch.fill()
        made += [token.token for token in batch.step(4) if token.sequence == number]
    return made


def test_slots_are_taken_by_those_that_begin_alike(tmp_path: Path) -> None:
    """The slot that was left longest ago is the one that is lost, and another adapter's rows serve nobody."""
    folder = tiny.write_language_model(tmp_path, {**tiny.LLAMA, "max_position_embeddings": 512})
    a, b, c = TOKENS[:60], TOKENS[100:160], TOKENS[200:260]
    with load(folder, "cpu", context=300) as model, model.batch(2) as batch:
        counted = []
        for prompt in (a, b, a, b, c, b, a, c):
            before = batch.shared
            texts(batch, [prompt], [3])
            counted.append(batch.shared - before)
        assert counted == [0, 0, 58, 58, 0, 58, 0, 0]
        texts(batch, [c[:1], c[:2]], [2, 2])
