"""Strided iteration: the elements that an operand touches, the merging of dimensions, and the launch of a tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlx.backends.gpu.elementwise.tree import PACK, has_functions, heavy, lanes
from rlx.backends.gpu.program.images import last_shape
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import Access, Language, Ref, TreeKernel, TreeOperand
from rlx.dtypes import DType
from rlx.ir import Expr, Tensor
from rlx.ir import expr as ex

MAX_INDEX = 1 << 31  # element indices in a kernel are 31 bits
MAX_OPERANDS = 14  # these, the meta block's address and n make 124 bytes of arguments
_THREADS = 256
_SOFTWARE_ELEMENTS = 16
_SPREAD = 1 << 18  # elements up to which every element gets a thread of its own
_MANY_PACKS = 1 << 20  # CUDA: threads take _PACKS of so many packs or more, if results have at most 16 bits
_PACKS = 4


@dataclass(frozen=True, slots=True)
class View:
    """Elements of a slot: element (i, j, …) of the iteration is `start + i strides[0] + j strides[1] + …` of the slot,
    counted in elements of `storage`."""

    slot: Ref
    storage: DType
    strides: tuple[int, ...]
    start: int = 0

    def span(self, shape: Sequence[int]) -> tuple[int, int]:
        """The lowest and the highest element touched."""
        low = high = self.start
        for n, s in zip(shape, self.strides, strict=True):
            reach = (n - 1) * s
            if reach < 0:
                low += reach
            else:
                high += reach
        return low, high

    def ref(self, shape: Sequence[int]) -> Ref:
        """The bytes touched."""
        low, high = self.span(shape)
        size = self.storage.itemsize
        return Ref(self.slot.segment, self.slot.offset + low * size, (high - low + 1) * size)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def strides_of(ctx: Lowering, tensor: Tensor) -> tuple[int, ...]:
    """The element strides of a tensor's axes, in the layout that the current node reads or writes it in."""
    if not ctx.lies_last(tensor):
        return contiguous(tensor.shape)
    first, *sizes, _ = contiguous(last_shape(tensor.shape))
    return (first, 1, *sizes)


