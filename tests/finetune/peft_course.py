"""Writes peft_course.json: the losses of 50 steps of fine-tuning by PEFT and torch from rlx's first adapters, with each
example alone; and the logits that PEFT gives for an adapter's folder that rlx wrote, all of whose arithmetic is f64.

`python -m tests.finetune.peft_course` in an environment with peft, torch, transformers and what rlx needs; the file
names their versions. With `--check` nothing is written: rlx trains as well, on the CPU or a `--device`, and the losses
and logits are compared; `--shape 135m` does so with random weights of SmolLM's shape, and torch runs on a GPU where
there is one. The exit status is 1 where losses differ by more than 2e-4 or logits in f64 by more than 1e-6; how far
both are from them in f32 is printed as well.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np

from rlx.finetune import Settings
from rlx.finetune.adapter_files import read_peft, write_peft
from rlx.finetune.data import LeftOut
from rlx.finetune.examples import examples_of
from rlx.finetune.language import batches
from rlx.finetune.model import ToTrain, to_train, tokenizer_of
from rlx.finetune.rows import Rows, rows_of
from rlx.models import Lora
from tests.finetune import tiny

FILE = Path(__file__).with_name("peft_course.json")
STEPS, BATCH, LENGTH, EVERY = 50, 3, 64, 13
CASES: dict[str, dict[str, Any]] = {
    "lora": {"lora": Lora(4, 8.0)},
    "rslora": {"lora": Lora(2, 3.0, rslora=True, targets=("q_proj", "v_proj", "lm_head")), "schedule": "cosine"},
    "dora": {"lora": Lora(4, 8.0, dora=True), "decay": 0.1},
}
RATES = {"tiny": 5e-3, "135m": 2e-4}  # by the tiny one's the large model knows all answers after some steps
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "135m": {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
             "head_dim": 64, "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True},
}  # fmt: skip


def settings_of(case: str, folder: Path, rate: float = 5e-3) -> Settings:
    """The run of a case, whose model and data are in a folder."""
    return Settings(model=folder / "base", data=folder / "data.jsonl", out=folder / "out", steps=STEPS, batch=BATCH,
                    length=LENGTH, rate=rate, warmup=0.1, device="cpu", **CASES[case])  # fmt: skip


def prepared(folder: Path, shape: str = "tiny") -> Rows:
    """Writes the model and the data, and gives the rows."""
    tiny.write_base(folder / "base", **SHAPES[shape])
    data = tiny.write_lines(folder / "data.jsonl", tiny.talks(24))
    examples = examples_of(data, tokenizer_of(folder / "base"), LENGTH, LeftOut(data, False))
    return rows_of(examples, LENGTH, True)


def moved(made: ToTrain) -> dict[str, Any]:
    """An adapter that changes something: that of the start, with B of fixed numbers."""
    result = {}
    for i, (module, values) in enumerate(made.parameters.items()):
        own = {name: np.array(value) for name, value in values.items()}
        own["lora_B"][:] = np.sin(np.arange(own["lora_B"].size) + i).reshape(own["lora_B"].shape) * 0.02
        result[module] = own
    return result


def place() -> str:
    """Where torch runs."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    return "cuda" if torch.cuda.is_available() else "cpu"


def logits(base: Path, adapter: Path, dtype: str = "float64") -> np.ndarray[Any, Any]:
    """What PEFT gives for the tokens of the tests, of some."""
    import peft
    import torch
    import transformers

    own = getattr(torch, dtype)
    plain = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=own)
    model = peft.PeftModel.from_pretrained(plain, adapter).to(own).eval().to(place())
    if own is torch.float64:
        widen(model)
    with torch.no_grad():
        logits = model(torch.tensor(tiny_tokens().tolist(), device=place())[None]).logits[0, ::EVERY]
    return np.asarray(logits.double().cpu().numpy())


def widen(model: Any) -> None:
    """Gives a Llama of f64 norms and rotary angles of f64: those of transformers are f32 in every model, which is up to
    1.2e-6 of the logits."""
    import torch
    from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

    def norm(part: Any, x: Any) -> Any:
        return part.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + part.variance_epsilon)

    def rotations(part: Any, x: Any, position_ids: Any) -> Any:
        steps = torch.arange(0, part.config.head_dim, 2, dtype=torch.float64, device=x.device) / part.config.head_dim
        angles = position_ids[..., None] * part.config.rope_parameters["rope_theta"] ** -steps
        both = torch.cat((angles, angles), -1)
        return both.cos(), both.sin()

    for part in model.modules():
        for kind, forward in ((LlamaRMSNorm, norm), (LlamaRotaryEmbedding, rotations)):
            if isinstance(part, kind):
                part.forward = MethodType(forward, part)


