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


print(layer(np.ones((2, 3)), np.ones((3, 2))), layer.cache_info()["size"], loss.graph({"w": shape}, shape))
print(rlx.grad(loss, device="cpu")({"w": np.ones((3, 1))}, np.ones((2, 3))))
doubled = rlx.custom_op("doubled", lambda x: 2 * x, infer=lambda types, attrs: types[0])
print([info.id for info in rlx.devices()], rlx.onnx.load("m.onnx").run({"x": shape}, device="cpu")["y"])
print(load("m.onnx").inputs)
