"""The settings of each architecture beside what llama.cpp makes of them: the table of settings_sweep.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import ModelFormatError
from rlx.formats import gguf
from rlx.formats.gguf.encoders import GgufEncoder
from rlx.formats.gguf.keys import LLAMA_CPP, READ
from rlx.formats.gguf.model import GgufModel
from rlx.packed import PackedArray
from tests.formats.gguf import architectures as made
from tests.formats.gguf.settings_sweep import FILE, FROZEN, LOGITS, scales

TABLE = json.loads(FILE.read_text())
# Where rlx goes by the model as it was published, or by the word of the file, and llama.cpp does not.
KNOWN = {
    "yarn, rope.scaling.yarn_beta": "llama.cpp reads no key of these of any of the architectures",
    "attention.sliding_window=4 of phi3": "llama.cpp leaves Phi-3's window out",
    "attention.layer_norm_rms_epsilon=0.1 of qwen35": "the delta rule's own norm has 1e-6 in the published models",
    "yarn of gpt-oss": "the published model does not round the bounds of YaRN, llama.cpp does",
    'yarn, rope.scaling.type="none" of gemma2': "llama.cpp scales layers with windows although the type is none",
}
BASE = 'yarn, rope.scaling.type="yarn"'


def test_the_list_is_that_of_llama_cpp() -> None:
    assert TABLE["version"] == LLAMA_CPP
    assert {arch: sorted(READ[arch]) for arch in READ} == {
        arch: sorted(row["reads"]) for arch, row in TABLE["architectures"].items()
    }
    assert all(key in TABLE["keys"] for rules in READ.values() for key in rules)


def test_no_setting_is_passed_over_silently() -> None:
    for arch, row in TABLE["architectures"].items():
        for name, word in row["cases"].items():
            if "DIFFERS" in word:
                kind = "yarn" if name.startswith("yarn") and arch == "gpt-oss" else name
                assert any(f"{kind} of {arch}".startswith(known) for known in KNOWN), (arch, name)
            # What changes nothing in llama.cpp and is no setting of rlx alone is no reason to refuse.
            if word == "same; refused":
                assert name.partition("=")[0].removeprefix("yarn, ") in (*READ[arch], *_OWN), (arch, name)


_OWN = ("rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor")


def config(path: Path, arch: str, changed: dict[str, Any]) -> dict[str, Any]:
    with gguf.read(made.write(path, arch, changed)) as file:
        return (GgufEncoder if arch in made.ENCODERS else GgufModel)(file).config


def test_windows_tell_olmo_3(tmp_path: Path) -> None:
    """llama.cpp has one architecture for both; layers with windows are all but every fourth, without scaling."""
    read = config(tmp_path / "x.gguf", "olmo2", {"attention.sliding_window": 4})
    assert read["model_type"] == "olmo3" and read["sliding_window"] == 4
    assert set(read["rope_parameters"]) == {"full_attention", "sliding_attention"}
    assert config(tmp_path / "y.gguf", "olmo2", {"attention.sliding_window": 0})["model_type"] == "olmo2"


@pytest.mark.parametrize(
    ("arch", "key", "value"),
    [
        ("llama", "attention.causal", False), ("llama", "expert_count", 2), ("qwen2", "nextn_predict_layers", 1),
        ("qwen3moe", "expert_group_count", 2), ("qwen3", "rope.scaling.attn_factor", 2.0),
        ("gemma2", "rope.freq_base_swa", 50.0), ("gemma3", "rope.dimension_count_swa", 8),
        ("gemma3", "attention.sliding_window_pattern", 1), ("gpt-oss", "attention.key_length_swa", 8),
        ("gpt-oss", "attention.sliding_window_pattern", [True]),
        ("qwen35", "rope.dimension_sections", [4, 0, 0, 0]), ("qwen35moe", "attention.recurrent_layers", [True, False]),
        ("mamba", "ssm.dt_b_c_rms", True), ("bert", "attention.causal", True), ("gpt2", "nextn_predict_layers", 1),
        ("nomic-bert", "rope.scaling.attn_factor", 2.0), ("jina-bert-v2", "expert_count", 2),
    ],
)  # fmt: skip
def test_a_setting_without_code_is_refused_by_name(arch: str, key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError) as caught:
        config(tmp_path / "x.gguf", arch, {key: value})
    said = str(caught.value)
    assert f"{arch}.{key} is " in said and ("no code for" in said or "expected" in said)


@pytest.mark.parametrize(
    ("arch", "key", "value"),
    [
        ("llama", "logit_scale", 2.0), ("llama", "expert_count", 0), ("qwen3moe", "expert_weights_scale", 2.5),
        ("gemma2", "rope.freq_base_swa", 1000.0), ("gemma3", "attention.key_length_swa", made.SIZE),
        ("phi3", "attention.sliding_window", 0), ("olmo2", "attention.sliding_window", 0),
        ("llama", "ssm.dt_b_c_rms", True),
        ("bert", "nextn_predict_layers", 0), ("nomic-bert", "rope.scaling.factor", 1.0),
        ("mamba", "ssm.dt_b_c_rms", False),
        ("qwen35", "rope.dimension_sections", [2, 1, 1, 0]),
    ],
)  # fmt: skip
def test_a_setting_that_changes_nothing_is_taken(arch: str, key: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    assert config(path, arch, {key: value}) == config(path, arch, {})


@pytest.mark.parametrize("name", FROZEN)
def test_logits_beside_llama_cpp(name: str, tmp_path: Path) -> None:
    """Patterns of windows, and scales of products. Gemma's gelu is a table of halves in llama.cpp."""
    arch, changed, scaled = FROZEN[name]
    path = made.write(tmp_path / "x.gguf", arch, changed, scales(arch) if scaled else None)
    exact = np.array(json.loads(LOGITS.read_text())[name])
    with rlx.models.load(path, "cpu", context=64, engine="numpy") as model:
        got = model.logits(made.IDS)[-1].astype(np.float64)
    assert ((got - exact) ** 2).sum() <= (1e-6 if arch.startswith("gemma") else 1e-11) * (exact**2).sum()


