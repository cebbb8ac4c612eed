"""Language models whose matrices are cut over ranks: the texts of one rank, each rank's part, and what is told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rlx.cli.app import app
from rlx.errors import DeviceUnavailable, DTypeError, OutOfDeviceMemory, ShapeError, UnsupportedOp
from rlx.formats.gguf.model import GgufModel
from rlx.formats.gguf.reader import GgufFile
from rlx.models import load
from rlx.packed import PackedArray
from rlx.packed.array import part_of
from tests.models.language import test_adapters, tiny
from tests.models.language.families import IDS_ASKED, LIMIT, error
from tests.models.language.test_families import CASES, folder_of, seldom
from tests.models.language.test_split import CONFIG, same_tokens
from tests.ranks.test_mpi import _mpiexec

# Parts that are not cut, of families that have them in a case.
REFUSED = {
    "layers of": {"axk1", "bamba", "deepseek_v2", "deepseek_v3", "deepseek_v32", "falcon_h1", "falcon_mamba",
                  "gemma3n_text", "gemma4_text", "glm4_moe_lite", "glm_moe_dsa", "jamba",
                  "granitemoehybrid", "kimi_linear", "lfm2", "lfm2_moe", "mamba", "mamba2", "minicpm3", "minimax",
                  "nemotron_h", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "sarvam_mla",
                  "youtu", "zamba2"},
    "a norm before the last product": {"bitnet"},
}  # fmt: skip

# Cases with a norm of all keys as one row, of which no head may be on two of three ranks.
ROWS = {"flex_olmo-0", "minimax_m2-0", "olmo2-0", "olmo3-0", "olmo3-1", "olmoe-0"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_language_model(tmp_path_factory.mktemp("cut") / "m", CONFIG, text=True)


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.late)])
def test_tokens_of_ranks_are_those_of_one(ranks: int, folder: Path) -> None:
    """In steps, chunks, batches and guesses; with draws too, since all ranks have the same logits."""
    with load(folder, "cpu", context=40, engine="numpy") as model:
        drawn = list(model.generate("ab", 8, temperature=0.7, seed=3))
        once = model.logits(tiny.TOKENS)
    with load(folder, "cpu", context=40, engine="numpy", tensor_parallel=ranks) as model:
        same_tokens(model)
        assert drawn == list(model.generate("ab", 8, temperature=0.7, seed=3))
        np.testing.assert_allclose(model.logits(tiny.TOKENS), once, atol=2e-5)
        assert f"(matrices cut in {ranks}, sums in f32)" in repr(model)


@pytest.mark.parametrize("begin", ["run", "launch"])
def test_no_rank_begins_before_all_are_built(begin: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(folder, "cpu", context=40, engine="numpy", tensor_parallel=2) as model:
        program: Any = model.decoder.program(1, "logits")
        begun: list[int] = []

        class Part:
            def __init__(self, rank: int) -> None:
                self.rank = rank

            def prepare(self) -> None:
                if self.rank == 1:
                    raise OutOfDeviceMemory("no room")

            def run(self, *args: Any, **kinds: Any) -> None:
                begun.append(self.rank)

            launch = run

        monkeypatch.setattr(program, "parts", [Part(0), Part(1)])
        with pytest.raises(OutOfDeviceMemory, match="no room"):
            program.launch() if begin == "launch" else program.run({})
        assert not begun
        monkeypatch.undo()
        assert model.logits([1, 2]).shape == (2, model.config.vocabulary)


@pytest.mark.late(case=seldom(CASES, 42))
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.late)])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore::rlx.errors.ModelWarning")
def test_families_have_the_logits_of_transformers_or_are_refused(case: str, ranks: int, tmp_path: Path) -> None:
    path, kind = folder_of(case, tmp_path), case.rpartition("-")[0]
    why = next((why for why, kinds in REFUSED.items() if kind in kinds), "")
    if why:
        with pytest.raises(UnsupportedOp, match=why):
            load(path, "cpu", context=64, engine="numpy", tensor_parallel=ranks)
    elif ranks == 3 and case in ROWS:
        with pytest.raises(ShapeError, match="4 heads and 2 key heads"):
            load(path, "cpu", context=64, engine="numpy", tensor_parallel=ranks)
    else:
        with load(path, "cpu", context=64, engine="numpy", tensor_parallel=ranks) as model:
            got = model.logits(IDS_ASKED)
        assert error(got[-1, :16], np.asarray(CASES[case]["logits"])) <= LIMIT
        assert got.argmax(1).tolist() == CASES[case]["likeliest"]


@pytest.mark.parametrize("packed", ["q8_0", pytest.param("q4_0", marks=pytest.mark.late), None])
def test_packed_weights_are_cut_at_blocks(packed: str | None, tmp_path: Path) -> None:
    """Each rank reads its part: rows alone, or pieces of rows, in the numbers of the whole tensor."""
    path = tmp_path / "m.gguf"
    tiny.write_gguf(path, packed)
    with load(path, "cpu", context=40) as model:
        want = list(model.tokens(tiny.TOKENS[:9], 12))
        whole = model.decoder.source.sizes
    with load(path, "cpu", context=40, tensor_parallel=2) as model:
        assert list(model.tokens(tiny.TOKENS[:9], 12)) == want
        sizes = [weights.sizes for weights in model.decoder.ranks.weights]
        name = "layers.0.mlp.down_proj.weight"
        assert sum(each[name] for each in sizes) == whole[name]
        assert any(weights.kept(name).is_packed for weights in model.decoder.ranks.weights) == bool(packed)
    with GgufFile(path) as file:
        source = GgufModel(file)
        for name, (shape, _) in source.kinds.items():
            for axis in range(len(shape)):
                unit = 32 if axis == len(shape) - 1 else 1
                start, stop = shape[axis] // 2 // unit * unit, shape[axis]
                got, read = source.read_part(name, axis, start, stop), part_of(source.read(name), axis, start, stop)
                assert type(got) is type(read) and got.shape == read.shape
                pair = [v.data if isinstance(v, PackedArray) else v for v in (got, read)]
                np.testing.assert_array_equal(*pair)


def test_a_range_that_divides_blocks_is_refused(tmp_path: Path) -> None:
    tiny.write_gguf(tmp_path / "m.gguf", "q8_0")
    with GgufFile(tmp_path / "m.gguf") as file:
        source = GgufModel(file)
        for part in (source.read_part, lambda name, *range: part_of(source.read(name), *range)):
            with pytest.raises(ShapeError, match="no whole blocks of 32"):
                part("model.layers.0.mlp.down_proj.weight", 1, 0, 16)


def test_sums_in_halves(folder: Path) -> None:
    with load(folder, "cpu", context=40, engine="numpy", tensor_parallel=2, sums="bf16") as model:
        assert "sums in bf16" in model.decoder.where
        rough = model.logits(tiny.TOKENS)
    with load(folder, "cpu", context=40, engine="numpy") as model:
        off = np.abs(rough - model.logits(tiny.TOKENS)).max()
    assert 1e-5 < off < 0.2


@pytest.mark.parametrize(
    ("given", "kind", "match"),
    [
        ({"tensor_parallel": 0}, ShapeError, "an integer from 1"),
        ({"tensor_parallel": True}, ShapeError, "an integer from 1"),
        ({"tensor_parallel": "2"}, ShapeError, "an integer from 1"),
        ({"tensor_parallel": 5}, ShapeError, "4 heads and 2 key heads of 8; 5 ranks"),
        ({"tensor_parallel": 2, "device": "cuda:7"}, DeviceUnavailable, "cuda"),
        ({"tensor_parallel": 2, "device": "auto", "layers_on": "cpu"}, DTypeError, "give one of them"),
        ({"tensor_parallel": 2, "sums": "i8"}, DTypeError, "expected one of f32, f16, bf16"),
        ({"sums": "f32"}, DTypeError, "sums is for tensor_parallel"),
    ],
)
def test_what_ranks_cannot_share_is_refused(
    given: dict[str, Any], kind: type[Exception], match: str, folder: Path
) -> None:
    with pytest.raises(kind, match=match):
        load(folder, **{"device": "cpu", **given})


@pytest.mark.vulkan
def test_vulkan_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(UnsupportedOp, match="through Vulkan each layer's sums would go through the host"):
        load(folder, "vulkan", tensor_parallel=2)


def test_adapters_are_refused(folder: Path, tmp_path: Path) -> None:
    arrays = test_adapters.matrices(CONFIG, test_adapters.LARGE, 3, "x")
    adapter = test_adapters.write(tmp_path / "x", arrays, test_adapters.LARGE)
    with load(folder, "cpu", context=40, engine="numpy", tensor_parallel=2) as model:
        with pytest.raises(UnsupportedOp, match="takes no adapters"):
            model.load_adapter("x", adapter)
        assert list(model.tokens(tiny.TOKENS[:5], 4)) == tiny.greedy(CONFIG, tiny.TOKENS[:5], 4)


def test_what_one_matrix_of_embeddings_is_cut_for(folder: Path) -> None:
    """The embeddings stay whole, and each rank has its rows of them beside as its output matrix."""
    with load(folder, "cpu", context=40, engine="numpy", tensor_parallel=2) as model:
        for rank, weights in enumerate(model.decoder.ranks.weights):
            assert weights.sizes["lm_head.weight"] * 2 == weights.sizes["embed_tokens.weight"]
            store = model.decoder.stages[rank].weights
            table, rows = store.get("embed_tokens.weight"), store.get("lm_head.weight")
            np.testing.assert_array_equal(rows, table[30 * rank : 30 * (rank + 1)])


def test_the_command(folder: Path) -> None:
    ran = CliRunner().invoke(
        app, ["generate", str(folder), "-p", "ab", "-n", "3", "--device", "cpu", "-tp", "2", "--engine", "numpy",
              "--stats"],
    )  # fmt: skip
    assert ran.exit_code == 0, ran.output
    with load(folder, "cpu", context=40, engine="numpy") as model:
        assert ran.output.startswith("".join(model.generate("ab", 3)))
    assert "device: cpu (rank 1 of 2), " in ran.output and "sums: in f32, behind each block" in ran.output


@pytest.mark.judged
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("model", "The first difference: rank 0 has 'model.layers.1.mlp.down_proj.weight f32[24, 40] "),
        ("context", "rank 0 has 'context 40, activations f32"),
        ("prompt", "rank 0 has 'tokens [3, 17, 17]', rank 1 'tokens [3, 17, 5]'"),
        ("count", "rank 1 ended before all_reduce of f32[1,24]"),
        ("batch", "a batch goes by the clock"),
    ],
)
def test_processes_that_differ_are_told(what: str, said: str) -> None:
    done = _mpiexec(2, "tests.models.language.processes", what)
    assert done.returncode != 0 and said in done.stderr, done.stdout + done.stderr


@pytest.mark.judged
@pytest.mark.parametrize("ranks", [2, 3])
def test_processes_have_the_text_of_one(ranks: int) -> None:
    done = _mpiexec(ranks, "tests.models.language.processes", "same")
    assert done.returncode == 0, done.stdout + done.stderr
    want = tiny.greedy(tiny.LLAMA, tiny.TOKENS[:19], 20)
    assert re.findall(r"\[[\d, ]*\]", done.stdout) == [str(want)] * ranks
