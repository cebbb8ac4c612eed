"""`python -m tests.formats.mutants --count 10000`: damaged files of a model folder, by the thousand for each format.

Formats: safetensors, its index of shards, GGUF, `encoder`, which are embedding models in GGUF, config.json, the
sentence-transformers files, tokenizer.json; `bombs` are tokenizer.json files made to kill or hang, `json` configs,
indexes and headers of values that take far more memory than text; `program` are saved programs of many kinds, `ops` one
of each op, most with their checksums made right again.
Each file must load and work, or be refused with ModelFormatError, within 2 s of processor time and 64 MiB more memory,
beside what is granted for each byte of a file (a tokenizer and GGUF: 64, any other: 1, for the file itself). Files are
worked on in processes of their own, some hundreds in each, `--processes` at once; one that ends its process, or keeps
it for too long, is named with its seed, and the rest goes on. With `--seconds` no file is begun after so many: a line
says with which `--first` to go on. Programs are saved and loaded on RLX_DEVICE, by default the CPU. `--seed N
--format F` runs one file here and shows what it raises.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx.backends.cpu import choice, compile
from rlx.backends.cpu.machine import this_machine
from rlx.backends.cpu.runner import RunnerSpec
from rlx.errors import ModelFormatError, RlxError
from rlx.formats import gguf, safetensors
from rlx.formats.gguf.model import GgufModel
from rlx.formats.gguf.tokenizer import read_tokenizer
from rlx.formats.huggingface import ModelFolder
from rlx.formats.tokenizer.chat import ChatTemplate
from rlx.formats.tokenizer.text import PER_BYTE
from rlx.ir import REGISTRY
from rlx.models.bert import BertConfig
from rlx.ops.control.steps import step_budget
from tests.formats.hostile_tokenizers import hostile, json_bomb
from tests.formats.mutations import mutant
from tests.models import gguf_encoders
from tests.models.tiny import write_model
from tests.runtime.saved_programs import PROGRAMS, of_op

SECONDS = 2.0  # of processor time, for one file
MEBIBYTES = 64
PATIENCE = 60.0  # of the clock, on a machine that does other work too
PER_PROCESS = 500
PROGRAM_KINDS = ("program", "ops")
DEVICE = os.environ.get("RLX_DEVICE", "cpu")  # of saved programs
FILES = {
    "safetensors": ("model.safetensors",),
    "index": ("model.safetensors.index.json",),
    "config": ("config.json",),
    "sentence": ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"),
    "tokenizer": ("tokenizer.json",),
    "bombs": ("tokenizer.json",),
    "gguf": ("model.gguf",),
    "encoder": ("mean.gguf", "cls.gguf", "last.gguf", "rank.gguf"),
    "program": tuple(f"{name}.rlx" for name in PROGRAMS),
    "ops": tuple(f"{name}.rlx" for name, op in REGISTRY.items() if op.leaf is None),
    "json": ("config.json", "model.safetensors", "modules.json", "sentence_bert_config.json", "tokenizer.json"),
}
TEXTS = ["the cat", "mountain ☃ runs", "", "a" * 500]
LONG_TEXTS = [*TEXTS, "ﷺ½é☃日本 \n\t'll 12345" * 25, " " * 500 + "x", "aé" * 250, "the cat " * 60]


def lay(folder: Path, kind: str) -> None:
    """A sound model folder; for the index its weights are in two shards. For programs, a folder of saved ones."""
    if kind in PROGRAM_KINDS:
        folder.mkdir()
        for number, name in enumerate(FILES[kind]):
            stem = name.removesuffix(".rlx")
            made = PROGRAMS[stem]() if kind == "program" else of_op(stem, number)
            with made.compiled(rlx.Session(DEVICE)) as program:
                program.save(folder / name)
        return
    if kind == "gguf":
        folder.mkdir()
        write_gguf(folder / FILES[kind][0])
        return
    if kind == "encoder":
        folder.mkdir()
        for name, arch in zip(FILES[kind], ("bert", "nomic-bert", "jina-bert-v2", "bert"), strict=True):
            gguf_encoders.write(folder / name, arch, name.removesuffix(".gguf"), "q8_0" if arch == "bert" else None)
        return
    write_model(folder, max_length=16)
    if kind != "index":
        return
    weights = {n: a.copy() for n, a in safetensors.load(folder).items()}
    names = sorted(weights)
    where = {n: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, n in enumerate(names)}
    for file in set(where.values()):
        safetensors.save(folder / file, {n: weights[n] for n in names if where[n] == file})
    (folder / "model.safetensors").unlink()
    (folder / FILES["index"][0]).write_text(json.dumps({"metadata": {}, "weight_map": where}))


def use(folder: Path, kind: str, seed: int) -> None:
    """What a program does with the file; every tenth that loads is run as a model, a saved program each time."""
    if kind in PROGRAM_KINDS:
        use_program(folder / FILES[kind][seed % len(FILES[kind])])
        return
    if kind == "gguf":
        use_gguf(folder / FILES[kind][0], seed)
        return
    if kind == "encoder":
        use_encoder(folder / FILES[kind][seed % len(FILES[kind])])
        return
    model = ModelFolder(folder)
    if kind in ("safetensors", "index"):
        for array in model.tensors().values():
            array.tobytes()
    elif kind in ("tokenizer", "bombs"):
        model.tokenizer(40).ids(TEXTS if kind == "tokenizer" else LONG_TEXTS)
    else:
        BertConfig.from_dict(model.config, "config.json").weight_shapes()
        model.sentence_modules()
        if kind == "json":
            len(model.tensors())
            model.tokenizer(40)
    if seed % 10 == 0:
        with rlx.models.load(folder, device="cpu") as encoder:
            encoder.encode(TEXTS)


def write_gguf(path: Path) -> None:
    """A tiny model of Llama's kind with a tokenizer and a template."""
    rng = np.random.default_rng(1)
    letters = [chr(0x21 + i) for i in range(94)] + ["Ġ", "Ċ"]
    tokens = ["<s>", "</s>", *letters, "th", "the", "Ġthe", "ca"]
    size = len(tokens)
    shapes = {"token_embd": (size, 32), "output_norm": (32,), "output": (size, 32)}
    shapes |= {f"blk.0.{n}": (32, 32) for n in ("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}
    shapes |= {f"blk.0.{n}": (16, 32) for n in ("attn_k", "attn_v")}
    shapes |= {f"blk.0.{n}_norm": (32,) for n in ("attn", "ffn")}
    floats = {f"{n}.weight": rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    tensors = {n: rlx.quantize(a, "q8_0") if "ffn_" in n and a.ndim > 1 else a for n, a in floats.items()}
    tensors["rope_freqs.weight"] = np.ones(4, np.float32)
    llama = {"block_count": 1, "context_length": 64, "embedding_length": 32, "feed_forward_length": 32}
    llama |= {"attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5}
    tokenizer = {
        "model": "gpt2", "pre": "llama-bpe", "tokens": tokens, "token_type": [3, 3, *[1] * (size - 2)],
        "merges": ["t h", "th e", "Ġ the", "c a"], "bos_token_id": 0, "eos_token_id": 1, "add_bos_token": True,
        "scores": [0.0] * size,
    }  # fmt: skip
    metadata = {
        "general.architecture": "llama", "general.alignment": 32, "general.tags": [["a", "b"], ["c"]],
        **{f"llama.{k}": v for k, v in llama.items()}, **{f"tokenizer.ggml.{k}": v for k, v in tokenizer.items()},
        "tokenizer.chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
    }  # fmt: skip
    gguf.write(path, metadata, tensors)


def use_gguf(path: Path, seed: int) -> None:
    """Reads all tensors as they are and as a folder's, or some texts; every twentieth renders its template, and every
    fiftieth is loaded as a model, which goes on from a prompt."""
    with gguf.read(path) as file:
        for tensor in file.tensors.values():
            value = tensor.read()
            assert value.shape == tensor.shape and value.nbytes == tensor.nbytes
        if seed % 2:
            tokenizer = read_tokenizer(file)
            for text in TEXTS:
                tokenizer.decode(tokenizer.encode(text, parse_special=True))
            if seed % 20 == 1 and tokenizer.chat_template is not None:
                ChatTemplate.of(tokenizer).render([{"role": "user", "content": "the"}])
            return
        model = GgufModel(file)
        for name, (shape, _) in model.kinds.items():
            assert tuple(model.read(name).shape) == shape
    if seed % 50 == 0:
        with rlx.models.load(path, device="cpu", context=16, engine="numpy") as language:
            prompt = [1, 2, 3][: language.context]
            assert language.logits(prompt).shape == (len(prompt), language.config.vocabulary)
            assert len(list(language.tokens(prompt, 3))) <= 3


def use_encoder(path: Path) -> None:
    """Loads an encoder, and embeds texts or ranks them. Damage may make a decoder of it, or leave no ranks."""
    with rlx.models.load(path, device="cpu", engine="numpy") as model:
        if isinstance(model, rlx.models.SentenceEncoder) and model.pooling != "rank":
            assert len(model.encode(TEXTS[:3])) == 3
        elif isinstance(model, rlx.models.SentenceEncoder):
            assert len(model.rank("the cat", TEXTS[:2])) == 2


def use_program(path: Path) -> None:
    """Loads and runs a saved program on inputs of zeros; a run may fail in a way that a sound program's may."""
    with rlx.load_program(path, DEVICE) as program:
        inputs = {
            name: rlx.PackedArray(t.dtype, t.shape, zeros) if t.dtype.is_packed else zeros
            for name, t in [*program.graph.inputs.items(), *((n, program.graph.states[n]) for n in program.donated)]
            for zeros in [np.zeros(t.type.array_shape, t.dtype.np)]
        }
        try:
            with step_budget(1000):
                found = program.run(inputs)
        except RlxError:
            return
        for name, t in program.graph.outputs.items():
            assert found[name].shape == t.shape, f"{name} is {found[name].shape}, not {t.type}"


def damaged(kind: str, name: str, original: bytes, seed: int) -> tuple[str, bytes]:
    """The file of this seed, and what was done to it."""
    if kind == "bombs":
        return hostile(seed)
    return json_bomb(name, original, seed) if kind == "json" else mutant(name, original, seed)


def attempt(kind: str, seed: int, folder: Path, originals: dict[str, bytes]) -> dict[str, Any]:
    """What came of one mutant, in how many seconds and with how many bytes more."""
    name = FILES[kind][seed % len(FILES[kind])]
    way, content = damaged(kind, name, originals[name], seed)
    (folder / name).write_bytes(content)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    start = time.process_time()
    outcome, text = "loaded", ""
    try:
        use(folder, kind, seed)
    except ModelFormatError as error:
        outcome, text = "ModelFormatError", str(error)  # or a ProgramMismatch, which is one
        if not text.isprintable() or len(text) > 40_000:  # every weight that is wrong is named
            outcome = "a message that no terminal shows"
    except Exception as error:  # noqa: BLE001 - whatever else it raises is the finding
        place = traceback.extract_tb(error.__traceback__)[-1]
        outcome, text = type(error).__name__, f"{place.filename}:{place.lineno}: {error}"
    seconds = time.process_time() - start
    grown = max(0, _memory("VmHWM") - before)
    (folder / name).write_bytes(originals[name])
    return {
        "seed": seed,
        "way": way,
        "outcome": outcome,
        "text": text[:300],
        "seconds": seconds,
        "bytes": grown,
        "granted": (MEBIBYTES << 20) + len(content) * (PER_BYTE if name.endswith(("tokenizer.json", ".gguf")) else 1),
    }


def _memory(what: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/self/status has no {what}")


def work(kind: str, start: int, stop: int) -> None:
    """In a process of its own: a line before and after each mutant."""
    # Memory is limited so that a greedy file is seen and the machine not lost. What the process has is not counted: the
    # threads of BLAS reserve address space for each core.
    limit = _memory("VmSize") + (6 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer) / "model"
        lay(folder, kind)
        originals = {name: (folder / name).read_bytes() for name in FILES[kind]}
        if kind in PROGRAM_KINDS:  # what the first run takes once is no file's fault
            for number in range(len(FILES[kind])):
                use(folder, kind, number)
            _load_compiler()
        elif kind in ("gguf", "encoder"):  # a model and a tokenizer; an encoder of each kind
            for number in range(4):
                use(folder, kind, number)
        else:
            with rlx.models.load(folder, device="cpu") as encoder:
                encoder.encode(TEXTS)
        for seed in range(start, stop):
            print(json.dumps({"begun": seed}), flush=True)
            signal.setitimer(signal.ITIMER_PROF, 2 * SECONDS)  # SIGPROF ends a process that does not mind it
            result = attempt(kind, seed, folder, originals)
            signal.setitimer(signal.ITIMER_PROF, 0)
            print(json.dumps(result), flush=True)


def _load_compiler() -> None:
    """Compiles a kernel, whether or not the cache has it: LLVM takes 90 MiB, which no file asks for."""
    machine = this_machine()
    if DEVICE == "cpu" and machine is not None and choice.usable(None):
        compile.machine_code(RunnerSpec("work", machine.arch).ir(), machine)


def worker(kind: str, start: int, stop: int) -> list[str]:
    """The command that works on a range of seeds."""
    return [sys.executable, "-m", "tests.formats.mutants", "--work", kind, str(start), str(stop)]


def outcomes(kind: str, first: int, count: int) -> Iterator[dict[str, Any]]:
    """The outcomes of a range of seeds; of a process that was lost, that of the seed it worked on."""
    at = first
    while at < first + count:
        stop = min(at + PER_PROCESS, first + count)
        pipe = subprocess.PIPE
        with subprocess.Popen(worker(kind, at, stop), stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stdout is not None and process.stderr is not None
            begun = None
            while select.select([process.stdout], [], [], PATIENCE * (5 if kind == "ops" else 1))[0]:
                line = process.stdout.readline()
                if not line:
                    break
                entry = json.loads(line)
                begun = entry.get("begun", begun)
                if "outcome" in entry:
                    yield entry
                    at = entry["seed"] + 1
            process.kill()
            process.wait()
            if at < stop:
                seed = at if begun is None else begun
                told = process.stderr.read()[-300:]
                lost = {"outcome": "process lost", "text": f"exit status {process.returncode} {told}"}
                yield {"seed": seed, "way": "", "seconds": 0.0, "bytes": 0, "granted": 0, **lost}
                at = seed + 1


def spread(kind: str, first: int, count: int, processes: int, until: float) -> list[dict[str, Any]]:
    """The outcomes of a range of seeds, by several processes at once. Ranges that begin after `until`, on the clock of
    `time.monotonic`, are left out: what is given has no gaps."""
    starts = range(first, first + count, PER_PROCESS)

    def part(start: int) -> list[dict[str, Any]]:
        if time.monotonic() > until:
            return []
        return list(outcomes(kind, start, min(PER_PROCESS, first + count - start)))

    with ThreadPoolExecutor(processes) as pool:
        return [entry for entries in takewhile(bool, pool.map(part, starts)) for entry in entries]


def wrong(entry: dict[str, Any]) -> str:
    """What an outcome breaks, in words; empty where nothing."""
    found = [] if entry["outcome"] in ("loaded", "ModelFormatError") else [entry["outcome"]]
    if entry["seconds"] > SECONDS:
        found.append(f"{entry['seconds']:.1f} s")
    if entry["bytes"] > entry["granted"]:
        found.append(f"{entry['bytes'] >> 20} MiB more")
    return ", ".join(found)


def summary(kind: str, entries: list[dict[str, Any]]) -> str:
    """A line of the table, and all that are wrong."""
    ends = Counter(e["outcome"] for e in entries)
    bad = [e for e in entries if wrong(e)]
    slow, large = max(e["seconds"] for e in entries), max(e["bytes"] for e in entries) / (1 << 20)
    refused, loaded = ends["ModelFormatError"], ends["loaded"]
    line = f"| {kind} | {len(entries):,} | {loaded:,} | {refused:,} | {slow:.2f} | {large:.1f} | {len(bad)} |"
    told = [f"  seed {e['seed']} ({e['way']}): {wrong(e)}: {e['text']}" for e in bad[:20]]
    return "\n".join([line, *told])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.formats.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="files of each format")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--format", choices=FILES, action="append", help="only this one")
    parser.add_argument("--seed", type=int, help="run this one here, with its traceback")
    parser.add_argument("--processes", type=int, default=1, help="how many work at once")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no more files are begun")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work[0], int(given.work[1]), int(given.work[2]))
        return 0
    kinds = given.format or list(FILES)
    if given.seed is not None:
        with tempfile.TemporaryDirectory() as outer:
            folder = Path(outer) / "model"
            lay(folder, kinds[0])
            name = FILES[kinds[0]][given.seed % len(FILES[kinds[0]])]
            way, content = damaged(kinds[0], name, (folder / name).read_bytes(), given.seed)
            print(f"{way} of {name}, {len(content)} bytes: {content[:2000]!r}")
            (folder / name).write_bytes(content)
            use(folder, kinds[0], given.seed)
        return 0
    print(
        "| format | files | load | refused | slowest, s | most memory, MiB | wrong |\n|---|---|---|---|---|---|---|"
    )
    found, until = False, time.monotonic() + given.seconds
    for kind in kinds:
        entries = spread(kind, given.first, given.count, given.processes, until)
        found |= any(map(wrong, entries))
        if entries:
            print(summary(kind, entries), flush=True)
        if len(entries) < given.count:
            done = given.first + len(entries)
            print(f"  {kind}: no time for more; --first {done} --count {given.count - len(entries)} goes on")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