@pytest.mark.parametrize("arch", made.ARCHITECTURES)
@pytest.mark.sample(6)
def test_scales_of_products(arch: str, tmp_path: Path) -> None:
    """A file's scales beside weights that were multiplied by them in float64, packed and plain."""
    held, factors, told, folded = made.tensors(arch), scales(arch), {}, {}
    for name, factor in factors.items():
        weight = name.replace(".scale", ".weight")
        array: Any = held[weight]
        if array.shape[-1] % 32 == 0:
            told[weight] = rlx.quantize(array, "q8_0")
            array = told[weight].dequantize()
        folded[weight] = (array.astype(np.float64) * factor.reshape(-1, *[1] * (array.ndim - 1))).astype(np.float32)
    got, exact = (_numbers(made.write(tmp_path / "x.gguf", arch, {}, more), arch) for more in (told | factors, folded))
    assert ((got - exact) ** 2).sum() <= 1e-11 * (exact**2).sum()
    if arch in made.DECODERS and arch != "gpt2":  # whose matrices are turned, as floats
        with gguf.read(made.write(tmp_path / "x.gguf", arch, {}, told | factors)) as file:
            model = GgufModel(file)
            assert model.scales and all(isinstance(model.read(name), PackedArray) for name in model.scales)


def _numbers(path: Path, arch: str) -> Any:
    if arch in made.ENCODERS:
        with rlx.models.load(path, "cpu", engine="numpy") as model:
            return model.embed("The cat sleeps near the cold river.").astype(np.float64)
    with rlx.models.load(path, "cpu", context=16, engine="numpy") as model:
        return model.logits(made.IDS[:8]).astype(np.float64)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("output.scale", np.ones(1, np.float32), "beside no matrix of a layer"),
        ("blk.0.attn_norm.scale", np.ones(1, np.float32), "beside no matrix of a layer"),
        ("blk.0.attn_q.scale", np.ones(2, np.float32), r"is f32\[2\], expected f32\[1\]"),
        ("blk.0.ffn_up_exps.scale", np.ones(1, np.float32), r"is f32\[1\], expected f32\[4\]"),
    ],
)
def test_scales_that_fit_nothing(name: str, value: Any, message: str, tmp_path: Path) -> None:
    path = made.write(tmp_path / "x.gguf", "qwen3moe", {}, {name: value})
    with gguf.read(path) as file, pytest.raises(ModelFormatError, match=message):
        GgufModel(file)


def test_a_type_of_single_bits() -> None:
    """Q1_0 as llama.cpp's library decodes and packs it: the mean magnitude, and a set bit for what is 0 or above."""
    x = np.concatenate([np.linspace(-3, 4, 126), [0.0, -0.0]]).astype(np.float32)
    packed = rlx.quantize(x.reshape(1, -1), "q1_0")
    raw = packed.to_gguf().reshape(-1)
    assert raw.size == 18 and float(raw[:2].view(np.float16)[0]) == float(np.float16(np.abs(x).mean()))
    np.testing.assert_array_equal(np.unpackbits(raw[2:], bitorder="little"), x >= 0)
    scale = np.float32(raw[:2].view(np.float16)[0])
    np.testing.assert_array_equal(packed.dequantize()[0], np.where(x >= 0, scale, -scale))
