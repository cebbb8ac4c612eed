"""Settings of config.json that classes of transformers read in their own ways, on tiny models of every architecture.

`python -m tests.models.language.settings_sweep [MODEL …]` compares logits with transformers in float64, which takes
minutes, and writes settings.json: for each model and setting "same", with "warned" where rlx says that it leaves a
setting out, or "refused" by both, or "here alone" where transformers refuses what rlx runs. Exit status 1: another.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlx.errors import ModelFormatError, ModelWarning
from rlx.formats import safetensors
from rlx.models import load
from tests.models.language.test_beside_transformers import MODELS, judge, random_model
from tests.outside import outside

FILE = Path(__file__).with_name("settings.json")
NAMES = [name for name in MODELS if name not in ("llama3", "phi3_short", "phi3_long")]
SCALED: dict[str, dict[str, Any]] = {
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"factor": 4.0}, "longrope": {}, "linear": {"factor": 2.0}, "dynamic": {"factor": 2.0},
}  # fmt: skip
HEADS = ("head beside", "head alone", "head twice")  # an output matrix beside tied embeddings, instead, the same again
ORIGINAL = "original_max_position_embeddings"


def cases(pairs: int) -> dict[str, dict[str, Any]]:
    """What is changed in config.json by name, for heads of which so many pairs are turned."""
    made: dict[str, dict[str, Any]] = {}
    for kind, settings in SCALED.items():
        scaling = {"rope_type": kind, **settings}
        if kind == "longrope":
            scaling |= {"short_factor": [1 + i / 10 for i in range(pairs)], "long_factor": [*range(1, pairs + 1)]}
        made[f"{kind}, part"] = {"rope_scaling": scaling, "partial_rotary_factor": 0.5}
        if kind in ("linear", "dynamic"):
            made[kind] = {"rope_scaling": scaling}
            continue
        made[kind] = {"rope_scaling": scaling}
        made[f"{kind}, inner"] = {"rope_scaling": {**scaling, ORIGINAL: 64}}
        made[f"{kind}, outer"] = {"rope_scaling": scaling, ORIGINAL: 16}
        made[f"{kind}, both"] = {"rope_scaling": {**scaling, ORIGINAL: 64}, ORIGINAL: 16}
    made["yarn, null"] = {"rope_scaling": {"rope_type": "yarn", "factor": None, ORIGINAL: 64}}
    made["proportional"] = {"rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 0.5}}
    made["proportional, part"] = {
        "rope_scaling": {"rope_type": "proportional", "factor": 2.0}, "partial_rotary_factor": 0.25
    }  # fmt: skip
    made["part"] = {"partial_rotary_factor": 0.5}
    made["part, inner"] = {"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}
    made["softcap"] = {"attn_logit_softcapping": 3.0}
    return made | {head: {"tie_word_embeddings": True} for head in HEADS}


def change(folder: Path, case: str, settings: dict[str, Any]) -> None:
    """Makes a folder's case of it."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    if settings.keys() & {"rope_scaling", "partial_rotary_factor"}:
        config.pop("rope_parameters", None)
        config.pop(ORIGINAL, None)
        config["rope_theta"] = 500.0
    file.write_text(json.dumps(config | settings))
    if case not in HEADS:
        return
    held = {name: np.array(array) for name, array in safetensors.load(folder).items()}
    (table,) = (n for n in held if n.endswith(("embed_tokens.weight", "wte.weight", "embeddings.weight")))
    rows = held[table]
    noise = np.random.default_rng(0).standard_normal(rows.shape).astype(rows.dtype) / 10
    held["lm_head.weight"] = rows + (noise if case == "head beside" else 0)
    if case == "head alone":
        del held[table]
    safetensors.save(folder / "model.safetensors", held, {"format": "pt"})


def outcome(folder: Path, name: str) -> str:
    """What comes of a changed folder, beside transformers."""
    torch = outside("torch")
    tokens = torch.arange(3, 48) * 7 % 96
    want: Any = None
    try:
        with torch.no_grad():
            want = judge(folder, name)(tokens[None]).logits[0].numpy()
    except Exception:  # noqa: BLE001 - classes refuse settings by many types of exceptions
        want = None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with load(folder, "cpu", context=64, engine="numpy") as model:
                got = model.logits(tokens.numpy())
        except ModelFormatError:
            return "refused" if want is None else "refused here alone"
    if want is None:
        return "here alone"
    error = float(((got - want) ** 2).sum() / (want**2).sum())
    warned = ", warned" if any(issubclass(w.category, ModelWarning) for w in said) else ""
    return f"same{warned}" if error <= 1e-11 else f"differs by {error:.1e}"


def each(name: str, keep: Callable[[str], bool] = lambda case: True) -> dict[str, str]:
    """The outcome of a model's cases by name."""
    made = {}
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base)
        random_model(folder, name)
        files = {file.name: file.read_bytes() for file in folder.iterdir()}
        config = json.loads(files["config.json"])
        rope, heads = config.get("rope_parameters") or {}, config.get("num_attention_heads")
        size = config.get("head_dim") or (config["hidden_size"] // heads if heads else 4)
        for case, settings in cases(int(size * rope.get("partial_rotary_factor", 1.0)) // 2).items():
            if not keep(case) or (not heads and case not in HEADS):
                continue
            for file, content in files.items():
                (folder / file).write_bytes(content)
            change(folder, case, settings)
            made[case] = outcome(folder, name)
    return made


def main() -> int:
    found = {name: each(name) for name in sys.argv[1:] or NAMES}
    listed = [(name, case, what) for name, made in found.items() for case, what in made.items()]
    for name, case, what in listed:
        print(f"{name:12} {case:20} {what}")
    if len(sys.argv) == 1:
        FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    odd = [entry for entry in listed if entry[2].startswith(("differs", "refused here"))]
    print(f"{len(listed)} tried, {len(odd)} differ")
    return bool(odd)


if __name__ == "__main__":
    sys.exit(main())
