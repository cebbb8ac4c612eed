"""Reads a text encoder's folder for other tasks than embeddings: sparse vectors (SPLADE), a vector for each token (late
interaction), scores of pairs, labels of texts and of tokens. The files are those of sentence-transformers 6 and of its
predecessors: PyLate 3, Stanford's ColBERT, and plain transformers folders."""

from __future__ import annotations

import os
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from rlx.errors import ModelFormatError
from rlx.formats.files import MAX_JSON_BYTES, file_inside, parse_json, read_bytes, read_json, shown
from rlx.formats.sentences import (
    ACTIVATIONS,
    SETTINGS,
    SentenceModules,
    Step,
    check_names,
    dense_of,
    flag_of,
    limits_of,
    module_kind,
    prompts_of,
    read_modules,
    wrong,
)
from rlx.records import Record

Task = Literal["embeddings", "sparse", "tokens", "scores", "labels"]
_ST = "config_sentence_transformers.json"
_KINDS: dict[str, Task] = {
    "SentenceTransformer": "embeddings", "SparseEncoder": "sparse", "CrossEncoder": "scores",
    "MultiVectorEncoder": "tokens", "ColBERT": "tokens",
}  # fmt: skip
_MARKS: dict[str, Task] = {"SpladePooling": "sparse", "MultiVectorMask": "tokens", "LogitScore": "scores"}
_USUAL: dict[Task, tuple[str, str, str]] = {  # the Transformer module's task, its output, and what gives that
    "sparse": ("fill-mask", "token_embeddings", "logits"),
    "tokens": ("feature-extraction", "token_embeddings", "last_hidden_state"),
    "scores": ("sequence-classification", "scores", "logits"),
}
_OURS: dict[str, Task] = {
    "ForSequenceClassification": "scores", "ForTokenClassification": "labels", "HF_ColBERT": "tokens",
}  # fmt: skip
_OF_PYLATE = ("query_prefix", "document_prefix", "do_query_expansion", "attend_to_expansion_tokens",
              "attend_to_mask_tokens", "skiplist_words", "query_length", "document_length")  # fmt: skip
_MOST_TOKENS = 1 << 20


class Splade(Record):
    """How the logits of a text's tokens become its sparse vector: log(1 + max(logit, 0)), with `twice` log(1 + x) of
    that, then the maximum or the sum over all tokens. `most` limits how many elements are kept."""

    pooling: Literal["max", "sum"] = "max"
    twice: bool = False
    most: int | None = None


class Expansion(Record):
    """Query expansion: queries shorter than `length` tokens are padded to it with `token` (by default the mask token),
    whose vectors count; the other tokens attend to the padding if `attend`. Longer queries are cut unless `longer`."""

    length: int = 32
    longer: bool = False
    attend: bool = False
    token: str | None = None


class LateInteraction(Record):
    """How a text becomes vectors of its tokens: the `steps` applied to the states, the maximum lengths of queries and
    documents in tokens, the expansion of queries, and which tokens get no vector: those in `skipped`, in texts of the
    tasks in `skip`, and those not in `kept`, in all texts but queries. `marks` are prefixes that the tokenizer reads as
    one token. With `mean` a score is divided by the number of a query's vectors."""

    steps: tuple[Step, ...] = ()
    query_length: int | None = None
    document_length: int | None = None
    expansion: Expansion | None = None
    skipped: tuple[str, ...] = ()
    skip: tuple[str, ...] = ("document",)
    kept: tuple[int, ...] = ()
    marks: tuple[str, ...] = ()
    mean: bool = False

    def longest(self, usual: int) -> int:
        """The largest of the maximum lengths; `usual` is the one for texts that are neither query nor document."""
        filled = 0 if self.expansion is None else self.expansion.length
        return max(usual, self.query_length or 0, self.document_length or 0, filled)


class Labels(Record):
    """The labels of a classifier in the order of its outputs, the function from logits to scores ("softmax", "sigmoid",
    or None), and the activation of a cross-encoder's scores, by rlx's name, or None."""

    names: tuple[str, ...]
    function: Literal["softmax", "sigmoid"] | None
    activation: str | None = None


