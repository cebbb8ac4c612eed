"""Families of language models: tiny folders of each beside what transformers computes in float64."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx import Session
from rlx.errors import ModelFormatError, ModelWarning, ShapeError
from rlx.formats import gguf, safetensors
from rlx.formats.gguf.plain import BY_MODEL_TYPE as PLAIN
from rlx.formats.huggingface import ModelFolder
from rlx.models import load, trainable
from rlx.models.language import architectures, indexer
from rlx.models.language.architectures import ARCHITECTURES
from rlx.models.language.architectures.base import CLASSES
from rlx.models.language.config import Fields
from rlx.models.language.model import load_folder
from rlx.models.language.written import folder_to_gguf
from rlx.packed import PackedArray
from rlx.runtime.quantize import quantize
from tests.models.language.families import (
    EVERY,
    FAMILIES,
    FOUND,
    FROZEN,
    IDS_ASKED,
    KEYS,
    LIMIT,
    PAGE,
    class_facts,
    error,
    judge,
    judged,
    page,
    random_model,
    read_keys,
    right,
    unpacked_names,
    write_formula,
)
from tests.outside import outside

CASES: dict[str, Any] = json.loads(FROZEN.read_text())["cases"]


def seldom(names: Iterable[str], every: int) -> tuple[str, ...]:
    """All but each so-many-th, which `make test` leaves out."""
    return tuple(name for i, name in enumerate(names) if i % every)


def folder_of(case: str, folder: Path, **changed: Any) -> Path:
    kind, _, i = case.rpartition("-")
    folder.mkdir(exist_ok=True)
    settings = {**CASES[case].get("config", EVERY[kind][int(i)]), **changed}
    write_formula(folder, kind, settings, unpacked_names(CASES[case]["tensors"]))
    return folder


def test_a_window_that_gguf_has_not_is_told_with_its_length(tmp_path: Path) -> None:
    notes = folder_to_gguf(folder_of("starcoder2-0", tmp_path / "a"), tmp_path / "a.gguf")
    length = FAMILIES["starcoder2"][0]["sliding_window"]
    assert any(f"the folder's numbers for texts of up to {length} tokens, and others" in note for note in notes)


def test_every_family_has_cases() -> None:
    assert {case.rpartition("-")[0] for case in CASES} == set(EVERY)
    assert set(FAMILIES) == set(json.loads(KEYS.read_text())["families"])
    assert set(FAMILIES) <= set(ARCHITECTURES)


@pytest.mark.filterwarnings("ignore:.*are left aside. altup_correct_scale is false")
@pytest.mark.late(case=seldom(CASES, 7))
@pytest.mark.parametrize("case", CASES)
def test_logits_as_transformers_has_them(case: str, tmp_path: Path) -> None:
    """config.json says what differs from the class alone; the names of tensors are those of the published folders."""
    with load(folder_of(case, tmp_path), "cpu", context=64, engine="numpy") as model:
        got = model.logits(IDS_ASKED)
    assert error(got[-1, :16], np.asarray(CASES[case]["logits"])) <= max(LIMIT, 4 * CASES[case].get("torch", 0.0))
    assert got.argmax(1).tolist() == CASES[case]["likeliest"]


# One of each block that a step or a row of a batch computes otherwise than a run over the whole text.
BLOCKS = {
    "deepseek_v3-0": "latent attention", "deepseek_v32-0": "tokens that an indexer chooses",
    "glm_moe_dsa-1": "tokens that earlier layers chose", "bloom-0": "ALiBi", "falcon-1": "ALiBi, rounded",
    "ministral3-0": "queries by position", "hunyuan_v1_dense-0": "norms behind ropes",
    "falcon_h1-0": "both side by side", "minimax-0": "lightning attention", "nemotron_h-0": "layers of one block",
    "olmo_hybrid-0": "norms by layer", "kimi_linear-1": "Kimi's delta attention",
    "zamba2-1": "blocks that layers share", "gemma4_text-1": "values of keys", "gemma3n_text-0": "several streams",
    "gemma4_text-0": "keys of earlier layers",
    "lfm2-0": "short convolutions", "jamba-0": "Mamba with norms", "cohere2-0": "layers without ropes",
}  # fmt: skip


@pytest.mark.late(case=seldom(BLOCKS, 4))
@pytest.mark.parametrize("case", BLOCKS)
def test_parts_steps_and_batches(case: str, tmp_path: Path) -> None:
    """Beside one run over the whole text."""
    folder = folder_of(case, tmp_path)
    ids = np.asarray(IDS_ASKED, np.int32)
    with load(folder, "cpu", context=64, engine="numpy") as model:
        want = model.logits(ids)
    found = judged(folder, want, ids)
    limit = max(LIMIT, 4 * CASES[case].get("torch", 0.0))
    assert max(found[k] for k in ("error", "steps", "parts")) <= limit, BLOCKS[case]
    assert not any(found.get(k) for k in ("argmax", "batch", "pages"))


def test_caches_of_latent_attention_hold_one_row_a_token(tmp_path: Path) -> None:
    with load(folder_of("deepseek_v3-0", tmp_path), "cpu", context=64, engine="numpy") as model:
        assert model.decoder.cache_bytes == 3 * 64 * (16 + 8) * 4
        want = list(model.tokens(IDS_ASKED[:9], 8))
    with load(tmp_path, "cpu", context=64, engine="numpy", cache="bf16") as model:
        assert model.decoder.cache_bytes == 3 * 64 * (16 + 8) * 2
        assert len(list(model.tokens(IDS_ASKED[:9], 8))) == len(want)


def test_tokens_that_an_indexer_chooses(tmp_path: Path) -> None:
    """They change the logits; a context that it keeps whole needs no keys of its own."""
    folder = folder_of("deepseek_v32-0", tmp_path)
    ids, keys = IDS_ASKED[:20], 3 * (16 + 8) * 4  # the bytes of latents that a token has
    made = {}
    for kept, context, own in ((7, 64, 3 * 12 * 4), (64, 64, 0), (7, 7, 0), (7, 8, 3 * 12 * 4)):
        folder_of("deepseek_v32-0", tmp_path, index_topk=kept)
        with load(folder, "cpu", context=context, engine="numpy") as model:
            assert model.decoder.cache_bytes == context * (keys + own)
            made[kept, context] = model.logits(ids[: min(context, 20)])
    assert error(made[7, 64][:7], made[64, 64][:7]) <= LIMIT < 1e-3 < error(made[7, 64], made[64, 64])
    assert error(made[7, 7], made[64, 64][:7]) <= LIMIT and error(made[7, 8], made[7, 64][:8]) <= LIMIT
    with load(folder_of("deepseek_v32-0", tmp_path), "cpu", context=64, engine="numpy", cache="bf16") as model:
        assert model.decoder.cache_bytes == 64 * (keys + 3 * 12 * 4) // 2
        assert error(model.logits(ids), made[7, 64]) < 0.1


def test_indexers_take_their_heads_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a prompt in a long context does not take the products of all heads at once: 9 heads by 4."""
    folder, ids = folder_of("deepseek_v32-0", tmp_path), np.asarray(IDS_ASKED, np.int32)
    counted = []
    taken = indexer._of_heads

    def counting(q: Any, *others: Any) -> Any:
        counted.append(q.shape[2])
        return taken(q, *others)

    monkeypatch.setattr(indexer, "_PRODUCTS", 4 * len(ids) ** 2)
    monkeypatch.setattr(indexer, "_of_heads", counting)
    function, weights = trainable(folder)
    assert error(function(weights, ids[None])[0, -1, :16], np.asarray(CASES["deepseek_v32-0"]["logits"])) <= LIMIT
    assert counted == [4, 4, 1] * 3


