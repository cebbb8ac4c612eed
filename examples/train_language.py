"""A small language model of this repository's own pages: trained with rlx, written as a folder and as GGUF files, and
asked to go on from a prompt.

    python examples/train_language.py [--steps 800] [--out tiny-pages] [--device auto]

The model is a Llama of some two million weights: it learns the look of the pages, and little else. It is a model to try
the commands with, offline: `rlx generate tiny-pages-q4_k.gguf -p "The device"`; `rlx chat` goes on from what is said.
A folder of random weights becomes a function (`rlx.models.trainable`), which `rlx.training` trains by Adam (Kingma &
Ba, 2015). Needs the packages of `rlx[hf]`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx import optim
from rlx.formats import safetensors
from rlx.formats.gguf.convert import folder_to_gguf
from rlx.models import load

CONFIG: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1024, "hidden_size": 256,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "intermediate_size": 512, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
BATCH, LENGTH = 8, 64
TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"  # a talk is a text to go on from


def start() -> dict[str, np.ndarray]:
    """Random weights by their names in a folder: norms of ones, matrices of small numbers."""
    c = CONFIG
    d, wide, size = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * size, c["num_key_value_heads"] * size
    layer = {"input_layernorm": (d,), "post_attention_layernorm": (d,), "self_attn.q_proj": (q, d),
             "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d), "self_attn.o_proj": (d, q),
             "mlp.gate_proj": (wide, d), "mlp.up_proj": (wide, d), "mlp.down_proj": (d, wide)}  # fmt: skip
    shapes = {"embed_tokens": (c["vocab_size"], d), "norm": (d,)}
    for i in range(c["num_hidden_layers"]):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    rng = np.random.default_rng(1)
    return {
        f"model.{name}.weight": np.ones(shape, np.float32) if len(shape) == 1
        else rng.normal(0, 0.5 * shape[1] ** -0.5, shape).astype(np.float32)
        for name, shape in shapes.items()
    }  # fmt: skip


def pages() -> str:
    """The text of the repository's pages."""
    root = Path(__file__).resolve().parent.parent
    files = sorted([*root.glob("*.md"), *root.glob("docs/*.md")])
    if not files:
        raise SystemExit(f"the pages to learn, README.md and docs, are not in {root}: run the example of a clone")
    return "\n".join(page.read_text("utf-8") for page in files)


def tokenizer_of(text: str) -> Any:
    """Byte-level BPE, trained on the text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    size = int(CONFIG["vocab_size"])
    made.train_from_iterator(
        [text], trainers.BpeTrainer(vocab_size=size, special_tokens=["<|endoftext|>"], initial_alphabet=letters,
                                    show_progress=False)
    )  # fmt: skip
    return made


def batches(tokens: np.ndarray, steps: int) -> Iterator[np.ndarray]:
    """Random places of the text."""
    rng = np.random.default_rng(0)
    for _ in range(steps):
        starts = rng.integers(0, len(tokens) - LENGTH - 1, BATCH)
        yield np.stack([tokens[s : s + LENGTH + 1] for s in starts])


def train(folder: Path, device: str, steps: int, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """The weights by their names in the folder, after so many steps of Adam. The rate rises for a tenth of the steps,
    then falls to a tenth."""
    function, weights = rlx.models.trainable(folder)

    def loss(weights: Any, rows: Any) -> Any:
        return rlx.mean(rlx.cross_entropy(function(weights, rows[:, :-1]), rows[:, 1:]))

    rate = optim.warmup_cosine_decay_schedule(0.0, 3e-3, max(1, steps // 10), steps + 1, 3e-4)
    with rlx.training(loss, weights, optim.adam(rate, b2=0.99), device=device, total=steps) as run:
        for metrics in run.over(batches(tokens, steps)):
            if metrics.step % 20 == 0 or metrics.step in (1, steps):
                print(f"step {metrics.step}: loss {metrics['loss']:.3f}", flush=True)
        return run.parameters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--out", type=Path, default=Path("tiny-pages"))
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    if args.steps < 1:
        parser.error(f"--steps {args.steps}: expected 1 or more")
    text = pages()
    tokenizer = tokenizer_of(text)
    tokens = np.array(tokenizer.encode(text).ids, np.int32)
    print(f"{len(text):,} characters, {len(tokens):,} tokens")
    args.out.mkdir(exist_ok=True, parents=True)
    (args.out / "config.json").write_text(json.dumps(CONFIG, indent=1))
    safetensors.save(args.out / "model.safetensors", start())
    safetensors.save(args.out / "model.safetensors", train(args.out, args.device, args.steps, tokens))
    tokenizer.save(str(args.out / "tokenizer.json"))
    (args.out / "chat_template.jinja").write_text(TEMPLATE)
    written = [args.out]
    for kind in ("f16", "q8_0", "q4_k"):
        written.append(args.out.with_name(f"{args.out.name}-{kind}.gguf"))
        folder_to_gguf(args.out, written[-1], kind)
    print("written:", *written)
    with load(args.out, args.device, context=128) as model:
        print("The device" + "".join(model.generate("The device", 40)))


if __name__ == "__main__":
    main()