class LogitScore(Record):
    """How a language model scores a query and a document: the logit of the token `yes` after both, minus that of `no`
    if given, through an activation. The chat template gets the two as messages of the roles "query" and "document",
    with `options`; one of the `prompts` may come before them as a system message. Prompts have at most `longest`
    tokens."""

    yes: int
    no: int | None
    activation: str | None
    options: Mapping[str, Any]
    prompts: Mapping[str, str]
    default_prompt: str | None
    longest: int | None


class TextTask(Record):
    """The task of a folder with its settings, and the settings common to all tasks (`modules`)."""

    task: Task
    modules: SentenceModules
    splade: Splade | None = None
    late: LateInteraction | None = None
    labels: Labels | None = None


def read_task(folder: Path, config: Mapping[str, Any], width: int) -> TextTask:
    """The task of a folder's text encoder, by its files; `width` is the width of its states. Raises:
    ModelFormatError."""
    listing = folder / "modules.json"
    file = folder / _ST
    told = read_json(file) if os.path.exists(file) else {}
    modules = _modules(listing)
    kinds = [kind for kind, _ in modules]
    task = _task(file, told, kinds, config)
    if task == "embeddings":
        return TextTask(task, read_modules(folder, width))
    if task in _USUAL:
        most, lower = limits_of(folder, _usual(task, kinds))
    else:
        most, lower = limits_of(folder, {})
    prompts: Mapping[str, str]
    prompts, default = prompts_of(file)
    common = SentenceModules((), (), most, lower, True, prompts, default)
    if modules and modules[0][1] not in ("", None):
        raise ModelFormatError(
            f"{listing}: the Transformer's files are in {shown(modules[0][1])}; rlx reads them from the folder itself"
        )
    if task == "sparse":
        return TextTask(task, common, splade=_splade(listing, modules, told, file))
    if task == "tokens":
        late, prompts = _late(folder, listing, modules, told, file, prompts, config)
        return TextTask(task, SentenceModules((), late.steps, most, lower, True, prompts, default), late=late)
    if kinds[1:]:
        raise ModelFormatError(
            f"{listing}: modules {shown(kinds)} are not supported for {_said(task)}; a Transformer alone is"
        )
    return TextTask(task, common, labels=labels_of(config, folder / "config.json", told, file, task))


def _modules(listing: Path) -> list[tuple[str, Any]]:
    """The kind and the folder of each module; empty without a modules.json."""
    if not os.path.exists(listing):
        return []
    modules = parse_json(read_bytes(listing, MAX_JSON_BYTES), listing)
    if not isinstance(modules, list) or not modules or not all(isinstance(m, dict) for m in modules):
        raise ModelFormatError(f"{listing}: expected a list of modules")
    kinds = ["Dense" if m.get("type") == "pylate.models.Dense.Dense" else module_kind(m.get("type")) for m in modules]
    return [(kind, m.get("path", "")) for kind, m in zip(kinds, modules, strict=True)]


def _task(file: Path, told: Mapping[str, Any], kinds: list[str], config: Mapping[str, Any]) -> Task:
    said = told.get("model_type")
    if said is not None:
        if not isinstance(said, str) or said not in _KINDS:
            wrong(file, told, "model_type", f"one of {', '.join(_KINDS)}")
        if kinds:
            return _KINDS[said]
    for kind in kinds:
        if kind in _MARKS:
            return _MARKS[kind]
    named = config.get("architectures")
    for name in named if isinstance(named, list) else []:
        for end, task in _OURS.items():
            if isinstance(name, str) and name.endswith(end) and not kinds:
                return task
    return "embeddings"


def _said(task: Task) -> str:
    return {"embeddings": "embeddings", "sparse": "sparse vectors", "tokens": "vectors of tokens",
            "scores": "scores of pairs", "labels": "labels of tokens"}[task]  # fmt: skip


def _usual(task: Task, kinds: list[str]) -> dict[str, Any]:
    transformer_task, output, of = _USUAL[task]
    return {
        "transformer_task": transformer_task, "module_output_name": output,
        "modality_config": {"text": {"method": "forward", "method_output_name": of}},
    }  # fmt: skip