def test_several_texts_of_a_row_choose_their_own_tokens(tmp_path: Path) -> None:
    function, weights = trainable(folder_of("glm_moe_dsa-1", tmp_path), checkpoint=True)
    ids = np.asarray(IDS_ASKED, np.int32)
    row = function(weights, ids[None], None, np.repeat(np.arange(2, dtype=np.int32), [13, 20])[None])[0]
    apart = np.concatenate([function(weights, part[None])[0] for part in (ids[:13], ids[13:])])
    assert error(row, apart) <= LIMIT


@pytest.mark.parametrize("case", ["gpt_oss-0", "bloom-0", "deepseek_v32-0"])
def test_masks_of_layers_that_are_computed_again(case: str, tmp_path: Path) -> None:
    folder, ids = folder_of(case, tmp_path), np.asarray(IDS_ASKED, np.int32)[None]
    once, again = (trainable(folder, checkpoint=c) for c in (False, True))
    assert np.array_equal(once[0](once[1], ids), again[0](again[1], ids))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"indexer_types": ["shared", "full", "full"]}, "indexer_types is .*words, full or shared, of which the first"),
        ({"indexer_types": None, "index_topk_pattern": "FS"}, "index_topk_pattern is 'FS', expected a list of 4 words"),
        ({"indexer_types": ["full", ["shared"], "full", "full"]}, "indexer_types is .*expected a list of 4 words"),
        ({"indexer_rope_interleave": False}, "indexer_rope_interleave is False, expected True"),
        ({"rope_interleave": False}, "rope_interleave is False, expected True"),
        ({"q_lora_rank": None}, "q_lora_rank"),
        ({"index_head_dim": 6}, "index_head_dim is 6, expected an integer from 8"),
    ],
)
def test_settings_of_indexers_that_are_refused(changed: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=told):
        load(folder_of("glm_moe_dsa-1", tmp_path, **changed), "cpu")


