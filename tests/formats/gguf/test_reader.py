"""GGUF files: beside the format's own package in both directions, and every lie a file can tell."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx import dtypes
from rlx.errors import DTypeError, ModelFormatError, RlxError
from rlx.formats import gguf
from rlx.formats.gguf import reader
from rlx.host import parallel_copy as spread
from rlx.packed import PackedArray
from tests.formats.gguf import malformed as m
from tests.outside import outside

RNG = np.random.default_rng(5)
METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 3,
    "negative": -7,
    "wide": 2**63,
    "yes": True,
    "text ☃": "zwei\nZeilen",
    "floats": [1.5, -2.0],
    "words": ["a", "", "☃"],
    "flags": [True, False],
    "nested": [[1, 2], [3]],
    "nothing": [],
}
ROWS = RNG.standard_normal((3, 512)).astype(np.float32)
PLAIN: dict[str, Any] = {
    "f32": ROWS,
    "f64": RNG.standard_normal((2, 1, 3)),
    "f16": ROWS.astype(np.float16),
    "bf16": ROWS.astype(ml_dtypes.bfloat16),
    "i8": np.arange(-3, 4, dtype=np.int8),
    "i32": np.arange(5, dtype=np.int32),
    "i64": np.arange(5) - 2**60,
    "scalar": np.array(2.5, np.float32),
    "empty": np.zeros((0, 4), np.float32),
}


def stored(value: Any) -> bytes:
    return bytes(value.data if isinstance(value, PackedArray) else np.asarray(value).tobytes())


def random_blocks(name: str) -> PackedArray:
    kind = dtypes.PACKED[name]
    return PackedArray.from_gguf(RNG.integers(0, 256, kind.nbytes((3, 512)), np.uint8), kind, (3, 512))


class TestRoundTrip:
    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        given = {**PLAIN, **{name: random_blocks(name) for name in dtypes.GGUF}}
        gguf.write(tmp_path / "x.gguf", METADATA, given)
        with gguf.read(tmp_path / "x.gguf") as file:
            assert dict(file.metadata) == METADATA and file.version == 3
            assert {n: (t.shape, t.dtype) for n, t in file.tensors.items()} == {
                n: (v.shape, v.dtype if isinstance(v, PackedArray) else dtypes.as_dtype(v.dtype))
                for n, v in given.items()
            }
            for name, value in given.items():
                assert stored(file.tensors[name].read()) == stored(value), name
                assert file.tensors[name].nbytes == value.nbytes
            gguf.write(tmp_path / "again.gguf", file.metadata, file.tensors)
        assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "x.gguf").read_bytes()

    @pytest.mark.judged
    def test_the_package_reads_what_is_written(self, tmp_path: Path) -> None:
        package = outside("gguf")
        given = {**PLAIN, "q4_k": rlx.quantize(ROWS, "q4_k"), "mxfp4": rlx.quantize(ROWS, "mxfp4")}
        gguf.write(tmp_path / "x.gguf", METADATA, given)
        found = package.GGUFReader(tmp_path / "x.gguf")
        for key, value in METADATA.items():
            if key not in ("nested", "nothing"):
                assert found.get_field(key).contents() == value, key
        for tensor in found.tensors:
            value = given[tensor.name]
            if isinstance(value, PackedArray):
                decoded = package.quants.dequantize(tensor.data, tensor.tensor_type)
                assert np.array_equal(decoded, value.dequantize())
            assert tensor.shape.tolist()[::-1] == list(value.shape)
            content = value.to_gguf() if isinstance(value, PackedArray) else value
            assert tensor.data.tobytes() == content.tobytes(), tensor.name

    @pytest.mark.judged
    def test_what_the_package_writes_is_read(self, tmp_path: Path) -> None:
        package = outside("gguf")
        writer = package.GGUFWriter(tmp_path / "x.gguf", "llama")
        numbers = {
            "uint8": 200,
            "int8": -5,
            "uint16": 65_535,
            "int16": -300,
            "uint32": 2**32 - 1,
            "int32": -(2**31),
        }
        numbers |= {"uint64": 2**64 - 1, "int64": -(2**63), "float32": 0.5, "float64": 0.1, "bool": True}
        for name, value in numbers.items():
            getattr(writer, f"add_{name}")(name, value)
        writer.add_array("words", ["a", "☃"])
        writer.add_array("ints", [1, -2])
        writer.add_custom_alignment(64)
        writer.add_tensor("f32", ROWS)
        kinds = [package.GGMLQuantizationType[k] for k in ("Q8_0", "Q4_0", "Q5_1", "BF16", "TQ1_0")]
        for kind in kinds:
            writer.add_tensor(kind.name, package.quants.quantize(ROWS, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with gguf.read(tmp_path / "x.gguf") as file:
            for name, value in numbers.items():
                assert file.metadata[name] == value and type(file.metadata[name]) is type(value)
            assert file.metadata["words"] == ["a", "☃"] and file.metadata["ints"] == [1, -2]
            assert np.array_equal(file.tensors["f32"].read(), ROWS)
            for kind in kinds:
                found: Any = file.tensors[kind.name].read()
                expected = package.quants.dequantize(package.quants.quantize(ROWS, kind), kind)
                assert found.shape == ROWS.shape
                got = found.dequantize() if isinstance(found, PackedArray) else found.astype(np.float32)
                assert np.array_equal(got, expected), kind.name

    def test_numbers_of_numpy_keep_their_type(self, tmp_path: Path) -> None:
        values = {"u16": np.uint16(3), "f64": np.float64(0.1), "i8s": np.arange(-2, 2, dtype=np.int8)}
        gguf.write(tmp_path / "x.gguf", values, {})
        content = (tmp_path / "x.gguf").read_bytes()
        assert m.key("u16", m.U16, 3) in content and m.key("f64", m.F64, 0.1) in content
        assert m.key("i8s", m.ARRAY, m.array(m.I8, values["i8s"].tobytes(), 4)) in content

    def test_version_2_and_holes_between_tensors(self, tmp_path: Path) -> None:
        data = np.arange(64, dtype=np.float32).tobytes()
        infos = [m.info("late", (2, 4), 0, 128), m.info("a", (8,), 0, 0), m.info("none", (0, 4), 0, 0)]
        (tmp_path / "x.gguf").write_bytes(m.blob(None, infos, data, version=2))
        with gguf.read(tmp_path / "x.gguf") as file:
            late: Any = file.tensors["late"].read()
            assert file.version == 2 and late.shape == (4, 2) and late[0, 0] == 32
            assert np.array_equal(np.asarray(file.tensors["a"].read()), np.arange(8))


def test_large_tensors_are_read_by_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "_PER_THREAD", 1000)
    monkeypatch.setattr(reader, "_PIECE_BYTES", 1500)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(5), raising=False)
    floats = RNG.standard_normal((37, 256)).astype(np.float32)
    packed = rlx.quantize(floats, "q8_0")
    gguf.write(tmp_path / "x.gguf", {}, {"f": floats, "q": packed})
    with gguf.read(tmp_path / "x.gguf") as file:
        assert stored(file.tensors["f"].read()) == stored(floats)
        assert stored(file.tensors["q"].read()) == stored(packed)
        assert stored(file.tensors["q"].read(3, 20)) == stored(
            PackedArray(packed.dtype, (17, 256), packed.data[3:20])
        )
        os.truncate(tmp_path / "x.gguf", 4000)
        for name in "fq":
            with pytest.raises(ModelFormatError, match="cut short"):
                file.tensors[name].read()


class TestWriting:
    @pytest.mark.parametrize(
        "key, value, words",
        [
            ("", 1, "a key"),
            ("k", 2**64, "64 bits"),
            ("k", -(2**63) - 1, "64 bits"),
            ("k", [2**63, -1], "64 bits"),
            ("k", None, "expected a bool"),
            ("k", {"a": 1}, "expected a bool"),
            ("k", ["a", 1], "int, str"),
            ("k", "\ud800", "surrogate"),
            ("general.alignment", 0, "power of two"),
            ("general.alignment", 48, "power of two"),
        ],
    )
    def test_values_that_the_format_cannot_hold(
        self, key: str, value: Any, words: str, tmp_path: Path
    ) -> None:
        with pytest.raises(ModelFormatError, match=words):
            gguf.write(tmp_path / "x.gguf", {key: value}, {})
        assert not list(tmp_path.iterdir())

    def test_dtypes_that_it_lacks(self, tmp_path: Path) -> None:
        for value in (np.zeros(3, bool), rlx.quantize(ROWS, "int4")):
            with pytest.raises(DTypeError, match="GGUF's types are"):
                gguf.write(tmp_path / "x.gguf", {}, {"t": value})
        assert not list(tmp_path.iterdir())

    def test_a_failure_leaves_the_old_file(self, tmp_path: Path) -> None:
        class Broken:
            shape, dtype = (3,), dtypes.f32

            def read(self) -> np.ndarray[Any, Any]:
                raise OSError("no more")

        (tmp_path / "x.gguf").write_bytes(b"old")
        with pytest.raises(OSError, match="no more"):
            gguf.write(tmp_path / "x.gguf", {}, {"t": Broken()})
        assert (tmp_path / "x.gguf").read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", m.MALFORMED)
def test_malformed_files(name: str, tmp_path: Path) -> None:
    content, words = m.MALFORMED[name]
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(ModelFormatError) as caught:
        gguf.read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 22
    message = str(caught.value)
    assert words in message and str(path) in message and message.isprintable() and len(message) < 1000


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    gguf.write(tmp_path / "x.gguf", METADATA, {"a": ROWS[:, :8], "q": rlx.quantize(ROWS[:1, :32], "q8_0")})
    padding = 30  # the file ends with zeros up to the alignment, which no tensor has
    for length in reversed(range((tmp_path / "x.gguf").stat().st_size - padding)):
        os.truncate(tmp_path / "x.gguf", length)
        with pytest.raises(ModelFormatError):
            gguf.read(tmp_path / "x.gguf")


@pytest.mark.parametrize("dtype", ["f32", "q8_0"])
def test_a_file_cut_short_while_open(dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    gguf.write(path, {}, {"a": ROWS, "t": ROWS if dtype == "f32" else rlx.quantize(ROWS, dtype)})
    with gguf.read(path) as file:
        os.truncate(path, path.stat().st_size - 600)
        assert np.array_equal(np.asarray(file.tensors["a"].read()), ROWS)
        with pytest.raises(ModelFormatError, match="'t': the file has been cut short"):
            file.tensors["t"].read()
    with pytest.raises(RlxError, match="was closed"):
        file.tensors["a"].read()


def test_values_by_type(tmp_path: Path) -> None:
    gguf.write(tmp_path / "x.gguf", METADATA, {})
    with gguf.read(tmp_path / "x.gguf") as file:
        assert file.value("llama.block_count", int) == 3 and file.value("llama.block_count", float) == 3.0
        assert file.value("missing", str, "other") == "other"
        with pytest.raises(ModelFormatError, match="no missing"):
            file.value("missing", int)
        with pytest.raises(ModelFormatError, match=r"expected an? int"):
            file.value("yes", int)


class TestSplit:
    def write(self, folder: Path, count: int = 3, **other: Any) -> list[Path]:
        paths = [folder / f"m-{i + 1:05}-of-{count:05}.gguf" for i in range(count)]
        for i, path in enumerate(paths):
            split = {"split.no": np.uint16(i), "split.count": np.uint16(count), "split.tensors.count": count}
            gguf.write(path, {**(METADATA if not i else {}), **split, **other}, {f"t{i}": ROWS + i})
        return paths

    def test_any_file_of_a_model_gives_all(self, tmp_path: Path) -> None:
        for path in self.write(tmp_path):
            with gguf.read(path) as file:
                assert (
                    list(file.tensors) == ["t0", "t1", "t2"] and file.metadata["words"] == METADATA["words"]
                )
                assert all(
                    np.array_equal(np.asarray(file.tensors[f"t{i}"].read()), ROWS + i) for i in range(3)
                )
                assert file.nbytes == sum(p.stat().st_size for p in tmp_path.iterdir())

    def test_a_missing_file(self, tmp_path: Path) -> None:
        self.write(tmp_path)[1].unlink()
        with pytest.raises(ModelFormatError, match=r"m-00002-of-00003\.gguf"):
            gguf.read(tmp_path / "m-00001-of-00003.gguf")

    def test_a_file_that_leads_elsewhere(self, tmp_path: Path) -> None:
        folder = tmp_path / "folder"
        folder.mkdir()
        paths = self.write(folder)
        paths[1].rename(tmp_path / "other.gguf")
        paths[1].symlink_to(tmp_path / "other.gguf")
        with pytest.raises(ModelFormatError, match="inside the model's folder"):
            gguf.read(paths[0])

    @pytest.mark.parametrize(
        "other, words",
        [
            ({"split.tensors.count": 4}, "hold 3 tensors"),
            ({"split.no": np.uint16(1)}, "split.no is 1, expected 0"),
            ({"split.count": np.uint16(2)}, r"00002\.gguf"),
        ],
    )
    def test_what_contradicts_itself(self, other: dict[str, Any], words: str, tmp_path: Path) -> None:
        with pytest.raises(ModelFormatError, match=words):
            gguf.read(self.write(tmp_path, **other)[0])

    def test_the_same_tensor_in_two_files(self, tmp_path: Path) -> None:
        paths = self.write(tmp_path)
        split = {"split.no": np.uint16(1), "split.count": np.uint16(3), "split.tensors.count": 3}
        gguf.write(paths[1], split, {"t0": ROWS})
        with pytest.raises(ModelFormatError, match="'t0' is in two"):
            gguf.read(paths[0])
