"""LoRA adapters beside a model: logits against float64 with merged weights, several by name, refusals."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rlx import Session
from rlx.cli.app import app
from rlx.errors import DTypeError, ModelFormatError, RlxError
from rlx.formats import gguf, safetensors
from rlx.formats.huggingface import ModelFolder
from rlx.models import load
from rlx.models.language.model import load_folder
from tests.models.language import peft_adapters, tiny
from tests.models.language.test_families import folder_of
from tests.models.language.tiny import nmse
from tests.models.tiny import formula

SMALL = ("self_attn.q_proj", "self_attn.v_proj")
LARGE = (*SMALL, "self_attn.k_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def matrices(config: dict[str, Any], targets: tuple[str, ...], rank: int, seed: str) -> dict[str, Any]:
    made = {}
    for name, shape in tiny.shapes(config).items():
        if any(target in name for target in targets):
            bare = f"base_model.model.{name.removesuffix('.weight')}"
            made[f"{bare}.lora_A.weight"] = formula(f"{seed}a{name}", (rank, shape[1]), 0.4)
            made[f"{bare}.lora_B.weight"] = formula(f"{seed}b{name}", (shape[0], rank), 0.4)
    return made


def write(folder: Path, arrays: dict[str, Any], targets: tuple[str, ...], **settings: Any) -> Path:
    folder.mkdir()
    named = sorted({target.rpartition(".")[2] for target in targets})
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": named, "bias": "none", **settings}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    safetensors.save(folder / "adapter_model.safetensors", arrays)
    return folder


def merged(held: dict[str, Any], arrays: dict[str, Any], scale: float) -> dict[str, Any]:
    """The weights W + scale · B A, in float64; with magnitudes their rows have these lengths."""
    made = dict(held)
    for name in held:
        bare = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{bare}.lora_A.weight" in arrays:
            a, b = (arrays[f"{bare}.lora_{which}.weight"].astype(np.float64) for which in "AB")
            made[name] = held[name] + scale * (b @ a)
            if (lengths := arrays.get(f"{bare}.lora_magnitude_vector")) is not None:
                made[name] *= (lengths / np.linalg.norm(made[name], axis=1))[:, None]
    return made


def magnitudes(arrays: dict[str, Any], n: int) -> dict[str, Any]:
    return {name.replace("lora_A.weight", "lora_magnitude_vector"): np.ones(n, np.float32)
            for name in arrays if "lora_A" in name}  # fmt: skip


def with_magnitudes(arrays: dict[str, Any]) -> dict[str, Any]:
    """An adapter's matrices, and for each product magnitudes of its outputs."""
    own = {name.replace("lora_B.weight", "lora_magnitude_vector"): formula(f"m{name}", array.shape[:1], 0.5, 1.0)
           for name, array in arrays.items() if "lora_B" in name}  # fmt: skip
    return arrays | own


@pytest.mark.sample(vulkan=0)
def test_adapters_take_turns_beside_packed_weights(device: str, tmp_path: Path) -> None:
    held = tiny.write_gguf(tmp_path / "model.gguf", "q8_0")
    sets = [("one", SMALL, 2.0, {}), ("two", SMALL, 6 / 3**0.5, {"use_rslora": True}), ("all", LARGE, 2.0, {}),
            ("dora", SMALL, 2.0, {"use_dora": True})]  # fmt: skip
    with load(tmp_path / "model.gguf", device, context=40) as model:
        kept, want = model.decoder.stages[0].weights, {None: tiny.logits(tiny.PACKED, given=held)}
        for name, targets, scale, settings in sets:
            arrays = matrices(tiny.PACKED, targets, 3, name)
            arrays = with_magnitudes(arrays) if settings.get("use_dora") else arrays
            model.load_adapter(name, write(tmp_path / name, arrays, targets, **settings))
            want[name] = tiny.logits(tiny.PACKED, given=merged(held, arrays, scale))
            assert nmse(want[name], want[None]) > 1e-3
        assert model.adapters == ("one", "two", "all", "dora") and model.decoder.stages[0].weights is kept
        for name in ("one", None, "two", "dora", "all", "one"):
            assert nmse(model.logits(tiny.TOKENS, adapter=name), want[name]) <= 1e-11
        programs = len(model.decoder._programs)
        assert programs == len({key[:4] for key in model.decoder._programs}) * 4  # none, and one for each shape