def test_layers_that_follow_the_choice_of_earlier_ones(tmp_path: Path) -> None:
    """By a pattern of letters too; their indexers in a file are named as unused; one device has both layers."""
    folder = folder_of("glm_moe_dsa-1", tmp_path, indexer_types=None, index_topk_pattern="FSFS")
    with load(folder, "cpu", context=64, engine="numpy") as model:
        want = model.logits(IDS_ASKED)
    assert error(want[-1, :16], np.asarray(CASES["glm_moe_dsa-1"]["logits"])) <= LIMIT
    first, second = (Session("cpu", engine="numpy") for _ in range(2))
    for count, told in ((1, "layer 1 of .* attends to the tokens that layer 0 chooses"), (2, None)):
        with (
            pytest.raises(ShapeError, match=told) if told else contextlib.nullcontext(),
            load_folder(ModelFolder(folder), first, context=64, split=[(first, count), (second, None)]) as model,
        ):
            assert error(model.logits(IDS_ASKED), want) <= LIMIT
    held = {name: np.array(array) for name, array in safetensors.load(folder).items()}
    name = "model.layers.{}.self_attn.indexer.wk.weight"
    safetensors.save(folder / "model.safetensors", {**held, name.format(1): held[name.format(0)]})
    with pytest.warns(ModelWarning, match=r"indexer.wk.weight, are left aside: their layers attend to the tokens that"):
        load(folder, "cpu", context=64, engine="numpy").close()


@pytest.mark.late
def test_layers_that_attend_to_the_keys_of_earlier_ones(tmp_path: Path) -> None:
    """They have no caches; keys of theirs in a file are named as unused; a device has them and the layer they read."""
    folder = folder_of("gemma4_text-0", tmp_path)
    held = {name: np.array(array) for name, array in safetensors.load(folder).items()}
    name = "model.layers.4.self_attn.k_proj.weight"
    safetensors.save(folder / "model.safetensors", {**held, name: np.ones((16, 32), np.float32)})
    with pytest.warns(ModelWarning, match=r"1 tensors, model.layers.\*.self_attn.k_proj.weight, are left aside: their"):
        model = load(folder, "cpu", context=64, engine="numpy")
    assert model.decoder.cache_bytes == (2 * 8 + 12) * 2 * 2 * 64 * 4  # two layers with windows and one without
    want = model.logits(IDS_ASKED)
    model.close()
    safetensors.save(folder / "model.safetensors", held)
    function, weights = trainable(folder, checkpoint=True)
    assert error(function(weights, np.asarray(IDS_ASKED, np.int32)[None])[0], want) <= LIMIT
    first, second = (Session("cpu", engine="numpy") for _ in range(2))
    for count, told in ((2, "layer 3 of .* attends to the keys of layer 1"), (1, None)):
        with (
            pytest.raises(ShapeError, match=told) if told else contextlib.nullcontext(),
            load_folder(ModelFolder(folder), first, context=64, split=[(first, count), (second, None)]) as model,
        ):
            assert error(model.logits(IDS_ASKED), want) <= LIMIT


