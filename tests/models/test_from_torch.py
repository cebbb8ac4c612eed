"""Modules of PyTorch through `rlx.from_torch`: values, gradients and buffers beside torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from tests.outside import outside

torch = outside("torch")
nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.judged


class Of(nn.Module):
    """A module whose forward is `function(self, *inputs)`."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if type(part) is torch.Tensor:
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def weight(*shape: int) -> Any:
    return nn.Parameter(torch.randn(shape))


def normal(*shape: int) -> Any:
    return torch.randn(shape)


def ids(*shape: int) -> Any:
    return torch.randint(0, 7, shape)


def block() -> Any:
    return nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
    )


MODULES: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "mlp": lambda: (
        nn.Sequential(nn.Linear(5, 8), nn.GELU("tanh"), nn.Linear(8, 3), nn.LogSoftmax(-1)),
        (normal(4, 5),),
    ),
    "cnn": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, groups=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.Conv2d(8, 8, 3, padding="same", dilation=2, groups=4),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 2),
        ),
        (normal(4, 3, 11, 11),),
    ),
    "upsampling": lambda: (
        nn.Sequential(
            nn.ConvTranspose2d(3, 4, 3, 2, 1, 1),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.AvgPool2d(3, 2, 1),
            nn.Upsample((9, 7), mode="nearest"),
            nn.PixelShuffle(2),
        ),
        (normal(2, 3, 5, 5),),
    ),
    "signal": lambda: (
        nn.Sequential(nn.Conv1d(2, 6, 5, padding=2, padding_mode="reflect"), nn.GLU(1), nn.AvgPool1d(2)),
        (normal(3, 2, 12),),
    ),
    "volume": lambda: (
        nn.Sequential(nn.Conv3d(1, 2, 2), nn.InstanceNorm3d(2, affine=True), nn.Softplus()),
        (normal(2, 1, 4, 4, 4),),
    ),
    "norms": lambda: (
        nn.Sequential(nn.GroupNorm(2, 6), nn.LayerNorm([6, 4]), nn.Flatten(1), nn.BatchNorm1d(24), nn.ELU()),
        (normal(5, 6, 4),),
    ),
    "rms norm": lambda: (
        Of(lambda s, x: F.rms_norm(x, (6,), s.w, 1e-6) * F.silu(x), w=weight(6)),
        (normal(3, 6),),
    ),
    "embedding": lambda: (
        Of(lambda s, i: s.e(i).mean(1) @ s.e.weight.T, e=nn.Embedding(7, 4, padding_idx=0)),
        (ids(3, 5),),
    ),
    "encoder layer": lambda: (block(), (normal(2, 5, 8),)),
    "cross attention": lambda: (
        Of(
            lambda s, q, k: s.m(q, k, k, attn_mask=s.mask)[0],
            m=nn.MultiheadAttention(6, 3, batch_first=True),
            mask=torch.zeros(3, 5).masked_fill(torch.rand(3, 5) > 0.7, -1e4),
        ),
        (normal(2, 3, 6), normal(2, 5, 6)),
    ),
    "causal grouped attention": lambda: (
        Of(
            lambda s, x: F.scaled_dot_product_attention(
                (x @ s.q).view(2, 5, 4, 3).transpose(1, 2),
                (x @ s.k).view(2, 5, 2, 3).transpose(1, 2),
                (x @ s.v).view(2, 5, 2, 3).transpose(1, 2),
                is_causal=True,
                enable_gqa=True,
            ),
            q=weight(6, 12),
            k=weight(6, 6),
            v=weight(6, 6),
        ),
        (normal(2, 5, 6),),
    ),
    "causal, more keys than queries": lambda: (
        Of(
            lambda s, x, y: F.scaled_dot_product_attention(x @ s.q, y @ s.q, y, is_causal=True),
            q=weight(4, 4),
        ),
        (normal(2, 3, 4), normal(2, 5, 4)),
    ),
    "lstm": lambda: (
        Of(lambda s, x: s.r(x), r=nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True)),
        (normal(2, 5, 3),),
    ),
    "gru": lambda: (
        Of(lambda s, x, h: s.r(x, h)[0], r=nn.GRU(3, 4, bias=False)),
        (normal(5, 2, 3), normal(1, 2, 4)),
    ),
    "indices": lambda: (
        Of(
            lambda s, x, i: (
                x[:, i, 1:3]
                + s.t[i[:, None], torch.arange(2)].sum()
                + x.gather(1, i[None, :, None].expand(2, -1, 4)).mean()
            ),
            t=weight(7, 2),
        ),
        (normal(2, 7, 4), ids(3)),
    ),
    "writes": lambda: (Of(written, w=weight(4)), (normal(3, 4),)),
    "statistics": lambda: (
        Of(
            lambda s, x: torch.cat(
                [
                    (x * s.w).var(0),
                    x.std(1, correction=0),
                    x.norm(dim=0),
                    torch.logsumexp(x * s.w, 1),
                    x.amax(0),
                    (x * s.w).max(1).values,
                ]
            ),
            w=weight(4),
        ),
        (normal(3, 4),),
    ),
    "sorted": lambda: (
        Of(
            lambda s, x: (x * s.w).topk(2).values.sum() + (x * s.w).sort(0, descending=True)[0].cumsum(0),
            w=weight(4),
        ),
        (normal(3, 4),),
    ),
    "einsum": lambda: (
        Of(lambda s, x: torch.einsum("bij,jk,bk->bi", x, s.w, x[:, 0]), w=weight(4, 4)),
        (normal(2, 3, 4),),
    ),
    "structure": lambda: (
        Of(
            lambda s, d: {
                "sum": d["a"] * s.w + d["b"][0],
                "pair": (d["b"][1].clamp(-0.5, 0.5), d["a"].pow(3) / (1 + d["a"].abs())),
            },
            w=weight(3),
        ),
        ({"a": normal(3), "b": [normal(2, 3), normal(3)]},),
    ),
    "no gradient": lambda: (
        Of(lambda s, x: (x @ s.w).softmax(-1) * (x @ s.w).detach() + frozen(x @ s.w), w=weight(4, 4)),
        (normal(3, 4),),
    ),
    "integers": lambda: (
        Of(
            lambda s, x, i: (x * s.w) * (i // 2) + i / 3 + (i % 3 == 1) + torch.where(i > 3, x, s.w),
            w=weight(4),
        ),
        (normal(3, 4), ids(3, 4)),
    ),
    "grid": lambda: (
        Of(lambda s, x, g: F.grid_sample(x * s.w, g.tanh(), align_corners=False), w=weight(5)),
        (normal(2, 3, 4, 5), normal(2, 6, 7, 2)),
    ),
    "losses": lambda: (
        Of(
            lambda s, x, i: F.cross_entropy(x * s.w, i, label_smoothing=0.1) + F.smooth_l1_loss(x * s.w, x),
            w=weight(7),
        ),
        (normal(4, 7), ids(4)),
    ),
}


