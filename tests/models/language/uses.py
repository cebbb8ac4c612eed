"""What the families of language models can be used for, beside PEFT and transformers: tiny random folders.

`python -m tests.models.language.uses [TYPE …]` makes the folders of tests.models.language.families and tries each:

- `split`: layers in two sessions (as `layers_on=` has them), logits and single tokens beside transformers in float64;
- `adapter`: a LoRA adapter of linear modules as PEFT writes it, logits beside PEFT's in float64;
- `gradients`: those of a loss by all weights of `rlx.models.trainable` in float64, beside torch's, by the files' names;
- `finetune`: two steps of `rlx finetune`; logits with its adapter beside transformers' with merged weights;
- `peft`: the same logits beside PEFT's with that adapter;
- `serve`: the likeliest token after a prompt, by `/v1/completions`, beside transformers;
- `inspect`: `rlx inspect FOLDER` names the family.

It prints for each right, refused (with the message), wrong (with the NMSE) or failed, and writes uses.json, from which
a part of docs/models.md is made. It needs peft beside torch and transformers. Exit status 1: wrong or failed uses.
"""

from __future__ import annotations

import datetime
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

import rlx
from rlx.cli.app import app
from rlx.errors import RlxError
from rlx.finetune import Settings, finetune
from rlx.formats import safetensors
from rlx.formats.huggingface import ModelFolder
from rlx.formats.safetensors import SafetensorsFile
from rlx.models import Lora, load, trainable
from rlx.models.language.model import load_folder
from tests.finetune.tiny import write_lines
from tests.models.language import tiny
from tests.models.language.families import EVERY, LIMIT, PAGE, error, judge, page, random_model
from tests.outside import outside
from tests.serve.served import served

FOUND = Path(__file__).with_name("uses.json")
TOKENS = np.array([i * 7 % 90 + 4 for i in range(1, 34)], np.int32)
LONGER = 9  # the tokens that a model makes one by one


class Case:
    """A folder, and what transformers computes of it in float64."""

    def __init__(self, base: Path, kind: str, settings: dict[str, Any]) -> None:
        torch = outside("torch")
        self.base, self.kind, self.folder = base, kind, base / "model"
        random_model(self.folder, kind, settings)
        (self.folder / "tokenizer.json").write_text(json.dumps(tiny._bytes_tokenizer(settings["vocab_size"])))
        marks = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
        (self.folder / "tokenizer_config.json").write_text(json.dumps(marks))
        self.ids = torch.tensor(TOKENS.astype(np.int64))[None]
        self.want = self.logits(self.judge())
        self.tuned: Any = None  # the logits with the adapter that was trained, and its matrices
        self.arrays: dict[str, Any] = {}
        self.limit = LIMIT  # recurrences amplify rounding
        own = error(self.logits(self.judge().float()), self.want)
        self.limit = max(LIMIT, 4 * own)

    def judge(self) -> Any:
        return judge(self.folder, self.kind)

    def logits(self, model: Any) -> Any:
        with outside("torch").no_grad():
            return model(self.ids).logits[0].double().numpy()


def split(case: Case) -> float:
    first, second = (rlx.Session("cpu", engine="numpy") for _ in range(2))
    with load_folder(ModelFolder(case.folder), first, context=64, split=[(first, 1), (second, None)]) as m:
        got = m.logits(TOKENS)
        m.decoder.reset()
        steps = np.concatenate([m.decoder.logits(TOKENS[i : i + 1]) for i in range(LONGER)])
        count = next(n for n in range(20, len(TOKENS)) if case.want[n - 1].argmax() > 2)  # no mark that ends a text
        token = list(m.tokens(TOKENS[:count], 1))
    assert token == [int(case.want[count - 1].argmax())]
    return max(error(got, case.want), error(steps, case.want[:LONGER]))


def targets(model: Any) -> list[str]:
    """The modules of a model that PEFT adapts as they are: none of Mamba's that it refuses, and no gates of MLPs where
    it takes them for those of experts."""
    from peft.utils import transformers_weight_conversion as peft

    kind = model.config.model_type
    linear = outside("torch").nn.Linear, outside("transformers").pytorch_utils.Conv1D
    head = model.get_output_embeddings()
    leaves = {name.rpartition(".")[2] for name, one in model.named_modules()
              if isinstance(one, linear) and one is not head} - {"gate", "router"}  # fmt: skip
    if kind in ("falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h", "jamba"):
        leaves -= {"out_proj", "dt_proj"}  # the class multiplies by the weight of dt_proj without its module
    moe = peft._MOE_TARGET_MODULE_MAPPING.get(peft._MODEL_TO_CONVERSION_PATTERN.get(kind), {})
    return sorted(leaf for leaf in leaves - set(moe) if not leaf.isdecimal())  # which layers are named by too


