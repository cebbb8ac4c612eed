"""A tiny BERT folder as Hugging Face would publish one, with weights that a formula gives: the same on every machine
and with every version of NumPy."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

CONFIG: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 48,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "pad_token_id": 0,
}
WORDS = (
    "the a cat dog boat river stone bread green cold sleeps runs melts under over near and not slowly again "
    "moun ##tain wind ##mill . , ?"
).split()
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Lengths from none to beyond the limit, out of order, one twice, one with unknown words, one of other scripts.
SENTENCES = (
    "The cat sleeps near the cold river.",
    "",
    "A mountain melts slowly, and the windmill runs again over the green stone bread boat.",
    "dog",
    "Xylophones?",
    "dog",
    "the cat and the dog and the boat and the stone and the bread and the river and the mountain and the windmill "
    "and the cold green cat again and again and again and again and again.",
    "Не the ünder 犬",
)


def formula(name: str, shape: tuple[int, ...], scale: float, shift: float = 0.0) -> npt.NDArray[np.float32]:
    """Numbers spread over shift ± scale by an integer hash of their place, all exact in f32."""
    count = int(np.prod(shape))
    x = np.arange(count, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(zlib.crc32(name.encode()))
    x = (x ^ (x >> np.uint64(15))) * np.uint64(2246822519) % np.uint64(1 << 32)
    x = (x ^ (x >> np.uint64(13))) * np.uint64(3266489917) % np.uint64(1 << 32)
    unit = (x >> np.uint64(20)).astype(np.float64) / 2048 - 1
    return (unit * scale + shift).astype(np.float32).reshape(shape)


def shapes(config: dict[str, Any] = CONFIG) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights, written out from the published format."""
    d, wide = config["hidden_size"], config["intermediate_size"]
    made: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], d),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], d),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], d),
        "embeddings.LayerNorm.weight": (d,),
        "embeddings.LayerNorm.bias": (d,),
    }
    for i in range(config["num_hidden_layers"]):
        for name, out, into in (
            ("attention.self.query", d, d),
            ("attention.self.key", d, d),
            ("attention.self.value", d, d),
            ("attention.output.dense", d, d),
            ("intermediate.dense", wide, d),
            ("output.dense", d, wide),
        ):
            made[f"encoder.layer.{i}.{name}.weight"] = (out, into)
            made[f"encoder.layer.{i}.{name}.bias"] = (out,)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            made[f"encoder.layer.{i}.{name}.weight"] = (d,)
            made[f"encoder.layer.{i}.{name}.bias"] = (d,)
    return made


def weights(config: dict[str, Any] = CONFIG) -> dict[str, npt.NDArray[np.float32]]:
    return {
        name: formula(name, shape, 0.25, 1.0 if name.endswith("LayerNorm.weight") else 0.0)
        for name, shape in shapes(config).items()
    }


def write_safetensors(path: Path, tensors: dict[str, npt.NDArray[Any]]) -> None:
    """Writes a safetensors file without rlx, by code written from the format's description."""
    names = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "float64": "F64"}
    header, data = {}, b""
    for name, array in tensors.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": names[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.save(str(path))


def write_model(
    folder: Path,
    *,
    pooling: str | None = "mean",
    normalize: bool = True,
    max_length: int | None = None,
    half: str | None = None,
    **config: Any,
) -> Path:
    """A whole folder. `pooling=None` leaves the sentence-transformers files out; `half` stores the weights in "f16"
    or "bf16"; further arguments change config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    full = {**CONFIG, **config}
    (folder / "config.json").write_text(json.dumps(full))
    kept = {None: np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[half]
    write_safetensors(folder / "model.safetensors", {n: w.astype(kept) for n, w in weights(full).items()})
    write_tokenizer(folder / "tokenizer.json")
    if pooling is not None:
        kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
        paths = ["", "1_Pooling", "2_Normalize"]
        listed = [
            {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{kind}"}
            for i, kind in enumerate(kinds)
        ]
        (folder / "modules.json").write_text(json.dumps(listed))
        (folder / "1_Pooling").mkdir(exist_ok=True)
        modes = {
            "word_embedding_dimension": full["hidden_size"],
            "pooling_mode_cls_token": pooling == "cls",
            "pooling_mode_mean_tokens": pooling == "mean",
            "pooling_mode_max_tokens": False,
        }
        (folder / "1_Pooling/config.json").write_text(json.dumps(modes))
        if max_length is not None:
            limits = {"max_seq_length": max_length, "do_lower_case": False}
            (folder / "sentence_bert_config.json").write_text(json.dumps(limits))
    return folder
