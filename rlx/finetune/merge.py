"""Merging: a model's files with an adapter's corrections in the weights, or with weights that were trained."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import rounded
from rlx.errors import ModelFormatError
from rlx.finetune.adapter_files import TURNED, Adapter
from rlx.formats import safetensors
from rlx.formats.files import folder_made_whole
from rlx.formats.gguf import read
from rlx.formats.gguf.to_folder import gguf_to_folder
from rlx.formats.huggingface import ModelFolder
from rlx.models import Lora
from rlx.models.language.written import folder_to_gguf

_WEIGHTS = (".safetensors", ".bin", ".index.json", ".gguf", ".pth", ".pt", ".h5", ".msgpack", ".onnx")


def merged(weight: npt.NDArray[Any], values: Mapping[str, npt.NDArray[np.float32]], lora: Lora) -> npt.NDArray[Any]:
    """A weight, outputs first, with its correction, in its own dtype; computed in f64."""
    wide = weight.astype(np.float64)
    wide += lora.scale * (values["lora_B"].astype(np.float64) @ values["lora_A"].astype(np.float64))
    if lora.dora:
        wide *= (values["lora_magnitude_vector"] / np.linalg.norm(wide, axis=1))[:, None]
    return rounded(wide, weight.dtype)


def write_folder(base: str | os.PathLike[str], folder: str | os.PathLike[str], changed: Mapping[str, Any]) -> None:
    """Writes a copy of a model's folder with new values of some tensors, in their original dtypes. The folder appears
    whole or not at all. Raises: ModelFormatError, FileExistsError, OSError."""
    source, target = ModelFolder(base), Path(folder)
    if target.exists():
        raise FileExistsError(17, "exists already; give the name of a new folder", str(target))
    held = source.tensors()
    if "quantization_config" in source.config:
        raise ModelFormatError(f"{base}: its weights are quantized, and a folder of these is not written")
    with folder_made_whole(target) as new:
        for path in sorted(source.path.iterdir()):
            if path.is_file() and not path.name.endswith(_WEIGHTS):
                shutil.copyfile(path, new / path.name)
            elif path.is_dir() and (source.path / "modules.json").exists() and path.name[:1].isdigit():
                shutil.copytree(path, new / path.name)
        tensors: dict[str, Any] = {n: rounded(np.asarray(changed.get(n, held[n])), held[n].dtype) for n in held}
        safetensors.save(new / "model.safetensors", tensors, {"format": "pt"})


def merge(
    base: str | os.PathLike[str], adapter: Adapter, lora: Lora, output: str | os.PathLike[str],
    dtype: str | None = None,
) -> list[str]:  # fmt: skip
    """Writes a model (a folder or a GGUF file) with an adapter's corrections in its weights: as a folder, or, if the
    name ends in .gguf, as a GGUF file with matrices of `dtype`. Packed weights become f16 first. Returns: notes.

    Raises: ModelFormatError for a module without a weight in the files, FileExistsError, OSError."""
    output = Path(output)
    if output.exists():
        raise FileExistsError(17, "exists already; give another name", str(output))
    with tempfile.TemporaryDirectory() as room:
        source = Path(base)
        if source.is_file():
            with read(source) as file:
                gguf_to_folder(file, Path(room) / "base", "f16")
            source = Path(room) / "base"
        config, held = ModelFolder(source), ModelFolder(source).tensors()
        changed = {}
        for module, values in adapter.items():
            name = next((n for n in (f"{module}.weight", f"{module.partition('.')[2]}.weight") if n in held), None)
            if name is None:
                raise ModelFormatError(f"{source}: has no tensor {module}.weight, which the adapter corrects")
            turned = config.config.get("model_type") in TURNED and not module.endswith("lm_head")
            weight = np.asarray(held[name])
            whole = merged(weight.T if turned else weight, values, lora)
            changed[name] = np.ascontiguousarray(whole.T if turned else whole)
        if output.suffix != ".gguf":
            write_folder(source, output, changed)
            return []
        write_folder(source, Path(room) / "merged", changed)
        return folder_to_gguf(Path(room) / "merged", output, dtype)