def test_kimi_linear_under_other_names(tmp_path: Path) -> None:
    """Tensors as the class has them, and settings as published: layers are listed, and a setting that also stands under
    the name that the published code reads has its value from there."""
    folder, case = folder_of("kimi_linear-0", tmp_path), "kimi_linear-0"
    held = {name: np.array(array) for name, array in safetensors.load(folder).items()}
    made, experts = dict[str, Any](), dict[str, list[Any]]()
    for name, array in held.items():
        name = name.replace("block_sparse_moe", "mlp")
        before, mark, rest = name.partition(".experts.")
        if mark:
            experts.setdefault(f"{before} {rest.split('.')[1]}", []).append((int(rest.split(".")[0]), array))
        elif "_conv1d." in name:
            experts.setdefault(f"{name.rpartition('.self_attn.')[0]} conv", []).append(("qkv".index(name[-15]), array))
        else:
            gate = name.rpartition(".")[2] in ("dt_bias", "A_log") or ".f_" in name
            made[name.replace("self_attn.", "self_attn.forget_gate.") if gate else name] = array
    parts = {key: [array for _, array in sorted(pairs, key=lambda pair: pair[0])] for key, pairs in experts.items()}
    for key, arrays in parts.items():
        before, kind = key.split()
        if kind == "conv":
            made[f"{before}.self_attn.conv1d.weight"] = np.concatenate(arrays)
        elif kind == "w2":
            made[f"{before}.experts.down_proj"] = np.stack(arrays)
        elif kind == "w1":
            made[f"{before}.experts.gate_up_proj"] = np.concatenate([np.stack(arrays), parts[f"{before} w3"]], axis=1)
    settings = {k: v for k, v in FAMILIES["kimi_linear"][0].items() if not k.startswith(("linear_", "layer_types"))}
    linear = {"head_dim": 8, "num_heads": 3, "short_conv_kernel_size": 3, "full_attn_layers": [2], "kda_layers": [1, 3]}
    more = {"model_type": "kimi_linear", "linear_attn_config": linear, "num_experts_per_tok": 2,
            "num_experts_per_token": settings["num_experts_per_tok"]}  # fmt: skip
    safetensors.save(folder / "model.safetensors", made)
    (folder / "config.json").write_text(json.dumps({**settings, **more}))
    with load(folder, "cpu", context=64, engine="numpy") as model:
        assert error(model.logits(IDS_ASKED)[-1, :16], np.asarray(CASES[case]["logits"])) <= LIMIT
    linear["kda_layers"] = [1]
    (folder / "config.json").write_text(json.dumps({**settings, **more}))
    with pytest.raises(ModelFormatError, match="full_attn_layers and kda_layers with each number from 1 to 3"):
        load(folder, "cpu")


def test_layers_behind_the_last_are_left_aside_with_a_word(tmp_path: Path) -> None:
    """DeepSeek-V3's files have such layers, which guess further tokens; a weight that is no such one is refused."""
    folder = folder_of("glm4_moe-0", tmp_path)
    held = {name: np.array(array) for name, array in safetensors.load(folder).items()}
    more = {**held, "model.layers.3.eh_proj.weight": held["lm_head.weight"]}
    safetensors.save(folder / "model.safetensors", more)
    with pytest.warns(ModelWarning, match="1 tensors of layers from 3 on, which guess further tokens, are left aside"):
        model = load(folder, "cpu", context=64, engine="numpy")
    assert model.logits(IDS_ASKED).argmax(1).tolist() == CASES["glm4_moe-0"]["likeliest"]
    model.close()
    safetensors.save(folder / "model.safetensors", {**held, "model.layers.2.eh_proj.weight": held["lm_head.weight"]})
    with pytest.raises(ModelFormatError, match=r"extra 'model\.layers\.2\.eh_proj\.weight'"):
        load(folder, "cpu")


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_settings_that_are_read(kind: str) -> None:
    """Those of the list, which a command writes with what the others change in transformers: nothing."""
    known, held = json.loads(CLASSES.read_text())["families"][kind], json.loads(KEYS.read_text())["families"][kind]
    assert sorted(read_keys(kind) & set(known["usual"])) == held["read"]
    assert not set(held["read"]) & set(held["idle"])
    assert set(known["usual"]) - {"use_cache", "vocab_size"} <= {*held["read"], *held["idle"]}


@pytest.mark.judged
@pytest.mark.late
def test_what_the_classes_take_for_granted() -> None:
    assert class_facts() == json.loads(CLASSES.read_text())


@pytest.mark.judged
@pytest.mark.late(kind=seldom(FAMILIES, 9))
@pytest.mark.parametrize("kind", FAMILIES)
def test_random_folders_beside_transformers(kind: str, tmp_path: Path) -> None:
    """With all settings written out, as transformers saves them."""
    torch = outside("torch")
    random_model(tmp_path, kind, FAMILIES[kind][0])
    tokens = torch.randint(3, 96, (30,))
    with torch.no_grad():
        want = judge(tmp_path, kind)(tokens[None]).logits[0].numpy()
    with load(tmp_path, "cpu", context=64, engine="numpy") as model:
        got = model.logits(tokens.numpy())
    assert error(got, want) <= LIMIT and (got.argmax(1) == want.argmax(1)).all()


