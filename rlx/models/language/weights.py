"""The weights that a language model's graph asks for, found among a file's tensors and checked before any is read."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from rlx.driver.device import Bytes
from rlx.dtypes import DType, as_dtype, f32, f64, rounded
from rlx.errors import DTypeError, ModelFormatError, RlxError
from rlx.formats.files import shown
from rlx.formats.gguf.model import GgufModel, times
from rlx.formats.quantized import QuantizedTensors
from rlx.formats.safetensors import SafetensorsFile, ShardedTensors
from rlx.formats.settings import same_numbers, warn_aside, warn_beyond, warn_idle, warn_untied
from rlx.host.progress import report
from rlx.host.threads import Future, Threads
from rlx.models.language.architectures import architecture_of
from rlx.models.language.architectures.base import (
    Architecture,
    Recipe,
    Stored,
    Value,
    alone,
    joined,
    plain_names,
    stack,
)
from rlx.models.language.blocks import table_names
from rlx.models.language.config import SHARED, Fields, LanguageConfig, Rope
from rlx.ops.rope.table import rope_table
from rlx.packed import PackedArray
from rlx.packed.array import copy_into, part_of
from rlx.records import Record, replace
from rlx.runtime import Store

if TYPE_CHECKING:
    from rlx.models.language.parallel import Part, TensorParallel

Scale = npt.NDArray[np.float32]
_LEAST_TENSORS = 6  # tensors of a layer, in any architecture
_PART = re.compile(r"layers\.(\d{1,4})\.(.*)")
_KEYS = tuple(f"self_attn.{part}." for part in ("k_proj", "v_proj", "k_norm", "v_norm"))
_MAX_NAMED = 50  # differences named in one message; the others are counted


class Source(Protocol):
    """A file's tensors: `kinds` has the shape and dtype of each, `read` gives one, packed as in the file. `scales` has
    the factors of products with some packed tensors: a number, or one for each expert."""

    @property
    def where(self) -> str: ...
    @property
    def kinds(self) -> Mapping[str, tuple[tuple[int, ...], DType]]: ...
    @property
    def scales(self) -> Mapping[str, Scale]: ...

    def read(self, name: str) -> Stored: ...
    def read_part(self, name: str, axis: int, start: int, stop: int) -> Stored:
        """A range of one axis of the tensor; along the last axis of a packed tensor it must be whole blocks."""

    def read_into(self, name: str, out: Bytes) -> None:
        """Writes the tensor into memory of its size, in the devices' layout. May be called in a thread beside the one
        that loads."""
        ...


class Arrays:
    """The tensors of a folder by name, packed ones too, as a Source."""

    def __init__(self, tensors: Mapping[str, Any], where: str) -> None:
        self.where = where
        self.scales: Mapping[str, Scale] = {}
        self._tensors = tensors
        self.kinds: Mapping[str, tuple[tuple[int, ...], DType]]
        if isinstance(tensors, QuantizedTensors):
            self.kinds = tensors.kinds
            return
        try:
            self.kinds = {name: (tuple(value.shape), as_dtype(value.dtype)) for name, value in tensors.items()}
        except DTypeError as error:
            raise ModelFormatError(f"{where}: {error}") from error

    def read(self, name: str) -> Stored:
        result: Stored = self._tensors[name]
        return result

    def read_part(self, name: str, axis: int, start: int, stop: int) -> Stored:
        return part_of(self.read(name), axis, start, stop)

    def read_into(self, name: str, out: Bytes) -> None:
        if isinstance(self._tensors, SafetensorsFile | ShardedTensors):
            self._tensors.read_into(name, out)
        else:
            copy_into(self.read(name), out)


def architecture_for(fields: Fields, source: Source) -> Architecture:
    """The architecture that the settings name, for these files: some GGUF families already have the tensor names and
    values of rlx's graphs. Raises: as `architecture_of`."""
    architecture = architecture_of(fields)
    if isinstance(source, GgufModel) and source.family.plain:
        return replace(architecture, find=plain_names, prefixes=("",))
    return architecture


