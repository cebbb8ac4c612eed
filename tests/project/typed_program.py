"""A program of a user's, which mypy reads with rlx's own modules (pyproject.toml). Nobody runs it."""

import numpy as np

import rlx
from rlx.onnx import load

g = rlx.Graph("typed")
x, w = g.input("x", (2, 3)), g.param("w", (3, 2), "bf16")
y: rlx.Tensor = 2 * rlx.gelu(x @ w) % 3 // 1 - x[:, :1].astype("f32").reshape(2, 1).sum(axis=1, keepdims=True)
first, second = rlx.split(rlx.where((y > 0) & ~(y == 1), y, 0.0), 2, axis=-1)
g.output("y", first + second.T)
with rlx.Session(device="cpu", threads=1).compile(g) as exe:
    exe.set_params({"w": np.ones((3, 2), np.float32)})
    shape: tuple[int, ...] = exe.run({"x": np.ones((2, 3), np.float32)})["y"].shape


@rlx.jit
def loss(p: dict[str, rlx.Tensor], x: rlx.Tensor) -> rlx.Tensor:
    return rlx.mean(rlx.square(x @ p["w"]))


@rlx.jit(device="cpu", precision="f32")
def layer(x: rlx.Tensor, w: rlx.Tensor) -> rlx.Tensor:
    return rlx.relu(x @ w)


@rlx.jit
def twice(x: rlx.Tensor, n: int = 2) -> rlx.Tensor:
    return layer(layer(x, x.T), x)[[0, 1]].exp()  # a jitted function keeps its type: strict mypy lets none return Any


def gap(x: rlx.Tensor) -> tuple[rlx.Tensor, int]:
    both: tuple[rlx.Tensor, object] = rlx.value_and_grad(rlx.sum)(x)
    return both[0] + rlx.einsum("ij->", x), 1


@rlx.jit
def numbered(x: rlx.Tensor) -> rlx.Tensor:
    return x + rlx.exp(rlx.arange(3, dtype="f32"))


table: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = rlx.zeros((2, 3))  # outside of a trace an array
table[0, 1] = numbered(np.ones(3)).shape[0]
steps = rlx.linspace(0, 1, 5)  # to mypy both an array and a tensor, in operations a tensor
scaled: rlx.Tensor = 2 * rlx.relu(rlx.eye(3)) @ rlx.ones((3, 2), "bf16") - rlx.full((3, 2), 0.5)
print(steps.tolist(), np.sqrt(steps), layer(rlx.ones((2, 3)), rlx.zeros((3, 2))), steps.astype("f32"), steps.shape)
steps.tolst()  # type: ignore[attr-defined]
print(rlx.grad(gap, has_aux=True)(np.ones((2, 3))), twice(np.ones((2, 3))))
print(layer(np.ones((2, 3)), np.ones((3, 2))), layer.cache_info()["size"], loss.graph({"w": shape}, shape))
print(rlx.grad(loss, device="cpu")({"w": np.ones((3, 1))}, np.ones((2, 3))))
doubled = rlx.custom_op("doubled", lambda x: 2 * x, infer=lambda types, attrs: types[0])
print([info.id for info in rlx.devices()], rlx.onnx.load("m.onnx").run({"x": shape}, device="cpu")["y"])
print(load("m.onnx").inputs)
