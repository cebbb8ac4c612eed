"""keywords: a decorator whose functions suggest the nearest known keyword for an unknown one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from rlx.errors import meant

CO_VARARGS = 4  # inspect's, whose import takes long
P = ParamSpec("P")
R = TypeVar("R")


# Keywords of torch, JAX and ONNX with their names in rlx, or, where rlx has none, what to write instead.
_SAME = {
    "n_ctx": "context", "max_seq_len": "context", "max_model_len": "context", "n_gpu_layers": "layers_on",
    "ctx_size": "context", "n_batch": "prefill_chunk", "n_predict": "max_tokens", "temp": "temperature",
    "stop_strings": "stop", "n_threads": "threads", "do_sample": "temperature", "max_length": "max_tokens",
    "lora_path": "adapter",
    "lora": "adapter", "repeat_penalty": "repetition_penalty", "show_progress_bar": "show_progress",
    "in_dims": "in_axes", "out_dims": "out_axes", "backend": "device", "donate_argnums": "donate",
    "donate_argnames": "donate", "dynamic_axes": "dims", "dynamic_shapes": "dims", "opset_version": "opset",
}  # fmt: skip
_ELSEWHERE = {
    "stream": "what comes is given piece by piece in any case; \"\".join(…) is all of it",
    "verbose": "nothing is printed", "adapter": "model.load_adapter(name, folder), then generate's adapter=name",
    "load_in_4bit": "`rlx convert FOLDER --to Q4_K_M -o small.gguf` packs a model",
    "load_in_8bit": "`rlx convert FOLDER --to Q8_0 -o small.gguf` packs a model",
    "quantization_config": "`rlx convert FOLDER --to Q4_K_M -o small.gguf` packs a model",
    "quantization": "`rlx convert FOLDER --to Q4_K_M -o small.gguf` packs a model",
    "flash_attn": "attention keeps no matrix of all scores in any case",
    "attn_implementation": "attention keeps no matrix of all scores in any case",
    "num_beams": "one text is made, of the likeliest tokens or of drawn ones", "echo": "the prompt is not repeated",
    "trust_remote_code": "no code of a folder is run", "convert_to_tensor": "NumPy's array is given; rlx.array(…)",
    "convert_to_numpy": "NumPy's array is given",
    "device": "run and compile of what it gives take it", "providers": "rlx.onnx.InferenceSession takes them",
    "input_names": "inputs have the names of the function's arguments",
    "output_names": "outputs have the keys of the dict that the function returns",
}  # fmt: skip


def keywords(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with a TypeError for unknown keywords that lists the known ones and suggests the nearest."""
    code = function.__code__
    known = set(code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]) - {"self"}
    what = function.__qualname__.removesuffix(".__init__")
    of_object = code.co_varnames[:1] == ("self",)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                same = _SAME.get(name, name)
                elsewhere = _ELSEWHERE.get(name) or (_ELSEWHERE.get(same) if same not in known else None)
                hint = f" ({elsewhere})" if elsewhere else meant(same, known)
                raise TypeError(f"{what}: there is no argument {name!r}{hint}; it takes {', '.join(sorted(known))}")
        if len(args) > code.co_argcount and not code.co_flags & CO_VARARGS:
            named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
            by_name = f"by name it takes {', '.join(named)}" if named else "several arrays are one tuple or dict"
            raise TypeError(
                f"{what}: {len(args) - of_object} arguments came without names, and it takes "
                f"{code.co_argcount - of_object} so; {by_name}"
            )
        return function(*args, **kwargs)

    return call
