"""MiniLM's network with random weights, written three times over the same arrays: in rlx, in torch and as ONNX file.

Sizes are those of all-MiniLM-L6-v2: 6 layers of width 384, 12 heads, inner width 1536. Inputs are token ids and a mask
of padding; the result is the mean over the tokens, normalized to length 1. All is in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.models.bert import BertConfig, encoder_graph
from rlx.runtime import Session, Weights

Array = npt.NDArray[Any]
Encode = Callable[[Array, Array], Array]

CONFIG = BertConfig(
    vocab_size=30522,
    hidden_size=384,
    num_hidden_layers=6,
    num_attention_heads=12,
    intermediate_size=1536,
    max_position_embeddings=512,
    type_vocab_size=2,
    layer_norm_eps=1e-12,
    hidden_act="gelu",
)


def random_weights(seed: int = 0) -> dict[str, Array]:
    """Random weights of the encoder's shapes: normal with deviation 0.05; those of norms around 1."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in CONFIG.weight_shapes().items():
        values = rng.standard_normal(shape, np.float32) * np.float32(0.05)
        made[name] = values + np.float32(1) if name.endswith("LayerNorm.weight") else values
    return made


def inputs(batch: int, length: int, seed: int = 1) -> tuple[Array, Array]:
    """Random token ids, and a mask with an eighth of every second row as padding at its end."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, CONFIG.vocab_size, (batch, length)).astype(np.int32)
    mask = np.ones((batch, length), bool)
    mask[1::2, -length // 8 :] = False
    return ids, mask


def rlx_encoder(weights: Mapping[str, Array], batch: int, length: int, device: str = "cpu") -> Encode:
    """The network in rlx."""
    session = Session(device)
    shared = Weights(session.device)
    exe = session.compile(encoder_graph(CONFIG, batch, length), weights=shared)
    exe.set_params(weights)

    def encode(ids: Array, mask: Array) -> Array:
        return exe.run({"ids": ids, "mask": mask})["embedding"]

    return encode


def torch_encoder(weights: Mapping[str, Array], threads: int) -> Encode:
    """The network in torch, eager, with its fused attention."""
    import torch
    from torch.nn import functional as F

    torch.set_num_threads(threads)
    w = {name: torch.from_numpy(value) for name, value in weights.items()}
    heads, d = CONFIG.num_attention_heads, CONFIG.hidden_size

    def norm(x: Any, name: str) -> Any:
        return F.layer_norm(x, (d,), w[f"{name}.weight"], w[f"{name}.bias"], CONFIG.layer_norm_eps)

    def linear(x: Any, name: str) -> Any:
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    @torch.inference_mode()
    def encode(ids: Array, mask: Array) -> Array:
        batch, length = ids.shape
        tokens, kept = torch.from_numpy(ids).long(), torch.from_numpy(mask)
        x = F.embedding(tokens, w["embeddings.word_embeddings.weight"])
        x = x + w["embeddings.position_embeddings.weight"][:length]
        x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        keys = kept[:, None, None, :]
        for layer in range(CONFIG.num_hidden_layers):
            p = f"encoder.layer.{layer}."
            q, k, v = (
                linear(x, f"{p}attention.self.{n}").view(batch, length, heads, -1).transpose(1, 2)
                for n in ("query", "key", "value")
            )
            mixed = (
                F.scaled_dot_product_attention(q, k, v, attn_mask=keys)
                .transpose(1, 2)
                .reshape(batch, length, d)
            )
            x = norm(linear(mixed, f"{p}attention.output.dense") + x, f"{p}attention.output.LayerNorm")
            wide = F.gelu(linear(x, f"{p}intermediate.dense"))
            x = norm(linear(wide, f"{p}output.dense") + x, f"{p}output.LayerNorm")
        kept = kept[:, :, None].float()
        pooled = (x * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
        return np.asarray(F.normalize(pooled, dim=1).numpy())

    return encode


def onnxruntime_encoder(weights: Mapping[str, Array], threads: int) -> Encode:
    """The network of `onnx_model` in ONNX Runtime, with all its graph optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    model = onnx_model(weights).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def encode(ids: Array, mask: Array) -> Array:
        return np.asarray(session.run(None, {"ids": ids.astype(np.int64), "mask": mask.astype(np.int64)})[0])

    return encode


