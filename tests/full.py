"""Which tests a run selects. `make test` runs all tests but those that one of three marks leaves out:

- `@pytest.mark.late`: the test runs in `make late`, and so in CI, not in `make test`;
- `@pytest.mark.sample(n)`: at least n combinations of the test's parameters run in `make test`, every value of every
  parameter among them, and twice as many more in `make late`; the rest is `full`. With `vulkan=m` at most m of them run
  on Vulkan, where the driver must compile each;
- `@pytest.mark.full`: the test runs in `make test-all` alone, where `full()` is true.

`late` and `full` may name some combinations: `late("vulkan")` those on Vulkan, `full(rows=(3, 5))` those in which the
parameter `rows` is 3 or 5 (or where a function says so). `sampled` takes a loop's part as `sample` takes a test's.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations
from typing import Any, TypeVar

import pytest

FULL_ENV = "RLX_TEST_FULL"
_DOMAINS = 30
_VULKAN_IN_ID = re.compile(r"(?:^|[-\[_:])vulkan(?:$|[-\]_:\d])")
T = TypeVar("T")


def full() -> bool:
    """Whether this run selects all tests."""
    return os.environ.get(FULL_ENV, "0") not in ("", "0")


def sampled(values: Iterable[T], least: int = 0, *, most: int | None = None) -> list[T]:
    """At least `least` of an op's cases, in which every dtype and domain of each input and every flag and name among
    the attributes occurs; or at most `most` of any values, evenly spread from the first on, where each of them is
    compiled. All where nothing is left out."""
    given = list(values)
    if full():
        return given
    if most is not None:
        return given[:: max(1, -(-len(given) // most))]
    return [given[at] for at in sorted(spread(_traits(given, least), least))]


def _traits(cases: Sequence[Any], least: int) -> list[dict[str, object]]:
    """The traits of each case; a sample must have a case with each trait. Attributes with more values than `least`,
    such as equations, are no traits, nor are more domains than `_DOMAINS`, which are data made for single cases.
    Among cases of several ops, each op's dtypes are traits for each of its ranks."""
    several = len({case.op for case in cases}) > 1
    names: dict[str, set[object]] = {}
    for case in cases:
        for name, value in case.attrs.items():
            if value is None or isinstance(value, bool | str):
                names.setdefault(name, set()).add(value)
        for i, spec in enumerate(case.inputs):
            names.setdefault(f"domain {i}", set()).add(spec.domain)
    flags = {name for name, values in names.items() if len(values) <= (_DOMAINS if " " in name else least)}
    traits = []
    for case in cases:
        own: dict[str, object] = {name: case.attrs[name] for name in flags if name in case.attrs}
        if several:
            own[case.op] = (case.inputs[0].dtype.name, len(case.inputs[0].shape))
        for i, spec in enumerate(case.inputs):
            own[f"dtype {i} of {case.op}"] = spec.dtype.name
            if f"domain {i}" in flags:
                own[f"domain {i}"] = spec.domain
        traits.append({name: v for name, v in own.items() if isinstance(v, Hashable)})
    return traits


def spread(combinations_of: Sequence[Mapping[str, object]], least: int, most: int | None = None) -> set[int]:
    """The places of at least `least` combinations of parameters, each given by what the value of each name is.

    Every value of every parameter occurs in those that are chosen, and as many pairs of values as their number allows:
    a fault shows mostly at one value or at a pair of them; `most` ends the choice before that. It is the same in every
    run, and those of a smaller `least` are among them.
    """
    left = dict(enumerate(frozenset(one.items()) for one in combinations_of))
    pairs = {at: {frozenset(pair) for pair in combinations(items, 2)} for at, items in left.items()}
    missing = {item for items in left.values() for item in items}
    seen: set[frozenset[tuple[str, object]]] = set()
    used: Counter[tuple[str, object]] = Counter()
    chosen: set[int] = set()

    def rank(at: int) -> tuple[int, int, int, int]:
        return -len(left[at] & missing), -len(pairs[at] - seen), sum(used[item] for item in left[at]), at

    ranked = [rank(at) for at in left]
    heapify(ranked)
    while ranked and (missing or len(chosen) < least) and len(chosen) != most:
        best = heappop(ranked)[-1]
        now = rank(best)
        if ranked and now > ranked[0]:  # what was chosen meanwhile makes no combination worth more
            heappush(ranked, now)
            continue
        chosen.add(best)
        seen |= pairs[best]
        used.update(left[best])
        missing -= left[best]
    return chosen


