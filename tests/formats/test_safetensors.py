"""safetensors: beside the format's own package in both directions, and every lie a file can tell."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from rlx.errors import DTypeError, ModelFormatError
from rlx.formats import safetensors as st
from tests.formats.blobs import blob, entry, write

RNG = np.random.default_rng(5)
ARRAYS: dict[str, Any] = {
    "f64": RNG.standard_normal((3, 2)),
    "f32": RNG.standard_normal((5, 1, 7)).astype(np.float32),
    "f16": RNG.standard_normal(9).astype(np.float16),
    "bf16": RNG.standard_normal((2, 3)).astype(ml_dtypes.bfloat16),
    "i64": RNG.integers(-(2**60), 2**60, (4,)),
    "i32": RNG.integers(-(2**30), 2**30, (2, 2), np.int32),
    "i16": RNG.integers(-9, 9, 3, np.int16),
    "i8": RNG.integers(-9, 9, (3, 1), np.int8),
    "u8": RNG.integers(0, 255, 11, np.uint8),
    "u16": RNG.integers(0, 999, 2, np.uint16),
    "u32": RNG.integers(0, 2**32, 2, np.uint32),
    "u64": RNG.integers(0, 2**63, 2, np.uint64),
    "bool": RNG.integers(0, 2, 13).astype(bool),
    "scalar": np.float32(3.5),
    "empty": np.zeros((0, 4), np.float32),
    'näme with "quotes" and \n': np.arange(3, dtype=np.int32),
}


def same(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


class TestRoundTrip:
    def test_what_the_package_writes_is_read(self, tmp_path: Path) -> None:
        given = {name: np.asarray(a) for name, a in ARRAYS.items()}
        safetensors.numpy.save_file(given, tmp_path / "x.safetensors", metadata={"format": "np"})
        found = st.SafetensorsFile(tmp_path / "x.safetensors")
        assert set(found) == set(given) and len(found) == len(given)
        assert all(same(found[name], a) for name, a in given.items())
        assert found.metadata == {"format": "np"}

    def test_what_is_written_the_package_reads(self, tmp_path: Path) -> None:
        st.save(tmp_path / "x.safetensors", ARRAYS, {"made": "here"})
        found = safetensors.numpy.load_file(tmp_path / "x.safetensors")
        assert set(found) == set(ARRAYS)
        assert all(same(found[name], a) for name, a in ARRAYS.items())

    def test_own_round_trip_of_arrays_that_are_not_contiguous(self, tmp_path: Path) -> None:
        given = {"t": np.arange(24).reshape(4, 6).T, "s": np.arange(20, dtype=np.float32)[::-3], "l": [1, 2]}
        st.save(tmp_path / "x.safetensors", given)
        found = st.load(tmp_path / "x.safetensors")
        assert all(same(found[name], a) for name, a in given.items())

    @pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i2", "i4", "i8", "u4"])
    def test_arrays_of_either_byte_order_are_the_packages_bytes(self, kind: str, tmp_path: Path) -> None:
        given = {"w": np.arange(1, 7).reshape(2, 3).T.astype(f">{kind}")}
        st.save(tmp_path / "x.safetensors", given)
        found = safetensors.numpy.load_file(tmp_path / "x.safetensors")["w"]
        assert found.dtype == np.dtype(f"<{kind}") and np.array_equal(found, given["w"])

    def test_8_bit_floats(self, tmp_path: Path) -> None:
        given = {
            "a": np.arange(8).astype(ml_dtypes.float8_e4m3fn),
            "b": np.arange(8).astype(ml_dtypes.float8_e5m2),
        }
        st.save(tmp_path / "x.safetensors", given)
        header = json.loads((tmp_path / "x.safetensors").read_bytes()[8:].split(b"}}")[0] + b"}}")
        assert {e["dtype"] for e in header.values()} == {"F8_E4M3", "F8_E5M2"}
        found = st.load(tmp_path / "x.safetensors")
        assert all(same(found[name], a) for name, a in given.items())

    def test_no_tensors_at_all(self, tmp_path: Path) -> None:
        st.save(tmp_path / "x.safetensors", {})
        assert dict(st.load(tmp_path / "x.safetensors")) == {}
        assert dict(st.load(write(tmp_path / "y.safetensors", {}))) == {}

    def test_arrays_are_read_only_and_aligned_wherever_the_data_begins(self, tmp_path: Path) -> None:
        values = np.arange(4, dtype=np.float64)
        for pad in range(8):
            header = json.dumps({"x": entry("F64", [4], 0, 32)}).encode() + b" " * pad
            array = st.load(write(tmp_path / "x.safetensors", header, values.tobytes()))["x"]
            assert same(array, values) and array.flags.aligned
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1

    def test_reading_keeps_the_file_as_it_was_when_it_is_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "x.safetensors"
        st.save(path, {"x": np.arange(4)})
        opened = st.SafetensorsFile(path)
        st.save(path, {"x": np.arange(900), "y": np.arange(3)})
        assert same(opened["x"], np.arange(4))

    def test_a_file_that_shrinks_is_noticed(self, tmp_path: Path) -> None:
        path = tmp_path / "x.safetensors"
        st.save(path, {"x": np.arange(100_000)})
        opened = st.SafetensorsFile(path)
        os.truncate(path, 4096)
        with pytest.raises(ModelFormatError, match=r"x\.safetensors.*'x'.*cut short"):
            opened["x"]
        out = np.empty(opened.infos["x"].end - opened.infos["x"].begin, np.uint8)
        with pytest.raises(ModelFormatError, match=r"x\.safetensors.*'x'.*cut short"):
            opened.read_into("x", out)

    def test_bytes_are_read_as_the_arrays_have_them(self, tmp_path: Path) -> None:
        given = {"x": np.arange(30, dtype=np.float32).reshape(5, 6), "none": np.empty((0, 3)), "b": np.array([True])}
        st.save(tmp_path / "x.safetensors", given)
        opened = st.SafetensorsFile(tmp_path / "x.safetensors")
        for name, array in given.items():
            out = np.zeros(array.nbytes, np.uint8)
            opened.read_into(name, out)
            assert out.tobytes() == array.tobytes()


class TestSave:
    def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(self, tmp_path: Path) -> None:
        path = tmp_path / "x.safetensors"
        st.save(path, {"x": np.arange(4)})
        with pytest.raises(DTypeError, match=r"'x'.*dtype <U2"):
            st.save(path, {"x": np.array(["no"])})
        assert same(st.load(path)["x"], np.arange(4))
        assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]

    @pytest.mark.parametrize("name", ["__metadata__", 3], ids=repr)
    def test_names_the_format_cannot_hold(self, tmp_path: Path, name: Any) -> None:
        with pytest.raises(ModelFormatError, match="cannot be named"):
            st.save(tmp_path / "x.safetensors", {name: np.arange(2)})

    def test_metadata_must_be_text(self, tmp_path: Path) -> None:
        with pytest.raises(ModelFormatError, match="metadata"):
            st.save(tmp_path / "x.safetensors", {}, {"n": 3})  # type: ignore[dict-item]


F2 = entry("F32", [2], 0, 8)
LIES: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "0 bytes are too few"),
    "seven bytes": (b"\0" * 7, "7 bytes are too few"),
    "header beyond the file": (blob({}, length=3), "header takes 3 bytes; the file has 2"),
    "header of 2**64-1 bytes": (blob({}, length=2**64 - 1), "header takes 18,446,744,073,709,551,615"),
    "a pointer of Git LFS": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS: download the file itself"),
    "no header": (blob(b""), "does not begin with"),
    "not JSON": (blob(b"{]"), "not valid JSON"),
    "a list": (blob(b"[]"), "does not begin with"),
    "white space first": (blob(b" {}"), "does not begin with"),
    "two objects": (blob(b"{}{}"), "not valid JSON"),
    "not UTF-8": (blob(b'{"\xff": 1}'), "not valid JSON"),
    "nested 100,000 deep": (blob(b'{"x":' + b"[" * 100_000), "not valid JSON"),
    "nested objects": (blob(b'{"x":' * 50_000), "not valid JSON"),
    "NaN": (blob(b'{"x": NaN}'), "NaN is not JSON"),
    "a tensor twice": (blob(b'{"x": 1, "x": 2}'), "names 'x' twice"),
    "a key of an entry twice": (blob(b'{"x": {"dtype": 1, "dtype": 2}}'), "names 'dtype' twice"),
    "integer of 5,000 digits": (blob(b'{"x": ' + b"9" * 5000 + b"}"), "99999 is not JSON"),
    "entry is a number": (blob({"x": 3}), "'x': its entry must have"),
    "entry lacks its dtype": (
        blob({"x": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
        "entry must have",
    ),
    "entry has more": (blob({"x": {**F2, "more": 1}}, bytes(8)), "'x': its entry must have"),
    "unknown dtype": (blob({"x": entry("F31", [2], 0, 8)}, bytes(8)), "dtype 'F31' is not known"),
    "dtype is a list": (blob({"x": entry(["F32"], [2], 0, 8)}, bytes(8)), "is not known"),
    "shape is a number": (blob({"x": entry("F32", 2, 0, 8)}, bytes(8)), "shape 2 must be a list"),
    "negative dimension": (blob({"x": entry("F32", [-2], 0, 8)}, bytes(8)), r"shape \[-2\] must be"),
    "dimension true": (blob({"x": entry("U8", [True], 0, 1)}, bytes(1)), r"shape \[True\] must be"),
    "dimension 2.0": (blob({"x": entry("F32", [2.0], 0, 8)}, bytes(8)), r"shape \[2.0\] must be"),
    "dimension null": (blob({"x": entry("F32", [None], 0, 8)}, bytes(8)), "must be a list"),
    "1,000 dimensions": (blob({"x": entry("U8", [1] * 1000, 0, 1)}, bytes(1)), "at most 32 integers"),
    "three offsets": (blob({"x": {**F2, "data_offsets": [0, 8, 8]}}, bytes(8)), "must be two integers"),
    "negative offset": (blob({"x": entry("F32", [2], -8, 0)}, bytes(8)), "must be two integers"),
    "end before begin": (blob({"x": entry("F32", [2], 8, 0)}, bytes(8)), "lie outside"),
    "end beyond the file": (blob({"x": entry("F32", [3], 0, 12)}, bytes(8)), "outside the 8 bytes"),
    "offsets of 2**64": (blob({"x": entry("F32", [2], 2**64, 2**64 + 8)}, bytes(8)), "lie outside"),
    "size that wraps at 2**64": (blob({"x": entry("F32", [2**62, 4], 0, 0)}), "do not hold shape"),
    "wraps to the right size": (blob({"x": entry("U8", [2**32, 2**32], 0, 0)}), "do not hold shape"),
    "no elements of 2**80": (blob({"x": entry("U8", [0, 2**80], 0, 0)}), "beyond what an array can have"),
    "no elements of 2**62 ** 2": (blob({"x": entry("U8", [2**62, 0, 2**62], 0, 0)}), "beyond what an array"),
    "size too small": (blob({"x": entry("F32", [2], 0, 4)}, bytes(4)), "4 bytes do not hold shape"),
    "overlap": (blob({"x": F2, "y": entry("F32", [2], 4, 12)}, bytes(12)), "'y' overlaps the tensor before"),
    "the same bytes twice": (blob({"x": F2, "y": F2}, bytes(8)), "'y' overlaps"),
    "hole": (blob({"x": F2, "y": entry("F32", [1], 12, 16)}, bytes(16)), "'y' leaves a hole"),
    "hole at the start": (blob({"x": entry("F32", [1], 4, 8)}, bytes(8)), "'x' leaves a hole"),
    "bytes after the last tensor": (blob({"x": F2}, bytes(9)), "end at byte .*, the file at"),
    "metadata is a list": (blob({"__metadata__": []}), "__metadata__ must map"),
    "metadata holds a number": (blob({"__metadata__": {"a": 1}}), "__metadata__ must map"),
    "a tensor as metadata": (blob({"__metadata__": F2}, bytes(8)), "__metadata__ must map"),
}


@pytest.mark.parametrize("case", LIES)
def test_lies(case: str, tmp_path: Path) -> None:
    content, message = LIES[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelFormatError, match=message) as caught:
        st.load(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 500, "a message stays readable whatever the file holds"


def test_a_name_of_a_million_characters_does_not_fill_the_message(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", {"n" * 1_000_000: 3})
    with pytest.raises(ModelFormatError) as caught:
        st.load(path)
    assert len(str(caught.value)) < 500


def test_a_name_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError) as caught:
        st.load(write(tmp_path / "x.safetensors", {"a\x1b[2J\nb\ud800": 3}))
    assert str(caught.value).isprintable()


def test_a_bool_of_two_is_refused(tmp_path: Path) -> None:
    opened = st.load(write(tmp_path / "x.safetensors", {"x": entry("BOOL", [2], 0, 2)}, b"\1\2"))
    with pytest.raises(ModelFormatError, match=r"'x'.*neither 0 nor 1"):
        opened["x"]


class TestShards:
    def make(self, folder: Path, table: Any) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        st.save(folder / "a.safetensors", {"x": np.arange(3)})
        st.save(folder / "b.safetensors", {"y": np.arange(4.0), "z": np.arange(2)})
        (folder / st.INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": table}))
        return folder

    GOOD = {"x": "a.safetensors", "y": "b.safetensors", "z": "b.safetensors"}  # noqa: RUF012

    def test_a_folder_of_shards_reads_as_one(self, tmp_path: Path) -> None:
        found = st.load(self.make(tmp_path, self.GOOD))
        assert sorted(found) == ["x", "y", "z"] and len(found) == 3
        assert same(found["y"], np.arange(4.0))
        assert same(st.load(tmp_path / st.INDEX_NAME)["x"], np.arange(3))

    @pytest.mark.parametrize(
        "name",
        [
            "../a.safetensors",
            "/etc/passwd",
            "sub/a.safetensors",
            "..",
            ".",
            "",
            "a\0b",
            "\ud800",
            "n" * 5000,
            "absent.safetensors",
        ],
        ids=lambda n: ascii(n)[:24],
    )
    def test_shards_elsewhere(self, tmp_path: Path, name: str) -> None:
        folder = self.make(tmp_path / "model", {"x": name})
        st.save(tmp_path / "a.safetensors", {"x": np.arange(3)})
        with pytest.raises(ModelFormatError) as caught:
            st.load(folder)
        assert len(str(caught.value)) < 500 + 5000 * (len(name) == 5000)

    def test_a_link_out_of_the_folder(self, tmp_path: Path) -> None:
        folder = self.make(tmp_path / "model", {"x": "link.safetensors"})
        st.save(tmp_path / "outside.safetensors", {"x": np.arange(3)})
        (folder / "link.safetensors").symlink_to("../outside.safetensors")
        with pytest.raises(ModelFormatError, match="not a name inside"):
            st.load(folder)

    def test_a_link_to_itself(self, tmp_path: Path) -> None:
        folder = self.make(tmp_path, {"x": "loop"})
        (folder / "loop").symlink_to("loop")
        with pytest.raises(ModelFormatError):
            st.load(folder)

    def test_the_cache_layout_of_links_into_blobs(self, tmp_path: Path) -> None:
        folder = self.make(tmp_path / "models--x/snapshots/abc", self.GOOD)
        blobs = tmp_path / "models--x/blobs"
        blobs.mkdir()
        for name in ("a.safetensors", "b.safetensors"):
            (folder / name).rename(blobs / name)
            (folder / name).symlink_to(f"../../blobs/{name}")
        assert same(st.load(folder)["x"], np.arange(3))

    @pytest.mark.parametrize("table", [None, [], {"x": 3}, {"x": ["a.safetensors"]}], ids=repr)
    def test_a_table_of_other_things(self, tmp_path: Path, table: Any) -> None:
        with pytest.raises(ModelFormatError, match="weight_map must map"):
            st.load(self.make(tmp_path, table))

    def test_a_tensor_that_is_not_in_its_shard(self, tmp_path: Path) -> None:
        with pytest.raises(ModelFormatError, match=r"'w' is not in 'a\.safetensors'"):
            st.load(self.make(tmp_path, {"w": "a.safetensors"}))


def test_a_folder_without_weights_names_the_pickle(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(
        ModelFormatError, match=r"neither model\.safetensors nor .*pytorch_model\.bin is a pickle"
    ):
        st.load(tmp_path)
