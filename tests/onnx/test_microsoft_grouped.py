"""GroupQueryAttention of com.microsoft beside float64 and ONNX Runtime: prompts, caches that grow or have room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import CapacityExceeded, ModelFormatError, UnsupportedOp
from tests.onnx.microsoft import attended, beside, by_heads, judged, microsoft

RNG = np.random.default_rng(15)
N, K, H = 4, 2, 32
KIND = "GroupQueryAttention"


def rand(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.normal(size=shape).astype(dtype)


def turned(x: np.ndarray, angle: np.ndarray, at: np.ndarray, interleaved: bool) -> np.ndarray:
    """(length, size) turned by the angles, complex numbers, of the places `at`."""
    half = angle.shape[1]
    if interleaved:
        z = x[..., : 2 * half : 2] + 1j * x[..., 1 : 2 * half : 2]
    else:
        z = x[..., :half] + 1j * x[..., half : 2 * half]
    z = z * angle[at]
    made = np.stack([z.real, z.imag], -1 if interleaved else -2).reshape(*x.shape[:-1], 2 * half)
    return np.concatenate([made, x[..., 2 * half :]], -1)


class Case:
    """Rows of `lengths` keys, `new` of them new, behind a cache with room for `room`; without one where that is None.
    `total` as in the operator. The rest are the node's attributes."""

    def __init__(
        self, lengths: Sequence[int], new: int, total: int, room: int | None = None, *, packed: bool = False,
        turns: int = 0, places: bool = False, bias: tuple[int, int] | None = None, dtype: Any = np.float32,
        normed: bool = False, sunk: bool = False, **attributes: Any,
    ) -> None:  # fmt: skip
        batch = len(lengths)
        self.starts = [0 if new == total else n - new for n in lengths]
        self.lengths, self.total, self.attributes = lengths, total, attributes
        attributes |= {"num_heads": N, "kv_num_heads": K, "do_rotary": int(turns > 0)}
        q, k, v = (rand(batch, new, n * H, dtype=dtype) for n in (N, K, K))
        self.given = {"q": np.concatenate([q, k, v], 2)} if packed else {"q": q, "k": k, "v": v}
        self.new = {"q": by_heads(q, N), "k": by_heads(k, K), "v": by_heads(v, K)}
        if room is not None:
            for name in ("pk", "pv"):
                self.given[name] = rand(batch, K, room, H, dtype=dtype)
                for b, start in enumerate(self.starts):
                    self.given[name][b, :, start:] = 0
        self.given["n"] = np.array(lengths, np.int32) - 1
        self.given["t"] = np.array([total], np.int32)
        if turns:
            self.given |= {"c": rand(16, turns // 2, dtype=dtype), "s": rand(16, turns // 2, dtype=dtype)}
        if places:
            self.given["at"] = np.array([[a + i for i in range(new)] for a in self.starts])
        if bias:
            self.given["ab"] = rand(*bias, new, total, dtype=dtype)
        if normed:
            self.given |= {"qn": rand(H, dtype=dtype), "kn": rand(H, dtype=dtype)}
        if sunk:
            self.given["hs"] = rand(N, dtype=dtype)
        order = "q k v pk pv n t c s at ab hs _ _ qn kn".split()
        self.names = " ".join(n if n in self.given else "_" for n in order).rstrip(" _")

    def wanted(self) -> dict[str, np.ndarray]:
        """The answers, and the caches: what was, what is new, zeros."""
        made: dict[str, list[np.ndarray]] = {"y": [], "ok": [], "ov": []}
        w = {n: a.astype(np.float64) for n, a in self.given.items()}
        room = max(self.total, w["pk"].shape[2] if "pk" in w else 0)
        rules = self.attributes
        for b, start in enumerate(self.starts):
            q, k, v = (self.new[n][b] for n in "qkv")
            end = start + q.shape[1]
            if "qn" in w:
                q, k = (
                    t / np.sqrt((t**2).mean(-1, keepdims=True) + 1e-6) * w[n]
                    for t, n in ((q, "qn"), (k, "kn"))
                )
            if "c" in w:
                at = np.arange(start, end)
                q, k = (
                    turned(t, w["c"] + 1j * w["s"], at, bool(rules.get("rotary_interleaved"))) for t in (q, k)
                )
            caches = []
            for name, out, x in (("pk", "ok", k), ("pv", "ov", v)):
                cache = np.zeros((K, room, H))
                if start:
                    cache[:, :start] = w[name][b, :, :start]
                cache[:, start:end] = x
                made[out].append(cache)
                caches.append(cache[:, :end])
            query, key = np.arange(start, end)[:, None], np.arange(end)
            seen = key <= (query if rules.get("causal", 1) else end)
            if rules.get("local_window_size", -1) > 0:
                seen = seen & (key > query - rules["local_window_size"])
            added = np.where(seen, 0, -np.inf)[None, None]
            if "ab" in w:
                bias = np.broadcast_to(w["ab"], (len(self.starts), *w["ab"].shape[1:]))
                added = added + bias[b : b + 1, ..., :end]
            scale, cap = rules.get("scale"), rules.get("softcap", 0.0)
            sink = w.get("hs", np.zeros(N) if rules.get("smooth_softmax") == 1 else None)
            made["y"].append(attended(q[None], caches[0][None], caches[1][None], added, scale, cap, sink)[0])
        return {n: np.stack(rows) for n, rows in made.items()}


CASES: dict[str, dict[str, Any]] = {
    "a prompt": {"lengths": (5, 5), "new": 5, "total": 5},
    "a prompt behind an empty cache": {"lengths": (5, 5), "new": 5, "total": 5, "room": 0},
    "a prompt into a cache with room": {"lengths": (5,), "new": 5, "total": 5, "room": 9},
    "a cache that grows": {"lengths": (5,), "new": 1, "total": 5, "room": 4},
    "caches that grow": {"lengths": (5, 5), "new": 1, "total": 5, "room": 4},
    "caches of several lengths that grow": {"lengths": (5, 7, 2), "new": 1, "total": 7, "room": 6},
    "a cache with room": {"lengths": (5,), "new": 1, "total": 5, "room": 10},
    "caches with room": {"lengths": (5, 7), "new": 1, "total": 7, "room": 10},
    "several new at once": {"lengths": (8,), "new": 3, "total": 8, "room": 10},
    "several new at once that grow": {"lengths": (8,), "new": 3, "total": 8, "room": 5},
    "a window": {"lengths": (7,), "new": 7, "total": 7, "local_window_size": 3},
    "a window in caches": {"lengths": (5, 7), "new": 1, "total": 7, "room": 10, "local_window_size": 3},
    "a window, several new": {"lengths": (8,), "new": 3, "total": 8, "room": 10, "local_window_size": 3,
                              "softcap": 0.7},
    "a cap": {"lengths": (5, 7), "new": 1, "total": 7, "room": 10, "softcap": 0.7, "scale": 0.9},
    "a bias": {"lengths": (5, 7), "new": 1, "total": 7, "room": 10, "bias": (2, N)},
    "a bias of a prompt": {"lengths": (4,), "new": 4, "total": 4, "bias": (1, 1)},
    "a bias and a cap": {"lengths": (7,), "new": 4, "total": 7, "room": 8, "bias": (1, N), "softcap": 0.7},
    "a sink": {"lengths": (5, 5), "new": 5, "total": 5, "sunk": True},
    "a smooth sum": {"lengths": (5, 7), "new": 1, "total": 7, "room": 6, "smooth_softmax": 1, "softcap": 0.7},
    "a sink in a window": {"lengths": (5, 7), "new": 1, "total": 7, "room": 10, "local_window_size": 3, "sunk": True},
    "a sink, several new": {"lengths": (8,), "new": 3, "total": 8, "room": 10, "local_window_size": 3, "sunk": True,
                            "bias": (1, N)},
    "a sink, both ways": {"lengths": (4, 7), "new": 1, "total": 7, "room": 6, "causal": 0, "sunk": True},
    "both ways": {"lengths": (4, 4), "new": 4, "total": 4, "causal": 0},
    "both ways in caches": {"lengths": (4, 7), "new": 1, "total": 7, "room": 6, "causal": 0},
}  # fmt: skip
TURNS: list[dict[str, Any]] = [
    {"turns": H},
    {"turns": H, "rotary_interleaved": 1},
    {"turns": 16, "packed": True},
    {"turns": 16, "rotary_interleaved": 1, "places": True},
]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.sample(6, vulkan=8)
@pytest.mark.late("vulkan")
def test_attention(name: str, packed: bool, device: str) -> None:
    case = Case(**CASES[name], packed=packed)
    judged(device, KIND, case.given, case.wanted(), case.names, "y ok ov", **case.attributes)


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("name", ["a prompt", "a cache that grows", "caches of several lengths that grow",
                                  "a cache with room", "several new at once", "a window in caches"])  # fmt: skip
@pytest.mark.sample(4, vulkan=4)
@pytest.mark.late("vulkan")
def test_turned(name: str, turns: dict[str, Any], device: str) -> None:
    case = Case(**CASES[name], **turns)
    judged(device, KIND, case.given, case.wanted(), case.names, "y ok ov", **case.attributes)


@pytest.mark.parametrize(
    "name", ["a prompt", "caches of several lengths that grow", "several new at once", "a bias"]
)
@pytest.mark.sample(2, vulkan=2)
def test_halves_and_norms_of_heads(name: str, device: str) -> None:
    case = Case(**CASES[name], turns=H, dtype=np.float16)
    judged(device, KIND, case.given, case.wanted(), case.names, "y ok ov", **case.attributes)
    case = Case(**CASES[name], turns=H, normed=True)
    judged(device, KIND, case.given, case.wanted(), case.names, "y ok ov", **case.attributes)


@pytest.mark.judged
@pytest.mark.parametrize("name", CASES)
def test_beside_onnx_runtime(name: str) -> None:
    for more in ({}, {"dtype": np.float16}, *TURNS):
        case = Case(**CASES[name], **more)
        tolerance = 4e-3 if "dtype" in more else 2e-5
        beside(KIND, case.given, case.names, "y ok ov", tolerance, **case.attributes)


@pytest.mark.parametrize("sunk", [False, True])
def test_what_a_cache_has_room_for_is_not_read(sunk: bool, device: str) -> None:
    for lengths in ((5,), (5, 7)):
        case = Case(lengths, 1, max(lengths), 10, sunk=sunk)
        for name in ("pk", "pv"):
            for b, start in enumerate(case.starts):
                case.given[name][b, :, start:] = np.nan
        judged(device, KIND, case.given, {"y": case.wanted()["y"]}, case.names, **case.attributes)


SHORT: dict[str, tuple[dict[str, Any], int, str]] = {
    "one row": ({"lengths": (5,), "new": 1, "total": 5, "room": 4}, 4, "row 0 has 4; expected 0 to 3"),
    "one of several rows": ({"lengths": (5, 7), "new": 1, "total": 7, "room": 10}, 6, "row 1 has 6; expected 0 to 5"),
    "several new": ({"lengths": (8,), "new": 3, "total": 8, "room": 10}, 7, "row 0 has 5; expected 0 to 4"),
    "a prompt": ({"lengths": (5, 5), "new": 5, "total": 5}, 4, "the tables hold 4 positions; the sequence of 5"),
    "places of their own": ({"lengths": (5, 7), "new": 2, "total": 7, "room": 10, "places": True}, 6,
                            "position_ids: row 1 has 6; expected 0 to 5"),
    "no table": ({"lengths": (5,), "new": 1, "total": 5, "room": 4}, 0, "the tables hold 0 positions"),
}  # fmt: skip


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("name", SHORT)
def test_positions_beyond_the_tables_are_refused(name: str, known: bool, device: str) -> None:
    """At a run where only that knows the lengths, and when the model is loaded where they are constants."""
    rules, rows, says = SHORT[name]
    case = Case(**rules, turns=H)
    judged(device, KIND, case.given, case.wanted(), case.names, "y ok ov", **case.attributes)
    for table in ("c", "s"):
        case.given[table] = case.given[table][:rows]
    loaded = rlx.onnx.load(microsoft(KIND, case.given, case.names, "y ok ov", **case.attributes))
    values = {n: case.given[n] for n in ("t", *(("n", "at") if known else ())) if n in case.given}
    fed = {n: a for n, a in case.given.items() if n not in values}

    def compiled_and_run() -> None:
        loaded.compile({n: a.shape for n, a in fed.items()}, values=values, device=device).run(fed)

    with pytest.raises((CapacityExceeded, ModelFormatError), match=says):
        compiled_and_run()


def test_places_of_their_own_may_share_a_short_table(device: str) -> None:
    case = Case((8,), 4, 8, 10, turns=H, places=True)
    case.given["at"] = np.array([[0, 1, 1, 0]])
    long = rlx.onnx.load(microsoft(KIND, case.given, case.names, **case.attributes)).run(case.given, device=device)
    for table in ("c", "s"):
        case.given[table] = case.given[table][:2]
    short = rlx.onnx.load(microsoft(KIND, case.given, case.names, **case.attributes)).run(case.given, device=device)
    assert np.array_equal(short["y"], long["y"])


def test_only_the_total_is_part_of_the_program() -> None:
    """Steps into a cache with room: the lengths of the rows are read on the device, and one program serves them."""
    case = Case((5, 7), 1, 7, 10)
    outputs = "y ok ov"
    loaded = rlx.onnx.load(microsoft(KIND, case.given, case.names, outputs, **case.attributes))
    shapes = {n: a.shape for n, a in case.given.items() if n != "t"}
    program = loaded.compile(shapes, values={"t": case.given["t"]}, device="cpu")
    for lengths in ((5, 7), (2, 7)):
        case = Case(lengths, 1, 7, 10)
        want = case.wanted()
        got = program.run({n: a for n, a in case.given.items() if n != "t"})
        assert all(np.allclose(got[n], want[n], atol=1e-5) for n in outputs.split())


def test_what_is_not_done_is_said() -> None:
    case = Case((5,), 1, 5, 4)

    def run(names: str, given: dict[str, np.ndarray], **attributes: Any) -> None:
        rlx.onnx.load(microsoft(KIND, given, names, **{**case.attributes, **attributes})).run(given)

    for says, attributes in [
        ("sliding_window_cache = 1", {"sliding_window_cache": 1, "local_window_size": 4}),
        ("k_quant_type = 'PER_TENSOR'", {"k_quant_type": "PER_TENSOR"}),
    ]:
        with pytest.raises(UnsupportedOp, match=f"{KIND}.*{says} is not supported"):
            run(case.names, case.given, **attributes)
    with pytest.raises(UnsupportedOp, match=r"the input k_scale is not supported"):
        run("q k v pk pv n t _ _ _ _ _ ks", {**case.given, "ks": rand(1)})
    small = {n: case.given[n].astype(np.int8) for n in ("pk", "pv")}
    with pytest.raises(UnsupportedOp, match=r"a cache of tensor\(int8\) for a query of tensor\(float\)"):
        run(case.names, {**case.given, **small})
    for says, given, attributes in [
        ("total_sequence_length is 9; a past of 4 and 1 more", {"t": np.array([9], np.int32)}, {}),
        (r"seqlens_k is \(2,\); expected \(1,\)", {"n": np.array([4, 4], np.int32)}, {}),
        ("expected a multiple", {}, {"kv_num_heads": 3}),
        ("do_rotary without cos_cache", {}, {"do_rotary": 1}),
        ("do_rotary is 2; expected 0 or 1", {}, {"do_rotary": 2}),
        ("smooth_softmax is 2; expected 0 or 1", {}, {"smooth_softmax": 2}),
        ("local_window_size 3 with causal = 0", {}, {"local_window_size": 3, "causal": 0}),
    ]:
        with pytest.raises(ModelFormatError, match=f"{KIND}.*{says}"):
            run(case.names, {**case.given, **given}, **attributes)
