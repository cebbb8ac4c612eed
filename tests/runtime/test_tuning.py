"""The tuner: what is measured decides, what was measured is kept, and programs keep what they were compiled with."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.gpu.program.candidates import text_of
from rlx.errors import ModelFormatError, RlxError, TuningWarning, UnsupportedOp
from rlx.runtime.tuning import search, table
from rlx.runtime.tuning.table import Measured
from tests.devices import or_skip
from tests.runtime.test_saved import changed

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 2, 4, 4)
TILES = "tiles tile_m=64 tile_n=64 chunk=24 split_k=1"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for tables alone."""
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    table._warn_of.cache_clear()
    return tmp_path / "tuning"


@pytest.fixture
def session(cache: Path) -> rlx.Session:
    with or_skip():
        return rlx.Session("vulkan")


@pytest.fixture
def program(session: rlx.Session) -> Iterator[rlx.CompiledGraph]:
    """A convolution to few channels, each element of which the rules let a thread sum."""
    with network(session) as compiled:
        yield compiled


def network(session: rlx.Session) -> rlx.CompiledGraph:
    graph = rlx.Graph("network")
    graph.output("y", rlx.conv(graph.input("x", X.shape), graph.param("w", (3, 2, 3, 3)), pads=1))
    program = session.compile(graph)
    program.set_param("w", np.linspace(0, 1, 54, dtype=np.float32).reshape(3, 2, 3, 3))
    return program


def chosen(program: Any) -> str:
    """The line of the only choice in a program."""
    with program.chosen_by(program.options.build.choices, timed=True) as twin:
        return text_of(twin.executable.decisions[-1].chosen)


def clock(tiles: float = 10.0) -> Any:
    """Times of tiles; all else takes 10 µs."""

    def times(program: Any, feeds: Mapping[str, Any]) -> dict[str, float]:
        return {d.node: tiles if text_of(d.chosen) == TILES else 10.0 for d in program.executable.decisions}

    return times


def halves(a: Any, b: Any, feeds: Any) -> tuple[float, float]:
    return 100.0, 50.0


def test_the_fastest_candidate_is_found_and_followed(program, session) -> None:
    assert chosen(program) == "direct"
    result = search.search(program, {"x": X}, 600, clock(4.0), halves)
    ((problem, best),) = result.choices.items()
    assert problem.startswith("conv rows=3 columns=16 terms=18 products=1 size=48 dtype=f32")
    assert best == Measured(TILES, 4.0, "direct", 10.0) and result.left == 0
    table.keep(session.device, result.choices)
    later = rlx.Session("vulkan")
    with network(later) as other:
        assert chosen(other) == best.chosen
        np.testing.assert_allclose(other.run({"x": X})["y"], program.run({"x": X})["y"], rtol=1e-5, atol=1e-5)
    assert chosen(program) == "direct"  # a program keeps what it was compiled with
    with network(rlx.Session("vulkan", choices={})) as other:
        assert chosen(other) == "direct"


@pytest.mark.parametrize(
    "us, whole", [(9.9, halves), (4.0, lambda a, b, feeds: (50.0, 60.0))], ids=["little", "slower run"]
)  # fmt: skip
def test_what_gains_nothing_is_by_the_rules(program, us, whole) -> None:
    assert search.search(program, {"x": X}, 600, clock(us), whole).choices == {}


def test_steps_shorter_than_the_clock_can_tell(program) -> None:
    (best,) = search.search(program, {"x": X}, 600, clock(0.0), halves).choices.values()
    assert best == Measured(TILES, 0.0, "direct", 10.0)


def test_what_gains_once_and_not_again_is_by_the_rules(program) -> None:
    times = iter([10.0, 4.0, 10.0, 12.0])  # by the rules, by tiles, and again

    def luck(program: Any, feeds: Any) -> dict[str, float]:
        return {d.node: us for us in [next(times)] for d in program.executable.decisions}

    result = search.search(program, {"x": X}, 600, luck, halves)
    assert result.choices == {} and result.tried == 1 and next(times, None) is None


def test_a_search_ends_in_time(program) -> None:
    begun = time.monotonic()
    result = search.search(program, {"x": X}, 0, clock(4.0), halves)
    assert result.tried == 0 and result.left == 1 and result.choices == {}
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize("choices", ["direct", [TILES], {"a": 1}])
def test_choices_are_lines_by_lines(choices: Any) -> None:
    with pytest.raises(RlxError, match="is no mapping of the lines of problems"):
        rlx.Session("cpu", choices=choices)


def test_likely_sizes_come_before_other_algorithms_and_these_before_what_is_alike() -> None:
    def candidate(algorithm: str, *cost: float) -> Any:
        return SimpleNamespace(algorithm=algorithm, cost=cost)

    a = [candidate("a", 1, 5), candidate("a", 1, 6, 0), candidate("a", 1, 6, 1), candidate("a", 1, 7)]
    b = [candidate("b", 2, 1), candidate("b", 2, 2), candidate("b", 2, 2)]
    assert search._in_turn([*b, *a]) == [a[0], a[1], a[3], b[0], b[1], a[2], b[2]]


def test_real_clocks_say_something(program) -> None:
    result = search.search(program, {"x": X}, 0)
    assert all(m.rule_us > 0 for m in result.problems.values()) and result.rule_us > 0


def test_the_cpu_chooses_nothing() -> None:
    with network(rlx.Session("cpu")) as program, pytest.raises(UnsupportedOp, match="--device cuda or vulkan"):
        search.search(program, {"x": X}, 1)


