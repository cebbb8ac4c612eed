"""torch.compile decoding the shape of Llama 3.2 1B in bf16, as benchmarks/language/decoding.py does with rlx:
`python benchmarks/language/decoding_torch.py [--plain] [--position 2048] [--tokens 128]`.

One token a step at a position of a static cache, random weights, `torch.compile(mode="reduce-overhead",
fullgraph=True)`; prints the best of three runs in tokens a second. The model is transformers' LlamaForCausalLM or, with
`--plain`, the same network written out, whose queries, keys and values are one product, and so gate and up.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import torch.nn.functional as F

SIZE, WIDE, LAYERS, HEADS, KEY_HEADS, HEAD, VOCABULARY = 2048, 8192, 16, 32, 8, 64, 128256


class Plain:
    """Llama over a cache of `room` rows; `at` is the position of the next token."""

    def __init__(self, room: int) -> None:
        def random(*shape: int) -> torch.Tensor:
            return torch.empty(*shape, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02)

        ones = torch.ones(SIZE, dtype=torch.bfloat16, device="cuda")
        joined = (HEADS + 2 * KEY_HEADS) * HEAD
        self.embedding = random(VOCABULARY, SIZE)
        self.layers = [
            (ones.clone(), random(joined, SIZE), random(SIZE, SIZE), ones.clone(), random(2 * WIDE, SIZE),
             random(SIZE, WIDE))
            for _ in range(LAYERS)
        ]  # fmt: skip
        self.last = ones
        self.caches = [
            tuple(torch.zeros(1, KEY_HEADS, room, HEAD, dtype=torch.bfloat16, device="cuda") for _ in "kv")
            for _ in range(LAYERS)
        ]
        rates = 5e5 ** (-torch.arange(0, HEAD, 2, device="cuda").float() / HEAD)
        angles = torch.outer(torch.arange(room, device="cuda").float(), rates)
        self.cosine, self.sine = (f(torch.cat([angles, angles], -1)).bfloat16() for f in (torch.cos, torch.sin))
        self.at = torch.zeros(1, dtype=torch.long, device="cuda")
        self.rows = torch.arange(room, device="cuda")
        held = [self.embedding, self.last, self.cosine, self.sine, self.at, self.rows]
        for tensor in held + [t for many in (*self.layers, *self.caches) for t in many]:
            torch._dynamo.mark_static_address(tensor)
        self.count = self.embedding.numel() + sum(w.numel() for layer in self.layers for w in layer)

    def place(self, position: int) -> None:
        self.at.fill_(position)

    def __call__(self, token: torch.Tensor) -> torch.Tensor:
        count = token.shape[1]
        at = self.at + torch.arange(count, device="cuda")
        cosine, sine = self.cosine[at], self.sine[at]
        mask = (self.rows[None] <= at[:, None])[None, None]
        x = F.embedding(token, self.embedding)
        for (norm, qkv, out, second, gated, down), (keys, values) in zip(self.layers, self.caches, strict=True):
            parts = F.linear(_normed(x, norm), qkv).split([HEADS * HEAD, KEY_HEADS * HEAD, KEY_HEADS * HEAD], -1)
            q, k, v = (t.view(1, count, -1, HEAD).transpose(1, 2) for t in parts)
            keys.index_copy_(2, at, _turned(k, cosine, sine))
            values.index_copy_(2, at, v)
            y = F.scaled_dot_product_attention(
                _turned(q, cosine, sine), keys, values, attn_mask=mask, enable_gqa=True
            )
            x = x + F.linear(y.transpose(1, 2).reshape(1, count, SIZE), out)
            gate, up = F.linear(_normed(x, second), gated).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, down)
        self.at.add_(count)
        return F.linear(_normed(x[:, -1:], self.last), self.embedding).argmax(-1)


def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * weight


def _turned(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class Library:
    """The same by transformers."""

    def __init__(self, room: int) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

        config = LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=SIZE, intermediate_size=WIDE, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS, head_dim=HEAD, max_position_embeddings=8192,
            rms_norm_eps=1e-5, tie_word_embeddings=True, attn_implementation="sdpa",
        )  # fmt: skip
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            self.model = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
        self.cache: Any = StaticCache(config=config, max_cache_len=room)
        self.count = sum(p.numel() for p in self.model.parameters())

    def place(self, position: int) -> None:
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(position)

    def __call__(self, token: torch.Tensor) -> torch.Tensor:
        made = self.model(token, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        greatest: torch.Tensor = made.logits[:, -1:].argmax(-1)
        return greatest


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plain", action="store_true", help="the network written out, not transformers'")
    parser.add_argument("--position", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--bandwidth", type=float, default=0.0, help="bytes a second, to compare with")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    room = args.position + args.tokens + 128
    net = Plain(room) if args.plain else Library(room)
    prompt = torch.randint(0, 900, (1, args.position), device="cuda")
    first = net(prompt)
    run = torch.compile(net.__call__, mode="reduce-overhead", fullgraph=True)

    def step(token: torch.Tensor) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return run(token).clone()

    start = time.perf_counter()
    net.place(args.position)
    for _ in range(4):  # compiles, warms up, captures
        step(first)
    torch.cuda.synchronize()
    build, rates = time.perf_counter() - start, []
    for _ in range(3):
        net.place(args.position)
        token = first
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(args.tokens):
            token = step(token)
        torch.cuda.synchronize()
        rates.append(args.tokens / (time.perf_counter() - start))
    share = f", {200 * max(rates) * net.count / args.bandwidth:.0f} % of the bandwidth" if args.bandwidth else ""
    listed = ", ".join(f"{r:.0f}" for r in rates)
    print(f"torch {torch.__version__} {type(net).__name__.lower()}: {max(rates):.1f} tok/s ({listed}){share}; "
          f"{net.count / 1e9:.2f} B weights; build {build:.0f} s")  # fmt: skip


if __name__ == "__main__":
    main()
