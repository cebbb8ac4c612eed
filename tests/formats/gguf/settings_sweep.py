"""What llama.cpp v0.5.0 makes of each setting of a GGUF file, and what rlx makes of it: a tiny model of every
architecture that rlx reads, with each key that llama.cpp knows off its default. Written to settings.json.

    python -m tests.formats.gguf.settings_sweep FOLDER [ARCHITECTURE ... | logits]

FOLDER has llama.cpp's libraries for the CPU (of its release v0.5.0), whose text names the keys. An architecture reads a
key where a value of another type makes the loading fail."""

from __future__ import annotations

import ctypes as c
import json
import os
import re
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import rlx
from rlx.errors import RlxError
from rlx.formats import gguf
from rlx.formats.gguf.encoders import GgufEncoder, pooling_of
from rlx.formats.gguf.model import GgufModel
from tests.formats.gguf import architectures as made
from tests.formats.gguf.llamacpp import Judge

FILE = Path(__file__).with_name("settings.json")
Numbers = npt.NDArray[np.float64]
_TEXT = re.compile(rb"\0%s\.([a-z0-9_.]*[a-z0-9_])(?=\0)")
_SCALED = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
# Values off their defaults; a key that is not here is tried with a number.
VALUES: dict[str, tuple[Any, ...]] = {
    "attention.causal": (False, True),
    "attention.head_count": (8, [made.HEADS] * made.LAYERS, [4, 2]),
    "attention.head_count_kv": (1, [made.KV] * made.LAYERS, [2, 1]),
    "attention.key_length": (8,), "attention.value_length": (8,),
    "attention.key_length_swa": (8, made.SIZE), "attention.value_length_swa": (8, made.SIZE),
    "attention.layer_norm_rms_epsilon": (0.1,), "attention.layer_norm_epsilon": (0.1,),
    "block_count": (1, 3), "context_length": (64, 16), "embedding_length": (32,), "embedding_length_out": (32, made.D),
    "expert_count": (2, 0), "expert_used_count": (1, 0), "expert_group_count": (2, 1, 0),
    "expert_group_used_count": (1, 0), "expert_feed_forward_length": (16,), "expert_shared_feed_forward_length": (16,),
    "feed_forward_length": (48, [made.WIDE] * made.LAYERS, [96, 48]), "nextn_predict_layers": (1, 0),
    "pooling_type": (0, 1, 2), "rope.dimension_count": (8, 0), "rope.dimension_count_swa": (8, made.SIZE),
    "rope.freq_base": (50.0,), "rope.freq_base_swa": (50.0,), "rope.scale_linear": (4.0,),
    "rope.scaling.alpha": (2.0, 0.0),
    "rope.scaling.attn_factor": (2.0, 1.0), "rope.scaling.factor": (4.0, 1.0), "rope.scaling.finetuned": (True, False),
    "rope.scaling.original_context_length": (16,), "rope.scaling.type": ("none", "linear", "yarn", "longrope"),
    "rope.scaling.yarn_ext_factor": (0.5, 1.0), "rope.scaling.yarn_attn_factor": (2.0, 1.0),
    "rope.scaling.yarn_beta_fast": (8.0, 32.0), "rope.scaling.yarn_beta_slow": (2.0, 1.0),
    "vocab_size": (16, made.WORDS),
    "rope.dimension_sections": ([4, 0, 0, 0], [1, 1, 2, 0], [0, 0, 0, 0]),
    "attention.sliding_window": (4, 0), "attention.sliding_window_pattern": (1, 2, 3, [True, False], [False, True]),
    "attention.recurrent_layers": ([False, True], [True, False]), "full_attention_interval": (1, 2, 3),
    "ssm.conv_kernel": (3,), "ssm.group_count": (1,), "ssm.inner_size": (32,), "ssm.state_size": (8, 4),
    "ssm.time_step_rank": (2,), "ssm.dt_b_c_rms": (True, False), "attn_logit_softcapping": (2.0, 0.0),
    "final_logit_softcapping": (2.0, 0.0),
}  # fmt: skip
# Beside YaRN other keys count.
YARN = tuple(key for key in VALUES if key.startswith("rope.")) + ("context_length",)


