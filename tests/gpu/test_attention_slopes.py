"""The gradient of attention by matrix instructions: the CUDA sources run on the CPU, against the op's definition in
float64, at every device's tolerance."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.gpu.attention.choice import forcing
from rlx.conformance.case import cases_of
from rlx.conformance.tolerances import compare
from tests.gpu import cuda_host, lowered, test_attention_variants
from tests.gpu.lowered import Array, lower
from tests.gpu.test_attention_matrix import DEVICE, WORDS
from tests.gpu.test_attention_variants import check, given, launches, outputs

pytestmark = pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
BF16, F16 = ml_dtypes.bfloat16, np.float16


@pytest.fixture(autouse=True)
def matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_limits(*args: Any, **words: Any) -> Any:
        return lower(*args, **{"limits": DEVICE, **words})

    monkeypatch.setattr(lowered, "FEATURES", lowered.FEATURES | WORDS)
    monkeypatch.setattr(test_attention_variants, "lower", with_limits)


def with_upstream(*size: int, dtype: Any = BF16) -> list[Array]:
    q, k, v = given(*size, dtype)  # type: ignore[arg-type]
    return [np.random.default_rng(7).standard_normal(q.shape).astype(dtype), q, k, v]


@pytest.mark.parametrize("size", [(1, 2, 1, 70, 130, 64), (2, 4, 2, 33, 40, 20), (1, 1, 1, 129, 65, 128)])
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("sizes", [(1, 64, 1, 64), (2, 32, 1, 32), (2, 64, 2, 32)])
def test_sizes(size: tuple[int, ...], dtype: Any, sizes: tuple[int, ...]) -> None:
    deep, keys, deep_keys, queries = sizes
    inputs = with_upstream(*size, dtype=dtype)
    with forcing(algorithm="matrix", deep=deep, keys=keys, deep_keys=deep_keys, queries=queries):
        assert launches("attention_grad", inputs, "cuda") == ["attention_dq_mma", "attention_dkv_mma"]
        check("attention_grad", inputs, "cuda")
        check("attention_grad", inputs, "cuda", causal=True)
