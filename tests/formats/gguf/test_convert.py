"""Folders to GGUF files and back: names beside the package gguf, numbers and settings through both directions."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import rlx
from rlx.errors import DTypeError, ModelFormatError, ModelWarning
from rlx.formats import gguf, safetensors
from rlx.formats.gguf import convert, to_folder
from rlx.formats.gguf.model import GgufModel, halves_of_pairs
from rlx.formats.gguf.names import BY_MODEL_TYPE, FAMILIES, Family
from rlx.formats.huggingface import ModelFolder
from rlx.formats.tokenizer.language import from_folder
from rlx.packed import PackedArray
from tests.models.tiny import formula
from tests.outside import outside

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0, "tie_word_embeddings": False,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 64},
}  # fmt: skip
GEMMA: dict[str, Any] = {
    **LLAMA, "model_type": "gemma2", "head_dim": 16, "tie_word_embeddings": True, "sliding_window": 8,
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "rope_scaling": None,
    "query_pre_attn_scalar": 16, "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
MOE: dict[str, Any] = {
    **LLAMA, "model_type": "qwen3_moe", "head_dim": 32, "num_experts": 3, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "norm_topk_prob": True,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
}  # fmt: skip
GPT2: dict[str, Any] = {
    "model_type": "gpt2", "vocab_size": 300, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128,
    "n_inner": 256, "layer_norm_epsilon": 1e-05, "tie_word_embeddings": True,
}  # fmt: skip


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    if config["model_type"] == "gpt2":
        made = {"wte.weight": (300, 64), "wpe.weight": (128, 64), "ln_f.weight": (64,), "ln_f.bias": (64,)}
        parts = {"ln_1": (64,), "ln_2": (64,), "attn.c_attn": (64, 192), "attn.c_proj": (64, 64)}
        parts |= {"mlp.c_fc": (64, 256), "mlp.c_proj": (256, 64)}
        for i in range(2):
            made |= {f"h.{i}.{n}.weight": s for n, s in parts.items()}
            made |= {f"h.{i}.{n}.bias": s[-1:] for n, s in parts.items()}
        return made
    d, wide = config["hidden_size"], config["intermediate_size"]
    size = config.get("head_dim", d // config["num_attention_heads"])
    q, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    parts = {"input_layernorm": (d,), "post_attention_layernorm": (d,), "self_attn.q_proj": (q, d)}
    parts |= {"self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d), "self_attn.o_proj": (d, q)}
    if config["model_type"] == "qwen3_moe":
        parts |= {"self_attn.q_norm": (size,), "self_attn.k_norm": (size,), "mlp.gate": (3, d)}
        for e in range(3):
            parts |= {f"mlp.experts.{e}.{n}_proj": (32, d) for n in ("gate", "up")}
            parts[f"mlp.experts.{e}.down_proj"] = (d, 32)
    else:
        parts |= {"mlp.gate_proj": (wide, d), "mlp.up_proj": (wide, d), "mlp.down_proj": (d, wide)}
    if config["model_type"] == "gemma2":
        parts |= {"pre_feedforward_layernorm": (d,), "post_feedforward_layernorm": (d,)}
    made = {f"model.layers.{i}.{n}.weight": s for i in range(2) for n, s in parts.items()}
    made |= {"model.embed_tokens.weight": (config["vocab_size"], d), "model.norm.weight": (d,)}
    return made if config["tie_word_embeddings"] else {**made, "lm_head.weight": (config["vocab_size"], d)}


def tokenizer() -> dict[str, Any]:
    from rlx.formats.gguf.pretokenizers import PRE_TOKENIZERS
    from rlx.formats.tokenizer.decoding import byte_letters

    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokens = ["<s>", "<|im_end|>", *byte_letters(), "th", "the", "Ġthe"]
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": t, "special": True, **flags} for i, t in enumerate(tokens[:2])],
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS["llama-bpe"].pre_tokenizer(),
        "post_processor": {
            "type": "TemplateProcessing", "single": single, "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
            "vocab": {t: i for i, t in enumerate(tokens)}, "merges": ["t h", "th e", "Ġ the"],
        },
    }  # fmt: skip


def folder(path: Path, config: dict[str, Any], text: bool = False) -> dict[str, Any]:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    arrays = {name: formula(name, shape, 1.0) for name, shape in shapes(config).items()}
    safetensors.save(path / "model.safetensors", arrays)
    if text:
        (path / "tokenizer.json").write_text(json.dumps(tokenizer()))
        (path / "tokenizer_config.json").write_text(
            json.dumps({"bos_token": "<s>", "eos_token": "<|im_end|>", "chat_template": "{{ messages }}"})
        )
    return arrays


@pytest.mark.judged
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.model_type)
def test_names_are_those_of_the_package(family: Family) -> None:
    package = outside("gguf")
    arch = next(k for k, v in package.MODEL_ARCH_NAMES.items() if v == family.architecture)
    known = package.get_tensor_name_map(arch, 4)
    prefix = "transformer." if family.model_type == "gpt2" else ""
    for stem in [*(f"{family.layers}.3.{part}" for part in family.block), *family.top]:
        if ".experts." in stem or stem.endswith("dt_bias"):  # names that the package has for parts of them alone
            continue
        suffix = "" if stem.endswith(("A_log", ".D", ".sinks")) else ".weight"
        expected = known.get_name(f"{prefix}{stem}" if stem != "lm_head" else stem)
        ending = ".weight" if stem.endswith(".sinks") else suffix
        assert family.gguf_name(f"{stem}{suffix}") == f"{expected}{ending}", stem
        assert family.folder_name(f"{expected}{ending}") == f"{stem}{suffix}"


@pytest.mark.judged
def test_rows_stand_as_the_package_turns_them() -> None:
    """The order of q's rows as convert_hf_to_gguf of llama.cpp defines it, written out."""
    w = np.arange(48 * 3).reshape(48, 3)
    turned = w.reshape(4, 2, 6, 3).swapaxes(1, 2).reshape(48, 3)
    assert np.array_equal(w[convert.pairs_of_halves(48, 4)], turned)
    back = halves_of_pairs(48, 4)
    assert back is not None and np.array_equal(turned[back], w)


