"""`from_torch`: a torch.nn.Module as a function of its parameters, buffers and inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from rlx.aten.ops import Random, dtype_of, find
from rlx.errors import DTypeError, RlxError, ShapeError, UnsupportedOp, meant
from rlx.ir import Tensor
from rlx.ops import cast
from rlx.records import Record

_LISTED_OPERATORS = 8


class _Value(Record, slots=False):
    """An argument of a step that an earlier step or an input computes."""

    name: str


class _Step(Record, slots=False):
    """One node of the graph: `call` computes it from arguments in the order of the operator's schema."""

    name: str
    call: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    promote: bool  # tensors are converted to the result's dtype first, as torch promotes them
    dtypes: tuple[Any, ...]  # the results' dtypes; None where one is no tensor
    line: str  # the module's own code, for messages


class _Input(Record, slots=False):
    """A tensor the caller passes: an axis is a length, or the name of a dynamic dimension."""

    name: str
    where: str
    shape: tuple[int | str, ...]
    dtype: Any


class TorchModule:
    """A module of PyTorch as a function; `from_torch` returns it.

    `parameters` and `buffers` are dicts of NumPy arrays by the names of the module's `state_dict` (buffers that are
    not persistent too). `module(parameters, *inputs)` gives the outputs in the module's own structure; it may be
    called at once, under `rlx.jit`, `grad` and the other transformations. A module in training mode changes buffers
    (the running statistics of batch norm): `module.apply(parameters, buffers, *inputs)` gives (outputs, buffers).
    """

    def __init__(self, program: Any, ranges: Mapping[str, tuple[int, int]]) -> None:
        self._read(program)
        self._ranges = ranges

    def __call__(self, parameters: Mapping[str, Any], *inputs: Any, key: Any = None, **named: Any) -> Any:
        """The module's outputs, with the buffers that it was exported with.

        `key` is a random key (`rlx.random.key`), which dropout and the like need. Raises: ShapeError, DTypeError for
        inputs that differ from the exported ones, RlxError for parameters of other names or without a key."""
        return self.apply(parameters, self.buffers, *inputs, key=key, **named)[0]

    def apply(
        self,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        *inputs: Any,
        key: Any = None,
        **named: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """(outputs, buffers after the call); arguments and errors as of the call itself."""
        values: dict[str, Any] = dict(self._constants)
        for kind, wanted, came in (
            ("parameter", self._parameters, parameters),
            ("buffer", self._buffers, buffers),
        ):
            for name, node in wanted.items():
                if name not in came:
                    raise RlxError(
                        f"{kind} {name!r} is missing{meant(name, list(came))}; pass module.{kind}s or a tree like it"
                    )
                values[node] = came[name]
            if unknown := [
                n for n in came if n not in (self.parameters if kind == "parameter" else self.buffers)
            ]:
                raise RlxError(f"the module has no {kind} {unknown[0]!r}{meant(unknown[0], list(wanted))}")
        values.update(self._bound(inputs, named))
        random = Random(key)
        for step in self._steps:
            random.line = step.line
            args = _filled(step.args, values)
            if step.promote:
                args = [_promoted(a, step.dtypes[0]) for a in args]
            result = step.call(random, *args, **_filled(step.kwargs, values))
            values[step.name] = _typed(result, step.dtypes)
        outputs = _filled(self._outputs, values)
        after = {**buffers, **{name: values[node] for name, node in self._changed.items()}}
        return self._unflatten(outputs), after

    def __repr__(self) -> str:
        count = sum(int(np.size(p)) for p in self.parameters.values())
        inputs = ", ".join(f"{i.where}: {i.dtype.name}{list(i.shape)}" for i in self._inputs)
        return f"<TorchModule of {len(self._steps)} operators, {count:,} parameters; inputs {inputs}>"

    def _bound(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors of the inputs by node, after a look at their structure, shapes and dtypes."""
        from torch.utils import _pytree

        leaves, spec = _pytree.tree_flatten((inputs, dict(named)))
        if spec != self._in_spec:
            raise RlxError(
                f"the module was exported for inputs {self._in_spec}; these are {spec}: "
                "pass as many, in the same structure"
            )
        bound, lengths = {}, dict[str, int]()
        for leaf, wanted in zip(leaves, self._leaves, strict=True):
            if not isinstance(wanted, _Input):
                if leaf != wanted:
                    raise RlxError(
                        f"the module was exported with the number {wanted!r} where {leaf!r} came; export it again"
                    )
                continue
            leaf = (
                leaf
                if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
                else np.asarray(leaf, wanted.dtype.np)
            )
            self._check(wanted, leaf, lengths)
            bound[wanted.name] = leaf
        return bound

    def _check(self, wanted: _Input, leaf: Any, lengths: dict[str, int]) -> None:
        from rlx.dtypes import as_dtype

        kind = as_dtype(leaf.dtype)
        if kind != wanted.dtype:
            raise DTypeError(
                f"input {wanted.where} is {kind.name}, the module was exported with {wanted.dtype.name}: "
                "convert the input, or export the module with it"
            )
        shape = tuple(leaf.shape)
        fits = len(shape) == len(wanted.shape)
        for have, want in zip(shape, wanted.shape, strict=False):
            if isinstance(want, str):
                low, high = self._ranges.get(want, (0, 1 << 62))
                fits = fits and low <= have <= high and lengths.setdefault(want, have) == have
            else:
                fits = fits and have == want
        if not fits:
            ranges = "".join(
                f", {n} from {self._ranges[n][0]}"
                for n in wanted.shape
                if isinstance(n, str) and n in self._ranges
            )
            raise ShapeError(
                f"input {wanted.where} has shape {shape}, the module was exported for {wanted.shape}{ranges}"
                f"{'' if fits else ': pass dynamic_shapes= to rlx.from_torch for axes that change'}"
            )

    def _read(self, program: Any) -> None:
        """Steps, inputs and outputs of an exported program. Raises UnsupportedOp for operators without a rule."""
        from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

        signature = program.graph_signature
        self._in_spec, out_spec = program.call_spec.in_spec, program.call_spec.out_spec
        from torch.utils import _pytree

        self._unflatten: Callable[[list[Any]], Any] = lambda leaves: _pytree.tree_unflatten(leaves, out_spec)
        state = {**program.state_dict, **program.constants}
        nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
        self.parameters: dict[str, Any] = {}
        self.buffers: dict[str, Any] = {}
        self._parameters: dict[str, str] = {}
        self._buffers: dict[str, str] = {}
        self._constants: dict[str, Any] = {}
        self._leaves: list[Any] = []
        wheres = _paths(self._in_spec)
        for spec in signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                where = wheres[len(self._leaves)]
                if isinstance(spec.arg, ConstantArgument):
                    self._leaves.append(spec.arg.value)
                    continue
                meta = nodes[spec.arg.name].meta["val"]
                if not hasattr(meta, "shape"):
                    raise UnsupportedOp(
                        f"input {where} is a {type(meta).__name__}; rlx takes tensors: "
                        "export the module with it as a constant"
                    )
                shape = tuple(n if isinstance(n, int) else str(n) for n in meta.shape)
                self._leaves.append(_Input(spec.arg.name, where, shape, dtype_of(meta.dtype)))
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                arrays, names = (
                    (self.parameters, self._parameters)
                    if spec.kind is InputKind.PARAMETER
                    else (self.buffers, self._buffers)
                )
                arrays[spec.target] = _array(state[spec.target])
                names[spec.target] = spec.arg.name
            elif spec.kind is InputKind.CONSTANT_TENSOR:
                self._constants[spec.arg.name] = _array(state[spec.target])
            else:
                raise UnsupportedOp(
                    f"an input of kind {spec.kind.name} ({spec.target}) is not read; export the module without it"
                )
        self._inputs = [i for i in self._leaves if isinstance(i, _Input)]
        self._changed, outputs = {}, []
        for spec in signature.output_specs:
            value = spec.arg.value if isinstance(spec.arg, ConstantArgument) else _Value(spec.arg.name)
            if spec.kind is OutputKind.BUFFER_MUTATION:
                self._changed[spec.target] = spec.arg.name
            elif spec.kind is OutputKind.USER_OUTPUT:
                outputs.append(value)
            else:
                raise UnsupportedOp(
                    f"the module changes {spec.target} in place ({spec.kind.name}); return the new value instead"
                )
        self._outputs = outputs
        self._steps = _steps(program.graph_module)


def from_torch(
    module: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> TorchModule:
    """A torch.nn.Module, read through `torch.export`, as an rlx function that runs and trains on every device.

    args and kwargs are example inputs (torch tensors); dynamic_shapes names the axes that may change, as for
    torch.export.export. The module is read in the mode it is in: after `module.train()` dropout needs a `key` and
    batch norm updates its buffers, after `module.eval()` neither. Weights are copied, in their dtypes.

    Raises: UnsupportedOp for operators that rlx has no rule for, each with the line of the module that calls it;
    RlxError where torch is missing. Whatever torch.export itself cannot follow raises torch's own error.
    Needs: torch 2.6 or newer.

        net = rlx.from_torch(module.train(), (torch.zeros(8, 3, 32, 32),))
        loss = lambda p, b, x, y: (rlx.cross_entropy((out := net.apply(p, b, x))[0], y), out[1])
        step = rlx.jit(rlx.value_and_grad(loss, has_aux=True))
    """
    try:
        import torch
    except ImportError:
        raise RlxError(
            "rlx.from_torch reads modules through PyTorch, which is not installed: pip install torch"
        ) from None
    if not isinstance(module, torch.nn.Module):
        raise RlxError(f"rlx.from_torch takes a torch.nn.Module; this is a {type(module).__name__}")
    if isinstance(args, torch.Tensor):
        raise RlxError("args is a tensor; pass a tuple of the module's inputs: (x,)")
    table = torch.export.default_decompositions()
    for operator in list(table):
        if str(operator).rpartition(".")[0] in _WHOLE:
            table.pop(operator)
    with warnings.catch_warnings():
        # torch warns of lists that its own recurrent layers keep of their parameters, and of its own classes.
        warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated", FutureWarning)
        warnings.filterwarnings("ignore", "The tensor attributes? .*_flat_weights", UserWarning)
        program = torch.export.export(module, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes)
        _keep_stops(program.graph_module)
        program = program.run_decompositions(table)
    ranges = {
        str(s): (int(r.lower), int(r.upper) if r.upper < 1 << 62 else 1 << 62)
        for s, r in program.range_constraints.items()
    }
    return TorchModule(program, ranges)


# rlx has an operator for each of these: torch takes none apart.
_WHOLE = {
    "aten.linear",
    "aten.scaled_dot_product_attention",
    "aten.lstm",
    "aten.gru",
    "aten.silu",
    "aten.mish",
}


@cache
def _stop_gradient() -> Any:
    """An operator of torch's that marks where no gradient passes; `stop_gradient` is its rule here."""
    import torch

    operator = torch.library.custom_op(
        "rlx::stop_gradient", lambda x: x.clone(), mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    operator.register_fake(torch.empty_like)
    return torch.ops.rlx.stop_gradient.default


def _keep_stops(graph_module: Any, stopped: bool = False) -> None:
    """Marks detach() and regions under torch.no_grad(): the graph after run_decompositions has neither (torch 2.13),
    and its gradients would not be the module's."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        name = str(node.target)
        if name in ("aten.detach.default", "aten.detach_.default"):
            node.target = _stop_gradient()
        elif name == "wrap_with_set_grad_enabled":
            enabled, region, *args = node.args
            if enabled and stopped:
                raise UnsupportedOp(
                    f"gradients are enabled within torch.no_grad() at {_line(node.stack_trace)}; "
                    "take that part out of the region"
                )
            for arg in (
                ()
                if enabled or stopped
                else dict.fromkeys(a for a in args if hasattr(a.meta.get("val"), "shape"))
            ):
                with graph.inserting_before(node):
                    mark = graph.call_function(_stop_gradient(), (arg,))
                mark.meta["val"] = arg.meta["val"]
                node.replace_input_with(arg, mark)
            _keep_stops(getattr(graph_module, region.target), stopped or not enabled)
    graph_module.recompile()


def _steps(graph_module: Any) -> list[_Step]:
    nodes = [node for node in graph_module.graph.nodes if node.op == "call_function"]
    rules = [find(node.target) for node in nodes]
    unknown = dict[str, str]()
    for node, rule in zip(nodes, rules, strict=True):
        if rule is None:
            unknown.setdefault(str(node.target), _line(node.stack_trace))
    if unknown:
        shown = [f"{name}, called at {line}" for name, line in unknown.items()]
        more = f"\n  and {len(shown) - _LISTED_OPERATORS} more" if len(shown) > _LISTED_OPERATORS else ""
        raise UnsupportedOp(
            "rlx has no rule for these operators of the module:\n  " + "\n  ".join(shown[:_LISTED_OPERATORS]) + more
            + "\nReplace them in the module, or export it to ONNX (torch.onnx.export) and use rlx.onnx.load"
        )  # fmt: skip
    steps = []
    for node, rule in zip(nodes, rules, strict=True):
        assert rule is not None
        args, kwargs = rule.arguments(node)
        line = _line(node.stack_trace)
        metas = node.meta.get("val")
        metas = metas if isinstance(metas, list | tuple) else (metas,)
        try:
            kinds = tuple(dtype_of(m.dtype) if hasattr(m, "dtype") else None for m in metas)
        except UnsupportedOp as error:
            raise UnsupportedOp(f"{error}; it is the result of {line}") from None
        steps.append(
            _Step(node.name, rule.call, _references(args), _references(kwargs), rule.promote, kinds, line)
        )
    return steps


def _line(trace: str | None) -> str:
    """The innermost line of the user's own code in a stack of torch, as "file:line: code"."""
    lines = (trace or "").splitlines()
    places = [i for i, text in enumerate(lines) if text.lstrip().startswith("File ")]
    own = [i for i in places if "/torch/" not in lines[i].replace("\\", "/")] or places
    if not own:
        return "a line that torch did not record"
    file, number = lines[own[-1]].split('"')[1], lines[own[-1]].split("line ")[1].split(",")[0]
    code = lines[own[-1] + 1].strip() if own[-1] + 1 < len(lines) else ""
    return f"{file}:{number}: {code}"


def _paths(spec: Any) -> list[str]:
    """How messages call each leaf of the inputs: by position, or by name."""
    from torch.utils import _pytree

    tree = _pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    paths, _ = _pytree.tree_flatten_with_path(tree)
    shown = []
    for path, _leaf in paths:
        kind, *rest = path
        shown.append(
            "".join(map(str, rest)).strip("[].'\"")
            if getattr(kind, "idx", 0) == 1
            else "".join(map(str, rest))
        )
    return shown


def _array(tensor: Any) -> Any:
    """A torch tensor's numbers in a NumPy array of their own."""
    import torch

    tensor = tensor.detach().cpu()
    kind = dtype_of(tensor.dtype)
    if tensor.dtype is torch.bfloat16:
        return tensor.contiguous().view(torch.uint16).numpy().view(kind.np).copy()
    return tensor.numpy().astype(kind.np, copy=True)


def _references(value: Any) -> Any:
    """Arguments with _Value for the graph's nodes."""
    if type(value).__name__ == "Node":
        return _Value(value.name)
    if isinstance(value, list | tuple):
        return tuple(_references(v) for v in value)
    if isinstance(value, Mapping):
        return {k: _references(v) for k, v in value.items()}
    return value


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, _Value):
        return values[value.name]
    if isinstance(value, list | tuple):
        return [_filled(v, values) for v in value]
    if isinstance(value, dict):
        return {k: _filled(v, values) for k, v in value.items()}
    return value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) or (hasattr(value, "shape") and hasattr(value, "dtype"))


def _promoted(value: Any, kind: Any) -> Any:
    return cast(value, kind) if kind is not None and _is_tensor(value) else value


def _typed(result: Any, kinds: tuple[Any, ...]) -> Any:
    """A step's results in the dtypes that torch gives them."""
    if isinstance(result, list | tuple):
        return [_promoted(r, k) for r, k in zip(result, kinds, strict=False)]
    return _promoted(result, kinds[0])