def test_a_saved_program_keeps_its_choices(program, session, cache, tmp_path) -> None:
    tiles = search.search(program, {"x": X}, 600, clock(4.0), halves).choices
    ((problem, best),) = tiles.items()
    path = tmp_path / "m.rlx"
    with program.chosen_by({problem: best.chosen, "of another program": "none"}) as tuned:
        wanted = tuned.run({"x": X})["y"]
        tuned.save(path)
        assert tuned.executable.choices == {problem: best.chosen}
    with rlx.load_program(path) as loaded:
        assert chosen(loaded) == best.chosen
        np.testing.assert_array_equal(loaded.run({"x": X})["y"], wanted)
    program.save(path)
    table.keep(session.device, tiles)
    with rlx.load_program(path, rlx.Session("vulkan")) as loaded:
        assert chosen(loaded) == "direct"  # and not by the table
    changed(path, lambda entries: entries.update(choices={problem: "tiles tile_m=1"}))
    with rlx.load_program(path) as loaded:
        assert chosen(loaded) == "direct"
    for wrong in (1, {"a": 1}):
        changed(path, lambda entries, wrong=wrong: entries.update(choices=wrong))
        with pytest.raises(ModelFormatError, match="chooses by"):
            rlx.load_program(path)


def test_a_table_adds_to_what_it_has_and_is_forgotten(session, cache, monkeypatch) -> None:
    device, one = session.device, Measured("fma tile=s", 1.0, "rows", 2.0)
    assert table.choices_for(device) is None
    path = table.keep(device, {"a": one})
    assert table.keep(device, {"b": one}) == path and table.read(device) == {"a": one, "b": one}
    assert [p.name for p in cache.iterdir()] == [path.name]
    assert table.choices_for(device) == {"a": "fma tile=s", "b": "fma tile=s"} == rlx.Session("vulkan").options.choices
    monkeypatch.setenv("RLX_TUNING", "off")
    assert table.choices_for(device) is None and rlx.Session("vulkan").options.choices is None
    monkeypatch.setenv("RLX_TUNING", "no")
    with pytest.raises(RlxError, match='expected "on", or "off"'):
        rlx.Session("vulkan")
    monkeypatch.delenv("RLX_TUNING")
    assert table.forget(device) == [path] and table.choices_for(device) is None and not table.forget(device)


@pytest.mark.parametrize("text", [b"", b"[]", b'{"format": 0}', b'{"format": 1, "choices": {"a": ["b"]}}', b"\xff"])
def test_a_damaged_table_is_left_out_with_a_warning(session, cache, text) -> None:
    path = table.keep(session.device, {"a": Measured("b", 1.0, "c", 2.0)})
    path.write_bytes(text)
    with pytest.warns(TuningWarning, match="is damaged .* `rlx tune` measures anew"):
        assert rlx.Session("vulkan").options.choices is None
    assert rlx.Session("vulkan").options.choices is None  # the warning comes once
    table.keep(session.device, {"a": Measured("b", 1.0, "c", 2.0)})
    assert rlx.Session("vulkan").options.choices == {"a": "b"}


def test_a_table_of_another_driver_or_version_is_left_out_with_a_warning(session, cache, monkeypatch) -> None:
    table.keep(session.device, {"a": Measured("b", 1.0, "c", 2.0)})
    monkeypatch.setattr(table, "VERSION", "0.0.9")
    with pytest.warns(TuningWarning, match="another driver, version or state"):
        assert table.choices_for(session.device) is None
    other = Measured("d", 1.0, "c", 2.0)
    table.keep(session.device, {"a": other})
    assert table.choices_for(session.device) == {"a": "d"} and len(list(cache.iterdir())) == 2


def test_shipped_choices_are_those_of_the_devices_name(session, cache, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    info = session.info
    name = table._plain(f"{info.backend} {info.name}")
    text = table.written(session.device, {"a": Measured("b", 1.0, "c", 2.0), "x": Measured("y", 1.0, "c", 2.0)})
    (folder / f"{name}.json").write_bytes(text)
    monkeypatch.setattr(table, "files", lambda package: tmp_path)
    table._shipped.cache_clear()
    table.keep(session.device, {"a": Measured("mine", 1.0, "c", 2.0)})
    assert table.choices_for(session.device) == {"a": "mine", "x": "y"}
    table._shipped.cache_clear()


def test_shipped_tables_can_be_read() -> None:
    for path in (Path(table.__file__).parent / table._SHIPPED).glob("*.json"):
        entries = json.loads(path.read_bytes())
        assert path.stem == table._plain(f"{entries['backend']} {entries['name']}")
        assert table._read(path)


def test_where_there_is_no_place_the_error_says_so(session, cache, monkeypatch) -> None:
    one = {"a": Measured("b", 1.0, "c", 2.0)}
    monkeypatch.setenv("RLX_CACHE_DIR", "off")
    with pytest.raises(RlxError, match="RLX_CACHE_DIR is off"):
        table.keep(session.device, one)
    assert table.choices_for(session.device) is None and table.forget(session.device) == []
    file = cache.parent / "file"
    file.write_bytes(b"")
    monkeypatch.setenv("RLX_CACHE_DIR", str(file))
    with pytest.raises(RlxError, match=r"cannot be written.*set RLX_CACHE_DIR"):
        table.keep(session.device, one)
