"""Bulk inference on Ray Data: a pool of actors, each with a model on a device of its own, over a dataset of any size.

Each function takes a `ray.data.Dataset`, or the path of Parquet files, and gives a Dataset with further columns, which
Ray computes when it is read or written. Ray restarts an actor that dies and runs its batch again; other columns stay as
they are. Needs `pip install 'rlx[ray]'`.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.errors import DataError, DataMissing, DeviceUnavailable, DTypeError, RlxError, ShapeError
from rlx.formats.files import plain
from rlx.lazy import listed_in as _listed_in
from rlx.lazy import unknown_in as _unknown_in

__all__ = ["classify", "embed", "generate", "infer"]

ROWS = 512  # rows of a batch
Problem = tuple[int, str]  # the row of a table, and what is wrong with it


def embed(
    data: Any, model: str | os.PathLike[str], column: str = "text", *, into: str = "embedding", device: str = "auto",
    actors: int | None = None, threads: int | None = None, batch_size: int = ROWS, check: bool = True,
    prompt_name: str | None = None, truncate_dim: int | None = None, normalize: bool = False, **loading: Any,
) -> Any:  # fmt: skip
    """The dataset with the embedding of each text in `column`, a list of f32 of one size, in the new column `into`.

    `model` is the folder or the GGUF file of a sentence encoder or a language model, on every machine of the cluster;
    `loading` holds further settings of `rlx.models.load`. Each of the `actors` has one GPU (`device` "cuda", "vulkan")
    or `threads` CPU threads (1 by default). By default there are as many actors as the cluster has room for, and "auto"
    takes CUDA if Ray knows of a GPU. A batch of `batch_size` rows is one task, which is run again if its actor dies;
    short texts are packed into one row of the model, so that there is hardly any padding. With `check` the whole column
    is read and checked before any actor starts. `prompt_name`, `truncate_dim` and `normalize` are those of `encode`.
    Rows come in any order unless Ray's `execution_options.preserve_order` is set.
    Raises: RlxError without Ray, and for a model that makes no embeddings; DataError for a missing column, and for a
    row without a text, whose number it gives; DeviceUnavailable for more actors than the cluster has room for; also as
    `load`.
    """
    settings = {"prompt_name": prompt_name, "truncate_dim": truncate_dim, "normalize": normalize}
    _of_task("embed", model, "embeddings", "language")
    return _texts("embed", data, Embed, model, column, [into], device, actors, threads, batch_size, check,
                  loading, settings)  # fmt: skip


def classify(
    data: Any, model: str | os.PathLike[str], column: str = "text", *, into: str = "label", device: str = "auto",
    actors: int | None = None, threads: int | None = None, batch_size: int = ROWS, check: bool = True,
    truncate: bool = False, **loading: Any,
) -> Any:  # fmt: skip
    """The dataset with the likeliest label of each text in the new column `into`, and its score, f32, in `into`_score.

    `model` is the folder of a classifier of texts. `truncate` cuts texts that are too long; otherwise such a text is an
    error when an actor reaches it. The other arguments and errors are those of `embed`."""
    _of_task("classify", model, "scores")
    return _texts("classify", data, Classify, model, column, [into, f"{into}_score"], device, actors, threads,
                  batch_size, check, loading, {"truncate": truncate})  # fmt: skip


def generate(
    data: Any, model: str | os.PathLike[str], column: str = "prompt", *, into: str = "answer", max_tokens: int = 256,
    temperature: float = 0.0, top_k: int | None = None, top_p: float | None = None, seed: int = 0, chat: bool = False,
    slots: int = 8, device: str = "auto", actors: int | None = None, threads: int | None = None, batch_size: int = 64,
    check: bool = True, **loading: Any,
) -> Any:  # fmt: skip
    """The dataset with the text that a language model writes after each prompt, in the new column `into`, and in
    `into`_ended why it ended: "stop" (the model's own end), "length" (`max_tokens`) or "context" (no room is left).

    With `chat` a prompt is a user's message, to which the model's chat template is applied. `slots` sequences run at
    once on each actor, prompts of similar length together. Every row samples with the same `seed`, so that its answer
    does not depend on the other rows. The other arguments and errors are those of `embed`."""
    _of_task("generate", model, "language")
    for name, value, least in (("max_tokens", max_tokens, 1), ("slots", slots, 2)):
        if type(value) is not int or value < least:
            raise DTypeError(f"generate: {name} is {value!r:.40}; expected an integer from {least}")
    from rlx.models.language.decoder import Sampling

    settings = {"max_tokens": max_tokens, "chat": chat, "slots": slots,
                "sampling": Sampling(temperature, top_k, top_p, seed)}  # fmt: skip
    return _texts("generate", data, Generate, model, column, [into, f"{into}_ended"], device, actors, threads,
                  batch_size, check, loading, settings)  # fmt: skip


def infer(
    data: Any, model: str | os.PathLike[str], *, inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None, dims: Mapping[str, Any] | None = None, device: str = "auto",
    actors: int | None = None, threads: int | None = None, batch_size: int = ROWS, check: bool = True,
    precision: str = "f32",
) -> Any:  # fmt: skip
    """The dataset with the outputs of an ONNX model for each row in new columns.

    A row's value in an input's column is one example: a number, or a list (of lists …) of numbers, of the input's shape
    without its first dimension, the batch. `inputs` maps the model's inputs to columns and `outputs` its outputs to new
    columns; by default they have the same names. Rows of one shape run together in batches whose sizes are powers of
    two, so that few programs are compiled; with `dims`, as of `rlx.onnx.load`, there is one for each bucket of an
    `rlx.Dim`. The other arguments and errors are those of `embed`. Raises also: DataError for a row whose numbers do
    not fit an input; ShapeError for a model whose inputs have no batch dimension."""
    if importlib.util.find_spec("onnx") is None:
        raise RlxError("infer: ONNX models need the package onnx: pip install 'rlx[onnx]'")
    from rlx.onnx import load

    with load(os.fspath(model), dims=dims) as read:
        ports, names = [*read.inputs], [port.name for port in read.outputs]
    columns, new = {port.name: port.name for port in ports}, {name: name for name in names}
    for what, chosen, known in (("inputs", inputs, columns), ("outputs", outputs, new)):
        if odd := [name for name in chosen or () if name not in known]:
            raise RlxError(f"infer: {what} names {plain(odd[0])!r}, which {model} does not have; it has "
                           f"{', '.join(map(plain, known))}")  # fmt: skip
        known.update(chosen or {})
    if outputs is not None:
        new = dict(outputs)
    fed = []
    for port in ports:
        of_numbers = isinstance(port.dtype, np.dtype) and not port.around
        if not of_numbers or not port.shape or isinstance(port.shape[0], int):
            raise ShapeError(f"infer: input {plain(port.name)} of {model} is {port.typed_shape}; expected numbers "
                             "whose first dimension is the batch, by a name; export the model with one")  # fmt: skip
        fed.append(_Port(port.name, columns[port.name], port.dtype, tuple(port.shape[1:])))
    settings = {"ports": fed, "outputs": new, "precision": precision}
    return _mapped("infer", data, Infer, list(dict.fromkeys(columns.values())), [*new.values()], _Examples(fed),
                   device, actors, threads, batch_size, check,
                   {"model": os.path.abspath(model), "loading": {"dims": dims}, **settings})  # fmt: skip


def write(data: Any, folder: str | os.PathLike[str]) -> None:
    """Writes a dataset as Parquet files into a folder. Raises: RlxError with the message of an actor's error, without
    Ray's text around it."""
    import ray

    try:
        data.write_parquet(os.path.abspath(folder))
    except ray.exceptions.RayTaskError as error:
        told = re.findall(r"^rlx\.errors\.\w+: (.*)$", str(error), re.M)
        if not told:
            raise
        raise RlxError(told[-1]) from error


# -- before actors start


def _texts(
    what: str, data: Any, actor: type, model: Any, column: str, new: list[str], device: str, actors: int | None,
    threads: int | None, batch_size: int, check: bool, loading: Mapping[str, Any], settings: Mapping[str, Any],
) -> Any:  # fmt: skip
    return _mapped(what, data, actor, [column], new, _Texts(column), device, actors, threads, batch_size, check,
                   {"model": os.path.abspath(model), "column": column, "into": new, "loading": dict(loading),
                    **settings})  # fmt: skip


def _mapped(
    what: str, data: Any, actor: type, columns: list[str], new: list[str], problem: Callable[[Any], Problem | None],
    device: str, actors: int | None, threads: int | None, batch_size: int, check: bool, settings: Mapping[str, Any],
) -> Any:  # fmt: skip
    """The dataset mapped by a pool of actors, after its columns were checked."""
    for name, value in (("batch_size", batch_size), ("actors", actors), ("threads", threads)):
        if value is not None and (type(value) is not int or value < 1):
            raise DTypeError(f"{what}: {name} is {value!r:.40}; expected an integer from 1")
    _installed()
    path = os.fspath(data) if isinstance(data, str | os.PathLike) else None
    source = _Files(path) if path is not None else _Rows(what, data)
    if missing := [c for c in columns if c not in source.names]:
        raise DataError(f"{what}: the data have no column {missing[0]!r}; they have "
                        f"{', '.join(source.names) or 'none'}")  # fmt: skip
    if there := [c for c in new if c in source.names]:
        raise DataError(f"{what}: the data have a column {there[0]!r} already; name the new one otherwise")
    if check:
        at = 0
        for table in source.tables(columns):
            if (wrong := problem(table)) is not None:
                raise DataError(f"{what}: row {at + wrong[0]}: {wrong[1]}; filter such rows out, or mend them")
            at += table.num_rows
    ray = _ray(None if actors is None else actors * (threads or 1))
    placed = _placed(what, ray, device, actors, threads)
    data = data if path is None else ray.data.read_parquet(path)
    pool = ray.data.ActorPoolStrategy(size=placed.pop("size"))
    blocks = data.repartition(target_num_rows_per_block=batch_size)  # a small file is one block, for one actor
    return blocks.map_batches(
        actor, batch_size=batch_size, batch_format="pyarrow", compute=pool, udf_modifying_row_count=False,
        fn_constructor_args=[{**settings, "problem": problem, "device": placed.pop("device"),
                              "threads": placed.pop("threads")}], **placed,
    )  # fmt: skip


def _ray(room: int | None) -> Any:
    """The package ray, connected to its cluster: that of RAY_ADDRESS, or of `ray start`. If there is none, one is
    started on this machine with `room` CPUs for the actors' threads, by default one for each processor, and one more
    CPU for reading."""
    import ray
    import ray.data

    if not ray.is_initialized():
        from rlx.host.processors import available_threads

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray.init(num_cpus=(room or available_threads()) + 1, include_dashboard=False, logging_level="warning")
        except ValueError:  # there is a cluster, whose CPUs are given; an address that is wrong is told here
            ray.init(logging_level="warning")
    return ray


def _installed() -> None:
    if missing := [name for name in ("ray", "pyarrow") if importlib.util.find_spec(name) is None]:
        raise RlxError(f"bulk inference needs Ray Data, and {missing[0]} is not installed: pip install 'rlx[ray]'")


def _placed(what: str, ray: Any, device: str, actors: int | None, threads: int | None) -> dict[str, Any]:
    """How many actors, and what each has: `map_batches`' resources, and the device and threads of `load`.

    One CPU stays free for reading: if actors took all, no data would be read and Ray would wait for ever."""
    have = ray.cluster_resources()
    gpus, cpus = int(have.get("GPU", 0)), have.get("CPU", 0)
    kind = device.partition(":")[0]
    if kind == "auto":
        kind = "cuda" if gpus else "cpu"
    if kind not in ("cpu", "cuda", "vulkan") or ":" in device:
        raise DeviceUnavailable(f"{what}: device is {device!r:.40}; expected 'auto', 'cpu', 'cuda' or 'vulkan', since "
                                "Ray says which of its GPUs an actor has")  # fmt: skip
    if kind == "cpu":
        each = threads or 1
        rooms = [int(node["Resources"].get("CPU", 0)) // each for node in ray.nodes() if node["Alive"]]
        most = max(min(sum(rooms), int(cpus - 1) // each), 0)  # an actor's threads are on one machine
        needs = f"{each} CPU{'s' * (each > 1)}, beside one that reads"
        resources: dict[str, Any] = {"num_cpus": each, "threads": each}
    else:
        most, needs, resources = gpus, "a GPU", {"num_gpus": 1, "threads": threads}
    size = max(most, 1) if actors is None else actors
    if size > most:
        raise DeviceUnavailable(
            f"{what}: {size} actor{'s' * (size > 1)} of {needs}, and Ray's cluster has {cpus:g} CPUs and {gpus} GPUs; "
            "take fewer, or ray.init(num_cpus=…, num_gpus=…) with more before"
        )
    return {"size": size, "device": kind, **resources}


class _Files:
    """Parquet files: the names of their columns, and the rows of some of them in order."""

    def __init__(self, path: str) -> None:
        from pyarrow import ArrowException, dataset

        if not os.path.exists(path):
            raise DataMissing(f"{path} does not exist; expected a Parquet file or a folder of them", path)
        self.path, self.wrong = path, (ArrowException, OSError)
        try:
            self.files = dataset.dataset(path, format="parquet")
        except self.wrong as error:
            raise DataError(f"{path} is no Parquet file: {error}") from error
        self.names = list(self.files.schema.names)

    def tables(self, columns: list[str]) -> Iterator[Any]:
        try:
            yield from self.files.to_batches(columns=columns)
        except self.wrong as error:
            raise DataError(f"{self.path} cannot be read: {error}") from error


class _Rows:
    """The same for a Ray dataset."""

    def __init__(self, what: str, data: Any) -> None:
        import ray.data

        if not isinstance(data, ray.data.Dataset):
            raise DTypeError(f"{what}: the data are a {type(data).__name__}; expected a ray.data.Dataset or a path")
        self.data, schema = data, data.schema()
        self.names = [] if schema is None else list(schema.names)  # None: there are no rows

    def tables(self, columns: list[str]) -> Iterator[Any]:
        import ray.data

        options = ray.data.DataContext.get_current().execution_options
        ordered, options.preserve_order = options.preserve_order, True
        try:
            yield from self.data.select_columns(columns).iter_batches(batch_size=None, batch_format="pyarrow")
        finally:
            options.preserve_order = ordered


class _Texts:
    """Finds the first row of a table that has no text in a column, and says what is wrong with it; None if there is
    none."""

    def __init__(self, column: str) -> None:
        self.column = column

    def __call__(self, table: Any) -> Problem | None:
        import pyarrow as pa

        values = table[self.column]
        kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_null)
        if table.num_rows and not any(kind(values.type) for kind in kinds):
            return 0, f"column {self.column!r} holds {values.type}, expected texts (string)"
        if not values.null_count:
            return None
        return int(np.argmax(values.is_null())), f"column {self.column!r} has no text (null)"


class _Port:
    """An input of an ONNX model: its column, dtype, and the shape of an example, with None or a name for a variable
    size."""

    def __init__(self, name: str, column: str, dtype: Any, shape: tuple[Any, ...]) -> None:
        self.name, self.column, self.dtype, self.shape = name, column, np.dtype(dtype), shape

    def example(self, value: Any) -> Any:
        """A row's value as an array. Raises: DataError."""
        where, rank = f"column {self.column!r}", len(self.shape)
        try:
            array = np.asarray(value)
        except ValueError:
            raise DataError(f"{where} holds lists of different lengths in one row") from None
        fits = array.dtype.kind in "biuf" and not (array.dtype.kind == "f" and self.dtype.kind in "biu")
        if not fits and array.size:
            raise DataError(f"{where} holds {str(value)[:40]!r}, expected {self.dtype}")
        wanted = tuple(d if isinstance(d, int) else "?" for d in self.shape)
        if array.ndim != rank or any(d not in ("?", n) for d, n in zip(wanted, array.shape, strict=True)):
            raise DataError(f"{where} has the shape {array.shape}, expected ({', '.join(map(str, wanted))})")
        with np.errstate(over="ignore"):
            taken = array.astype(self.dtype)
        if self.dtype.kind in "iu" and not np.array_equal(taken, array):
            raise DataError(f"{where} has numbers that {self.dtype} does not hold")
        return taken


class _Examples:
    """Finds the first row of a table that an ONNX model's inputs cannot take, and says what is wrong with it; else
    None."""

    def __init__(self, ports: Sequence[_Port]) -> None:
        self.ports = ports

    def __call__(self, table: Any) -> Problem | None:
        for row, values in enumerate(zip(*(table[port.column].to_pylist() for port in self.ports), strict=True)):
            for port, value in zip(self.ports, values, strict=True):
                try:
                    port.example(value)
                except DataError as error:
                    return row, str(error)
        return None


def _of_task(what: str, model: Any, *tasks: str) -> None:
    """Checks a model's task by its configuration and metadata alone. Raises: RlxError if it is not one of `tasks`; what
    reading the files raises."""
    from rlx.formats.gguf.encoders import ENCODERS
    from rlx.formats.gguf.reader import GgufFile
    from rlx.formats.huggingface import ModelFolder
    from rlx.models.encoders import is_encoder
    from rlx.models.encoders.decoders import makes_embeddings
    from rlx.models.loading import check_path
    from rlx.models.sentence import read_folder, read_gguf

    check_path(what, model)
    if os.path.isfile(model):
        with GgufFile(model) as file:
            task = "language"
            if file.metadata.get("general.architecture") in ENCODERS:
                task = "rank" if read_gguf(file).pooling == "rank" else "embeddings"
    else:
        folder = ModelFolder(model)
        if is_encoder(folder.config) or makes_embeddings(folder):
            head = read_folder(folder).head
            task = "embeddings" if head is None else head.task
        else:
            task = "speech" if folder.config.get("model_type") == "whisper" else "language"
    if task not in tasks:
        kinds = {"embeddings": "an encoder of sentences", "language": "a language model", "scores": "a classifier"}
        raise RlxError(f"{what}: {model} is {kinds.get(task, f'a model for {task}')}; expected "
                       + " or ".join(kinds[name] for name in tasks))  # fmt: skip


# -- actors


def _device(kind: str) -> str:
    """The device of this actor: CUDA sees only the GPU that Ray gives the actor; Vulkan sees all, so it takes that
    GPU's number."""
    if kind != "vulkan":
        return kind
    import ray

    return f"vulkan:{ray.get_runtime_context().get_accelerator_ids()['GPU'][0]}"


class _Actor:
    """A model on a device. A call adds the new columns to a table."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.model = self.load(_device(settings["device"]))

    def load(self, device: str) -> Any:
        from rlx.models import load

        s = self.settings
        return load(s["model"], device, threads=s["threads"], **s["loading"])

    def columns(self, table: Any) -> Iterator[tuple[str, Any]]:
        raise NotImplementedError

    def __call__(self, table: Any) -> Any:
        wrong = self.settings["problem"](table)
        if wrong is not None:
            raise DataError(f"row {wrong[0]} of a batch: {wrong[1]}")
        for name, values in self.columns(table):
            table = table.append_column(name, values)
        return table


def _rows(values: Any) -> Any:
    """An array as a column: for each row a number, or a list (of lists …) of numbers; bf16, which Arrow lacks, as
    f32."""
    import pyarrow as pa

    flat = np.ascontiguousarray(values.astype(np.float32) if values.dtype.kind == "V" else values)
    column = pa.array(flat.reshape(-1))
    for n in reversed(flat.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, n)
    return column


class Embed(_Actor):
    def columns(self, table: Any) -> Iterator[tuple[str, Any]]:
        from rlx.models import LanguageModel

        s, texts = self.settings, table[self.settings["column"]].to_pylist()
        more = {name: s[name] for name in ("prompt_name", "truncate_dim") if s[name] is not None}
        if isinstance(self.model, LanguageModel):
            vectors = self.model.embed(texts, normalize=s["normalize"], **more) if texts else np.zeros((0, 1), "f4")
        else:
            vectors = self.model.encode(texts, normalize_embeddings=s["normalize"], **more)
        yield s["into"][0], _rows(vectors)


class Classify(_Actor):
    def columns(self, table: Any) -> Iterator[tuple[str, Any]]:
        import pyarrow as pa

        s = self.settings
        labels = [row[0] for row in self.model.classify(table[s["column"]].to_pylist(), truncate=s["truncate"])]
        yield s["into"][0], pa.array([one["label"] for one in labels], pa.string())
        yield s["into"][1], pa.array([one["score"] for one in labels], pa.float32())


class Generate(_Actor):
    def load(self, device: str) -> Any:
        model = super().load(device)
        self.batch = model.batch(self.settings["slots"])
        return model

    def columns(self, table: Any) -> Iterator[tuple[str, Any]]:
        import pyarrow as pa

        s, m = self.settings, self.model
        texts = table[s["column"]].to_pylist()
        ids = [m.chat_ids([{"role": "user", "content": text}]) if s["chat"] else m.tokenize(text) for text in texts]
        if empty := [row for row, tokens in enumerate(ids) if not tokens]:
            raise DataError(f"generate: {texts[empty[0]]!r} in column {s['column']!r} has no tokens to begin with")
        answers: list[list[int]] = [[] for _ in texts]
        ended = [""] * len(texts)
        waiting = deque(sorted(range(len(texts)), key=lambda row: len(ids[row])))
        row_of: dict[int, int] = {}
        while waiting or row_of:
            while waiting and self.batch.free:
                row = waiting.popleft()
                try:
                    number = self.batch.add(ids[row], s["max_tokens"], s["sampling"], m.tokenizer.special.ends)
                except ShapeError as error:
                    raise DataError(f"generate: {texts[row][:40]!r}… in column {s['column']!r}: {error}") from error
                row_of[number] = row
            for token in self.batch.step(4):
                row = row_of[token.sequence]
                if token.ended == "nan":
                    raise RlxError(f"generate: the logits after row {row} of a batch are NaN; activations may need f32")
                if token.ended != "stop":
                    answers[row].append(token.token)
                if token.ended:
                    ended[row] = token.ended
                    del row_of[token.sequence]
        known = m.tokenizer.vocabulary.tokens
        yield s["into"][0], pa.array([m.tokenizer.decode(t for t in row if t in known) for row in answers], pa.string())
        yield s["into"][1], pa.array(ended, pa.string())


class Infer(_Actor):
    def load(self, device: str) -> Any:
        from rlx.onnx import load

        self.device, s = device, self.settings
        return load(s["model"], threads=s["threads"], **s["loading"])

    def columns(self, table: Any) -> Iterator[tuple[str, Any]]:
        import pyarrow as pa

        s = self.settings
        results: dict[str, list[Any]] = {name: [None] * table.num_rows for name in s["outputs"]}
        ports: Sequence[_Port] = s["ports"]
        examples = [[port.example(value) for value in table[port.column].to_pylist()] for port in ports]
        alike: dict[Any, list[int]] = {}
        for row in range(table.num_rows):
            alike.setdefault(tuple(values[row].shape for values in examples), []).append(row)
        for rows in alike.values():
            while rows:
                count = 1 << len(rows).bit_length() - 1
                taken, rows[:count] = rows[:count], []
                fed = {p.name: np.stack([values[r] for r in taken]) for p, values in zip(ports, examples, strict=True)}
                arrays = self.model.run(fed, self.device, s["precision"])
                for name, column in results.items():
                    if np.ndim(arrays[name]) == 0 or len(arrays[name]) != count:
                        raise ShapeError(f"infer: output {plain(name)} has the shape {np.shape(arrays[name])} for "
                                         f"{count} rows; leave it out of outputs")  # fmt: skip
                    for row, value in zip(taken, arrays[name], strict=True):
                        column[row] = value
        for name, new in s["outputs"].items():
            if len({np.shape(value) for value in results[name]}) == 1:
                yield new, _rows(np.stack(results[name]))
            else:  # rows of different shapes
                yield new, pa.array([np.asarray(value).tolist() for value in results[name]])


if not TYPE_CHECKING:  # type checkers would then take any name
    __getattr__, __dir__ = _unknown_in(__name__), _listed_in(__name__)
