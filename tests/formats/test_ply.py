"""Splats in .ply files: what is written comes back, others' layouts are read, and no damaged file does harm."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.errors import DTypeError, ModelFormatError, ShapeError
from rlx.formats.ply import Splats, read_ply, write_ply
from tests.full import full

NAMES = [
    "x",
    "y",
    "z",
    "opacity",
    "scale_0",
    "scale_1",
    "scale_2",
    "rot_0",
    "rot_1",
    "rot_2",
    "rot_3",
    "f_dc_0",
    "f_dc_1",
]
NAMES += ["f_dc_2"]


def some(n: int, k: int) -> Splats:
    rng = np.random.default_rng(n + k)
    parts = (
        rng.normal(size=(n, 3)),
        np.exp(rng.normal(size=(n, 3))),
        rng.normal(size=(n, 4)),
        rng.uniform(size=n),
    )
    return Splats(*(a.astype(np.float32) for a in (*parts, rng.normal(size=(n, k, 3)))))


def file(
    path: Path, names: list[str], rows: Any, kind: str = "float", dtype: str = "<f4", extra: str = ""
) -> Path:
    lines = ["ply", "format binary_little_endian 1.0", "comment by hand", f"element vertex {len(rows)}"]
    lines += [f"property {kind} {name}" for name in names]
    path.write_bytes(
        "\n".join([*lines, *([extra] if extra else []), "end_header\n"]).encode()
        + np.array(rows, dtype).tobytes()
    )
    return path


@pytest.mark.parametrize("n, k", [(0, 1), (1, 1), (5, 4), (7, 9), (20, 16)])
def test_what_is_written_comes_back(n: int, k: int, tmp_path: Path) -> None:
    splats = some(n, k)
    if n > 1:
        splats.scales[0, 0], splats.opacities[:2] = 0, (0, 1)
    write_ply(tmp_path / "a.ply", *splats)
    for name, want, got in zip(Splats._fields, splats, read_ply(tmp_path / "a.ply"), strict=True):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7, err_msg=name)
    assert [p.name for p in tmp_path.iterdir()] == ["a.ply"]


def test_the_layout_is_that_of_others(tmp_path: Path) -> None:
    """Logarithms, logits, and the coefficients of each colour together; in the order of the usual files."""
    write_ply(tmp_path / "a.ply", *some(3, 4))
    head, _, body = (tmp_path / "a.ply").read_bytes().partition(b"end_header\n")
    names = [line.split()[-1] for line in head.decode().splitlines() if line.startswith("property float ")]
    assert names[:9] == ["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2"]
    assert names[9:] == [f"f_rest_{i}" for i in range(9)] + [
        "opacity",
        "scale_0",
        "scale_1",
        "scale_2",
        *NAMES[7:11],
    ]
    table = np.frombuffer(body, "<f4").reshape(3, len(names))
    want = some(3, 4)
    np.testing.assert_allclose(table[:, 9:12], want.colors[:, 1:, 0])
    np.testing.assert_allclose(table[:, 19:22], np.log(want.scales), rtol=1e-5, atol=1e-6)


def test_other_properties_types_and_elements(tmp_path: Path) -> None:
    row = [1, 2, 3, 0, 0, 0, 0, 1, 0, 0, 0, 0.5, 0.25, 0, 9]
    found = read_ply(file(tmp_path / "a.ply", [*NAMES, "red"], [row, row], "double", "<f8", "element face 0"))
    assert found.means.tolist() == [[1, 2, 3]] * 2 and found.opacities.tolist() == [0.5] * 2
    assert found.scales.tolist() == [[1, 1, 1]] * 2 and found.colors.tolist() == [[[0.5, 0.25, 0]]] * 2


@pytest.mark.parametrize(
    "change, words",
    [
        ((b"ply\n", b"plx\n"), "does not begin"),
        ((b"end_header", b"end_heade"), "does not begin"),
        ((b"binary_little_endian", b"ascii"), "format"),
        ((b"format binary_little_endian 1.0\n", b""), "no line 'format"),
        ((b"element vertex 2", b"element vertex -2"), "number of elements"),
        ((b"element vertex 2", b"element vertex 99999999999999999999"), "number of elements"),
        ((b"element vertex 2", b"element vertex 999999999999999"), "describes"),
        ((b"element vertex 2", b"element vertex 1"), "describes"),
        ((b"element vertex 2", b"element corner 2"), "no element 'vertex'"),
        ((b"element vertex 2\n", b"element vertex 2\nelement vertex 2\n"), "twice"),
        ((b"property float y", b"property float x"), "twice"),
        ((b"property float y", b"property half y"), "type is none of"),
        ((b"property float y", b"property list uchar int y"), "not understood"),
        ((b"property float opacity", b"property float cover"), "lack the properties opacity"),
        ((b"property float nx", b"property float f_rest_0"), "f_rest"),
        ((b"element vertex 2\n", b"property float w\nelement vertex 2\n"), "no element"),
        ((b"element vertex 2\n", b"element face 4\nelement vertex 2\n"), "no properties"),
    ],
)
def test_a_header_that_is_wrong(change: tuple[bytes, bytes], words: str, tmp_path: Path) -> None:
    write_ply(tmp_path / "a.ply", *some(2, 1))
    text = (tmp_path / "a.ply").read_bytes()
    assert change[0] in text
    (tmp_path / "a.ply").write_bytes(text.replace(*change, 1))
    with pytest.raises(ModelFormatError, match=words):
        read_ply(tmp_path / "a.ply")


def test_damaged_files_are_refused_or_read(tmp_path: Path) -> None:
    """Bytes flipped, cut and put in: one class of errors, and memory in proportion to the file."""
    write_ply(tmp_path / "a.ply", *some(4, 4))
    text, pick, refused = (tmp_path / "a.ply").read_bytes(), random.Random(1), 0
    words = (
        b"9" * 14,
        b"-1",
        b"list",
        b"double",
        b"\n",
        b"\0",
        b"element vertex 3\n",
        b"property float x\n",
        b"\xff",
    )
    tracemalloc.start()
    for _ in range(1500 if full() else 600):
        made = bytearray(text)
        for _ in range(pick.randrange(1, 4)):
            at = pick.randrange(len(made) if pick.random() < 0.3 else 700)
            way = pick.randrange(3)
            if way == 0:
                made[at] ^= 1 << pick.randrange(8)
            elif way == 1:
                made[at : at + pick.randrange(4)] = pick.choice(words)
            else:
                del made[at : at + pick.randrange(1, 60)]
        (tmp_path / "b.ply").write_bytes(made)
        try:
            found = read_ply(tmp_path / "b.ply")
            assert found.means.shape == (len(found.opacities), 3)
        except ModelFormatError:
            refused += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused > (700 if full() else 250) and peak < 4 << 20


def test_what_is_no_file_and_what_are_no_splats(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="cannot be read"):
        read_ply(tmp_path / "absent.ply")
    with pytest.raises(ModelFormatError, match="not a regular file"):
        read_ply("/dev/zero")
    splats = some(2, 1)
    with pytest.raises(ShapeError, match="write_ply"):
        write_ply(tmp_path / "a.ply", *splats[:4], np.zeros((2, 2, 3)))
    with pytest.raises(ShapeError, match=r"opacities go from 0\.5 to 1\.5; expected"):
        write_ply(tmp_path / "a.ply", *splats[:3], np.array([0.5, 1.5]), splats.colors)
    with pytest.raises(DTypeError, match="write_ply"):
        write_ply(tmp_path / "a.ply", *splats[:3], np.array(["a", "b"]), splats.colors)
    assert list(tmp_path.iterdir()) == []


def test_plain_colours_are_written_as_harmonics_that_look_the_same(tmp_path: Path) -> None:
    splats, colors = some(3, 1), np.linspace(0, 1.5, 9).reshape(3, 3)
    write_ply(tmp_path / "a.ply", *splats[:4], colors)
    held = read_ply(tmp_path / "a.ply").colors
    assert held.shape == (3, 1, 3)
    np.testing.assert_allclose(0.5 + held[:, 0] / np.sqrt(4 * np.pi), colors, atol=1e-6)
    with pytest.raises(ShapeError, match=r"colors go down to -0\.5; harmonics give none below 0"):
        write_ply(tmp_path / "a.ply", *splats[:4], colors - 0.5)


def test_a_scale_below_zero_is_written_as_what_draws_the_same(tmp_path: Path) -> None:
    splats = some(3, 1)
    write_ply(tmp_path / "a.ply", *splats._replace(scales=-splats.scales))
    np.testing.assert_allclose(read_ply(tmp_path / "a.ply").scales, splats.scales, rtol=1e-6)


def test_ragged_lists_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="scales are lists of unequal lengths"):
        write_ply(tmp_path / "a.ply", *some(2, 1)._replace(scales=[[1, 2], [3]]))  # type: ignore[arg-type]
    assert not (tmp_path / "a.ply").exists()


def test_opacities_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    splats = some(2, 1)
    with pytest.raises(ShapeError, match="expected numbers from 0 to 1"):
        write_ply(tmp_path / "a.ply", *splats._replace(opacities=np.array([0.5, np.nan], np.float32)))
