"""The cases of golden.json: folders like the tiny one with something changed, and a few numbers of MiniLM."""

from __future__ import annotations

from typing import Any

# How each golden row differs from the default folder: mean pooling, normalized, gelu, at most 40 tokens.
VARIANTS: dict[str, dict[str, Any]] = {
    "mean": {},
    "cls": {"pooling": "cls", "normalize": False},
    "short": {"max_length": 9, "hidden_act": "relu"},
    "gelu_new": {"pooling": None, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5},
    "f16": {"half": "f16", "hidden_act": "silu"},
    "bf16": {"half": "bf16"},
}
MINILM_SENTENCES = (
    "The harbour froze overnight, and the ferries stayed at their moorings.",
    "How do animals keep warm in the cold?",
    "",
)
MINILM_PLACES = tuple(range(0, 384, 24))