@pytest.mark.parametrize("case", ["gpt_neox-0", "bamba-0"])
def test_tables_of_ropes_that_are_no_head_s(case: str, tmp_path: Path) -> None:
    """Their classes make the tables alone by `head_dim`."""
    load(folder_of(case, tmp_path, head_dim=8), "cpu", context=32, engine="numpy").close()
    with pytest.raises(ModelFormatError, match="head_dim is 4, expected None or 8"):
        load(folder_of(case, tmp_path, head_dim=4), "cpu")


def test_an_unknown_family_is_refused_with_the_nearest(tmp_path: Path) -> None:
    for kind, told in (("longcat_flash", "nearest is deepseek_v3, which lacks two blocks of attention"),
                       ("mixtrall", "nearest name is mixtral$")):  # fmt: skip
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        with pytest.raises(ModelFormatError, match=f"model_type is '{kind}'; rlx knows .*; the {told}"):
            load(tmp_path, "cpu")


WRITTEN = [kind for kind, cases in json.loads(FOUND.read_text())["families"].items()
           if kind in PLAIN and any("gguf" in case for case in cases)]  # fmt: skip


@pytest.mark.late(kind=seldom(WRITTEN, 6))
@pytest.mark.parametrize("kind", WRITTEN)
def test_gguf_files_of_a_folder(kind: str, tmp_path: Path) -> None:
    """A file holds the folder's numbers; its logits are those of the folder, loaded and as a function of weights."""
    cases = json.loads(FOUND.read_text())["families"][kind]
    case = f"{kind}-{next(i for i, found in enumerate(cases) if 'gguf' in found)}"
    folder = folder_of(case, tmp_path / "a")
    notes = folder_to_gguf(folder, tmp_path / "m.gguf")
    assert notes == ["the folder has no tokenizer.json, so the file gets no tokenizer"]
    with load(tmp_path / "m.gguf", "cpu", context=64, engine="numpy") as model:
        got = model.logits(IDS_ASKED)
    function, weights = trainable(tmp_path / "m.gguf")
    for logits in (got, function(weights, np.asarray(IDS_ASKED, np.int32)[None])[0]):
        limit = max(LIMIT, 4 * CASES[case].get("torch", 0.0))
        assert error(logits[-1, :16], np.asarray(CASES[case]["logits"])) <= limit
        assert logits.argmax(1).tolist() == CASES[case]["likeliest"]


@pytest.mark.parametrize("case", ["bamba-0", "kimi_linear-2"])
def test_states_and_filters_stay_in_f32(case: str, tmp_path: Path) -> None:
    """Readers compute with them in f32, whatever the type of the matrices; a file that has them in another is read."""
    folder_to_gguf(folder_of(case, tmp_path / "a"), tmp_path / "m.gguf", "f16")
    with gguf.read(tmp_path / "m.gguf") as file:
        kept = {name: tensor for name, tensor in file.tensors.items() if "ssm_conv1d" in name or name[-5:] == "ssm_a"}
        assert {tensor.dtype.name for tensor in kept.values()} == {"f32"}
        assert {tensor.dtype.name for tensor in file.tensors.values()} == {"f16", "f32"}
        held = {name: np.asarray(tensor.read()) for name, tensor in file.tensors.items()}
        gguf.write(tmp_path / "n.gguf", file.metadata, {n: t.astype(np.float16 if n in kept else t.dtype)
                                                        for n, t in held.items()})  # fmt: skip
    for path in ("m.gguf", "n.gguf"):
        with load(tmp_path / path, "cpu", context=64, engine="numpy") as model:
            assert error(model.logits(IDS_ASKED)[-1, :16], np.asarray(CASES[case]["logits"])) < 1e-2


