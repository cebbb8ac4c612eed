"""Folders of sparse, late-interaction, cross-encoder and classifier models around the tiny BERT, as
sentence-transformers 6, PyLate 3, Stanford's ColBERT and transformers write them; `task_folders.json` has what
sentence-transformers and the pipelines of transformers give for them, in float64. Made by hand, in an environment with
sentence-transformers 6.2.0, transformers 5.24.0 and torch 2.13.0:  python -m tests.models.task_folders"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.models.tiny import CONFIG, SENTENCES, SPECIAL, WORDS, formula, weights, write_safetensors

FROZEN = Path(__file__).with_suffix(".json")
TEXTS = (*SENTENCES[:4], SENTENCES[6], "a [MASK] Cat, unknownword.")
PAIRS = (
    ("the cat sleeps", "A dog runs over the cold river."), ("", "the boat"), ("stone", ""),
    (SENTENCES[6], SENTENCES[2]), ("bread?", SENTENCES[6]), (SENTENCES[6], SENTENCES[6]),
)  # fmt: skip
QUERIES = ("the cat", "the cat and the dog and the boat and the stone near the river", "")
DOCUMENTS = (SENTENCES[0], SENTENCES[6], "dog . , ?", "a unknownword cat")
PROMPTS = {"query": "the dog: ", "document": "bread stone ", "other": "cold "}
AGGREGATIONS = ("none", "simple", "first", "average", "max")
LABELS = ("O", "B-CAT", "I-CAT", "B-DOG", "I-DOG", "STONE")
_ST = "sentence_transformers."
_TYPES = {
    "Transformer": f"{_ST}base.modules.transformer.Transformer", "Dense": f"{_ST}base.modules.dense.Dense",
    "Normalize": f"{_ST}base.modules.normalize.Normalize",
    "SpladePooling": f"{_ST}sparse_encoder.modules.splade_pooling.SpladePooling",
    "MLMTransformer": f"{_ST}sparse_encoder.models.MLMTransformer",
    "MultiVectorMask": f"{_ST}multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
    "pylate": "pylate.models.Dense.Dense", "old Transformer": f"{_ST}models.Transformer",
}  # fmt: skip
_NORMALIZE = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}


def _dense(wide: int, out: int, **more: Any) -> dict[str, Any]:
    return {"in_features": wide, "out_features": out, "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity", **_NORMALIZE, **more}  # fmt: skip


def _expansion(**more: Any) -> dict[str, Any]:
    return {"query_expansion": {"strategy": "fixed", "attend": False, "token": None, "length": 12, **more}}


_OLD_DENSE = {k: v for k, v in _dense(24, 8).items() if k not in _NORMALIZE}
_PYLATE = {"query_prefix": "[unused0] ", "document_prefix": "stone ", "query_length": 10, "document_length": 14,
           "attend_to_expansion_tokens": False, "do_query_expansion": True, "model_type": "ColBERT",
           "similarity_fn_name": "MaxSim"}  # fmt: skip

# Of each folder: its task, the modules behind the Transformer, settings of the files, and further settings.
FOLDERS: dict[str, dict[str, Any]] = {
    "splade": {"task": "sparse", "modules": [("SpladePooling", {"pooling_strategy": "max"})]},
    "splade, sum of double logarithms, prompt": {
        "task": "sparse", "config": {"hidden_act": "gelu_new"},
        "st": {"prompts": PROMPTS, "default_prompt_name": "other"},
        "modules": [("SpladePooling", {"pooling_strategy": "sum", "activation_function": "log1p_relu"})],
    },
    "splade of a limited number, an old folder": {
        "task": "sparse", "first": "MLMTransformer", "settings": {"max_seq_length": 9, "do_lower_case": False},
        "modules": [("SpladePooling", {"pooling_strategy": "max", "word_embedding_dimension": 48})],
        "st": {"max_active_dims": 5},
    },
    "splade with a matrix of its own": {
        "task": "sparse", "modules": [("SpladePooling", {})], "own": True, "config": {"tie_word_embeddings": False},
    },
    "splade with a matrix that should be tied": {"task": "sparse", "modules": [("SpladePooling", {})], "own": True},
    "cross-encoder": {"task": "scores"},
    "cross-encoder without an activation, prompt": {
        "task": "scores", "st": {"activation_fn": "torch.nn.modules.linear.Identity",
                                 "prompts": PROMPTS, "default_prompt_name": "query"},
    },
    "cross-encoder of three labels": {"task": "scores", "labels": ["A", "B", "C"]},
    "plain folder, activation of config.json": {
        "task": "scores", "plain": True, "labels": ["only"],
        "config": {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}},
        "tokenizer": {"model_max_length": 21},
    },
    "plain folder, old activation": {
        "task": "scores", "plain": True,
        "config": {"sbert_ce_default_activation_function": "torch.nn.modules.activation.GELU"},
    },
    "several labels at once": {
        "task": "scores", "plain": True, "labels": ["x", "y", "z"],
        "config": {"problem_type": "multi_label_classification"},
    },
    "a regression": {"task": "scores", "plain": True, "labels": ["v"], "config": {"problem_type": "regression"}},
    "two labels without names": {"task": "scores", "plain": True, "labels": 2},
    "late interaction": {
        "task": "tokens", "modules": [("Dense", _dense(24, 8)), ("MultiVectorMask", {"skiplist_words": [".", ","]}),
                                      ("Normalize", _NORMALIZE)],
    },
    "queries filled up": {
        "task": "tokens", "settings": {**_expansion(), "document_length": 11}, "st": {"prompts": PROMPTS},
        "modules": [("Dense", _dense(24, 8)), ("MultiVectorMask", {"skiplist_tasks": ["query", "document"],
                                                                   "skiplist_words": ["the", "?", "zzz"]}),
                    ("Normalize", _NORMALIZE)],
    },
    "queries filled up that are seen": {
        "task": "tokens", "settings": _expansion(attend=True, token="bread", length=9),
        "modules": [("Dense", _dense(24, 8, bias=True, activation_function="torch.nn.modules.activation.Tanh")),
                    ("Dense", _dense(8, 8, use_residual=True)), ("Normalize", _NORMALIZE), ("MultiVectorMask", {})],
        "st": {"similarity_fn_name": "meanmaxsim"},
    },
    "long queries": {
        "task": "tokens", "settings": {**_expansion(strategy="min"), "query_length": 15},
        "modules": [("MultiVectorMask", {"keep_only_token_ids": [7, 8, 9, 2]})],
    },
    "long queries without a limit": {
        "task": "tokens", "settings": {**_expansion(strategy="min"), "max_seq_length": 14},
        "modules": [("Normalize", _NORMALIZE), ("MultiVectorMask", {})],
    },
    "queries not filled up": {
        "task": "tokens", "settings": {"query_length": 6, "document_length": 30}, "modules": [("Dense", _dense(24, 8))],
    },
    "PyLate 3": {"task": "tokens", "first": "old Transformer", "modules": [("pylate", _OLD_DENSE)], "st": _PYLATE,
                 "settings": {"max_seq_length": 14, "do_lower_case": False}, "marks": ["[unused0] "]},
    "PyLate 3, queries as they are": {
        "task": "tokens", "first": "old Transformer", "modules": [("pylate", _OLD_DENSE)],
        "st": {**_PYLATE, "do_query_expansion": False, "skiplist_words": ["cat"], "prompts": PROMPTS},
        "settings": {"max_seq_length": 20, "do_lower_case": False},
    },
    "Stanford's ColBERT": {
        "task": "tokens", "plain": True, "config": {"architectures": ["HF_ColBERT"]}, "linear": 6,
        "metadata": {"query_token_id": "[unused0]", "doc_token_id": "again", "query_maxlen": 11, "doc_maxlen": 17,
                     "mask_punctuation": True, "attend_to_mask_tokens": False},
    },
    "labels of tokens": {"task": "labels", "plain": True, "labels": list(LABELS)},
}  # fmt: skip
_CLASSES = {"sparse": "BertForMaskedLM", "scores": "BertForSequenceClassification", "tokens": "BertModel",
            "labels": "BertForTokenClassification"}  # fmt: skip


def _vocabulary(given: dict[str, Any]) -> dict[str, int]:
    words = [*SPECIAL, *WORDS]
    words[-3:-3] = []
    return {word: i for i, word in enumerate([*words, "[unused0]"])}


def _tokenizer(given: dict[str, Any]) -> dict[str, Any]:
    vocabulary = _vocabulary(given)

    def special(name: str, kind: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": kind}}

    parts: list[dict[str, Any]] = [{"Sequence": {"id": s, "type_id": i}} for i, s in enumerate("AB")]
    single = [special("[CLS]", 0), parts[0], special("[SEP]", 0)]
    added = [
        {"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for i, name in enumerate(SPECIAL)
    ]  # fmt: skip
    for i, name in enumerate(given.get("marks", ())):
        added.append({**added[0], "id": len(vocabulary) + i, "content": name, "normalized": True, "special": False})
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                       "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing", "single": single, "pair": [*single, parts[1], special("[SEP]", 1)],
            "special_tokens": {name: {"id": name, "ids": [SPECIAL.index(name)], "tokens": [name]}
                               for name in ("[CLS]", "[SEP]")},
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": vocabulary},
    }  # fmt: skip


def tensors(given: dict[str, Any]) -> dict[str, npt.NDArray[np.float32]]:
    """The weights of a folder, under the names of transformers."""
    task, config = given["task"], config_of(given)
    d, vocabulary = config["hidden_size"], config["vocab_size"]
    encoder = weights(config)
    labels = given.get("labels", 1)
    count = labels if isinstance(labels, int) else len(labels)
    shapes: dict[str, tuple[int, ...]] = {}
    if task == "sparse":
        at = "cls.predictions"
        shapes = {f"{at}.transform.dense.weight": (d, d), f"{at}.bias": (vocabulary,)}
        shapes |= {f"{at}.transform.{n}": (d,) for n in ("dense.bias", "LayerNorm.weight", "LayerNorm.bias")}
        own = {f"{at}.decoder.weight": (vocabulary, d), f"{at}.decoder.bias": (vocabulary,)}
        shapes |= own if given.get("own") else {}
    if task == "scores":
        shapes = {"bert.pooler.dense.weight": (d, d), "bert.pooler.dense.bias": (d,)}
    if task in ("scores", "labels"):
        shapes |= {"classifier.weight": (count, d), "classifier.bias": (count,)}
    if given.get("linear"):
        shapes = {"linear.weight": (given["linear"], d)}
    prefix = "bert." if task != "tokens" or given.get("linear") else ""
    return {f"{prefix}{name}": w for name, w in encoder.items()} | {
        name: formula(name, shape, 0.35, 1.0 if name.endswith("LayerNorm.weight") else 0.0)
        for name, shape in shapes.items()
    }


def config_of(given: dict[str, Any]) -> dict[str, Any]:
    """The content of config.json."""
    labels = given.get("labels", 1)
    texts = ["LABEL_0"] if labels == 1 else [] if isinstance(labels, int) else labels
    named = {"id2label": {str(i): text for i, text in enumerate(texts)}} if texts else {}
    size = len(_vocabulary(given)) + len(given.get("marks", ()))
    more = named if given["task"] in ("scores", "labels") else {}
    return {**CONFIG, "architectures": [_CLASSES[given["task"]]], "vocab_size": size, **more, **given.get("config", {})}


def write(folder: Path, name: str) -> Path:
    """The folder of this name."""
    given = FOLDERS[name]
    folder.mkdir(exist_ok=True)
    files: dict[str, Any] = {
        "config.json": config_of(given), "tokenizer.json": _tokenizer(given),
        "tokenizer_config.json": {
            "tokenizer_class": given.get("class", "BertTokenizer"), "model_max_length": 40, "do_lower_case": True,
            **{f"{n.lower()}_token": f"[{n}]" for n in ("CLS", "SEP", "MASK", "PAD", "UNK")},
            **given.get("tokenizer", {}),
        },
    }  # fmt: skip
    if not given.get("plain"):
        kinds = [given.get("first", "Transformer"), *(kind for kind, _ in given.get("modules", ()))]
        paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
        files["modules.json"] = [
            {"idx": i, "name": str(i), "path": p, "type": _TYPES[k]}
            for i, (p, k) in enumerate(zip(paths, kinds, strict=True))
        ]
        files |= {f"{p}/config.json": s for p, (_, s) in zip(paths[1:], given.get("modules", ()), strict=True)}
        task, output, of = {"sparse": ("fill-mask", "token_embeddings", "logits"),
                            "scores": ("sequence-classification", "scores", "logits"),
                            "tokens": ("feature-extraction", "token_embeddings", "last_hidden_state")}[given["task"]]
        told = {"transformer_task": task, "module_output_name": output,
                "modality_config": {"text": {"method": "forward", "method_output_name": of}}}  # fmt: skip
        files["sentence_bert_config.json"] = ({} if given.get("first") else told) | given.get("settings", {})
        kind = {"sparse": "SparseEncoder", "scores": "CrossEncoder", "tokens": "MultiVectorEncoder"}[given["task"]]
        files["config_sentence_transformers.json"] = {"__version__": {}, "model_type": kind, **given.get("st", {})}
        for path, (_, step) in zip(paths[1:], given.get("modules", ()), strict=True):
            if "in_features" in step:
                wide, out = step["in_features"], step["out_features"]
                shapes: dict[str, tuple[int, ...]] = {"linear.weight": (out, wide)}
                shapes |= {"linear.bias": (out,)} if step["bias"] else {}
                (folder / path).mkdir(exist_ok=True)
                made = {n: formula(path + n, shape, 0.25) for n, shape in shapes.items()}
                write_safetensors(folder / path / "model.safetensors", made)
    if "metadata" in given:
        files["artifact.metadata"] = given["metadata"]
    for path, content in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(json.dumps(content))
    write_safetensors(folder / "model.safetensors", tensors(given))
    return folder


def _judged(folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    """What the outside packages give for a folder, in float64."""
    import sentence_transformers as st
    import torch
    from transformers import pipeline

    def lists(rows: Any) -> list[Any]:
        return [row.double().cpu().tolist() for row in rows]

    if given["task"] == "sparse":
        model = st.SparseEncoder(str(folder), device="cpu").double()
        rows = {"texts": lists(model.encode(list(TEXTS), convert_to_sparse_tensor=False))}
        three = lists(model.encode(list(TEXTS[:2]), convert_to_sparse_tensor=False, max_active_dims=3))
        whole = model.encode(list(TEXTS[:1]), prompt="", convert_to_sparse_tensor=False, max_active_dims=99)
        return rows | {"three": three, "f64": lists(whole)}
    if given["task"] == "scores":
        cross = st.CrossEncoder(str(folder), device="cpu").double()
        result = {"pairs": cross.predict(list(PAIRS), convert_to_tensor=True).double().tolist()}
        softmax = cross.predict(list(PAIRS[:2]), convert_to_tensor=True, apply_softmax=True)
        logits = cross.predict(list(PAIRS[:2]), convert_to_tensor=True, prompt="", activation_fn=torch.nn.Identity())
        result |= {"softmax": softmax.double().tolist(), "f64": logits.reshape(2, -1).tolist()}
        if cross.num_labels == 1:
            result["rank"] = cross.rank(QUERIES[0], list(DOCUMENTS), top_k=3, return_documents=True)
        judge = pipeline("text-classification", str(folder), device="cpu", dtype=torch.float64)
        asked: list[Any] = [TEXTS[0], {"text": PAIRS[0][0], "text_pair": PAIRS[0][1]}]
        return result | {"classify": [judge(text, top_k=None) for text in asked]}
    if given["task"] == "tokens":
        late = st.MultiVectorEncoder(str(folder), device="cpu").double()
        queries, documents = late.encode_query(list(QUERIES)), late.encode_document(list(DOCUMENTS))
        plain = late.encode(list(DOCUMENTS[:2]), prompt="cold ")
        return {"queries": lists(queries), "documents": lists(documents), "plain": lists(plain),
                "f64": lists(late.encode(list(TEXTS[2:3]), prompt="")),
                "score": late.similarity(queries, documents).double().tolist()}  # fmt: skip
    judge = pipeline("token-classification", str(folder), device="cpu", dtype=torch.float64)
    with torch.inference_mode():
        inputs = judge.tokenizer([TEXTS[0]], return_tensors="pt")
        logits = judge.model(**inputs).logits[0].tolist()
    texts = [TEXTS[0], TEXTS[2], TEXTS[5], "The mountain, unknownword and windmill melts."]

    def found(text: str, **how: Any) -> list[dict[str, Any]]:
        return [{**one, "score": float(one["score"])} for one in judge(text, **how)]

    ways = {way: [found(text, aggregation_strategy=way) for text in texts] for way in AGGREGATIONS}
    return ways | {"f64": logits, "all": [found(texts[0], ignore_labels=["STONE"])]}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {k: v if k == "f64" else _short(v) for k, v in value.items()}
    return [_short(v) for v in value] if isinstance(value, list | tuple) else value


def main() -> None:
    import sentence_transformers
    import torch
    import transformers

    rows = {}
    for name, given in FOLDERS.items():
        with tempfile.TemporaryDirectory() as work:
            rows[name] = _short(_judged(write(Path(work), name), given))
    packages = (sentence_transformers, torch, transformers)
    versions = {package.__name__: package.__version__ for package in packages}
    lines = [f'"versions": {json.dumps(versions)}']
    lines += [f"{json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}" for name, row in rows.items()]
    FROZEN.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