def test_texts_with_an_adapter_are_those_of_merged_weights(tmp_path: Path) -> None:
    """Whatever was in the caches before, and between the tokens of an answer without it."""
    folder, prompt = tiny.write_language_model(tmp_path / "model", text=True), [5, 9, 11, 5, 9]
    arrays = matrices(tiny.LLAMA, LARGE, 3, "x")
    adapter = write(tmp_path / "adapter", arrays, LARGE)
    other = tiny.write_language_model(tmp_path / "merged")
    changed = merged(tiny.weights(), arrays, 2.0)
    safetensors.save(other / "model.safetensors", {n: np.asarray(a, np.float32) for n, a in changed.items()})
    with load(other, "cpu", context=40, engine="numpy") as model:
        want = list(model.tokens(prompt, 20))
    with load(folder, "cpu", context=40, engine="numpy") as model:
        plain = list(model.tokens(prompt, 20))
        model.load_adapter("x", adapter)
        assert list(model.tokens(prompt, 20, adapter="x")) == want != plain
        assert list(model.tokens(prompt, 20)) == plain and model.stats.reused == 0
        both = [model.tokens(prompt, 6, adapter=name) for name in ("x", None)]
        made = [[next(answer) for answer in both] for _ in range(6)]
        assert [list(one) for one in zip(*made, strict=True)] == [want[:6], plain[:6]]
        text = "".join(model.generate("hello", 9, adapter="x"))
        with pytest.raises(RlxError, match=r"no adapter 'y'; loaded: 'x'"):
            model.generate("a", adapter="y")
        with pytest.raises(DTypeError, match="expected a text"):
            model.load_adapter("", adapter)
    asked = ["generate", str(folder), "-p", "hello", "-n", "9", "--device", "cpu", "--engine", "numpy"]
    got = CliRunner().invoke(app, [*asked, "--adapter", str(adapter)])
    assert got.exit_code == 0 and got.stdout == text + "\n"


def gguf_adapter(path: Path, arrays: dict[str, Any], alpha: float, heads: tuple[int, int], **more: Any) -> Path:
    """The arrays as llama.cpp has them: by its names, and the rows of q and k in pairs of neighbours."""
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down"}  # fmt: skip
    tensors = {}
    for name, array in arrays.items():
        layer, part, kind = re.findall(r"layers\.(\d+)\.(.*)\.lora_([AB])\.weight", name)[0]
        if kind == "B" and part[-6:] in ("q_proj", "k_proj"):
            count = heads[part[-6:] == "k_proj"]
            array = np.concatenate([half for head in np.split(array, count) for half in _in_pairs(head)])
        tensors[f"blk.{layer}.{names[part]}.weight.lora_{kind.lower()}"] = np.ascontiguousarray(array, np.float32)
    gguf.write(path, {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora",
                      "adapter.lora.alpha": alpha, **more}, tensors)  # fmt: skip
    return path


def _in_pairs(head: Any) -> list[Any]:
    half = len(head) // 2
    return [head[[i, half + i]] for i in range(half)]


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "gguf"])
def test_llama_cpps_files_of_adapters(packed: bool, tmp_path: Path) -> None:
    """Beside a folder and a GGUF file; products of several ranks, and an alpha of 0, which means a scale of 1."""
    if packed:
        config, held = tiny.PACKED, tiny.write_gguf(tmp_path / "model", "q8_0")
    else:
        config, held = tiny.LLAMA, tiny.weights()
        tiny.write_language_model(tmp_path / "model", text=True)
    heads = (config["num_attention_heads"], config["num_key_value_heads"])
    few = matrices(config, ("mlp.up_proj",), 2, "f")
    with load(tmp_path / "model", "cpu", context=40, engine="numpy") as model:
        for name, arrays, alpha, scales in (
            ("one", matrices(config, LARGE, 3, "g"), 6.0, {3: 2.0}),
            ("ranks", matrices(config, SMALL, 4, "g") | few, 6.0, {4: 1.5, 2: 3.0}),
            ("no alpha", matrices(config, SMALL, 4, "g") | few, 0.0, {4: 1.0, 2: 1.0}),
        ):
            model.load_adapter(name, gguf_adapter(tmp_path / f"{name}.gguf", arrays, alpha, heads))
            want = held
            for rank, scale in scales.items():
                own = {n: a for n, a in arrays.items() if rank in a.shape[:: -1 if "lora_B" in n else 1][:1]}
                want = merged(want, own, scale)
            got = model.logits(tiny.TOKENS, adapter=name)
            assert nmse(got, tiny.logits(config, given=want)) <= 1e-11, name
    if not packed:
        asked = ["generate", str(tmp_path / "model"), "-p", "hello", "-n", "3", "--device", "cpu", "--engine", "numpy"]
        assert CliRunner().invoke(app, [*asked, "--lora", str(tmp_path / "one.gguf")]).exit_code == 0