def adapter(case: Case) -> float:
    peft, torch = outside("peft"), outside("torch")
    torch.manual_seed(0)
    model = case.judge()
    lora = peft.LoraConfig(r=2, lora_alpha=3, target_modules=targets(model), task_type="CAUSAL_LM")
    lora.init_lora_weights = False
    model = peft.get_peft_model(model, lora).eval()
    want = case.logits(model)
    model.save_pretrained(case.base / "adapter")
    assert error(want, case.want) > 1e-4
    with load(case.folder, "cpu", context=64, engine="numpy") as own:
        own.load_adapter("a", case.base / "adapter")
        got = own.logits(TOKENS, adapter="a")
        list(own.tokens(TOKENS[:9], 3, adapter="a"))
    return error(got, want)


def gradients(case: Case) -> float:
    torch = outside("torch")
    model = case.judge()
    loss = torch.nn.functional.cross_entropy(model(case.ids).logits[0, :-1], case.ids[0, 1:])
    loss.backward()
    with torch.no_grad():
        for values in (*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())):
            values.copy_(torch.zeros_like(values) if values.grad is None else values.grad)
    model.save_pretrained(case.base / "gradients")
    want = {name: np.array(array) for name, array in safetensors.load(case.base / "gradients").items()}
    function, weights = trainable(case.folder, dtype="f64")

    def own(weights: Any) -> Any:
        logits = function(weights, TOKENS[None])
        return rlx.mean(rlx.cross_entropy(logits[:, :-1], TOKENS[None, 1:]))

    value, found = rlx.value_and_grad(own, device="cpu")(weights)
    assert abs(float(value) - float(loss.detach())) < 1e-5, (float(value), float(loss.detach()))
    held = {name.rpartition(".")[2] for name, _ in model.named_buffers()}  # which are no parameters there
    shared = [name for name in found if name in want and name.rpartition(".")[2] not in held]
    assert shared, "no weight has the name that the files have"
    total = sum(float((want[name] ** 2).sum()) for name in shared)
    return float(sum(((found[name] - want[name]) ** 2).sum() for name in shared)) / total


def finetuned(case: Case) -> float:
    data = write_lines(case.base / "data.jsonl", [{"text": "abc" * (i % 4 + 1)} for i in range(8)])
    told: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        finetune(Settings(model=case.folder, data=data, out=case.base / "tuned", lora=Lora(2, 4), steps=2, batch=2,
                          rate=0.05, length=64, device="cpu"), told.append)  # fmt: skip
    file = SafetensorsFile(case.base / "tuned/adapter_model.safetensors")
    case.arrays = {name.removeprefix("base_model.model."): np.array(a, np.float64) for name, a in file.items()}
    want = merged(case, lambda module: True)
    assert error(want, case.want) > 1e-8
    with load(case.folder, "cpu", context=64, engine="numpy") as own:
        own.load_adapter("a", case.base / "tuned")
        case.tuned = own.logits(TOKENS, adapter="a")
    return error(case.tuned, want)


def merged(case: Case, kept: Callable[[str], bool]) -> Any:
    """The logits of transformers with the corrections of such modules in its weights."""
    model = case.judge()
    for name, a in case.arrays.items():
        module, part, _ = name.rpartition(".lora_A.")
        if part and kept(module):
            low = outside("torch").from_numpy(case.arrays[name.replace("lora_A", "lora_B")] @ a * 2)
            one = model.get_submodule(module)
            with outside("torch").no_grad():
                one.weight += low.T if type(one).__name__ == "Conv1D" else low
    return case.logits(model)


def by_peft(case: Case) -> float | str:
    assert case.tuned is not None, "no adapter was trained"
    model = outside("peft").PeftModel.from_pretrained(case.judge(), case.base / "tuned").eval()
    got = case.logits(model)
    there = {n.partition(".lora_A")[0].removeprefix("base_model.model.") for n, _ in model.named_parameters()}
    lost = sum(name.endswith(".lora_A.weight") and name[:-14] not in there for name in case.arrays)
    if lost and error(merged(case, there.__contains__), got) <= case.limit:
        return f"passed over by PEFT: {lost} of {len(case.arrays) // 2} modules"
    return error(case.tuned, got)


def serve(case: Case) -> float:
    vocabulary = json.loads((case.folder / "tokenizer.json").read_text())["model"]["vocab"]
    letters = {i: text for text, i in vocabulary.items() if text.isascii() and len(text) == 1}
    count = next(n for n in range(9, len(TOKENS) + 1) if int(case.want[n - 1].argmax()) in letters)
    with served(case.folder, context=64) as server:
        body = {"model": "tiny", "temperature": 0, "prompt": TOKENS[:count].tolist(), "max_tokens": 1}
        status, answer = server.ask("/v1/completions", body)
    assert status == 200, answer
    text = answer["choices"][0]["text"]
    assert text == letters[int(case.want[count - 1].argmax())], text
    return 0.0