@pytest.mark.parametrize("config", [LLAMA, GEMMA, MOE, GPT2], ids=lambda c: c["model_type"])
def test_numbers_and_settings_come_back(config: dict[str, Any], tmp_path: Path) -> None:
    arrays = folder(tmp_path / "a", config)
    convert.folder_to_gguf(tmp_path / "a", tmp_path / "m.gguf")
    with gguf.read(tmp_path / "m.gguf") as file:
        model = GgufModel(file)
        assert {n: s for n, (s, _) in model.kinds.items()} == shapes(config)
        for name, value in arrays.items():
            found: Any = model.read(name)
            assert np.allclose(found, value, rtol=0, atol=1.2e-7 if config is GEMMA else 0), name
        for key, value in config.items():
            if value is not None:
                assert model.config[key] == value, key
        to_folder.gguf_to_folder(file, tmp_path / "b", "f32")
    back = ModelFolder(tmp_path / "b").tensors()
    assert all(np.allclose(back[name], value, rtol=0, atol=1.2e-7) for name, value in arrays.items())


@pytest.mark.parametrize("to", ["f16", "q8_0", "q4_k"])
def test_packed_weights(to: str, tmp_path: Path) -> None:
    config = {**LLAMA, "vocab_size": 8, "hidden_size": 256, "num_hidden_layers": 1, "rope_scaling": None}
    config["tie_word_embeddings"] = to == "q4_k"
    arrays = {n: a for n, a in folder(tmp_path / "a", config).items() if "layers.1." not in n}
    arrays = {
        n: a
        for n, a in arrays.items()
        if to != "q4_k" or a.ndim == 1 or "k_proj" in n or "down" in n or "tok" in n
    }
    safetensors.save(tmp_path / "a" / "model.safetensors", arrays)
    notes = convert.folder_to_gguf(tmp_path / "a", tmp_path / "m.gguf", to)
    down = "Q8_0" if to == "q4_k" else None
    assert [n for n in notes if "ffn_down" in n] == (
        [f"blk.0.ffn_down.weight is {down}: rows of 96 are no blocks of 256"] if down else []
    )
    with gguf.read(tmp_path / "m.gguf") as file:
        model = GgufModel(file)
        for name, value in arrays.items():
            found: Any = model.read(name)
            if value.ndim == 1:
                assert np.array_equal(found, value)
            elif to == "f16":
                assert np.array_equal(found, value.astype(np.float16))
            else:
                kind = "q8_0" if "down_proj" in name else to
                assert isinstance(found, PackedArray) and found.dtype.name == kind
                assert np.array_equal(found.data, rlx.quantize(value, kind).data), name


