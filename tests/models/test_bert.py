"""The encoder's graph and its config: what is refused, and how well its memory is planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rlx
from rlx.errors import ModelFormatError, ShapeError
from rlx.ir import verify
from rlx.models.bert import BertConfig, encoder_graph
from tests.models.tiny import CONFIG, shapes

MINILM = {
    **CONFIG,
    "vocab_size": 30522,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "max_position_embeddings": 512,
}


def config(**changes: Any) -> BertConfig:
    return BertConfig.from_dict({**CONFIG, **changes}, "config.json")


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("size", [(1, 1), (1, 16), (8, 40)])
def test_graph(pooling: Any, size: tuple[int, int]) -> None:
    g = encoder_graph(config(), *size, pooling)
    verify(g)
    assert {n: t.shape for n, t in g.params.items()} == shapes()
    assert {n: str(t.type) for n, t in g.inputs.items()} == {
        "ids": f"i32[{size[0]},{size[1]}]",
        "mask": f"bool[{size[0]},{size[1]}]",
    }
    assert str(g.outputs["embedding"].type) == f"f32[{size[0]},24]"


@pytest.mark.parametrize("size", [(0, 16), (1, 0), (1, 41), (-1, 16)])
def test_sizes_that_are_none(size: tuple[int, int]) -> None:
    with pytest.raises(ShapeError, match=f"batch {size[0]}, length {size[1]}.*40 positions"):
        encoder_graph(config(), *size)


@pytest.mark.parametrize("size", [(1, 16), (8, 128), (32, 32), (32, 256), (1, 512)])
@pytest.mark.parametrize("storage", ["typed", "f32"])
def test_the_plan_of_minilm_is_within_a_hundredth_of_its_bound(size: tuple[int, int], storage: Any) -> None:
    g = encoder_graph(BertConfig.from_dict(MINILM, "config.json"), *size)
    with rlx.Session("cpu").compile(g, storage=storage) as exe:
        plan = exe.plan
    assert plan.max_live_bytes > 0
    assert plan.arena_bytes <= 1.01 * plan.max_live_bytes
    assert plan.arena_bytes < 0.2 * plan.no_reuse_bytes


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model_type", "roberta", "model_type is 'roberta', expected 'bert'"),
        ("model_type", None, "model_type is None"),
        ("hidden_size", None, "hidden_size is None, expected an integer from 1 to"),
        ("hidden_size", 25, "hidden_size is 25, expected a multiple of the 3 attention heads"),
        ("hidden_size", 1 << 40, "hidden_size is 1099511627776, expected an integer from 1 to 65,536"),
        ("num_hidden_layers", 10**9, "num_hidden_layers is 1000000000"),
        ("num_hidden_layers", 0, "num_hidden_layers is 0"),
        ("num_attention_heads", True, "num_attention_heads is True"),
        ("num_attention_heads", "3", "num_attention_heads is '3'"),
        ("vocab_size", 48.0, "vocab_size is 48.0"),
        ("vocab_size", 10**400, "vocab_size is 1000"),
        ("type_vocab_size", -2, "type_vocab_size is -2"),
        ("layer_norm_eps", 0.0, "layer_norm_eps is 0.0"),
        ("layer_norm_eps", "1e-12", "layer_norm_eps is '1e-12'"),
        ("layer_norm_eps", float("inf"), "layer_norm_eps is inf"),
        ("hidden_act", "swoosh", "hidden_act is 'swoosh', expected one of gelu"),
        ("hidden_act", ["gelu"], r"hidden_act is \['gelu'\]"),
        ("hidden_act", None, "hidden_act is None"),
        ("position_embedding_type", "relative_key", "position_embedding_type is 'relative_key'"),
        ("is_decoder", True, "is_decoder is True, expected false"),
        ("add_cross_attention", True, "add_cross_attention is True"),
    ],
    ids=lambda v: str(v)[:24],
)
def test_configs_that_are_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message) as caught:
        config(**{name: value})
    assert str(caught.value).startswith("config.json: ") and len(str(caught.value)) < 300


def test_a_config_that_lacks_a_size(tmp_path: Path) -> None:
    given = json.loads(json.dumps(CONFIG))
    del given["intermediate_size"]
    with pytest.raises(ModelFormatError, match="intermediate_size is None"):
        BertConfig.from_dict(given, "config.json")
