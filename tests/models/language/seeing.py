"""Models that see beside reading, whose text model rlx runs: tiny random folders beside transformers, for texts alone.

`python -m tests.models.language.seeing [TYPE …]` makes folders of each `model_type`, with vision towers, compares
logits, prompts in parts, steps and batches with transformers in float64, stores logits of folders whose weights a
formula gives (`seeing_logits.json`), compares those on each of `--devices=cpu,vulkan`, and writes its part of
docs/models.md. Exit status 1: a model that differs.
"""

from __future__ import annotations

import datetime
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from rlx.models import load
from rlx.models.language.architectures.seeing import _TEXTS, ASIDE
from tests.models.language.families import (
    BASE,
    FAMILIES,
    IDS_ASKED,
    LIMIT,
    MOE,
    PAGE,
    ROPE,
    ROUTED,
    SEEING,
    error,
    formula_model,
    judge,
    judged,
    packed_names,
    page,
    random_model,
    right,
)
from tests.outside import outside

FOUND = Path(__file__).with_name("seeing.json")  # what the command found
FROZEN = Path(__file__).with_name("seeing_logits.json")  # tensors of the text models, and logits of transformers
EYES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "image_size": 28, "patch_size": 14}  # fmt: skip
CLIP, SIGLIP = ({"model_type": f"{kind}_vision_model", **EYES} for kind in ("clip", "siglip"))
PIXTRAL = {"model_type": "pixtral", **EYES}
QWEN = {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2}
QWEN_25 = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32,
           "fullatt_block_indexes": [0]}  # fmt: skip
QWEN_3 = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32,
          "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}  # fmt: skip
GLM = {"depth": 1, "hidden_size": 16, "num_heads": 2, "image_size": 28, "out_hidden_size": 32, "intermediate_size": 16}