def test_a_tokenizer_and_its_template_go_along(tmp_path: Path) -> None:
    folder(tmp_path / "a", LLAMA, text=True)
    assert convert.folder_to_gguf(tmp_path / "a", tmp_path / "m.gguf", "q8_0") == []
    with gguf.read(tmp_path / "m.gguf") as file:
        assert file.metadata["tokenizer.ggml.pre"] == "llama-bpe"
        assert file.metadata["tokenizer.ggml.tokens"][-1] == "[PAD299]"  # type: ignore[index]
        to_folder.gguf_to_folder(file, tmp_path / "b")
        found = [from_folder(tmp_path / "a"), GgufModel(file).tokenizer(), from_folder(tmp_path / "b")]
    for text in ("the theory\n", "", "<|im_end|>ü", "  x"):
        for parse in (False, True):
            ids = [t.encode(text, parse_special=parse) for t in found]
            assert ids[0] == ids[1] == ids[2] and ids[0][0] == 0
    assert all(t.special.bos == 0 and t.special.eos == 1 and t.special.ends == {1} for t in found)
    assert all(t.chat_template == "{{ messages }}" for t in found)


@pytest.mark.judged
def test_transformers_reads_the_tokenizer_that_is_written(tmp_path: Path) -> None:
    transformers = outside("transformers")
    folder(tmp_path / "a", LLAMA, text=True)
    convert.folder_to_gguf(tmp_path / "a", tmp_path / "m.gguf", "q8_0")
    with gguf.read(tmp_path / "m.gguf") as file:
        to_folder.gguf_to_folder(file, tmp_path / "b")
        ours = GgufModel(file).tokenizer()
    known = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "b")
    for text in ("the theory\n", "", "<|im_end|>ü 🙂", "  x ", "日本 123456"):
        ids = ours.encode(text, parse_special=True)
        assert known(text)["input_ids"] == ids
        assert known.decode(ids, clean_up_tokenization_spaces=False) == ours.decode(ids, special=True)


SIGN = {"type": "Metaspace", "replacement": "▁", "split": False}


