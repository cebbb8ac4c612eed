"""The names that functions of rlx have in NumPy, JAX and SciPy: the table behind docs/names.md, which `names_page`
writes.

A word is a name that rlx has too, or lacks; `theirs=ours` has another name in rlx. Names are looked up in rlx, so that
the page cannot list a function that does not exist.
"""

from __future__ import annotations

NUMPY = {
    "Making arrays": """arange array asarray copy diag empty empty_like eye from_dlpack full full_like geomspace
        identity linspace logspace meshgrid ones ones_like tri tril triu vander zeros zeros_like""",
    "Shape": """append array_split astype atleast_1d atleast_2d atleast_3d block broadcast_arrays broadcast_shapes
        broadcast_to column_stack concat concatenate delete diagonal dsplit dstack expand_dims flip fliplr flipud
        hsplit hstack insert matrix_transpose moveaxis pad permute_dims ravel repeat reshape resize= roll rollaxis rot90
        split=array_split squeeze stack swapaxes tile transpose trim_zeros unstack vsplit vstack""",
    "Elementwise": """abs absolute acos acosh add arccos arccosh arcsin arcsinh arctan arctan2 arctanh around asin asinh
        atan atan2 atanh bitwise_and bitwise_count bitwise_invert bitwise_left_shift bitwise_not=bitwise_not bitwise_or
        bitwise_right_shift bitwise_xor cbrt ceil clip conj copysign cos cosh deg2rad degrees divide divmod equal exp
        exp2 expm1 fabs fix float_power floor floor_divide fmax fmin fmod frexp gcd greater greater_equal heaviside
        hypot i0 imag invert isclose isfinite isinf isnan isneginf isposinf lcm ldexp left_shift less less_equal log
        log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor maximum minimum mod modf
        multiply nan_to_num negative nextafter not_equal positive pow power rad2deg radians real reciprocal remainder
        right_shift rint round sign signbit sin sinc sinh spacing sqrt square subtract tan tanh true_divide trunc
        where""",
    "Products": """convolve correlate cross dot einsum inner kron matmul matvec outer tensordot trace vdot vecdot
        vecmat""",
    "Statistics": """all allclose amax amin any argmax argmin array_equal array_equiv average bincount corrcoef
        count_nonzero cov cumprod cumsum cumulative_prod cumulative_sum diff ediff1d gradient histogram histogram2d
        histogram_bin_edges histogramdd interp max mean median min nanargmax nanargmin nancumprod nancumsum nanmax
        nanmean nanmedian nanmin nanpercentile nanprod nanquantile nanstd nansum nanvar percentile piecewise polyfit
        polyval prod ptp quantile std sum trapezoid unwrap var""",
    "Selecting and sorting": """apply_along_axis argpartition argsort argwhere choose compress digitize extract
        fill_diagonal flatnonzero intersect1d isin lexsort nonzero partition place put put_along_axis
        ravel_multi_index searchsorted select setdiff1d setxor1d sort take take_along_axis tril_indices triu_indices
        union1d unique unique_all unique_counts unique_inverse unique_values unravel_index""",
    "Dtypes": "can_cast finfo iinfo isdtype promote_types=result_type result_type",
}
ARRAY_API = """abs acos acosh add all any arange argmax argmin argsort asarray asin asinh astype atan atan2 atanh
    bitwise_and bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor broadcast_arrays
    broadcast_shapes broadcast_to can_cast ceil clip concat conj copysign cos cosh count_nonzero cumulative_prod
    cumulative_sum diff divide empty empty_like equal exp expand_dims expm1 eye finfo flip floor floor_divide
    from_dlpack full full_like greater greater_equal hypot iinfo imag isdtype isfinite isin isinf isnan less less_equal
    linspace log log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor matmul matrix_transpose max
    maximum mean meshgrid min minimum moveaxis multiply negative nextafter nonzero not_equal ones ones_like
    permute_dims positive pow prod real reciprocal remainder repeat reshape result_type roll round searchsorted sign
    signbit sin sinh sort sqrt square squeeze stack std subtract sum take take_along_axis tan tanh tensordot tile tril
    triu trunc unique_all unique_counts unique_inverse unique_values unstack var vecdot where zeros zeros_like"""
