"""MiniLM's encoder exported from torch to ONNX and run on every device: equal to `rlx embed` within 1e-6.

Both exporters of torch write the encoder for any batch and any length; `rlx.onnx` runs the file, and the last hidden
states are averaged over the tokens and normalized. Needs torch, transformers and onnxscript beside rlx[onnx,hf]. The
exit status is 1 when a device differs. Without --model the model's files are fetched as demo.py does.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import rlx
from examples.demo import LIMIT, SENTENCES, fetch_model
from rlx.cli.table import format_table

NAMES = ("input_ids", "attention_mask", "token_type_ids")
EXPORTERS = ("dynamo", "classic")
TITLES = (
    "exporter", "device", "nodes in the file", "load s", "compile and run s", "sizes", "nodes that run",
    "on the host", "max difference",
)  # fmt: skip


def encoder_of_torch(folder: Path) -> Any:
    """The encoder as a torch module, from token ids, mask and token types to the last hidden states."""
    import torch
    from transformers import AutoModel
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(folder).eval()

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            given = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
            return self.model(input_ids=input_ids, **given, return_dict=False)[0]

    return Encoder().eval()


def export(module: Any, exporter: str, file: Path) -> None:
    """Writes the module as an ONNX file, with batch and sequence of any length."""
    import torch

    examples = tuple(torch.ones(2, 9, dtype=torch.int64) for _ in NAMES)
    names = {"input_names": list(NAMES), "output_names": ["hidden"]}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
            made = torch.onnx.export(
                module, examples, dynamo=True, dynamic_shapes=[axes] * 3, verbose=False, **names
            )
            made.save(str(file))
        else:
            axes = {0: "batch", 1: "sequence"}
            named = dict.fromkeys((*NAMES, "hidden"), axes)
            torch.onnx.export(
                module, examples, str(file), dynamo=False, opset_version=17, dynamic_axes=named, **names
            )


def pooled(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The mean over the unmasked tokens, normalized to length one."""
    weights = mask[..., None].astype(np.float32)
    mean = (hidden * weights).sum(1) / np.maximum(weights.sum(1), 1)
    return mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), np.float32(1e-12))


def embed(model: rlx.onnx.Model, device: str, batches: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    """The embeddings of padded batches through the ONNX model, in the order of the sentences."""
    out = np.zeros(shape, np.float32)
    for rows, feeds, _ in batches:
        mask = feeds["mask"].astype(np.int64)
        given = dict(zip(NAMES, (feeds["ids"].astype(np.int64), mask, np.zeros_like(mask)), strict=True))
        hidden = model.run({i.name: given[i.name] for i in model.inputs}, device)["hidden"]
        out[rows] = pooled(hidden, mask)[: len(rows)]
    return out


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="folder with the model's files, instead of fetching them")
    parser.add_argument("--device", action="append", help="device to run on; may be repeated (default: all)")
    parser.add_argument(
        "--exporter", action="append", choices=EXPORTERS, help="may be repeated (default: both)"
    )
    args = parser.parse_args()
    absent = [n for n in ("torch", "transformers", "onnxscript") if importlib.util.find_spec(n) is None]
    if absent:
        sys.exit(f"onnx_minilm: {', '.join(absent)} not installed; pip install {' '.join(absent)}")
    folder = args.model or fetch_model()
    sentences = SENTENCES.read_text(encoding="utf-8").splitlines()
    with rlx.models.load(folder, device="cpu") as encoder:
        want = encoder.encode(sentences)
        batches = list(encoder.batches(sentences))
    module = encoder_of_torch(folder)
    rows, worst = [], 0.0
    for exporter in args.exporter or EXPORTERS:
        with tempfile.TemporaryDirectory() as work:
            file = Path(work) / "encoder.onnx"
            print(f"exporting by torch's {exporter} exporter", file=sys.stderr)
            export(module, exporter, file)
            start = time.perf_counter()
            model = rlx.onnx.load(file)
            loading = time.perf_counter() - start
        with model:
            for device in args.device or [info.id for info in rlx.devices()]:
                start = time.perf_counter()
                found = embed(model, device, batches, want.shape)
                seconds = time.perf_counter() - start
                difference = float(np.max(np.abs(found - want)))
                worst = max(worst, difference) if difference == difference else np.inf
                report = model.programs[-1].report()
                rows.append((
                    exporter, device, str(sum(model.operators.values())), f"{loading:.2f}", f"{seconds:.2f}",
                    str(len({size for _, _, size in batches})), str(len(report.nodes)), str(len(report.host_nodes)),
                    f"{difference:.1e}" + ("" if difference <= LIMIT else " FAIL"),
                ))  # fmt: skip
    print(*format_table(TITLES, rows, right=TITLES[2:]), sep="\n")
    agree = worst <= LIMIT
    print(
        f"{len(sentences)} sentences: {'ok' if agree else 'FAIL'}, at most {worst:.1e} from the embeddings of rlx "
        f"embed, limit {LIMIT:.0e}"
    )
    return 0 if agree else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except rlx.RlxError as problem:
        sys.exit(f"onnx_minilm: {problem}")
