"""`rlx.models.load`: the model of a file or a folder, of whatever kind it is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from rlx.driver.registry import find_device
from rlx.dtypes import DTypeLike, f32
from rlx.errors import DTypeError, FileMissing, ModelFormatError, RlxError, ShapeError
from rlx.formats.gguf.encoders import ENCODERS
from rlx.formats.gguf.reader import GgufFile
from rlx.formats.huggingface import ModelFolder
from rlx.models.language.model import Split, half_or_full, load_folder, load_gguf
from rlx.models.language.placement import shares_of
from rlx.runtime import Session
from rlx.runtime.keywords import keywords

if TYPE_CHECKING:
    from rlx.models.language.ranks import Meeting

_ELSEWHERE = {  # files that other functions take, by their endings
    ".onnx": "rlx.onnx.load and `rlx run` take ONNX models",
    ".rlx": "rlx.load_program takes saved programs",
    ".safetensors": "give the folder that holds it beside config.json",
    ".json": "give the folder that holds it beside the weights",
}


def check_path(what: str, path: Any) -> None:
    """Checks a model's path. Raises: DTypeError if it is no path, FileMissing if nothing is there, ModelFormatError for
    a file that other functions read."""
    if not isinstance(path, (str, os.PathLike)):
        raise DTypeError(
            f"{what}: {path!r:.60} is no path; give the text or Path of a GGUF file, or of a model's folder"
        )
    if not os.path.exists(path):
        pulled = re.fullmatch(r"([\w.-]+/[\w.-]+)(:\w+)?", str(path))
        named = pulled and not str(path).endswith((".gguf", *_ELSEWHERE))
        hint = f" (rlx pull {pulled[1]} downloads one of that name)" if pulled and named else ""
        what = f"{path} does not exist; give a GGUF file, or the folder of config.json and the weights{hint}"
        raise FileMissing(what, path)
    if os.path.isfile(path) and (ending := os.path.splitext(path)[1]) in _ELSEWHERE:
        raise ModelFormatError(f"{path} is no GGUF file and no folder; {_ELSEWHERE[ending]}")


@keywords
def load(
    path: str | os.PathLike[str],
    device: str = "auto",
    *,
    context: int = 4096,
    dtype: DTypeLike | None = None,
    activations: DTypeLike | None = None,
    cache: DTypeLike | None = None,
    precision: str = "f32",
    threads: int | None = None,
    engine: Literal["numpy", "compiled"] | None = None,
    layers_on: str | Mapping[str, int] | None = None,
    prefill_chunk: int | None = None,
    tensor_parallel: int | None = None,
    sums: DTypeLike | None = None,
) -> Any:
    """The model of a Hugging Face folder or a GGUF file: a `SentenceEncoder` for folders of encoders and of
    language models with the files of sentence-transformers, and for encoders and rerankers in GGUF, a `Transcriber` for
    Whisper's folder, else a `LanguageModel`.

    `context` is how many tokens a language model holds, at most those it was made for. `dtype="bf16"` or "f16" keeps
    the matrices in half precision (by default a language model's are as in the file, a sentence encoder's f32),
    `activations` the tensors between layers, `cache` the keys and values (by default as the activations; "q8_0" takes
    8.5 bits for each). Halves are faster on devices with matrix units, with the precision of 8 bits (bf16) or 11 bits
    (f16). `threads` limits the CPU's, and `engine` chooses its kernels, both as in `Session`; beside `layers_on` the
    engine is that of the CPU's layers.
    `layers_on="cuda:0=20,cpu"`, or a dict of numbers, spreads a language model's layers over devices, in their order,
    in place of `device`; one without a number takes as many as fit there, the last the rest. Caches are where their
    layers are. `prefill_chunk` is how many tokens of a prompt one run takes at most, from 16 on: 512, or 2,048 on a GPU
    of 40 GB and more. Longer runs are faster on large GPUs and take more memory; shorter ones end sooner.
    `tensor_parallel=N` cuts a language model's matrices over N devices, the CUDA devices from `device` on, or so many
    ranks on the CPU (docs/ranks.md); a program that `mpiexec -n N` starts has one of them. `sums` is the dtype in which
    they add, f32 unless it is "f16" or "bf16".
    Raises: ModelFormatError for damaged or unsupported files, DTypeError, ShapeError for numbers that are not those of
    the model's layers or that its heads do not divide by, UnsupportedOp for a model or devices that `tensor_parallel`
    cannot cut, DeviceUnavailable, OutOfDeviceMemory with the need, what is free, and what would fit.

    >>> model = rlx.models.load("folder")
    >>> for piece in model.generate("Once upon a time", max_tokens=100, temperature=0.8):
    ...     print(piece, end="", flush=True)
    """
    check_path("load", path)
    over = {"tensor_parallel": tensor_parallel, "sums": sums}
    half = {"dtype": dtype, "activations": activations, "cache": cache}

    def opened(name: str) -> Session:
        return Session(name, precision=precision, threads=threads, engine=engine)

    def opened_part(name: str) -> Session:
        of_cpu = find_device(name).kind == "cpu"
        return Session(name, precision=precision, threads=threads, engine=engine if of_cpu else None)

    def ranks() -> Meeting | None:
        if tensor_parallel is None:
            if sums is not None:
                raise DTypeError("load: sums is for tensor_parallel, which is not given; leave it out")
            return None
        if layers_on is not None:
            raise DTypeError("load: tensor_parallel and layers_on both say where a model goes; give one of them")
        from rlx.models.language.ranks import meeting_of  # most models are loaded without

        added = f32 if sums is None else half_or_full("sums", sums)
        return meeting_of(tensor_parallel, device, added, opened)

    def sessions(meeting: Meeting | None = None) -> tuple[Session, Split]:
        if meeting is not None:
            return meeting.sessions[0], ()
        if layers_on is None:
            return opened(device), ()
        if device != "auto":
            raise DTypeError(f"load: device={device!r:.40} beside layers_on, which names the devices; give one of them")
        split = [(opened_part(name), count) for name, count in shares_of(layers_on)]
        if engine is not None and all(session.info.kind != "cpu" for session, _ in split):
            raise RlxError(f"load: engine={engine!r} chooses the kernels of the CPU, which layers_on leaves no layer; "
                           "leave it out")  # fmt: skip
        if len({session.device for session, _ in split}) < len(split):
            raise ShapeError(f"layers_on {layers_on!r:.80}: two of these are one device; expected each once")
        return split[0][0], split

    def refuse(**given: Any) -> None:
        for name, value in {"layers_on": layers_on, "prefill_chunk": prefill_chunk, **over, **given}.items():
            if value is not None:
                raise DTypeError(f"load: {name} is for language models, and {path} is none; leave it out")

    if os.path.isfile(path):
        with GgufFile(path) as file:
            architecture = file.metadata.get("general.architecture")
            if isinstance(architecture, str) and architecture in ENCODERS:
                refuse(cache=cache)
                from rlx.models import sentence

                session, _ = sessions()
                return sentence.load_gguf(file, session, dtype=dtype, activations=activations)
            meeting = ranks()
            session, split = sessions(meeting)
            return load_gguf(
                file, session, context=context, split=split, prefill_chunk=prefill_chunk, meeting=meeting, **half
            )
    folder = ModelFolder(path)
    from rlx.models.encoders import is_encoder  # imported here, since a GGUF file needs neither
    from rlx.models.encoders.decoders import makes_embeddings

    if is_encoder(folder.config) or makes_embeddings(folder):
        refuse(cache=cache)
        from rlx.models import sentence

        return sentence.load(
            path, device, dtype=dtype, activations=activations, precision=precision, threads=threads, engine=engine
        )
    if folder.config.get("model_type") == "whisper":
        refuse()
        from rlx.models.speech import transcriber

        session, _ = sessions()
        return transcriber.load_folder(folder, session, **half)
    meeting = ranks()
    session, split = sessions(meeting)
    return load_folder(
        folder, session, context=context, split=split, prefill_chunk=prefill_chunk, meeting=meeting, **half
    )