OTHERS = {
    "numpy.linalg": ("linalg", """cholesky cond cross det diagonal eig eigh eigvals eigvalsh inv lstsq matmul
        matrix_norm matrix_power matrix_rank matrix_transpose multi_dot norm outer pinv qr slogdet solve svd svdvals
        tensordot trace vecdot vector_norm"""),
    "numpy.fft": ("fft", """fft fft2 fftfreq fftn fftshift hfft ifft ifft2 ifftn ifftshift ihfft irfft irfft2 irfftn
        rfft rfft2 rfftfreq rfftn"""),
    "jax": ("", """checkpoint custom_jvp custom_vjp devices eval_shape grad hessian hvp jacfwd jacrev jit jvp linearize
        value_and_grad vjp vmap"""),
    "jax.lax": ("", """associative_scan cond conv conv_transpose cummax cummin cumsum dynamic_slice
        dynamic_update_slice erf erfc erf_inv fori_loop lgamma digamma map rsqrt scan stop_gradient switch top_k
        while_loop"""),
    "jax.nn": ("", """elu gelu hard_sigmoid hard_silu=hard_swish leaky_relu log_softmax logsumexp mish one_hot relu
        relu6 selu sigmoid silu softmax softplus standardize"""),
    "jax.random": ("random", """PRNGKey bernoulli beta binomial bits categorical cauchy chisquare choice dirichlet
        exponential fold_in gamma geometric gumbel key laplace loggamma logistic lognormal maxwell multinomial
        multivariate_normal normal orthogonal pareto permutation poisson rademacher randint rayleigh split t
        triangular truncated_normal uniform wald weibull_min"""),
    "jax.tree": ("tree", """all flatten leaves map reduce structure transpose unflatten"""),
    "scipy.signal": ("signal", """butter check_COLA=check_cola check_NOLA=check_nola chirp coherence convolve correlate
        csd decimate detrend fftconvolve filtfilt find_peaks firwin get_window hilbert istft lfilter oaconvolve
        periodogram resample resample_poly savgol_filter ShortTimeFFT sosfilt sosfiltfilt spectrogram stft welch"""),
    "scipy.fft": ("fft", "dct dctn dst dstn fft fftn hfft idct idst ifft ifftn ihfft irfft irfftn rfft rfftn"),
    "scipy.linalg": ("linalg", """cholesky cho_solve det eigh expm inv lstsq lu norm pinv qr solve solve_triangular
        svd"""),
    "scipy.special": ("", """digamma erf erfc erfinv expit=sigmoid gammaln=lgamma log_softmax logsumexp
        softmax xlogy"""),
}  # fmt: skip
DTYPES = """bool_ uint8=u8 uint16=u16 uint32=u32 uint64=u64 int8=i8 int16=i16 int32=i32 int64=i64 float16=f16
    bfloat16=bf16 float32=f32 float64=f64 complex64 complex128"""

