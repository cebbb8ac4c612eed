"""Where the public functions and the ops are: a program imports the modules of those that it uses.

Both tables are checked against the modules by `tests/project/test_families.py`."""

from __future__ import annotations

# The public functions of each module, which its `__all__` lists.
_FUNCTIONS = {
    "attention.forward": "attention",
    "attention.step": "attention_step",
    "attention.update": "rope_update",
    "collectives.functions": "all_gather all_reduce all_to_all axis_index broadcast reduce_scatter",
    "complex_numbers": "angle complex conj imag real view_as_complex view_as_real",
    "composite": """
        all any expand_dims flatten full_like linear moveaxis normalize ones_like outer permute_dims split square
        squeeze stack std swapaxes unsqueeze var zeros_like""",
    "control.functions": "cond scan switch while_loop",
    "conv.convolution": "conv conv_transpose",
    "conv.im2col": "im2col",
    "conv.integer": "integer_conv",
    "creation": "arange eye full linspace ones zeros",
    "cumulative": "cummax cummin cumprod cumsum",
    "einsum": "einsum",
    "elementwise.activation": "elu hard_sigmoid hard_swish leaky_relu mish prelu relu6 selu softplus",
    "elementwise.binary": """
        add div equal greater greater_equal less less_equal logical_and logical_or logical_xor maximum minimum mul
        not_equal pow sub""",
    "elementwise.bits": "bitwise_and bitwise_not bitwise_or bitwise_xor left_shift right_shift",
    "elementwise.division": "floor_divide fmod mod remainder",
    "elementwise.fake_quant": "fake_quantize",
    "elementwise.floats": "copysign hypot isclose nan_to_num signbit",
    "elementwise.powers": "cbrt exp2 expm1 log10 log1p log2 trunc",
    "elementwise.predicates": "isfinite isinf isnan",
    "elementwise.select": "cast clip where",
    "elementwise.special_functions": "digamma erfc lgamma",
    "elementwise.trig": "acos acosh asin asinh atan atan2 atanh cosh sinh tan",
    "elementwise.unary": """
        abs ceil copy cos erf exp floor gelu log logical_not neg reciprocal relu round rsqrt sigmoid sign silu sin
        sqrt stop_gradient tanh""",
    "grid_sample": "grid_sample",
    "grouped": "grouped_matmul lora_matmul",
    "index.dynamic": "dynamic_slice dynamic_update_slice",
    "index.gather": "embedding gather gather_elements gather_nd one_hot take_along_axis",
    "integer_matmul": "integer_matmul",
    "loops": "associative_scan fori_loop map",
    "loss.cross_entropy": "cross_entropy",
    "loss.pointwise": """
        binary_cross_entropy binary_cross_entropy_with_logits huber_loss kl_div l1_loss mse_loss nll_loss
        smooth_l1_loss""",
    "matmul": "matmul",
    "movement.arrange": "diagonal flip pixel_shuffle pixel_unshuffle repeat roll tile tril triu",
    "movement.strided": "broadcast_to concat concatenate expand reshape slice transpose",
    "norm.channels": "batch_norm group_norm instance_norm layer_norm_channels",
    "norm.residual": "add_layer_norm add_rms_norm",
    "norm.rows": "layer_norm rms_norm",
    "normed_linear": "normed_linear",
    "order": "argmax argmin argsort median sort top_k",
    "packed_attention": "packed_attention q8_0_blocks q8_0_numbers q8_0_update",
    "packed_linear": "packed_linear",
    "pad": "pad",
    "paged_attention": "paged_attention paged_rows",
    "pool": "adaptive_avg_pool avg_pool global_avg_pool global_max_pool max_pool max_pool_grad",
    "quantized": "dequantize grouped_packed_matmul packed_matmul",
    "random.sample": "sample",
    "recurrent": "gru lstm",
    "reduce": "all_finite max mean min prod sum",
    "resize": "resize upsample2x",
    "rope.rotate": "axial_rope rope",
    "rope.table": "axial_rope_table rope_scaling rope_table",
    "scans.conv": "causal_conv",
    "scans.delta": "gated_delta_rule",
    "scans.selective": "selective_scan",
    "scatter": "put_along_axis scatter scatter_add scatter_elements scatter_nd segment_sum",
    "softmax": "log_softmax logsumexp softmax",
}
# The ops that each module registers.
_OPS = {
    "attention.forward": "attention",
    "attention.grad": "attention_grad",
    "attention.step": "attention_step",
    "attention.sums": "attention_sums attention_sums_grad",
    "attention.update": "rope_update",
    "collectives.records": "all_reduce all_gather reduce_scatter all_to_all broadcast axis_index",
    "control.records": "cond while_loop scan",
    "conv.convolution": "conv conv_grad_input conv_grad_weight conv_transpose",
    "conv.im2col": "im2col",
    "conv.integer": "integer_conv",
    "cumulative": "cumsum cumprod",
    "elementwise.activation": "softplus mish elu selu leaky_relu hard_sigmoid hard_swish",
    "elementwise.binary": """
        add sub mul div maximum minimum pow equal not_equal less less_equal greater greater_equal logical_and
        logical_or logical_xor""",
    "elementwise.bits": "bitwise_and bitwise_or bitwise_xor left_shift right_shift bitwise_not",
    "elementwise.division": "mod fmod floor_divide",
    "elementwise.fake_quant": "fake_quantize fake_quantize_grad",
    "elementwise.fused": "fused",
    "elementwise.powers": "exp2 expm1 log2 log10 log1p cbrt trunc",
    "elementwise.predicates": "isnan isinf isfinite",
    "elementwise.select": "where cast clip",
    "elementwise.special_functions": "erfc lgamma",
    "elementwise.trig": "tan asin acos atan sinh cosh asinh acosh atanh atan2",
    "elementwise.unary": """
        exp log sqrt rsqrt reciprocal sin cos tanh erf neg abs sign round floor ceil sigmoid silu relu gelu
        logical_not copy stop_gradient again""",
    "fft.transform": "fft rfft irfft",
    "grid_sample": "grid_sample",
    "grouped": "grouped_matmul grouped_matmul_grad lora_matmul",
    "index.dynamic": "dynamic_slice dynamic_update_slice",
    "index.gather": "gather gather_elements one_hot",
    "integer_matmul": "integer_matmul",
    "linalg.lapack": "cholesky solve solve_triangular qr svd eigh slogdet det cofactor pinv eig lu",
    "loss.cross_entropy": "cross_entropy cross_entropy_grad",
    "matmul": "matmul",
    "movement.strided": "reshape transpose expand slice concat",
    "norm.channels": "group_norm layer_norm_channels batch_norm",
    "norm.grad": "layer_norm_grad rms_norm_grad group_norm_grad",
    "norm.residual": "add_layer_norm add_rms_norm",
    "norm.rows": "layer_norm rms_norm",
    "normed_linear": "normed_linear",
    "order": "argmax argmin sort argsort top_k",
    "packed_attention": "packed_attention q8_0_update",
    "packed_int8": "packed_matmul_int8 grouped_packed_matmul_int8",
    "packed_linear": "packed_linear",
    "pad": "pad",
    "paged_attention": "paged_attention",
    "pool": "max_pool max_pool_grad avg_pool",
    "quantized": "dequantize packed_matmul grouped_packed_matmul",
    "random.bits": "threefry random_bits multiply_high gumbel",
    "reduce": "sum mean prod max min all_finite",
    "resize": "resize",
    "rope.rotate": "rope",
    "scans.conv": "causal_conv",
    "scans.delta": "gated_delta_rule gated_delta_rule_grad",
    "scans.selective": "selective_scan selective_scan_grad",
    "scatter": "scatter scatter_elements",
    "signal.blocks": "block_convolution",
    "signal.frames": "frame windowed_frames overlap_add",
    "signal.peaks": "peaks",
    "signal.power": "segment_power",
    "signal.transforms": "segment_spectra segment_signal",
    "softmax": "softmax softmax_grad log_softmax logsumexp",
    "splats.blend": "splat_blend splat_blend_grad",
    "splats.tiles": "splat_tiles",
}


