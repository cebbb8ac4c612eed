#!/usr/bin/env bash
# Claim: a Llama of transformers 5.24 loaded in float64 does not compute in float64.
# A good guess says: with dtype=torch.float64 every weight and every tensor between layers is a double, so its logits and
#   gradients are an oracle for a float32 run, exact to about 1e-15, as those of a GPT-2 are.
# What is so: its RMSNorm casts to float32 and back, and its rotary angles are computed in float32, whatever the dtype: a
#   norm is 1e-7 off, the cosines of the first 40 positions up to 4e-7, where torch's own LayerNorm is off by 1e-15.
# Why it matters to a tensor runtime: a tolerance that is tightened against such an oracle measures the oracle.
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/python" -m pip install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 numpy==2.3.4
"$room/venv/bin/python" - <<'PYTHON'
import numpy as np, torch, transformers
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

print("transformers", transformers.__version__, "torch", torch.__version__)
torch.manual_seed(0)
x = torch.randn(4, 64, dtype=torch.float64)
norm = LlamaRMSNorm(64, eps=1e-5).double()
exact = x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)
off = float(((norm(x) - exact).abs().max() / exact.abs().max()).detach())
print(f"RMSNorm of a float64 model: {norm(x).dtype}, {off:.1e} from float64")
config = transformers.LlamaConfig(hidden_size=64, num_attention_heads=4, rope_theta=1e4)
cos, _ = LlamaRotaryEmbedding(config).double()(x[None, :, None], torch.arange(40)[None])
angles = np.outer(np.arange(40), 1e4 ** -(np.arange(0, 16, 2) / 16))
turned = float(np.abs(cos[0, :, :8].detach().numpy() - np.cos(angles)).max())
print(f"cosines of its positions: {cos.dtype}, {turned:.1e} from float64")
plain = float((torch.nn.LayerNorm(64).double()(x) - (x - x.mean(-1, keepdim=True)) /
               torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5)).abs().max().detach())
print(f"torch's own LayerNorm: {plain:.1e} from float64")
assert off > 1e-9 and turned > 1e-9 and plain < 1e-14, "this has changed"
PYTHON