def written(s: Any, x: Any) -> Any:
    y = torch.zeros(3, 4)
    y[:, 1:3] = x[:, :2] * s.w[:2]
    y[0] += x[1]
    y[x > 1.5] = 0.25
    return y.masked_fill(y == 0, 2.0) * s.w


def frozen(x: Any) -> Any:
    with torch.no_grad():
        return x.relu() * 2


def numpy(tree: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda t: t.detach().numpy(), tree)


def leaves(tree: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(tree)


def factors(output: Any) -> Any:
    """Another weight for every element of an output, so that a sum depends on each."""
    return np.cos(np.arange(np.prod(tuple(output.shape)))).reshape(tuple(output.shape)).astype(np.float32)


def near(got: Any, want: Any, bound: float) -> None:
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    assert np.abs(got - want).max(initial=0) <= bound * max(1, np.abs(want).max(initial=0))


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_a_module_gives_torchs_values_buffers_and_gradients(name: str, training: bool) -> None:
    torch.manual_seed(len(name))
    module, inputs = MODULES[name]()
    module.train(training)
    imported = rlx.from_torch(module, inputs)
    outputs = leaves(module(*inputs))
    after = {n: b.detach().numpy().copy() for n, b in module.named_buffers()}
    sum((out * torch.from_numpy(factors(out))).sum() for out in outputs).backward()

    def loss(parameters: Any, buffers: Any, *xs: Any) -> Any:
        result, buffers = imported.apply(parameters, buffers, *xs)
        return sum(rlx.sum(out * factors(out)) for out in leaves(result)), (leaves(result), buffers)

    values = numpy(inputs)
    (_, (got, buffers)), gradients = rlx.jit(rlx.value_and_grad(loss, has_aux=True))(
        imported.parameters, imported.buffers, *values
    )
    assert len(got) == len(outputs)
    for one, other in zip(got, outputs, strict=True):
        near(one, other.detach().numpy(), 1e-6)
    assert set(buffers) == set(after) and set(gradients) == {n for n, _ in module.named_parameters()}
    for n, b in after.items():
        near(buffers[n], b, 1e-6)
    for n, p in module.named_parameters():
        near(gradients[n], np.zeros(p.shape) if p.grad is None else p.grad.numpy(), 1e-5)


def test_axes_that_change_run_at_every_length() -> None:
    module, _ = MODULES["encoder layer"]()
    module.eval()
    batch, length = torch.export.Dim("batch", min=1, max=8), torch.export.Dim("length")
    imported = rlx.from_torch(module, (normal(2, 5, 8),), dynamic_shapes=({0: batch, 1: length},))
    run = rlx.jit(imported)
    for shape in ((2, 5, 8), (1, 5, 8), (3, 9, 8)):
        x = normal(*shape)
        near(run(imported.parameters, x.numpy()), module(x).detach().numpy(), 1e-6)
    with pytest.raises(rlx.errors.ShapeError, match=r"\(9, 5, 8\)"):
        imported(imported.parameters, np.zeros((9, 5, 8), np.float32))


def test_dropout_draws_from_the_key() -> None:
    module = nn.Sequential(nn.Dropout(0.25), nn.Dropout(0.5)).train()
    imported = rlx.from_torch(module, (torch.ones(64, 64),))
    x = np.ones((64, 64), np.float32)
    one, same, other = (np.asarray(imported({}, x, key=rlx.random.key(k))) for k in (1, 1, 2))
    assert set(np.unique(one)) == {0, np.float32(1 / 0.75 / 0.5)}
    assert abs((one > 0).mean() - 0.375) < 0.03  # 0.5 · 0.75, with a deviation of 0.0076
    assert (one == same).all() and (one != other).any()
    with pytest.raises(rlx.RlxError, match=r"key=rlx.random.key"):
        imported({}, x)


def test_halves_and_doubles_keep_their_dtype() -> None:
    for kind, bound in ((torch.float64, 1e-13), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)):
        module = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.LayerNorm(5)).to(kind)
        x = torch.randn(4, 6).to(kind)
        imported = rlx.from_torch(module, (x,))
        y = imported(
            imported.parameters, np.asarray(x.double()).astype(imported.parameters["0.weight"].dtype)
        )
        near(np.asarray(y).astype(np.float64), module(x).detach().double().numpy(), bound)


