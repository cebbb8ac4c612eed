"""Families of text encoders beside transformers: tiny random folders, compared in float64.

`python -m tests.models.encoders.families [TYPE …]` makes a folder of each `model_type` with settings off their
defaults, and compares the states behind the last layer of texts of several lengths, side by side, in shared rows and
alone, with those of each text alone in float64. `--device` names another than the CPU. Without types it does all, and writes the table
of docs/models.md; `--classes` writes what the configuration classes of transformers take for granted, which the package
reads; `--keys` which settings rlx reads of each; `--freeze` the cases of the tests. Exit status 1: a family that
differs.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import bool_, f32, i32
from rlx.formats import safetensors
from rlx.formats.huggingface import ModelFolder
from rlx.ir import Graph
from rlx.models.encoders import ARCHITECTURES, MISSING
from rlx.models.encoders.config import CLASSES, settings_of
from rlx.models.language.config import Fields
from rlx.models.sentence import EncoderFiles, SentenceEncoder, read_folder
from rlx.runtime import Session
from tests.models.language.families import PAGE, Seen, error, other_values, packed_names, unpacked_names
from tests.models.language.families import page as language_page
from tests.models.tiny import formula
from tests.outside import outside

KEYS = Path(__file__).with_name("families_keys.json")
FOUND = Path(__file__).with_name("families.json")  # what the command found
FROZEN = Path(__file__).with_name("families_states.json")  # tensors of tiny folders, and states of transformers
LIMIT = 1e-11  # the most that squared errors beside float64 may be of the sum of squares
LENGTHS = (1, 23, 9, 14)
TEXTS = [[(7 * i + 3 * n) % 60 + 4 for i in range(n)] for n in LENGTHS]

BASE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 40, "type_vocab_size": 3, "layer_norm_eps": 1e-3, "hidden_act": "gelu_new",
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
RELU = {**BASE, "hidden_act": "relu", "pad_token_id": 3}
PADDED = {**BASE, "pad_token_id": 17, "max_position_embeddings": 64, "hidden_act": "gelu"}  # a token of the texts
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
YARN = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
                            "original_max_position_embeddings": 10}}  # fmt: skip
T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 12, "d_ff": 48, "num_layers": 3, "num_heads": 4, "pad_token_id": 0,
      "layer_norm_epsilon": 1e-3, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 17}
MODERN = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 5, "num_attention_heads": 4, "pad_token_id": 1,
          "intermediate_size": 24, "max_position_embeddings": 40, "local_attention": 6, "bos_token_id": 0,
          "cls_token_id": 0, "sep_token_id": 2, "eos_token_id": 2}  # fmt: skip
BOTH = {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 300.0},
                            "sliding_attention": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0}}}
DEBERTA = {**BASE, "relative_attention": True, "max_relative_positions": 14, "position_biased_input": False}
MOBILE = {**BASE, "embedding_size": 12, "intra_bottleneck_size": 16}
# What each folder is made of: settings for the class, one folder each.
FAMILIES: dict[str, tuple[dict[str, Any], ...]] = {
    **dict.fromkeys(("roberta", "camembert", "xlm-roberta", "data2vec-text", "xlm-roberta-xl", "roberta-prelayernorm"),
                    (BASE, RELU, PADDED)),
    "megatron-bert": (BASE,),
    "electra": ({**BASE, "embedding_size": 20}, {**BASE, "embedding_size": 32}),
    "rembert": ({**BASE, "input_embedding_size": 20},),
    "ernie": ({**BASE, "use_task_id": True}, BASE),
    "layoutlm": ({**BASE, "max_2d_position_embeddings": 30},),
    "big_bird": ({**BASE, "attention_type": "original_full", "rescale_embeddings": True}, {**BASE, "use_bias": False}),
    "bert-generation": (BASE,),
    "splinter": ({**BASE, "question_token_id": 7},),
    "distilbert": ({"vocab_size": 64, "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "pad_token_id": 0,
                    "max_position_embeddings": 40, "activation": "relu", "sinusoidal_pos_embds": True},),
    "albert": ({**BASE, "embedding_size": 20, "num_hidden_groups": 2, "inner_group_num": 2},
               {**BASE, "embedding_size": 32}),
    "nomic_bert": ({**BASE, **ROPE, "hidden_act": "silu"}, {**BASE, **YARN, "head_dim": 12}),
    "gte": ({**BASE, **ROPE}, {**BASE, **YARN, "type_vocab_size": 0, "hidden_act": "gelu"}),
    "jina_embeddings_v3": ({**BASE, **ROPE}, BASE),
    "mpnet": ({**BASE, "relative_attention_num_buckets": 32}, {**RELU, "relative_attention_num_buckets": 40}),
    **dict.fromkeys(("t5", "mt5", "umt5"), (
        {**T5, "feed_forward_proj": "gated-gelu"}, {**T5, "feed_forward_proj": "relu"},
        {**T5, "feed_forward_proj": "gated-silu", "relative_attention_num_buckets": 10, "num_heads": 3})),
    "modernbert": (
        {**MODERN, "attention_bias": True, "norm_bias": True, "mlp_bias": True}, {**MODERN, **BOTH, "norm_eps": 1e-3},
        {**MODERN, "num_hidden_layers": 3, "local_attention": 8,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "eurobert": ({**BASE, **ROPE, "num_key_value_heads": 2, "hidden_act": "silu", "rms_norm_eps": 1e-3},
                 {**BASE, **YARN, "head_dim": 12, "attention_bias": True, "mlp_bias": True}),
    "deberta": ({**DEBERTA, "pos_att_type": ["c2p", "p2c"]}, {**DEBERTA, "pos_att_type": "p2c", "embedding_size": 20},
                {**BASE, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0}),
    "deberta-v2": (
        {**DEBERTA, "pos_att_type": "p2c|c2p", "position_buckets": 8, "share_att_key": True, "conv_kernel_size": 3,
         "norm_rel_ebd": "layer_norm", "conv_act": "gelu"},
        {**DEBERTA, "pos_att_type": ["p2c"], "embedding_size": 20, "max_relative_positions": 5},
        {**DEBERTA, "pos_att_type": ["c2p", "p2c"], "position_buckets": 6, "conv_kernel_size": 5, "conv_groups": 2},
        {**BASE, "position_biased_input": False, "relative_attention": False, "pos_att_type": ["c2p"]}),
    "longformer": ({**BASE, "attention_window": 6}, {**BASE, "attention_window": [4, 8, 8]}),
    "squeezebert": ({**BASE, "embedding_size": 32, "q_groups": 2, "post_attention_groups": 4, "output_groups": 8},),
    "fnet": ({k: v for k, v in BASE.items() if k != "num_attention_heads"},),
    "convbert": ({**BASE, "embedding_size": 20, "conv_kernel_size": 5, "num_groups": 2},
                 {**BASE, "embedding_size": 32, "head_ratio": 4}),
    "mobilebert": ({**MOBILE, "normalization_type": "layer_norm", "num_feedforward_networks": 2},
                   {**MOBILE, "use_bottleneck_attention": True}, {**MOBILE, "use_bottleneck": False},
                   {**MOBILE, "trigram_input": False, "embedding_size": 32, "num_feedforward_networks": 1}),
    "nystromformer": ({**BASE, "conv_kernel_size": 5},),
    "roformer": ({**BASE, "embedding_size": 20, "rotary_value": True}, BASE),
}  # fmt: skip
# Language models with the files of sentence-transformers, or whose tokens attend to later ones.
HEADS = {"num_key_value_heads": 2, "head_dim": 12}
SILU = {"hidden_act": "silu", "rms_norm_eps": 1e-3}
GEMMA = {"rms_norm_eps": 1e-3, **{k: v for k, v in BASE.items() if k not in ("hidden_act", "layer_norm_eps")}}
DECODERS: dict[str, tuple[dict[str, Any], ...]] = {
    "qwen3": ({**BASE, **ROPE, **HEADS, **SILU},
              {**BASE, **ROPE, **HEADS, **SILU, "is_causal": False}),
    "gemma3_text": ({**GEMMA, **HEADS, "num_hidden_layers": 5, "sliding_window": 7, "sliding_window_pattern": 2,
                     "use_bidirectional_attention": True, "query_pre_attn_scalar": 10},
                    {**GEMMA, **HEADS, "sliding_window": 6, "sliding_window_pattern": 3}),
    "mistral": ({**BASE, **ROPE, **HEADS, **SILU, "sliding_window": 5, "is_causal": False},
                {**BASE, **ROPE, **HEADS, **SILU, "sliding_window": 5}),
    "llama": ({**BASE, **ROPE, **SILU, "is_causal": False},),
    "qwen2": ({**BASE, **ROPE, "num_key_value_heads": 2, **SILU},),
}  # fmt: skip
EVERY = {**FAMILIES, **DECODERS}
MODULES = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
           {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]


def write_modules(folder: Path, kind: str) -> None:
    """The files of sentence-transformers that make a language model an encoder."""
    if kind in DECODERS:
        (folder / "modules.json").write_text(json.dumps(MODULES))
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "lasttoken"}))


def random_model(folder: Path, kind: str, settings: dict[str, Any]) -> None:
    """A folder of the type with random weights, larger than a new model has, so that tokens differ in their states."""
    torch, transformers = outside("torch"), outside("transformers")
    torch.manual_seed(0)
    model = model_class(kind).from_config(transformers.AutoConfig.for_model(kind, **settings)).float()
    with torch.no_grad():
        for values in model.parameters():
            if values.ndim < 2:
                values.add_(torch.randn_like(values) * 0.2)
            else:
                values.copy_(torch.randn_like(values) * values.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    write_modules(folder, kind)


def model_class(kind: str) -> Any:
    transformers = outside("transformers")
    return transformers.AutoModelForTextEncoding if kind in ("t5", "mt5", "umt5") else transformers.AutoModel


def judge(folder: Path, kind: str, **more: Any) -> Any:
    """The model of a folder, in float64, with attention written out."""
    more = {"dtype": outside("torch").float64, "attn_implementation": "eager", **more}
    try:
        return model_class(kind).from_pretrained(folder, **more).eval()
    except (TypeError, ValueError):
        more.pop("attn_implementation")
        return model_class(kind).from_pretrained(folder, **more).eval()


def judged_states(model: Any, text: Sequence[int]) -> npt.NDArray[Any]:
    """The states of a text alone, (length, width)."""
    torch = outside("torch")
    ids = torch.tensor([list(text)])
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=torch.ones_like(ids))
    states: npt.NDArray[Any] = found.last_hidden_state[0].numpy()
    return states


def states(
    files: EncoderFiles, texts: Sequence[Sequence[int]], device: str = "cpu", engine: Any = None, share: bool = False
) -> list[Any]:
    """What rlx makes of texts side by side, padded to the longest, or with `share` in rows of several, with padding at
    the end: the states of each."""
    rows, own, longest = [0] * len(texts), [], max(map(len, texts)) + (12 if share else 0)
    for one in texts:
        row = next(i for i, used in enumerate(rows) if not used or (share and used + len(one) <= longest))
        own.append((row, slice(rows[row], rows[row] + len(one))))
        rows[row] += len(one)
    shape = (len(rows) - rows.count(0), longest)
    ids, mask, text = (np.zeros(shape, np.int32) for _ in range(3))
    for i, place in enumerate(own):
        ids[place], mask[place], text[place] = texts[i], 1, i + 1
    g = Graph("states")
    params = {name: g.param(name, shape, f32) for name, shape in files.config.weight_shapes().items()}
    made = files.config.encoder(g.input("ids", ids.shape, i32), g.input("mask", ids.shape, bool_), params, f32)
    made.ends = not share  # as in the graph of texts to embed
    if share:
        made.share(g.input("text", ids.shape, i32), len(texts))
    g.output("states", made.states(None))
    session = Session(device, engine=engine)
    encoder = SentenceEncoder(files.config, files.tensors, files.tokenizer, session)
    feeds = {"ids": ids, "mask": mask.astype(bool), "text": text}
    with encoder, session.compile(g, weights=encoder.weights) as program:
        found = program.run({name: feeds[name] for name in program.graph.inputs})["states"]
    return [found[place] for place in own]


def class_facts() -> dict[str, Any]:
    """What the configuration class of each family takes for granted: other names of settings, and defaults."""
    transformers = outside("transformers")
    shared = {f.name for f in dataclasses.fields(transformers.PreTrainedConfig)} - {"is_decoder", "add_cross_attention"}
    result: dict[str, Any] = {}
    for kind in sorted(FAMILIES):
        cls = transformers.models.auto.configuration_auto.CONFIG_MAPPING[kind]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            usual = cls()
        plain = {}
        for field in dataclasses.fields(cls):
            own = field.name in cls.__annotations__ or field.name not in shared
            if own and field.name != "rope_parameters":
                plain[field.name] = json.loads(json.dumps(field.default, default=str))
        result[kind] = {"class": cls.__name__.removesuffix("Config"), "names": dict(cls.attribute_map), "usual": plain}
        if (rope := getattr(usual, "rope_parameters", None)) is not None:
            result[kind]["rope"] = rope
    return {"transformers": transformers.__version__, "families": result}


def read_keys(kind: str) -> set[str]:
    """The settings that rlx reads of a family, in any of its folders."""
    asked: set[str] = set()

    class Asking(Fields):
        def __init__(self, content: Any, where: str) -> None:
            super().__init__(Seen(content, asked), where)

        def but(self, **changed: Any) -> Fields:
            return Asking({**self.content, **changed}, self.where)

    for settings in FAMILIES[kind]:
        ARCHITECTURES[kind](Asking(settings_of(Fields({"model_type": kind, **settings}, "")).content, "config.json"))
    names = json.loads(CLASSES.read_text())["families"][kind]["names"]
    return asked | {own for name, own in names.items() if name in asked}


def idle_keys(kind: str, read: set[str]) -> tuple[list[str], list[str]]:
    """Of the settings in the class's signature that rlx does not read, those that change no states in transformers, and
    those that do."""
    transformers = outside("transformers")
    usual = json.loads(CLASSES.read_text())["families"][kind]["usual"]
    still: set[str] = set(usual) - read - {"use_cache"}
    moved: set[str] = set()
    for settings in FAMILIES[kind]:
        with tempfile.TemporaryDirectory() as base, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            random_model(Path(base), kind, settings)
            plain = judged_states(judge(Path(base), kind), TEXTS[1])
            for name in sorted(still):
                for value in other_values(settings.get(name, usual[name])):
                    try:
                        config = transformers.AutoConfig.for_model(kind, **{**settings, name: value})
                        config.name_or_path = ""
                        changed = judged_states(judge(Path(base), kind, config=config), TEXTS[1])
                        same = error(changed, plain) <= LIMIT
                    except Exception:  # noqa: BLE001 - classes refuse values by many types of exceptions
                        continue
                    if not same:
                        moved.add(name)
    return sorted(still - moved), sorted(moved)


def write_keys(kinds: Sequence[str]) -> int:
    held = json.loads(KEYS.read_text()) if KEYS.exists() else {"families": {}}
    wrong = 0
    for kind in kinds or FAMILIES:
        read = read_keys(kind)
        known = set(json.loads(CLASSES.read_text())["families"][kind]["usual"])
        idle, moved = idle_keys(kind, read)
        held["families"][kind] = {"read": sorted(read & known), "idle": idle}
        wrong += len(moved)
        print(f"{kind:18} reads {len(read & known)}, idle {len(idle)}: {' '.join(idle)}; MOVES {moved}", flush=True)
    held["transformers"] = outside("transformers").__version__
    KEYS.write_text(json.dumps(held, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return bool(wrong)


def run(kind: str, device: str) -> Iterator[dict[str, Any]]:
    for settings in EVERY[kind]:
        with tempfile.TemporaryDirectory() as base:
            try:
                random_model(Path(base), kind, settings)
                model = judge(Path(base), kind)
                want = [judged_states(model, text) for text in TEXTS]
                files = read_folder(ModelFolder(base), text=False)
                whole = np.concatenate(want)
                found = {"together": error(np.concatenate(states(files, TEXTS, device)), whole)}
                found["shared"] = error(np.concatenate(states(files, TEXTS, device, share=True)), whole)
                if device == "cpu":
                    alone = np.concatenate([states(files, [text], device)[0] for text in TEXTS])
                    found["alone"] = error(alone, whole)
                yield found
            except Exception as caught:
                if "--raise" in sys.argv:
                    raise
                yield {"failed": f"{type(caught).__name__}: {caught}"[:300]}


def write_formula(folder: Path, kind: str, settings: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    """A folder whose weights a formula gives, with a config.json of these settings alone."""
    tensors = {}
    for name, shape in shapes.items():
        norm = re.search(r"(norm|ln)[^.]*\.weight$", name, re.IGNORECASE)
        scale = 0.3 if len(shape) < 2 or norm else 1.7 * shape[-1] ** -0.5
        tensors[name] = formula(name, shape, scale, 1.0 if norm else 0.0)
    safetensors.save(folder / "model.safetensors", tensors, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": kind, **settings}))
    write_modules(folder, kind)


def kept(found: Sequence[Any]) -> list[list[float]]:
    """The part of texts' states that the cases hold: some numbers of the first and the last token."""
    return [[float(f"{v:.10g}") for row in (text[0], text[-1]) for v in row[:: max(1, text.shape[1] // 8)]]
            for text in found]  # fmt: skip


def freeze(kinds: Sequence[str]) -> int:
    """Writes what transformers makes of folders whose weights a formula gives."""
    made = {} if not kinds else json.loads(FROZEN.read_text())["cases"]
    for kind in kinds or EVERY:
        for i, settings in enumerate(EVERY[kind]):
            with tempfile.TemporaryDirectory() as base:
                folder = Path(base)
                random_model(folder, kind, settings)
                shapes = {name: tuple(array.shape) for name, array in safetensors.load(folder).items()}
                write_formula(folder, kind, settings, shapes)
                model = judge(folder, kind)
                found = kept([judged_states(model, text) for text in TEXTS])
            made[f"{kind}-{i}"] = {"tensors": packed_names(shapes), "states": found}
            print(kind, i, flush=True)
    version = outside("transformers").__version__
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(row)}" for name, row in made.items())
    FROZEN.write_text(f'{{"transformers": "{version}", "cases": {{\n{rows}\n}}}}\n', encoding="utf-8")
    return 0


def case_folder(case: str, folder: Path, cases: dict[str, Any], **changed: Any) -> Path:
    """The folder of a frozen case."""
    kind, _, i = case.rpartition("-")
    folder.mkdir(exist_ok=True)
    write_formula(folder, kind, {**EVERY[kind][int(i)], **changed}, unpacked_names(cases[case]["tensors"]))
    return folder


def main() -> int:
    kinds = [a for a in sys.argv[1:] if not a.startswith("--")]
    device = next((a.partition("=")[2] for a in sys.argv if a.startswith("--device=")), "cpu")
    if "--freeze" in sys.argv:
        return freeze(kinds)
    if "--classes" in sys.argv:
        CLASSES.write_text(json.dumps(class_facts(), indent=1) + "\n", encoding="utf-8")
        return 0
    if "--keys" in sys.argv:
        return write_keys(kinds)
    held = json.loads(FOUND.read_text()) if FOUND.exists() else {"families": {}}
    wrong = 0
    for kind in kinds or EVERY:
        cases = []
        for i, found in enumerate(run(kind, device)):
            good = "failed" not in found and max(found.values()) <= LIMIT
            wrong += not good
            told = " ".join(f"{k} {v:.1e}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items())
            print(f"{kind:18} {i} {'ok ' if good else 'BAD'} {told}", flush=True)
            cases.append({k: float(f"{v:.1e}") if isinstance(v, float) else v for k, v in found.items()})
        held["families"].setdefault(kind, {})[device.partition(":")[0]] = cases
    held |= {"transformers": outside("transformers").__version__, "date": datetime.date.today().isoformat()}
    FOUND.write_text(json.dumps(held, sort_keys=True).replace('}, "', '},\n "') + "\n", encoding="utf-8")
    PAGE.write_text(language_page(), encoding="utf-8")
    return bool(wrong)


def part_of_page() -> str:
    """The table of encoders in docs/models.md, from what the command found."""
    held = json.loads(FOUND.read_text())
    rows = []
    for kind, found in sorted(held["families"].items()):
        largest = {device: f"{max(max(case.values()) for case in cases):.0e}" for device, cases in found.items()}
        as_decoder = "language model" if kind in DECODERS else "encoder"
        rows.append(f"| `{kind}` | {as_decoder} | {len(found['cpu'])} | {largest['cpu']} | {largest['vulkan']} |")
    missing = ", ".join(f"`{kind}` ({near}: {what})" for kind, (near, what) in sorted(MISSING.items()))
    text = _PART.format(rows="\n".join(rows), transformers=held["transformers"], date=held["date"])
    return text + textwrap.fill(f"Not there, with the nearest that is and what it lacks: {missing}.", 120,
                                break_on_hyphens=False) + "\n"  # fmt: skip


_PART = """
## Text encoders

`python -m tests.models.encoders.families` makes this table (and `--device=vulkan` its last column) in the same way, of
transformers {transformers}, on {date}: the states behind the last layer of texts of several lengths, side by side, in
rows that they share, and on the CPU alone, beside those of each text alone in float64; NMSE of at most 1e-11. Language models are encoders where their folder has
the files of sentence-transformers (`modules.json`), or where their tokens attend to later ones (`is_causal: false`,
Gemma 3's `use_bidirectional_attention`). `bert` has tests of its own. `rlx.models.load(FOLDER).encode(texts)` gives
vectors, with any of sentence-transformers' poolings, `rlx.models.trainable` the function of the weights, and
`rlx finetune` trains.

A text's vector is that of the text alone, whatever stands beside it. In transformers padding reaches the tokens of FNet
(whose Fourier transform takes it in), ConvBERT, MobileBERT and Nystromformer (whose convolutions and trigrams do), so
that its vectors of several texts in one call differ from those of each.

What the classes do, and rlx with them: RoBERTa and what is like it begin places behind the padding token's, so that a
table of 514 rows is for 512 tokens, and a padding token in a text has that token's place; MPNet reads 32 rows of its
table of distances, whatever `relative_attention_num_buckets` says, and skips token 1; BigBird's `block_sparse` attends
to all in short texts, and is for those alone (704 tokens with the usual blocks: longer ones are cut, since its sparse
blocks draw keys at random); Longformer has no token that sees all others unless a caller names one, so no text has one
here; LayoutLM's texts have boxes of zeros; Nystromformer is for as many landmarks as tokens of a segment.
Settings are followed or refused as above (`tests/models/encoders/families_keys.json`). A reranker's or a classifier's
head, a pooler, and output matrices are left aside. GTE, NomicBERT and Jina v3 are read as published, with q, k and v in
one tensor, or with the names of transformers' classes.

| `model_type` | read as | folders | NMSE on the CPU | on Vulkan (lavapipe) |
|---|---|---|---|---|
{rows}

"""


if __name__ == "__main__":
    sys.exit(main())
