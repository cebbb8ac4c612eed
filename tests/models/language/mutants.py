"""Folders of language models whose config.json is damaged, beside transformers on the same file, in float64.

`python -m tests.models.language.mutants [--count N] [--seed S] [--types TYPE …]` changes, drops or writes twice one key
of the config.json of a tiny random folder, and says what comes of it: `equal`, `refused` with a typed error, `warned`,
`alone` where transformers refuses what rlx runs or finds no weights for it, or `silent`, a difference that no warning
tells, which it prints. `--weights` changes each tensor of each folder in place of that, and adds one: what changes no
logits, and what no error names, is printed. Exit status 1: there was one.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import random
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import rlx
from rlx.errors import ModelWarning, RlxError
from rlx.formats import safetensors
from rlx.models.language.architectures.seeing import ASIDE
from tests.models.language.families import EVERY, IDS_ASKED, error, pretrained, random_model
from tests.models.language.seeing import FOLDERS
from tests.outside import outside

LIMIT = 1e-12  # both compute in float64, transformers' tables of ropes in f32: or four times the unchanged folder's
IDS = np.array(IDS_ASKED, np.int32)
ACTS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2", "quick_gelu", "tanh", "none")
SCALED = (
    {"rope_type": "linear", "factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0}, {"type": "linear", "factor": 3.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 16}, {"rope_type": "default", "partial_rotary_factor": 0.5},
)  # fmt: skip
# Keys that many classes have and others pass over, each with values that change numbers where it is read.
COMMON: dict[str, tuple[Any, ...]] = {
    "rope_scaling": SCALED, "rope_theta": (100.0, 5000), "partial_rotary_factor": (0.5, 0.25), "head_dim": (8, 16),
    "sliding_window": (5, None), "tie_word_embeddings": (True, False), "attention_bias": (True, False),
    "mlp_bias": (True, False), "hidden_act": ACTS, "hidden_activation": ACTS, "activation_function": ACTS,
    "attn_logit_softcapping": (3.0,), "final_logit_softcapping": (2.0,), "logit_scale": (0.5,),
    "attention_dropout": (0.5,),
    "original_max_position_embeddings": (16,), "max_position_embeddings": (64, 16), "use_sliding_window": (True, False),
    "layer_types": (["sliding_attention"] * 3, ["full_attention"] * 3), "query_pre_attn_scalar": (5,),
    "norm_eps": (0.1,),
    "rms_norm_eps": (0.1, 0), "layer_norm_eps": (0.1,), "layer_norm_epsilon": (0.1,), "use_cache": (False,),
    "embedding_multiplier": (2.0,), "residual_multiplier": (0.5,), "attention_multiplier": (0.5,),
    "logits_scaling": (2.0,), "clip_qkv": (0.2,), "use_qk_norm": (True,), "qk_layernorm": (True,), "alibi": (True,),
    "torch_dtype": ("float16",), "dtype": ("bfloat16",), "scale_attn_weights": (False,),
    "norm_topk_prob": (True, False),
    "num_experts_per_tok": (1,), "routed_scaling_factor": (3.0,), "scoring_func": ("softmax", "sigmoid"),
    "attention_chunk_size": (4,), "is_decoder": (False,), "pruned_heads": ({},), "num_hidden_layers": (1, 2),
}  # fmt: skip


class Mutant(NamedTuple):
    """A changed config.json: its text, and what was done."""

    text: str
    what: str


def other(value: Any, key: str, rng: random.Random) -> Any:
    """Another value that a key could have."""
    if key in COMMON and rng.random() < 0.4:
        return rng.choice(COMMON[key])
    if isinstance(value, bool):
        return rng.choice([not value, not value, not value, None, int(value)])
    if isinstance(value, int):
        return rng.choice([value + 1, value - 1, value * 2, value // 2, 0, -1, float(value), None, value + 0.5])
    if isinstance(value, float):
        return rng.choice([value * 2, value / 2, value + 0.125, 0.0, 1, None, -value])
    if isinstance(value, str):
        return rng.choice(ACTS) if value in ACTS else rng.choice([value + "x", "", None, value.upper()])
    if isinstance(value, list) and value:
        at, longer = rng.randrange(len(value)), [*value, value[-1]]
        changed = [other(v, key, rng) if i == at else v for i, v in enumerate(value)]
        return rng.choice([changed, changed, value[:-1], longer, value[::-1], None])
    if isinstance(value, dict) and value:
        part = rng.choice(sorted(value))
        if rng.random() < 0.3:
            return rng.choice([None, {}, *SCALED])
        changed = dict(value)
        if rng.random() < 0.25:
            del changed[part]
        else:
            changed[part] = other(value[part], part, rng)
        return changed
    return rng.choice([True, False, 1, 2, 0.5, 7])


def mutant(config: dict[str, Any], kind: str, rng: random.Random) -> Mutant:
    """One key of a config.json changed, dropped, added, or written twice; of a model that sees, mostly its text's."""
    inner = config.get("text_config")
    if isinstance(inner, dict) and rng.random() < 0.7:
        found = mutant(inner, inner["model_type"], rng)
        rest = json.dumps({k: v for k, v in config.items() if k != "text_config"})
        return Mutant(f'{rest[:-1]}, "text_config": {found.text}}}', f"text_config: {found.what}")
    cls = outside("transformers").models.auto.configuration_auto.CONFIG_MAPPING[kind]
    names = dict(cls.attribute_map)
    own = set(config) | {f.name for f in dataclasses.fields(cls) if not f.name.startswith("_")} | set(names)
    keys = own - {"model_type", "vocab_size", "architectures", "vision_config"}  # A class's own vision is large.
    key = rng.choice(sorted(COMMON if rng.random() < 0.3 else keys))
    value = config.get(key, config.get(names.get(key, "")))
    how = rng.choice(["change", "change", "change", "drop", "double", "alias"])
    while repr(new := other(value, key, rng)) == repr(value):
        pass
    if how == "drop" and key in config:
        return Mutant(json.dumps({k: v for k, v in config.items() if k != key}), f"without {key} = {value!r}")
    if how == "alias" and names:
        one, its = rng.choice(sorted(names.items()))
        key, twin = (one, its) if its in config else (its, one)
        new = other(config.get(twin), twin, rng)
        return Mutant(json.dumps({**config, key: new}), f"{key} = {new!r} beside {twin} = {config.get(twin)!r}")
    text = json.dumps({**config, key: new})
    if how == "double" and key in config:
        again = new if rng.random() < 0.5 else value
        first = value if again is new else new
        rest = json.dumps({k: v for k, v in config.items() if k != key})
        twice = f"{json.dumps(key)}: {json.dumps(first)}", f"{json.dumps(key)}: {json.dumps(again)}"
        return Mutant(f"{{{twice[0]}, {rest[1:-1]}, {twice[1]}}}", f"{key} = {first!r}, then {again!r}")
    return Mutant(text, f"{key} = {new!r} in place of {value!r}")


