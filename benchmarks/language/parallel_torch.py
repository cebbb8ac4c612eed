"""torch's tensor parallelism (torch.distributed.tensor.parallel) on a random Llama, as `decoding.py --tensor-parallel`:

    NCCL_NVLS_ENABLE=0 python benchmarks/language/parallel_torch.py [--ranks 2] [--shape 8b] [--dtype bfloat16]

One token a step behind a prompt of `--prompt` tokens in a static cache, and that prompt at once, each as a CUDA graph
of blocks that torch.compile has made (on the CPU as they are compiled). Queries, keys and values are one product, and
so are gate and up: each rank's rows of them lie together. `--attention` says how a token reads the cache: by torch's
scaled_dot_product_attention with a mask, or by two products. Each rank is a process, which this starts.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness import options
from benchmarks.language.decoding import SHAPES


def network(shape: dict[str, Any], ranks: int, room: int) -> Any:
    """The model whole, on no device yet; its caches have this rank's heads alone."""
    import torch
    from torch import nn
    from torch.nn import functional as f

    size, wide, head = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    heads, keys = shape["num_attention_heads"], shape["num_key_value_heads"]
    own, own_keys = heads // ranks, keys // ranks

    def turned(x: Any, cosine: Any, sine: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * cosine + torch.cat([-second, first], -1) * sine

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.norm2 = nn.RMSNorm(size, 1e-5), nn.RMSNorm(size, 1e-5)
            self.qkv = nn.Linear(size, (heads + 2 * keys) * head, bias=False)
            self.out = nn.Linear(heads * head, size, bias=False)
            self.gated, self.down = nn.Linear(size, 2 * wide, bias=False), nn.Linear(wide, size, bias=False)
            for name in "kv":
                self.register_buffer(name, torch.empty(1, own_keys, room, head))

        def forward(self, x: Any, turn: tuple[Any, Any], at: Any, mask: Any, products: bool) -> Any:
            count = x.shape[1]
            parts = self.qkv(self.norm(x)).split([own * head, own_keys * head, own_keys * head], -1)
            q, k, v = (t.view(1, count, -1, head).transpose(1, 2) for t in parts)
            q, k = turned(q, *turn), turned(k, *turn)
            self.k.index_copy_(2, at, k)
            self.v.index_copy_(2, at, v)
            if mask is None:  # a prompt from the first row on
                y = f.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            elif products:  # the queries of a key head are rows of one product
                grouped = q.reshape(1, own_keys, -1, head)
                scores = (grouped @ self.k.mT).float() * head**-0.5
                y = (scores.masked_fill(~mask, -torch.inf).softmax(-1).to(x.dtype) @ self.v).reshape(q.shape)
            else:
                y = f.scaled_dot_product_attention(q, self.k, self.v, attn_mask=mask, enable_gqa=True)
            x = x + self.out(y.transpose(1, 2).reshape(1, count, own * head))
            gate, up = self.gated(self.norm2(x)).chunk(2, -1)
            return x + self.down(f.silu(gate) * up)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            vocabulary = shape["vocab_size"]
            self.words, self.norm = nn.Embedding(vocabulary, size), nn.RMSNorm(size, 1e-5)
            self.blocks = nn.ModuleList(Block() for _ in range(shape["num_hidden_layers"]))
            self.head = nn.Linear(size, vocabulary, bias=False)

        def forward(self, token: Any, turns: tuple[Any, Any], at: Any, mask: Any, products: bool) -> Any:
            """The likeliest next token behind tokens at the places `at`."""
            turn = turns[0][at], turns[1][at]
            x = self.words(token)
            for block in self.blocks:
                x = block(x, turn, at, mask, products)
            return self.head(self.norm(x[:, -1:])).argmax(-1)

    return Network()


def work(rank: int, args: Any) -> None:
    import torch
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    device = torch.device("cpu") if args.device == "cpu" else torch.device("cuda", rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(args.port)}
    backend = "gloo" if args.device == "cpu" else "nccl"
    distributed.init_process_group(
        backend, rank=rank, world_size=args.ranks, device_id=None if args.device == "cpu" else device
    )
    mesh = init_device_mesh(args.device, (args.ranks,))
    shape, room = SHAPES[args.shape], args.prompt + args.tokens
    with torch.device("meta"):
        net = network(shape, args.ranks, room).to(getattr(torch, args.dtype))
    cut = {"qkv": ColwiseParallel(), "out": RowwiseParallel(), "gated": ColwiseParallel(), "down": RowwiseParallel()}
    for block in net.blocks:
        parallelize_module(block, mesh, cut)
    parallelize_module(net, mesh, {"head": ColwiseParallel(output_layouts=Replicate())})
    net.to_empty(device=device)
    for tensor in (*net.parameters(), *net.buffers()):
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        local.fill_(1.0) if local.ndim == 1 else local.normal_(0, 0.02) if local.ndim == 2 else local.zero_()
    rates = shape["rope_theta"] ** (-torch.arange(0, shape["head_dim"], 2, device=device).float() / shape["head_dim"])
    angles = torch.outer(torch.arange(room, device=device).float(), rates).repeat(1, 2)
    turns = angles.cos().to(getattr(torch, args.dtype)), angles.sin().to(getattr(torch, args.dtype))
    for block in net.blocks:
        block.compile(dynamic=False)

    def captured(call: Callable[[], Any]) -> Callable[[], Any]:
        """A call as a CUDA graph, after it was compiled and had its warm-up."""
        for _ in range(3):
            call()
        if device.type == "cpu":
            return call
        torch.cuda.synchronize()
        distributed.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            call()
        return graph.replay

    def seconds(call: Callable[[], Any], times: int) -> float:
        distributed.barrier()
        if device.type == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(times):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / times

    def said(text: str) -> None:
        if rank == 0:
            print(f"torch {torch.__version__}, {args.ranks} ranks, {args.shape} {args.dtype}: {text}", flush=True)

    prompt = torch.randint(shape["vocab_size"], (1, args.prompt), device=device)
    places = torch.arange(args.prompt, device=device)
    begin = time.perf_counter()
    run = captured(lambda: net(prompt, turns, places, None, False))
    built = time.perf_counter() - begin
    best = min(seconds(run, 1) for _ in range(args.rounds + 1))
    said(f"prompt of {args.prompt}: {best * 1e3:.1f} ms; build {built:.0f} s")
    rows = torch.arange(room, device=device)
    for name in args.attention:
        token, at = prompt[:, :1].clone(), torch.full((1,), args.prompt, device=device)

        def step(name: str = name, token: Any = token, at: Any = at) -> None:
            token.copy_(net(token, turns, at, (rows <= at)[None, None, None], name == "products"))
            at.add_(1).clamp_(max=room - 1)

        begin = time.perf_counter()
        run = captured(step)
        built, times = time.perf_counter() - begin, []
        for _ in range(args.rounds):
            at.fill_(args.prompt)
            times.append(seconds(run, args.tokens))
        said(f"{1 / min(times):.1f} tok/s with {name}; build {built:.0f} s")
    del run, step  # graphs, for whose end the communicator's would wait
    distributed.destroy_process_group()


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--shape", choices=[name for name in SHAPES if name != "experts"], default="8b")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--attention", nargs="+", choices=("sdpa", "products"), default=["sdpa", "products"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=29518)
    args = parser.parse_args()
    from torch import multiprocessing

    multiprocessing.spawn(work, (args,), nprocs=args.ranks)


if __name__ == "__main__":
    main()
