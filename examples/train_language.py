"""A small language model of this repository's own pages: trained with rlx, written as a folder and as GGUF files, and
asked to go on from a prompt.

    python examples/train_language.py [--steps 800] [--out tiny-pages] [--device auto]

The model is a Llama of some two million weights: it learns the look of the pages, and little else. It is a model to try
the commands with, offline: `rlx generate tiny-pages-q4_k.gguf -p "The device"`; `rlx chat` goes on from what is said.
The weights are states of the graph, and each run is a step of Adam (Kingma & Ba, 2015). Needs the packages of
`rlx[hf]`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx.formats import safetensors
from rlx.formats.gguf.convert import folder_to_gguf
from rlx.models import load
from rlx.models.language.architectures import architecture_of
from rlx.models.language.blocks import Blocks
from rlx.models.language.caches import Size
from rlx.models.language.config import Fields
from rlx.models.language.graph import through_layers
from rlx.ops.rope.table import rope_table

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1024, "hidden_size": 256,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "intermediate_size": 512, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
BATCH, LENGTH = 8, 64
TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"  # a talk is a text to go on from


class Learned(Blocks):
    """Blocks whose weights are states, which a step of training replaces."""

    def weight(self, name: str, shape: tuple[int, ...]) -> rlx.Tensor:
        if name.startswith("rope."):
            tables = rope_table(LENGTH, 2 * shape[1], base=CONFIG["rope_theta"])
            return self.g.constant(tables[name.endswith("sin")])
        found = self.g.states.get(name)
        return self.g.state(name, shape) if found is None else found


class Separate:
    """No weights joined: the files have each by itself."""

    positions = LENGTH

    def dtype_of(self, name: str, shape: tuple[int, ...]) -> Any:
        return rlx.dtypes.f32

    def joined(self, name: str, parts: Any) -> bool:
        return False


def training() -> rlx.Graph:
    """A step: the loss of a batch of tokens and of those that follow them, and new weights."""
    g = rlx.Graph("train")
    ids, following = g.input("ids", (BATCH, LENGTH), "i32"), g.input("following", (BATCH * LENGTH,), "i32")
    rate, number = g.input("rate", ()), g.input("number", ())
    fields = Fields(CONFIG, "CONFIG")
    at = g.constant(np.zeros(BATCH, np.int32))
    blocks = Learned(g, architecture_of(fields).read(fields), Size(BATCH, LENGTH, 0), Separate(), at)
    logits = blocks.logits(blocks.norm(through_layers(blocks, ids), "norm"))
    loss = g.output("loss", rlx.mean(rlx.cross_entropy(logits, following)))
    weights = dict(g.states)
    for (name, w), slope in zip(weights.items(), rlx.gradients(loss, list(weights.values())), strict=True):
        first, second = g.state(f"first of {name}", w.shape), g.state(f"second of {name}", w.shape)
        mean, square = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope * slope
        ahead = mean / (1 - 0.9**number) / (rlx.sqrt(square / (1 - 0.99**number)) + 1e-8)
        g.update(f"first of {name}", mean)
        g.update(f"second of {name}", square)
        g.update(name, w - rate * ahead)
    return g


def pages() -> str:
    """The text of the repository's pages."""
    root = Path(__file__).resolve().parent.parent
    return "\n".join(page.read_text("utf-8") for page in sorted([*root.glob("*.md"), *root.glob("docs/*.md")]))


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


def batches(tokens: np.ndarray, steps: int) -> Iterator[dict[str, Any]]:
    """Random places of the text; the rate rises for a tenth of the steps, then falls to a tenth."""
    rng = np.random.default_rng(0)
    for step in range(1, steps + 1):
        starts = rng.integers(0, len(tokens) - LENGTH - 1, BATCH)
        rows = np.stack([tokens[s : s + LENGTH + 1] for s in starts])
        part = step / steps
        rate = 3e-3 * min(10 * part, 0.1 + 0.9 * (1 - part))
        yield {"ids": rows[:, :-1], "following": rows[:, 1:].reshape(-1), "rate": np.float32(rate),
               "number": np.float32(step)}  # fmt: skip


def train(device: str, steps: int, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """The weights by the names of the files."""
    rng, graph = np.random.default_rng(1), training()
    with rlx.Session(device).compile(graph) as step:
        names = [name for name in graph.states if " of " not in name]
        for name in names:
            shape = graph.states[name].shape
            start = np.ones(shape) if len(shape) == 1 else rng.normal(0, 0.5 * shape[1] ** -0.5, shape)
            step.set_state(name, start.astype(np.float32))
        for i, feeds in enumerate(batches(tokens, steps)):
            loss = float(step.run(feeds)["loss"])
            if i % 20 == 0 or i == steps - 1:
                print(f"step {i + 1}: loss {loss:.3f}", flush=True)
        return {f"model.{name}": step.get_state(name) for name in names}


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
    weights = train(args.device, args.steps, tokens)
    args.out.mkdir(exist_ok=True, parents=True)
    safetensors.save(args.out / "model.safetensors", weights)
    (args.out / "config.json").write_text(json.dumps(CONFIG, indent=1))
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
