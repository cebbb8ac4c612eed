"""What the texts of onnx's operators say of attributes and of inputs' shapes."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.errors import ModelFormatError, ModelWarning
from rlx.onnx.reader.elements import CODES
from tests.onnx.models import model, node
from tests.onnx.sweep import attribute_cases, attributes

F, I, B, BF16 = np.float32, np.int64, np.uint8, ml_dtypes.bfloat16


def run(kind: str, feeds: dict[str, Any], strict: bool = False, domain: str = "", **attributes: Any) -> np.ndarray:
    arrays = {n: np.asarray(a) for n, a in feeds.items()}
    proto = model(
        [node(kind, " ".join(n if n[0] != "_" else "_" for n in arrays), "y", domain=domain, **attributes)],
        {n: (list(a.shape), CODES[a.dtype]) for n, a in arrays.items() if n[0] != "_"},
        {"y": None},
        opset=27,
        domains=[domain] if domain else [],
    )
    proto.graph.output[0].type.Clear()
    fed = {n: a for n, a in arrays.items() if n[0] != "_"}
    return rlx.onnx.load(proto, strict=strict).run(fed, device="cpu")["y"]


X, FOUR = np.arange(12, dtype=F).reshape(3, 4), np.arange(4, dtype=B).reshape(2, 2)
ONE = {
    "Range": {"a": [F(0)], "b": F(3), "c": F(1)},
    "Clip": {"x": X, "a": np.ones(1, F)},
    "CumSum": {"x": X, "a": np.array([0])},
    "HannWindow": {"s": np.array([4])},
    "Dropout": {"x": X, "r": np.ones(1, F)},
    "ReduceSum": {"x": X, "a": np.array(0)},
    "Squeeze": {"x": X[None], "a": np.array(0)},
    "Unsqueeze": {"x": X, "a": np.array(0)},
    "Slice": {"x": X, "s": np.array(0), "e": np.array([1])},
    "Reshape": {"x": X, "s": np.array(12)},
    "ConvInteger": {"x": FOUR[None, None], "w": FOUR[None, None], "z": np.ones(1, B)},
    "MatMulInteger": {"a": FOUR, "b": FOUR, "z": np.ones(1, B)},
    "QuantizeLinear": {"x": X, "s": np.ones(1, F), "z": B(1)},
    "DequantizeLinear": {"x": FOUR, "s": F(1), "z": np.ones(1, B)},
    "CenterCropPad": {"x": X[0], "s": np.array(2)},
}


@pytest.mark.parametrize("kind", ONE)
def test_one_number_may_be_a_vector_unless_strict(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(kind, ONE[kind])
    with pytest.raises(ModelFormatError, match=r"expected .*text says|one for each of axis"):
        run(kind, ONE[kind], strict=True)


SCORES, LABELS = np.zeros((3, 5, 2), F), np.zeros((3, 2), I)
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("NegativeLogLikelihoodLoss", {"x": SCORES, "t": LABELS[:1]}),
    ("NegativeLogLikelihoodLoss", {"x": SCORES, "t": LABELS[:, :1]}),
    ("NegativeLogLikelihoodLoss", {"x": SCORES, "t": LABELS, "w": np.ones(1, F)}),
    ("SoftmaxCrossEntropyLoss", {"x": SCORES, "t": LABELS, "w": np.ones((5, 1), F)}),
    ("CenterCropPad", {"x": X, "s": np.array([2])}),
    ("Reshape", {"x": X, "s": np.array([[12]])}),
    ("Tile", {"x": X, "s": np.array([[1, 2]])}),
    ("Expand", {"x": X, "s": np.array([[3, 4]])}),
    ("Slice", {"x": X, "s": np.array([[0]]), "e": np.array([[1]])}),
    ("ReduceMax", {"x": X, "a": np.array([[0]])}),
    ("MatMulInteger", {"a": FOUR, "b": FOUR, "z": np.ones((1, 2), B)}),
    ("MatMulInteger", {"a": FOUR[None], "b": FOUR, "z": np.ones(2, B)}),
    ("QLinearMatMul", {"a": FOUR, "s": F(1), "z": np.ones(2, B), "b": FOUR, "t": F(1), "u": B(0), "v": F(1),
                       "w": B(0)}),
    ("ConvInteger", {"x": FOUR[None, None], "w": FOUR[None, None], "z": np.ones((1, 1), B)}),
    ("DequantizeLinear", {"x": FOUR, "s": np.ones(2, F), "z": B(1)}),
    ("QuantizeLinear", {"x": X, "s": np.ones((1, 1), F)}),
    ("Attention", {"q": np.zeros((2, 3, 4, 8), F), "k": np.zeros((2, 3, 6, 8), F), "v": np.zeros((1, 3, 6, 8), F)}),
    ("Attention", {"q": np.zeros((2, 3, 4, 8), F), "k": np.zeros((2, 3, 6, 8), F), "v": np.zeros((2, 3, 6, 8), F),
                   "m": np.zeros((4, 1), F)}),
    ("ScatterElements", {"x": X, "i": np.zeros((1, 2), I), "u": np.zeros((), F)}),
    ("MaxUnpool", {"x": X[None, None], "i": np.zeros((1, 1, 3, 4), I), "s": np.array([[1, 1, 3, 4]])}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "feeds"), REFUSED)
@pytest.mark.parametrize("strict", [False, True])
def test_shapes_that_leave_a_guess_are_refused(kind: str, feeds: dict[str, Any], strict: bool) -> None:
    attributes = {"kernel_shape": [1, 1]} if kind == "MaxUnpool" else {}
    with pytest.raises(ModelFormatError, match="expected"):
        run(kind, feeds, strict, **attributes)


@pytest.mark.parametrize(
    ("kind", "feeds", "attributes"),
    [("Compress", {"x": X, "c": np.array([[True, False, True]])}, {"axis": 0}),
     ("Pad", {"x": X, "p": np.array([[0, 1, 0, 1]])}, {}),
     ("LRN", {"x": X}, {"size": 3})],
)  # fmt: skip
def test_what_others_take_beside_the_text_is_warned_of(
    kind: str, feeds: dict[str, Any], attributes: dict[str, Any]
) -> None:
    with pytest.warns(ModelWarning, match="text says"):
        run(kind, feeds, **attributes)
    with pytest.raises(ModelFormatError, match="text says"):
        run(kind, feeds, True, **attributes)


Q = np.zeros((2, 4, 3, 8), F)


@pytest.mark.parametrize("shapes", [((1, 2, 5, 8), (2, 2, 5, 8)), ((2, 2, 5, 8), (2, 1, 5, 8)),
                                    ((2, 2, 5, 8), (2, 2, 1, 8)), ((2, 2, 5, 8), (1, 2, 5, 8))])  # fmt: skip
def test_keys_and_values_that_do_not_belong_together(shapes: tuple[tuple[int, ...], ...]) -> None:
    feeds = {"q": Q, **{n: np.zeros(s, F) for n, s in zip("kv", shapes, strict=True)}}
    with pytest.raises(ModelFormatError, match="expected"):
        run("FlexAttention", feeds, domain="ai.onnx.preview")


@pytest.mark.parametrize(("parts", "inverse"), [(2, 0), (1, 1)])
def test_one_sided_transforms_go_between_real_numbers_and_half_a_spectrum(parts: int, inverse: int) -> None:
    """Half of a spectrum that has no symmetry, or a real one taken for a half, says nothing: both are refused."""
    x = np.ones((1, 6, parts), F)
    with pytest.raises(ModelFormatError, match=r"one-sided .*\(1, 6, .\); expected .*(real|complex)"):
        run("DFT", {"x": x}, onesided=1, inverse=inverse)
    other = np.random.default_rng(0).normal(size=(1, 6, 3 - parts)).astype(F)
    want = np.fft.irfft(other[..., 0] + 1j * other[..., 1]) if inverse else np.fft.rfft(other[..., 0])
    both = want[..., None] if inverse else np.stack([want.real, want.imag], -1)
    np.testing.assert_allclose(run("DFT", {"x": other}, onesided=1, inverse=inverse), both, atol=1e-5)


def test_half_of_the_spectra_of_complex_frames_is_warned_of() -> None:
    """The text says that it is not possible, though it is the default; ONNX Runtime gives it."""
    x = np.random.default_rng(0).normal(size=(1, 8, 2)).astype(F)
    feeds = {"x": x, "s": np.array(4), "w": np.ones(4, F)}
    with pytest.warns(ModelWarning, match=r"signal is .*complex"):
        half = run("STFT", feeds)
    want = np.fft.fft((x[..., 0] + 1j * x[..., 1]).reshape(1, 2, 4))[..., :3]
    np.testing.assert_allclose(half[..., 0] + 1j * half[..., 1], want, atol=1e-5)
    with pytest.raises(ModelFormatError, match=r"signal is .*complex"):
        run("STFT", feeds, strict=True)
    assert run("STFT", feeds, strict=True, onesided=0).shape == (1, 2, 4, 2)


@pytest.mark.parametrize("wanted", [[1], [1, 1, 4], [1, 1, 4, 4, 1], [1, 2, 4, 4], [1, 1, 3, 4]])
def test_places_of_an_unpooled_image_are_inside_it(wanted: list[int]) -> None:
    x, places = np.arange(4, dtype=F).reshape(1, 1, 2, 2), np.array([[[[0, 3], [12, 15]]]])
    how = {"kernel_shape": [2, 2], "strides": [2, 2]}
    with pytest.raises(ModelFormatError, match=r"output_shape is .*expected \[1, 1, 4, 4\], or longer"):
        run("MaxUnpool", {"x": x, "i": places, "s": np.array(wanted)}, **how)
    made = run("MaxUnpool", {"x": x, "i": places, "s": np.array([1, 1, 4, 5])}, **how)
    want = np.zeros((4, 5), F)
    want[::3, [0, 3]] = x[0, 0]
    np.testing.assert_array_equal(made[0, 0], want)


@pytest.mark.parametrize("slope", [(1,), (3, 1, 1), (1, 3, 1, 1)])
def test_slopes_as_torch_exports_them(slope: tuple[int, ...]) -> None:
    x = np.arange(-6, 6, dtype=F).reshape(1, 3, 2, 2)
    w = np.linspace(0.1, 0.3, max(slope), dtype=F).reshape(slope)
    np.testing.assert_array_equal(run("PRelu", {"x": x, "w": w}, strict=True), np.where(x < 0, x * w, x))


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_type_that_the_function_of_an_operator_has_no_node_for(reduction: str) -> None:
    """The text of SoftmaxCrossEntropyLoss lists bfloat16; its function is of an older operator that does not."""
    scores = np.random.default_rng(0).integers(-8, 9, (4, 3)) / 4.0
    labels = np.array([0, 2, 1, 2])
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    want = -logs[np.arange(4), labels]
    made = run("SoftmaxCrossEntropyLoss", {"x": scores.astype(BF16), "t": labels}, True, reduction=reduction)
    assert made.dtype == BF16
    np.testing.assert_allclose(made.astype(F), want.mean() if reduction == "mean" else want, atol=2**-6)


KINDS = (
    "HannWindow BlackmanWindow CenterCropPad AffineGrid DepthToSpace TensorScatter LinearAttention CausalConvWithState "
    "Attention FlexAttention RotaryEmbedding LayerNormalization GroupNormalization NegativeLogLikelihoodLoss "
    "ReduceLogSumExp Softmax Range Clip PRelu QuickGelu".split()
)


def test_odd_attributes_follow_the_texts() -> None:
    """A few of the sweep's cases of each operator: the last of those that are refused and of those that are not."""
    chosen: dict[tuple[str, bool, int], attributes.Case] = {}
    for n, case in enumerate(attribute_cases.cases()):
        if case.kind in KINDS:
            chosen[case.kind, case.want is None, n % 2] = case
    assert {kind for kind, *_ in chosen} == set(KINDS)
    for case in chosen.values():
        assert not attributes.wrong(case, "cpu"), (case.kind, case.attributes)
