#!/usr/bin/env bash
# Claim: with PEFT 0.21.2 and transformers 5.24 a LoRA adapter of a Mamba's dt_proj is accepted and trains to nothing: it
#   changes no logit and its matrices have no gradient.
# A good guess says: PEFT refuses out_proj and conv1d in Mamba models, since their weights are used past their modules,
#   so what it takes (in_proj, x_proj, dt_proj) has an effect.
# What is so: the class multiplies by dt_proj.weight itself, in plain torch too, and PEFT's list does not have it.
# Why it matters to a tensor runtime: an adapter file with dt_proj means W + s B A to any other program, so that this
#   one's logits differ from PEFT's, where PEFT does not compute the adapter that it saved.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 peft==0.21.2
"$folder/venv/bin/python" - <<'PY'
import sys
import warnings

import peft
import torch
import transformers
from transformers import MambaConfig, MambaForCausalLM

warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()
torch.manual_seed(0)
config = MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=8)
ids = torch.arange(3, 30)[None]
print("peft", peft.__version__, "transformers", transformers.__version__)
moved = {}
for target in ("in_proj", "x_proj", "dt_proj"):
    model = MambaForCausalLM(config).eval()
    before = model(ids).logits.detach()
    lora = peft.LoraConfig(r=2, lora_alpha=64, target_modules=[target], init_lora_weights=False)
    adapted = peft.get_peft_model(model, lora)
    logits = adapted(ids).logits
    if logits.requires_grad:  # it does not where dt_proj alone is adapted
        logits.square().sum().backward()
    grads = [p.grad for p in adapted.parameters() if p.requires_grad]
    moved[target] = (float((logits - before).abs().max()), sum(g is not None and bool(g.any()) for g in grads), len(grads))
    print(f"{target}: logits move by {moved[target][0]:.1e}; {moved[target][1]} of {len(grads)} matrices have a gradient")
same = moved["dt_proj"][:2] == (0.0, 0) and all(moved[t][0] > 0 and moved[t][1] for t in ("in_proj", "x_proj"))
sys.exit(0 if same else "the behaviour has changed")
PY
