"""Adapter: the low-rank corrections of a model's products that a PEFT folder holds."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType, rounded
from rlx.errors import ModelFormatError, meant
from rlx.formats.files import read_json, shown
from rlx.formats.safetensors import SafetensorsFile
from rlx.models.language.config import Fields

MOST_RANK = 1 << 12
_KINDS = (".lora_A.weight", ".lora_B.weight")
# What a folder may not ask for, with the values that ask for nothing, the first of which is the default.
_NOT_THERE: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None), "modules_to_save": (None, []), "bias": ("none",), "lora_bias": (False, None),
    "rank_pattern": ({}, None), "alpha_pattern": ({}, None), "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}), "target_parameters": (None, []), "use_qalora": (False, None),
    "alora_invocation_tokens": (None, []),
    # Others begin with changed weights of the base, which the folder does not hold.
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva"),
}  # fmt: skip


@dataclass(frozen=True)
class LowRank:
    """What a graph needs to know of an adapter: its rank, and the products it corrects. Adapters that are equal in
    this share their programs. `products` are those that a graph has, with their parts and the length of their rows."""

    rank: int
    names: frozenset[str]
    products: dict[str, tuple[Sequence[tuple[str, int]], int]] = field(default_factory=dict, compare=False)

    def of(self, name: str, parts: Sequence[tuple[str, int]], inputs: int) -> int:
        """The rank of the correction of a product, whose parts are products by name and number of outputs that stand
        one beside the other; 0 where none of them has one."""
        self.products[name] = (parts, inputs)
        return self.rank * sum(part in self.names for part, _ in parts)

    def states(self, name: str) -> tuple[str, str]:
        """The names of the two matrices of a product; those of other shapes have other names."""
        parts = self.products[name][0]
        rank = self.rank * sum(part in self.names for part, _ in parts)
        return f"{name}.lora_a.{rank}", f"{name}.lora_b.{rank}"


class LowRanks:
    """Several adapters in one program: the matrices of a product are those of all, one beside the other, and each
    sequence keeps the part of the one whose number it has. Adapters were fitted to the model before."""

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        self._adapters = tuple(adapters)
        self._products: dict[str, tuple[Sequence[tuple[str, int]], int]] = {}

    def of(self, name: str, parts: Sequence[tuple[str, int]], inputs: int) -> int:
        """The rank of the correction of a product by all adapters; as `LowRank.of`."""
        self._products[name] = (parts, inputs)
        return sum(adapter.low.of(name, parts, inputs) for adapter in self._adapters)

    def states(self, name: str) -> tuple[str, str]:
        """The names of the two matrices of a product."""
        return f"{name}.lora_a", f"{name}.lora_b"

    def owners(self, name: str) -> npt.NDArray[np.int32]:
        """The number of the adapter that each row of a product's A is of."""
        ranks = [adapter.low.of(name, *self._products[name]) for adapter in self._adapters]
        return np.repeat(np.arange(len(ranks), dtype=np.int32), ranks)

    @property
    def matrices(self) -> dict[str, npt.NDArray[Any]]:
        """The matrices of the products that graphs asked for, by the names of their states."""
        made: dict[str, npt.NDArray[Any]] = {}
        for name, product in self._products.items():
            own = [adapter for adapter in self._adapters if adapter.low.of(name, *product)]
            for axis, state in enumerate(self.states(name) if own else ()):
                parts = [adapter.matrices[adapter.low.states(name)[axis]] for adapter in own]
                made[state] = np.concatenate(parts, axis)
        return made