@pytest.mark.parametrize(
    "settings, change, message",
    [
        ({"general.type": "model"}, None, "general.type is 'model', expected 'adapter'"),
        ({"adapter.type": "control_vector"}, None, "adapter.type is 'control_vector', expected 'lora'"),
        ({"adapter.lora.alpha": float("nan")}, None, "adapter.lora.alpha is nan"),
        ({"general.architecture": "qwen35"}, None, "general.architecture is 'qwen35', of which rlx reads no adapters"),
        ({"general.architecture": "qwen2"}, None, "is 'qwen2', and the model's is 'llama'"),
        ({"adapter.alora.invocation_tokens": [1]}, None, "alora"),
        ({}, ("blk.0.attn_q.weight.lora_a", None), "has lora_B alone"),
        ({}, ("token_embd.weight.lora_a", (3, 3)), "corrects embeddings"),
        ({}, ("blk.0.attn_q.bias.lora_a", (3, 3)), "is not of a matrix that a model of llama has"),
        ({}, ("blk.0.attn_q.weight.lora_b", (21, 3)), "has 21 rows, which 4 heads do not divide"),
        ({}, ("blk.0.attn_q.weight.lora_a", (24, 3)), r"lora_A.weight has shape \(24, 3\), expected \(3, 24\)"),
        ({}, ("blk.0.ffn_up_exps.weight.lora_a", (2, 3, 24)), "is no matrix lora_a or lora_b"),
    ],
)
def test_llama_cpps_files_that_are_refused(
    settings: dict[str, Any], change: tuple[str, Any] | None, message: str, tmp_path: Path
) -> None:
    heads = (tiny.LLAMA["num_attention_heads"], tiny.LLAMA["num_key_value_heads"])
    path = gguf_adapter(tmp_path / "a.gguf", matrices(tiny.LLAMA, SMALL, 3, "g"), 6.0, heads, **settings)
    if change is not None:
        with gguf.read(path) as file:
            tensors, metadata = {n: t.read() for n, t in file.tensors.items()}, dict(file.metadata)
        name, shape = change
        tensors.pop(name, None)
        if shape is not None:
            tensors[name] = np.zeros(shape, np.float32)
        gguf.write(path, metadata, tensors)
    folder = tiny.write_language_model(tmp_path / "model")
    with load(folder, "cpu", context=24, engine="numpy") as model, pytest.raises(ModelFormatError, match=message):
        model.load_adapter("a", path)


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    heads = (tiny.LLAMA["num_attention_heads"], tiny.LLAMA["num_key_value_heads"])
    path = gguf_adapter(tmp_path / "a.gguf", matrices(tiny.LLAMA, SMALL, 3, "g"), 6.0, heads)
    with pytest.raises(ModelFormatError, match=r"is an adapter; give the model that it was made for, .*--lora"):
        load(path, "cpu")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelFormatError, match=r"holds an adapter; give the model that it was made for, .*--adapter"):
        load(tmp_path, "cpu")


PEFT: dict[str, Any] = json.loads(peft_adapters.FILE.read_text(encoding="utf-8"))["cases"]
NOT_THERE = {
    "embeddings": "embed_tokens.lora_embedding_A' corrects embeddings", "modules_to_save": "modules_to_save is",
    "target_parameters": "target_parameters is", "tokens": "trainable_token_indices is",
}  # fmt: skip


def peft_folder(folder: Path, case: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(case["config"]))
    (folder / "adapter_model.safetensors").write_bytes(base64.b64decode(case["tensors"]))
    return folder


