#!/usr/bin/env bash
# Claim: PEFT 0.21.2 with transformers 5.24 passes over the LoRA corrections of the dense layers and the shared experts
#   of a DeepSeek-V3: of an adapter with gate_proj, up_proj and down_proj of modules named in full it loads none, says
#   nothing of them, and corrects the experts that the adapter does not name.
# A good guess says: target_modules with full names adapt these modules, all of which are plain torch.nn.Linear; what an
#   adapter's file holds and the model does not take is told.
# What is so: any target that ends in gate_proj, up_proj or down_proj is taken for the experts' tensors, which are fused
#   since transformers 5, and removed from the targets; the tensors in the file are dropped without a warning.
# Why it matters to a tensor runtime: an adapter that it trains or runs for such a model gives other logits in PEFT,
#   and PEFT cannot be the judge of it; merged weights can.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 peft==0.21.2
"$folder/venv/bin/python" - "$folder/adapter" <<'PY'
import json
import pathlib
import sys
import warnings

import peft
import torch
import transformers
from safetensors.torch import save_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

transformers.logging.set_verbosity_error()
folder = pathlib.Path(sys.argv[1])
folder.mkdir()
torch.manual_seed(0)
model = DeepseekV3ForCausalLM(DeepseekV3Config(
    vocab_size=64, hidden_size=32, intermediate_size=48, moe_intermediate_size=24, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
    n_shared_experts=1, first_k_dense_replace=1, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8,
    qk_nope_head_dim=8, v_head_dim=8, max_position_embeddings=64,
)).eval()
names = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n.endswith(("gate_proj", "up_proj", "down_proj"))]
tensors = {}
for name in names:
    out, into = model.get_submodule(name).weight.shape
    tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(2, into)
    tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(out, 2)
save_file(tensors, folder / "adapter_model.safetensors")
config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 2, "target_modules": names, "bias": "none"}
(folder / "adapter_config.json").write_text(json.dumps(config))
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    loaded = peft.PeftModel.from_pretrained(model, folder)
corrected = {n.split(".lora_A")[0].removeprefix("base_model.model.") for n, _ in loaded.named_parameters() if ".lora_A" in n}
said = " ".join(str(w.message) for w in told)
print("peft", peft.__version__, "transformers", transformers.__version__)
print("the adapter corrects", names)
print("PEFT corrects       ", sorted(corrected))
print("warnings that name one of the adapter's modules:", sum(name in said for name in names))
same = len(names) == 6 and not corrected & set(names) and any("experts" in n for n in corrected)
sys.exit(0 if same and not any(name in said for name in names) else "the behaviour has changed")
PY
