"""The planted faults: one wrong text each in the sources that both GPUs' kernels are made from."""

from __future__ import annotations

from dataclasses import dataclass

VULKAN, CUDA = "vulkan", "cuda"


@dataclass(frozen=True, slots=True)
class Fault:
    """`old` becomes `new` wherever it stands in the files of the pattern `file` (below rlx/backends/gpu, or below
    shaders for GLSL alone), and the cases of `ops` should notice: on a Vulkan device, or through the CUDA sources run
    by the host.

    `only` keeps the cases whose id holds one of its texts: compiling for CUDA's host takes long. `narrow` gives the
    device grids of three groups along X, so that small cases fold into Y. `unseen` says why no case can notice: such a
    fault counts as missed all the same."""

    name: str
    file: str
    old: str
    new: str
    ops: tuple[str, ...]
    where: str = VULKAN
    only: tuple[str, ...] = ()
    narrow: bool = False
    unseen: str = ""


_ROW_LOOP = "        BARRIER;\n        if (along < half_way) partial"
_SOFTMAX = "VEC4(EXP(v.x - top), EXP(v.y - top), EXP(v.z - top), EXP(v.w - top))"

FAULTS = (
    # -- order of threads
    Fault("sum: a barrier of the tree dropped", "bodies/reduce.h", _ROW_LOOP, _ROW_LOOP[17:], ("sum", "max")),
    Fault("sum: a barrier of the tree dropped (CUDA)", "bodies/reduce.h", _ROW_LOOP, _ROW_LOOP[17:], ("sum",), CUDA,
          ("sum-f32-",)),
    Fault("transpose: the barrier between writing and reading the tile dropped", "bodies/transpose.h",
          "    BARRIER;\n", "", ("transpose",)),
    Fault("transpose of pairs: the barrier between writing and reading the tile dropped", "bodies/transpose_pairs.h",
          "    BARRIER;\n", "", ("transpose",)),
    Fault("cumsum: the barrier before neighbours are overwritten dropped (CUDA)", "bodies/scan.h",
          "ACROSS];\n            BARRIER;\n", "ACROSS];\n", ("cumsum",), CUDA, ("cumsum-f32-",)),
    Fault("groups beyond X not folded out of Y", "include/body.glsl",
          "(gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x)", "gl_WorkGroupID.x",
          ("transpose", "softmax", "matmul"), narrow=True),
    Fault("groups of Y counted by the wrong stride", "include/body.glsl",
          "gl_WorkGroupID.y * gl_NumWorkGroups.x", "gl_WorkGroupID.y * gl_NumWorkGroups.y", ("transpose", "softmax"),
          narrow=True),
    # -- ends
    Fault("gather: one thread too many", "bodies/gather.h", "id >= total", "id > total", ("gather",)),
    Fault("sum: the last part taken as long as the others", "bodies/reduce.h",
          "const uint len = rest < chunk ? rest : chunk;", "const uint len = chunk;", ("sum", "mean")),
    Fault("integer product: the terms left over forgotten", "bodies/matmul_int.h", "t < k; t += SIDE",
          "t + SIDE <= k; t += SIDE", ("matmul",)),
    Fault("integer product: no end along k for one operand", "bodies/matmul_int.h", "row < m && t + tx < k", "row < m",
          ("matmul",), unseen="the other operand is 0 there: the result is the same, only the read is astray"),
    Fault("product of few rows: the terms left over forgotten", "bodies/matmul_rows.h",
          "< n ? k : 0u;", "< n ? k / step * step : 0u;", ("matmul",)),
    Fault("layer norm: places beyond the row counted in the variance", "bodies/row_mean.h",
          "if (place(j, 3u) < n) s = FMA(", "s = FMA(", ("layer_norm",)),
    Fault("layer norm: the mean rounded to one number", "bodies/row_mean.h",
          "less(less(v, mean), rest)", "less(v, mean + rest)", ("layer_norm", "group_norm", "add_layer_norm")),
    Fault("layer norm over channels: half of the mean left", "bodies/norm_axis.h",
          "- mean) - rest) * inverse", "- mean)) * inverse", ("layer_norm_channels",)),
    Fault("gradient of norms: half of the mean left in the weights'", "bodies/norm_columns.h",
          " - LOAD(f32, stats, row + 1u)", "", ("layer_norm_grad",)),
    Fault("rows of halves: places beyond the row counted", "bodies/rows8.h", "? sum : 0.0f", "? sum : sum",
          ("softmax", "layer_norm")),
    Fault("max pool: the window reaches one column beyond", "bodies/pool.h", "p2 >= s2", "p2 > s2", ("max_pool",)),
    Fault("convolution: padding of the last axis read as data", "bodies/conv.h", " && p2 + tap.w < s2", "", ("conv",)),
    # -- masks
    Fault("attention: keys beyond the last not masked", "bodies/attention_masks.h", "int(j) >= len || ", "",
          ("attention",)),
    Fault("attention: a query does not see its own key", "bodies/attention_masks.h", "CAUSAL && ahead > 0",
          "CAUSAL && ahead >= 0", ("attention",)),
    Fault("attention: the window one key short", "bodies/attention_masks.h", "ahead > window || ahead < -window",
          "ahead > window || ahead <= -window", ("attention",)),
    Fault("attention: a mask of bools ignored", "bodies/attention*.h", "if (MASK == 1u) return KEEPS(",
          "if (false) return KEEPS(", ("attention",)),
    Fault("attention: an added mask taken away", "bodies/attention*.h", "return score + ADDS(", "return score - ADDS(",
          ("attention",)),
    Fault("attention: rows that see no key are not zero", "bodies/attention*.h", "top == -INFINITE ? 0.0f : top",
          "top", ("attention",)),
    Fault("attention: earlier sums not scaled to the new maximum", "bodies/attention*.h",
          "out_[j] = times4(out_[j], less);", "out_[j] = out_[j];", ("attention",)),
    Fault("attention: heads share keys in the wrong order", "bodies/attention*.h", "h / (heads / kv_heads)",
          "h % kv_heads", ("attention",)),
    # -- indices and strides
    Fault("transpose: the tile read as it was written", "bodies/transpose.h", "tile[lane * 33u + strip + k]",
          "tile[(strip + k) * 33u + lane]", ("transpose",)),
    Fault("transpose of pairs: the second row begins as the first", "bodies/transpose_pairs.h", "= even >> 16",
          "= even & 0xffffu", ("transpose",)),
    Fault("sum of halves: the second of two columns begins with the first", "bodies/reduce.h",
          "beside[THREAD] = combine(combine(b0", "beside[THREAD] = combine(combine(a0", ("sum", "max")),
    Fault("softmax: wrong stride of the outer axis", "bodies/softmax_axis.h",
          "SKIP(T, x, o < outer ? o : 0u, n * inner)", "SKIP(T, x, o < outer ? o : 0u, n)", ("softmax",)),
    Fault("product of few rows: the bias runs along rows", "bodies/matmul_rows.h", "bias_at(bias, column)",
          "bias_at(bias, row)", ("matmul",)),
    Fault("resize: weights of another axis", "bodies/resize.h", "LOAD(TW, weight, at2 + k2)",
          "LOAD(TW, weight, at1 + k2)", ("resize",)),
    Fault("im2col: padding of another axis", "bodies/im2col.h", "META(11u) - META(14u)", "META(11u) - META(13u)",
          ("im2col",)),
    Fault("gather: negative indices not counted from the end", "bodies/indices.h", "0 : index + size)", "0 : 0)",
          ("gather", "gather_elements")),
    Fault("gather: indices not clamped", "bodies/indices.h", "uint(i < size ? i : size - 1)", "uint(i)", ("gather",)),
    Fault("gather: indices not clamped (CUDA)", "bodies/indices.h", "uint(i < size ? i : size - 1)",
          "uint(i <= size ? i : size - 1)", ("gather",), CUDA, ("wild",)),
    Fault("gather: i64 indices cut to 32 bits", "bodies/indices.h", "high > 0 || low < 0 ? 2147483647 : low", "low",
          ("gather",)),
    Fault("dynamic slice: starts clamped one too far", "bodies/window.h", "start > limit ? limit : start",
          "start > limit + 1 ? limit + 1 : start", ("dynamic_slice",)),
    Fault("order: zeros of f64 told apart by their sign", "bodies/order.h", "if ((size | u.x) == 0u) return",
          "if ((size | u.x) == 1u) return", ("argmax", "argmin", "sort"), only=("-f64-",)),
    Fault("order: the lower word of an f64 not looked at", "bodies/order.h", "return UVEC2(u.x, u.y | 0x80000000u);",
          "return UVEC2(0u, u.y | 0x80000000u);", ("argsort", "top_k", "sort"), only=("-f64-",)),
    Fault("exp in f64: the lower part of ln 2 forgotten", "math64.h", "const double c = k * D_LN2_LOW;",
          "const double c = RLX_D(0.0);", ("exp", "tanh"), only=("-f64-",)),
    Fault("sine in f64: too few bits of 2/pi", "trig64.h", "(p2 + RLX_U64(0x20000000u, 0x00000000u)) >> 62",
          "p2 >> 62", ("sin", "cos"), only=("-f64-",)),
    Fault("groups of rows in f64: the terms left over forgotten", "bodies/matmul_grouped64.h", "t < k1; t += SIDE",
          "t + SIDE <= k1; t += SIDE", ("grouped_matmul",), only=("-f64",)),
    Fault("scatter: every update of an index adds all of them", "bodies/scatter_reduce.h",
          "if (last.x == row) return;", "", ("scatter",)),
    Fault("scatter: the first update stays, not the last", "bodies/scatter_set.h",
          "if (place + 1u < m) {\n        const uvec2 next = list AT(place + 1u);",
          "if (place > 0u) {\n        const uvec2 next = list AT(place - 1u);", ("scatter",)),
    Fault("argsort: equal elements in reverse", "bodies/order.h", "a.x < b.x : a.y < b.y;", "a.x < b.x : a.y > b.y;",
          ("argsort", "argmax")),
    Fault("sort: infinity taken for NaN", "bodies/order.h", "> infinity)", ">= infinity)", ("argsort",)),
    Fault("top-k of rows: what equals the bound left out", "bodies/top_k_rows.h", "if (v >= bound ||",
          "if (v > bound ||", ("top_k", "argmax")),
    Fault("top-k of rows: NaN not looked for", "bodies/top_k_rows.h", "const bool nan = (none & SIGNS) != 0u;",
          "const bool nan = false;", ("top_k", "argmax"), CUDA),
    Fault("transposition of halves: rows of a pair exchanged", "bodies/transpose_wide.h",
          "return (a & 0xffffu) | b << 16;", "return a >> 16 | (b & 0xffff0000u);", ("transpose",)),
    # -- values
    Fault("product: begins with zero", "bodies/reduce.h", "KIND == 1u ? NUM(1)", "KIND == 1u ? NUM(0)", ("prod",)),
    Fault("sum: what overflows midway not taken from the scaled terms", "bodies/extended.h",
          "ABS_BITS(a.high) < INF_BITS ? a.high : a.low * UP", "a.high", ("cumsum",)),
    Fault("product: the power of two of a large mantissa dropped", "bodies/extended.h",
          "+ (large ? 1 : 0)", "", ("prod",)),
    Fault("layer norm: no epsilon", "bodies/row_norm.h", "share + eps)", "share)", ("layer_norm",)),
    Fault("softmax: the maximum not taken out", "bodies/softmax.h", _SOFTMAX, _SOFTMAX.replace(" - top", ""),
          ("softmax",)),
    Fault("softmax of halves: a constant of exp", "bodies/softmax.h", "1.442695022e+00f", "1.412695022e+00f",
          ("softmax",)),
    Fault("stores to f16 cut the last bits off", "half.h", " + 0xfffu + ((a >> 13) & 1u)", "", ("cast",)),
    Fault("stores to bf16 round ties up", "half.h", "u + 0x7fffu + ((u >> 16) & 1u)", "u + 0x8000u", ("cast",)),
    Fault("exp: the sign of a coefficient", "math32.h", "p, r, 8.368969895e-03f", "p, r, -8.368969895e-03f",
          ("exp", "sigmoid")),
    Fault("exp: one digit of a small coefficient", "math32.h", "p, r, 8.368969895e-03f", "p, r, 8.168969895e-03f",
          ("exp",)),
    Fault("exp: one digit of the smallest coefficient", "math32.h", "1.395063009e-03f", "1.295063009e-03f", ("exp",),
          unseen="an ULP and a half, where four are allowed"),
    Fault("expm1: the sign of a coefficient", "math32.h", "+ 8.333310485e-03f", "- 8.333310485e-03f",
          ("expm1", "sinh")),
    Fault("erf: the sign of a coefficient", "math32.h", "q, u, 6.836468237e-04f", "q, u, -6.836468237e-04f", ("erf",)),
    Fault("gelu of halves: a coefficient", "half32.h", "-4.585474432e-01f", "-4.285474432e-01f", ("gelu",)),
    Fault("maximum: NaN of the first operand lost", "prims.h", "a >= b || m_is_nan(a) ? a : b",
          "a >= b ? a : b", ("maximum",)),
    Fault("activation: a constant of gelu", "bodies/activation.h", "0.044715f", "0.44715f", ("matmul",)),
    Fault("average pool: padding counted before and not after", "bodies/pool.h", "int(n + after)", "int(n)",
          ("avg_pool",)),
    Fault("grid sample: reflection about the wrong edge", "bodies/grid_sample.h", "ALIGNED ? 0.0f : -0.5f", "0.0f",
          ("grid_sample",)),
    Fault("cumsum: parts not begun where the last ended", "bodies/scan.h", "if (BEGUN && live) before",
          "if (false) before", ("cumsum",)),
    Fault("logsumexp: the maximum not put back", "bodies/log_softmax.h", "log_sum + top)", "log_sum)",
          ("logsumexp",)),
)  # fmt: skip

# What every `make test` plants; `make mutation` plants them all.
SAMPLE = (
    "gather: one thread too many",
    "groups beyond X not folded out of Y",
    "attention: a query does not see its own key",
    "sum: a barrier of the tree dropped (CUDA)",
    "stores to f16 cut the last bits off",
    "layer norm: no epsilon",
)
