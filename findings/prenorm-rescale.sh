#!/usr/bin/env bash
# Claim: transformers changes the weights of a Mamba file while it loads them, where config.json has
#   "rescale_prenorm_residual": true.
# A good guess says: the setting is one of initialization; what from_pretrained gives are the file's own values, and
#   save followed by load changes no logit.
# What is so (transformers 5.24.0; Mamba and Mamba 2, whose out_proj is in the code that initializes them): the loader
#   marks a tensor that it has read, so that functions of torch.nn.init leave it alone; the rescaling is a plain in-place
#   division, which knows no mark. Each load divides out_proj.weight of every layer by the square root of the number of
#   layers, without a word, and a folder that is saved and loaded again is divided once more.
# Why it matters: a runtime that reads the file's values (as the setting's name and the state-spaces code say) gives
#   other logits than transformers, and a comparison of the two blames the runtime.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q --extra-index-url https://download.pytorch.org/whl/cpu "torch==2.13.0" "transformers==5.24.0" 2>/dev/null ||
    venv/bin/pip install -q "torch==2.13.0" "transformers==5.24.0"
cat >see.py <<'P'
import tempfile

import torch
import transformers
from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
print("transformers", transformers.__version__)
size = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 4, "state_size": 4}
heads = {"num_heads": 4, "head_dim": 8, "n_groups": 2}
kinds = ((MambaConfig, MambaForCausalLM, {}), (Mamba2Config, Mamba2ForCausalLM, heads))
for config, network, more in kinds:
    for rescale in (False, True):
        torch.manual_seed(0)
        saved = network(config(**size, **more, rescale_prenorm_residual=rescale))
        with tempfile.TemporaryDirectory() as folder:
            saved.save_pretrained(folder)
            loaded = network.from_pretrained(folder)
        ratios = {}
        after = loaded.state_dict()
        for name, before in saved.state_dict().items():
            if not torch.equal(before, after[name]):
                ratios[name] = round((after[name] / before).mean().item(), 6)
        ids = torch.arange(6)[None]
        apart = (saved(ids).logits - loaded(ids).logits).abs().max().item()
        print(f"{network.__name__:17} rescale_prenorm_residual={rescale!s:5}: {len(ratios)} tensors changed by loading",
              set(ratios.values()) or "", f"logits apart by {apart:.3g}")
        changed = {name for name in saved.state_dict() if name.endswith("out_proj.weight")} if rescale else set()
        assert set(ratios) == changed, f"loading changed {sorted(ratios)}"
        assert set(ratios.values()) <= {0.5}, ratios
P
venv/bin/python see.py