def _splade(listing: Path, modules: list[tuple[str, Any]], told: Mapping[str, Any], file: Path) -> Splade:
    kinds = [kind for kind, _ in modules]
    if len(kinds) != 2 or kinds[0] not in ("MLMTransformer", "Transformer") or kinds[1] != "SpladePooling":
        raise ModelFormatError(
            f"{listing}: modules {shown(kinds)} are not supported for sparse vectors; Transformer (or MLMTransformer) "
            "and SpladePooling are"
        )
    where = file_inside(listing.parent, modules[1][1], listing) / "config.json"
    config = read_json(where)
    pooling, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    if pooling not in ("max", "sum"):
        wrong(where, config, "pooling_strategy", "'max' or 'sum'")
    if activation not in ("relu", "log1p_relu"):
        wrong(where, config, "activation_function", "'relu' or 'log1p_relu'")
    return Splade(pooling, activation == "log1p_relu", _count(file, told, "max_active_dims"))


def _count(file: Path, config: Mapping[str, Any], name: str, most: int = 1 << 31) -> int | None:
    value = config.get(name)
    if value is not None and (type(value) is not int or not 1 <= value <= most):
        wrong(file, config, name, f"an integer from 1 to {most:,}")
    return value


def _texts(file: Path, config: Mapping[str, Any], name: str, usual: list[str]) -> tuple[str, ...]:
    value = config.get(name)
    value = usual if value is None else [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        wrong(file, config, name, "a list of texts")
    return tuple(value)


def _late(
    folder: Path, listing: Path, modules: list[tuple[str, Any]], told: Mapping[str, Any], file: Path,
    prompts: Mapping[str, str], config: Mapping[str, Any],
) -> tuple[LateInteraction, Mapping[str, str]]:  # fmt: skip
    """The settings of late interaction, and the prompts by name with the prefixes of queries and documents."""
    kinds = [kind for kind, _ in modules]
    similarity = told.get("similarity_fn_name")
    if similarity == "xtr":
        wrong(file, told, "similarity_fn_name", "'maxsim' or 'meanmaxsim'")
    if not modules:  # Stanford's ColBERT
        return _stanford(folder, config, prompts)
    if kinds[0] != "Transformer" or not {"Dense", "Normalize", "MultiVectorMask"}.issuperset(kinds[1:]):
        raise ModelFormatError(
            f"{listing}: modules {shown(kinds)} are not supported for vectors of tokens; Transformer and then Dense, "
            "MultiVectorMask and Normalize are"
        )
    steps: list[Step] = []
    masks: list[tuple[Path, dict[str, Any]]] = []
    for kind, path in modules[1:]:
        where = file_inside(folder, path, listing) / "config.json"
        content = read_json(where)
        if kind == "Dense":
            steps.append(dense_of(where, content, "token_embeddings"))
        elif kind == "Normalize":
            if content.get("module_input_name") is None:
                wrong(where, content, "module_input_name", "'token_embeddings'")
            check_names((where, content), "token_embeddings")
            steps.append("normalize")
        else:
            masks.append((where, content))
    if len(masks) > 1:
        raise ModelFormatError(f"{listing}: has {len(masks)} modules MultiVectorMask; expected one at most")
    where, mask = masks[0] if masks else (listing, {})
    kept = mask.get("keep_only_token_ids") or []
    if not isinstance(kept, list) or not all(type(i) is int and i >= 0 for i in kept):
        wrong(where, mask, "keep_only_token_ids", "a list of token ids")
    skipped = _texts(where, mask, "skiplist_words", [])
    skip = _texts(where, mask, "skiplist_tasks", ["document"])
    own = folder / SETTINGS
    settings = {**_pylate(file, told), **(read_json(own) if os.path.exists(own) else {})}
    marks: list[str] = []
    prompts = dict(prompts)
    for name in ("query", "document"):
        if f"{name}_prefix" in told:
            prefix = told[f"{name}_prefix"] or ""
            if not isinstance(prefix, str):
                wrong(file, told, f"{name}_prefix", "a text")
            marks.append(prefix)
            prompts[name] = prefix + prompts.get(name, "").removeprefix(prefix)
    if told.get("model_type") == "ColBERT":  # PyLate's version 3 lists neither of these modules
        if not masks:
            skipped = _texts(file, told, "skiplist_words", list(string.punctuation))
        steps.append("normalize")
    late = LateInteraction(
        tuple(steps), _count(own, settings, "query_length", _MOST_TOKENS),
        _count(own, settings, "document_length", _MOST_TOKENS), _expansion(own, settings), skipped, skip, tuple(kept),
        tuple(marks), similarity == "meanmaxsim",
    )  # fmt: skip
    if late.expansion is not None and late.query_length is not None and late.query_length < late.expansion.length:
        wrong(own, settings, "query_length", f"at least the {late.expansion.length} tokens of query_expansion")
    return late, prompts


def _pylate(file: Path, told: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that PyLate writes into the whole model's file, in the form of the Transformer module's file."""
    settings = {name: told[name] for name in ("query_length", "document_length") if told.get(name) is not None}
    if "query_expansion" in told:
        return settings | {"query_expansion": told["query_expansion"]}
    if any(name in told for name in _OF_PYLATE):
        settings.pop("query_length", None)
        if flag_of(file, told, "do_query_expansion", True):
            attend = told.get("attend_to_expansion_tokens", told.get("attend_to_mask_tokens"))
            settings["query_expansion"] = {
                "strategy": "fixed", "attend": bool(attend), "length": told.get("query_length") or 32,
            }  # fmt: skip
        elif told.get("query_length") is not None:
            settings["query_length"] = told["query_length"]
    return settings


def _expansion(file: Path, settings: Mapping[str, Any]) -> Expansion | None:
    value = settings.get("query_expansion")
    if value is None:
        return None
    if not isinstance(value, dict) or not {"strategy", "attend", "token", "length"}.issuperset(value):
        wrong(file, settings, "query_expansion", "an object of strategy, attend, token and length")
    if value.get("strategy") not in ("fixed", "min"):
        wrong(file, value, "strategy", "'fixed' or 'min', of query_expansion")
    token = value.get("token")
    if token is not None and not isinstance(token, str):
        wrong(file, value, "token", "the text of a token, of query_expansion")
    length = _count(file, value, "length", _MOST_TOKENS)
    if length is None:
        wrong(file, value, "length", "how many tokens query_expansion fills up to")
    return Expansion(length, value["strategy"] == "min", flag_of(file, value, "attend", False), token)


def _stanford(
    folder: Path, config: Mapping[str, Any], prompts: Mapping[str, str]
) -> tuple[LateInteraction, Mapping[str, str]]:
    file = folder / "artifact.metadata"
    held = read_json(file) if os.path.exists(file) else {}
    marks = []
    for name, usual in (("query_token_id", "[unused0]"), ("doc_token_id", "[unused1]")):
        mark = held.get(name) or usual
        if not isinstance(mark, str):
            wrong(file, held, name, "the text of a token")
        marks.append(f"{mark} ")
    expansion = Expansion(
        _count(file, held, "query_maxlen", _MOST_TOKENS) or 32, attend=bool(held.get("attend_to_mask_tokens"))
    )
    skipped = tuple(string.punctuation) if flag_of(file, held, "mask_punctuation", True) else ()
    late = LateInteraction(
        ("normalize",), None, _count(file, held, "doc_maxlen", _MOST_TOKENS), expansion, skipped, marks=tuple(marks)
    )
    return late, {**prompts, "query": marks[0], "document": marks[1]}


def labels_of(
    config: Mapping[str, Any], where: Path, told: Mapping[str, Any], file: Path, task: Task
) -> Labels:
    """The labels of a classifier, from config.json and, for a cross-encoder, from `told`, the content of `file`.
    Raises: ModelFormatError."""
    held, count = config.get("id2label"), config.get("num_labels")
    if held is None:
        count = 2 if count is None else count
        if type(count) is not int or not 1 <= count <= 1 << 20:
            wrong(where, config, "num_labels", "a number of labels")
        held = {str(i): f"LABEL_{i}" for i in range(count)}
    keys = [str(i) for i in range(len(held))] if isinstance(held, dict) else []
    if not keys or sorted(held) != sorted(keys) or not all(isinstance(name, str) for name in held.values()):
        wrong(where, config, "id2label", "an object of the texts of labels, by numbers from 0")
    if count is not None and count != len(held):
        wrong(where, config, "num_labels", f"the {len(held)} of id2label")
    names, problem = tuple(held[key] for key in keys), config.get("problem_type")
    if problem not in (None, "regression", "single_label_classification", "multi_label_classification"):
        wrong(where, config, "problem_type", "regression, single_label_classification or multi_label_classification")
    if problem == "regression":
        function: Literal["softmax", "sigmoid"] | None = None
    else:
        function = "sigmoid" if len(names) == 1 or problem == "multi_label_classification" else "softmax"
    return Labels(names, function, _activation(config, where, told, file, len(names)) if task == "scores" else None)


def _activation(
    config: Mapping[str, Any], where: Path, told: Mapping[str, Any], file: Path, labels: int
) -> str | None:
    """A cross-encoder's activation: from its own file, else from config.json, else the sigmoid if it has one label."""
    inner = config.get("sentence_transformers")
    for at, held, name in (
        (file, told, "activation_fn"), (where, inner if isinstance(inner, dict) else {}, "activation_fn"),
        (where, config, "sbert_ce_default_activation_function"),
    ):  # fmt: skip
        value = held.get(name)
        if value is not None:
            kind = value.rpartition(".")[2] if isinstance(value, str) and value.startswith("torch.nn.") else None
            if kind not in ACTIVATIONS:
                wrong(at, held, name, f"of torch.nn: {', '.join(ACTIVATIONS)}")
            return ACTIVATIONS[kind]
    return "sigmoid" if labels == 1 else None


def read_logit_score(folder: Path, config: Mapping[str, Any]) -> LogitScore | None:
    """How a folder's language model scores pairs of texts; None if it is no cross-encoder. Raises: ModelFormatError."""
    listing, file = folder / "modules.json", folder / _ST
    modules = _modules(listing)
    kinds = [kind for kind, _ in modules]
    if "LogitScore" not in kinds:
        return None
    if kinds != ["Transformer", "LogitScore"]:
        raise ModelFormatError(f"{listing}: modules {shown(kinds)} are not supported; Transformer and LogitScore are")
    where = file_inside(folder, modules[1][1], listing) / "config.json"
    own, told = read_json(where), read_json(file) if os.path.exists(file) else {}
    if own.get("module_input_name", "causal_logits") != "causal_logits":
        wrong(where, own, "module_input_name", "'causal_logits'")
    ids: list[Any] = []
    for name in ("true_token_id", "false_token_id"):
        id = own.get(name)
        if (id is None and name == "true_token_id") or (id is not None and (type(id) is not int or id < 0)):
            wrong(where, own, name, "the id of a token")
        ids.append(id)
    settings = folder / SETTINGS
    content = read_json(settings) if os.path.exists(settings) else {}
    if content.get("transformer_task") != "text-generation":
        wrong(settings, content, "transformer_task", "'text-generation'")
    modality = content.get("modality_config")
    if modality is not None and (not isinstance(modality, dict) or "message" not in modality):
        wrong(settings, content, "modality_config", "a config with messages, which a chat template takes")
    given = content.get("processing_kwargs") or {}
    if not isinstance(given, dict) or not {"chat_template"}.issuperset(given):
        wrong(settings, content, "processing_kwargs", "of chat_template alone")
    options = given.get("chat_template") or {}
    if not isinstance(options, dict) or {"truncation", "max_length", "padding", "messages"} & options.keys():
        wrong(settings, given, "chat_template", "what the template takes by name")
    most, _ = limits_of(folder, {}, {"processing_kwargs"})
    prompts, default = prompts_of(file)
    activation = _activation(config, folder / "config.json", told, file, 1)
    if activation not in (None, "sigmoid"):
        wrong(file, told, "activation_fn", "torch.nn's Sigmoid or Identity for a language model")
    taken = {name: value for name, value in options.items() if name != "restore_suffix"}  # how prompts are cut
    return LogitScore(ids[0], ids[1], activation, taken, prompts, default, most)