def keys(folder: Path) -> list[str]:
    """The keys that llama.cpp knows, without the architecture's name."""
    return sorted({k.decode() for k in _TEXT.findall(next(folder.glob("libllama.*")).read_bytes())})


class Beside(Judge):
    """llama.cpp in processes of its own: it may end one."""

    def numbers(self, path: Path, arch: str) -> Numbers | None:
        """The last logits, or an encoder's vector, of length 1; None for a model that is not loaded or not run."""
        ids = made.CAT if arch in made.ENCODERS else made.IDS
        count = 0 if arch in made.ENCODERS else made.WORDS
        return apart(lambda: self._numbers(path, ids, count))

    def loads(self, path: Path) -> bool:
        return apart(lambda: np.zeros(1) if self.model(path) else None) is not None

    def _numbers(self, path: Path, ids: list[int], count: int) -> Numbers | None:
        model, params = self.model(path), self.lib.llama_context_default_params()
        if not model:
            return None
        params.raw[0] = 256
        params.raw[7] = params.raw[8] = 1  # threads
        params.raw[13] = params.raw[26] = params.raw[27] = 0  # no flash attention, caches in f32
        context = self.lib.llama_init_from_model(model, params)
        if not context:
            return None
        if not count:
            self.lib.llama_set_embeddings(c.c_void_p(context), c.c_bool(True))
        tokens = (c.c_int32 * len(ids))(*ids)
        if self.lib.llama_decode(context, self.lib.llama_batch_get_one(tokens, len(ids))):
            return None
        if count:
            return np.array(self.lib.llama_get_logits(context)[:count])
        self.lib.llama_get_embeddings_seq.restype = c.POINTER(c.c_float)
        found = self.lib.llama_get_embeddings_seq(c.c_void_p(context), 0)
        if not found:
            return None
        vector = np.array(found[:32])
        return np.asarray(vector / np.linalg.norm(vector))


