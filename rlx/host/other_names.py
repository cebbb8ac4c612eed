"""rlx's names for functions that NumPy, JAX, torch or ONNX Runtime name differently. Used only by error messages."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from rlx.errors import meant

_MODULES = ("linalg", "fft", "signal", "random", "nn", "optim", "tree", "splats", "onnx", "models", "finetune")
_DEVICE = 'device="vulkan" of rlx.jit, rlx.array and rlx.Session, or the environment variable RLX_DEVICE'
_EXPLAINED = {
    ("load", "load_model", "from_file", "from_pretrained", "AutoModel"):
        "rlx.onnx.load, rlx.models.load or rlx.load_program",
    ("load_onnx", "from_onnx", "import_onnx"): "rlx.onnx.load",
    ("load_gguf", "from_gguf", "LLM", "Llama", "AutoModelForCausalLM", "AutoTokenizer", "pipeline",
     "SentenceTransformer", "CrossEncoder", "WhisperModel", "load_folder"): "rlx.models.load",
    ("save",): "CompiledGraph.save for programs, rlx.onnx.save for models, numpy.savez for arrays",
    ("export", "to_onnx"): "rlx.onnx.save",
    ("onnxruntime", "ort"): "rlx.onnx, which has InferenceSession",
    ("torch", "functional", "F", "jax", "tensorflow"): "rlx itself, as in rlx.relu and rlx.jit; rlx.from_torch",
    ("scipy",): "rlx.signal, rlx.linalg, rlx.fft and rlx itself",
    ("gsplat", "nerfstudio"): "rlx.splats",
    ("numpy", "np", "jnp"): "rlx itself, as in rlx.sin",
    ("lax",): "rlx itself, as in rlx.scan and rlx.cond",
    ("tensor", "from_numpy", "as_tensor"): "rlx.array",
    ("cat",): "rlx.concatenate",
    ("unsqueeze",): "rlx.expand_dims", ("index_select",): "rlx.take", ("masked_fill",): "rlx.where",
    ("repeat_interleave",): "rlx.repeat", ("permute",): "rlx.transpose",
    ("scaled_dot_product_attention", "dot_product_attention", "MultiheadAttention", "flash_attention"): "rlx.attention",
    ("CrossEntropyLoss", "NLLLoss"): "rlx.cross_entropy", ("MSELoss", "mse_loss"): "rlx.mean((x - y) ** 2)",
    ("complex64", "complex128"): "rlx.complex; complex numbers are of NumPy or pairs (docs/names.md)",
    ("remat",): "rlx.checkpoint", ("custom_gradient",): "rlx.custom_vjp", ("conjugate",): "rlx.conj",
    ("ndarray",): "rlx.Array", ("bool",): "rlx.bool_",
    ("backend", "get_backend", "default_backend", "memory_stats", "memory_allocated"):
        "rlx.devices(), each of which says what is taken of its memory",
    ("profile", "profiler"): "`rlx bench MODEL --profile trace.json`, in a shell; RLX_DEBUG=1 says what is compiled",
    ("block_until_ready", "synchronize"): "numpy() of an array, which waits for it",
    ("debug", "print"): "print in a traced function shows a node; return values to see them",
    ("pure_callback", "io_callback", "py_function"): "rlx.custom_op",
    ("config", "enable_x64", "set_default_dtype", "get_default_dtype"):
        "the dtype of each array: f64 needs no switch (docs/arrays.md)",
    ("get_available_providers",): "rlx.onnx.get_available_providers; rlx.devices()",
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
    ("manual_seed", "seed", "randn", "rand", "randint", "default_rng", "RandomState", "Generator", "get_state"):
        "a key, as in rlx.random.normal(rlx.random.key(0), shape): no state is kept",
    ("Module", "Sequential", "Layer"): "functions and pytrees of arrays (docs/nn.md)",
    ("Linear", "Dense"): "rlx.nn.linear, of the parameters that rlx.nn.linear_init draws",
    ("Trainer", "fit"): "rlx.training",
    ("shuffle", "randperm"): "rlx.random.permutation(key, x)",
    ("SGD", "RMSprop"): "rlx.optim.sgd", ("lr_scheduler", "schedules"): "rlx.optim's functions that end in schedule",
    ("ellip", "bessel", "cheby2", "iirfilter", "gammatone", "minimum_phase", "iircomb", "bilinear",
     "iirnotch", "iirpeak", "iirdesign", "remez", "firls", "firwin2", "cheb1ord", "buttord"):
        "nothing; scipy.signal's gives coefficients, which rlx.signal.lfilter, filtfilt, sosfilt and convolve take",
    ("windows", "hann", "hamming", "blackman", "kaiser"): 'rlx.signal.get_window("hann", n)',
    ("mel_spectrogram", "melspectrogram", "mfcc", "mel_filterbank", "MelSpectrogram", "mel"):
        "a bank of mel filters is a matrix: bank @ rlx.signal.spectrogram(x)[2]",
    ("convolve2d", "correlate2d"): "rlx.signal.fftconvolve(x, y, mode), of any number of axes",
    ("rasterization", "rasterize", "rasterize_gaussians", "GaussianRasterizer"): "rlx.splats.render",
    ("psnr", "ssim"): "-10 * rlx.log10(rlx.mean((x - y) ** 2)), of pictures from 0 to 1",
    ("save_ply",): "rlx.splats.write_ply",
    ("write_png", "save_png", "save_image", "imsave"): "matplotlib.pyplot.imsave or PIL.Image, of a NumPy array",
    ("load_ply", "read"): "rlx.splats.read_ply for splats, scipy.io.wavfile.read for sounds",
    ("rlx.splats.load",): "rlx.splats.read_ply", ("rlx.splats.save",): "rlx.splats.write_ply",
    ("rlx.signal.load",): "scipy.io.wavfile.read", ("rlx.onnx.run",): "rlx.onnx.load(path).run({name: array})",
    ("rlx.onnx.quantization", "rlx.onnx.quantize_dynamic", "rlx.onnx.quantize_static"):
        'nothing; precision="int8" computes products of a model in bytes, and quantized models run as they are',
    ("rlx.onnx.checker", "rlx.onnx.check_model"): "onnx.checker, of the package onnx",
    ("rlx.onnx.helper", "rlx.onnx.numpy_helper", "rlx.onnx.shape_inference", "rlx.onnx.ModelProto"):
        "that of the package onnx, whose models rlx.onnx.load takes",
    ("rlx.onnx.convert",): "rlx.onnx.load(path).compile().save(\"model.rlx\"); rlx.onnx.save writes ONNX",
    ("rlx.onnx.__version__",): "rlx.__version__",
    ("rlx.onnx.check", "rlx.onnx.compare"): "`rlx check model.onnx`, in a shell",
    ("rlx.models.pull", "rlx.models.download", "snapshot_download", "hf_hub_download"): "`rlx pull NAME`, in a shell",
    ("rlx.splats.view", "rlx.splats.show", "rlx.splats.viewer"): "rlx.splats.write_page; `rlx view x.ply` in a shell",
    ("rlx.splats.train", "rlx.splats.densify"): "nothing; examples/splats.py is a training with rlx.grad",
    ("read_wav", "load_wav", "wavfile"): "scipy.io.wavfile.read, or the module wave of Python",
    ("finetune",): "import rlx.finetune",
    ("rlx.finetune.train", "rlx.finetune.run", "rlx.finetune.Trainer", "rlx.finetune.fit"): "rlx.finetune.finetune",
}  # fmt: skip
# Where a function that rlx has not is, of names that others of these have.
_PEERS = {"rlx": ("numpy", "scipy"), "rlx.fft": ("scipy.fft",), "rlx.linalg": ("scipy.linalg", "numpy.linalg"),
          "rlx.signal": ("scipy.signal",)}  # fmt: skip
# Names that are in use and that rlx has not, known without SciPy too, which a user of rlx need not have.
_SCIPY = {
    "scipy.signal": """argrelextrema bessel bode check_COLA choose_conv_method cont2discrete czt deconvolve envelope
        find_peaks_cwt freqresp freqs freqs_zpk freqz freqz_sos freqz_zpk gausspulse group_delay invres kaiserord
        lfiltic lombscargle lp2bp lp2bs lp2hp lp2lp lsim lti max_len_seq medfilt medfilt2d order_filter peak_prominences
        peak_widths place_poles residue sawtooth sos2tf sos2zpk sosfreqz square sweep_poly tf2sos tf2ss tf2zpk
        unit_impulse vectorstrength wiener zoom_fft zpk2ss""",
    "scipy.fft": "fht fhtoffset hfft2 hfftn ifht ihfft2 ihfftn next_fast_len prev_fast_len",
    "scipy.linalg": """block_diag circulant fractional_matrix_power funm hadamard hankel hessenberg hilbert ldl logm
        lu_factor lu_solve null_space orth orthogonal_procrustes polar qz rq schur signm solve_banded
        solve_continuous_are solve_discrete_are solve_sylvester solve_toeplitz solveh_banded sqrtm subspace_angles
        toeplitz""",
}
_OTHERS = {name: what for names, what in _EXPLAINED.items() for name in names}


def in_place_of(module: str, name: str) -> str:
    """What to write in place of a name that a module of rlx does not have, in parentheses; empty if there is no
    suggestion.
    """
    own_name = f"{module}.{name}"
    explained = f" (in rlx: {_OTHERS[name]})" if name in _OTHERS else ""
    if own_name in _OTHERS or (explained and module == "rlx"):
        return f" (in rlx: {_OTHERS[own_name]})" if own_name in _OTHERS else explained
    own = [n for n in {*dir(import_module(module)), *_public(module)} if n[:1] != "_" and n != "annotations"]
    if exact := next((n for n in own if n.lower() == name.lower()), None):
        return meant(name, [exact])
    if name[:1] != "_" and (peer := next((p for p in _PEERS.get(module, ()) if _has(p, name)), None)):
        return explained or f" (in rlx: nothing; {peer}.{name} serves for NumPy arrays)"
    for other in ("rlx", *(f"rlx.{short}" for short in _MODULES)):
        if other != module and name[:1] != "_" and name in _public(other):
            return f" (did you mean {other}.{name}?)"
    return explained or meant(name, own)


def _has(peer: str, name: str) -> bool:
    package = _module(peer)
    return name in _SCIPY.get(peer, "").split() if package is None else name in dir(package)


def _module(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ImportError:  # a package that it needs, or it itself, is not installed
        return None


def _public(module: str) -> list[str]:
    outside = _module(module)
    if outside is None:
        return []
    if "__all__" in vars(outside):
        return list(outside.__all__)
    own = vars(outside)  # not `dir`, which also lists names that a package loads lazily
    return [n for n in dir(outside) if n not in own or str(getattr(own[n], "__module__", "")).startswith("rlx")]
