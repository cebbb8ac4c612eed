#!/usr/bin/env bash
# Claim: on the CPU torch 2.13's scaled_dot_product_attention gives gradients that are n times too large for a query whose
#   n keys all have -1e9 in the mask, as the first queries of a text padded on the left have under a causal mask: the sum
#   of v's gradient over 64 keys is 4,096 where the upstream gradient is 64. Its result, the mean of v, is right.
# A good guess says: a number added to all scores of a row changes nothing, so result and gradients are those of equal
#   weights, and the fused kernel agrees with the plain one (SDPBackend.MATH), which gives 64.
# What is so: the fused kernel keeps one number a row, the logarithm of the sum of exp(score), in f32. Beside -1e9 the
#   logarithm of the sum is lost, so the backward pass takes exp(score - that number) = 1 for each weight of 1/n. There is
#   no warning, in f32 and bf16 alike, and the kernel is the one that is taken by default.
# Why it matters to a tensor runtime: a backward pass may keep the greatest score and the sum apart, and must where masks
#   are finite; gradients of such rows cannot be judged by torch's default kernel.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q --extra-index-url https://download.pytorch.org/whl/cpu "torch==2.13.0" "numpy==2.3.5" 2>/dev/null ||
    venv/bin/pip install -q "torch==2.13.0" "numpy==2.3.5"
venv/bin/python - <<'PY'
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

n = 64
torch.manual_seed(0)
print("torch", torch.__version__)
same = True
for dtype in (torch.float32, torch.bfloat16):
    for name, backends in (("default", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]), ("math", [SDPBackend.MATH])):
        for fill in (0.0, -1e9):
            q, k, v = (torch.randn(1, 2, n, 32, dtype=dtype, requires_grad=True) for _ in range(3))
            with sdpa_kernel(backends, set_priority=True):
                y = scaled_dot_product_attention(q, k, v, attn_mask=torch.full((n, n), fill, dtype=dtype))
            (dv,) = torch.autograd.grad(y, v, torch.ones_like(y))
            total = dv.float().sum(2).mean().item()
            off = (y - v.mean(2, keepdim=True)).abs().max().item()
            print(f"{dtype} {name:8} mask {fill:g}: sum of dv {total:.2f}, upstream {n}"
                  + (f"; y is within {off:.1g} of the mean of v" if fill else ""))
            wrong = name == "default" and fill != 0
            same &= abs(total - (n * n if wrong else n)) < 0.1 and (not fill or off < 2e-2)
sys.exit(0 if same else "the behaviour has changed")
PY
