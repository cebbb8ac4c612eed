"""A step of LoRA by rlx beside PEFT and torch, in turns, in one run.

    python benchmarks/networks/lora.py [--shape 1b] [--device cuda vulkan] [--dtype f32] [--rounds 3] [--steps 10]
    python benchmarks/networks/lora.py --shape 135m --device cpu --threads 1 --steps 1
    python benchmarks/networks/lora.py --device cuda --alone

The model is a Llama of the shape of Llama 3.2 1B (4 x 1024 tokens) or of SmolLM 135M (4 x 256) with random weights; all
linear layers have an adapter of rank 16, trained by AdamW in f32. rlx runs it by `rlx.training`, torch by PEFT and
fused AdamW from the same adapter: on a GPU by torch.compile (reduce-overhead) with TF32 off, on the CPU eager and
compiled. Each reads the loss once in a turn of `--steps` steps. The table has the milliseconds of a step, the launches
in a step of rlx on a GPU, and the losses at the end of the first turn and of the last.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import Table, options, version
from benchmarks.networks.training_gpu import turn_of_torch
from rlx import optim
from rlx.finetune.adapter_files import write_peft
from rlx.formats import safetensors
from rlx.models import Lora

Config = dict[str, Any]
RATE, LORA = 1e-4, Lora(rank=16, alpha=16.0)
COMMON = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "rms_norm_eps": 1e-5,
          "head_dim": 64, "max_position_embeddings": 2048, "rope_theta": 5e5, "tie_word_embeddings": True,
          "attention_bias": False, "mlp_bias": False}  # fmt: skip
SHAPES: dict[str, tuple[Config, tuple[int, int]]] = {
    "1b": ({"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
            "intermediate_size": 8192, "vocab_size": 128256}, (4, 1024)),
    "135m": ({"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
              "intermediate_size": 1536, "vocab_size": 49152}, (4, 256)),
    "tiny": ({"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
              "intermediate_size": 256, "vocab_size": 512}, (2, 64)),
}  # fmt: skip


def shapes_of(c: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, inner, heads = c["hidden_size"], c["intermediate_size"], c["head_dim"] * c["num_attention_heads"]
    pairs = c["head_dim"] * c["num_key_value_heads"]
    yield "model.embed_tokens.weight", (c["vocab_size"], width)
    for i in range(c["num_hidden_layers"]):
        for name, shape in (
            ("self_attn.q_proj", (heads, width)), ("self_attn.k_proj", (pairs, width)),
            ("self_attn.v_proj", (pairs, width)), ("self_attn.o_proj", (width, heads)),
            ("mlp.gate_proj", (inner, width)), ("mlp.up_proj", (inner, width)), ("mlp.down_proj", (width, inner)),
            ("input_layernorm", (width,)), ("post_attention_layernorm", (width,)),
        ):  # fmt: skip
            yield f"model.layers.{i}.{name}.weight", shape
    yield "model.norm.weight", (width,)


def write_model(folder: Path, config: Config) -> None:
    """The model's folder, in bf16. Its matrices are parts of one block of random numbers, which takes seconds where
    a billion numbers would take minutes."""
    block = (0.02 * np.random.default_rng(0).standard_normal(1 << 22)).astype(rlx.dtypes.bf16.np)
    tensors = {
        name: np.ones(shape, block.dtype) if len(shape) == 1 else np.resize(block[number * 977 :], shape)
        for number, (name, shape) in enumerate(shapes_of(config))
    }
    safetensors.save(folder / "model.safetensors", tensors, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


class Setting(NamedTuple):
    """What both libraries are given."""

    folder: Path
    dtype: str
    ids: Any
    threads: int | None
    steps: int


def of_rlx(setting: Setting, device: str) -> tuple[Callable[[], float], int | None, Any]:
    """The steps of a turn, the launches of a step, and the adapter at the start."""
    function, weights = rlx.models.trainable(setting.folder, setting.dtype, activations=setting.dtype)
    adapted, adapter = function.adapted(LORA, weights)

    def loss(adapter: Any, weights: Any, ids: Any) -> Any:
        return rlx.mean(rlx.cross_entropy(adapted(adapter, weights, ids[:, :-1]), ids[:, 1:]))

    precision = "bf16" if setting.dtype == "bf16" else "f32"
    session = rlx.Session(device, threads=setting.threads, precision=precision)
    run = rlx.training(loss, adapter, optim.adamw(RATE, weight_decay=0.0), frozen=weights, device=session,
                       progress=False)  # fmt: skip
    del weights
    run.prepare(setting.ids)
    compiled = next(iter(run._programs.values())).compiled
    launches = len(compiled.executable.steps) if session.info.kind != "cpu" else None

    def steps() -> float:
        for _ in range(setting.steps):
            metrics = run.step(setting.ids)
        return metrics["loss"]

    return steps, launches, adapter


def of_torch(setting: Setting, adapter: Any, device: str, compiled: bool) -> Callable[[], float]:
    import peft
    import torch
    import transformers

    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = False
    if setting.threads is not None:
        torch.set_num_threads(setting.threads)
    start = setting.folder / "adapter"
    write_peft(start, adapter, LORA, base=None, model_type="llama", task="CAUSAL_LM")
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[setting.dtype]
    plain = transformers.AutoModelForCausalLM.from_pretrained(setting.folder, dtype=dtype).to(device)
    model = peft.PeftModel.from_pretrained(plain, start, is_trainable=True).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0, fused=True)
    ids = torch.from_numpy(setting.ids.astype(np.int64)).to(device)
    before, after = ids[:, :-1].contiguous(), ids[:, 1:].reshape(-1).contiguous()

    def loss(before: Any, after: Any) -> Any:
        logits = model(input_ids=before, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), after)

    mode = {"mode": "reduce-overhead"} if device == "cuda" else {}
    call = torch.compile(loss, **mode) if compiled else loss
    return turn_of_torch(optimizer, lambda i: call(before, after), setting.steps)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--device", nargs="+", default=["cuda", "vulkan"])
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="of a turn")
    parser.add_argument("--threads", type=int, help="of the CPU")
    parser.add_argument("--alone", action="store_true", help="without torch")
    args = parser.parse_args()
    sizes, (batch, length) = SHAPES[args.shape]
    config = {**COMMON, **sizes, "torch_dtype": "bfloat16"}
    ids = np.random.default_rng(1).integers(0, config["vocab_size"], (batch, length + 1)).astype(np.int32)
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(Path(folder), args.dtype, ids, args.threads, args.steps)
        write_model(setting.folder, config)
        calls: dict[str, Callable[[], float]] = {}
        launches: dict[str, int | None] = {}
        for device in args.device:
            calls[f"rlx {device}"], launches[f"rlx {device}"], adapter = of_rlx(setting, device)
        if version("peft") and not args.alone:
            cpu = args.device == ["cpu"]
            for name in ("torch", "torch.compile") if cpu else ("torch.compile",):
                calls[name] = of_torch(setting, adapter, "cpu" if cpu else "cuda", name == "torch.compile")
        times: dict[str, list[float]] = {name: [] for name in calls}
        losses: dict[str, list[float]] = {name: [] for name in calls}
        for turn, (name, call) in itertools.product(range(args.rounds + 1), calls.items()):
            begin = time.perf_counter()
            losses[name].append(call())
            if turn:  # the first round compiles and warms up
                times[name].append((time.perf_counter() - begin) / args.steps * 1e3)
    print(f"LoRA, {args.shape}, {batch} x {length} tokens, {args.dtype}; torch {version('torch')}, "
          f"PEFT {version('peft')}")  # fmt: skip
    table = Table({"": "14", "ms a step": "9.2f", "least": "8.2f", "launches": "8d", "first loss": "10.6f",
                   "last": "10.6f"})  # fmt: skip
    table.head()
    for name, kept in times.items():
        table.row(name, statistics.median(kept), min(kept), launches.get(name), losses[name][0], losses[name][-1])


if __name__ == "__main__":
    main()
