"""custom_op: a user's own op, with a NumPy function and, optionally, kernels for the GPUs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from rlx.driver.closing import Closing
from rlx.errors import DTypeError, ShapeError, UnsupportedOp
from rlx.ir import NOT_DIFFERENTIABLE, REGISTRY, Attrs, Node, Op, Tensor, TensorType, register
from rlx.ir.graph import as_tensors, graph_of, traced_graph
from rlx.ir.op import REDEFINED, Infer, Vjp, _NotDifferentiable
from rlx.ops.public import Outside

FAMILY = "custom"
_LOCAL_SIZE = 17  # SPIR-V's execution mode of that name
Arguments = Callable[[Sequence[TensorType], Attrs], Sequence[int | float]]


class CustomOp(Closing):
    """The result of `custom_op`: call it with tensors or arrays and keyword attributes, like any op.

    `close`, or the end of a `with` block, removes the op."""

    def __init__(self, op: Op, withdraw: Callable[[], None]) -> None:
        self.op = op
        self._withdraw = withdraw
        self.__name__ = op.name
        self.__doc__ = op.reference.__doc__

    def __call__(self, *inputs: Any, **attrs: Any) -> Tensor | tuple[Tensor, ...]:
        if Outside.compute is not None and traced_graph() is None and not any(isinstance(x, Tensor) for x in inputs):
            result: Tensor | tuple[Tensor, ...] = Outside.compute(self._applied, inputs, attrs)
            return result
        return self._applied(*inputs, **attrs)

    def _applied(self, *inputs: Any, **attrs: Any) -> Tensor | tuple[Tensor, ...]:
        graph = graph_of(self.op.name, inputs)
        outputs = graph.add(self.op, as_tensors(graph, inputs), attrs)
        return outputs[0] if len(outputs) == 1 else outputs

    def close(self) -> None:
        """Removes the op from the registry; graphs that hold it can no longer be compiled. Idempotent."""
        if REGISTRY.get(self.op.name) is self.op:
            del REGISTRY[self.op.name]
        REDEFINED.pop(id(self.op), None)
        self._withdraw()


def custom_op(
    name: str,
    numpy: Callable[..., Any],
    infer: Infer,
    *,
    vjp: Vjp | _NotDifferentiable = NOT_DIFFERENTIABLE,
    cuda: str | None = None,
    spirv: bytes | None = None,
    glsl: str | None = None,
    threads: int = 256,
    arguments: Arguments | None = None,
) -> CustomOp:
    """Registers a user's own op and returns the function that applies it.

    `numpy(*arrays, **attrs)` computes the output (or a tuple of outputs). It runs on the CPU, and as a host step,
    which `report()` lists, on a GPU without a kernel for it. `infer(types, attrs)` returns the output types, or
    raises an error. `vjp(node, grads)` returns the gradients, written with rlx ops.

    `cuda` is CUDA C++ with `extern "C" __global__ void <name>(…)`; `spirv` is a compute module with entry point
    "main" and its arguments in push constants, and `glsl` the text of one, which glslangValidator compiles, where that
    is installed, before the first run on Vulkan. The arguments of all are the addresses of the inputs and of the
    outputs, then u32 n, the number of elements of the first output, then what `arguments(types, attrs)` lists (ints
    as u32, floats as f32), at most 128 bytes. The launch has ceil(n / threads) workgroups of `threads`. If the device
    allows fewer along X, they continue along Y: take the group's number from x + y · (groups along x), and do nothing
    at or past n.

    A name of the user's own may be defined anew, as when a notebook's cell runs twice: graphs built before keep the
    definition that they were built with, and what the name means from now on is the new one.

    Raises: ShapeError for the name of an op of rlx's or no identifier, and for a module whose workgroups are not of
    `threads`; UnsupportedOp for bytes that are not SPIR-V, for other kernels that are no text, and for `spirv` beside
    `glsl`. A run raises UnsupportedOp for `glsl` where nothing compiles it, RlxError for text with mistakes, each with
    its line, and ShapeError or DTypeError if the result of `numpy` is not of the types that `infer` returns.
    """
    if not name.isidentifier():
        raise ShapeError(f"custom_op: {name!r} is not a name that kernels can have (letters, digits, _)")
    if name in REGISTRY and REGISTRY[name].family != FAMILY:
        raise ShapeError(f"custom_op: rlx has an op {name!r} already; choose another name")
    if spirv is not None and (len(spirv) % 4 or spirv[:4] != b"\x03\x02\x23\x07"):
        raise UnsupportedOp(
            f"custom_op {name}: `spirv` does not begin like a SPIR-V module; give the compiled bytes, or text as `glsl`"
        )
    for what, text in (("cuda", cuda), ("glsl", glsl)):
        if text is not None and not isinstance(text, str):
            raise UnsupportedOp(f"custom_op {name}: `{what}` is {text!r:.40}; expected the text of a kernel")
    if spirv is not None and glsl is not None:
        raise UnsupportedOp(f"custom_op {name}: `spirv` and `glsl` are two kernels for one device; give one of them")
    if not 1 <= threads <= 1024:
        raise ShapeError(f"custom_op {name}: {threads} threads a workgroup; expected 1 to 1024")

    def reference(*arrays: Any, **attrs: Any) -> Any:
        return numpy(*arrays, **attrs)

    reference.__doc__ = numpy.__doc__
    op = Op(name, FAMILY, _checked(name, infer), reference, "the user's own function", vjp, fallible=True)
    register(op, redefines=True)
    if spirv is not None:
        _check_workgroup(name, spirv, threads)
    native = any(kernel is not None for kernel in (cuda, spirv, glsl))
    return CustomOp(op, _add_rule(op, cuda, spirv, glsl, threads, arguments) if native else lambda: None)


def _check_workgroup(name: str, module: bytes, threads: int) -> None:
    """Raises: ShapeError where a module says that its workgroups have another size."""
    from rlx.backends.gpu.elementwise.spirv import Module, Op

    for inst in Module.parse(module).insts:
        if inst.op == Op.ExecutionMode and inst.words[1] == _LOCAL_SIZE and inst.words[2:] != [threads, 1, 1]:
            size = " x ".join(map(str, inst.words[2:]))
            raise ShapeError(
                f"custom_op {name}: the module's workgroups are {size}, and threads is {threads}; make them equal "
                f"(layout(local_size_x = {threads}) in)"
            )


def _checked(name: str, infer: Infer) -> Infer:
    """`infer`, with a readable error if it returns anything but types."""

    def checked(types: Sequence[TensorType], attrs: Attrs) -> TensorType | tuple[TensorType, ...]:
        types_of = infer(types, attrs)
        listed = (types_of,) if isinstance(types_of, TensorType) else types_of
        if not isinstance(listed, tuple) or not all(isinstance(t, TensorType) for t in listed):
            raise DTypeError(
                f"custom op {name}: infer gave {types_of!r}; expected a TensorType or a tuple of them"
            )
        return types_of

    return checked


def _add_rule(
    op: Op, cuda: str | None, spirv: bytes | None, glsl: str | None, threads: int, arguments: Arguments | None
) -> Callable[[], None]:
    from rlx.backends.gpu.program.lowering import Lowering, override
    from rlx.backends.gpu.program.steps import Language, SourceKernel
    from rlx.backends.gpu.program.target import Target

    sources = {Language.CUDA: cuda, Language.SPIRV: spirv if glsl is None else glsl}

    @functools.cache
    def kernel_for(language: Language) -> SourceKernel:
        if language is not Language.SPIRV or glsl is None:
            return SourceKernel(op.name, cuda, spirv, threads)
        from rlx.runtime.glsl import spirv_of

        module = spirv_of(op.name, glsl)
        _check_workgroup(op.name, module, threads)
        return SourceKernel(op.name, cuda, module, threads)

    def when(node: Node, target: Target) -> bool:
        return node.op is op and sources[target.language] is not None  # another definition has its own rule

    def rule(ctx: Lowering, node: Node) -> None:
        refs = [ctx.ref(t) for t in (*node.inputs, *node.outputs)]
        n = node.outputs[0].size
        extra = list(arguments([t.type for t in node.inputs], node.attrs)) if arguments is not None else []
        if n:
            groups = ctx.groups(math.ceil(n / threads))
            ctx.launch(kernel_for(ctx.target.language), groups, [*refs, n, *extra], outputs=len(node.outputs))

    return override(op.name, rule, when)
