"""Families of bombs: what makes large results from small inputs, operator by operator. The result is t."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import numpy_helper

from tests.onnx.bomb_parts import ODD, SIZES, Made, Rng, floats, some_numbers, some_shape
from tests.onnx.models import I64, node


def fill(rng: Rng) -> Made:
    value = rng.choice(
        (np.array([1.5], np.float32), np.array([3]), np.array([True]), np.array([1], np.float16))
    )
    return Made(
        [node("ConstantOfShape", "s", "t", value=numpy_helper.from_array(value))], {"s": some_shape(rng)}
    )


def expand(rng: Rng) -> Made:
    return Made(
        [node("Expand", rng.choice(("x", "one", "ones")) + " s", "t")],
        {"s": [*some_shape(rng, 4), *rng.choice(([], [2, 3]))]},
    )


def tile(rng: Rng) -> Made:
    return Made([node("Tile", "x s", "t")], {"s": [rng.choice(SIZES), rng.choice(SIZES)]})


def counted(rng: Rng) -> Made:
    ends = {"a": rng.choice(ODD), "b": rng.choice(ODD), "d": rng.choice((1, -1, 2, 10**6, 0))}
    if rng.random() < 0.5:
        scale = rng.choice((1.0, 1e-30, 1e30))
        return Made([node("Range", "a b d", "t")], {n: np.float32(v * scale) for n, v in ends.items()})
    return Made([node("Range", "a b d", "t")], ends)


def resized(rng: Rng) -> Made:
    more = {
        "mode": rng.choice(("nearest", "linear", "cubic")),
        "coordinate_transformation_mode": rng.choice(
            (
                "half_pixel",
                "asymmetric",
                "align_corners",
                "tf_crop_and_resize",
                "half_pixel_symmetric",
                "pytorch_half_pixel",
            )
        ),
    }
    more |= {"antialias": 1} if rng.random() < 0.3 else {}
    roi = floats(0, 0, 1, rng.choice((1, 1e30, 0)))
    if rng.random() < 0.6:
        scales = floats(*(rng.choice((1, 2, 0.5, 1e3, 1e6, 1e9, 1e30, 1e-6, 1e-30, 0.37)) for _ in range(2)))
        return Made([node("Resize", "x roi s", "t", **more)], {"s": scales, "roi": roi})
    return Made(
        [node("Resize", "x roi _ s", "t", **more)], {"s": [rng.choice(SIZES), rng.choice(SIZES)], "roi": roi}
    )


def upsample(rng: Rng) -> Made:
    scales = floats(*(rng.choice((1, 2, 1e3, 1e6, 1e9, 1e30)) for _ in range(2)))
    return Made(
        [node("Upsample", "x s", "t", mode=rng.choice(("nearest", "linear")))], {"s": scales}, opset=9
    )


def padded(rng: Rng) -> Made:
    mode = rng.choice(("constant", "reflect", "edge", "wrap"))
    return Made([node("Pad", "x s", "t", mode=mode)], {"s": some_numbers(rng, 4)})


def one_hot(rng: Rng) -> Made:
    return Made(
        [node("OneHot", "i d v", "t", axis=rng.choice((0, -1, 1, 5)))],
        {"i": np.arange(rng.choice((1, 5, 1000))), "d": rng.choice(ODD + SIZES), "v": floats(0, 1)},
    )


def eye(rng: Rng) -> Made:
    return Made(
        [node("ConstantOfShape", "s", "e"), node(rng.choice(("EyeLike", "Trilu", "Det")), "e", "t")],
        {"s": [rng.choice((1, 3, 300, 2000, 20_000, 1 << 20, 1 << 31, 0)) for _ in range(2)]},
    )


def drawn(rng: Rng) -> Made:
    kind, shape = rng.choice(("RandomUniform", "RandomNormal")), [min(d, 2**62) for d in some_shape(rng)]
    if rng.random() < 0.3:
        return Made(
            [node("Expand", "x s", "e"), node("Bernoulli", "e", "t")], {"s": [rng.choice(SIZES), 1, 1]}
        )
    if rng.random() < 0.3:
        return Made([node("Softmax", "x", "p"), node("Multinomial", "p", "t", sample_size=rng.choice(ODD))])
    return Made([node(kind, "", "t", shape=shape)])


def einsum(rng: Rng) -> Made:
    big = {"s": [rng.choice((100, 5000, 10**5, 10**7)), 1]}
    equation = rng.choice(
        (
            "ab,cd->abcd",
            "ab,cb->ac",
            "ab,ab,ab->ab",
            "a...,b...->ab...",
            "ii->i",
            "ab,cd,ef,gh->",
            "ab->ba" + "c" * 9,
        )
    )
    count = equation.partition("->")[0].count(",") + 1
    return Made(
        [node("Expand", "one s", "e"), node("Einsum", " ".join(["e"] * count), "t", equation=equation)], big
    )


def product(rng: Rng) -> Made:
    n, k = rng.choice((10, 3000, 10**5, 10**7)), rng.choice((1, 2, 1000, 10**5))
    nodes = [node("Expand", "f a", "p"), node("Expand", "f b", "q")]
    kind = rng.choice(("MatMul", "Gemm", "MatMulInteger", "Mul", "Where"))
    if kind == "MatMulInteger":
        return Made(
            [*nodes, node("Cast", "p", "p8", to=2), node("Cast", "q", "q8", to=2), node(kind, "p8 q8", "t")],
            {"f": floats(1), "a": [n, k], "b": [k, n]},
        )
    last = node("Where", "true p q", "t") if kind == "Where" else node(kind, "p q", "t")
    wide = {"a": [n, 1], "b": [1, n]} if kind in ("Mul", "Where") else {"a": [n, k], "b": [k, n]}
    return Made([*nodes, last], {"f": floats(1), "true": np.array(True), **wide})


def windows(rng: Rng) -> Made:
    """Kernels, pads, strides, dilations and groups that do not fit."""
    n, image = 2, [1, rng.choice((1, 4)), rng.choice((4, 64, 512)), rng.choice((4, 64, 512))]
    kind = rng.choice(
        (
            "Conv",
            "ConvTranspose",
            "MaxPool",
            "AveragePool",
            "LpPool",
            "ConvInteger",
            "DeformConv",
            "MaxUnpool",
        )
    )
    kernel = [rng.choice((1, 2, 3, 64, 200)) for _ in range(n)]
    more: dict[str, Any] = {"kernel_shape": kernel}
    for name, size, usual in (("strides", n, 1), ("dilations", n, 1), ("pads", 2 * n, 0)):
        if rng.random() < 0.5 and not (kind in ("MaxUnpool",) and name == "dilations"):
            more[name] = [usual] * size
            more[name][rng.randrange(size)] = rng.choice(ODD)
    if rng.random() < 0.2:
        more["kernel_shape"][0] = rng.choice(ODD)
    nodes, weights = [node("Expand", "f s", "e")], {"f": floats(1), "s": image}
    if kind in ("Conv", "ConvTranspose", "ConvInteger", "DeformConv"):
        more |= {"group": rng.choice((0, 1, 2, -1, 2**62))} if rng.random() < 0.4 else {}
        weights["ws"] = [rng.choice((1, 4, 10**4)), image[1], *(max(k, 0) for k in kernel)]
        nodes.append(node("Expand", "f ws", "w"))
        if kind == "ConvInteger":
            nodes += [
                node("Cast", "e", "e8", to=2),
                node("Cast", "w", "w8", to=2),
                node(kind, "e8 w8", "t", **more),
            ]
        else:
            if kind == "ConvTranspose" and rng.random() < 0.4:
                more[rng.choice(("output_padding", "output_shape"))] = some_numbers(rng, n)
            nodes.append(node(kind, "e w e" if kind == "DeformConv" else "e w", "t", **more))
        return Made(nodes, weights)
    if kind == "MaxUnpool":
        nodes += [node("Cast", "e", "i", to=I64), node(kind, rng.choice(("e i", "e i os")), "t", **more)]
        return Made(nodes, {**weights, "os": [*image[:2], rng.choice(SIZES), rng.choice(SIZES)]})
    outs = "t i" if kind == "MaxPool" and rng.random() < 0.5 else "t"
    return Made([*nodes, node(kind, "e", outs, **more)], weights)


def col2im(rng: Rng) -> Made:
    return Made(
        [node("ConstantOfShape", "s", "e"), node("Col2Im", "e image block", "t")],
        {
            "s": [1, rng.choice((4, 9, 1 << 20)), rng.choice((1, 4, 1 << 20))],
            "image": [rng.choice(SIZES) for _ in range(2)],
            "block": [rng.choice((1, 2, 1000, 1 << 20)) for _ in range(2)],
        },
    )


def signal(rng: Rng) -> Made:
    length = rng.choice((1, 100, 8192, 8193, 10**5, 10**7))
    nodes, weights = (
        [node("ConstantOfShape", "s", "e")],
        {"s": [1, length, 1], "n": rng.choice(ODD), "k": rng.choice((1, 3, 0, 2**40))},
    )
    kind = rng.randrange(5)
    if kind == 0:
        return Made([*nodes, node("DFT", rng.choice(("e n", "e")), "t", inverse=rng.choice((0, 1)))], weights)
    if kind == 1:
        weights["w"] = rng.choice((16, 1024, 4096, 2**40))
        return Made([*nodes, node("STFT", "e k _ w", "t")], weights)
    if kind == 2:
        many = {
            "b": rng.choice((3, 8192, 10**6)),
            "l": rng.choice((8, 1 << 20, 1 << 40)),
            "r": 8000,
            "lo": floats(0)[0],
            "hi": floats(4000)[0],
        }
        return Made([node("MelWeightMatrix", "b l r lo hi", "t")], many)
    if kind == 3:
        return Made(
            [node(rng.choice(("HannWindow", "BlackmanWindow", "HammingWindow")), "n", "t")],
            {"n": rng.choice(SIZES + ODD)},
        )
    return Made(
        [node("AffineGrid", "th s", "t")],
        {
            "th": np.ones((1, 2, 3), np.float32),
            "s": [1, rng.choice(SIZES), rng.choice(SIZES), rng.choice(SIZES)],
        },
    )


def indices(rng: Rng) -> Made:
    """Gathers of gathers, and scatters."""
    nodes, before = [], "ones"
    for k in range(rng.choice((1, 3, 5, 8))):
        nodes += [
            node("Expand", f"{before} s", f"e{k}"),
            node("Gather", f"x e{k}", f"g{k}", axis=rng.choice((0, 1))),
            node("Cast", f"g{k}", f"c{k}", to=I64),
        ]
        before = f"c{k}"
    return Made(
        [*nodes, node("Identity", before, "t")],
        {"s": [rng.choice((2, 30, 1000, 10**6)), *rng.choice(([], [1], [1] * 7))]},
    )


LARGE = (
    fill,
    expand,
    tile,
    counted,
    resized,
    upsample,
    padded,
    one_hot,
    eye,
    drawn,
    einsum,
    product,
    windows,
    col2im,
    signal,
    indices,
)
