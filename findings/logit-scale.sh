#!/usr/bin/env bash
# Claim: Aya Vision and Command A Vision in transformers 5.24 leave out the `logit_scale` of their text model: logits of
#   a text are 1 / logit_scale times those of Cohere2's own class with the same weights.
# A good guess says: the class for images and texts gives a text the logits that the class of its text model gives.
# What is so: the outer classes apply the output matrix themselves, to the inner model without its head, and the factor,
#   which Cohere2ForCausalLM multiplies by (0.0625 by default), is the head's. The likeliest token is the same;
#   probabilities, sampling, losses and gradients are those of a temperature of 0.0625.
# Why it matters to a tensor runtime: the text model of such a folder, run as what it is, differs from the class that
#   judges it by a factor of 16, and which of both a file was made for is not said in it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0
"$folder/venv/bin/python" - <<'PY'
import torch
import transformers

transformers.logging.set_verbosity_error()
text = {"model_type": "cohere2", "vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "head_dim": 8,
        "num_key_value_heads": 2, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 64,
        "sliding_window": 8, "bos_token_id": 1, "eos_token_id": 2}
eyes = {"model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
ids = torch.arange(3, 23)[None] * 7 % 59 + 3
for kind in ("aya_vision", "cohere2_vision"):
    for scale in (0.0625, 1.0):
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(
            kind, text_config={**text, "logit_scale": scale}, vision_config=eyes, image_token_id=3)
        whole = transformers.AutoModelForImageTextToText.from_config(config).double().eval()
        own = transformers.AutoModelForCausalLM.from_config(config.text_config).double().eval()
        own.model.load_state_dict(whole.model.language_model.state_dict())
        own.lm_head.weight = whole.lm_head.weight
        with torch.no_grad():
            ids_of_text = ids.where(ids != 3, 4)
            got, want = whole(input_ids=ids_of_text).logits, own(input_ids=ids_of_text).logits
        ratio = float((got * want).sum() / (want * want).sum())
        print(f"{kind}, logit_scale {scale}: logits are {ratio:.6f} times those of {type(own).__name__}")
        assert abs(ratio * scale - 1) < 1e-9
print("transformers", transformers.__version__)
PY