def test_magnitudes_of_the_output_matrix_beside_adapters_of_other_ranks(tmp_path: Path) -> None:
    """Also in steps that take tokens of prompts, which have no logits."""
    targets = ("lm_head", *SMALL)
    dora = write(tmp_path / "d", with_magnitudes(matrices(tiny.LLAMA, targets, 3, "d")), targets, use_dora=True)
    lora = write(tmp_path / "l", matrices(tiny.LLAMA, LARGE, 5, "l"), LARGE, r=5)
    jobs = [(tiny.TOKENS[:4], "d"), (tiny.TOKENS, "l"), (tiny.TOKENS[:9], None), (tiny.TOKENS[3:], "d")]
    folder = tiny.write_language_model(tmp_path / "m")
    with load(folder, "cpu", context=48) as model:
        for name, path in (("d", dora), ("l", lora)):
            model.load_adapter(name, path)
        want = [list(model.tokens(prompt, 5, adapter=name)) for prompt, name in jobs]
        with model.batch(4) as batch:
            numbers = [batch.add(jobs[0][0], 5, adapter="d")]
            numbers += [batch.begin(prompt, 5, adapter=name) for prompt, name in jobs[1:]]
            made = [token for _ in range(9) for token in batch.step(1, 30)]
    assert [[token.token for token in made if token.sequence == number] for number in numbers] == want


@pytest.mark.late
def test_magnitudes_of_a_weight_with_several_products_in_a_layer(tmp_path: Path) -> None:
    """Gemma 3n's router reads a layer's state before the layer's blocks and after them."""
    folder = folder_of("gemma3n_text-0", tmp_path / "m")
    held = {name: np.array(array) for name, array in safetensors.load(folder).items()}
    arrays: dict[str, Any] = {}
    for name, weight in held.items():
        if name.endswith("modality_router.weight"):
            bare = f"base_model.model.{name.removesuffix('.weight')}"
            arrays[f"{bare}.lora_A.weight"] = formula(f"a{name}", (2, weight.shape[1]), 0.4)
            arrays[f"{bare}.lora_B.weight"] = formula(f"b{name}", (weight.shape[0], 2), 0.4)
    arrays = with_magnitudes(arrays)
    adapter = write(tmp_path / "a", arrays, ("altup.modality_router",), r=2, use_dora=True)
    with load(folder, "cpu", context=24, engine="numpy") as model:
        plain = model.logits(tiny.TOKENS)
        model.load_adapter("a", adapter)
        got = model.logits(tiny.TOKENS, adapter="a")
    # alpha / r is 3
    corrected = {name: np.asarray(array, np.float32) for name, array in merged(held, arrays, 3.0).items()}
    safetensors.save(folder / "model.safetensors", corrected)
    with load(folder, "cpu", context=24, engine="numpy") as model:
        want = model.logits(tiny.TOKENS)
    assert nmse(got, want) <= 1e-11 < nmse(plain, want)


def test_what_peft_has_written_gives_its_logits(tmp_path: Path) -> None:
    """The folders that peft_adapters.py keeps, one after the other and side by side, or refused by name."""
    likeliest: dict[str, int] = {}
    for tied in (False, True):
        base = tiny.write_language_model(tmp_path / f"base{tied}", peft_adapters.TIED if tied else tiny.LLAMA)
        with load(base, "cpu", context=24, engine="numpy") as model:
            for name, case in PEFT.items():
                if name.endswith("tied") is not tied:
                    continue
                folder = peft_folder(tmp_path / name, case)
                if name in NOT_THERE:
                    with pytest.raises(ModelFormatError, match=NOT_THERE[name]):
                        model.load_adapter(name, folder)
                    continue
                model.load_adapter(name, folder)
                got = model.logits(tiny.TOKENS, adapter=name)[:: peft_adapters.EVERY]
                want = np.frombuffer(base64.b64decode(case["logits"])).reshape(got.shape)
                assert nmse(got, want) <= 1e-11, name
                likeliest[name] = int(want[-1].argmax())
            if not tied:  # the last row is that of the token that follows
                batch = model.batch(len(likeliest))
                numbers = {batch.add(tiny.TOKENS, 1, adapter=name): token for name, token in likeliest.items()}
                while numbers:
                    for made in batch.step():
                        assert made.token == numbers.pop(made.sequence)
                batch.close()


def test_the_correction_of_a_tied_output_matrix_lies_with_the_last_layers(tmp_path: Path) -> None:
    base = tiny.write_language_model(tmp_path / "base", peft_adapters.TIED)
    case, sessions = PEFT["the output matrix, tied"], [Session("cpu", engine="numpy") for _ in range(2)]
    split = [(sessions[0], 1), (sessions[1], None)]
    with load_folder(ModelFolder(base), sessions[0], context=24, split=split) as model:
        model.load_adapter("x", peft_folder(tmp_path / "adapter", case))
        got = model.logits(tiny.TOKENS, adapter="x")[:: peft_adapters.EVERY]
    assert nmse(got, np.frombuffer(base64.b64decode(case["logits"])).reshape(got.shape)) <= 1e-11


