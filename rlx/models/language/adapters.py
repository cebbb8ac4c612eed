"""Adapter: the low-rank corrections of a model's products that a PEFT folder, or a GGUF file, holds."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType, rounded
from rlx.errors import FileMissing, ModelFormatError, meant
from rlx.formats.files import read_json, shown
from rlx.formats.safetensors import SafetensorsFile
from rlx.models.language.architectures.base import Recipe
from rlx.models.language.config import Fields, LanguageConfig
from rlx.packed import PackedArray
from rlx.records import Record, field

Scaled = tuple[npt.NDArray[Any] | PackedArray, npt.NDArray[Any] | None]  # a weight and the factor of its products
MOST_RANK = 1 << 12
_KINDS = (".lora_A.weight", ".lora_B.weight")
_MAGNITUDES = ".lora_magnitude_vector"
_CHUNK = 1 << 10  # rows of a weight that are f64 at once
_FLOATS = ("float64", "float32", "float16", "bfloat16")
_NAME = re.compile(r"\^?[\w.-]+\$?")
_BASE = re.compile(r"(.*)\.base_layer\.weight|((?:.*\.)?(?:embed_tokens|lm_head))\.weight")
_ROUNDED = 0.1  # the largest squared error of a packed weight relative to its squares: 2-bit formats have less
# Settings that rlx does not support, with their allowed values, which ask for nothing; the first is the default.
_NOT_THERE: dict[str, tuple[Any, ...]] = {
    "modules_to_save": (None, []), "bias": ("none",), "lora_bias": (False, None),
    "layer_replication": (None, []), "trainable_token_indices": (None, [], {}), "target_parameters": (None, []),
    "use_qalora": (False, None), "use_bdlora": (None, False), "alora_invocation_tokens": (None, []),
    "arrow_config": (None,), "velora_config": (None,), "kasa_config": (None,), "monteclora_config": (None,),
    "ensure_weight_tying": (False, None),
    # Other initializations change the base's weights, which the folder does not hold.
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva", "mica"),
}  # fmt: skip


class LowRank(Record, slots=False):
    """What a graph needs to know of an adapter: the products that it corrects, with their ranks, and those with DoRA's
    magnitudes. Adapters for which these are equal share programs. `products` collects the products of the graph, each
    with its parts and its number of inputs."""

    ranks: frozenset[tuple[str, int]]
    magnitudes: frozenset[str] = frozenset()
    products: dict[str, tuple[Sequence[tuple[str, int]], int]] = field(default_factory=dict, compare=False)

    @cached_property
    def _of(self) -> dict[str, int]:
        return dict(self.ranks)

    def of(self, name: str, parts: Sequence[tuple[str, int]], inputs: int) -> int:
        """The rank of a product's correction; 0 for no correction. `parts` are the products joined in it, by name and
        number of outputs."""
        self.products[name] = (parts, inputs)
        return sum(self._of.get(part, 0) for part, _ in parts)

    def states(self, name: str) -> tuple[str, str]:
        """The names of the states of a product's two matrices, which contain the rank: a name stands for one shape."""
        rank = sum(self._of.get(part, 0) for part, _ in self.products[name][0])
        return f"{name}.lora_a.{rank}", f"{name}.lora_b.{rank}"

    def factors(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """The state of the factors of a product's outputs, its name and shape; None where there are none. The product
        was asked for before (`of`)."""
        parts, _ = self.products[name]
        if self.magnitudes.isdisjoint(part for part, _ in parts):
            return None
        return f"{name}.lora_m", (sum(n for _, n in parts),)


class LowRanks:
    """Several adapters in one program: a product's matrices are those of all adapters concatenated, and each sequence
    uses only the rows of the adapter that its number names. Requires: the adapters were fitted to the model."""

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

    def factors(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """As `LowRank.factors`, of all adapters: a row of ones for sequences without one, then a row for each."""
        own = [state for adapter in self._adapters if (state := adapter.low.factors(name))]
        return (f"{name}.lora_m.{len(self._adapters)}", (len(self._adapters) + 1, *own[0][1])) if own else None

    def owners(self, name: str) -> npt.NDArray[np.int32]:
        """For each row of a product's A, the number of the adapter that it belongs to."""
        ranks = [adapter.low.of(name, *self._products[name]) for adapter in self._adapters]
        return np.repeat(np.arange(len(ranks), dtype=np.int32), ranks)

    @property
    def matrices(self) -> dict[str, npt.NDArray[Any]]:
        """The matrices of the products that graphs asked for, by the names of their states."""
        result: dict[str, npt.NDArray[Any]] = {}
        for name, product in self._products.items():
            own = [adapter for adapter in self._adapters if adapter.low.of(name, *product)]
            for axis, state in enumerate(self.states(name) if own else ()):
                parts = [adapter.matrices[adapter.low.states(name)[axis]] for adapter in own]
                result[state] = np.concatenate(parts, axis)
            if magnitudes := self.factors(name):
                state, (_, outputs) = magnitudes
                ones = np.ones(outputs, np.float32)
                rows = [adapter.matrices.get(f"{name}.lora_m", ones) for adapter in self._adapters]
                result[state] = np.stack([ones, *rows])
        return result


class Adapter:
    """A LoRA adapter (Hu et al., 2021) of a PEFT folder, adapter_config.json and adapter_model.safetensors, or of the
    GGUF file that llama.cpp takes, whose names and order of rows are those of this `model`.

    A product W x becomes W x + s · B (A x), with s = alpha / r, or alpha / √r with `use_rslora` (Kalajdzievski, 2023);
    patterns give products ranks and alphas of their own. With `use_dora` each output is multiplied by its magnitude
    over the length of its row of W + s · B A (Liu et al., 2024).

    `bare` turns a file's name of a product into the model's own, and `products` gives the products whose weights a
    module's matrix holds, each with its rows. `low` is what graphs know of the adapter; once a graph was traced, `make`
    makes the `matrices`, by the names of their states. `bases` are the base's own weights that PEFT writes beside
    corrections of embeddings and output matrices.
    Raises: ModelFormatError naming what is damaged, or not supported by rlx.
    """

    def __init__(
        self, path: str | os.PathLike[str], bare: Callable[[str], str],
        products: Callable[[str], Sequence[tuple[str, Recipe]]] = lambda module: (),
        model: LanguageConfig | None = None,
    ) -> None:  # fmt: skip
        self.path = Path(path)
        held: Mapping[str, npt.NDArray[Any]] | None = None
        if self.path.is_file():
            from rlx.models.language.gguf_adapters import read_adapter

            config, held = read_adapter(self.path, model)
            self._file, self._fields = self.path, Fields(config, str(self.path))
        else:
            file, self._file = self.path / "adapter_config.json", self.path / "adapter_model.safetensors"
            if not os.path.exists(file):
                what = "has no adapter_config.json" if self.path.exists() else "does not exist"
                raise FileMissing(
                    f"{self.path} {what}; give the folder of a PEFT adapter, or llama.cpp's .gguf "
                    "of one", file,
                )  # fmt: skip
            self._fields = Fields(read_json(file), str(file))
        f = self._fields
        f.must_be("peft_type", "LORA")
        f.must_be("use_dora", False, None, True)
        self._magnitudes: dict[str, npt.NDArray[Any]] | None = {} if f.content.get("use_dora") else None
        for name, allowed in _NOT_THERE.items():
            f.must_be(name, *allowed)
        rank, alpha = f.count("r", MOST_RANK, 8), f.number("lora_alpha", 0.0, 1e6, 8.0)
        ranks, alphas = _patterns(f, "rank_pattern"), _patterns(f, "alpha_pattern")
        if not os.path.exists(self._file):
            raise ModelFormatError(f"{self.path} has no adapter_model.safetensors; save the adapter in that format")
        self.bases: dict[str, npt.NDArray[Any]] = {}
        self._full: dict[str, str] = {}  # the base's name of each product
        self._of_weights: set[str] = set()  # products, or other weights of the model
        self._tensors = self._read(SafetensorsFile(self._file) if held is None else held, bare, products)
        self._ranks = {name: ranks.count(_first(ranks, full), MOST_RANK, rank) for name, full in self._full.items()}
        whole = f.flag("use_rslora", False)
        self._scales = {
            name: alphas.number(_first(alphas, full), 0.0, 1e6, alpha)
            / (math.sqrt(self._ranks[name]) if whole else self._ranks[name])
            for name, full in self._full.items()
        }
        self.low = LowRank(frozenset(self._ranks.items()), frozenset(self._magnitudes or ()))
        self.matrices: dict[str, npt.NDArray[Any]] = {}

    def _read(
        self, held: Mapping[str, npt.NDArray[Any]], bare: Callable[[str], str],
        products: Callable[[str], Sequence[tuple[str, Recipe]]],
    ) -> dict[tuple[str, str], npt.NDArray[Any]]:
        result: dict[tuple[str, str], npt.NDArray[Any]] = {}
        for name, array in held.items():
            full = name.removeprefix("base_model.model.")
            if ".lora_embedding_" in name:
                self._wrong(f"tensor {shown(name)} corrects embeddings, which rlx has no code for")
            if base := _BASE.fullmatch(full):
                self.bases[bare(base[1] or base[2])] = array
                continue
            if self._magnitudes is not None and full.removesuffix(".weight").endswith(_MAGNITUDES):
                self._read_magnitudes(full, array, bare, products)
                continue
            kind = next((k for k in _KINDS if name.endswith(k)), None)
            if kind is None or array.ndim != 2 or array.dtype.name not in _FLOATS:
                what = f"{array.dtype} {array.shape}"
                self._wrong(f"tensor {shown(name)}, {what}, is no matrix lora_A or lora_B of floats")
            full = full.removesuffix(kind)
            parts = [(part, recipe.rows) for part, recipe in products(bare(full))]
            whole = sum(0 if r is None else r.stop - r.start if isinstance(r, slice) else len(r) for _, r in parts)
            if kind == _KINDS[1] and whole not in (0, len(array)):
                self._wrong(f"tensor {shown(name)} has {len(array)} rows, expected {whole}")
            self._of_weights |= {part for part, _ in parts}
            for part, rows in parts or [(bare(full), None)]:
                self._full[part] = full
                result[part, kind] = np.array(array if rows is None or kind == _KINDS[0] else array[rows])
        for name, kind in result:
            if any((name, k) not in result for k in _KINDS):
                self._wrong(f"{shown(name)} has {kind[1:7]} alone")
        if not result:
            self._wrong("it holds no tensors")
        if self._magnitudes is not None and (odd := self._full.keys() ^ self._magnitudes.keys()):
            self._wrong(f"use_dora is true, and {shown(min(odd))} has no {_MAGNITUDES[1:]}, or that alone")
        return result

    def _read_magnitudes(
        self, full: str, array: npt.NDArray[Any], bare: Callable[[str], str],
        products: Callable[[str], Sequence[tuple[str, Recipe]]],
    ) -> None:  # fmt: skip
        assert self._magnitudes is not None
        if array.ndim != 1 or array.dtype.name not in _FLOATS:
            self._wrong(f"tensor {shown(full)}, {array.dtype} {array.shape}, is no vector of floats")
        name = bare(full.removesuffix(".weight").removesuffix(_MAGNITUDES))
        own = [(part, recipe.rows) for part, recipe in products(name)]
        for part, rows in own or [(name, None)]:
            self._magnitudes[part] = np.array(array if rows is None else array[rows])

    def _wrong(self, what: str) -> NoReturn:
        raise ModelFormatError(f"{self._file}: {what}")

    def make(
        self, dtype: DType, multiplier: Callable[[str], npt.NDArray[Any] | None], weight_of: Callable[[str], Scaled]
    ) -> None:
        """Makes for each product the stacked A, (rank, inputs), and s · B, (outputs, rank), block-diagonal where a
        product has several parts; `multiplier` gives the model's own factor of a product, corrected or not. With DoRA
        also the factors of its outputs, f32 (outputs,), for which `weight_of` gives the product's weight.

        Raises: ModelFormatError for corrections of anything but the model's products, or of another shape, and for a
        target whose products all lack their matrices."""
        known = {part for parts, _ in self.low.products.values() for part, _ in parts}
        if odd := sorted(self._ranks.keys() - known):
            more = f" and {len(odd) - 1} more" if odd[1:] else ""
            if odd[0] in self._of_weights:
                self._wrong(
                    f"corrects {shown(self._full[odd[0]])}, whose weight rlx uses otherwise than in a product of "
                    "its own; merge the adapter into the model, as PEFT's merge_and_unload does"
                )
            self._wrong(f"{shown(odd[0])}{more} is no product of this model{meant(odd[0], known)}")
        self._check_targets(known)
        for name, (parts, inputs) in self.low.products.items():
            there = [part for part, _ in parts if part in self._ranks]
            if not there:
                continue
            at, row = 0, 0
            a = np.concatenate([self._matrix(part, 0, (self._ranks[part], inputs)) for part in there])
            b = np.zeros((sum(n for _, n in parts), len(a)))
            for part, n in parts:
                if rank := self._ranks.get(part):
                    own = multiplier(part)
                    scale = self._scales[part] * (1.0 if own is None else own.astype(np.float64).reshape(-1, 1))
                    b[row : row + n, at : at + rank] = self._matrix(part, 1, (n, rank)) * scale
                    at += rank
                row += n
            if magnitudes := self.low.factors(name):
                factors = self._factors(parts, multiplier, _lengths(*weight_of(name), a, b))
                b *= factors[:, None]
                self.matrices[magnitudes[0]] = factors.astype(np.float32)
            for state, array in zip(self.low.states(name), (a, b), strict=True):
                self.matrices[state] = rounded(array, dtype.np)
        self._tensors.clear()

    def _factors(
        self, parts: Sequence[tuple[str, int]], multiplier: Callable[[str], npt.NDArray[Any] | None],
        lengths: npt.NDArray[np.float64],
    ) -> npt.NDArray[np.float64]:  # fmt: skip
        """The magnitudes of a product's outputs over the `lengths` of the corrected weight's rows; 1 for a part without
        magnitudes."""
        result, row = np.ones(len(lengths)), 0
        for part, n in parts:
            own, at = (self._magnitudes or {}).get(part), slice(row, row + n)
            row += n
            if own is None:
                continue
            if multiplier(part) is not None:
                self._wrong(f"{shown(part)} has DoRA's magnitudes, and the model multiplies its results; "
                            "merge the adapter into the model, as PEFT's merge_and_unload does")  # fmt: skip
            if len(own) != n:
                self._wrong(f"{part}{_MAGNITUDES} has {len(own)} numbers, expected {n}")
            if not lengths[at].all():
                self._wrong(f"{shown(part)}: a row of the corrected weight is zero, and has no direction for DoRA")
            result[at] = own.astype(np.float64) / lengths[at]
        return result

    def _check_targets(self, known: set[str]) -> None:
        """Raises: ModelFormatError for a target whose products all lack their matrices; one without products is
        allowed, as PEFT ignores it."""
        targets, excluded = (self._fields.content.get(name) for name in ("target_modules", "exclude_modules"))
        if not isinstance(targets, list) or isinstance(excluded, str) or self._fields.has("layers_to_transform"):
            return
        prefix = next((full.removesuffix(name) for name, full in self._full.items() if full != name), "")

        def of(target: Any) -> set[str]:
            return {name for name in known if f".{prefix}{name}".endswith(f".{target}")}

        left_out = set().union(*(of(target) for target in excluded or ()))
        for target in targets:
            meant_by = of(target) - left_out
            if meant_by and not meant_by & self._ranks.keys():
                self._fields.wrong(
                    "target_modules", f"modules of which the file has matrices; it has none of {shown(target)}"
                )

    def check_base(self, name: str, kept: npt.NDArray[Any] | PackedArray) -> None:
        """Compares a base weight in the adapter's file with the model's. Raises: ModelFormatError if they differ, as
        after training or a change of the vocabulary: rlx does not replace the model's weights."""
        held = self.bases[name]
        same = held.shape == tuple(kept.shape)
        if same and isinstance(kept, PackedArray):  # packed values differ from the file's by their rounding
            off = kept.dequantize().astype(np.float64) - held
            same = bool((off**2).sum() <= _ROUNDED * (held.astype(np.float64) ** 2).sum())
        elif same and isinstance(kept, np.ndarray):
            with np.errstate(over="ignore"):
                same = np.array_equal(held.astype(kept.dtype), kept) or np.array_equal(kept.astype(held.dtype), held)
        if not same:
            self._wrong(
                f"it holds another weight of {shown(name)}, {held.dtype} {held.shape}, than the model's, "
                f"{kept.dtype} {tuple(kept.shape)}; rlx leaves a model's weights as they are: merge the adapter"
            )

    def _matrix(self, part: str, kind: int, shape: tuple[int, int]) -> npt.NDArray[np.float64]:
        array = self._tensors[part, _KINDS[kind]]
        if array.shape != shape:
            self._wrong(f"{part}{_KINDS[kind]} has shape {array.shape}, expected {shape}")
        return array.astype(np.float64)


def _lengths(
    weight: npt.NDArray[Any] | PackedArray, scale: npt.NDArray[Any] | None, a: npt.NDArray[np.float64],
    b: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:  # fmt: skip
    """The length of each row of weight · scale + B A, some rows after the others, so that a packed weight is never
    floats as a whole."""
    result = np.empty(weight.shape[0], np.float64)
    by = None if scale is None else np.broadcast_to(np.reshape(scale, (-1, 1)), (len(result), 1))
    for at in range(0, len(result), _CHUNK):
        some = slice(at, at + _CHUNK)
        if isinstance(weight, PackedArray):
            data = weight.data[some]
            part = PackedArray(weight.dtype, (len(data), *weight.shape[1:]), data).dequantize()
        else:
            part = weight[some]
        wide = part.astype(np.float64) * (1.0 if by is None else by[some]) + b[some] @ a
        result[some] = np.sqrt((wide**2).sum(1))
    return result


def _patterns(f: Fields, name: str) -> Fields:
    """The ranks or alphas of some products, by the end of their names. Raises: ModelFormatError for any other pattern,
    since a regular expression from a file may take forever."""
    found = f.content.get(name) or {}
    if not isinstance(found, dict) or not all(_NAME.fullmatch(key) for key in found):
        f.wrong(name, "an object whose keys are names of modules, or their ends")
    return Fields(found, f"{f.where}: {name}")


def _first(patterns: Fields, full: str) -> str:
    """The first pattern that matches the end of a product's name, else the name itself. As in PEFT, a dot matches any
    character."""
    return next((key for key in patterns.content if re.match(rf"(.*\.)?({key})$", full)), full)