class Writer:
    """Collects ONNX nodes and initializers."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._constants: dict[tuple[bytes, str, tuple[int, ...]], str] = {}

    def __call__(self, op: str, *names: str, **attributes: Any) -> str:
        from onnx import helper

        out = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(names), [out], **attributes))
        return out

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        from onnx import numpy_helper

        array = np.asarray(value, dtype)
        key = (array.tobytes(), array.dtype.str, array.shape)
        if key not in self._constants:
            self._constants[key] = f"c{len(self._constants)}"
            self.initializers.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

    def weight(self, name: str, value: Array) -> str:
        from onnx import numpy_helper

        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name


def onnx_model(weights: Mapping[str, Array]) -> Any:
    """The ONNX graph as an exporter writes it: MatMul and Add, Softmax, Erf for gelu, LayerNormalization, opset 17."""
    from onnx import TensorProto, helper

    w = Writer()
    heads, d = CONFIG.num_attention_heads, CONFIG.hidden_size
    ints = np.int64

    def norm(x: str, name: str) -> str:
        scale, bias = (w.weight(f"{name}.{n}", weights[f"{name}.{n}"]) for n in ("weight", "bias"))
        return w("LayerNormalization", x, scale, bias, axis=-1, epsilon=CONFIG.layer_norm_eps)

    def linear(x: str, name: str) -> str:
        product = w("MatMul", x, w.weight(f"{name}.T", weights[f"{name}.weight"].T))
        return w("Add", w.weight(f"{name}.bias", weights[f"{name}.bias"]), product)

    length = w("Gather", w("Shape", "ids"), w.constant([1], ints), axis=0)
    places = w(
        "Slice",
        w.weight("places", weights["embeddings.position_embeddings.weight"]),
        w.constant([0], ints),
        length,
    )
    words = w("Gather", w.weight("words", weights["embeddings.word_embeddings.weight"]), "ids")
    kind = w.constant(weights["embeddings.token_type_embeddings.weight"][0])
    x = norm(w("Add", w("Add", words, kind), places), "embeddings.LayerNorm")
    wide_mask = w("Cast", w("Unsqueeze", "mask", w.constant([1, 2], ints)), to=TensorProto.FLOAT)
    added = w("Mul", w("Sub", w.constant(1.0), wide_mask), w.constant(np.finfo(np.float32).min))

    def split(t: str, perm: list[int]) -> str:
        return w("Transpose", w("Reshape", t, w.constant([0, 0, heads, d // heads], ints)), perm=perm)

    for layer in range(CONFIG.num_hidden_layers):
        p = f"encoder.layer.{layer}."
        q = split(linear(x, f"{p}attention.self.query"), [0, 2, 1, 3])
        k = split(linear(x, f"{p}attention.self.key"), [0, 2, 3, 1])
        v = split(linear(x, f"{p}attention.self.value"), [0, 2, 1, 3])
        scores = w("Div", w("MatMul", q, k), w.constant(math.sqrt(d // heads)))
        mixed = w("MatMul", w("Softmax", w("Add", scores, added), axis=-1), v)
        mixed = w("Reshape", w("Transpose", mixed, perm=[0, 2, 1, 3]), w.constant([0, 0, d], ints))
        x = norm(w("Add", linear(mixed, f"{p}attention.output.dense"), x), f"{p}attention.output.LayerNorm")
        wide = linear(x, f"{p}intermediate.dense")
        erf = w("Add", w("Erf", w("Div", wide, w.constant(math.sqrt(2)))), w.constant(1.0))
        wide = w("Mul", w("Mul", wide, erf), w.constant(0.5))
        x = norm(w("Add", linear(wide, f"{p}output.dense"), x), f"{p}output.LayerNorm")
    kept = w("Cast", w("Unsqueeze", "mask", w.constant([2], ints)), to=TensorProto.FLOAT)
    total = w("ReduceSum", w("Mul", x, kept), w.constant([1], ints), keepdims=0)
    count = w("ReduceSum", kept, w.constant([1], ints), keepdims=0)
    pooled = w("Div", total, count)
    size = w("ReduceL2", pooled, axes=[1], keepdims=1)
    w.nodes.append(helper.make_node("Div", [pooled, size], ["embedding"]))
    graph = helper.make_graph(
        w.nodes,
        "minilm",
        [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "length"]) for n in ("ids", "mask")],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", d])],
        w.initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