# How functions differ from those of the same name elsewhere; a name with a module is about that module's alone.
_PAIRS = "gives pairs along a last axis of 2; `rlx.view_as_complex` makes them complex"
DIFFERENCES = {
    "around": "gives integers as they are", "argsort": "`descending=`; always stable",
    "bincount": "`length=` in a traced function; numbers below 0 count as 0 there",
    "broadcast_to": "copies nothing, but the result is no view", "divide": "integers give f32",
    "true_divide": "integers give f32", "empty": "gives zeros", "empty_like": "gives zeros",
    "geomspace": "f32", "logspace": "f32",
    "eye": "f32", "floor": "integers become f32", "ceil": "integers become f32",
    "trunc": "integers become f32", "fix": "integers become f32",
    "interp": "of f32 it computes in f32", "linspace": "f32", "mean": "integers become f32",
    "nanargmax": "-1 where all are NaN, as JAX", "nanargmin": "-1 where all are NaN, as JAX",
    "nonzero": "`size=` in a traced function",
    "argwhere": "`size=` in a traced function",
    "flatnonzero": "`size=` in a traced function", "extract": "`size=` in a traced function",
    "compress": "`size=` in a traced function", "unique": "`size=` in a traced function; no `axis`",
    "unique_all": "`size=` in a traced function", "unique_counts": "`size=` in a traced function",
    "unique_inverse": "`size=` in a traced function",
    "unique_values": "`size=` in a traced function; in order, which NumPy's is not",
    "union1d": "`size=` in a traced function", "setdiff1d": "`size=` in a traced function", "ones": "f32",
    "zeros": "f32", "identity": "f32", "tri": "f32", "partition": "sorts", "argpartition":
    "sorts", "prod": "small integers give i32", "sum": "small integers give i32", "split": "takes lengths",
    "quantile": "no weights; of f32 in f32; between equal infinities the infinity, not NaN",
    "percentile": "as quantile", "repeat": "counts are known while the program is built",
    "squeeze": "gives a new array", "take": "out of range in a run: clamped", "cross": "three components",
    "histogram": "`bins` is an int or edges",
    "where": "one argument: `size=` in a traced function", "can_cast": "by rlx's table of promotion",
    "result_type": "by rlx's table of promotion; numbers are no arguments",
    "softmax": "the last axis unless another is named, as in JAX", "log_softmax":
    "the last axis unless another is named, as in JAX",
    "conv": "`strides` or `stride`, `pads` or `padding`",
    "choice": "other numbers than JAX's", "categorical": "other numbers than JAX's", "truncated_normal":
    "other numbers than JAX's", "gumbel": "other numbers than JAX's", "normal": "other numbers than JAX's",
    "randint": "other numbers than JAX's", "exponential": "other numbers than JAX's", "laplace":
    "other numbers than JAX's", "multivariate_normal": "other numbers than JAX's",
    **dict.fromkeys(("beta", "binomial", "chisquare", "dirichlet", "gamma", "loggamma", "multinomial", "t", "wald"),
                    "other numbers than JAX's; no gradient to parameters"),
    **dict.fromkeys(("geometric", "lognormal", "maxwell", "pareto", "orthogonal", "poisson", "rayleigh", "weibull_min",
                     "cauchy", "logistic"), "other numbers than JAX's"), "eig": "of real matrices",
    "eigvals": "of real matrices", "linearize": "computes the function anew with each tangent", "lu": "no options",
    **dict.fromkeys(("rfft", "rfft2", "rfftn", "ihfft"), _PAIRS), "hilbert": _PAIRS, "csd": _PAIRS,
    "stft": _PAIRS, "spectrogram": f"with `mode=\"complex\"` {_PAIRS}", "ShortTimeFFT": f"`stft` {_PAIRS}",
    **dict.fromkeys(("jax.lax.cummax", "jax.lax.cummin", "jax.lax.cumsum"),
                    "flat without an axis, where JAX takes the first"),
    "gelu": "exact unless `approximate=\"tanh\"`, which is JAX's own default",
    "hard_sigmoid": "ONNX's slope of 0.2; JAX's is 1/6", "one_hot": "numbers below 0 count from the end, as in ONNX",
    **dict.fromkeys(("pow", "power"), "integers to negative powers are truncated, which NumPy refuses"),
    "cholesky": "the lower factor, as NumPy", "qr": "`mode=\"reduced\"`, as NumPy",
}  # fmt: skip

# Keywords of NumPy's functions that rlx lacks under any name, except those about memory or ufunc loops.
LACKING = {
    "array": "ndmin ndmax", "linspace": "retstep axis", "geomspace": "axis", "logspace": "axis",
    **dict.fromkeys(("concat", "concatenate", "stack", "hstack", "vstack", "cov", "corrcoef", "nancumprod",
                     "nancumsum"), "dtype"),
    **dict.fromkeys(("nanmax", "nanmin"), "initial where"), **dict.fromkeys(("nanprod", "nansum"),
                                                                            "dtype initial where"),
    "nanmean": "dtype where", **dict.fromkeys(("nanstd", "nanvar"), "dtype where mean"),
    **dict.fromkeys(("std", "var"), "mean"), "polyfit": "full cov", "unique": "sorted",
    **dict.fromkeys(("quantile", "percentile", "nanquantile", "nanpercentile", "histogram_bin_edges"), "weights"),
}  # fmt: skip