class _Wanted(Record):
    """A weight. `plain`: names of file tensors whose concatenated bytes are the weight; empty where it has to be
    computed from them. `scale`: the factor of products with it, one number, or one for each expert, or for each row of
    joined weights. `part`: which part of the recipe's result the weight is; `reads`: which part of each of the recipe's
    tensors is read, None for all of it."""

    shape: tuple[int, ...]
    dtype: DType
    recipe: Recipe
    plain: tuple[str, ...] = ()
    scale: Scale | None = None
    part: Part | None = None
    reads: tuple[Part | None, ...] = ()

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape of the whole weight, of which this may be a part."""
        return self.shape if self.part is None else self.part.whole


class ModelWeights:
    """The weights of a model: the graph asks for each by name and shape (`dtype_of`), `load` puts them into a Store.

    Matrices keep the file's dtype, packed ones too, unless `dtype` names another; vectors are f32. With `joins` several
    weights may be stored as one. RoPE tables are made here. `parallel` says which part of a weight a rank has.
    Raises: ModelFormatError naming each weight that is missing or of a wrong shape.
    """

    def __init__(
        self, source: Source, architecture: Architecture, config: LanguageConfig, context: int, dtype: DType | None,
        joins: bool = True, parallel: TensorParallel | None = None,
    ) -> None:  # fmt: skip
        self.parallel = parallel
        self.source: Source = source
        self._joins = joins
        self.positions = context
        self._architecture = architecture
        self._dtype = dtype
        self._wanted: dict[str, _Wanted] = {}
        self._recipes: dict[str, Recipe] = {}  # the recipe of each requested weight, also those inside joined ones
        self._problems: list[str] = []
        self._tables: dict[str, Any] = {}
        self._prefix = next((p for p in architecture.prefixes if any(n.startswith(p) for n in source.kinds)), "")
        bare = {n.removeprefix(self._prefix): n for n in source.kinds}
        if len(bare) < len(source.kinds):
            twice = next(n for n in source.kinds if bare[n.removeprefix(self._prefix)] != n)
            raise ModelFormatError(f"{source.where}: {shown(twice)} stands there with and without {self._prefix!r}")
        self._names = bare
        if (outer := bare.pop("language_model.lm_head.weight", None)) is not None:  # a multimodal model
            bare.setdefault("lm_head.weight", outer)
        self._table, self._head = (
            architecture.find(name, config, bare).files[0] for name in ("embed_tokens.weight", "lm_head.weight")
        )
        self.config = self._as_held(config)
        if config.layers * _LEAST_TENSORS > len(bare):  # before a graph of that many layers is made
            raise ModelFormatError(
                f"{source.where}: the settings say {config.layers} layers, the weights are {len(bare)} tensors; "
                f"expected {_LEAST_TENSORS} or more a layer"
            )
        for rope in {r for r in (config.attention.ropes if config.attention else ()) if r is not None}:
            self._add_tables(rope, context)

    def _as_held(self, config: LanguageConfig) -> LanguageConfig:
        """The settings, with embeddings no longer tied if the file holds a different output matrix."""
        if not config.tied or self._table not in self._names or self._head not in self._names:
            return config
        table, head = (self._names[name] for name in (self._table, self._head))
        if same_numbers(self.source.read(table), self.source.read(head)):
            return config
        if not config.tied_by_file:
            warn_untied(self.source.where, table, head)
        return replace(config, tied=False)

    def _add_tables(self, rope: Rope, context: int) -> None:
        tables = rope_table(context, rope.width, base=rope.base, scaling=rope.scaling)
        self._tables.update(zip(table_names(rope), tables, strict=True))

    def dtype_of(self, name: str, shape: tuple[int, ...]) -> DType:
        """The dtype in which the weight is stored; this call makes it one of the model's weights."""
        if name in self._tables:
            return f32
        known = self._wanted.get(name)
        if known is None:
            known = self._wanted[name] = self._find(name, shape)
        return known.dtype

    def scale_of(self, name: str) -> Scale | None:
        """The factor of products with a requested weight: a number, or one for each row or expert; None for none."""
        return self._wanted[name].scale if name in self._wanted else None

    def _part(self, name: str, shape: tuple[int, ...]) -> Part | None:
        return None if self.parallel is None else self.parallel.part(name, shape)

    def block_of(self, name: str) -> int:
        """The elements along the last axis of a weight that cannot be separated: those of a block if it is packed."""
        files = [self._names[n] for n in self._architecture.find(name, self.config, self._names).files
                 if n in self._names]  # fmt: skip
        return math.lcm(*(kind.storage.elements for _, kind in map(self.source.kinds.__getitem__, files)
                          if kind.is_packed))  # fmt: skip

    def _scale(self, name: str, recipe: Recipe, packed: bool, shape: tuple[int, ...]) -> Scale | None:
        own = self.config.multiplier(name.removesuffix(".weight"))
        part = self._part(name, shape)
        if own is not None and own.ndim and part is not None and part.axis == 0:
            own = own[part.start : part.stop]
        held = [self.source.scales.get(self._names[n]) if packed else None for n in recipe.files]
        if all(s is None for s in held):
            return own
        each = [np.float32(1) if s is None else s for s in held]
        found = np.asarray(each[0] if len(each) == 1 else np.stack(each))
        return found if own is None else found * own

    def joined(self, name: str, parts: Sequence[tuple[str, tuple[int, ...]]]) -> bool:
        """Whether weights can be stored as one with their rows concatenated: those of equal dtype can."""
        if not self._joins:
            return False
        found = [self._find(part, shape) for part, shape in parts]
        if len({w.dtype for w in found}) > 1 or any(n not in self._names for w in found for n in w.recipe.files):
            return False
        ends = list(itertools.accumulate(len(w.recipe.files) for w in found))

        def join(values: Sequence[Value]) -> Value:
            made: list[Value] = []
            for end, w in zip(ends, found, strict=True):
                made.append(_shaped(w, values[end - len(w.recipe.files) : end]))
            return joined(made)

        files = tuple(n for w in found for n in w.recipe.files)
        rows = sum(w.shape[0] for w in found)
        derived = any(w.recipe.derived for w in found)
        recipe = Recipe(files, join, derived=derived)
        reads = tuple(part for w in found for part in w.reads)
        plain = tuple(n for w in found for n in w.plain) if all(w.plain for w in found) else ()
        scale = None
        if any(w.scale is not None for w in found):
            scale = np.concatenate([np.full(w.shape[0], 1 if w.scale is None else w.scale, np.float32) for w in found])
        self._wanted[name] = _Wanted((rows, *found[0].shape[1:]), found[0].dtype, recipe, plain, scale, None, reads)
        return True

    def _find(self, name: str, shape: tuple[int, ...]) -> _Wanted:
        recipe = self._architecture.find(name, self.config, self._names)
        if name == "embed_tokens.weight" and self.config.tied and self._table not in self._names:
            recipe = Recipe((self._head,)) if self._head in self._names else recipe
        if name == "lm_head.weight" and self.config.tied:  # a rank stores its rows of it besides all embeddings
            recipe = Recipe((self._table if self._table in self._names else self._head,))
        part = self._part(name, shape)
        shape, own = shape if part is None else part.whole, shape
        self._recipes[name] = recipe
        missing = [n for n in recipe.files if n not in self._names]
        if missing:
            self._problems.append(f"missing {missing[0]!r}" + (f" and {len(missing) - 1} more" if missing[1:] else ""))
            return _Wanted(own, f32, recipe, part=part, reads=(None,) * len(recipe.files))
        held = {self.source.kinds[self._names[n]][1] for n in recipe.files}
        dtype = held.pop()
        if held or not (dtype.is_packed or dtype.name in ("f32", "f16", "bf16", "f64")):
            listed = ", ".join(sorted(str(d) for d in {dtype, *held}))
            self._problems.append(f"{recipe.files[0]!r} has dtype {listed}, expected f32, f16, bf16 or packed")
        if len(shape) < 2 or name.endswith(".bias") or recipe.derived or dtype.name == "f64":
            dtype = f32
        elif dtype.is_packed and shape[-1] % dtype.storage.elements:
            dtype = f32  # the file's tensor has another shape: `check` or `load` reports it
        elif self._dtype is not None and not dtype.is_packed:
            dtype = self._dtype
        same = recipe.make is alone and self.source.kinds[self._names[recipe.files[0]]] == (shape, dtype)
        scale = self._scale(name, recipe, dtype.is_packed, own)
        plain = recipe.files if same and part is None else ()
        return _Wanted(own, dtype, recipe, plain, scale, part, self._reads(recipe, part))

    def _reads(self, recipe: Recipe, part: Part | None) -> tuple[Part | None, ...]:
        """Which part of each tensor to read: only a part if the weight is one tensor or a stack, else all (None)."""
        shapes = [self.source.kinds[self._names[n]][0] for n in recipe.files]
        if part is not None and part.axis is not None and not recipe.derived:
            if recipe.make is alone and shapes == [part.whole]:
                return (part,)
            if recipe.make is stack and part.axis > 0 and set(shapes) == {part.whole[1:]}:
                return (replace(part, whole=part.whole[1:], axis=part.axis - 1),) * len(shapes)
        return (None,) * len(shapes)

    def recipe(self, name: str) -> Recipe:
        """How a requested weight is made from the file's tensors."""
        return self._wanted[name].recipe

    def file_name(self, bare: str) -> str:
        """The file's name of a tensor, given its name without the file's common prefix."""
        return self._names[bare]

    def module(self, bare: str, product: str) -> str:
        """transformers' name of the module that has this matrix of a product, with the prefix that files may omit."""
        name = self._names[bare]
        if self.apart(bare):
            return f"{self._architecture.prefixes[0]}{product}"
        named = name if name.startswith(self._architecture.prefixes) else f"{self._architecture.prefixes[0]}{name}"
        result = (name if bare == self._head else named).removesuffix(".weight")
        return self._own(result)

    def apart(self, bare: str) -> bool:
        """Whether this matrix is several modules' matrices joined (modules of transformers' class)."""
        return self._architecture.apart is not None and self._architecture.apart in bare

    def _own(self, name: str) -> str:
        for file, own in self._architecture.modules:
            name = name.replace(file, own)
        return name

    def products(self, module: str) -> list[tuple[str, Recipe]]:
        """The products whose weight is a module's, or rows of it, each with its recipe; the module is named as in a
        file, without the common prefix. Weights that layers share are left out: an adapter names one layer's."""
        own = ((name, r) for name, r in self._recipes.items() if not name.startswith(SHARED))
        named = ((name.removesuffix(".weight"), r) for name, r in own if name.endswith(".weight"))
        weight = f"{module}.weight"
        return [(n, r) for n, r in named if r.files == (weight,) or [self._own(file) for file in r.files] == [weight]]

    def numel(self, bare: str) -> int:
        """How many elements a tensor of the file has."""
        return math.prod(self.source.kinds[self._names[bare]][0])

    def file_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the file tensors that requested weights are made from, by their names in the file."""
        files = dict.fromkeys(n for wanted in self._wanted.values() for n in wanted.recipe.files)
        return {self._names[n]: self.source.kinds[self._names[n]][0] for n in files}

    def values(self) -> tuple[dict[str, Stored], dict[str, str]]:
        """(values, names): the values of all requested weights. These are the file's tensors under their own names, but
        packed weights that are split, combined or dequantized are stored as made, under names of their own; `names`
        maps the graph's name of such a weight to that name."""
        result: dict[str, Stored] = {}
        own: dict[str, str] = {}
        for name, wanted in self._wanted.items():
            files = [self._names[n] for n in wanted.recipe.files]
            packed = any(self.source.kinds[n][1].is_packed for n in files)
            if packed and (wanted.recipe.make is not alone or not wanted.dtype.is_packed):
                own[name] = f"{self._prefix}{name}"
                result[own[name]] = self._make(name, _Rooms(), whole=True)
                continue
            for n in files:
                if n not in result:
                    value = self.source.read(n)
                    if not isinstance(value, PackedArray):
                        kind = self._dtype if self._dtype == f64 else wanted.dtype
                        value = rounded(np.asarray(value), kind.np)
                    result[n] = value
        return result, own

    def bare(self, name: str) -> str:
        """A tensor's name without the prefixes of the architecture's files."""
        return next((name.removeprefix(p) for p in self._architecture.prefixes if name.startswith(p)), name)

    def matrix(self, name: str) -> str | None:
        """The graph's name of the embeddings or output matrix that has this name in a file; None for other modules."""
        if f"{name}.weight" not in (self._table, self._head):
            return None
        tied = self.config.tied or f"{name}.weight" == self._table
        return "embed_tokens.weight" if tied else "lm_head.weight"

    def kept(self, name: str) -> DType:
        """The dtype in which a requested weight is stored."""
        return self._wanted[name].dtype

    def value(self, name: str) -> Value:
        """A requested weight, made from the file's tensors. Raises: ModelFormatError."""
        wanted = self._wanted[name]
        values = self._read(wanted)
        if wanted.recipe.derived:
            values = [v.dequantize() if isinstance(v, PackedArray) else v for v in values]
        return _shaped(wanted, values)

    def check(self) -> None:
        """Checks the requested weights against the file. Raises: ModelFormatError naming every difference."""
        problems = list(dict.fromkeys(self._problems))  # a weight may be asked for more than once
        used = {self._names[n] for w in self._wanted.values() for n in w.recipe.files if n in self._names}
        beyond, idle, aside = 0, dict[str, str](), self._aside()
        for name in self.source.kinds:
            tied = self.config.tied and name == self._names.get(self._head)
            if name not in used and not self._architecture.unused.search(name) and not tied and name not in aside:
                if self.config.heads_beyond and self._beyond(name):
                    beyond += 1
                elif why := self._idle(name):
                    idle[name] = why
                else:
                    problems.append(f"extra {shown(name)}")
        if beyond and not problems:
            warn_beyond(self.source.where, beyond, self.config.layers)
        if idle and not problems:
            warn_idle(self.source.where, idle)
        if aside and not problems:
            warn_aside(self.source.where, len(aside), sorted(set(aside.values())))
        for wanted in self._wanted.values():
            recipe = wanted.recipe
            if recipe.make is alone and recipe.files[0] in self._names:  # others are checked when made
                shape = self.source.kinds[self._names[recipe.files[0]]][0]
                if shape != wanted.whole:
                    problems.append(f"{recipe.files[0]!r} has shape {shape}, expected {wanted.whole}")
        if problems:
            rest = len(problems) - _MAX_NAMED
            listed = problems[:_MAX_NAMED] + ([f"and {rest} more"] if rest > 0 else [])
            raise ModelFormatError(f"{self.source.where}: the weights do not fit the settings: {'; '.join(listed)}")

    def _aside(self) -> dict[str, str]:
        """The tensors of a model's other parts than the text's, each with its part."""
        pattern = self._architecture.aside
        matches = ((name, pattern.search(name)) for name in self.source.kinds) if pattern is not None else ()
        return {name: match[1] for name, match in matches if match is not None}

    def _idle(self, name: str) -> str:
        """Why the model has no use for a tensor that files of its kind have; empty if there is no reason."""
        match, a, c = _PART.match(self.bare(name)), self.config.attention, self.config
        layer, part = (int(match[1]), match[2]) if match else (c.layers, "")
        if a is None or layer >= c.layers:
            return ""
        if part.startswith(_KEYS) and a.source(layer) != layer:
            return "their layers attend to the keys and values of earlier ones"
        indexer = a.latent.indexer if a.latent is not None else None
        if indexer is not None and part.startswith("self_attn.indexer.") and indexer.sources[layer] != layer:
            return "their layers attend to the tokens that earlier ones choose"
        unscaled = c.streams is not None and not c.streams.scaled and part == "altup.correct_output_scale"
        return "altup_correct_scale is false" if unscaled else ""

    def _beyond(self, name: str) -> bool:
        """Whether a tensor belongs to a layer after the model's last."""
        number = self.bare(name).removeprefix("layers.").partition(".")[0]
        return number.isdecimal() and int(number) >= self.config.layers

    @property
    def nbytes(self) -> int:
        """The bytes of all requested weights and of the RoPE tables."""
        return self.table_bytes + sum(self.sizes.values())

    @property
    def table_bytes(self) -> int:
        """The bytes of the RoPE tables, which every device has."""
        return sum(int(t.nbytes) for t in self._tables.values())

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of each requested weight, by the graph's name."""
        return {name: w.dtype.nbytes(w.shape) for name, w in self._wanted.items()}

    @property
    def bytes_read(self) -> int:
        """The bytes that a run over one token reads: all weights except embeddings that are not the output matrix too,
        and of the experts only those in use."""
        total, experts = 0, self.config.experts
        for name, w in self._wanted.items():
            if name == "embed_tokens.weight" and (not self.config.tied or "lm_head.weight" in self._wanted):
                continue
            part = experts.used / experts.count if experts is not None and ".experts." in name else 1.0
            total += math.ceil(part * w.dtype.nbytes(w.shape))
        return total

    def load(self, stores: Mapping[str, Sequence[Store]]) -> None:
        """Reads each tensor once and sets the weights in their stores, given by the weight's name; a weight that the
        first and the last device both need is in two. Raises: ModelFormatError, OutOfDeviceMemory."""
        for name, table in self._tables.items():
            for store in stores.get(name, ()):
                store.set(name, table)
        done, sizes = 0, self.sizes
        whole = sum(sizes.values())
        rooms = _Rooms()
        # While one weight is copied to a device, this thread reads the next.
        with Threads(1) as reading:
            coming: Future[Bytes | Stored] | None = None
            names = list(self._wanted)
            for name, after in zip(names, [*names[1:], None], strict=True):
                wanted, to = self._wanted[name], stores[name]
                if self._in_place(name, to):
                    to[0].write_by(name, wanted.dtype, partial(self._write, wanted))
                else:
                    made = self._make(name, rooms) if coming is None else coming.result()
                    coming = None
                    if after is not None and not self._in_place(after, stores[after]):
                        coming = reading.submit(partial(self._make, after, rooms))
                    for store in to:
                        if wanted.plain:
                            store.put(name, wanted.dtype, cast(Bytes, made))
                        else:
                            store.set(name, made)
                done += sizes[name]
                report("loading", done, whole)
        self.source = _Loaded(self.source.where, self.source.kinds, self.source.scales)  # drops the open files

    def _in_place(self, name: str, stores: Sequence[Store]) -> bool:
        """Whether a weight is read straight into its store's memory, without a copy."""
        return bool(self._wanted[name].plain) and len(stores) == 1 and stores[0].in_place

    def _make(self, name: str, rooms: _Rooms, whole: bool = False) -> Any:
        """A weight: the file's bytes in one of the buffers; an array if it must be computed or is wanted `whole`."""
        wanted = self._wanted[name]
        if wanted.plain and not whole:
            room = rooms.next(wanted.dtype.nbytes(wanted.shape))
            self._write(wanted, room)
            return room
        values = self._read(wanted)
        if wanted.recipe.derived or not wanted.dtype.is_packed:
            values = [
                times(v.dequantize(), self.source.scales.get(self._names[n])) if isinstance(v, PackedArray) else v
                for n, v in zip(wanted.recipe.files, values, strict=True)
            ]
        try:
            result = _shaped(wanted, values)
        except ModelFormatError as error:
            raise ModelFormatError(f"{self.source.where}: {error}") from error
        if not isinstance(result, PackedArray):
            result = rounded(np.asarray(result), wanted.dtype.np)
        return result

    def _read(self, wanted: _Wanted) -> list[Stored]:
        """The tensors that a weight is made from, or only the parts that it needs."""
        names = [self._names[n] for n in wanted.recipe.files]
        return [
            self.source.read(name) if part is None or part.axis is None
            else self.source.read_part(name, part.axis, part.start, part.stop)
            for name, part in zip(names, wanted.reads, strict=True)
        ]  # fmt: skip

    def _write(self, wanted: _Wanted, out: Bytes) -> None:
        """Reads a weight that is a concatenation of file tensors."""
        start = 0
        for name in wanted.plain:
            shape, dtype = self.source.kinds[self._names[name]]
            end = start + dtype.nbytes(shape)
            self.source.read_into(self._names[name], out[start:end])
            start = end


