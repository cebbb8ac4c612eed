"""The tokens a second of GPT-2 small in training by torch: one GPU, and several by DistributedDataParallel.

    python benchmarks/networks/ranks_torch.py [--ranks 2] [--accumulate 1 4]

The network, batches and optimizer are those of `ranks.py`: bf16 by autocast, torch.compile, fused AdamW, buckets of
25 MB, gradients summed after the last part of a batch alone. Each rank is a process, which this starts.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness import options


def network(width: int, layers: int, vocabulary: int, length: int) -> Any:
    import torch
    from torch import nn
    from torch.nn import functional as f

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            rows, length, _ = x.shape
            q, k, v = (
                t.view(rows, length, -1, 64).transpose(1, 2) for t in self.qkv(self.norm(x)).split(width, -1)
            )
            mixed = f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
            x = x + self.out(mixed)
            return x + self.down(f.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width)
            for p in self.parameters():
                nn.init.normal_(p, std=0.02)

        def forward(self, rows: Any) -> Any:
            ids = rows[:, :-1]
            x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
            for block in self.blocks:
                x = block(x)
            scores = f.linear(self.norm(x), self.words.weight)
            return f.cross_entropy(scores.view(-1, vocabulary), rows[:, 1:].reshape(-1))

    return Network()


def work(rank: int, size: int, args: Any) -> None:
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    torch.cuda.set_device(rank)
    if size > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(args.port)}
        distributed.init_process_group("nccl", rank=rank, world_size=size, device_id=torch.device("cuda", rank))
    torch.manual_seed(0)
    model: Any = network(args.width, args.layers, args.vocabulary, args.length).cuda()
    if size > 1:
        model = DistributedDataParallel(model, device_ids=[rank], bucket_cap_mb=25, gradient_as_bucket_view=True)
    compiled: Any = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4, fused=True)
    rows = torch.randint(args.vocabulary, (2, args.batch, args.length + 1), device="cuda")

    def step(i: int, parts: int) -> Any:
        optimizer.zero_grad(set_to_none=True)
        for part in range(parts):
            with model.no_sync() if size > 1 and part + 1 < parts else nullcontext():
                with torch.autocast("cuda", torch.bfloat16):
                    value = compiled(rows[(i + part) % 2])
                (value / parts).backward()
        optimizer.step()
        return value

    for parts in args.accumulate:
        rates = []
        for turn in range(args.rounds + 1):
            torch.cuda.synchronize()
            if size > 1:
                distributed.barrier()
            steps = max(2, args.steps // parts)
            begin = time.perf_counter()
            for i in range(steps):
                value = step(i, parts)
            value.item()
            rate = steps * parts * size * args.batch * args.length / (time.perf_counter() - begin)
            rates += [rate] * (turn > 0)  # the first warms up, and compiles
        if rank == 0:
            print(f"torch {torch.__version__} accumulate {parts}: {size} GPU(s) {max(rates):,.0f} tokens/s", flush=True)
    if size > 1:
        distributed.destroy_process_group()


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--accumulate", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--port", type=int, default=29517)
    args = parser.parse_args()
    from torch import multiprocessing

    for size in args.ranks:
        multiprocessing.spawn(work, (size, args), nprocs=size)


if __name__ == "__main__":
    main()
