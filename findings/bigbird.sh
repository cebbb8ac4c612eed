#!/usr/bin/env bash
# Claim: in transformers 5.24 the hidden states that a BigBird gives for a text depend on which texts the same object
#   saw before: one short text turns the sparse attention of every later long text into full attention.
# A good guess says: a text that is too short for sparse attention is computed with full attention, for that call.
# What is so: the call changes the model's attention type for good, with a line in the log and no way back but
#   set_attention_type; the same long text then has other states, far outside rounding.
# Why it matters to a tensor runtime: states recorded from such a model as the truth for an import must be made by a
#   fresh object for each text, or in an order that is known, and users who compare see differences that are no fault of
#   the runtime.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 numpy==2.3.4
"$folder/venv/bin/python" - <<'PY'
import sys

import torch
import transformers
from transformers import BigBirdConfig, BigBirdModel

transformers.logging.set_verbosity_error()
torch.manual_seed(0)
config = BigBirdConfig(
    vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=512, block_size=16, num_random_blocks=1, attention_type="block_sparse",
)
model = BigBirdModel(config, add_pooling_layer=False).eval().double()
long, short = torch.randint(3, 64, (1, 256)), torch.randint(3, 64, (1, 16))
with torch.no_grad():
    first = model(long).last_hidden_state
    again = model(long).last_hidden_state
    model(short)
    after = model(long).last_hidden_state
print("transformers", transformers.__version__, "torch", torch.__version__)
print("the long text twice: largest difference", float((again - first).abs().max()))
print("after a short text:  largest difference", float((after - first).abs().max()))
print("attention type now:", model.attention_type)
same = model.attention_type == "original_full" and (after - first).abs().max() > 1e-3 and torch.equal(first, again)
sys.exit(0 if same else "the behaviour has changed")
PY