class _Loaded(Record):
    """A source whose tensors were read, and which holds no file open."""

    where: str
    kinds: Mapping[str, tuple[tuple[int, ...], DType]]
    scales: Mapping[str, Scale]

    def read(self, name: str) -> Stored:
        raise RlxError(f"{self.where}: tensor {shown(name)} cannot be read: the model was loaded")

    def read_part(self, name: str, axis: int, start: int, stop: int) -> Stored:
        return self.read(name)

    def read_into(self, name: str, out: Bytes) -> None:
        self.read(name)


class _Rooms:
    """Two alternating buffers into which weights are read: allocating new memory for each would take longer than
    reading does."""

    def __init__(self) -> None:
        self._held = [np.empty(0, np.uint8), np.empty(0, np.uint8)]

    def next(self, nbytes: int) -> Bytes:
        """A buffer that stays valid until this method has been called twice more."""
        room = self._held.pop(0)
        if room.nbytes < nbytes:
            room = np.empty(nbytes, np.uint8)
        self._held.append(room)
        return room[:nbytes]


def _shaped(wanted: _Wanted, values: Sequence[Value]) -> Stored:
    """The weight made of a file's tensors. Raises: ModelFormatError for tensors of other shapes."""
    shapes = ", ".join(sorted({str(tuple(v.shape)) for v in values}))
    where = f"{wanted.recipe.files[0]!r} has shape {shapes}"
    try:
        made = cast(Stored, wanted.recipe.make(values))  # recipes turn stored values into stored values, not tensors
    except (ValueError, IndexError) as error:
        raise ModelFormatError(f"{where}, of which no {wanted.shape} is made") from error
    if wanted.part is not None and tuple(made.shape) == wanted.part.whole:
        made = wanted.part.of(made)
    if tuple(made.shape) != wanted.shape:
        raise ModelFormatError(f"{where}; it gives {tuple(made.shape)}, expected {wanted.shape}")
    return made
