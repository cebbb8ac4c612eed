"""Attributes that objects of torch, JAX and ONNX Runtime have and those of rlx lack: reading one raises an
AttributeError that says what to write. They are descriptors, since a `__getattr__` would slow down every other
attribute."""

from __future__ import annotations

from typing import Any

_DEVICE = 'rlx.array(x, device="cuda") puts an array on a device, and jit has device='
_GRAD = "gradients are functions: rlx.grad(f)(x)"
_FIXED = "arrays never change; write x = x + y, or x = x.at[key].set(y)"
_ARRAY = {
    ("float", "double", "half", "bfloat16", "long", "int", "type", "type_as"): 'rlx.cast(x, "f32")',
    ("permute", "moveaxis", "movedim"): "rlx.transpose(x, axes) or rlx.moveaxis",
    ("unsqueeze", "expand_dims"): "rlx.expand_dims(x, axis), or x[:, None]",
    ("view", "view_as", "reshape_as"): "x.reshape(shape)",
    ("numel", "nelement", "element_size"): "x.size, x.nbytes",
    ("dim",): "x.ndim",
    ("detach",): "outside a traced function nothing is recorded; in one, rlx.stop_gradient(x)",
    ("backward", "requires_grad", "requires_grad_", "retain_grad", "grad"): _GRAD,
    ("to", "cpu", "cuda", "device_put"): _DEVICE,
    ("numpy",): "np.asarray(x)",
    ("contiguous", "is_contiguous", "stride"): "every array of rlx is contiguous",
    ("clone",): "x.copy()",
    ("block_until_ready",): "x.numpy() waits for it",
    ("add_", "sub_", "mul_", "div_", "zero_", "fill_", "copy_", "clamp_", "relu_", "normal_", "uniform_"): _FIXED,
    ("masked_fill", "masked_fill_"): "rlx.where(mask, value, x)",
    ("expand", "expand_as", "broadcast_to"): "rlx.broadcast_to(x, shape)",
    ("softmax", "log_softmax", "relu", "sigmoid", "tanh", "exp", "log", "sqrt", "abs", "sin", "cos", "matmul", "flip",
     "roll", "tile", "gather", "tril", "triu"): "rlx.NAME(x)",
    ("topk", "sort_"): "rlx.top_k(x, k), rlx.sort(x)", ("norm",): "rlx.linalg.norm(x)",
    ("bmm", "mm"): "x @ y", ("is_cuda", "is_cpu"): "x.device",
    ("scatter", "scatter_", "scatter_add", "scatter_add_", "index_put_"): "x.at[key].set(y), x.at[key].add(y)",
    ("data_ptr", "ctypes", "tobytes"): "x.numpy(), and of that; DLPack takes x itself where it is",
}  # fmt: skip
_MODEL = {
    ("get_inputs", "input_names"): "model.inputs", ("get_outputs", "output_names"): "model.outputs",
    ("get_modelmeta", "meta"): "model.metadata",
    ("save", "export"): 'model.compile({"x": shape}).save("model.rlx")',
    ("to", "cuda", "cpu"): 'model.run(inputs, device="vulkan")',
    ("io_binding", "run_with_iobinding"): 'model.run(inputs, out="device")',
    ("report", "graph", "nodes"): "model.compile(shapes).report(), or `rlx inspect FILE --nodes`",
    ("predict", "infer", "forward", "run_async", "infer_new_request"): "model.run(inputs), or model.launch(inputs)",
    ("eval", "train"): "a model always infers; model.function() is for gradients",
    ("state_dict", "parameters", "initializers"): "model.weights", ("opset", "producer"): "model.metadata",
}  # fmt: skip
_KINDS: dict[str, dict[tuple[str, ...], str]] = {
    "Array": _ARRAY,
    "CreatedArray": _ARRAY,
    "Tensor": _ARRAY,
    "Model": _MODEL,
    "LanguageModel": {
        ("create_completion", "complete", "invoke", "predict"): '"".join(model.generate(text, max_tokens=40))',
        ("create_chat_completion", "apply_chat_template"): '"".join(model.chat(messages))',
        ("eval", "train", "half"): "a model always infers; rlx.finetune trains one",
        ("to", "cuda", "cpu"): 'rlx.models.load(path, "cuda")', ("device",): "the device's name stands in repr(model)",
        ("forward",): "model.logits(tokens)", ("n_ctx", "max_seq_length"): "model.context",
        ("detokenize", "decode"): "model.tokenizer.decode(tokens)", ("encode",): "model.tokenizer.encode(text)",
        ("vocab_size", "n_vocab", "num_layers", "n_layer", "layers", "hidden_size"): "model.config",
        ("num_parameters", "parameters", "state_dict"): "`rlx inspect FILE --nodes` lists every tensor",
        ("create_embedding",): "model.embed(text)", ("save_pretrained",): "`rlx convert FILE FOLDER`",
    },
    "SentenceEncoder": {
        ("similarity",): "a @ b.T, of encode(texts, normalize_embeddings=True)",
        ("get_sentence_embedding_dimension", "get_embedding_dimension"): "encoder.encode([text]).shape[1]",
        ("to", "cuda", "cpu"): 'rlx.models.load(path, "cuda")', ("eval",): "an encoder always infers",
        ("tokenize", "tokenizer"): "encoder.tokens(text)",
        ("encode_query", "encode_document"): "encode has prompt_name=",
    },
    "Session": {
        ("close", "end"): "a session holds nothing of its own; its programs have close()",
        ("run",): "session.compile(graph).run({name: array})", ("memory", "memory_info"): "session.info",
    },
    "Optimizer": {
        ("step", "zero_grad", "apply", "apply_gradients", "minimize"):
            "updates, state = optimizer.update(gradients, state, params); rlx.optim.apply_updates(params, updates)",
        ("state_dict", "load_state_dict", "state"):
            "the state is a pytree of arrays, which init gives and update takes",
        ("param_groups", "add_param_group", "lr", "learning_rate"):
            "a learning rate that changes is a schedule, such as rlx.optim.cosine_decay_schedule",
    },
    "Training": {
        ("params", "weights", "model", "model_parameters"): "run.parameters",
        ("opt_state", "optimizer"): "run.optimizer_state",
        ("train", "fit", "train_step", "run", "epoch"): "run.step(batch), or `for metrics in run.over(batches)`",
        ("state_dict", "checkpoint", "save_checkpoint"): "run.save(folder)",
        ("load_state_dict", "restore", "resume"): "run.load(folder), or resume=True of rlx.training",
        ("eval", "test", "validate"): "run.evaluate(batches)",
    },
    "Metrics": {("loss", "accuracy", "metrics", "item"): 'metrics["loss"]'},
    "DeviceInfo": {
        ("memory", "total_memory", "vram", "total_bytes"): "device.memory_bytes",
        ("free_memory", "free", "available_memory"): "device.free_bytes()",
        ("used_memory", "memory_allocated"): "device.taken_bytes()",
        ("type", "platform"): "device.backend", ("is_gpu", "is_software", "device_type"): "device.kind",
        ("version", "driver_version", "vendor"): "device.driver, device.name",
        ("compute_capability", "capabilities", "extensions"): "device.features",
    },
    "Graph": {
        ("compile",): "rlx.Session(device).compile(graph)",
        ("run",): "rlx.Session(device).compile(graph).run({name: array})",
    },
    "Jitted": {
        ("lower", "compile", "trace"): "call it once, and report() says what was compiled",
        ("save",): "rlx.onnx.save(f, path, args=(x,)), or a graph's program: rlx.Session().compile(graph).save(path)",
    },
    "Camera": {
        ("from_matrix", "from_pose", "from_view", "from_intrinsics", "from_colmap", "from_dict", "perspective"):
            "Camera(view, fx, fy, cx, cy, width, height), whose view takes points of the scene to the camera's "
            "coordinates, x right, y down, z ahead; np.linalg.inv(pose) where a pose puts the camera into the scene",
        ("orbit", "turntable", "around", "move", "rotate", "rotated"):
            "Camera.look_at(eye, target, width=, height=) for each eye on a circle",
        ("fit", "fit_to", "frame"): "Camera.facing(splats.means, width=, height=)",
        ("position", "center", "origin", "campos", "camera_center"): "camera.eye", ("cam_to_world", "c2w", "pose"):
            "np.linalg.inv(camera.view)",
        ("matrix", "viewmat", "world_view_transform", "extrinsics", "w2c", "R", "T"): "camera.view",
        ("K", "intrinsics", "focal", "fov"): "camera.fx, camera.fy, camera.cx, camera.cy, in pixels",
        ("render",): "rlx.splats.render(*splats, **camera)",
    },
    "Splats": {
        ("xyz", "get_xyz", "positions", "points", "centers"): "splats.means", ("scaling", "get_scaling", "sizes"):
            "splats.scales",
        ("quats", "rotation", "get_rotation", "quaternions"): "splats.rotations",
        ("opacity", "get_opacity", "alpha", "alphas"): "splats.opacities",
        ("sh", "shs", "rgb", "color", "harmonics", "features_dc", "get_features", "sh_coefficients"):
            "splats.colors, coefficients of harmonics",
        ("save", "save_ply", "write", "write_ply"): 'rlx.splats.write_ply("x.ply", *splats)',
        ("render",): "rlx.splats.render(*splats, **camera)",
        ("show", "view"): 'rlx.splats.write_page("x.html", *splats)',
        ("num_points", "n", "size", "shape"): "len(splats.means)",
        ("to", "cuda", "cpu"): 'rlx.splats.Splats(*(rlx.array(x, device="cuda") for x in splats))',
    },
    "Rendered": {
        ("rgb", "color", "colors", "render", "picture", "pixels"): "made.image", ("alphas", "opacity"): "made.alpha",
        ("save", "show"): "PIL.Image.fromarray, of np.asarray(made.image)",
        ("shape",): "made.image.shape",
    },
}


class UnknownAttribute(AttributeError):
    """An AttributeError, and shown as such in a traceback."""

    __module__, __qualname__ = "builtins", "AttributeError"


class _Elsewhere:
    __slots__ = ("_name", "_what")

    def __init__(self, name: str, what: str) -> None:
        self._name, self._what = name, what

    def __get__(self, instance: Any, owner: type) -> Any:
        what = self._what.replace("NAME", self._name)
        of = f"type object {owner.__name__!r}" if instance is None else f"{owner.__name__!r} object"
        raise UnknownAttribute(f"{of} has no attribute {self._name!r} (in rlx: {what})")


def explain(kind: type) -> None:
    """Gives a class these attributes, except those that it already has; `dir` does not show them."""
    kind.__dir__ = _listed  # type: ignore[assignment,method-assign]
    for names, what in _KINDS[kind.__name__].items():
        for name in names:
            if not any(name in base.__dict__ for base in kind.__mro__):
                setattr(kind, name, _Elsewhere(name, what))


def _listed(instance: object) -> list[str]:
    kind = type(instance)
    return [n for n in object.__dir__(instance) if not any(type(b.__dict__.get(n)) is _Elsewhere for b in kind.__mro__)]