@pytest.mark.parametrize(
    "normalizer, cut, expected",
    [
        (None, {**SIGN, "prepend_scheme": "never"}, False), (None, {**SIGN, "prepend_scheme": "first"}, True),
        ({"type": "Prepend", "prepend": "▁"}, None, True), (None, None, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("written", ["never", "always"])
def test_a_space_before_a_text(normalizer: Any, cut: Any, expected: bool, written: str, tmp_path: Path) -> None:
    """GGUF says of it what is done to a text, whatever a decoder does to tokens."""
    spec = tokenizer()
    tokens = ["<s>", "<|im_end|>", "▁", "a", "▁a"]
    spec |= {"normalizer": normalizer, "pre_tokenizer": cut, "decoder": {**SIGN, "prepend_scheme": written}}
    spec["model"] |= {"vocab": {t: i for i, t in enumerate(tokens)}, "merges": ["▁ a"]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    made = convert.tokenizer_metadata(tmp_path, 5)
    assert made["tokenizer.ggml.add_space_prefix"] is expected


def test_a_large_model_is_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = folder(tmp_path / "a", LLAMA)
    convert.folder_to_gguf(tmp_path / "a", tmp_path / "m.gguf")
    monkeypatch.setattr(to_folder, "SHARD_BYTES", 60_000)
    with gguf.read(tmp_path / "m.gguf") as file:
        to_folder.gguf_to_folder(file, tmp_path / "b", "f32")
    assert len(list((tmp_path / "b").glob("model-*.safetensors"))) > 3
    back = ModelFolder(tmp_path / "b").tensors()
    assert all(np.array_equal(back[name], value) for name, value in arrays.items())


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "nonesuch"}, "not one of those that are written as GGUF"),
    ({"model_type": "bert"}, "holds a sentence encoder, which `rlx embed` takes"),
    ({"num_hidden_layers": "2"}, "expected a number"),
    ({"rope_scaling": {"rope_type": "longrope"}}, "default, linear, llama3 and yarn"),
    ({"rope_scaling": {"rope_type": "llama3"}}, "four numbers"),
    ({"num_attention_heads": 5}, "rows for 5 heads"),
    ({"quantization_config": {"quant_method": "gptq"}}, "quantized already"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; GGUF has no place"),
    ({"is_causal": False}, "is_causal is False"),
    ({"num_attention_heads": 0}, "head_dim is|0 heads"),
    ({"partial_rotary_factor": "x"}, "partial_rotary_factor 'x'"),
    ({"rope_scaling": [1]}, "expected an object"),
    ({"rope_parameters": "odd", "rope_scaling": None}, "expected an object"),
    ({"rope_parameters": {"rope_type": "default"}}, "say different things"),
    ({"rope_scaling": {"full_attention": {"rope_type": "linear", "factor": 2}}}, "expected an object for all"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 2}}, "yarn is written to GGUF with"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4, "truncate": False}}, "yarn is written to GGUF with"),
    ({"partial_rotary_factor": 0.5}, "llama turns whole heads"),
    ({"model_type": "gemma2"}, "lm_head.weight holds other numbers than the embeddings; GGUF has no place for it"),
]