def rope(*sections: int, **more: Any) -> dict[str, Any]:
    """A rope whose parts turn by the places of an image's patches."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "mrope_section": list(sections), **more}}


def text(kind: str, **more: Any) -> dict[str, Any]:
    return {"model_type": kind, **BASE, **ROPE, **more}


FOLDERS: dict[str, tuple[dict[str, Any], ...]] = {
    "aria": ({"text_config": text("aria_text", moe_num_experts=6, moe_topk=3, moe_num_shared_experts=1, head_dim=12),
              "vision_config": {**SIGLIP, "model_type": "idefics3_vision"}, "vision_feature_layer": -1,
              "projector_patch_to_query_dict": {"4": 4}},),
    "llama4": ({"text_config": text(
        "llama4_text", head_dim=12, num_hidden_layers=4, num_local_experts=6, num_experts_per_tok=2,
        interleave_moe_layer_step=2, intermediate_size_mlp=40, floor_scale=8, attn_scale=0.4), "vision_config": {
            **EYES, "intermediate_size": 64, "vision_output_dim": 16, "projector_input_dim": 16,
            "projector_output_dim": 16}},),
    "gemma3": ({"text_config": {k: v for k, v in text(
        "gemma3_text", head_dim=12, sliding_window=7, query_pre_attn_scalar=9, num_hidden_layers=6).items()
        if k != "rope_parameters"}, "vision_config": SIGLIP, "mm_tokens_per_image": 4},),
    "gemma4": ({"text_config": {"model_type": "gemma4_text", **FAMILIES["gemma4_text"][0]},
                "vision_config": {"model_type": "gemma4_vision", **EYES, "num_key_value_heads": 2, "head_dim": 8,
                                  "position_embedding_size": 16}},
               {"text_config": {"model_type": "gemma4_text", **FAMILIES["gemma4_text"][1]}}),
    "llava": ({"text_config": text("llama", attention_bias=True), "vision_config": CLIP},
              {"text_config": text("mistral", sliding_window=7, head_dim=12), "vision_config": CLIP},
              {"text_config": text("qwen2", tie_word_embeddings=True), "vision_config": SIGLIP}),
    "llava_next": ({"text_config": text("mistral", sliding_window=None), "vision_config": CLIP},),
    "llava_onevision": ({"text_config": text("qwen2"), "vision_config": SIGLIP},),
    "vipllava": ({"text_config": text("llama", mlp_bias=True), "vision_config": CLIP,
                  "vision_feature_layers": [-1]},),
    "mistral3": ({"text_config": text("mistral", sliding_window=None, head_dim=12), "vision_config": PIXTRAL,
                  "tie_word_embeddings": False},
                 {"text_config": {**text("ministral3", head_dim=12), "rope_parameters": {
                     "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16,
                     "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0,
                     "llama_4_scaling_beta": 0.3}}, "vision_config": PIXTRAL, "tie_word_embeddings": True}),
    "internvl": ({"text_config": text("qwen2"), "vision_config": {**EYES, "image_size": [28, 28],
                                                                "patch_size": [14, 14]}, "tie_word_embeddings": False},
                 {"text_config": text("qwen3_moe", **MOE, head_dim=12), "vision_config": {
                     **EYES, "image_size": [28, 28], "patch_size": [14, 14]}, "tie_word_embeddings": True}),
    "idefics3": ({"text_config": text("llama", head_dim=12), "vision_config": EYES},),
    "smolvlm": ({"text_config": text("llama", attention_bias=True), "vision_config": EYES,
                 "tie_word_embeddings": True},),
    "lfm2_vl": ({"text_config": text(
        "lfm2", layer_types=["conv", "full_attention", "conv"], block_multiple_of=8, conv_bias=True),
        "vision_config": {**EYES, "model_type": "siglip2_vision_model"}},),
    "qwen2_vl": ({"text_config": {**text("qwen2_vl_text"), **rope(1, 1, 2)}, "vision_config": QWEN},
                 {"text_config": {**text("qwen2_vl_text"), **rope(1, 1, 2), "use_sliding_window": True,
                                  "sliding_window": 7, "max_window_layers": 1}, "vision_config": QWEN,
                  "tie_word_embeddings": True}),
    "qwen2_5_vl": ({"text_config": {**text("qwen2_5_vl_text"), **rope(1, 1, 2)}, "vision_config": QWEN_25},),
    "qwen3_vl": ({"text_config": {**text("qwen3_vl_text", head_dim=12, attention_bias=True), **rope(
        2, 2, 2, mrope_interleaved=True)}, "vision_config": QWEN_3},),
    "qwen3_vl_moe": ({"text_config": {**text("qwen3_vl_moe_text", **MOE, head_dim=12, mlp_only_layers=[1]), **rope(
        2, 2, 2, mrope_interleaved=True)}, "vision_config": QWEN_3, "tie_word_embeddings": True},),
    "glm4v": ({"text_config": {**text("glm4v_text"), **rope(1, 1, 0, partial_rotary_factor=0.5)},
               "vision_config": GLM}, {"text_config": {**text("glm4v_text"), **rope(1, 1, 2)}, "vision_config": GLM}),
    "glm4v_moe": ({"text_config": {"model_type": "glm4v_moe_text", **ROUTED, "head_dim": 12, **rope(
        1, 1, 1, partial_rotary_factor=0.5)}, "vision_config": GLM},),
}  # fmt: skip


def without_eyes(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The tensors of the text model."""
    return {name: shape for name, shape in shapes.items() if not ASIDE.search(name)}


def some_of(logits: Any) -> Any:
    """Those that are stored, of tokens all over a text."""
    return logits[::4, :8].reshape(-1)


def within(case: dict[str, Any]) -> float:
    """The most that the error of a stored case may be."""
    return max(LIMIT, 4 * case.get("torch", 0.0))


