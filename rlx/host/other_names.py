"""rlx's names for what NumPy, JAX, torch or ONNX Runtime call otherwise. Used by error messages alone."""

from __future__ import annotations

from importlib import import_module

from rlx.errors import meant

_MODULES = ("linalg", "fft", "signal", "random", "nn", "optim", "tree", "splats", "onnx", "models", "finetune")
_DEVICE = 'device="vulkan" of rlx.jit, rlx.array and rlx.Session, or the environment variable RLX_DEVICE'
_EXPLAINED = {
    ("load", "load_model", "from_file", "from_pretrained", "AutoModel"):
        "rlx.onnx.load, rlx.models.load or rlx.load_program",
    ("load_onnx", "from_onnx", "import_onnx"): "rlx.onnx.load",
    ("load_gguf", "from_gguf", "LLM", "Llama"): "rlx.models.load",
    ("save",): "CompiledGraph.save for programs, rlx.onnx.save for models, numpy.savez for arrays",
    ("export", "to_onnx"): "rlx.onnx.save",
    ("numpy", "np", "jnp"): "rlx itself, as in rlx.sin",
    ("lax",): "rlx itself, as in rlx.scan and rlx.cond",
    ("tensor", "from_numpy", "as_tensor"): "rlx.array",
    ("cat",): "rlx.concatenate",
    ("detach",): "rlx.stop_gradient",
    ("no_grad", "inference_mode"): "nothing records but rlx.grad and the like",
    ("jacobian",): "rlx.jacrev or rlx.jacfwd",
    ("backward", "GradientTape"): "rlx.grad or rlx.value_and_grad",
    ("pmap",): "rlx.shard_map",
    ("compile", "function", "script"): "rlx.jit",
    ("make_jaxpr",): "str(rlx.jit(f)), and the report() of a jitted function",
    ("tree_map", "tree_util"): "rlx.tree.map and rlx.tree",
    ("set_device", "device", "default_device", "set_default_device", "device_put", "cuda", "vulkan", "hip"): _DEVICE,
    ("is_available", "device_count", "list_devices", "get_devices"): "rlx.devices()",
    ("manual_seed", "seed", "randn", "rand", "randint"):
        "a key, as in rlx.random.normal(rlx.random.key(0), shape): no state is kept",
    ("Module", "Sequential", "Layer"): "functions and pytrees of arrays (docs/nn.md)",
    ("Linear", "Dense"): "rlx.linear",
    ("Trainer", "fit"): "rlx.training",
    ("save_ply",): "rlx.splats.write_ply",
    ("load_ply", "read"): "rlx.splats.read_ply for splats, scipy.io.wavfile.read for sounds",
    ("read_wav", "load_wav", "wavfile"): "scipy.io.wavfile.read, or the module wave of Python",
    ("finetune",): "import rlx.finetune",
}  # fmt: skip
_OTHERS = {name: what for names, what in _EXPLAINED.items() for name in names}


def in_place_of(module: str, name: str) -> str:
    """What to write in place of a name that a module of rlx does not have, in parentheses; empty where that is not
    known.
    """
    explained = f" (in rlx: {_OTHERS[name]})" if name in _OTHERS else ""
    if explained and module == "rlx":
        return explained
    own = [n for n in {*dir(import_module(module)), *_public(module)} if n[:1] != "_"]
    if exact := next((n for n in own if n.lower() == name.lower()), None):
        return meant(name, [exact])
    for other in ("rlx", *(f"rlx.{short}" for short in _MODULES)):
        if other != module and name[:1] != "_" and name in _public(other):
            return f" (did you mean {other}.{name}?)"
    return explained or meant(name, own)


def _public(module: str) -> list[str]:
    try:
        found = import_module(module)
    except ImportError:  # a package that it needs is not installed
        return []
    if "__all__" in vars(found):
        return list(found.__all__)
    own = vars(found)  # `dir` knows names beyond these where a package loads them by need
    return [n for n in dir(found) if n not in own or str(getattr(own[n], "__module__", "")).startswith("rlx")]