class Adapter:
    """A LoRA adapter (Hu et al., 2021) of a PEFT folder: adapter_config.json and adapter_model.safetensors.

    A product W x becomes W x + s · B (A x), with s = alpha / r, or alpha / √r with `use_rslora` (Kalajdzievski, 2023).
    `bare` gives the model's own name of a product for that of a file. `low` is what graphs know of it; once one was
    traced, `make` makes the `matrices`, by the names of their states. Raises: ModelFormatError naming what is damaged,
    or is not there in rlx.
    """

    def __init__(self, folder: str | os.PathLike[str], bare: Callable[[str], str]) -> None:
        self.path = Path(folder)
        file = self.path / "adapter_config.json"
        if not os.path.exists(file):
            raise ModelFormatError(f"{self.path} has no adapter_config.json; give the folder of a PEFT adapter")
        f = Fields(read_json(file), str(file))
        f.must_be("peft_type", "LORA")
        for name, allowed in _NOT_THERE.items():
            f.must_be(name, *allowed)
        rank, alpha = f.count("r", MOST_RANK, 8), f.number("lora_alpha", 0.0, 1e6, 8.0)
        self._scale = alpha / (math.sqrt(rank) if f.flag("use_rslora", False) else rank)
        if not os.path.exists(self.path / "adapter_model.safetensors"):
            raise ModelFormatError(f"{self.path} has no adapter_model.safetensors; save the adapter in that format")
        self._tensors = self._read(SafetensorsFile(self.path / "adapter_model.safetensors"), bare)
        self.low = LowRank(rank, frozenset(name for name, _ in self._tensors))
        self.matrices: dict[str, npt.NDArray[Any]] = {}
        targets = f.content.get("target_modules")
        for target in targets if isinstance(targets, list) else ():
            if not any(f".{name}".endswith(f".{target}") for name in self.low.names):
                f.wrong("target_modules", f"modules of which the file has matrices; it has none of {shown(target)}")

    def _read(
        self, held: Mapping[str, npt.NDArray[Any]], bare: Callable[[str], str]
    ) -> dict[tuple[str, str], npt.NDArray[Any]]:
        made: dict[tuple[str, str], npt.NDArray[Any]] = {}
        for name, array in held.items():
            kind = next((k for k in _KINDS if name.endswith(k)), None)
            if kind is None or array.ndim != 2 or array.dtype.name not in ("float32", "float16", "bfloat16"):
                what = f"{array.dtype} {array.shape}"
                self._wrong(f"tensor {shown(name)}, {what}, is no matrix lora_A or lora_B of f32, f16 or bf16")
            made[bare(name.removesuffix(kind).removeprefix("base_model.model.")), kind] = np.array(array)
        for name, kind in made:
            if any((name, k) not in made for k in _KINDS):
                self._wrong(f"{shown(name)} has {kind[1:7]} alone")
        if not made:
            self._wrong("it holds no tensors")
        return made

    def _wrong(self, what: str) -> NoReturn:
        raise ModelFormatError(f"{self.path / 'adapter_model.safetensors'}: {what}")

    def make(self, dtype: DType) -> None:
        """Makes of each product the stacked A, (rank, inputs), and s · B, (outputs, rank), where the parts of a product
        are blocks on a diagonal.

        Raises: ModelFormatError for corrections of what is no product of the model, or of another shape."""
        known = {part for parts, _ in self.low.products.values() for part, _ in parts}
        if odd := sorted(self.low.names - known):
            more = f" and {len(odd) - 1} more" if odd[1:] else ""
            self._wrong(f"{shown(odd[0])}{more} is no product of this model{meant(odd[0], known)}")
        for name, (parts, inputs) in self.low.products.items():
            own = [part for part, _ in parts if part in self.low.names]
            if not own:
                continue
            rank, at, row = self.low.rank, 0, 0
            a = np.concatenate([self._matrix(part, 0, (rank, inputs)) for part in own])
            b = np.zeros((sum(n for _, n in parts), len(a)))
            for part, n in parts:
                if part in self.low.names:
                    b[row : row + n, at : at + rank] = self._matrix(part, 1, (n, rank)) * self._scale
                    at += rank
                row += n
            for state, array in zip(self.low.states(name), (a, b), strict=True):
                self.matrices[state] = rounded(array, dtype.np)
        self._tensors.clear()

    def _matrix(self, part: str, kind: int, shape: tuple[int, int]) -> npt.NDArray[np.float64]:
        array = self._tensors[part, _KINDS[kind]]
        if array.shape != shape:
            self._wrong(f"{part}{_KINDS[kind]} has shape {array.shape}, expected {shape}")
        return array.astype(np.float64)