def tried(kind: str, settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was found of a folder with random weights, and what is stored of one whose weights a formula gives."""
    torch = outside("torch")
    ids = torch.randint(3, 96, (45,))
    with tempfile.TemporaryDirectory() as base, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(base)
        random_model(folder, kind, settings)
        found = judged(folder, judge(folder, kind)(input_ids=ids[None]).logits[0].numpy(), ids.numpy())
    with tempfile.TemporaryDirectory() as base, torch.no_grad():
        shapes = formula_model(Path(base), kind, settings)
        asked = torch.tensor(IDS_ASKED)[None]
        logits = judge(Path(base), kind)(input_ids=asked).logits[0].numpy()
        single = error(judge(Path(base), kind).float()(input_ids=asked).logits[0].numpy(), logits)
    return found, {
        **({"torch": float(f"{single:.2g}")} if 4 * single > LIMIT else {}),
        "config": settings, "tensors": packed_names(without_eyes(shapes)),
        "logits": [float(f"{v:.10g}") for v in some_of(logits)], "likeliest": logits.argmax(1).tolist(),
    }  # fmt: skip


def on(device: str, case: str, folder: Path) -> tuple[float, bool]:
    """The error of a stored case on a device, and whether the likeliest tokens are the same."""
    from tests.models.language.test_seeing import CASES, folder_of

    with load(folder_of(case, folder), device, context=64) as model:
        got = model.logits(np.asarray(IDS_ASKED, np.int32))
    same = got.argmax(1).tolist() == CASES[case]["likeliest"]
    return error(some_of(got), np.asarray(CASES[case]["logits"])), same


def part_of_page() -> str:
    """What docs/models.md says of these models, from what the command found."""
    held = json.loads(FOUND.read_text())
    rows = []
    for kind, cases in sorted(held["families"].items()):
        texts = _TEXTS[kind].replace(" ", "`, `")
        cpu, vulkan = (max(case.get(name, 0.0) for case in cases) for name in ("error", "vulkan"))
        rows.append(f"| `{kind}` | `{texts}` | {len(cases)} | {cpu:.0e} | {vulkan:.0e} |")
    return _PART.format(rows="\n".join(rows), transformers=held["transformers"], date=held["date"])


_PART = """
## Models that see

Of folders of models for images and texts rlx runs the text model, for texts alone; a warning names the parts whose
tensors are left aside. `python -m tests.models.language.seeing` compares tiny folders with vision towers in the same
way (`--devices=vulkan` for the last column, on lavapipe), by transformers {transformers}, on {date}. `qwen3_5` and
`qwen3_5_moe`, above, are such folders too.

| `model_type` | text models | folders | NMSE on the CPU | on Vulkan |
|---|---|---|---|---|
{rows}

A text's positions are one number in all parts of the ropes of Qwen-VL and GLM-V, which then turn as plain ones do.
Where the whole model's class passes over a setting that the text model's follows, rlx refuses the setting: Gemma 3's
`final_logit_softcapping`. So Aya Vision and Command A Vision are not there, whose class leaves out the `logit_scale`
that Cohere's text models always have. Llama 4's class fails for texts without images: its text model is the judge.
Other folders with a `text_config` are refused, with the name of the text model where rlx has it. `rlx convert` does not
write them.
"""


def main() -> int:
    kinds = [a for a in sys.argv[1:] if not a.startswith("--")] or list(FOLDERS)
    held = json.loads(FOUND.read_text()) if FOUND.exists() else {"families": {}}
    made = json.loads(FROZEN.read_text())["cases"] if FROZEN.exists() else {}
    devices = next((a.partition("=")[2].split(",") for a in sys.argv if a.startswith("--devices=")), [])
    wrong = 0
    for kind in kinds if not devices else []:
        held["families"][kind] = []
        for i, settings in enumerate(FOLDERS[kind]):
            try:
                found, made[f"{kind}-{i}"] = tried(kind, settings)
            except Exception as caught:
                if "--raise" in sys.argv:
                    raise
                found = {"failed": f"{type(caught).__name__}: {caught}"[:300]}
            wrong += not right(found)
            told = " ".join(f"{k} {v:.1e}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items())
            print(f"{kind:16} {i} {'ok ' if right(found) else 'BAD'} {told}", flush=True)
            rounded = {k: float(f"{v:.1e}") if isinstance(v, float) else v for k, v in found.items()}
            held["families"][kind].append(rounded)
    for device in devices:
        for case in made:
            kind, _, i = case.rpartition("-")
            if kind in kinds:
                with tempfile.TemporaryDirectory() as base:
                    far, same = on(device, case, Path(base))
                held["families"][kind][int(i)][device] = float(f"{far:.1e}")
                wrong += not (far <= within(made[case]) and same)
                print(f"{device} {case:18} {far:.1e} {'ok' if same else 'other tokens'}", flush=True)
    held |= {"transformers": outside("transformers").__version__, "date": datetime.date.today().isoformat()}
    FOUND.write_text(json.dumps(held, sort_keys=True).replace('], "', '],\n "') + "\n", encoding="utf-8")
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(made.items()))
    FROZEN.write_text(f'{{"transformers": "{held["transformers"]}", "cases": {{\n{rows}\n}}}}\n', encoding="utf-8")
    if set(held["families"]) == set(SEEING):
        PAGE.write_text(page(), encoding="utf-8")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