@pytest.mark.parametrize("changes, words", REFUSED)
def test_folders_that_are_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder(tmp_path / "a", LLAMA)
    (tmp_path / "a" / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    with pytest.raises(ModelFormatError, match=words):
        convert.folder_to_gguf(tmp_path / "a", tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists() and len(list(tmp_path.iterdir())) == 1


def test_an_output_matrix_that_is_not_the_embeddings_is_kept(tmp_path: Path) -> None:
    """Although the settings say that they are one; alone it is the embeddings, and the same numbers are not kept."""
    tied = {**LLAMA, "tie_word_embeddings": True, "rope_scaling": None}
    arrays = folder(tmp_path / "a", {**tied, "tie_word_embeddings": False})
    (tmp_path / "a" / "config.json").write_text(json.dumps(tied))
    with pytest.warns(ModelWarning, match="tie_word_embeddings is true, but 'lm_head.weight' holds other numbers"):
        convert.folder_to_gguf(tmp_path / "a", tmp_path / "both.gguf")
    head, table = arrays.pop("lm_head.weight"), arrays["model.embed_tokens.weight"]
    safetensors.save(tmp_path / "a" / "model.safetensors", {**arrays, "lm_head.weight": table})
    convert.folder_to_gguf(tmp_path / "a", tmp_path / "same.gguf")
    del arrays["model.embed_tokens.weight"]
    safetensors.save(tmp_path / "a" / "model.safetensors", {**arrays, "lm_head.weight": head})
    convert.folder_to_gguf(tmp_path / "a", tmp_path / "alone.gguf")
    for name, want in (("both", (table, head)), ("same", (table, None)), ("alone", (head, None))):
        with gguf.read(tmp_path / f"{name}.gguf") as file:
            for tensor, numbers in zip(("token_embd.weight", "output.weight"), want, strict=True):
                assert (tensor in file.tensors) == (numbers is not None)
                assert numbers is None or np.array_equal(file.tensors[tensor].read(), numbers)
    safetensors.save(tmp_path / "a" / "model.safetensors", {**arrays, "model.embed_tokens.weight": table})
    (tmp_path / "a" / "config.json").write_text(json.dumps({**tied, "tie_word_embeddings": False}))
    with pytest.raises(ModelFormatError, match=r"tie_word_embeddings is false, and there is no lm_head\.weight"):
        convert.folder_to_gguf(tmp_path / "a", tmp_path / "none.gguf")


def test_settings_that_a_class_passes_over_do_not_reach_the_file(tmp_path: Path) -> None:
    scaling = {**LLAMA["rope_scaling"], "rope_type": "yarn"}
    folder(tmp_path / "a", LLAMA)
    for changes, key, value in (
        ({"rope_scaling": None, "partial_rotary_factor": 0.5}, "rope.dimension_count", 16),
        ({"rope_scaling": scaling, "original_max_position_embeddings": 32},
         "rope.scaling.original_context_length", 32),
    ):  # fmt: skip
        (tmp_path / "a" / "config.json").write_text(json.dumps({**LLAMA, **changes}))
        warned = pytest.warns(ModelWarning, match="no effect") if "partial_rotary_factor" in changes else nullcontext()
        with warned:
            convert.folder_to_gguf(tmp_path / "a", tmp_path / "m.gguf")
        with gguf.read(tmp_path / "m.gguf") as file:
            assert file.metadata[f"llama.{key}"] == value


def test_gemma_3_is_written_by_its_layers_of_full_attention() -> None:
    far = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    config = {
        "num_hidden_layers": 7, "num_attention_heads": 4, "hidden_size": 64, "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": far},
    }  # fmt: skip
    family = BY_MODEL_TYPE["gemma3_text"]

    def refuse(what: str) -> NoReturn:
        raise ModelFormatError(what)

    assert convert._fitting_settings(config, family, refuse) == far
    near = {"rope_type": "default", "rope_theta": 5.0}
    for changed, words in (
        ({"query_pre_attn_scalar": 8}, "query_pre_attn_scalar is 8"),
        ({"layer_types": ["full_attention"] * 7}, "layer_types is"),
        ({"sliding_window_pattern": 3}, "sliding_window_pattern is 3"),
        ({"rope_parameters": {"sliding_attention": near, "full_attention": far}}, "of sliding_attention are"),
    ):
        with pytest.raises(ModelFormatError, match=words):
            convert._fitting_settings({**config, **changed}, family, refuse)


def test_dtypes_that_are_refused(tmp_path: Path) -> None:
    folder(tmp_path / "a", LLAMA)
    for to, words in (
        ("i32", "F32, F16, BF16, Q4_0, .*, not with I32$"), ("int4", "not with INT4"), ("iq2_xxs", "not with IQ2_XXS"),
        ("foo", "not with 'FOO'$"), ("q4_k_m", "llama.cpp's name of a mixture, and Q4_K makes"),
    ):  # fmt: skip
        with pytest.raises(DTypeError, match=words):
            convert.folder_to_gguf(tmp_path / "a", tmp_path / "m.gguf", to)
    convert.folder_to_gguf(tmp_path / "a", tmp_path / "m.gguf")
    with gguf.read(tmp_path / "m.gguf") as file:
        for to in ("q8_0", "foo"):
            with pytest.raises(DTypeError, match=f"a folder holds f32, f16, bf16, got '?{to}"):
                to_folder.gguf_to_folder(file, tmp_path / "b", to)
        with pytest.raises(FileExistsError):
            to_folder.gguf_to_folder(file, tmp_path / "a")


MODELS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"general.architecture": "whale"}, {}, "rlx reads"),
    ({"general.architecture": 3}, {}, "expected a str"),
    ({"llama.block_count": 2**31}, {}, "expected at most"),
    ({"llama.block_count": 0}, {}, "expected 1 to"),
    ({"llama.block_count": -1}, {}, "expected at most"),
    ({"llama.attention.head_count": 0}, {}, "expected 1 or more"),
    ({"llama.attention.head_count": [4, 2]}, {}, "a number for each layer"),
    ({"llama.attention.head_count": [[4], [4]]}, {}, "a list of list"),
    ({"llama.attention.head_count": 5}, {}, "5 heads"),
    ({"llama.attention.value_length": 4}, {}, "one size only"),
    ({"llama.rope.dimension_count": 99}, {}, "at most the 16"),
    ({"llama.embedding_length": 2.5}, {}, "expected an? int"),
    ({"llama.attention.causal": False}, {}, "no code for other than True"),
    ({"llama.rope.scaling.attn_factor": 2.0}, {}, "no code for other than 1.0"),
    ({"llama.rope.dimension_count": 7}, {"rope_freqs.weight": np.ones(3, np.float32)}, "no factor above 0"),
    ({}, {"rope_freqs.weight": np.ones(3, np.float32)}, "no factor above 0"),
    ({}, {"rope_freqs.weight": np.full(8, np.nan, np.float32)}, "no factor above 0"),
    ({}, {"rope_freqs.weight": np.arange(1, 9, dtype=np.float32)}, "Llama 3's scaling"),
    ({}, {"blk.0.mystery.weight": np.ones(3, np.float32)}, "not one that"),
    ({}, {"token_embd.weight": np.ones(3, np.float32)}, "no matrix"),
]