def theirs(folder: Path, kind: str) -> npt.NDArray[Any] | str:
    """The logits of transformers, or why there are none."""
    torch = outside("torch")
    try:
        model, told = pretrained(folder, kind)
        lost = [*told["missing_keys"], *told.get("mismatched_keys", ())]
        if lost:
            return f"no weights for {sorted(map(str, lost))[:2]}"
        with torch.no_grad():
            found: npt.NDArray[Any] = model(torch.tensor(IDS[None].tolist())).logits[0].double().numpy()
        return found
    except Exception as why:  # noqa: BLE001 - classes refuse settings by many types of exceptions
        return f"{type(why).__name__}: {why}"


def ours(folder: Path) -> tuple[npt.NDArray[Any], list[str]]:
    """The logits of rlx, and its warnings."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        function, weights = rlx.models.trainable(folder, dtype="f64", activations="f64")
        got = np.asarray(rlx.jit(lambda w, ids: function(w, ids), device="cpu")(weights, IDS[None]))[0]
    told = [str(w.message) for w in said if issubclass(w.category, ModelWarning)]
    return got, [line for line in told if "rlx has the text model alone" not in line]


def same(got: npt.NDArray[Any], want: npt.NDArray[Any], limit: float = LIMIT) -> bool:
    if got.shape != want.shape:
        return False
    if not np.isfinite(want).all():
        return bool(np.array_equal(np.isnan(got), np.isnan(want)))
    return bool(error(got, want) <= limit)


def noise(folder: Path, kind: str) -> float:
    """The error of an unchanged folder."""
    want = theirs(folder, kind)
    assert not isinstance(want, str), want
    return error(ours(folder)[0], want)


def outcome(folder: Path, kind: str, limit: float = LIMIT) -> tuple[str, str]:
    """What comes of a folder beside transformers, and more about it."""
    try:
        got, said = ours(folder)
    except RlxError as refused:
        return "refused", str(refused)
    except Exception as fault:  # noqa: BLE001 - what is no typed error is what is sought
        return "untyped", f"{type(fault).__name__}: {fault}"
    want = theirs(folder, kind)
    if isinstance(want, str):
        return "alone", want
    if same(got, want, limit):
        return "equal", ""
    far = f"shape {got.shape}" if got.shape != want.shape else f"{error(got, want):.1e}"
    return ("warned", said[0]) if said else ("silent", f"differs by {far}")


def folders(work: Path, kinds: list[str]) -> Iterator[tuple[str, Path]]:
    """A folder of each type and each of its settings."""
    for kind in kinds:
        for number, settings in enumerate((EVERY | FOLDERS)[kind]):
            folder = work / f"{kind}-{number}"
            random_model(folder, kind, settings)
            yield kind, folder


def run(kinds: list[str], count: int, seed: int) -> Iterator[tuple[str, str, str, str]]:
    """(type, outcome, what was changed, more) of so many mutants, an equal part of each type."""
    for at, kind in enumerate(kinds):
        share = count * (at + 1) // len(kinds) - count * at // len(kinds)
        rng = random.Random(f"{seed} {kind}")
        with tempfile.TemporaryDirectory() as work:
            bases = [folder for _, folder in folders(Path(work), [kind])] if share else []
            held = [(folder / "config.json").read_text() for folder in bases]
            limits = [max(LIMIT, 4 * noise(folder, kind)) for folder in bases]
            for _ in range(share):
                which = rng.randrange(len(bases))
                one = mutant(json.loads(held[which]), kind, rng)
                (bases[which] / "config.json").write_text(one.text)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    result, more = outcome(bases[which], kind, limits[which])
                yield f"{kind}-{which}", result, one.what, more
                (bases[which] / "config.json").write_text(held[which])


def _told(name: str, said: list[warnings.WarningMessage]) -> bool:
    """Whether a warning names a tensor, or the part of a model that sees which it is of."""
    match = ASIDE.search(name)
    part = match[1] if match else re.sub(r"(?<=\.)\d+(?=\.)", "*", name)  # A warning names those of layers once.
    return any(told in str(w.message) for w in said for told in (part, name))


def unused(folder: Path) -> list[str]:
    """The tensors of a folder that change no logits and that no warning names, and a foreign one that is taken."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        function, weights = rlx.models.trainable(folder, dtype="f64", activations="f64")
    program = rlx.jit(lambda w, ids: function(w, ids), device="cpu")
    rng, found = np.random.default_rng(0), []
    texts = rng.integers(0, 96, (2, 40)).astype(np.int32)
    plain = np.asarray(program(weights, texts))
    moving, still = set[str](), dict[str, str]()
    tensors = {name: np.array(array) for name, array in safetensors.load(folder).items()}
    for name in tensors:
        told = _told(name, said)
        if name not in weights:
            found += [] if told else [f"{name} is not read"]
            continue
        part = re.sub(r"\.experts\.\d+\.", ".experts.*.", name)  # no token may choose one of the experts
        if told or part in moving:
            continue
        moved = {**weights, name: weights[name] - np.abs(rng.standard_normal(np.shape(weights[name])))}
        if np.array_equal(np.asarray(program(moved, texts)), plain):
            still[part] = f"{name} changes nothing"
        else:
            moving.add(part)
    found += [line for part, line in still.items() if part not in moving]
    first = next(iter(tensors))
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    for foreign in (f"{first}x", f"{first}.scale", "model.layers.0.self_attn.k_norm2.weight", "vision.x"):
        safetensors.save(copy / "model.safetensors", {**tensors, foreign: np.ones(3, np.float32)}, {"format": "pt"})
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                rlx.models.trainable(copy, dtype="f64", activations="f64")
            if not _told(foreign, said):
                found.append(f"{foreign} is taken without a word")
        except RlxError as refused:
            found += [] if foreign in str(refused) else [f"{foreign} is refused without its name: {refused}"]
    shutil.rmtree(copy)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--types", nargs="*", default=sorted(EVERY))
    parser.add_argument("--weights", action="store_true")
    asked = parser.parse_args()
    outside("transformers").logging.set_verbosity_error()
    counts: collections.Counter[str] = collections.Counter()
    if asked.weights:
        with tempfile.TemporaryDirectory() as work:
            for _, folder in folders(Path(work), asked.types):
                found = unused(folder)
                counts["folders"] += 1
                counts["tensors"] += len(safetensors.load(folder))
                counts["silent"] += len(found)
                print(*(f"{folder.name}: {line}" for line in found), sep="\n", end="\n" if found else "", flush=True)
                shutil.rmtree(folder)
    else:
        for name, result, what, more in run(asked.types, asked.count, asked.seed):
            counts[result] += 1
            if result in ("silent", "untyped", "warned", "alone"):
                print(f"{result}: {name}: {what}: {' '.join(more.split())[:160]}", flush=True)
    print(", ".join(f"{n} {name}" for name, n in sorted(counts.items())))
    return int(counts["silent"] + counts["untyped"] > 0)


if __name__ == "__main__":
    sys.exit(main())
