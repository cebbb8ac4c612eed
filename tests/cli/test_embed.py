"""`rlx embed`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlx as rlx_package
from tests.cli.conftest import Rlx
from tests.models import task_folders
from tests.models.language.tiny import LLAMA, write_language_model
from tests.models.sentence_folders import write
from tests.models.speech.tiny import write_model as write_whisper
from tests.models.tiny import SENTENCES

TEXT = "the cat sleeps\na dog runs\n\nthe boat is near the river\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.txt"
    path.write_text(TEXT)
    return path


def embeddings(tiny: Path, sentences: list[str]) -> np.ndarray:
    with rlx_package.models.load(tiny, "cpu") as encoder:
        return encoder.encode(sentences)


class TestNumbers:
    def test_a_line_of_numbers_for_each_line_brings_back_the_very_floats(
        self, rlx: Rlx, tiny: Path, file: Path
    ) -> None:
        ran = rlx("embed", tiny, file, "--device", "cpu")
        assert ran.status == 0 and ran.err == ""
        got = np.array([line.split() for line in ran.out.splitlines()], np.float32)
        assert np.array_equal(got, embeddings(tiny, TEXT.split("\n")[:-1]))

    def test_standard_input_is_the_default(self, rlx: Rlx, tiny: Path, file: Path) -> None:
        by_name = rlx("embed", tiny, file, "--device", "cpu").out
        assert rlx("embed", tiny, "--device", "cpu", stdin=TEXT.encode()).out == by_name
        assert rlx("embed", tiny, "-", "--device", "cpu", stdin=TEXT.encode()).out == by_name

    def test_devices_agree(self, rlx: Rlx, tiny: Path, file: Path, device: str, tmp_path: Path) -> None:
        for name in ("cpu", device):
            assert rlx("embed", tiny, file, "--device", name, "--out", tmp_path / f"{name}.npy").status == 0
        a, b = np.load(tmp_path / "cpu.npy"), np.load(tmp_path / f"{device}.npy")
        assert np.max(np.abs(a - b)) <= 1e-6

    def test_half_precision(self, rlx: Rlx, tiny: Path, file: Path) -> None:
        exact = embeddings(tiny, TEXT.split("\n")[:-1])
        ran = rlx("embed", tiny, file, "--device", "cpu", "--dtype", "bf16")
        got = np.array([line.split() for line in ran.out.splitlines()], np.float32)
        assert 1e-6 < np.max(np.abs(got - exact)) < 0.05


def test_a_language_models_folder(rlx: Rlx, file: Path, tmp_path: Path) -> None:
    """Whatever `rlx.models.load` takes and has embeddings."""
    folder = write_language_model(tmp_path / "m", {**LLAMA, "vocab_size": 140}, text=True)
    file.write_text("the cat\na dog\n")
    ran = rlx("embed", folder, file, "--device", "cpu")
    assert ran.status == 0, ran
    with rlx_package.models.load(folder, "cpu") as model:
        want = model.embed(["the cat", "a dog"])
    np.testing.assert_array_equal(np.array([line.split() for line in ran.out.splitlines()], np.float32), want)
    ran = rlx("embed", folder, file, "--device", "cpu", "--prompt-name", "query")
    assert ran.status == 2 and "no prompt has the name 'query'; its files have none" in ran.err
    ran = rlx("embed", write_whisper(tmp_path / "w"), file, "--device", "cpu")
    assert ran.status == 2 and "`rlx transcribe` takes it" in ran.err


class TestPrompts:
    def test_by_name(self, rlx: Rlx, file: Path, tmp_path: Path) -> None:
        folder = write(tmp_path / "folder", "prompt left out")
        ran = rlx("embed", folder, file, "--device", "cpu", "--prompt-name", "passage")
        got = np.array([line.split() for line in ran.out.splitlines()], np.float32)
        with rlx_package.models.load(folder, "cpu") as encoder:
            rows = encoder.encode(TEXT.split("\n")[:-1], prompt_name="passage")
            query = encoder.embed("the boat", prompt_name="long")
        assert ran.status == 0 and np.array_equal(got, rows)
        best = max(rows[i] @ query for i in (0, 1, 3))
        named = ("--prompt-name", "passage", "--query", "the boat", "--query-prompt-name", "long", "--top", "1")
        score = rlx("embed", folder, file, "--device", "cpu", *named).out.split()[0]
        assert float(score) == pytest.approx(best, rel=1e-5)

    def test_names_of_none(self, rlx: Rlx, tiny: Path, file: Path) -> None:
        ran = rlx("embed", tiny, file, "--device", "cpu", "--prompt-name", "passage")
        assert ran.status == 2 and "no prompt has the name 'passage'; it has document, query" in ran.err
        ran = rlx("embed", tiny, file, "--device", "cpu", "--query-prompt-name", "query")
        assert ran.status == 2 and "--query-prompt-name is for the text of --query" in ran.err


class TestLines:
    """A row of the result is a line of the file, as other tools count lines."""

    @pytest.mark.parametrize(
        ("text", "rows"),
        [
            ("", 0),
            ("\n", 1),
            ("a", 1),
            ("a\n", 1),
            ("a\n\n", 2),
            ("a\r\nb\r\n", 2),
            ("a\x0bb\x0cc\x85d\u2028e\x1cf\n", 1),
            ("\ufeffa\nb\n", 2),
        ],
        ids=ascii,
    )
    def test_count(self, rlx: Rlx, tiny: Path, tmp_path: Path, text: str, rows: int) -> None:
        out = tmp_path / "x.npy"
        ran = rlx("embed", tiny, "--device", "cpu", "--out", out, stdin=text.encode())
        assert ran.status == 0 and ran.out == ""
        assert np.load(out).shape == (rows, 24) and np.load(out).dtype == np.float32
        assert ran.err == f"{out}: {rows} x 24 f32 from cpu\n"

    def test_line_ends_and_marks_are_not_text(self, rlx: Rlx, tiny: Path) -> None:
        plain = rlx("embed", tiny, "--device", "cpu", stdin=b"dog\ncat\n").out
        assert rlx("embed", tiny, "--device", "cpu", stdin=b"\xef\xbb\xbfdog\r\ncat\r\n").out == plain


class TestQuery:
    def test_the_nearest_come_first(self, rlx: Rlx, tiny: Path, tmp_path: Path) -> None:
        (tmp_path / "s.txt").write_text("\n".join(SENTENCES))
        ran = rlx("embed", tiny, tmp_path / "s.txt", "--device", "cpu", "--query", SENTENCES[2], "--top", "4")
        lines = [line.split("  ", 1) for line in ran.out.splitlines()]
        assert len(lines) == 4 and lines[0] == ["1.0000", SENTENCES[2]]
        scores = [float(score) for score, _ in lines]
        assert scores == sorted(scores, reverse=True)

    def test_blank_lines_are_no_answers(self, rlx: Rlx, tiny: Path) -> None:
        ran = rlx("embed", tiny, "--device", "cpu", "--query", "", stdin=b"\ndog\n   \ncat\n")
        assert sorted(line.split("  ", 1)[1] for line in ran.out.splitlines()) == ["cat", "dog"]

    def test_nothing_to_search_in(self, rlx: Rlx, tiny: Path) -> None:
        ran = rlx("embed", tiny, "--query", "dog", stdin=b"\n\n")
        assert (ran.status, ran.out, ran.err) == (2, "", "rlx: standard input: no sentences to search in\n")

    def test_with_out_both_are_done(self, rlx: Rlx, tiny: Path, file: Path, tmp_path: Path) -> None:
        ran = rlx(
            "embed",
            tiny,
            file,
            "--device",
            "cpu",
            "--query",
            "a dog",
            "--top",
            1,
            "--out",
            tmp_path / "x.npy",
        )
        assert ran.out.endswith("  a dog runs\n") and np.load(tmp_path / "x.npy").shape == (4, 24)


class TestErrors:
    def failing(self, rlx: Rlx, *arguments: object, stdin: bytes = b"dog\n") -> str:
        ran = rlx("embed", *arguments, stdin=stdin)
        assert ran.status == 2 and ran.out == ""
        assert ran.err.startswith("rlx: ") and ran.err.count("\n") == 1
        return ran.err

    def test_no_such_file(self, rlx: Rlx, tiny: Path) -> None:
        assert "/absent.txt: cannot be read: No such file" in self.failing(rlx, tiny, "/absent.txt")

    def test_a_folder_of_sentences(self, rlx: Rlx, tiny: Path, tmp_path: Path) -> None:
        assert "cannot be read: Is a directory" in self.failing(rlx, tiny, tmp_path)

    def test_text_of_another_encoding(self, rlx: Rlx, tiny: Path) -> None:
        said = self.failing(rlx, tiny, stdin=b"dog\nc\xe4t\n")
        assert "standard input: line 2 is not UTF-8 text" in said

    @pytest.mark.parametrize("name", ["absent/x.npy", "."])
    def test_an_output_that_cannot_be_written(self, rlx: Rlx, tiny: Path, tmp_path: Path, name: str) -> None:
        said = self.failing(rlx, tiny, "--device", "cpu", "--out", tmp_path / name)
        assert "cannot be written" in said

    def test_an_unknown_device(self, rlx: Rlx, tiny: Path) -> None:
        assert "'tpu' is not understood" in self.failing(rlx, tiny, "--device", "tpu")

    def test_an_unknown_dtype(self, rlx: Rlx, tiny: Path) -> None:
        assert "'f12' is not an rlx dtype" in self.failing(rlx, tiny, "--dtype", "f12")
        assert "f32, f16 or bf16" in self.failing(rlx, tiny, "--dtype", "i8")

    def test_a_damaged_model(self, rlx: Rlx, tiny: Path, tmp_path: Path) -> None:
        from tests.models.tiny import write_model

        file = write_model(tmp_path / "bad") / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
        assert str(file) in self.failing(rlx, tmp_path / "bad")


class TestWhatIsLeft:
    def test_the_first_numbers(self, rlx: Rlx, file: Path, tmp_path: Path) -> None:
        folder = write(tmp_path / "folder", "mean")
        for more, name in (((), "a"), (("--normalize",), "b")):
            out = tmp_path / f"{name}.npy"
            assert rlx("embed", folder, file, "--device", "cpu", "--truncate-dim", "7", "--out", out, *more).status == 0
        cut, unit = (np.load(tmp_path / f"{name}.npy") for name in "ab")
        whole = embeddings(folder, TEXT.split("\n")[:-1])
        assert np.abs(cut - whole[:, :7]).max() <= 1e-6
        assert np.abs(unit - whole[:, :7] / np.linalg.norm(whole[:, :7], axis=1, keepdims=True)).max() <= 1e-6
        ran = rlx("embed", folder, file, "--device", "cpu", "--truncate-dim", "99")
        assert ran.status == 2 and "truncate_dim is 99, expected an integer from 1 to 24" in ran.err


class TestSparse:
    def test_rows_and_files(self, rlx: Rlx, file: Path, tmp_path: Path) -> None:
        folder = task_folders.write(tmp_path / "folder", "splade")
        with rlx_package.models.load(folder, "cpu") as model:
            exact = model.encode_sparse(TEXT.split("\n")[:-1])
            query = dict(zip(*model.encode_sparse(["dog"])[0], strict=True))
        ran = rlx("embed", folder, file, "--device", "cpu", "--sparse")
        assert ran.status == 0
        for line, (indices, values) in zip(ran.out.splitlines(), exact, strict=True):
            pairs = [part.split(":") for part in line.split()]
            assert [int(i) for i, _ in pairs] == indices.tolist()
            assert np.array_equal(np.array([v for _, v in pairs], np.float32), values)
        rlx("embed", folder, file, "--device", "cpu", "--sparse", "--out", tmp_path / "x.npz")
        with np.load(tmp_path / "x.npz") as held:  # the parts that scipy.sparse.load_npz reads
            assert held["format"].item() == b"csr" and held["shape"].tolist() == [4, model.width]
            assert held["indptr"].tolist() == np.cumsum([0, *(len(i) for i, _ in exact)]).tolist()
            assert np.array_equal(held["data"], np.concatenate([v for _, v in exact]))
            assert np.array_equal(held["indices"], np.concatenate([i for i, _ in exact]))
        ran = rlx("embed", folder, file, "--device", "cpu", "--sparse", "--query", "dog", "--top", "1")
        best = max(sum(query.get(i, 0) * v for i, v in zip(*exact[k], strict=True)) for k in (0, 1, 3))
        assert float(ran.out.split()[0]) == pytest.approx(best, abs=1e-4)

    def test_the_flag_and_the_folder(self, rlx: Rlx, tiny: Path, file: Path, tmp_path: Path) -> None:
        folder = task_folders.write(tmp_path / "folder", "splade")
        for args, message in (((folder, file), "add --sparse"), ((tiny, file, "--sparse"), "leave out --sparse"),
                              ((folder, file, "--sparse", "--normalize"), "are for embeddings")):  # fmt: skip
            ran = rlx("embed", *args, "--device", "cpu")
            assert ran.status == 2 and message in ran.err


class TestLabelsAndOrder:
    def test_documents_in_order(self, rlx: Rlx, file: Path, tmp_path: Path) -> None:
        folder = task_folders.write(tmp_path / "folder", "cross-encoder")
        texts = [line for line in TEXT.split("\n") if line]
        with rlx_package.models.load(folder, "cpu") as model:
            exact = model.rank("the river", texts, top_k=2, return_documents=True)
        ran = rlx("rerank", folder, "the river", file, "--device", "cpu", "--top", "2")
        assert ran.status == 0
        assert ran.out.splitlines() == [f"{one['score']:.4f}  {one['text']}" for one in exact]
        ran = rlx("rerank", tmp_path / "folder", "the river", "-", "--device", "cpu", stdin=b"\n")
        assert ran.status == 2 and "no documents" in ran.err

    def test_models_without_scores(self, rlx: Rlx, tiny: Path, file: Path) -> None:
        ran = rlx("rerank", tiny, "the river", file, "--device", "cpu")
        assert ran.status == 2 and "has no scores of texts and pairs; it has embeddings" in ran.err

    def test_labels(self, rlx: Rlx, file: Path, tmp_path: Path) -> None:
        folder = task_folders.write(tmp_path / "texts", "cross-encoder of three labels")
        with rlx_package.models.load(folder, "cpu") as model:
            exact = model.classify(TEXT.split("\n")[:-1], top_k=2)
        ran = rlx("classify", folder, file, "--device", "cpu", "--top", "2")
        assert ran.out.splitlines() == ["  ".join(f"{o['score']:.4f} {o['label']}" for o in row) for row in exact]
        folder = task_folders.write(tmp_path / "tokens", "labels of tokens")
        with rlx_package.models.load(folder, "cpu") as model:
            rows = model.classify_tokens(TEXT.split("\n")[:-1], aggregation="simple")
        ran = rlx("classify", folder, file, "--device", "cpu")
        assert ran.out.splitlines() == [
            f"{i}:{o['start']}-{o['end']}  {o['score']:.4f}  {o['entity_group']}  {o['word']}"
            for i, row in enumerate(rows, 1) for o in row
        ]
        ran = rlx("classify", folder, file, "--device", "cpu", "--top", "2")
        assert ran.status == 2 and "--top is for labels of texts" in ran.err
