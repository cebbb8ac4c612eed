"""Records beside dataclasses: the same calls, comparisons, texts, pickles and errors."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any, ClassVar

import pytest

from rlx.records import Record, field, names_of, replace


class Place(Record):
    """A frozen record."""

    kinds: ClassVar[tuple[str, ...]] = ("a", "b")
    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list, compare=False)
    total: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.x + self.y)


class Named(Place):
    name: str = "?"
    note: str = field(kw_only=True, default="")


class Open(Record, frozen=False, slots=False):
    x: int
    y: list[int] = field(default_factory=list)


class Words(Record, kw_only=True, repr=False, eq=False):
    least: int = 0
    most: int


@dataclasses.dataclass(frozen=True, slots=True)
class PlaceOf:
    """`Place` as a dataclass."""

    x: int
    y: int = 2
    tags: list[str] = dataclasses.field(default_factory=list, compare=False)
    total: int = dataclasses.field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.x + self.y)


CALLS: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((1,), {}), ((1, 3), {}), ((1, 3, ["a"]), {}), ((), {"x": 4}), ((4,), {"y": 5}), ((4,), {"tags": ["b"]}),
    ((), {"tags": [], "y": 1, "x": 0}),
)  # fmt: skip
WRONG: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((), {}), ((1, 2, [], 4), {}), ((1,), {"x": 1}), ((1,), {"z": 1}), ((), {"y": 1}), ((1,), {"total": 1}),
)  # fmt: skip


@pytest.mark.parametrize("before", [0, 200], ids=["few", "many"])
def test_a_record_is_made_as_a_dataclass_is(before: int) -> None:
    class Fresh(Record):
        x: int
        y: int = 2
        tags: list[str] = field(default_factory=list, compare=False)
        total: int = field(init=False, repr=False, compare=False, default=0)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.x + self.y)

    for n in range(before):
        Fresh(n)
    for args, named in CALLS:
        made: Any = Fresh(*args, **named)
        want = PlaceOf(*args, **named)
        assert [getattr(made, n) for n in names_of(made)] == list(dataclasses.astuple(want))
        assert repr(made).partition("(")[2] == repr(want).partition("(")[2]
        assert hash(made) == hash(want)
    assert Fresh(1).tags is not Fresh(1).tags
    for args, named in WRONG:
        with pytest.raises(TypeError):
            PlaceOf(*args, **named)
        with pytest.raises(TypeError, match=r"Fresh|__init__"):
            Fresh(*args, **named)


def test_the_errors_of_calls_name_the_argument() -> None:
    make: Any = Place
    for args, named, said in (
        ((), {}, r"Place\(\) is missing 'x'"),
        ((1,), {"z": 1}, r"Place\(\) got an unexpected keyword argument 'z'"),
        ((1,), {"x": 1}, r"Place\(\) got multiple values for argument 'x'"),
        ((1, 2, [], 4), {}, r"Place\(\) takes 3 positional arguments but 4 were given"),
    ):
        with pytest.raises(TypeError, match=said):
            make(*args, **named)


def test_keywords_inheritance_and_order() -> None:
    assert repr(Named(1, name="n", note="t")) == "Named(x=1, y=2, tags=[], name='n', note='t')"
    assert Named(1, 2, [], "n") != Place(1, 2, [])
    assert Named(1).total == 3 and Named.kinds == ("a", "b")
    words = Words(most=3)
    assert (words.least, words.most) == (0, 3) and words != Words(most=3) and repr(words).startswith("<")
    positional: Any = Words
    with pytest.raises(TypeError, match="positional"):
        positional(1)


def test_frozen_and_open_records() -> None:
    place: Any = Place(1)
    for change in (lambda: setattr(place, "x", 2), lambda: delattr(place, "x"), lambda: setattr(place, "new", 2)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    assert place == Place(1) and not hasattr(place, "__dict__")
    one: Any = Open(1)
    one.x, one.new = 5, 6
    assert one == Open(5) and vars(one)["new"] == 6
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


@pytest.mark.parametrize("record", [Place(1, 5, ["t"]), Named(3, name="n"), Open(2, [1])], ids=repr)
def test_records_travel(record: Any) -> None:
    for other in (pickle.loads(pickle.dumps(record)), copy.deepcopy(record), copy.copy(record)):
        assert type(other) is type(record) and repr(other) == repr(record) and other == record


def test_the_functions_of_dataclasses_take_records() -> None:
    place: Any = Named(1, 5, ["t"], note="n")
    assert dataclasses.is_dataclass(place) and dataclasses.is_dataclass(Named)
    assert [f.name for f in dataclasses.fields(place)] == ["x", "y", "tags", "total", "name", "note"]
    assert dataclasses.asdict(place) == {"x": 1, "y": 5, "tags": ["t"], "total": 6, "name": "?", "note": "n"}
    assert dataclasses.replace(place, x=7) == replace(place, x=7) == Named(7, 5, ["t"], note="n")
    assert replace(place, x=7).total == 12
    assert place.__dataclass_params__.frozen
    record: Any = Open(1)
    assert not record.__dataclass_params__.frozen
    plain: Any = Record
    assert not dataclasses.is_dataclass(plain)
    assert str(inspect.signature(Words)) == "(*, least: 'int' = 0, most: 'int')"
    match place:
        case Named(x, y):
            assert (x, y) == (1, 5)