def _inverted(table: dict[str, str]) -> dict[str, str]:
    return {name: f"rlx.ops.{module}" for module, names in table.items() for name in names.split()}


FUNCTIONS, OPS = _inverted(_FUNCTIONS), _inverted(_OPS)

# Functions that are methods of tensors too, with the tensor as the first argument; rlx/ir/methods.pyi has their types.
METHODS = (
    "abs", "acos", "all", "any", "argmax", "argmin", "argsort", "asin", "atan", "broadcast_to", "ceil", "clip",
    "copy", "cos", "cosh", "cummax", "cummin", "cumprod", "cumsum", "diagonal", "erf", "erfc", "exp", "exp2",
    "expand", "expand_dims", "expm1", "flip", "floor", "gelu", "isfinite", "isinf", "isnan", "lgamma", "log",
    "log10", "log1p", "log2", "log_softmax", "logsumexp", "matmul", "max", "maximum", "mean", "median", "min",
    "minimum", "moveaxis", "nan_to_num", "pow", "prod", "reciprocal", "relu", "repeat", "roll", "round",
    "rsqrt", "sigmoid", "sign", "silu", "sin", "sinh", "softmax", "softplus", "sort", "split", "sqrt", "square",
    "std", "stop_gradient", "sum", "swapaxes", "tan", "tanh", "tile", "top_k", "tril", "triu", "trunc",
    "unsqueeze", "var",
)  # fmt: skip

# Methods whose functions are loaded when first used (`rlx.ops.LATER`).
LATER_METHODS = (
    "argpartition", "choose", "cumulative_prod", "cumulative_sum", "diff", "dot", "nonzero", "partition", "ptp",
    "quantile", "ravel", "searchsorted", "take", "trace",
)  # fmt: skip
# The operators of tensors, and methods that are no functions, which `rlx.ops.operators` attaches.
OPERATORS = (
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__", "__pow__",
    "__rpow__", "__mod__", "__rmod__", "__floordiv__", "__rfloordiv__", "__lshift__", "__rlshift__", "__rshift__",
    "__rrshift__", "__matmul__", "__rmatmul__", "__neg__", "__pos__", "__abs__", "__eq__", "__ne__", "__lt__",
    "__le__", "__gt__", "__ge__", "__and__", "__rand__", "__or__", "__ror__", "__xor__", "__rxor__", "__invert__",
    "__getitem__", "reshape", "transpose", "flatten", "squeeze", "astype", "T", "mT", "__bool__", "__iter__",
    "__contains__", "__int__", "__float__", "__index__", "__format__", "__array__", "__array_ufunc__",
    "__array_function__", "__setitem__", "item", "tolist", "at",
)  # fmt: skip