@pytest.mark.late
def test_experts_of_gemma_4_in_one_tensor(tmp_path: Path) -> None:
    """As llama.cpp's converter writes gate_proj and up_proj."""
    folder = folder_of("gemma4_text-1", tmp_path / "a")
    for kind in (None, "q8_0"):
        folder_to_gguf(folder, tmp_path / "m.gguf", kind)
        with gguf.read(tmp_path / "m.gguf") as file:
            held = {name: tensor.read() for name, tensor in file.tensors.items()}
            for i in range(6):
                parts = [held.pop(f"blk.{i}.ffn_{part}_exps.weight") for part in ("gate", "up")]
                floats = [p.dequantize() if isinstance(p, PackedArray) else np.asarray(p) for p in parts]
                whole = np.concatenate(floats, axis=1)
                held[f"blk.{i}.ffn_gate_up_exps.weight"] = whole if kind is None else quantize(whole, kind)
            gguf.write(tmp_path / "n.gguf", file.metadata, held)
        logits = []
        for path in (tmp_path / "m.gguf", tmp_path / "n.gguf"):
            with load(path, "cpu", context=64, engine="numpy") as model:
                logits.append(model.logits(IDS_ASKED))
        assert error(logits[1], logits[0]) <= LIMIT
        function, weights = trainable(tmp_path / "n.gguf")
        assert error(function(weights, np.asarray(IDS_ASKED, np.int32)[None])[0], logits[0]) <= LIMIT


