"""The table of the modules that have builders of operators, beside what the modules register."""

from __future__ import annotations

import importlib
import itertools
import pkgutil

import rlx.onnx.contrib
import rlx.onnx.ml
import rlx.onnx.ops
from rlx.onnx.reader.places import PLACES
from rlx.onnx.reader.table import TABLE


def test_the_modules_of_operators_are_those_that_register_them() -> None:
    for package in (rlx.onnx.ops, rlx.onnx.contrib, rlx.onnx.ml):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    registered: dict[tuple[str, str], set[str]] = {}
    for key, entries in TABLE.items():
        registered[key] = {getattr(e.build, "func", e.build).__module__ for e in entries}
        spans = sorted((e.since, e.until or 1 << 30) for e in entries)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans)), f"{key}: which comes first would count"
    assert {key: set(modules) for key, modules in PLACES.items()} == registered
