"""What a product brings into the device's cache before kernels that leave the memory idle."""

from __future__ import annotations

from rlx.backends.gpu.gemm.kernels import MATMUL_LINE
from rlx.backends.gpu.program.executable import load_rules
from rlx.backends.gpu.program.kernel import KERNELS
from rlx.backends.gpu.program.near import EVERY, FAR, NEAR, PIECE, bring_near
from rlx.backends.gpu.program.steps import FileKernel, Launch, Ref

load_rules()
_LINE = MATMUL_LINE(
    AB="f32_f32", LANES=32, MANY=1, DEPTH=1, NORMED=False, GATED=False, ACTIVATION=0, BIAS=0, WIDE=False, EARLY=True
)
_NAMES = [arg.name for arg in KERNELS["matmul_line"].args]


def product(weight: Ref) -> Launch:
    args = tuple(weight if a.kind == "ptr" else 0 for a in KERNELS["matmul_line"].args)
    return Launch(_LINE, (1, 1, 1), args, (weight,), ())


def attention() -> Launch:
    decl = KERNELS["attention_step"]
    kernel = FileKernel("attention_step", (("AB", "f32_f32"),), decl.trials[0])
    return Launch(kernel, (1, 1, 1), (), (), ())


def brought(step: object) -> dict[str, object]:
    assert isinstance(step, Launch)
    return dict(zip(_NAMES, step.args, strict=True))


def test_the_next_weights_come_while_the_memory_is_idle() -> None:
    first, near, far = Ref("w", 0, PIECE), Ref("w", PIECE, 3 * PIECE), Ref("w", 4 * PIECE, 9 * PIECE)
    steps = bring_near([product(first), attention(), product(near), product(far), attention()])
    found = brought(steps[0])
    assert (found["near"], found["near_count"]) == (near, 3)
    assert (found["far"], found["far_count"], found["far_step"]) == (far, 9 // EVERY, EVERY * PIECE)
    assert isinstance(steps[0], Launch) and {near, far} <= set(steps[0].reads)
    assert [brought(s)["near_count"] for s in steps[2:4]] == [0, 0]


def test_only_as_much_comes_as_the_cache_holds() -> None:
    large = Ref("w", 0, 1 << 30)
    found = brought(bring_near([product(large), attention(), product(large), product(large)])[0])
    assert found["near_count"] == NEAR // PIECE
    count, step = found["far_count"], found["far_step"]
    assert isinstance(count, int) and isinstance(step, int)
    assert count * PIECE <= FAR and count * step <= 1 << 30


def test_products_side_by_side_bring_nothing() -> None:
    steps = [product(Ref("w", 0, PIECE)), product(Ref("w", PIECE, PIECE))]
    assert bring_near(steps) == steps
    steps = [product(Ref("w", 0, PIECE)), attention()]
    assert bring_near(steps) == steps