def on_vulkan(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return item.get_closest_marker("vulkan") is not None or (
        callspec is not None and _VULKAN_IN_ID.search(callspec.id) is not None
    )


def on_cuda(item: pytest.Item) -> bool:
    params = getattr(item, "callspec", None)
    return item.get_closest_marker("cuda") is not None or (
        params is not None
        and any(params.params.get(name) in ("cuda", "cuda:0") for name in ("device", "session", "gpu"))
    )


def leave_out(config: pytest.Config, items: list[pytest.Item], which: Callable[[pytest.Item], bool]) -> None:
    out = [item for item in items if which(item)]
    if out:
        config.hook.pytest_deselected(items=out)
        gone = set(out)
        items[:] = [item for item in items if item not in gone]


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is marked `late` or `full`, unless all is asked for, or the mark, or a single test by its id."""
    _mark(items)
    if not full() and not any("::" in arg for arg in config.args):
        marks = [mark for mark in ("full", "late") if mark not in config.option.markexpr]
        leave_out(config, items, lambda item: any(item.get_closest_marker(mark) for mark in marks))


def _mark(items: Sequence[pytest.Item]) -> None:
    """Takes `late` and `full` from items that they do not name, and gives them to those that samples leave out."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for function in items:
        item: Any = function
        if any(mark.args or mark.kwargs for mark in item.own_markers if mark.name in ("late", "full")):
            item.own_markers[:] = [mark for mark in item.own_markers if _named(item, mark)]
        if any(mark.name == "sample" for mark in item.own_markers) and item.get_closest_marker("full") is None:
            groups.setdefault((item.parent.nodeid, item.originalname), []).append(item)
    for group in groups.values():
        sample = group[0].get_closest_marker("sample")
        _take(group, *sample.args, **sample.kwargs)


def _named(item: Any, mark: pytest.Mark) -> bool:
    """Whether a mark is that of this combination, or not one that names some."""
    if mark.name not in ("late", "full"):
        return True
    assert mark.args in ((), ("vulkan",)), f"{item.nodeid}: {mark.name}{mark.args} names no device that is slow"
    return (not mark.args or on_vulkan(item)) and all(
        _among(item.callspec.params[name], some) for name, some in mark.kwargs.items()
    )


def _among(value: object, some: Any) -> bool:
    if callable(some) and not isinstance(some, type):
        return bool(some(value))
    return value in some if isinstance(some, Collection) and not isinstance(some, str) else value == some


def _take(group: list[Any], n: int | None = None, *, vulkan: int | None = None) -> None:
    """Marks what a sample leaves out of a test's combinations. What runs on a GPU of its own is never left out: few
    machines have one."""
    if vulkan is not None:
        slow = [item for item in group if on_vulkan(item)]
        for at in set(range(len(slow))) - _few([_combination(item) for item in slow], vulkan):
            slow[at].add_marker(pytest.mark.full)
        group = [item for item in group if item.get_closest_marker("full") is None]
    group = [item for item in group if not on_cuda(item)]
    if n is None or not group:
        return
    combined = [_combination(item) for item in group]
    soon = spread(combined, n)
    kept = spread(combined, 3 * n)
    for at, item in enumerate(group):
        if at not in soon:
            item.add_marker(pytest.mark.late if at in kept else pytest.mark.full)


def _few(combined: Sequence[Mapping[str, object]], most: int) -> set[int]:
    """At most so many, evenly spread where a parameter has more values than that."""
    if combined and any(len({one[name] for one in combined}) > most for name in combined[0]):
        return {i * len(combined) // most for i in range(most)}
    return spread(combined, most, most)


def _combination(item: Any) -> dict[str, object]:
    """A test's parameters: for each group of names that one mark gives, an id that is equal for the same values."""
    params = dict(item.callspec.params)
    found: dict[str, object] = {}
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        found[str(mark.args[0])] = tuple(id(params.pop(name.strip())) for name in names)
    return found | {name: id(value) for name, value in params.items()}
