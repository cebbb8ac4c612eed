"""Qwen3.5, most of whose layers have the gated delta rule, beside NumPy's float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rlx.errors import GraphError, ModelFormatError, ModelWarning
from rlx.formats import gguf, safetensors
from rlx.formats.gguf.convert import folder_to_gguf
from rlx.formats.gguf.to_folder import gguf_to_folder
from rlx.models import load
from rlx.models.language.architectures import architecture_of
from rlx.models.language.config import Fields
from tests.models.language.tiny import nmse
from tests.models.tiny import formula

F64 = npt.NDArray[np.float64]
D, KEYS, HEADS, KEY, VALUE, SIZE = 24, 2, 6, 8, 4, 8
CONFIG: dict[str, Any] = {
    "model_type": "qwen3_5_text", "vocab_size": 60, "hidden_size": D, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": SIZE, "intermediate_size": 40, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "full_attention_interval": 3, "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": KEYS, "linear_num_value_heads": HEADS, "linear_key_head_dim": KEY,
    "linear_value_head_dim": VALUE, "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0,
                                                        "partial_rotary_factor": 0.5},
}  # fmt: skip
TOKENS = [3, 17, 17, 42, 5, 58, 31, 8, 9, 10, 22, 46, 3, 51, 0, 29, 33, 12, 7, 40, 41]


EXPERTS, USED, INNER, SHARED = 5, 2, 16, 20
MIXED: dict[str, Any] = {
    **CONFIG, "model_type": "qwen3_5_moe_text", "num_experts": EXPERTS, "num_experts_per_tok": USED,
    "moe_intermediate_size": INNER, "shared_expert_intermediate_size": SHARED,
}  # fmt: skip


def weights(mixed: bool = False) -> dict[str, npt.NDArray[np.float32]]:
    if mixed:
        held = {n: a for n, a in weights().items() if ".mlp." not in n}
        shapes = {"gate": (EXPERTS, D), "shared_expert_gate": (1, D)}
        wide = {"shared_expert": SHARED} | {f"experts.{e}": INNER for e in range(EXPERTS)}
        for name, inner in wide.items():
            shapes |= {f"{name}.{part}_proj": (inner, D) for part in ("gate", "up")} | {
                f"{name}.down_proj": (D, inner)
            }
        for i in range(3):
            for part, shape in shapes.items():
                n = f"model.layers.{i}.mlp.{part}.weight"
                held[n] = formula(n, shape, 0.4)
        return held
    return _dense()


def _dense() -> dict[str, npt.NDArray[np.float32]]:
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (60, D), "norm.weight": (D,)}
    mixed, inner = 2 * KEYS * KEY + HEADS * VALUE, HEADS * VALUE
    for i in range(3):
        p = f"layers.{i}"
        shapes |= {f"{p}.{n}.weight": (D,) for n in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{p}.mlp.{n}_proj.weight": (40, D) for n in ("gate", "up")} | {
            f"{p}.mlp.down_proj.weight": (D, 40)
        }
        if i == 2:
            rows = {"q": 2 * 4 * SIZE, "k": 2 * SIZE, "v": 2 * SIZE}
            shapes |= {f"{p}.self_attn.{n}_proj.weight": (r, D) for n, r in rows.items()}
            shapes |= {f"{p}.self_attn.{n}_norm.weight": (SIZE,) for n in "qk"}
            shapes[f"{p}.self_attn.o_proj.weight"] = (D, 4 * SIZE)
            continue
        p += ".linear_attn"
        shapes |= {f"{p}.in_proj_qkv.weight": (mixed, D), f"{p}.in_proj_z.weight": (inner, D),
                   f"{p}.in_proj_b.weight": (HEADS, D), f"{p}.in_proj_a.weight": (HEADS, D),
                   f"{p}.conv1d.weight": (mixed, 1, 4), f"{p}.dt_bias": (HEADS,), f"{p}.A_log": (HEADS,),
                   f"{p}.norm.weight": (VALUE,), f"{p}.out_proj.weight": (D, inner)}  # fmt: skip
    return {
        f"model.{n}": formula(n, s, 0.4, 1.0 if "linear_attn.norm" in n else 0.0) for n, s in shapes.items()
    }


def write(folder: Path, **changed: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changed}))
    safetensors.save(folder / "model.safetensors", weights())
    return folder


def write_gguf(path: Path, experts: bool = False) -> None:
    """As llama.cpp converts it: the value heads of a key head stand apart, norms have 1 added."""
    order = np.arange(HEADS).reshape(KEYS, -1).T.reshape(-1)

    def tiled(a: Any, size: int, axis: int = 0) -> Any:
        return np.take(a, (order[:, None] * size + np.arange(size)).reshape(-1), axis)

    tensors: dict[str, Any] = {}
    stacks: dict[str, list[Any]] = {}
    for name, a in weights(experts).items():
        if ".experts." in name:
            layer, _, part = name.removeprefix("model.layers.").partition(".mlp.experts.")
            kind = part.split(".")[1].removesuffix("_proj")
            stacks.setdefault(f"blk.{layer}.ffn_{kind}_exps.weight", []).append(a)
            continue
        rest = name.partition("linear_attn.")[2]
        if rest.startswith(("in_proj_qkv", "conv1d")):
            a = np.concatenate([a[: 2 * KEYS * KEY], tiled(a[2 * KEYS * KEY :], VALUE)])
        elif rest.startswith(("in_proj_z", "out_proj")):
            a = tiled(a, VALUE, 0 if rest.startswith("in_proj") else 1)
        elif rest.startswith(("in_proj_b", "in_proj_a", "dt_bias", "A_log")):
            a = tiled(a, 1)
        a = a[:, 0] if rest == "conv1d.weight" else -np.exp(a) if rest == "A_log" else a
        a = a + 1 if name.endswith("norm.weight") and not rest else a
        name = name.removeprefix("model.")
        for theirs, ours in {
            "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
            "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
            "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
            "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
            "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
            "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
            "linear_attn.conv1d": "ssm_conv1d", "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.A_log": "ssm_a",
            "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
            "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp",
            "mlp.gate.": "ffn_gate_inp.", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
            "layers.": "blk.", "embed_tokens": "token_embd",
        }.items():  # fmt: skip
            name = name.replace(theirs, ours)
        a = a[0] if "ffn_gate_inp_shexp" in name else a
        tensors["output_norm.weight" if name == "norm.weight" else name] = np.ascontiguousarray(a)
    c, arch = CONFIG, "qwen35moe" if experts else "qwen35"
    tensors |= {name: np.stack(parts) for name, parts in stacks.items()}
    more = {"expert_count": EXPERTS, "expert_used_count": USED, "expert_feed_forward_length": INNER,
            "expert_shared_feed_forward_length": SHARED} if experts else {"feed_forward_length": 40}  # fmt: skip
    gguf.write(path, {"general.architecture": arch, **{f"{arch}.{k}": v for k, v in {
        **more,
        "block_count": 3, "context_length": 64, "embedding_length": D,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": SIZE,
        "attention.value_length": SIZE, "attention.layer_norm_rms_epsilon": c["rms_norm_eps"],
        "rope.freq_base": 1000.0, "rope.dimension_count": SIZE // 2, "rope.dimension_sections": [1, 1, 0, 0],
        "full_attention_interval": 3, "ssm.conv_kernel": 4, "ssm.state_size": KEY, "ssm.group_count": KEYS,
        "ssm.time_step_rank": HEADS, "ssm.inner_size": HEADS * VALUE,
    }.items()}}, tensors)  # fmt: skip


def logits(tokens: list[int], experts: bool = False) -> F64:
    """The logits after each token, one token after the other, from the paper's equation."""
    w = {n.removeprefix("model."): a.astype(np.float64) for n, a in weights(experts).items()}
    n = len(tokens)

    def norm(x: F64, name: str, more: float = 1.0) -> F64:
        size = np.sqrt((x * x).mean(-1, keepdims=True) + CONFIG["rms_norm_eps"])
        return np.asarray(x / size * (more + w[f"{name}.weight"]))

    def sigmoid(x: F64) -> F64:
        return np.asarray(1 / (1 + np.exp(-x)))

    def turned(x: F64) -> F64:
        a, b, rest = x[..., :2], x[..., 2:4], x[..., 4:]
        angles = np.outer(np.arange(n), 1000.0 ** -np.array([0, 0.5]))[:, None]
        c, s = np.cos(angles), np.sin(angles)
        return np.concatenate([a * c - b * s, b * c + a * s, rest], -1)

    def attention(x: F64, p: str) -> F64:
        both = (x @ w[f"{p}.q_proj.weight"].T).reshape(n, 4, 2, SIZE)
        q, gate = both[:, :, 0], both[:, :, 1]
        k, v = ((x @ w[f"{p}.{m}_proj.weight"].T).reshape(n, 2, SIZE) for m in "kv")
        q, k = turned(norm(q, f"{p}.q_norm")), turned(norm(k, f"{p}.k_norm"))
        k, v = (np.repeat(t, 2, 1) for t in (k, v))
        scores = np.where(np.tri(n, dtype=bool), np.einsum("ihd,jhd->hij", q, k) / np.sqrt(SIZE), -np.inf)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hij,jhd->ihd", e / e.sum(-1, keepdims=True), v) * sigmoid(gate)
        return np.asarray(mixed.reshape(n, -1) @ w[f"{p}.o_proj.weight"].T)

    def delta(x: F64, p: str) -> F64:
        mixed = np.pad(x @ w[f"{p}.in_proj_qkv.weight"].T, ((3, 0), (0, 0)))
        mixed = sum(mixed[i : i + n] * w[f"{p}.conv1d.weight"][:, 0, i] for i in range(4))
        mixed = mixed * sigmoid(mixed)
        q, k, v = np.split(mixed, [KEYS * KEY, 2 * KEYS * KEY], -1)
        q, k = (t.reshape(n, KEYS, KEY).repeat(HEADS // KEYS, 1) for t in (q, k))
        q, k = (t / np.sqrt((t * t).sum(-1, keepdims=True) + 1e-6) for t in (q, k))
        v = v.reshape(n, HEADS, VALUE)
        write = sigmoid(x @ w[f"{p}.in_proj_b.weight"].T)
        step = np.log1p(np.exp(x @ w[f"{p}.in_proj_a.weight"].T + w[f"{p}.dt_bias"]))
        decay = np.exp(-np.exp(w[f"{p}.A_log"]) * step)
        state, made = np.zeros((HEADS, VALUE, KEY)), np.empty((n, HEADS, VALUE))
        for t in range(n):
            state = state * decay[t][:, None, None]
            wrong = v[t] - np.einsum("hvk,hk->hv", state, k[t])
            state = state + np.einsum("h,hv,hk->hvk", write[t], wrong, k[t])
            made[t] = np.einsum("hvk,hk->hv", state, q[t]) / np.sqrt(KEY)
        gate = (x @ w[f"{p}.in_proj_z.weight"].T).reshape(n, HEADS, VALUE)
        made = norm(made, f"{p}.norm", 0.0) * gate * sigmoid(gate)
        return np.asarray(made.reshape(n, -1) @ w[f"{p}.out_proj.weight"].T)

    def mlp(x: F64, p: str) -> F64:
        gate, up = (x @ w[f"{p}.{m}_proj.weight"].T for m in ("gate", "up"))
        return np.asarray((gate * sigmoid(gate) * up) @ w[f"{p}.down_proj.weight"].T)

    def mixed_experts(x: F64, p: str) -> F64:
        made = sigmoid(x @ w[f"{p}.shared_expert_gate.weight"].T) * mlp(x, f"{p}.shared_expert")
        parts = np.exp(x @ w[f"{p}.gate.weight"].T)
        for row in range(n):
            chosen = np.argsort(-parts[row])[:USED]
            for e in chosen:
                share = parts[row, e] / parts[row, chosen].sum()
                made[row] += share * mlp(x[row], f"{p}.experts.{e}")
        return made

    x = w["embed_tokens.weight"][tokens]
    for i in range(3):
        p = f"layers.{i}"
        before = norm(x, f"{p}.input_layernorm")
        x = x + (attention(before, f"{p}.self_attn") if i == 2 else delta(before, f"{p}.linear_attn"))
        after = norm(x, f"{p}.post_attention_layernorm")
        x = x + (mixed_experts if experts else mlp)(after, f"{p}.mlp")
    return np.asarray(norm(x, "norm") @ w["embed_tokens.weight"].T)


@pytest.mark.late("vulkan")
def test_logits_and_tokens_are_those_of_float64(device: str, tmp_path: Path) -> None:
    want = logits(TOKENS)
    with load(write(tmp_path), device, context=48) as model:
        assert nmse(model.logits(TOKENS), want) <= 1e-11
        follow, made = list(model.tokens(TOKENS[:9], 6)), TOKENS[:9]
        for token in follow:
            assert token == logits(made)[-1].argmax()
            made = [*made, token]
        model.decoder.reset()
        parts = [model.decoder.logits(np.array(TOKENS[a:b], np.int32)) for a, b in ((0, 1), (1, 6), (6, 21))]
        assert nmse(np.concatenate(parts), want) <= 1e-11
        with pytest.raises(GraphError, match="not recurrent"):
            list(model.tokens(TOKENS, 3, lookup=True))


def test_a_file_whose_heads_are_tiled(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf")
    with load(tmp_path / "x.gguf", "cpu", context=32) as model:
        assert nmse(model.logits(TOKENS), logits(TOKENS)) <= 1e-11
    with gguf.read(tmp_path / "x.gguf") as file, pytest.raises(ModelFormatError, match="is not written"):
        gguf_to_folder(file, tmp_path / "out")
    with pytest.raises(ModelFormatError, match=r"qwen3_5_text' is not one of .*, llama, .*, mixtral, "):
        folder_to_gguf(write(tmp_path / "folder"), tmp_path / "y.gguf")


def test_experts_beside_a_shared_one(tmp_path: Path) -> None:
    want = logits(TOKENS, experts=True)
    (write(tmp_path) / "config.json").write_text(json.dumps(MIXED))
    safetensors.save(tmp_path / "model.safetensors", weights(mixed=True))
    write_gguf(tmp_path / "x.gguf", experts=True)
    for path in (tmp_path, tmp_path / "x.gguf"):
        with load(path, "cpu", context=32) as model:
            assert nmse(model.logits(TOKENS), want) <= 1e-11


def test_a_gate_of_a_shared_expert_with_too_many_rows(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", experts=True)
    with gguf.read(tmp_path / "x.gguf") as file:
        metadata, tensors = file.metadata, {n: t.read() for n, t in file.tensors.items()}
    name = "blk.1.ffn_gate_inp_shexp.weight"
    gguf.write(tmp_path / "y.gguf", metadata, tensors | {name: np.stack([tensors[name]] * 3)})
    with pytest.raises(ModelFormatError, match=rf"{name}' has shape \(3, {D}\), expected one row"):
        load(tmp_path / "y.gguf", "cpu", context=32)


def test_a_folder_of_a_model_that_sees_too(tmp_path: Path) -> None:
    (write(tmp_path) / "config.json").write_text(json.dumps(
        {"model_type": "qwen3_5", "text_config": CONFIG, "tie_word_embeddings": True}
    ))  # fmt: skip
    held = {f"model.language_{n}": a for n, a in weights().items()}
    safetensors.save(tmp_path / "model.safetensors", held | {"model.visual.x": np.zeros(3, np.float32)})
    with load(tmp_path, "cpu", context=32) as model:
        assert nmse(model.logits(TOKENS[:4]), logits(TOKENS[:4])) <= 1e-11


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"linear_num_value_heads": 5},
            "linear_num_value_heads is 5, expected a multiple of the 2 key heads",
        ),
        ({"layer_types": ["full_attention", "full_attention", "mamba"]}, "layer_types"),
        ({"linear_key_head_dim": 9}, "in_proj_qkv"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"model_type": "qwen3_5"}, "text_config is None"),
    ],
)
def test_settings_that_are_refused(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=message):
        load(write(tmp_path, **changed), "cpu")


@pytest.mark.parametrize(
    ("name", "value"), [("norm_topk_prob", False), ("mlp_only_layers", [1]), ("decoder_sparse_step", 2)]
)
def test_settings_of_experts_that_the_class_passes_over(name: str, value: Any) -> None:
    """Qwen3.5 with experts has them in every layer, and their weights sum to 1 (transformers 5.24)."""
    fields = Fields({**MIXED, name: value}, "config.json")
    with pytest.warns(ModelWarning, match=f"{name} is .*, which has no effect"):
        found = architecture_of(fields).read(fields)
    assert found.experts is not None and found.experts.renormalize and not found.dense
