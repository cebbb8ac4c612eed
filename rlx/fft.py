"""Discrete Fourier, cosine and sine transforms: the names, norms and axes of numpy.fft and scipy.fft, of any length.

Complex numbers are pairs: a real tensor whose last axis has length 2 and holds (real, imaginary), as
torch.view_as_real gives and ONNX's DFT takes them. Functions of complex numbers also take NumPy's complex arrays and
rlx.Complex, and give these back; rlx.view_as_complex shows pairs as such. Axes count as they do on a complex array,
without the axis of pairs. `fft`, `ifft` and those of several axes take real numbers too, and give rlx.Complex of these:
a tensor whose last axis is one of 2 may be either, so they ask for `pairs=True` or `pairs=False` there. `irfft`, `hfft`
and their like take it for pairs, which `rfft` gives, unless pairs=False.
`pair`, `real`, `imag`, `conj`, `multiply`, `absolute` and `power` are the arithmetic of pairs.

>>> @rlx.jit
... def spectrum(x):  # (..., n) real
...     return rlx.fft.power(rlx.fft.rfft(x, norm="forward"))
"""

from typing import TYPE_CHECKING

from rlx.ops.fft.cosine import dct as dct
from rlx.ops.fft.cosine import dctn as dctn
from rlx.ops.fft.cosine import dst as dst
from rlx.ops.fft.cosine import dstn as dstn
from rlx.ops.fft.cosine import idct as idct
from rlx.ops.fft.cosine import idctn as idctn
from rlx.ops.fft.cosine import idst as idst
from rlx.ops.fft.cosine import idstn as idstn
from rlx.ops.fft.functions import fft as fft
from rlx.ops.fft.functions import fft2 as fft2
from rlx.ops.fft.functions import fftfreq as fftfreq
from rlx.ops.fft.functions import fftn as fftn
from rlx.ops.fft.functions import fftshift as fftshift
from rlx.ops.fft.functions import hfft as hfft
from rlx.ops.fft.functions import ifft as ifft
from rlx.ops.fft.functions import ifft2 as ifft2
from rlx.ops.fft.functions import ifftn as ifftn
from rlx.ops.fft.functions import ifftshift as ifftshift
from rlx.ops.fft.functions import ihfft as ihfft
from rlx.ops.fft.functions import irfft as irfft
from rlx.ops.fft.functions import irfft2 as irfft2
from rlx.ops.fft.functions import irfftn as irfftn
from rlx.ops.fft.functions import rfft as rfft
from rlx.ops.fft.functions import rfft2 as rfft2
from rlx.ops.fft.functions import rfftfreq as rfftfreq
from rlx.ops.fft.functions import rfftn as rfftn
from rlx.ops.fft.pairs import absolute as absolute
from rlx.ops.fft.pairs import conj as conj
from rlx.ops.fft.pairs import imag as imag
from rlx.ops.fft.pairs import multiply as multiply
from rlx.ops.fft.pairs import pair as pair
from rlx.ops.fft.pairs import power as power
from rlx.ops.fft.pairs import real as real
from rlx.ops.public import make_public as _make_public

__all__ = [
    "absolute", "conj", "dct", "dctn", "dst", "dstn", "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "idct",
    "idctn", "idst", "idstn", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "imag", "irfft", "irfft2", "irfftn",
    "multiply", "pair", "power", "real", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

if not TYPE_CHECKING:  # type checkers read the imports above
    _make_public(globals(), __all__)
