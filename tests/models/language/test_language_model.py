"""Language models: logits against float64, the same tokens however a prompt is cut, text, settings and refusals."""

from __future__ import annotations

import gc
import itertools
import json
import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rlx.backends.cpu.choice import usable
from rlx.cli import bandwidth
from rlx.cli.app import app
from rlx.cli.generate import show_stats
from rlx.driver.memory.views import update_copies
from rlx.dtypes import DType
from rlx.errors import DTypeError, GraphError, ModelFormatError, OutOfDeviceMemory, RlxError, ShapeError
from rlx.formats import gguf, safetensors
from rlx.formats.quantized import QuantizedTensors
from rlx.host.progress import drawn
from rlx.models import LanguageModel, load
from rlx.models.language import decoder as decoding
from rlx.models.language.architectures import gpt_oss
from rlx.models.language.config import Fields
from rlx.models.language.decoder import Decoder, Sampling
from rlx.models.language.speculation import LookUp
from rlx.models.language.stats import Stats
from rlx.models.language.text import StopTexts
from rlx.models.language.weights import ModelWeights
from rlx.ops.rope.scaling import LinearScaling
from rlx.packed import PackedArray
from rlx.runtime import Store
from tests.models.language import tiny
from tests.models.language.tiny import nmse

FAMILIES = {"llama": tiny.LLAMA, "gemma2": tiny.GEMMA}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("language")
    return {name: tiny.write_language_model(base / name, config, text=True) for name, config in FAMILIES.items()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.late("vulkan", family="gemma2")
def test_logits_and_tokens_are_those_of_float64(device: str, family: str, folders: dict[str, Path]) -> None:
    want, tokens = tiny.logits(FAMILIES[family]), tiny.TOKENS
    with load(folders[family], device, context=48) as model:
        assert nmse(model.logits(tokens), want) <= 1e-11
        follow = list(model.tokens(tokens[:9], 12))
        assert follow == tiny.greedy(FAMILIES[family], tokens[:9], 12)
        # No step was begun beyond the last token: the first is the prompt's.
        assert model.decoder.state.get("at").tolist() == [9 + 11]


@pytest.mark.parametrize("original", [32, 64])
def test_longrope_of_a_gguf_file(original: int, tmp_path: Path) -> None:
    """A context beyond the original length takes the long factors; here one of both kinds changes nothing."""
    tiny.write_gguf(tmp_path / "plain.gguf", None)
    ones, others = np.ones(8, np.float32), np.full(8, 7, np.float32)
    with gguf.read(tmp_path / "plain.gguf") as file:
        metadata = {**file.metadata, "llama.rope.scaling.original_context_length": original,
                    "llama.rope.scaling.attn_factor": 1.0}  # fmt: skip
        factors = dict(zip(("long", "short"), (ones, others) if original < 48 else (others, ones), strict=True))
        more = {f"rope_factors_{name}.weight": a for name, a in factors.items()}
        gguf.write(tmp_path / "x.gguf", metadata, {n: t.read() for n, t in file.tensors.items()} | more)
    with load(tmp_path / "x.gguf", "cpu", context=48) as model:
        assert nmse(model.logits(tiny.TOKENS), tiny.logits(tiny.PACKED)) <= 1e-11


@pytest.mark.sample(vulkan=1)
@pytest.mark.parametrize("packed", ["q8_0", "q4_0", None])
@pytest.mark.late("vulkan")
def test_gguf_files_stay_packed(device: str, packed: str | None, tmp_path: Path) -> None:
    held = tiny.write_gguf(tmp_path / "model.gguf", packed)
    with load(tmp_path / "model.gguf", device, context=32) as model:
        assert nmse(model.logits(tiny.TOKENS), tiny.logits(tiny.PACKED, given=held)) <= 1e-11
        dtypes = {name: t.dtype for name, t in model.decoder.program(1).graph.params.items()}
        for name in ("embed_tokens.weight", "layers.1.mlp.gate_proj+up_proj.weight"):
            assert dtypes[name].name == (packed or "f32")
        with pytest.raises(RlxError, match="no tokenizer"):
            model.tokenize("a")


def test_weights_are_the_same_where_they_are_copied_to_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU with memory of its own: read ahead into memory that is used again, but not while it is copied."""
    tiny.write_gguf(tmp_path / "model.gguf", "q8_0")
    given: list[Any] = []
    put = Store.put

    def noted(store: Store, name: str, dtype: DType, raw: Any) -> None:
        given.append(raw)
        put(store, name, dtype, raw)

    monkeypatch.setattr(Store, "put", noted)
    found = []
    for placed in (True, False):
        monkeypatch.setattr(Store, "in_place", placed)
        with load(tmp_path / "model.gguf", "cpu", context=32) as model:
            found.append(model.logits(tiny.TOKENS))
    np.testing.assert_array_equal(*found)
    assert len(given) > 4
    assert not any(np.shares_memory(one, after) for one, after in itertools.pairwise(given))


@pytest.mark.parametrize("placed", [True, False])
def test_a_file_that_is_cut_short_while_it_is_read(
    placed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    tiny.write_gguf(path, "q8_0")
    read = ModelWeights.load

    def cut(weights: ModelWeights, stores: Any) -> None:
        os.truncate(path, path.stat().st_size // 2)
        read(weights, stores)

    monkeypatch.setattr(Store, "in_place", placed)
    monkeypatch.setattr(ModelWeights, "load", cut)
    with pytest.raises(ModelFormatError, match="the file has been cut short"):
        load(path, "cpu", context=32)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of mapped files")
def test_a_loaded_model_holds_no_file_of_its_folder(folders: dict[str, Path]) -> None:
    with load(folders["llama"], "cpu", context=32) as model:
        gc.collect()
        assert str(folders["llama"] / "model.safetensors") not in Path("/proc/self/maps").read_text()
        with pytest.raises(RlxError, match="was loaded"):
            model.decoder.source.source.read("norm.weight")


@pytest.mark.late("vulkan")
def test_a_prompt_may_be_cut_anywhere(device: str, folders: dict[str, Path]) -> None:
    """Chunks with padding, chunks without, and single tokens leave the same caches for what follows."""
    want, tokens = tiny.greedy(tiny.GEMMA, tiny.TOKENS, 6), tiny.TOKENS
    with load(folders["gemma2"], device, context=40) as model:
        d: Decoder = model.decoder
        for cut in (1, 4, 16, 20):
            d.reset()
            first = d.prefill(tokens[:cut], Sampling())
            assert first == int(tiny.logits(tiny.GEMMA)[cut - 1].argmax())
            token = d.prefill(tokens[cut:], Sampling())
            assert [token, *d.decode(token, Sampling(), most=5)] == want
            # No step runs for a token that nobody takes.
            assert d.state.get("at").tolist() == [len(tokens) + 5]
            assert list(d.decode(want[-1], Sampling(), most=0)) == []


def test_a_step_copies_no_cache(device: str, folders: dict[str, Path]) -> None:
    """The caches lie in the state store alone: a program's own memory does not grow with the context."""
    arenas = []
    for context in (32, 64):
        with load(folders["llama"], device, context=context) as model:
            for chunk in (1, 16):
                exe = model.decoder.program(chunk)
                assert update_copies(exe.program, exe.plan) == []
                arenas.append(exe.plan.arena_bytes)
    assert arenas[:2] == arenas[2:]


def test_the_engine_runs_all_of_a_step_on_the_cpu(folders: dict[str, Path]) -> None:
    """An op that it has no kernel for would take longer than all the others."""
    if not usable("compiled"):
        pytest.skip("needs the compiled engine")
    with (load(folders["gemma2"], "cpu", context=32, engine="compiled") as model, model.batch(2) as batch,
          model.batch(2, pages=3) as paged):  # fmt: skip
        for decoder in (model.decoder, batch._decoder, paged._decoder):
            for program in (decoder.program(1, "next"), decoder.program(8, "guessed")):
                found = program.report().nodes  # type: ignore[union-attr]
                assert {node.op for node in found if node.by == "numpy"} == set()


def test_chunks_fit_the_context_and_waste_little() -> None:
    class Sized(Decoder):
        def __init__(
            self, context: int, length: int, sizes: tuple[int, ...] = decoding.CHUNKS, kind: str = "cpu"
        ) -> None:
            self.context, self.length, self.sizes = context, length, sizes
            self.config = SimpleNamespace(recurrent=False)  # type: ignore[assignment]
            self.session = SimpleNamespace(info=SimpleNamespace(kind=kind))  # type: ignore[assignment]

    for context, length, count in [(4096, 0, 4096), (700, 0, 700), (30, 25, 5), (64, 0, 9), (64, 3, 2), (2000, 7, 999)]:
        at = length
        for size in Sized(context, length).chunks(count):
            assert at < length + count and at + size <= context
            at += size
        assert at >= length + count
    assert list(Sized(4096, 0).chunks(2048)) == [decoding.CHUNKS[-1]] * 4
    assert list(Sized(4096, 0).chunks(1)) == [1]
    long = Sized(4096, 0, (*decoding.CHUNKS, decoding.LONG))
    assert list(long.chunks(2600)) == [2048, 512, 16, 16, 16]
    assert list(long.chunks(1200)) == [512, 512, 128, 16, 16, 16] and list(long.chunks(1600)) == [2048]
    assert list(Sized(4096, 0).chunks(50)) == [16, 16, 16, 1, 1]
    card = Sized(4096, 0, kind="discrete")  # a run of 128 takes about as long as one of 16
    assert list(card.chunks(50)) == [128] and list(card.chunks(16)) == [16] and list(card.chunks(150)) == [512]


def test_large_gpus_take_long_runs_of_one_sequence(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with load(folders["gemma2"], "cpu", context=decoding.LONG) as model:
        assert model.decoder.sizes == decoding.CHUNKS
        for free, sizes in ((10**9, (*decoding.CHUNKS, decoding.LONG)), (10**5, decoding.CHUNKS)):
            session = model.session
            large = replace(session.info, kind="discrete", memory_bytes=decoding.LONG_BYTES)
            monkeypatch.setattr(type(session), "info", property(lambda self, info=large: info))
            monkeypatch.setattr(type(session.device), "free_bytes", lambda self, free=free: free)
            monkeypatch.setattr(decoding, "check_room", lambda *args: [range(model.config.layers)])
            made = [Decoder(model.config, model.decoder.source, session, context, slots=slots, like=model.decoder)
                    for context, slots in ((decoding.LONG, 1), (1024, 1), (decoding.LONG, 2))]  # fmt: skip
            assert [d.sizes for d in made] == [sizes, decoding.CHUNKS, decoding.CHUNKS]
            for d in made:
                d.close()


@pytest.mark.late("vulkan")
def test_the_size_of_prompts_runs_is_the_callers(folders: dict[str, Path], device: str) -> None:
    """Longer and shorter runs give the same tokens, in rings of windows too."""
    ids = np.random.default_rng(1).integers(0, 60, 40)
    with load(folders["gemma2"], device, context=64) as model:
        want = list(model.tokens(ids, 4))
    for most, sizes in ((16, (16,)), (24, (16, 24)), (4096, (16, 64))):
        with load(folders["gemma2"], device, context=64, prefill_chunk=most) as model:
            assert model.decoder.sizes == sizes and list(model.tokens(ids, 4)) == want
    for wrong in (15, True, 32.0):
        with pytest.raises(ShapeError, match=r"prefill_chunk is .* expected an integer from 16"):
            load(folders["gemma2"], device, prefill_chunk=wrong)  # type: ignore[arg-type]


def test_text_streams_and_stops(folders: dict[str, Path]) -> None:
    with load(folders["llama"], "cpu", context=60) as model:
        assert isinstance(model, LanguageModel) and "context 60" in repr(model)
        assert model.tokenize("café") == [8, 6, 11, 4, 5]
        whole = "".join(model.generate("hello", 20))
        assert model.stats.tokens == 20 and model.stats.ended == "length"
        assert "".join(model.generate("hello", 20)) == whole
        assert model.stats.reused == 4 and model.stats.prompt == 1
        stop = next(whole[i : i + 2] for i in range(3, 10) if whole.find(whole[i : i + 2]) == i)
        assert "".join(model.generate("hello", 20, stop=["benchmarks@", stop])) == whole[: whole.index(stop)]
        assert model.stats.ended == "stop"
        assert list(model.generate("hello", 0)) == [] and (model.stats.tokens, model.stats.ended) == (0, "length")
        drawn = [list(model.generate("hello", 8, temperature=1.5, top_k=20, top_p=0.9, seed=s)) for s in (1, 1, 2)]
        assert drawn[0] == drawn[1] != drawn[2]
        assert sum(1 for _ in model.tokens([4, 5])) == 59 and model.stats.ended in ("context", "stop")
        assert model.embed("hello").shape == (24,) and abs(float(np.linalg.norm(model.embed("a b"))) - 1) < 1e-6


@pytest.mark.sample(vulkan=0)
def test_guesses_from_the_text_change_no_token(device: str, folders: dict[str, Path]) -> None:
    prompt = [5, 9, 11, 5, 9, 11, 5, 9]
    with load(folders["gemma2"], device, context=64) as model:
        plain = list(model.tokens(prompt))
        assert list(model.tokens(prompt, lookup=True)) == plain and len(plain) == 57
        assert model.stats.guessed >= model.stats.accepted > 0
    assert LookUp()([1, 2, 3, 9, 1, 2, 3], 2) == [9, 1]
    assert LookUp()([1, 2, 9, 8, 1, 2], 9) == [9, 8, 1, 2, 9, 8, 1, 2, 9]
    assert LookUp()([1, 2, 3], 4) == [] == LookUp()([7, 7, 7, 7], 0)
    text, grown = np.random.default_rng(0).integers(0, 6, 200).tolist(), LookUp()
    for n in range(200):
        ends = (at + k for k in (3, 2) for at in range(n - k - 1, -1, -1) if text[at : at + k] == text[n - k : n])
        assert grown(text[:n], 5) == LookUp()(text[:n], 5) == (text[next(ends, n) : n] * 5)[:5]


def test_a_draft_changes_no_token(folders: dict[str, Path], tmp_path: Path) -> None:
    """Drafts that are right and wrong at every token, to the end of the context, and with less room than the model."""
    right = folders["llama"]
    wrong = tiny.write_language_model(tmp_path / "wrong", text=True)
    arrays = tiny.weights()
    safetensors.save(wrong / "model.safetensors", {**arrays, "lm_head.weight": -arrays["lm_head.weight"]})
    prompt = [5, 9, 11, 5, 9]
    loaded = partial(load, device="cpu", engine="numpy")
    with loaded(right, context=40) as model, loaded(right, context=30) as small, loaded(wrong) as odd:
        plain = list(model.tokens(prompt))
        assert len(plain) == 36
        assert list(model.tokens(prompt, draft=small, guesses=4)) == plain
        # The last runs have no draft: its caches end at token 30.
        assert model.stats.guessed == model.stats.accepted == 20 and "20 of 20 accepted" in str(model.stats)
        assert list(model.tokens(prompt, draft=odd, guesses=3)) == plain
        assert model.stats.guessed > 60 and model.stats.accepted == 0
        texts = ["".join(model.generate("hello", 9, draft=draft)) for draft in (None, small, odd)]
        assert texts[0] == texts[1] == texts[2]
        both = [model.tokens([3, 7], 9, draft=small), small.tokens([8, 4], 9, draft=model)]
        made = [[next(answer) for answer in both] for _ in range(9)]
        alone = [list(m.tokens(p, 9)) for m, p in ((model, [3, 7]), (small, [8, 4]))]
        assert [list(one) for one in zip(*made, strict=True)] == alone
        for error, what, settings in [
            (GraphError, "no temperature", {"draft": small, "temperature": 1.0}),
            (GraphError, "no temperature", {"lookup": True, "temperature": 1.0}),
            (GraphError, "the model itself", {"draft": model}),
            (GraphError, "two sources", {"draft": small, "lookup": True}),
            (DTypeError, "expected a language model", {"draft": "small"}),
            (DTypeError, "guesses is 33; expected an integer from 1 to 32", {"draft": small, "guesses": 33}),
        ]:
            with pytest.raises(error, match=what):
                model.generate("a", **settings)


@pytest.mark.parametrize(
    "text, what", [(True, "its token 31 is '.', the model's '.'"), (False, "60 tokens, the model 61")]
)
def test_a_draft_of_another_vocabulary_is_refused(text: bool, what: str, tmp_path: Path) -> None:
    model, draft = (tiny.write_language_model(tmp_path / name, text=text) for name in ("model", "draft"))
    if text:
        file = draft / "tokenizer.json"
        parts = json.loads(file.read_text())
        vocabulary = parts["model"]["vocab"]
        odd = {i: token for token, i in vocabulary.items()}
        vocabulary[odd[31]], vocabulary[odd[32]] = 32, 31
        file.write_text(json.dumps(parts))
    else:
        tiny.write_language_model(model, {**tiny.LLAMA, "vocab_size": 61})
    with load(model, "cpu", context=8) as big, load(draft, "cpu", context=8) as small:
        refused = pytest.raises(GraphError, match=what)
        with refused:
            big.tokens([1], draft=small)


@pytest.mark.late("vulkan")
def test_sequences_come_and_go_as_they_would_alone(device: str, folders: dict[str, Path]) -> None:
    prompts = [[3, 7], [5, 9, 11, 5, 9], list(range(4, 24)), [8], [33, 2, 2]]
    drawn = Sampling(1.2, top_p=0.9, seed=4) if device == "cpu" else None
    with load(folders["gemma2"], device, context=32) as model:
        alone = [list(model.tokens(p, 9, drawn if i == 1 else None)) for i, p in enumerate(prompts)]
        waiting, made = list(enumerate(prompts)), dict[int, list[int]]()
        with model.batch(3) as batch:
            while waiting or batch.free < 3:
                while waiting and batch.free:
                    i, prompt = waiting.pop(0)
                    made[batch.add(prompt, 9, drawn if i == 1 else None, frozenset([1]))] = []
                for sequence, token, ended, _ in batch.step(2):
                    made[sequence] += [token] if ended != "stop" else []
            assert list(made.values()) == alone
            for _ in range(3):
                batch.add([1])
            with pytest.raises(GraphError, match="all 3 slots are taken"):
                batch.add([1])
            batch.cancel(7)
            assert batch.free == 1
            last: list[Any] = []
            while batch.free < 3:
                last += [t for t in batch.step(9) if t.ended]
            assert [t.ended for t in last] == ["context"] * 2


def test_answers_may_be_interleaved(folders: dict[str, Path]) -> None:
    with load(folders["llama"], "cpu", context=60) as model:
        alone = [list(model.tokens([3, i], 6)) for i in (7, 8)]
        both = [model.tokens([3, i], 6) for i in (7, 8)]
        made = [[next(answer) for answer in both] for _ in range(6)]
        assert [list(one) for one in zip(*made, strict=True)] == alone


def test_what_cannot_be_generated_is_refused_at_once(folders: dict[str, Path], tmp_path: Path) -> None:
    onnx = tmp_path / "m.onnx"
    onnx.write_bytes(b"abc")
    positions = tiny.LLAMA["max_position_embeddings"]
    with (
        load(folders["llama"], "cpu", context=2 * positions) as whole,
        pytest.raises(ShapeError, match=f"the context of {positions}, all that the model was made for; shorten"),
    ):
        whole.generate("a" * (positions + 1))
    with load(folders["llama"], "cpu", context=20) as model:
        for error, what, call in [
            (DTypeError, "3 is no path", lambda: load(3)),  # type: ignore[arg-type]
            (ModelFormatError, "rlx.onnx.load and `rlx run` take ONNX", lambda: load(onnx)),
            (ShapeError, f"21 tokens are more than the context of 20; .* larger context .it was made for {positions}",
             lambda: model.generate("a" * 21)),
            (ShapeError, "token 60 is out of range", lambda: model.logits([60])),
            (ShapeError, "token -1 is out of range", lambda: model.tokens([-1])),
            (ShapeError, f"token {1 << 80} is out of range", lambda: model.tokens([3, 1 << 80])),
            (ShapeError, "no tokens", lambda: model.generate("")),
            (DTypeError, "temperature is -1", lambda: model.generate("a", temperature=-1)),
            (DTypeError, "top_k is 0", lambda: model.generate("a", top_k=0)),
            (DTypeError, "top_p is 0.9 beside a temperature of 0", lambda: model.generate("a", top_p=0.9)),
            (DTypeError, "top_p is 2", lambda: model.generate("a", top_p=2)),
            (DTypeError, "max_tokens is -1", lambda: model.generate("a", -1)),
            (DTypeError, "no text by which", lambda: model.generate("a", stop="")),
            (DTypeError, "no list of texts", lambda: model.generate("a", stop=3)),  # type: ignore[arg-type]
            (DTypeError, "messages are 'hi'", lambda: model.chat("hi")),  # type: ignore[arg-type]
            (DTypeError, "expected one row of integers", lambda: model.logits([[0.5]])),
            (DTypeError, r"integers; model\.tokenize\(text\) gives them", lambda: model.logits("a text")),
            (DTypeError, r"one text at a time is taken, and model\.batch", lambda: model.generate(["a", "b"])),
            (DTypeError, r"model\.chat takes messages", lambda: model.generate([{"role": "user", "content": "a"}])),
            (DTypeError, "expected one row of integers", lambda: model.logits([[1], [1, 2]])),
            (DTypeError, "seed is -1", lambda: model.generate("a", temperature=1.0, seed=-1)),
            (DTypeError, "no list of texts", lambda: model.generate("a", stop=None)),
            (DTypeError, "most is 0", lambda: model.batch(2).step(0)),
        ]:  # fmt: skip
            with pytest.raises(error, match=what):
                call()
    with pytest.raises(GraphError, match="closed"):
        model.logits([1])
    bare = tiny.write_language_model(tmp_path / "bare")
    with load(bare, "cpu", context=8) as model, pytest.raises(RlxError, match=r"no tokenizer\.json"):
        model.generate("a")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model_type": "rwkv"}, "model_type is 'rwkv'; rlx knows"),
        ({"num_hidden_layers": 3}, "missing 'layers.2"),
        ({"num_hidden_layers": 1}, "extra 'model.layers.1"),
        ({"num_hidden_layers": 1 << 30}, "num_hidden_layers is 1073741824, expected an integer from 1 to 1,024"),
        ({"hidden_size": 32}, "expected"),
        ({"vocab_size": 61}, r"\(60, 24\), expected \(61, 24\)"),
        ({"num_key_value_heads": 3}, "a number that divides the 4 heads"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps is 'x'"),
        ({"rope_scaling": {"rope_type": "odd"}}, "none of default"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'"),
        ({"num_hidden_layers": 1024}, "say 1024 layers, the weights are 21 tensors"),
        ({"rms_norm_eps": None}, "rms_norm_eps is None"),
        ({"model_type": "mistral"}, "sliding_window is None, expected a number, or null written out"),
        ({"model_type": "gemma2"}, "sliding_window is None, expected a number: some layers"),
        ({"model_type": "gemma2", "layer_types": ["full_attention", "chunked"]}, "layer_types is"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, "is not a number above 0"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 1e-308}}, "factors of 1e"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4, "attention_factor": 1e308}}, "factors of 1e"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.718281828459045, "mscale": 1, "mscale_all_dim": -10}},
         "division by zero"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "one for all layers"),
        ({"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"rope_type": "linear", "factor": 2}},
         "none beside rope_parameters"),
    ],
)
def test_settings_that_do_not_fit_are_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = tiny.write_language_model(tmp_path)
    (folder / "config.json").write_text(json.dumps({**tiny.LLAMA, **change}))
    with pytest.raises(ModelFormatError, match=message):
        load(folder, "cpu", context=16)


