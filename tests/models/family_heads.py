"""Heads of text encoders of several types beside transformers, with weights that a formula gives.

`python -m tests.models.family_heads [TYPE …]` makes a folder of each `model_type`, with settings off their defaults,
for sparse vectors, scores and labels of tokens, and compares `rlx.models.trainable` in float64 with the class's logits;
exit status 1: one that differs by more than 1e-6, since several classes make tables and softmaxes in f32. `--freeze`
writes what the tests go by, with transformers 5.24.0 and torch 2.13.0."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import rlx
from tests.models.encoders.families import BASE, FAMILIES
from tests.models.tiny import formula, write_safetensors
from tests.outside import outside

FROZEN = Path(__file__).with_suffix(".json")
CLASSES = {"sparse": "AutoModelForMaskedLM", "scores": "AutoModelForSequenceClassification",
           "labels": "AutoModelForTokenClassification"}  # fmt: skip
TYPES = ("distilbert", "roberta", "electra", "albert", "modernbert", "mpnet")  # those of the frozen file
IDS = np.array([[(7 * i + 3) % 60 + 4 for i in range(9)]], np.int32)
_TYPES = ("sentence_transformers.sparse_encoder.models.MLMTransformer",
          "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling")  # fmt: skip


def write(folder: Path, task: str, config: dict[str, Any], shapes: dict[str, list[int]]) -> Path:
    """The folder of a model for a task."""
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", {
        name: formula(name, tuple(shape), 0.3 if shape[1:] else 0.2, 1.0 if "orm.weight" in name else 0.0)
        for name, shape in shapes.items()
    })  # fmt: skip
    if task == "sparse":
        listed = [{"idx": i, "name": str(i), "path": ("", "1_S")[i], "type": t} for i, t in enumerate(_TYPES)]
        (folder / "modules.json").write_text(json.dumps(listed))
        (folder / "1_S").mkdir()
        (folder / "1_S/config.json").write_text("{}")
    return folder


def ours(folder: Path) -> npt.NDArray[Any]:
    function, weights = rlx.models.trainable(folder, dtype="f64")
    return np.asarray(rlx.jit(function, device="cpu")(weights, IDS, np.ones(IDS.shape, np.bool_)))


def judged(folder: Path, task: str) -> npt.NDArray[Any]:
    torch, transformers = outside("torch"), outside("transformers")
    model = getattr(transformers, CLASSES[task]).from_pretrained(folder, dtype=torch.float64).eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(IDS).long()).logits
        logits = torch.log1p(torch.relu(logits)).max(1).values if task == "sparse" else logits
    return np.asarray(logits.numpy())


def cases(kind: str, freeze: bool) -> Any:
    """A folder's task, config.json and shapes of weights, for each that the type has."""
    torch, transformers = outside("torch"), outside("transformers")
    for settings in {**FAMILIES, "bert": (BASE,)}[kind]:
        for task, name in CLASSES.items():
            few = {"n_layers" if kind == "distilbert" else "num_hidden_layers": 2 if kind == "albert" else 1}
            config = transformers.AutoConfig.for_model(kind, **{**settings, **(few if freeze else {})}, num_labels=3)
            with torch.device("meta"):
                try:
                    model = getattr(transformers, name).from_config(config)
                except ValueError:  # transformers has no such class
                    continue
            with tempfile.TemporaryDirectory() as work:
                model = model.to_empty(device="cpu")
                model.tie_weights()
                model.save_pretrained(work)
                content = json.loads((Path(work) / "config.json").read_text())
                from safetensors import safe_open

                with safe_open(Path(work) / "model.safetensors", "np") as held:
                    shapes = {n: list(held.get_slice(n).get_shape()) for n in held.keys()}  # noqa: SIM118
            yield task, content, shapes
        if freeze:
            return


def main() -> int:
    freeze = "--freeze" in sys.argv
    kinds = [arg for arg in sys.argv[1:] if not arg.startswith("-")] or list(TYPES if freeze else (*FAMILIES, "bert"))
    frozen: dict[str, Any] = {}
    wrong = 0
    for kind in kinds:
        for task, config, shapes in cases(kind, freeze):
            with tempfile.TemporaryDirectory() as work:
                exact = judged(write(Path(work), task, config, shapes), task)
                try:
                    apart = float(np.abs(ours(Path(work)) - exact).max())
                except rlx.RlxError as error:
                    print(f"{kind:20} {task:8} refused: {str(error)[-100:]}")
                    continue
            wrong += not apart <= 1e-6
            print(f"{kind:20} {task:8} {apart:.1e}")
            frozen[f"{kind} {task}"] = {"config": config, "shapes": shapes, "exact": exact[0].round(12).tolist()}
    if freeze:
        FROZEN.write_text("{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}"
                                           for k, v in frozen.items()) + "}\n")  # fmt: skip
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
