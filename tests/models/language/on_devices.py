"""Every family of language models and of text encoders on devices, beside the logits and states that are stored here.

`python -m tests.models.language.on_devices DEVICE … [--jobs N] [--only WORD]` makes each stored case's folder, whose
weights a formula gives, and computes its logits or states on each device. transformers, which computed the stored ones
in float64, is not needed. Of a case of each block it also compares a run a token, a prompt in parts, sequences of a
batch and pages with one run over the text. It prints a line for each family: the largest NMSE on each device, and what
differs; then a line for each device. Exit status 1: an error
above 1e-11, or four times torch's own in f32 where that is more, or another likeliest token.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlx.formats.huggingface import ModelFolder
from rlx.models import load
from rlx.models.sentence import read_folder
from tests.models.encoders import families as encoders
from tests.models.encoders.test_families import folder_of as encoder_folder
from tests.models.language.families import IDS_ASKED, LIMIT, error, judged
from tests.models.language.test_families import BLOCKS, CASES, folder_of


class Found(NamedTuple):
    """The largest error of a case on a device, and what else differs."""

    device: str
    case: str
    encodes: bool
    error: float
    differs: str


def decoder(case: str, device: str, folder: Path) -> tuple[float, list[str]]:
    ids, differs = np.asarray(IDS_ASKED, np.int32), []
    with load(folder_of(case, folder), device, context=64) as model:
        got = model.logits(ids)
    far = error(got[-1, :16], np.asarray(CASES[case]["logits"]))
    if got.argmax(1).tolist() != CASES[case]["likeliest"]:
        differs.append("likeliest")
    if case in BLOCKS:
        found = judged(folder, got, ids, device)
        far = max(far, *(found[k] for k in ("error", "steps", "parts")))
        differs += [k for k in ("argmax", "batch", "pages") if found.get(k)]
    return far, differs


def encoder(case: str, device: str, folder: Path) -> tuple[float, list[str]]:
    files = read_folder(ModelFolder(encoder_folder(case, folder)), text=False)
    want = np.array(ENCODERS[case]["states"])
    rows = (encoders.kept(encoders.states(files, encoders.TEXTS, device, share=share)) for share in (False, True))
    return max(error(np.array(got), want) for got in rows), []


def limit_of(found: Found) -> float:
    """1e-11, or four times torch's own error in f32, as for what recurrences amplify."""
    return LIMIT if found.encodes else max(LIMIT, 4 * CASES[found.case].get("torch", 0.0))


ENCODERS = json.loads(encoders.FROZEN.read_text())["cases"]


def one(asked: tuple[str, str, bool]) -> Found:
    device, case, encodes = asked
    with tempfile.TemporaryDirectory() as work, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            far, differs = (encoder if encodes else decoder)(case, device, Path(work))
        except Exception as caught:  # noqa: BLE001 - the other cases go on
            return Found(device, case, encodes, float("inf"), f"{type(caught).__name__}: {caught}"[:300])
    return Found(device, case, encodes, far, ", ".join(differs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("devices", nargs="+")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="cases with this word in their names")
    asked = parser.parse_args()
    cases = [(case, False) for case in CASES] + [(case, True) for case in ENCODERS]
    work = [(device, case, e) for device in asked.devices for case, e in cases if asked.only in case]
    work.sort(key=lambda w: w[1] not in BLOCKS)  # the longest first
    table: dict[tuple[bool, str], dict[str, list[Found]]] = {}
    with multiprocessing.get_context("spawn").Pool(asked.jobs) as pool:
        for found in pool.imap_unordered(one, work):
            kind = found.encodes, found.case.rpartition("-")[0]
            table.setdefault(kind, {}).setdefault(found.device, []).append(found)
    wrong = 0
    for (is_encoder, kind), on in sorted(table.items()):
        told = " ".join(f"{d} {max(f.error for f in on[d]):.0e}" for d in asked.devices)
        bad = [f for d in asked.devices for f in on[d] if f.differs or not f.error <= limit_of(f)]
        wrong += len(bad)
        print("encoder" if is_encoder else "decoder", kind, told, *(f"; {f.device} {f.case} {f.differs}" for f in bad))
    for device in asked.devices:
        every = [f for on in table.values() for f in on[device]]
        largest = max(every, key=lambda f: f.error)
        worst = f"largest NMSE {largest.error:.1e} ({largest.case})"
        print(f"{device}: {len(every)} cases of {len(table)} families, {worst}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