def inspect(case: Case) -> float:
    told = CliRunner().invoke(app, ["inspect", str(case.folder)])
    assert told.exit_code == 0, told.output[-300:]
    assert case.kind in told.output, told.output[:300]
    return 0.0


USES: dict[str, Callable[[Case], float | str]] = {
    "split": split, "adapter": adapter, "gradients": gradients, "finetune": finetuned, "peft": by_peft, "serve": serve,
    "inspect": inspect,
}  # fmt: skip


def tried(case: Case) -> Iterator[tuple[str, str]]:
    for name, use in USES.items():
        if (chosen := [a[2:] for a in sys.argv if a.startswith("--only=")]) and name not in chosen[0][5:].split(","):
            continue
        try:
            found = use(case)
            limit = case.limit * (10 if name == "gradients" else 1)  # norms of the classes are in f32
            yield name, found if isinstance(found, str) else "right" if found <= limit else f"wrong: {found:.1e}"
        except RlxError as caught:
            yield name, f"refused: {caught}".replace(str(case.base), "")[:300]
        except AssertionError as caught:
            yield name, f"wrong: {caught}".replace(str(case.base), "")[:300]
        except (Exception, SystemExit) as caught:
            if "--raise" in sys.argv:
                raise
            yield name, f"failed: {type(caught).__name__}: {caught}".replace(str(case.base), "")[:300]


def main() -> int:
    kinds = [a for a in sys.argv[1:] if not a.startswith("--")]
    held = json.loads(FOUND.read_text()) if FOUND.exists() else {"families": {}}
    wrong = 0
    for kind in kinds or EVERY:
        with tempfile.TemporaryDirectory() as base, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = dict(tried(Case(Path(base), kind, EVERY[kind][-1])))
            except Exception as caught:  # noqa: BLE001 - some classes cannot make their own model
                found = {"made": f"failed: {type(caught).__name__}: {caught}"[:300]}
        odd = {name: told for name, told in found.items() if told != "right"}
        wrong += sum(told.startswith(("wrong", "failed")) for told in odd.values())
        print(f"{kind:18} {len(found) - len(odd)} right", *(f"\n    {n}: {t}" for n, t in odd.items()), flush=True)
        held["families"].setdefault(kind, {}).update(found)
    held |= {name: version(name) for name in ("peft", "transformers")} | {"date": datetime.date.today().isoformat()}
    FOUND.write_text(json.dumps(held, sort_keys=True).replace('}, "', '},\n "') + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    return bool(wrong)


def part_of_page() -> str:
    """What docs/models.md says of the uses, from what the command found."""
    held = json.loads(FOUND.read_text())
    families = held["families"]
    columns: dict[str, list[str]] = {}
    for kind, found in sorted(families.items()):
        for use, told in found.items():
            if told != "right":
                columns.setdefault(f"{use}, {told.partition(':')[0]}", []).append(f"`{kind}`")
    rows = "\n".join(f"| {name} | {', '.join(kinds)} |" for name, kinds in sorted(columns.items()))
    count = sum(len(found) for found in families.values())
    right = sum(told == "right" for found in families.values() for told in found.values())
    return _PART.format(rows=rows, count=count, right=right, families=len(families), **{k: held[k] for k in (
        "peft", "transformers", "date")})  # fmt: skip


_PART = """
## What the families can be used for

`python -m tests.models.language.uses` tries each of the {families} language models in a tiny folder: layers in two
sessions (`layers_on=`); a LoRA adapter of its linear modules that PEFT wrote; gradients by all weights of
`rlx.models.trainable` beside torch's; `rlx finetune`, whose adapter merged in transformers has the same logits; the
same adapter in PEFT; `rlx serve`; `rlx inspect`. Of {count} uses {right} are right, beside transformers
{transformers} and PEFT {peft} in float64, on {date}. The others:

| use | families |
|---|---|
{rows}

Refused are corrections of `kv_b_proj` in latent attention, whose weight rlx takes apart, of OLMo Hybrid's q, k and v,
which have filters behind them, and of the blocks that Zamba2's layers share, of which an adapter names one layer's.
PEFT takes targets that end in `gate_proj`, `up_proj` or `down_proj` for those of experts and passes over corrections of
dense layers and shared experts, without a word ([more](finetuning.md)).
"""


if __name__ == "__main__":
    sys.exit(main())
