"""What `make test` and `make late` keep of the parameters of a test, and that a full run keeps all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from pathlib import Path

import pytest

from rlx.conformance.case import Case, cases_of
from tests.full import FULL_ENV, sampled, select, spread

GRID = [dict(zip("abc", one, strict=True)) for one in product(range(5), range(3), range(2))]
MARKED = """
import pytest

@pytest.mark.parametrize("x", range(6))
@pytest.mark.parametrize("y", range(5))
@pytest.mark.sample(6)
def test_sampled(x, y): ...

@pytest.mark.parametrize("device", ["cpu", "vulkan", "cuda"])
@pytest.mark.parametrize("x", range(9))
@pytest.mark.sample(vulkan=2)
def test_few_on_vulkan(device, x): ...

@pytest.mark.parametrize("device", ["cpu", "vulkan"])
@pytest.mark.late("vulkan")
def test_late_on_vulkan(device): ...

@pytest.mark.parametrize("x, y", [(1, 2), (1, 3), (2, 2)])
@pytest.mark.full(x=1, y=lambda y: y > 2)
def test_full_of_some(x, y): ...

@pytest.mark.late
def test_late(): ...

@pytest.mark.full
def test_full(): ...
"""


def test_a_sample_holds_every_value_and_many_pairs() -> None:
    for least in (1, 8, 30, 99):
        kept = [GRID[at] for at in spread(GRID, least)]
        assert len(kept) >= min(least, len(GRID))
        assert {item for one in kept for item in one.items()} == {
            item for one in GRID for item in one.items()
        }
        assert spread(GRID, least) <= spread(GRID, 3 * least)
    pairs = {pair for at in spread(GRID, 15) for pair in combinations(sorted(GRID[at].items()), 2)}
    assert len(pairs) >= 0.9 * len({pair for one in GRID for pair in combinations(sorted(one.items()), 2)})
    assert len(spread(GRID, 3, 3)) == 3 and spread(GRID, 0, 0) == set()
    assert spread(GRID, 8) == spread([dict(reversed(one.items())) for one in GRID], 8)


class Collected:
    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        select(config, items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.names = [item.name for item in session.items]


def test_each_run_takes_its_part(tmp_path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FULL_ENV, raising=False)
    file = tmp_path / "test_marked.py"
    file.write_text(MARKED)

    def collected(*args: str) -> list[str]:
        seen = Collected()
        options = ["--collect-only", "-qq", "-p", "no:cacheprovider", "-p", "no:xdist", *args]
        assert pytest.main([str(file), "-c", str(repo / "pyproject.toml"), *options], plugins=[seen]) == 0
        return seen.names

    soon, late = collected(), collected("-m", "late")
    names = [name.split("[")[0] for name in soon]
    assert {name: names.count(name) for name in dict.fromkeys(names)} == {
        "test_sampled": 6, "test_few_on_vulkan": 2 + 9 + 9, "test_late_on_vulkan": 1, "test_full_of_some": 2,
    }  # fmt: skip
    taken = [name[len("test_sampled[") : -1].split("-") for name in soon if name.startswith("test_sampled")]
    assert {x for _, x in taken} == {*"012345"} and {y for y, _ in taken} == {*"01234"}
    assert "test_full_of_some[1-3]" not in soon and "test_late_on_vulkan[cpu]" in soon
    assert [name.split("[")[0] for name in late].count("test_sampled") == 12
    assert {*late[12:]} == {"test_late_on_vulkan[vulkan]", "test_late"}
    monkeypatch.setenv(FULL_ENV, "1")
    assert len(collected()) == 30 + 27 + 2 + 3 + 1 + 1


def test_only_a_full_run_takes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FULL_ENV, raising=False)
    assert sampled(range(10), most=4) == [0, 3, 6, 9] and sampled(range(3), most=4) == [0, 1, 2]
    assert sampled((), most=4) == []
    monkeypatch.setenv(FULL_ENV, "1")
    assert sampled(range(10), most=4) == list(range(10))


def test_cases_of_a_part_have_every_dtype_and_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken evenly, they would lose some: flags change with the innermost loop that makes cases."""
    monkeypatch.delenv(FULL_ENV, raising=False)
    listed = cases_of("matmul")
    part = sampled(listed, 12)
    assert 12 <= len(part) < len(listed) // 4

    def values(cases: Sequence[Case]) -> set[tuple[str, object]]:
        held: set[tuple[str, object]] = set()
        for case in cases:
            held |= {(name, case.attrs[name]) for name in ("transpose_a", "transpose_b", "activation")}
            held |= {(f"{i}", v) for i, spec in enumerate(case.inputs) for v in (spec.dtype, spec.domain)}
        return held

    assert values(part) == values(listed)
    monkeypatch.setenv(FULL_ENV, "1")
    assert sampled(listed, 12) == list(listed)