def test_what_gpt_oss_leaves_out_is_as_published() -> None:
    sizes = {"vocab_size": 9, "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "rms_norm_eps": 1e-5}
    sizes |= {"intermediate_size": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 4}
    for more, base, scaled in [
        ({}, 150000.0, True),
        ({"rope_scaling": None, "rope_theta": None}, 150000.0, True),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, 7.0, False),
        ({"rope_theta": 5.0}, 5.0, True),
    ]:
        made = gpt_oss.gpt_oss(Fields({**sizes, **more}, "config.json")).attention
        assert made is not None and made.ropes[0] is not None
        assert made.ropes[0].base == base and (made.ropes[0].scaling is not None) == scaled, more
        assert made.head_size == 64


def test_tokens_beyond_the_vocabulary_have_no_text(tmp_path: Path) -> None:
    folder = tiny.write_language_model(tmp_path, text=True)
    file = folder / "tokenizer.json"
    parts = json.loads(file.read_text())
    parts["model"]["vocab"] = {token: i for token, i in parts["model"]["vocab"].items() if i < 30}
    file.write_text(json.dumps(parts))
    with load(folder, "cpu", context=64) as model:
        tokens = list(model.tokens(model.tokenize("abc"), 40, Sampling(50.0)))
        known = model.tokenizer.decode([t for t in tokens if t < 30])
        assert max(tokens) >= 30 and "".join(model.generate("abc", 40, temperature=50.0)) == known