def test_an_operator_without_a_rule_is_named_with_its_line() -> None:
    module = Of(lambda s, x: torch.linalg.eigvals(x).real + torch.nonzero(x).sum())
    with pytest.raises(
        rlx.errors.UnsupportedOp, match=r"(?s)aten\.\w+.*test_from_torch\.py:\d+: return self"
    ):
        rlx.from_torch(module, (normal(3, 3),))


@pytest.mark.parametrize(
    ("parameters", "inputs", "words"),
    [
        ({"weights": 0}, 1, r"'weight' is missing \(did you mean 'weights'"),
        ({"weight": 0, "bias": 0, "scale": 0}, 1, "no parameter 'scale'"),
        (None, 2, "pass as many"),
        (None, np.zeros((4, 3)), "is f64, the module was exported with f32"),
        (None, np.zeros((5, 3), np.float32), "dynamic_shapes"),
    ],
)
def test_arguments_that_do_not_fit(parameters: Any, inputs: Any, words: str) -> None:
    imported = rlx.from_torch(nn.Linear(3, 2), (torch.zeros(4, 3),))
    zeros = {"weight": np.zeros((2, 3), np.float32), "bias": np.zeros(2, np.float32)}
    x = [np.zeros((4, 3), np.float32)] * inputs if isinstance(inputs, int) else [inputs]
    with pytest.raises(rlx.RlxError, match=words):
        imported(zeros if parameters is None else {n: zeros.get(n, zeros["bias"]) for n in parameters}, *x)


def test_what_is_not_a_module() -> None:
    with pytest.raises(rlx.RlxError, match=r"takes a torch\.nn\.Module; this is a function"):
        rlx.from_torch(near)
    with pytest.raises(rlx.RlxError, match=r"pass a tuple"):
        rlx.from_torch(nn.Linear(3, 2), torch.zeros(4, 3))


def test_the_page_trains_as_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    exec(compile(code, "docs/torch.md", "exec"), {"__name__": "page"})
    assert float(capsys.readouterr().out.removeprefix("loss ")) < 0.1
