"""Encoders of GGUF files beside `transformers` in float64, whose weights the files hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.formats import gguf
from rlx.formats.gguf.encoders import _BLOCK
from rlx.models import load
from tests.models import gguf_encoders as made
from tests.outside import outside

pytestmark = pytest.mark.judged
SETTINGS: dict[str, Any] = {
    "vocab_size": 48, "hidden_size": made.D, "num_hidden_layers": made.LAYERS, "num_attention_heads": made.HEADS,
    "intermediate_size": made.WIDE, "layer_norm_eps": made.EPS,
}  # fmt: skip
NAMES = {**{f".{theirs}.": f".{ours}." for theirs, ours in _BLOCK.items()}, "encoder.layer.": "blk."}
NAMES |= {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
    "classifier.dense": "cls", "classifier.out_proj": "cls.output",
}  # fmt: skip
NOMIC = {
    ".self_attn.q_proj.": ".attn_q.", ".self_attn.k_proj.": ".attn_k.", ".self_attn.v_proj.": ".attn_v.",
    ".self_attn.o_proj.": ".attn_output.", ".post_attention_layernorm.": ".attn_output_norm.",
    ".post_mlp_layernorm.": ".layer_output_norm.", ".mlp.gate_proj.": ".ffn_gate.", ".mlp.up_proj.": ".ffn_up.",
    ".mlp.down_proj.": ".ffn_down.", "layers.": "blk.",
}  # fmt: skip


def _model(kind: str, **more: Any) -> Any:
    torch, transformers = outside("torch"), outside("transformers")
    torch.manual_seed(0)
    name, _, task = kind.partition(":")
    config = getattr(transformers, f"{name}Config")(**{**SETTINGS, **more}, attn_implementation="eager")
    model = getattr(transformers, f"{name}{task or 'Model'}")(config)
    with torch.no_grad():
        for values in model.parameters():
            values.add_(torch.randn_like(values) * 0.2)
    return model.double().eval()


def _write(path: Path, arch: str, model: Any, pooling: str, offset: int = 0) -> None:
    base = path.with_name("base.gguf")
    made.write(base, arch, pooling)
    tensors = {}
    for name, values in model.state_dict().items():
        for prefix in ("roberta.", "nomic_bert."):
            name = name.removeprefix(prefix)
        if name.startswith(("pooler.", "embeddings.position_ids", "embeddings.token_type_ids", "rotary_emb")):
            continue
        array = values.float().numpy()
        for theirs, ours in (NAMES | NOMIC).items():
            name = name.replace(theirs, ours)
        tensors[name] = array[offset:] if name == "position_embd.weight" else array
    with gguf.read(base) as file:
        gguf.write(path, {**file.metadata}, tensors)


def _single(model: Any) -> Any:
    return model.float().double()  # what f32 keeps of the weights


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("arch", ["bert", "nomic-bert"])
def test_embeddings(device: str, arch: str, pooling: str, tmp_path: Path) -> None:
    torch = outside("torch")
    kind, more = ("Bert", {"max_position_embeddings": made.POSITIONS}) if arch == "bert" else (
        "NomicBert", {"max_position_embeddings": made.POSITIONS, "type_vocab_size": 2,
                      "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}})  # fmt: skip
    model = _single(_model(kind, **more))
    _write(tmp_path / "x.gguf", arch, model, pooling)
    with load(tmp_path / "x.gguf", device) as ours:
        ids = ours.tokens("the cat sleeps near the cold river").tolist()
        with torch.no_grad():
            states = model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
        exact = made.embedding(states, pooling)
        got = ours.embed("the cat sleeps near the cold river")
    assert ((got - exact) ** 2).sum() <= 1e-11


def test_scores_of_a_reranker(device: str, tmp_path: Path) -> None:
    torch = outside("torch")
    more = {"max_position_embeddings": made.POSITIONS + 2, "type_vocab_size": 1, "pad_token_id": 1, "num_labels": 1}
    model = _single(_model("XLMRoberta:ForSequenceClassification", **more))
    _write(tmp_path / "x.gguf", "bert", model, "rank", offset=2)
    with load(tmp_path / "x.gguf", device) as ours:
        got = ours.rank("a cat", ["the dog runs", "stone bread"])
        for score, document in zip(got, ("the dog runs", "stone bread"), strict=True):
            ids, _ = ours._tokenizer.pair("a cat", document)
            with torch.no_grad():
                exact = float(model(input_ids=torch.tensor(np.asarray(ids)[None], dtype=torch.int64)).logits[0, 0])
            assert abs(score - exact) <= 1e-5 * max(1.0, abs(exact))