@pytest.mark.late
def test_keys_of_earlier_layers_in_files_of_gemma_3n(tmp_path: Path) -> None:
    """Those of the layers behind the twentieth; readers require tensors for the others, which nothing uses."""
    shapes, layers = dict[str, tuple[int, ...]](), 22
    for name, shape in unpacked_names(CASES["gemma3n_text-3"]["tensors"]).items():
        before, mark, rest = name.partition(".layers.0.")
        wide = tuple(n // 6 * layers if n == 6 * 256 else n for n in shape)
        shapes |= {f"{before}.layers.{i}.{rest}": shape for i in range(layers)
                   if i < 20 or not rest.startswith(("self_attn.k", "self_attn.v"))} if mark else {name: wide}
    settings = {**FAMILIES["gemma3n_text"][3], "num_hidden_layers": layers, "num_kv_shared_layers": 2,
                "activation_sparsity_pattern": None}  # fmt: skip
    write_formula(tmp_path, "gemma3n_text", settings, shapes)
    assert folder_to_gguf(tmp_path, tmp_path / "m.gguf") == [
        "the folder has no tokenizer.json, so the file gets no tokenizer"]  # fmt: skip
    logits = []
    for path in (tmp_path, tmp_path / "m.gguf"):
        with load(path, "cpu", context=64, engine="numpy") as model:
            logits.append(model.logits(IDS_ASKED))
    assert np.array_equal(*logits)
    with gguf.read(tmp_path / "m.gguf") as file:
        assert not np.asarray(file.tensors["blk.21.attn_k.weight"].read()).any()


def test_files_of_gemma_that_are_no_model(tmp_path: Path) -> None:
    flags = [True, False] * 3
    four, three = "gemma4_text-3", "gemma3n_text-3"
    for case, key, value, told in (
        (four, "attention.sliding_window_pattern", 2, "expected a flag for each of 6 layers"),
        (four, "attention.sliding_window_pattern", flags[::-1], "layer 3, whose keys later layers with no window take"),
        (four, "attention.shared_kv_layers", 6, "expected a number below the 6 of layers"),
        (four, "attention.value_length_swa", 12, "key_length_swa is 8, expected that of values and of RoPE"),
        (four, "attention.head_count_kv", [2, 2], "is no number for each of 6 layers"),
        (four, "feed_forward_length", [48, 48, 48, 48, 48, 96], "or twice that in layers without keys"),
        (four, "rope.scaling.factor", 2.0, "no code for other than 0.0 and 1.0"),
        (four, "final_logit_softcapping", -1.0, "final_logit_softcapping is -1.0, expected"),
        (four, "activation_sparsity_scale", [1.0] * 6, "activation_sparsity_scale is .*; rlx has no code for it"),
        (three, "altup.num_inputs", 3, "no code for other than 4"),
        (three, "attention.shared_kv_layers", 1, "expected 0: readers take that number"),
        (three, "activation_sparsity_scale", [0.5] * 6, "expected those of a share of 0.95"),
        (three, "attention.key_length_swa", 8, "no code for other than 12"),
    ):
        good, bad = tmp_path / f"{case}.gguf", tmp_path / "bad.gguf"
        if not good.exists():
            folder_to_gguf(folder_of(case, tmp_path / case), good)
        with gguf.read(good) as file:
            tensors = {name: tensor.read() for name, tensor in file.tensors.items()}
            own = file.metadata["general.architecture"]
            gguf.write(bad, {**file.metadata, f"{own}.{key}": value}, tensors)
        with pytest.raises(ModelFormatError, match=told):
            load(bad, "cpu")
    with gguf.read(tmp_path / f"{four}.gguf") as file:
        tensors = {name: tensor.read() for name, tensor in file.tensors.items()}
        none = np.full_like(np.asarray(tensors["rope_freqs.weight"]), np.nan)
        for odd in ({}, {"rope_freqs.weight": none}):
            others = {n: t for n, t in tensors.items() if n != "rope_freqs.weight"}
            gguf.write(bad, file.metadata, {**others, **odd})
            with pytest.raises(ModelFormatError, match=r"rope_freqs\.weight holds no divisor"):
                load(bad, "cpu")
        never = {**file.metadata, "tokenizer.ggml.suppress_tokens": [3]}
        gguf.write(tmp_path / "never.gguf", never, tensors)
    with pytest.warns(ModelWarning, match="suppress_tokens is .3., which has no effect: exclude such tokens"):
        load(tmp_path / "never.gguf", "cpu", context=64, engine="numpy").close()


@pytest.mark.filterwarnings("ignore:.*are left aside. altup_correct_scale is false")
def test_what_gguf_lacks_of_gemma(tmp_path: Path) -> None:
    for case, told in (("gemma3n_text-0", "rope.scaling.factor is 2.0; rlx has no code"),
                       ("gemma3n_text-1", "no place for what the settings say of streams"),
                       ("gemma4_text-0", "layer 2, whose keys later layers with no window take")):  # fmt: skip
        with pytest.raises(ModelFormatError, match=told):
            folder_to_gguf(folder_of(case, tmp_path / case), tmp_path / "m.gguf")


def test_the_ropes_of_olmo_3() -> None:
    """What its class in transformers 5.24.0 makes of each way to say them, near and far layers' bases and scalings."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    kinds = {"full_attention": {**yarn, "rope_theta": 700.0}, "sliding_attention": {"rope_theta": 300.0}}
    for said, far, near in (
        ({}, (5e5, False), (5e5, False)), ({"rope_theta": 700.0}, (700.0, False), (5e5, False)),
        ({"rope_scaling": yarn}, (5e5, True), (5e5, False)),
        ({"rope_scaling": yarn, "rope_theta": 700.0}, (700.0, True), (5e5, False)),
        ({"rope_parameters": kinds}, (700.0, True), (300.0, False)),
        ({"rope_parameters": {"full_attention": yarn}, "rope_theta": 900.0}, (900.0, True), (5e5, False)),
    ):  # fmt: skip
        f = Fields({"model_type": "olmo3", **FAMILIES["olmo3"][1], "rope_parameters": None, **said}, "config.json")
        a = ARCHITECTURES["olmo3"].read(f.but(num_hidden_layers=4)).attention
        assert a is not None and a.windows == (6, 6, 6, None)
        assert [(r.base, r.scaling is not None) for r in a.ropes if r] == [near, near, near, far], said
    f = Fields({"model_type": "olmo3", **FAMILIES["olmo3"][1], "rope_parameters": {**yarn, "rope_theta": 7.0}}, "c")
    with pytest.raises(ModelFormatError, match="an object for each of full_attention and sliding_attention"):
        ARCHITECTURES["olmo3"].read(f)


def test_settings_of_hybrid_files_that_are_no_model(tmp_path: Path) -> None:
    for case, key, value, told in (
        ("granitemoehybrid-0", "granitehybrid.attention.head_count_kv", [0, 2], "has 2 numbers, expected 3"),
        ("granitemoehybrid-0", "granitehybrid.attention.head_count_kv", [0, 2, 1], "one number of heads, or 0"),
        ("granitemoehybrid-0", "granitehybrid.ssm.inner_size", 65, "expected a multiple of the width 32"),
        ("granite-0", "granite.rope.scaling.finetuned", False, "no code for other than True"),
        ("apertus-0", "xielu.alpha_p", [0.5], "expected a number for each layer"),
        ("jamba-0", "jamba.attention.head_count_kv", [2, 2, 0], "expected each so-many-th"),
    ):
        good, bad = tmp_path / f"{case}.gguf", tmp_path / "bad.gguf"
        if not good.exists():
            folder_to_gguf(folder_of(case, tmp_path / case), good)
        with gguf.read(good) as file:
            tensors = {name: tensor.read() for name, tensor in file.tensors.items()}
            gguf.write(bad, {**file.metadata, key: value}, tensors)
        with pytest.raises(ModelFormatError, match=told):
            load(bad, "cpu")


def test_multipliers_are_in_the_weights_of_a_file(tmp_path: Path) -> None:
    """As llama.cpp's readers of Falcon-H1 take them: embeddings and the output matrix part where theirs differ."""
    folder = folder_of("falcon_h1-0", tmp_path / "a", tie_word_embeddings=True)
    held = {name: np.array(array) for name, array in safetensors.load(folder).items() if name != "lm_head.weight"}
    safetensors.save(folder / "model.safetensors", held)
    folder_to_gguf(folder, tmp_path / "m.gguf")
    with gguf.read(tmp_path / "m.gguf") as file:
        table, head = (np.asarray(file.tensors[f"{name}.weight"].read()) for name in ("token_embd", "output"))
    settings = FAMILIES["falcon_h1"][0]
    ratio = settings["lm_head_multiplier"] / settings["embedding_multiplier"]
    np.testing.assert_allclose(head, table * ratio, rtol=1e-6)


@pytest.mark.parametrize("case", ["gpt_bigcode-0", "deepseek_v2-1", "stablelm-0"])
def test_packed_files_of_a_folder(case: str, tmp_path: Path) -> None:
    """Tables of positions and latent keys may be packed too; a function of the packed weights is the loaded model."""
    folder_to_gguf(folder_of(case, tmp_path / "a"), tmp_path / "m.gguf", "q8_0")
    with load(tmp_path / "m.gguf", "cpu", context=64, engine="numpy") as model:
        got = model.logits(IDS_ASKED)
    assert error(got[-1, :16], np.asarray(CASES[case]["logits"])) < 1e-3  # 8 bits a weight
    function, weights = trainable(tmp_path / "m.gguf")
    assert error(function(weights, np.asarray(IDS_ASKED, np.int32)[None])[0], got) <= LIMIT


def test_what_gguf_has_no_place_for_is_refused(tmp_path: Path) -> None:
    folder = folder_of("gpt_neox-1", tmp_path / "a")
    with pytest.raises(ModelFormatError, match="GGUF has no place for what the settings say of qkv_bias: False"):
        folder_to_gguf(folder, tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()
    (tmp_path / "m.gguf").write_bytes(b"another file")
    with pytest.raises(ModelFormatError, match="GGUF has no place"):
        folder_to_gguf(folder, tmp_path / "m.gguf")
    assert (tmp_path / "m.gguf").read_bytes() == b"another file"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "m.gguf"]
    folder_to_gguf(folder_of("granite-0", tmp_path / "b"), tmp_path / "g.gguf")
    with gguf.read(tmp_path / "g.gguf") as file:
        tensors = {name: tensor.read() for name, tensor in file.tensors.items()}
        gguf.write(tmp_path / "h.gguf", {**file.metadata, "granite.attention.sinks": 3}, tensors)
    with pytest.raises(ModelFormatError, match=r"granite\.attention\.sinks is 3; rlx has no code for it"):
        load(tmp_path / "h.gguf", "cpu")


def test_the_page_of_families_is_what_the_command_found() -> None:
    held = json.loads(FOUND.read_text())["families"]
    assert {kind: len(cases) for kind, cases in held.items()} == {kind: len(cases) for kind, cases in EVERY.items()}
    assert all(right(case) for cases in held.values() for case in cases)
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_table_of_architectures_is_that_of_their_modules() -> None:
    folder = Path(architectures.__file__).parent
    names = {path.stem for path in folder.glob("*.py")} - {"__init__", "base"}
    found = {name: list(importlib.import_module(f"{architectures.__name__}.{name}").ARCHITECTURES) for name in names}
    assert found == {name: names.split() for name, names in architectures._MODULES.items()}
    assert len(ARCHITECTURES) == sum(map(len, found.values()))


def test_an_activation_that_stands_behind_filters_too(tmp_path: Path) -> None:
    """That of OLMo Hybrid's class, whose filters rlx has with silu alone."""
    with pytest.raises(ModelFormatError, match="hidden_act is 'gelu', expected 'silu'"):
        load(folder_of("olmo_hybrid-1", tmp_path, hidden_act="gelu"), "cpu")
