"""`rlx.models.trainable`: the model of a file or a folder as a function of its weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rlx.dtypes import DType, DTypeLike, f32, f64, rounded
from rlx.errors import DTypeError, RlxError, ShapeError
from rlx.formats.gguf.encoders import ENCODERS
from rlx.formats.gguf.model import GgufModel
from rlx.formats.gguf.reader import GgufFile
from rlx.formats.huggingface import ModelFolder
from rlx.models.encoder_function import encoder_function
from rlx.models.encoders import is_encoder
from rlx.models.encoders.decoders import makes_embeddings
from rlx.models.language.architectures import architecture_of
from rlx.models.language.config import Fields
from rlx.models.language.functions import function_of
from rlx.models.language.weights import Arrays
from rlx.models.loading import check_path
from rlx.models.sentence import read_folder, read_gguf
from rlx.runtime.functions import float_dtype
from rlx.runtime.keywords import keywords


@keywords
def trainable(
    path: str | os.PathLike[str], dtype: DTypeLike | None = None, *, activations: DTypeLike | None = None,
    context: int | None = None, checkpoint: bool = False, dims: Mapping[str, int] | None = None,
) -> tuple[Any, dict[str, Any]]:  # fmt: skip
    """(function, weights) of the model of a Hugging Face folder, a GGUF or an ONNX file, to differentiate and to train.

    `function(weights, ids)` gives the logits of a language model, as `LanguageFunction` says, and
    `function(weights, ids, mask)` the vectors of a sentence encoder, as `EncoderFunction` does; of an ONNX model
    `function(weights, inputs)` the outputs, as `rlx.onnx`'s `OnnxFunction` says. It works within `jit`,
    `grad`, `checkpoint` and every other transformation, and gives the loaded model's numbers. The weights are NumPy
    arrays by their names in the folder, packed ones `rlx.PackedArray`; those of a GGUF file have a folder's names and
    order of rows, or, in families whose tensors rlx reads as they lie, the names and rows of its own graphs. Those in
    packed tensors that hold several, or are held in several, are apart.
    Packed weights have no gradient, and gradients pass through their products.

    `dtype` is that of matrices, by default the file's; vectors are f32, and all are f64 with `dtype="f64"`.
    `activations` is the dtype between layers, f32 unless `dtype` is f64. `context` is how many positions
    `positions=` may name: 4096, or the model's. With `checkpoint` each layer is computed again for the gradient.
    Of an ONNX model `dims` are lengths of symbolic dimensions (1 unless given), with which it is tried at once.
    Raises: ModelFormatError for damaged or unsupported files, DTypeError, ShapeError, RlxError for a setting that is
    not of this kind of model.

    >>> function, weights = rlx.models.trainable("folder")
    >>> loss = lambda weights, ids: rlx.mean(rlx.cross_entropy(function(weights, ids[:, :-1]), ids[:, 1:]))
    >>> value, gradient = rlx.value_and_grad(loss)(weights, ids)
    """
    kind = None if dtype is None else float_dtype("dtype", dtype)
    work = float_dtype("activations", activations or (f64 if kind == f64 else f32))
    if isinstance(path, str | os.PathLike) and os.path.splitext(path)[1] == ".onnx":
        _none_of(path, "language models", context=context, checkpoint=checkpoint)
        return _onnx(path, kind, activations, dims)
    _none_of(path, "ONNX models", dims=dims)
    check_path("trainable", path)
    if context is not None and (type(context) is not int or context < 1):
        raise ShapeError(f"trainable: context is {context!r}; expected an integer from 1")
    if os.path.isfile(path):
        with GgufFile(path) as file:
            architecture = file.metadata.get("general.architecture")
            if isinstance(architecture, str) and architecture in ENCODERS:
                _none_of(path, "language models", context=context, checkpoint=checkpoint)
                return encoder_function(read_gguf(file), kind, work)
            model = GgufModel(file)
            fields = Fields({**model.config, "rope_partial": True}, model.where)
            return function_of(model, fields, kind, work, context, checkpoint)
    folder = ModelFolder(path)
    if is_encoder(folder.config) or makes_embeddings(folder):
        _none_of(path, "language models", context=context, checkpoint=checkpoint)
        return encoder_function(read_folder(folder, text=False), kind, work)
    fields = Fields(folder.config, str(folder.path / "config.json"))
    architecture_of(fields)  # an unknown one is told of before weights that are missing
    return function_of(Arrays(folder.tensors(), str(folder.path)), fields, kind, work, context, checkpoint)


def _none_of(path: Any, kind: str, **settings: Any) -> None:
    """Raises: RlxError for a setting that only models of another kind have."""
    for name, value in settings.items():
        if value is not None and value is not False:
            raise RlxError(f"trainable: {name} is for {kind}; leave it out for {path}")


def _onnx(
    path: Any, dtype: DType | None, activations: DTypeLike | None, dims: Mapping[str, int] | None
) -> tuple[Any, dict[str, Any]]:
    from rlx.onnx import load  # it needs the package onnx

    if activations is not None:
        raise DTypeError("trainable: activations are for language models and encoders; an ONNX file has its own dtypes")
    function, weights = load(path).function(dims)
    return function, weights if dtype is None else {n: rounded(w, dtype.np) for n, w in weights.items()}
