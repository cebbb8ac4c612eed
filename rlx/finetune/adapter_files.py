"""Adapters as files: the folder that PEFT reads, and the GGUF file that llama.cpp's --lora reads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.errors import ModelFormatError
from rlx.formats import safetensors
from rlx.formats.files import written_whole
from rlx.formats.gguf.convert import pairs_of_halves
from rlx.formats.gguf.model import taken
from rlx.formats.gguf.names import BY_MODEL_TYPE
from rlx.formats.gguf.writer import write
from rlx.models import Lora

Adapter = Mapping[str, Mapping[str, npt.NDArray[np.float32]]]
TURNED = ("gpt2", "openai-gpt")  # models whose files hold their matrices transposed


def write_peft(
    folder: str | os.PathLike[str], adapter: Adapter, lora: Lora, *, base: str | None, model_type: str, task: str | None
) -> None:
    """Writes adapter_config.json and adapter_model.safetensors, as PEFT 0.21 reads them, each whole or not at all.

    Raises: OSError."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, npt.NDArray[Any]] = {}
    for module, values in adapter.items():
        for name, value in values.items():
            end = "" if name == "lora_magnitude_vector" else ".weight"
            tensors[f"base_model.model.{module}.{name}{end}"] = np.asarray(value)
    config = {
        "peft_type": "LORA", "task_type": task, "base_model_name_or_path": base, "r": lora.rank,
        "lora_alpha": lora.alpha, "use_rslora": lora.rslora, "use_dora": lora.dora, "target_modules": sorted(adapter),
        "fan_in_fan_out": model_type in TURNED, "bias": "none", "lora_dropout": 0.0, "inference_mode": True,
    }  # fmt: skip
    safetensors.save(folder / "adapter_model.safetensors", tensors, {"format": "pt"})
    with written_whole(folder / "adapter_config.json") as file:
        file.write(json.dumps(config, indent=2).encode())


def write_gguf(path: str | os.PathLike[str], adapter: Adapter, lora: Lora, config: Mapping[str, Any]) -> None:
    """Writes the adapter of a model with this config.json as a GGUF file, of f32.

    Raises: ModelFormatError for DoRA, which llama.cpp does not have, for models and modules that have no name in GGUF,
    and for a model from a folder whose heads GGUF orders differently; OSError."""
    if lora.dora:
        raise ModelFormatError(
            f"{path}: llama.cpp's adapters have no magnitudes, as DoRA does; --merge writes the model with it"
        )
    family = BY_MODEL_TYPE.get(str(config.get("model_type")))
    # GGUF has Qwen3.5's heads in another order; the adapter fits if the base is a GGUF file.
    if family is None or (family.tiled and not config.get("linear_heads_tiled")):
        known = ", ".join(name for name, f in BY_MODEL_TYPE.items() if not f.tiled)
        raise ModelFormatError(
            f"{path}: rlx writes adapters of {known} as GGUF, not of {config.get('model_type')!r}; "
            "--merge writes the model with it"
        )
    tensors: dict[str, npt.NDArray[Any]] = {}
    for module, values in adapter.items():
        bare = module.removeprefix("transformer.") if family.model_type == "gpt2" else module
        name = family.gguf_name(f"{bare}.weight")
        if name is None:
            raise ModelFormatError(f"{path}: GGUF has no name for module {module!r} of a {family.model_type}")
        b = np.asarray(values["lora_B"], np.float32)
        change = family.change(name)
        if change in ("pairs of q", "pairs of k"):
            heads = config["num_attention_heads"]
            if change == "pairs of k":
                heads = config.get("num_key_value_heads") or heads
            b = np.asarray(taken(b, pairs_of_halves(len(b), heads)))
        tensors[f"{name}.lora_a"] = np.asarray(values["lora_A"], np.float32)
        tensors[f"{name}.lora_b"] = b
    metadata = {
        "general.type": "adapter", "general.architecture": family.architecture, "adapter.type": "lora",
        "adapter.lora.alpha": float(lora.scale * lora.rank),  # llama.cpp divides it by the rank
    }  # fmt: skip
    write(path, metadata, tensors)


def read_peft(folder: str | os.PathLike[str]) -> dict[str, dict[str, npt.NDArray[Any]]]:
    """The parameters of an adapter that `write_peft` wrote. Raises: ModelFormatError."""
    result: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for name, value in safetensors.load(Path(folder) / "adapter_model.safetensors").items():
        module, _, what = name.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".")
        result.setdefault(module, {})[what] = np.array(value)
    return result