def apart(make: Callable[[], Numbers | None]) -> Numbers | None:
    """What another process makes, silently; None where it ends before."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        void = os.open(os.devnull, os.O_WRONLY)
        os.dup2(void, 1)
        os.dup2(void, 2)
        try:
            found = make()
            os.write(write, b"" if found is None else np.asarray(found, np.float64).tobytes())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        raw = pipe.read()
    status = os.waitpid(pid, 0)[1]
    return np.frombuffer(raw) if raw and not status else None


class Ours:
    """The same by rlx, or the message of its refusal. Files that say the same of a model are run once."""

    def __init__(self) -> None:
        self._known: dict[str, Numbers] = {}

    def __call__(self, path: Path, arch: str) -> Numbers | str:
        encoder = arch in made.ENCODERS
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with gguf.read(path) as file:
                    text = json.dumps((GgufEncoder if encoder else GgufModel)(file).config) + str(pooling_of(file))
                if text not in self._known:
                    self._known[text] = self._numbers(path, encoder)
                return self._known[text]
            except RlxError as error:
                return str(error).removeprefix(f"{path}: ")

    def _numbers(self, path: Path, encoder: bool) -> Numbers:
        if encoder:
            with rlx.models.load(path, "cpu", engine="numpy") as model:
                return np.asarray(model.embed("The cat sleeps near the cold river."), np.float64)
        with rlx.models.load(path, "cpu", context=64, engine="numpy") as model:
            return np.asarray(model.logits(made.IDS)[-1], np.float64)


def near(a: Numbers, b: Numbers) -> bool:
    """Whether two results are one: llama.cpp rounds gelu to halves."""
    return a.shape == b.shape and float(((a - b) ** 2).sum()) <= 1e-6 * float((b**2).sum())


def word(base: Numbers, theirs: Numbers | None, own: Numbers | str) -> str:
    """What llama.cpp makes of the settings (same as before, other, refused), and rlx (alike, refused, DIFFERS)."""
    first = "refused" if theirs is None else "same" if near(theirs, base) else "other"
    if isinstance(own, str):
        return f"{first}; refused"
    if theirs is None:
        return f"{first}; {'same' if near(own, base) else 'other'}"
    return f"{first}; {'alike' if near(own, theirs) else 'DIFFERS'}"


def cases(arch: str, key: str) -> dict[str, dict[str, Any]]:
    """Settings by the names of the cases."""
    found = {f"{key}={json.dumps(v)}": {key: v} for v in VALUES.get(key, (2.0,))}
    if key in YARN and arch not in ("gpt2", "mamba", *made.ENCODERS):
        found |= {f"yarn, {name}": {**_SCALED, **changed} for name, changed in found.items()}
    return found


def each(judge: Beside, folder: Path, arch: str, path: Path) -> dict[str, Any]:
    """The keys that the architecture reads, how many cases have which word, and the words of all but the usual."""
    ours = Ours()
    base = judge.numbers(made.write(path, arch, {}), arch)
    assert base is not None
    scaled = judge.numbers(made.write(path, arch, _SCALED), arch)
    reads, found = [], {}
    for key in keys(folder):
        read = not judge.loads(made.write(path, arch, {key: 7 if key == "rope.scaling.type" else "text"}))
        reads += [key] if read else []
        for name, changed in cases(arch, key).items():
            made.write(path, arch, changed)
            theirs = judge.numbers(path, arch) if read else scaled if name.startswith("yarn") else base
            found[name] = word(base, theirs, ours(path, arch))
    words = list(found.values())
    counts = {w: words.count(w) for w in sorted(set(words))}
    return {"reads": reads, "counts": counts, "cases": {n: w for n, w in found.items() if w != "same; alike"}}


def scales(arch: str) -> dict[str, Any]:
    """A scale of every product of the model; one for each expert."""
    made_of = {}
    for i, (name, shape) in enumerate(made.products(arch).items()):
        if not name.endswith(("ffn_gate_inp", "ssm_x", "ssm_dt")):  # of which llama.cpp has none
            count = shape[0] if len(shape) == 3 else 1
            made_of[f"{name}.scale"] = (0.6 + i % 7 / 8 + np.arange(count) / 4).astype(np.float32)
    return made_of


# What is frozen in logits.json: an architecture, settings, and whether its products have scales.
FROZEN: dict[str, tuple[str, dict[str, Any], bool]] = {
    **{f"scales of {arch}": (arch, {}, True) for arch in ("llama", "qwen3moe", "qwen35moe")},
    **{f"{arch}, {pattern}": (arch, {"attention.sliding_window_pattern": pattern}, False)
       for arch, pattern in (("gemma2", 3), ("gemma3", [True, False]), ("gpt-oss", [False, True]))},
}  # fmt: skip
LOGITS = FILE.with_name("logits.json")


def freeze(judge: Beside, path: Path) -> None:
    rows = {}
    for name, (arch, changed, scaled) in FROZEN.items():
        found = judge.numbers(made.write(path, arch, changed, scales(arch) if scaled else None), arch)
        assert found is not None
        rows[name] = [float(f"{v:.7g}") for v in found]
    LOGITS.write_text("{\n" + ",\n".join(f" {json.dumps(n)}: {json.dumps(v)}" for n, v in rows.items()) + "\n}\n")


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    os.environ["GGML_NO_BACKTRACE"] = "1"  # a process that ends would call a debugger
    judge = Beside(folder)
    table = json.loads(FILE.read_text()) if FILE.exists() else {"version": "v0.5.0", "keys": [], "architectures": {}}
    table["keys"] = keys(folder)
    with tempfile.TemporaryDirectory() as work:
        if not sys.argv[2:] or "logits" in sys.argv[2:]:
            freeze(judge, Path(work) / "x.gguf")
        for arch in [a for a in sys.argv[2:] or made.ARCHITECTURES if a != "logits"]:
            row = table["architectures"][arch] = each(judge, folder, arch, Path(work) / "x.gguf")
            print(f"{arch}: {len(row['reads'])} keys read, cases: {row['counts']}", flush=True)
    FILE.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