def tiny_tokens() -> np.ndarray[Any, Any]:
    return (np.arange(40) * 7 % 120 + 3).astype(np.int32)


def course(settings: Settings, made: ToTrain, rows: Rows, folder: Path) -> list[float]:
    """The losses of the steps by torch, from the adapter of rlx's start."""
    import torch

    # Gradients of random weights hold many subnormal numbers, with which a backward pass takes ten times as long here.
    torch.set_flush_denormal(True)
    try:
        return _course(settings, made, rows, folder)
    finally:
        torch.set_flush_denormal(False)


def _course(settings: Settings, made: ToTrain, rows: Rows, folder: Path) -> list[float]:
    import peft
    import torch
    import transformers

    assert made.adapted is not None
    write_peft(folder, made.parameters, made.adapted.lora, base=None, model_type="llama", task="CAUSAL_LM")
    plain = transformers.AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(plain, folder, is_trainable=True).train().to(place())
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1.0, weight_decay=settings.decay)
    rates, losses = settings.rates(STEPS), []
    for step, batch in zip(range(STEPS), batches(settings, rows, 0), strict=False):
        optimizer.param_groups[0]["lr"] = float(np.asarray(rates(np.int32(step))))
        optimizer.zero_grad()
        total = torch.zeros((), device=place())
        for ids, targets, segments in zip(batch["ids"], batch["targets"], batch["segments"], strict=True):
            for segment in range(1, int(segments.max()) + 1):
                own = segments == segment
                predicted = model(torch.tensor(ids[own].astype(np.int64), device=place())[None]).logits[0]
                wanted = torch.tensor(targets[own].astype(np.int64), device=place())
                total = total + torch.nn.functional.cross_entropy(predicted, wanted, reduction="sum")
        loss = total / float(batch["count"].sum())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, settings.clip)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--device", nargs="+", default=["cpu"], help="of rlx, beside --check")
    args = parser.parse_args()
    if not args.check and (args.shape != "tiny" or len(args.case) < len(CASES)):
        parser.error("--shape and --case are for --check: the file is of all cases of the tiny model")
    warnings.simplefilter("ignore")
    made: dict[str, Any] = {"versions": {n: version(n) for n in ("peft", "torch", "transformers")}, "cases": {}}
    right = True
    for case in args.case:
        with tempfile.TemporaryDirectory() as room:
            folder = Path(room)
            rows, settings = prepared(folder, args.shape), settings_of(case, folder, RATES[args.shape])
            own = to_train(settings)
            assert own.adapted is not None
            losses = course(settings, own, rows, folder / "start")
            for device in args.device if args.check else ():
                there = replace(settings, device=device, out=folder / device.replace(":", ""))
                right &= check(f"{args.shape} {case} on {device}", there, losses)
            if not args.check:
                write_peft(
                    folder / "moved", moved(own), own.adapted.lora, base=None, model_type="llama", task="CAUSAL_LM"
                )
                moved_logits = logits(folder / "base", folder / "moved")
                made["cases"][case] = {"losses": _short(losses), "logits": [_short(row) for row in moved_logits]}
    if not args.check:
        FILE.write_text(json.dumps(made, indent=None, separators=(",", ":")) + "\n")
    return 0 if right else 1


def _short(numbers: Any) -> list[float]:
    return [float(f"{x:.9g}") for x in numbers]


def check(what: str, settings: Settings, losses: list[float]) -> bool:
    """Prints how far rlx's losses are from torch's, and PEFT's logits of rlx's trained adapter from rlx's; returns
    whether both are near enough."""
    from rlx.finetune import finetune

    finetune(settings, lambda line: None)
    course = [json.loads(line) for line in (settings.out / "training" / "metrics.jsonl").read_text().splitlines()]
    mine = [line["loss"] for line in course if "loss" in line]
    away = max(abs(a - b) / b for a, b in zip(mine, losses, strict=True))
    exact = logits(settings.model, settings.out)

    def off(found: Any) -> float:
        return float(np.abs(found - exact).max() / np.abs(exact).max())

    def of_rlx(dtype: str) -> float:
        made = to_train(replace(settings, dtype=dtype))
        assert made.adapted is not None
        return off(made.adapted(read_peft(settings.out), made.frozen, tiny_tokens()[None])[0, ::EVERY])

    wide, narrow = of_rlx("f64"), (of_rlx("f32"), off(logits(settings.model, settings.out, "float32")))
    print(f"{what}: loss {losses[0]:.4f} to {losses[-1]:.4f}, losses within {away:.1e}, logits within {wide:.1e}, "
          f"in f32 {narrow[0]:.1e}, PEFT's {narrow[1]:.1e}", flush=True)  # fmt: skip
    return away <= 2e-4 and wide <= 1e-6


if __name__ == "__main__":
    sys.exit(main())