def broadcast(shape: Sequence[int], to: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor of `shape` seen as `to`, as NumPy broadcasts."""
    own = contiguous(shape)
    lead = len(to) - len(shape)
    return (0,) * lead + tuple(0 if n == 1 else s for n, s in zip(shape, own, strict=True))


def collapse(shape: Sequence[int], views: Sequence[View]) -> tuple[tuple[int, ...], list[View]]:
    """The same iteration with the fewest dimensions: those of length 1 are dropped, and neighbours are merged where all
    operands' strides allow it."""
    flat = contiguous(shape)
    if all(v.strides == flat for v in views):
        n = math.prod(shape)
        one, stride = ((n,), (1,)) if n != 1 else ((), ())
        return one, [replace(v, strides=stride) for v in views]
    dims: list[int] = []
    steps: list[list[int]] = [[] for _ in views]
    for d, n in enumerate(shape):
        if n == 1:
            continue
        here = [v.strides[d] for v in views]
        if dims and all(s[-1] == n * h for s, h in zip(steps, here, strict=True)):
            dims[-1] *= n
            for s, h in zip(steps, here, strict=True):
                s[-1] = h
        else:
            dims.append(n)
            for s, h in zip(steps, here, strict=True):
                s.append(h)
    return tuple(dims), [replace(v, strides=tuple(s)) for v, s in zip(views, steps, strict=True)]


def launch_tree(
    ctx: Lowering, trees: Sequence[Expr], shape: Sequence[int], inputs: Sequence[View], outputs: Sequence[View],
    short: bool = False,
) -> None:  # fmt: skip
    """Launches the evaluation of trees for every element of `shape`: no launch if it is empty, several if it has 2³¹
    elements or more. `short`: see TreeKernel."""
    if 0 in shape:
        return
    views = [*inputs, *outputs]
    # A launch depends on its operands' addresses only through their alignment, so equal layers reuse the cached one.
    key = (tuple(trees), tuple(shape), len(inputs), short,
           tuple([(v.storage, v.strides, v.start, v.slot.offset % 32) for v in views]))  # fmt: skip
    known = ctx.trees.get(key)
    if known is not None:
        kernel, groups, block, count, spans = known
        refs = [
            Ref(v.slot.segment, v.slot.offset + at, nbytes) for v, (at, nbytes) in zip(views, spans, strict=True)
        ]
        ctx.launch(kernel, groups, [*([ctx.block(block)] if block else []), *refs, count])
        return
    dims, views = collapse(shape, views)
    low_high = [v.span(dims) for v in views]
    if math.prod(dims) >= MAX_INDEX or any(high - low >= MAX_INDEX for low, high in low_high):
        _halves(ctx, trees, dims, views, len(inputs), short)
        return
    n = math.prod(dims)
    flat = contiguous(dims)
    scalar = [k < len(inputs) and not any(v.strides) and v.strides != flat for k, v in enumerate(views)]
    packs = ctx.target.packs and not heavy(tuple(trees))
    packed = packs and _packs(dims, flat, views, scalar)
    if packs and not packed and _doubles(dims, views, scalar, len(inputs)):
        _launch_doubled(ctx, trees, dims, views, len(inputs), short)
        return
    operands, block = [], [*dims[:-1], dims[-1] // PACK] if packed else list(dims)
    for v, (low, _), constant in zip(views, low_high, scalar, strict=True):
        if v.strides == flat or constant:
            operands.append(TreeOperand(v.storage, "flat" if v.strides == flat else "scalar"))
        elif packed and v.strides[-1] == 0:
            operands.append(TreeOperand(v.storage, "repeated"))
            block += [v.start - low, *v.strides]
        else:
            operands.append(TreeOperand(v.storage, "strided"))
            unit = PACK if packed else 1
            block += [(v.start - low) // unit, *(s // unit for s in v.strides[:-1]), v.strides[-1]]
    strided = len(block) > len(dims)
    n_in = len(inputs)
    rank = len(dims) if strided else 0
    kernel = TreeKernel(tuple(trees), tuple(operands[:n_in]), tuple(operands[n_in:]), rank, packed, short)
    count = n // PACK if packed else n
    refs = [v.ref(dims) for v in views]
    meta, groups = [ctx.block(block)] if strided else [], grid(ctx, kernel, count)
    spans = [(ref.offset - v.slot.offset, ref.nbytes) for ref, v in zip(refs, views, strict=True)]
    ctx.trees[key] = (kernel, groups, block if strided else [], count, spans)
    ctx.launch(kernel, groups, [*meta, *refs, count])


def grid(ctx: Lowering, kernel: TreeKernel, count: int, sets: int = 1) -> tuple[int, int, int]:
    """The grid for `count` elements (packs, in a packed kernel) of each set of operands. On hardware each thread takes
    one element while there are enough threads, and several of many packs, which share what the kernel does first. A
    batched kernel reads addresses first, which on a software device takes as long as several elements, so that a thread
    takes more of them."""
    n = sets * count
    each = 1 if kernel.packed or n <= _SPREAD else lanes(kernel) * _in_turn(ctx, kernel, n)
    narrow = all(o.storage.itemsize <= 2 for o in kernel.outputs)
    if kernel.packed and narrow and ctx.target.language is Language.CUDA and sets == 1 and count >= _MANY_PACKS:
        each = _PACKS
    if ctx.target.software and sets > 1:
        each = _SOFTWARE_ELEMENTS
    return (*ctx.groups(math.ceil(count / (_THREADS * each)))[:2], sets)


def _in_turn(ctx: Lowering, kernel: TreeKernel, n: int) -> int:
    """The number of packs that a thread takes one after another. A tree with functions has nearly as many instructions
    as memory bandwidth allows; a long prologue adds many more per thread, so several packs share one. At least about a
    million threads remain."""
    if not ctx.target.long_prologue or heavy(kernel.trees) or not has_functions(kernel.trees):
        return 1
    return max(1, min(lanes(kernel), n // lanes(kernel) >> 20))


def _packs(dims: Sequence[int], flat: tuple[int, ...], views: Sequence[View], scalar: Sequence[bool]) -> bool:
    """Whether the innermost dimension divides into packs for which each operand has either four adjacent aligned
    elements or one repeated element, and at least one operand is strided (a kernel of flat operands makes packs by
    itself)."""
    if not dims or dims[-1] % PACK or all(v.strides == flat or c for v, c in zip(views, scalar, strict=True)):
        return False
    for v, constant in zip(views, scalar, strict=True):
        if constant or v.strides[-1] == 0:
            continue
        low, _ = v.span(dims)
        outer = (*v.strides[:-1], v.start - low)
        if v.strides[-1] != 1 or any(s % PACK for s in outer):
            return False
        if (v.slot.offset + low * v.storage.itemsize) % min(PACK * v.storage.itemsize, 16):
            return False
    return True


def _doubles(dims: Sequence[int], views: Sequence[View], scalar: Sequence[bool], n_in: int) -> bool:
    """Whether some inputs repeat each element twice in a row, and the two innermost dimensions divide into packs. A
    pack is four elements of a contiguous operand, two of a doubled one, one of an operand that is constant there."""
    if len(dims) < 2 or dims[-1] != 2 or dims[-2] % 2:
        return False
    if not any(v.strides[-2:] == (1, 0) for v in views[:n_in]):
        return False
    for k, (v, constant) in enumerate(zip(views, scalar, strict=True)):
        inner = v.strides[-2:]
        if constant or (inner == (0, 0) and k < n_in):
            continue
        if inner not in ((2, 1), (1, 0)) or (inner == (1, 0) and k >= n_in):
            return False
        low, _ = v.span(dims)
        unit = PACK if inner == (2, 1) else PACK // 2
        if any(s % unit for s in (*v.strides[:-2], v.start - low)):
            return False
        if (v.slot.offset + low * v.storage.itemsize) % min(unit * v.storage.itemsize, 16):
            return False
    return True


def _launch_doubled(
    ctx: Lowering, trees: Sequence[Expr], dims: tuple[int, ...], views: Sequence[View], n_in: int, short: bool
) -> None:
    """Launches one thread per pack: the two innermost dimensions are merged into one that counts packs."""
    shape = (*dims[:-2], dims[-2] * 2 // PACK)
    flat = contiguous(dims)
    operands, block = [], list(shape)
    for k, v in enumerate(views):
        low, _ = v.span(dims)
        inner = v.strides[-2:]
        if v.strides == flat:
            operands.append(TreeOperand(v.storage, "flat"))
        elif k < n_in and not any(v.strides):
            operands.append(TreeOperand(v.storage, "scalar"))
        else:
            unit = {(2, 1): PACK, (1, 0): PACK // 2, (0, 0): 1}[(inner[0], inner[1])]
            access: Access = "strided" if unit == PACK else "repeated" if unit == 1 else "doubled"
            operands.append(TreeOperand(v.storage, access))
            block += [(v.start - low) // unit, *(s // unit for s in v.strides[:-2]), int(unit > 1)]
    kernel = TreeKernel(tuple(trees), tuple(operands[:n_in]), tuple(operands[n_in:]), len(shape), True, short)
    refs = [v.ref(dims) for v in views]
    count = math.prod(shape)
    ctx.launch(kernel, grid(ctx, kernel, count), [ctx.block(block), *refs, count])


def counting_from(tree: Expr, start: int) -> Expr:
    """The tree for a part of the iteration that begins at linear index `start`: "index" is shifted by it."""
    done: dict[Expr, Expr] = {}
    for e in ex.linearize([tree]):
        rebuilt = Expr(e.prim, tuple(done[a] for a in e.args), e.dtype, e.value)
        done[e] = ex.call("add", e, start) if e.prim == "index" and start else rebuilt
    return done[tree]


def _halves(
    ctx: Lowering, trees: Sequence[Expr], dims: tuple[int, ...], views: Sequence[View], n_in: int, short: bool
) -> None:
    first = dims[0] // 2
    for start, n in ((0, first), (first, dims[0] - first)):
        moved = [replace(v, start=v.start + start * v.strides[0]) for v in views]
        trees = [counting_from(tree, start * math.prod(dims[1:])) for tree in trees]
        launch_tree(ctx, trees, (n, *dims[1:]), moved[:n_in], moved[n_in:], short)
