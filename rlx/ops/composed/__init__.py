"""NumPy's other functions, composed of ops: they have no record and no kernel. A module loads at its first use."""

from __future__ import annotations

_MODULES = {
    "aliases": """absolute amax amin arccos arccosh arcsin arcsinh arctan arctan2 arctanh around bitwise_invert
        bitwise_left_shift bitwise_right_shift deg2rad degrees divide divmod empty empty_like fabs fix fmax
        fmin heaviside identity invert isneginf isposinf ldexp logaddexp logaddexp2 multiply negative positive power
        rad2deg radians ravel rint sinc subtract true_divide""",
    "products": """cross diag dot inner kron matrix_transpose matvec tensordot trace vander vdot vecdot vecmat""",
    "arranging": """append array_split atleast_1d atleast_2d atleast_3d broadcast_arrays column_stack delete dsplit
        dstack fliplr flipud hsplit hstack insert meshgrid rollaxis rot90 tri unstack vsplit vstack""",
    "selecting": """argpartition argwhere choose compress digitize extract flatnonzero interp isin lexsort nonzero
        partition piecewise searchsorted select setdiff1d take union1d unique unique_all unique_counts unique_inverse
        unique_values unravel_index""",
    "statistics": """allclose array_equal array_equiv average bincount convolve corrcoef correlate count_nonzero cov
        cumulative_prod cumulative_sum diff ediff1d histogram histogram_bin_edges nanargmax nanargmin nancumprod
        nancumsum nanmax nanmean nanmedian nanmin nanpercentile nanprod nanquantile nanstd nansum nanvar percentile ptp
        quantile trapezoid""",
    "calculus": """block erf_inv erfinv float_power geomspace gradient logspace modf nextafter polyfit polyval
        standardize tril_indices triu_indices unwrap xlogy""",
    "types": "astype broadcast_shapes can_cast finfo iinfo isdtype result_type",
}
# The module of each function. Those of `types` compute nothing, so they are the same inside a trace and outside.
LATER = {name: module for module, names in _MODULES.items() for name in names.split()}
PLAIN = "types"