@pytest.mark.parametrize("changes, tensors, words", MODELS)
def test_files_that_contradict_themselves(
    changes: dict[str, Any], tensors: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder(tmp_path / "a", LLAMA)
    convert.folder_to_gguf(tmp_path / "a", tmp_path / "m.gguf")
    with gguf.read(tmp_path / "m.gguf") as file:
        gguf.write(tmp_path / "x.gguf", {**file.metadata, **changes}, {**file.tensors, **tensors})
    with gguf.read(tmp_path / "x.gguf") as file, pytest.raises(ModelFormatError, match=words):
        read_all(file)


def test_experts_of_gpt_oss_keep_their_stack(tmp_path: Path) -> None:
    """GGUF's names of gpt-oss, whose gates stand apart from the others and whose sinks have an ending."""
    arch = "gpt-oss."
    keys = {"block_count": 1, "context_length": 64, "embedding_length": 32, "expert_feed_forward_length": 32}
    keys |= {
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.key_length": 16,
        "expert_count": 2,
    }
    keys |= {
        "expert_used_count": 1,
        "attention.sliding_window": 4,
        "rope.scaling.original_context_length": 16,
    }
    settings: dict[str, Any] = {f"{arch}{k}": v for k, v in keys.items()}
    settings |= {"general.architecture": "gpt-oss", f"{arch}attention.layer_norm_rms_epsilon": 1e-5}
    settings |= {f"{arch}rope.scaling.type": "yarn", f"{arch}rope.scaling.factor": 4.0}
    experts = rlx.quantize(formula("e", (2, 32, 32), 1.0), "mxfp4")
    tensors: dict[str, Any] = {
        "token_embd.weight": formula("t", (8, 32), 1.0), "blk.0.attn_sinks.weight": formula("s", (2,), 1.0),
        "blk.0.ffn_gate_exps.weight": experts, "blk.0.ffn_gate_exps.bias": formula("b", (2, 32), 1.0),
        "blk.0.ffn_gate_inp.weight": formula("r", (2, 32), 1.0),
        "blk.0.post_attention_norm.weight": np.ones(32, np.float32),
    }  # fmt: skip
    gguf.write(tmp_path / "m.gguf", settings, tensors)
    with gguf.read(tmp_path / "m.gguf") as file:
        model = GgufModel(file)
        block = "model.layers.0."
        assert set(model.kinds) == {
            "model.embed_tokens.weight", f"{block}self_attn.sinks", f"{block}mlp.experts.gate_proj.weight",
            f"{block}mlp.experts.gate_proj.bias", f"{block}mlp.router.weight",
            f"{block}post_attention_layernorm.weight",
        }  # fmt: skip
        found: Any = model.read(f"{block}mlp.experts.gate_proj.weight")
        assert found.shape == (2, 32, 32) and np.array_equal(found.data, experts.data)
        assert model.config["rope_scaling"]["truncate"] is False and model.config["num_local_experts"] == 2
        assert model.config["sliding_window"] == 4 and model.config["intermediate_size"] == 32
        with pytest.raises(ModelFormatError, match="is not written"):
            to_folder.gguf_to_folder(file, tmp_path / "b")


def read_all(file: gguf.GgufFile) -> None:
    model = GgufModel(file)
    for name in model.kinds:
        model.read(name)