def test_a_recurrent_model_begins_anew_after_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.write_mamba(tmp_path)
    longer = [3, 4, 5, 6, 7]
    with load(tmp_path, "cpu", context=32) as model:
        want = list(model.tokens(longer, 8))
        assert len(list(model.tokens(longer[:3], 1))) == 1
        prefill = model.decoder.prefill

        def interrupted(*args: Any) -> None:
            prefill(*args)
            raise KeyboardInterrupt

        monkeypatch.setattr(model.decoder, "prefill", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(model.tokens(longer, 8))
        monkeypatch.undo()
        assert list(model.tokens(longer, 8)) == want


def test_logits_of_nan_are_an_error(tmp_path: Path) -> None:
    folder = tiny.write_language_model(tmp_path)
    arrays = {**tiny.weights(), "model.norm.weight": np.full(24, np.nan, np.float32)}
    safetensors.save(folder / "model.safetensors", arrays)
    with load(folder, "cpu", context=16) as model, pytest.raises(RlxError, match="logits are NaN"):
        list(model.tokens([1, 2], 3, Sampling(1.0)))


def test_scaling_counts_beside_empty_rope_parameters() -> None:
    scaling = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    for more in ({}, {"rope_parameters": None}, {"rope_parameters": scaling["rope_scaling"]}):
        assert Fields({**scaling, **more}, "config.json").rope(8).scaling == LinearScaling(8.0)


def test_a_model_that_does_not_fit_says_what_would(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlx.backends.cpu.device import CpuDevice

    for free, what in ((40_000, "context=|fewer bits"), (1000, "a file of fewer bits a weight would fit")):
        monkeypatch.setattr(CpuDevice, "free_bytes", lambda self, free=free: free)
        with pytest.raises(OutOfDeviceMemory, match=what):
            load(folders["llama"], "cpu", context=64)


def test_stop_texts_hold_back_what_may_begin_one() -> None:
    stops = StopTexts(["END", "ENOUGH"])
    assert [stops.push(t) for t in ("a E", "N", "x", "ENO", "UGHtail", "more")] == ["a ", "", "ENx", "", "", ""]
    assert stops.found == "ENOUGH" and stops.end() == ""
    stops = StopTexts(["END"])
    assert stops.push("the EN") + stops.end() == "the EN"


def test_experts_in_mxfp4_are_those_of_the_file() -> None:
    """Folders of gpt-oss have two neighbours a byte, e2m1 times a power of two; gates and the others take turns."""
    rng = np.random.default_rng(0)
    blocks, scales = rng.integers(0, 256, (2, 6, 2, 16), np.uint8), rng.integers(120, 130, (2, 6, 2), np.uint8)
    numbers = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    quants = np.stack([blocks & 15, blocks >> 4], -1).reshape(2, 6, 2, 32)
    want = np.where(quants & 8, -1, 1) * numbers[quants & 7] * 2.0 ** (scales[..., None].astype(int) - 127)
    name = "layers.0.mlp.experts.gate_up_proj"
    held = {f"{name}_blocks": blocks, f"{name}_scales": scales}
    tensors = QuantizedTensors(held, {"quant_method": "mxfp4"}, "a folder")
    for which, part in enumerate(("gate", "up")):
        recipe = gpt_oss.names(f"layers.0.mlp.experts.{part}_proj.weight", None, tensors)  # type: ignore[arg-type]
        made = recipe.make([tensors[name] for name in recipe.files])
        assert isinstance(made, PackedArray) and made.shape == (2, 3, 64)
        np.testing.assert_array_equal(made.dequantize(), want[:, which::2].reshape(2, 3, 64))


def test_the_command_streams_a_text(folders: dict[str, Path]) -> None:
    asked = ["generate", str(folders["llama"]), "-p", "hello", "-n", "9", "--device", "cpu", "--stats"]
    got = CliRunner().invoke(app, asked)
    with load(folders["llama"], "cpu") as model:
        assert got.exit_code == 0 and got.stdout == "".join(model.generate("hello", 9)) + "\n"
    assert "9 tokens" in got.stderr and re.search(r"^device: cpu, .*, NumPy [\d.]+$", got.stderr, re.M)
    assert got.stderr.endswith("\nended: after max_tokens\n")
    full = CliRunner().invoke(app, [*asked, "--context", "8"])
    assert "the answer ends here: the context of 8 tokens is full" in full.stderr and "4 tokens, " in full.stderr
    idle = CliRunner().invoke(app, [*asked, "--top-k", "4", "--seed", "0"])
    assert "--top-k, --seed have no effect without a temperature" in str(idle.exception)


def test_the_share_of_the_bandwidth_is_shown_for_large_weights(
    folders: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bandwidth, "_LEAST", 1 << 20)
    for large, shown in ((1, True), (1 << 30, False)):
        monkeypatch.setattr("rlx.cli.generate._LARGE", large)
        with load(folders["llama"], "cpu") as model:
            monkeypatch.setattr(type(model.session.device), "free_bytes", lambda self: 1 << 22)
            list(model.generate("hello", 9))
            show_stats(model)
        said = capsys.readouterr().err
        assert bool(re.search(r"^bandwidth: \d+% of the [\d.]+ GB/s at which cpu reads memory$", said, re.M)) == shown
        assert re.search(r"^answer: 9 tokens, [\d,.]+ a second; 0.0\d+ MB of weights a token, ", said, re.M)
    large = str(Stats(tokens=65, rest_seconds=1 / 16, token_bytes=2_470_000_000))
    assert large.endswith("1,024.0 a second; 2.47 GB of weights a token, 2,529 GB/s")


def test_loading_is_drawn_on_a_terminal(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    with drawn("tiny", show=True, only="loading"), load(folders["llama"], "cpu", context=8):
        pass
    assert "tiny: loading weights" in capsys.readouterr().err


def test_building_before_the_first_token_is_drawn(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlx.cli.generate.drawn", lambda what="", only=None: drawn(what, True, only))
    got = CliRunner().invoke(app, ["generate", str(folders["llama"]), "-p", "hello", "-n", "9", "--device", "cpu"])
    with load(folders["llama"], "cpu") as model:
        assert got.exit_code == 0 and got.stdout == "".join(model.generate("hello", 9)) + "\n"
    assert "before the first token: planning memory" in got.stderr


def test_a_talk_forgets_its_oldest_turns(tmp_path: Path) -> None:
    folder = tiny.write_language_model(tmp_path, text=True)
    got = CliRunner().invoke(app, ["chat", str(folder), "--device", "cpu"], input="")
    assert "the model has no chat template" in str(got.exception), "refused before anything is said"
    letters = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}a"
    (folder / "chat_template.jinja").write_text(letters)
    lines = ["hi", "b" * 70, *["c" * 12] * 3]
    asked = ["chat", str(folder), "-n", "12", "--device", "cpu", "--context", "999", "--system", "x"]
    asked += ["--engine", "numpy"]
    got = CliRunner().invoke(app, asked, input="\n".join(lines))
    assert got.exit_code == 0 and got.stdout.count("\n") == 4
    assert "was made for 64 tokens, which is its context now, not 999" in got.stderr
    assert "this line makes 74 tokens, more than the context of 64" in got.stderr
    assert "the context of 64 tokens is full: the oldest 2 turns are forgotten" in got.stderr
