"""Ensembles of decision trees: all trees are walked for all rows at once, one level down at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops as o
from rlx.dtypes import f64
from rlx.ir import Tensor
from rlx.onnx.ml.features import (
    count_of,
    features,
    labelled,
    labels_of,
    numbers_of,
    numeric,
    transformed,
)
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.elements import Array
from rlx.onnx.reader.table import ML, op
from rlx.records import Record, replace

MAX_TREE_NODES = 1 << 21
MAX_DEPTH = 256  # levels; each becomes nodes of the graph
MAX_TABLE = 1 << 26  # numbers: weights of nodes by targets, and rows by trees by targets
_MODES = {
    "BRANCH_LEQ": 0,
    "BRANCH_LT": 1,
    "BRANCH_GTE": 2,
    "BRANCH_GT": 3,
    "BRANCH_EQ": 4,
    "BRANCH_NEQ": 5,
    "LEAF": 7,
}
_COMPARE = (o.less_equal, o.less, o.greater_equal, o.greater, o.equal, o.not_equal)
_MEMBER, _LEAF, _EQUAL = 6, 7, 4
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


class Trees(Record):
    """The nodes of all trees, one array for each field; a leaf is its own child. `weights` has the weight of each node
    for each target, `scored` which of these the file has."""

    roots: Array
    mode: Array
    feature: Array
    value: Array
    yes: Array
    no: Array
    missing: Array
    weights: Array
    scored: Array


def _column(c: Call, name: str, n: int, low: int, high: int) -> Array:
    """An attribute of one integer a node, each from `low` up to `high`."""
    numbers = c.ints(name, [])
    if len(numbers) != n or any(not low <= v < high for v in numbers):
        raise c.bad(
            f"{name} has {len(numbers)} numbers for {n} nodes, or some that are not from {low} to {high - 1}"
        )
    return np.asarray(numbers, np.int64)


def _depth(c: Call, t: Trees) -> int:
    """The number of levels from the roots to the deepest leaf."""
    front = np.unique(t.roots)
    for depth in range(MAX_DEPTH + 1):
        inner = front[t.mode[front] != _LEAF]
        if not inner.size:
            return depth
        front = np.unique(np.concatenate([t.yes[inner], t.no[inner]]))
    raise c.unsupported(f"has trees that are deeper than {MAX_DEPTH} nodes, or go in circles")


def _leaves(c: Call, t: Trees, x: Tensor) -> Tensor:
    """The leaf that each row reaches in each tree."""
    rows, trees = x.shape[0], len(t.roots)
    if x.shape[1] == 0 or t.feature.max(initial=0) >= x.shape[1]:
        raise c.bad(f"asks for feature {t.feature.max(initial=0)} of {x.shape[1]}")
    feature, value, yes, no = (
        c.tensor(a) for a in (t.feature.astype(np.int32), t.value, _small(t.yes), _small(t.no))
    )
    mode = c.tensor(t.mode.astype(np.int32))
    missing = c.tensor(t.missing) if t.missing.any() else None
    used = sorted(set(t.mode.tolist()) - {_LEAF})
    at = o.expand(c.tensor(_small(t.roots)), (rows, trees))
    for _ in range(_depth(c, t)):
        a, b = o.gather_elements(x, o.gather(feature, at, 0), 1), o.gather(value, at, 0)
        taken = _COMPARE[used[0]](a, b)
        for k in used[1:]:
            taken = o.where(o.equal(o.gather(mode, at, 0), k), _COMPARE[k](a, b), taken)
        if missing is not None:
            taken = o.logical_or(taken, o.logical_and(o.gather(missing, at, 0), o.isnan(a)))
        at = o.where(taken, o.gather(yes, at, 0), o.gather(no, at, 0))
    return at


def _small(a: Array) -> Array:
    return a.astype(np.int32)


def _scores(c: Call, t: Trees, x: Tensor, aggregate: str) -> Tensor:
    """The weights of the leaves reached, aggregated by target."""
    targets = t.weights.shape[1]
    if x.shape[0] * len(t.roots) * targets > MAX_TABLE:
        raise c.unsupported(
            f"{x.shape[0]} rows by {len(t.roots)} trees by {targets} targets is too large; give fewer rows"
        )
    leaves = _leaves(c, t, x)
    if aggregate in ("SUM", "AVERAGE"):
        scores = o.sum(o.gather(c.tensor(t.weights), leaves, 0), 1)
        return o.div(scores, float(len(t.roots))) if aggregate == "AVERAGE" else scores
    if aggregate not in _AGGREGATES:
        raise c.bad(f"aggregate_function is {aggregate!r}; expected one of {_AGGREGATES}")
    worst = np.inf if aggregate == "MIN" else -np.inf
    table = np.where(t.scored, t.weights, np.asarray(worst, t.weights.dtype))
    best = (o.min if aggregate == "MIN" else o.max)(o.gather(c.tensor(table), leaves, 0), 1)
    return o.where(o.equal(best, worst), 0.0, best)


def _weights(c: Call, nodes: int, targets: int, entries: Any, dtype: Any) -> tuple[Array, Array]:
    """A table of weights by node and target from (node, target, weight), and where one is given."""
    if nodes * targets > MAX_TABLE:
        raise c.unsupported(f"{nodes} nodes by {targets} targets is too large")
    weights, scored = np.zeros((nodes, targets), dtype), np.zeros((nodes, targets), np.bool_)
    where, target, weight = entries
    if target.size and not 0 <= target.min() <= target.max() < targets:
        raise c.bad(f"has weights of targets from {target.min()} to {target.max()}; there are {targets}")
    np.add.at(weights, (where, target), weight)
    scored[where, target] = True
    return weights, scored


def _named_nodes(c: Call, x: Tensor, what: str, targets: int) -> Trees:
    """The trees of the classifier and the regressor, whose nodes are identified by tree id and node id."""
    modes = c.ints("nodes_modes", [])
    n, wide = len(modes), 1 << 62
    unknown = set(modes) - set(_MODES)
    if not 0 < n <= MAX_TREE_NODES or unknown:
        raise c.bad(f"has {n} nodes, with the modes {sorted(unknown)} that there are not")
    mode = np.array([_MODES[m] for m in modes])
    tree, name = (_column(c, f"nodes_{k}ids", n, -wide, wide) for k in ("tree", "node"))
    numbers = {key: k for k, key in enumerate(zip(tree.tolist(), name.tolist(), strict=True))}
    if len(numbers) != n:
        raise c.bad("has two nodes of one name in a tree")
    leaf = mode == _LEAF

    def number(trees: Any, names: Any) -> Array:
        indices = [numbers.get(key, -1) for key in zip(trees, names, strict=True)]
        if min(indices, default=0) < 0:
            raise c.bad("leads to a node that there is not")
        return np.asarray(indices, np.int64)

    ends = {}
    for side in ("true", "false"):
        to = _column(c, f"nodes_{side}nodeids", n, -wide, wide)
        ends[side] = np.arange(n)
        ends[side][~leaf] = number(tree[~leaf].tolist(), to[~leaf].tolist())
    values, missing = numbers_of(c, "nodes_values", x), c.ints("nodes_missing_value_tracks_true") or [0] * n
    weight = numbers_of(c, "class_weights" if what == "class" else "target_weights", x)
    keys = [c.ints(f"{what}_{k}ids", []) for k in ("tree", "node")]
    target = np.asarray(c.ints(f"{what}_ids", []), np.int64)
    if values is None or values.size != n or len(missing) != n:
        raise c.bad(f"has {n} nodes, {count_of(values)} values and {len(missing)} words on missing values")
    if weight is None or not len(keys[0]) == len(keys[1]) == target.size == weight.size:
        raise c.bad(
            f"has {count_of(weight)} weights, of which {len(keys[0])} have a tree and {target.size} a target"
        )
    held, scored = _weights(c, n, targets, (number(*keys), target, weight), x.dtype.np)
    _, first = np.unique(tree, return_index=True)
    feature = np.where(leaf, 0, _column(c, "nodes_featureids", n, 0, wide))
    return Trees(
        first, mode, feature, values, ends["true"], ends["false"], np.asarray(missing) != 0, held, scored
    )


@op("TreeEnsembleRegressor", domain=ML)
def regressor(c: Call) -> Result:
    x, targets = features(c), c.int("n_targets", 1)
    t = _named_nodes(c, x, "target", targets if 0 < targets <= MAX_TABLE else 0)
    scores, base = _scores(c, t, x, c.str("aggregate_function", "SUM")), numbers_of(c, "base_values", x)
    if base is not None and base.size not in (1, targets):
        raise c.bad(f"base_values has {base.size} numbers for {targets} targets")
    scores = scores if base is None else o.add(scores, c.tensor(base))
    return transformed(c, scores, c.str("post_transform", "NONE"))


@op("TreeEnsembleClassifier", domain=ML)
def classifier(c: Call) -> tuple[Result, ...]:
    """Two classes may share one score s: they have 1 - s and s where all weights are probabilities, else -s and s."""
    x, labels = features(c), labels_of(c, "classlabels_int64s", "classlabels_strings")
    after, ids = c.str("post_transform", "NONE"), set(c.ints("class_ids", []))
    one = len(labels) == 2 and len(ids) == 1
    if one and (ids != {0} or after not in ("NONE", "LOGISTIC")):
        raise c.unsupported(
            f"two classes of one score with class id {min(ids)} and {after} are not supported"
        )
    t = _named_nodes(c, x, "class", 1 if one else len(labels))
    scores, base = _scores(c, t, x, "SUM"), numbers_of(c, "base_values", x)
    if base is not None and base.size != scores.shape[1]:
        raise c.unsupported(f"{base.size} base_values for {scores.shape[1]} scores are not supported")
    scores = scores if base is None else o.add(scores, c.tensor(base))
    if one:
        other = o.sub(1.0, scores) if after == "NONE" and t.weights.min() >= 0 else o.neg(scores)
        scores = o.concat([other, scores], 1)
    return labelled(c, scores, labels), transformed(c, scores, after)


@op("TreeEnsemble", domain=ML)
def ensemble(c: Call) -> Result:
    """The form of version 5: inner nodes and leaves are separate. A test of membership becomes tests of equality."""
    x, targets = c.x(), c.int("n_targets", 1)
    if x.ndim != 2:
        raise c.bad(f"the input is {x.shape}; expected rows of features")
    x = x if x.dtype == f64 else o.cast(x, "f32")
    mode = numeric(c, "nodes_modes").astype(np.uint8)
    weight = numeric(c, "leaf_weights").astype(x.dtype.np)
    value = numeric(c, "nodes_splits").astype(x.dtype.np)
    n, leaves = len(mode), len(weight)
    if not 0 < n <= MAX_TREE_NODES or leaves > MAX_TREE_NODES or value.size != n or mode.max() > _MEMBER:
        raise c.bad(
            f"has {n} nodes, {value.size} splits, {leaves} leaves and modes up to {mode.max(initial=0)}"
        )
    to, leads = {}, {}
    for side in ("true", "false"):
        leads[side] = _column(c, f"nodes_{side}leafs", n, 0, 2)
        to[side] = _column(c, f"nodes_{side}nodeids", n, 0, max(n, leaves))
        if np.any(to[side] >= np.where(leads[side], leaves, n)):
            raise c.bad(f"nodes_{side}nodeids leads to a node or leaf that there is not")
        to[side] = np.where(leads[side], to[side] + n, to[side])
    missing = np.asarray(c.ints("nodes_missing_value_tracks_true") or [0] * n) != 0
    feature = _column(c, "nodes_featureids", n, 0, 1 << 31)
    roots = np.asarray(c.ints("tree_roots", []), np.int64)
    if missing.size != n or not roots.size or roots.min() < 0 or roots.max() >= n:
        raise c.bad(
            f"has {n} nodes, {missing.size} words on missing values and the roots {roots[:9].tolist()}"
        )
    # A tree of one leaf is written as a node with that leaf as both children.
    ends = np.arange(n, n + leaves)
    nothing = np.zeros(leaves, np.int64)
    t = Trees(
        roots, np.append(mode, nothing + _LEAF), np.append(feature, nothing),
        np.append(value, nothing).astype(x.dtype.np), np.append(to["true"], ends), np.append(to["false"], ends),
        np.append(missing, nothing != 0), weight, weight,
    )  # fmt: skip
    t = _without_members(c, t, n)
    target = _column(c, "leaf_targetids", leaves, 0, 1 << 31)
    if not 0 < targets <= MAX_TABLE:
        raise c.bad(f"n_targets is {targets}")
    held, scored = _weights(c, len(t.mode), targets, (ends, target, weight), x.dtype.np)
    t = replace(t, weights=held, scored=scored)
    aggregate = c.int("aggregate_function", 1)
    if not 0 <= aggregate < len(_AGGREGATES):
        raise c.bad(f"aggregate_function is {aggregate}; expected 0 to {len(_AGGREGATES) - 1}")
    names = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    after = c.int("post_transform", 0)
    scores = _scores(c, t, x, _AGGREGATES[aggregate])
    return transformed(c, scores, names[after] if 0 <= after < len(names) else str(after))


def _without_members(c: Call, t: Trees, n: int) -> Trees:
    """Nodes that test membership of a set, as chains of nodes at the end of the table that test equality."""
    members = np.flatnonzero(t.mode[:n] == _MEMBER)
    if not members.size:
        return t
    values = numeric(c, "membership_values").astype(t.value.dtype)
    ends = np.flatnonzero(np.isnan(values))
    if len(ends) != len(members) or (values.size and ends[-1] != values.size - 1):
        raise c.bad(
            f"membership_values has {len(ends)} sets for {len(members)} nodes; expected NaN after each"
        )
    names = ("mode", "feature", "value", "yes", "no", "missing")
    old: list[Array] = [getattr(t, name) for name in names]
    columns: list[Any] = [a.tolist() for a in old]
    mode, feature, value, yes, no = columns[:5]
    start = 0
    for node, end in zip(members.tolist(), ends.tolist(), strict=True):
        last, at = no[node], node
        mode[node], value[node], no[node] = _EQUAL, np.nan, last  # an empty set: equal to nothing
        for k, v in enumerate(values[start:end].tolist()):
            if k:
                no[at] = len(mode)
                at = len(mode)
                for column, new in zip(
                    columns, (_EQUAL, feature[node], v, yes[node], last, False), strict=True
                ):
                    column.append(new)
            else:
                value[node] = v
        start = end + 1
    fields = {n: np.asarray(a, like.dtype) for n, a, like in zip(names, columns, old, strict=True)}
    return replace(t, **fields)
