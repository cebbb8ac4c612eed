"""Depthwise convolution of integers: a word holds one channel of neighbouring taps."""

from __future__ import annotations

from rlx.backends.cpu import trees
from rlx.backends.cpu.conv.depthwise import ARGS, operand_names
from rlx.backends.cpu.gemm.kernel import Operand, multiplied
from rlx.backends.cpu.ir import I8, I16, I32, I64, PTR, Arguments, Kernel, Value, pointers
from rlx.dtypes import DType, i32
from rlx.ir import Expr
from rlx.records import Record

_HELD_WORDS = 9  # weights that stay in registers


class IntegerDepthwise(Record):
    """Sums over `taps` for `lanes` channels; w has the weights (words, channels, taps of a word), both padded. `how` is
    as GemmKernel's."""

    lanes: int
    taps: int
    how: str
    masked: bool
    operands: tuple[Operand, ...] = ()  # what the epilogue reads beside the sums
    epilogue: Expr | None = None
    out: DType = i32

    @property
    def args(self) -> Arguments:
        return ARGS + pointers(*operand_names(len(self.operands)))

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        vector, each = I32.of(lanes), 4 if self.how == "vnni" else 2
        kind, words = (I8 if each == 4 else I16).of(lanes), -(-self.taps // each)
        w = k.all_args()
        places = k.args(*operand_names(len(self.operands)))
        groups = k.binary("udiv", w["channels"] + (lanes - 1), k.const(I64, lanes))
        with k.loop(k.first, k.last) as item:
            block = k.binary("udiv", item, groups)
            channel = (item - block * groups) * lanes
            mask = k.tail(k.min(w["channels"] - channel, lanes), lanes) if self.masked else None

            def weight(word: int) -> Value:
                return k.load(vector, k.at(k.at(w["w"], w["w_row"] * word), channel, I32))

            held = [weight(n) for n in range(words)] if words <= _HELD_WORDS else []
            beside = [
                trees.load(k, o.dtype, k.at(at, channel * o.dtype.itemsize), lanes, mask)
                for o, at in zip(self.operands, places, strict=True)
            ]
            first = block * w["block"]
            with k.loop(first, k.min(first + w["block"], w["positions"])) as position:
                table = k.at(w["table"], position * self.taps, I64)
                pixels = [
                    k.load(kind, k.at(k.load(PTR, k.at(table, n, I64)), channel * (4 // each)), mask)
                    for n in range(self.taps)
                ]
                pixels += [k.const(kind, 0)] * (words * each - self.taps)
                total = k.const(vector, 0)
                for n in range(words):
                    x = k.cast("bitcast", self._together(k, pixels[n * each : (n + 1) * each]), vector)
                    total = multiplied(k, self.how, total, x, held[n] if held else weight(n))
                if self.epilogue is not None:
                    (total,) = trees.print_trees(k, [self.epilogue], [total, *beside])
                out = k.at(k.at(w["out"], position * w["out_row"]), channel * self.out.itemsize)
                trees.store(k, total, self.out, out, mask)
        return k.text()

    def _together(self, k: Kernel, vectors: list[Value]) -> Value:
        """Two or four vectors interleaved."""
        n = vectors[0].type.lanes
        pairs = [
            k.shuffle(a, b, [i + n * side for i in range(n) for side in (0, 1)])
            for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
        if len(pairs) == 1:
            return pairs[0]
        order = [2 * i + j + 2 * n * side for i in range(n) for side in (0, 1) for j in (0, 1)]
        return k.shuffle(pairs[0], pairs[1], order)
