"""A tensor above 4 GiB, whose byte offsets do not fit 32 bits, on GPUs with enough memory."""

from __future__ import annotations

import os

import numpy as np
import pytest

import rlx
from tests.devices import session_here

COLUMNS = 4096
ROWS = 2**32 // (4 * COLUMNS) + 3  # of f32: three rows more than 4 GiB
FREE_BYTES = 28 * 2**30  # the input and three results of its size, on the device; less on the host


def check(session: rlx.Session, rows: int) -> None:
    """Reads and writes at both ends of a tensor and around its middle, against NumPy in float64."""
    x = np.add.outer(
        np.arange(rows, dtype=np.float32) % 1021, np.arange(COLUMNS, dtype=np.float32) / np.float32(COLUMNS)
    )
    places = np.array([0, rows // 2, rows - 4, rows - 2, -1], np.int64)
    update = np.full((2, COLUMNS), -7.5, np.float32)
    graph = rlx.Graph("large")
    t, i, u = graph.input("x", x.shape), graph.input("i", places.shape, "i64"), graph.input("u", update.shape)
    graph.output("sums", rlx.sum(t, axis=1))
    graph.output("picked", rlx.gather(t, i))
    graph.output("scaled", rlx.gather(t * 2.0 + 1.0, i))
    graph.output("softmax", rlx.gather(rlx.softmax(t, axis=1), i))
    graph.output("written", rlx.gather(rlx.scatter(t, i[3:], u), i))
    with session.compile(graph) as compiled:
        got = compiled.run({"x": x, "i": places, "u": update})
    wide = x[places].astype(np.float64)
    np.testing.assert_array_equal(got["picked"], x[places])
    np.testing.assert_array_equal(got["scaled"], wide * 2 + 1)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    np.testing.assert_allclose(got["softmax"], powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)
    fractions = np.arange(COLUMNS, dtype=np.float64).sum() / COLUMNS
    np.testing.assert_allclose(got["sums"], (np.arange(rows) % 1021) * COLUMNS + fractions, rtol=1e-6)
    np.testing.assert_array_equal(got["written"][:3], x[places[:3]])
    np.testing.assert_array_equal(got["written"][3:], update)


@pytest.mark.parametrize("name", [pytest.param("cuda", marks=pytest.mark.cuda), "vulkan"])
def test_a_tensor_above_4_gib(name: str) -> None:
    session = session_here(name, fallback="error")
    device = session.device
    if session.info.kind == "software":
        pytest.skip(f"{name}: a software device is too slow for it")
    if device.limits.max_alloc_bytes < 4 * ROWS * COLUMNS:
        pytest.skip(f"{name}: one allocation holds at most {device.limits.max_alloc_bytes:,} bytes here")
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    if min(device.free_bytes(), host) < FREE_BYTES:
        pytest.skip(f"{name}: less than {FREE_BYTES:,} bytes free on the device or the host")
    check(session, ROWS)


def test_the_same_program_on_a_small_tensor() -> None:
    check(rlx.Session("cpu"), 1100)