def _renamed(old: str, new: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda arrays: {name.replace(old, new): array for name, array in arrays.items()}


@pytest.mark.parametrize(
    "settings, change, message",
    [
        ({"use_dora": True}, None, "use_dora is true, and 'layers.0.self_attn.q_proj' has no lora_magnitude_vector"),
        ({"use_dora": True}, lambda arrays: arrays | magnitudes(arrays, 3), "lora_magnitude_vector has 3 numbers"),
        ({}, lambda arrays: arrays | magnitudes(arrays, 3), "magnitude_vector', float32 .*, is no matrix lora_A or"),
        ({"modules_to_save": ["lm_head"]}, None, "modules_to_save is"),
        ({"rank_pattern": {"q_proj": 2}}, None, r"q_proj.lora_A.weight has shape \(3, 24\), expected \(2, 24\)"),
        ({"rank_pattern": {"(a+)+b": 2}}, None, "rank_pattern is .*expected an object whose keys are names"),
        ({"alpha_pattern": {"q_proj": "x"}}, None, "alpha_pattern: q_proj is 'x', expected a number"),
        ({"ensure_weight_tying": True}, None, "ensure_weight_tying is True"),
        ({"kasa_config": {"beta": 1}}, None, "kasa_config is"),
        ({"peft_type": "IA3"}, None, "peft_type is 'IA3', expected 'LORA'"),
        ({"init_lora_weights": "pissa"}, None, "init_lora_weights is 'pissa'"),
        ({"r": 0}, None, "r is 0, expected an integer"),
        ({"r": 2}, None, r"q_proj.lora_A.weight has shape \(3, 24\), expected \(2, 24\)"),
        ({"lora_alpha": "x"}, None, "lora_alpha is 'x'"),
        ({"target_modules": ["q_proj", "k_proj"]}, None, "has none of 'k_proj'"),
        ({}, lambda arrays: {**arrays, "base_model.model.lm_head.weight": np.zeros((60, 24), np.float32)},
         r"another weight of 'lm_head', float32 \(60, 24\), than the model's"),
        ({}, lambda arrays: {**arrays, "base_model.model.lm_head.base_layer.weight": np.zeros((61, 24), np.float16)},
         r"another weight of 'lm_head', float16 \(61, 24\)"),
        ({}, lambda arrays: {**arrays, "base_model.model.x.base_layer.weight": np.zeros((2, 2), np.float16)},
         "holds a weight of 'x', which the model has not"),
        ({"target_modules": None}, _renamed("self_attn.q_proj", "attn.wq"), "attn.wq' and 1 more is no product"),
        ({}, _renamed("layers.1", "layers.7"), "'layers.7.self_attn.q_proj' and 1 more is no product of this model"),
        ({}, _renamed("q_proj.lora_B", "q_proj.lora_C"), "lora_C.weight', float32 .*, is no matrix lora_A or lora_B"),
        ({}, lambda arrays: dict(list(arrays.items())[1:]), "has lora_B alone"),
        ({}, lambda arrays: {n: a[:-1] if ".lora_B" in n else a for n, a in arrays.items()}, "has shape"),
        ({"target_modules": []}, lambda arrays: {}, "it holds no tensors"),
    ],
)
def test_what_is_no_adapter_of_the_model_is_refused(
    settings: dict[str, Any], change: Any, message: str, small: Any, tmp_path: Path
) -> None:
    arrays = matrices(tiny.LLAMA, SMALL, 3, "x")
    folder = write(tmp_path / "adapter", change(arrays) if change else arrays, SMALL, **settings)
    with pytest.raises(ModelFormatError, match=message):
        small.load_adapter("x", folder)
    assert small.adapters == ()
    small.logits([1, 2])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with load(tiny.write_language_model(tmp_path_factory.mktemp("model")), "cpu", context=8) as model:
        yield model


def test_folders_without_the_files_are_named(small: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"no adapter_config\.json"):
        small.load_adapter("x", tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelFormatError, match=r"no adapter_model\.safetensors"):
        small.load_adapter("x", tmp_path)
