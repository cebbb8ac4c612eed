"""ai.onnx.ml: trees walked beside a walk written in Python, tables, linear models; models that lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rlx
from rlx.cli.inputs import said
from rlx.errors import ModelFormatError, RlxError, UnsupportedOp
from tests.onnx.models import I64, model, node

F32, F64, TEXT = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.STRING
ML = "ai.onnx.ml"
MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
COMPARE = dict(
    zip(MODES, (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal), strict=True)
)


def ml(
    nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], version: int = 3
) -> onnx.ModelProto:
    proto = model(nodes, inputs, outputs, domains=[ML])
    proto.opset_import[1].version = version
    return proto


def run(made: Any, x: np.ndarray, code: int, to: int, version: int = 3, device: str = "cpu") -> np.ndarray:
    proto = ml([made], {"x": (None, code)}, {"y": (None, to)}, version)
    return rlx.onnx.load(proto).run({"x": x}, device=device)["y"]


@dataclass
class Forest:
    """Random trees as the attributes of a node, and the same walked by hand."""

    rng: np.random.Generator
    targets: int
    modes: list[str]
    nodes: dict[str, list[Any]] = field(default_factory=dict)
    weights: list[tuple[int, int, int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = "treeids nodeids featureids values modes truenodeids falsenodeids missing_value_tracks_true"
        self.nodes = {f"nodes_{n}": [] for n in names.split()}
        for tree in range(6):
            self._grow(tree, 5)

    def _grow(self, tree: int, depth: int) -> int:
        at, number = len(self.nodes["nodes_modes"]), self.nodes["nodes_treeids"].count(tree)
        for column in self.nodes.values():
            column.append(0)
        self._set(at, treeids=tree, nodeids=number, modes="LEAF")
        if depth == 0 or (depth < 5 and self.rng.random() < 0.2):
            for target in range(self.targets):
                self.weights.append((tree, number, target, float(np.float32(self.rng.standard_normal()))))
            return number
        self._set(
            at, modes=str(self.rng.choice(self.modes)), featureids=int(self.rng.integers(4)),
            values=float(self.rng.integers(-2, 3)) / 2, missing_value_tracks_true=int(self.rng.integers(2)),
        )  # fmt: skip
        self._set(at, truenodeids=self._grow(tree, depth - 1), falsenodeids=self._grow(tree, depth - 1))
        return number

    def _set(self, at: int, **values: Any) -> None:
        for name, value in values.items():
            self.nodes[f"nodes_{name}"][at] = value

    def entries(self, what: str) -> dict[str, list[Any]]:
        keys = [f"{what}_{n}" for n in ("treeids", "nodeids", "ids", "weights")]
        return dict(zip(keys, (list(column) for column in zip(*self.weights, strict=True)), strict=True))

    def reached(self, row: np.ndarray) -> list[tuple[int, int]]:
        nodes = [
            dict(zip(self.nodes, values, strict=True)) for values in zip(*self.nodes.values(), strict=True)
        ]
        found = []
        for tree in range(6):
            own = {n["nodes_nodeids"]: n for n in nodes if n["nodes_treeids"] == tree}
            at = own[0]
            while at["nodes_modes"] != "LEAF":
                v = row[at["nodes_featureids"]]
                yes = COMPARE[at["nodes_modes"]](v, at["nodes_values"])
                yes = yes or (np.isnan(v) and at["nodes_missing_value_tracks_true"])
                at = own[at["nodes_truenodeids" if yes else "nodes_falsenodeids"]]
            found.append((tree, at["nodes_nodeids"]))
        return found

    def leaves(self, row: np.ndarray) -> np.ndarray:
        """Weights by tree and target."""
        made = np.zeros((6, self.targets))
        for place in self.reached(row):
            for tree, number, target, weight in self.weights:
                if (tree, number) == place:
                    made[tree, target] += weight
        return made


def rows(rng: np.random.Generator, dtype: Any = np.float32) -> np.ndarray:
    x = (rng.integers(-4, 5, (20, 4)) / 2).astype(dtype)
    x[rng.random(x.shape) < 0.1] = np.nan
    return x


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_regression_forests(aggregate: str, device: str) -> None:
    rng = np.random.default_rng(1)
    forest = Forest(rng, 2, MODES if aggregate == "SUM" else MODES[:1])
    made = node(
        "TreeEnsembleRegressor", "x", "y", domain=ML, n_targets=2, aggregate_function=aggregate,
        base_values=[0.5, -1.0], **forest.nodes, **forest.entries("target"),
    )  # fmt: skip
    x = rows(rng)
    together = {"SUM": np.sum, "AVERAGE": np.mean, "MIN": np.min, "MAX": np.max}[aggregate]
    want = np.stack([together(forest.leaves(row), 0) for row in x]) + [0.5, -1.0]
    assert np.allclose(run(made, x, F32, F32, device=device), want, rtol=1e-5, atol=1e-5)


def test_classifying_forests(device: str) -> None:
    rng = np.random.default_rng(2)
    forest = Forest(rng, 3, MODES[:2])
    made = node(
        "TreeEnsembleClassifier", "x", "y z", domain=ML, classlabels_strings=["low", "mid", "high"],
        post_transform="SOFTMAX", **forest.nodes, **forest.entries("class"),
    )  # fmt: skip
    x = rows(rng)
    proto = ml([made], {"x": ["n", 4]}, {"y": (["n"], TEXT), "z": ["n", 3]})
    got = rlx.onnx.load(proto).run({"x": x}, device=device)
    scores = np.stack([forest.leaves(row).sum(0) for row in x])
    likely = np.exp(scores - scores.max(1, keepdims=True))
    assert np.allclose(got["z"], likely / likely.sum(1, keepdims=True), atol=1e-5)
    assert got["y"].tolist() == [["low", "mid", "high"][k] for k in scores.argmax(1)]


@pytest.mark.parametrize("after, positive", [("LOGISTIC", False), ("NONE", True), ("NONE", False)])
def test_two_classes_of_one_score(after: str, positive: bool) -> None:
    rng = np.random.default_rng(3)
    forest = Forest(rng, 1, MODES[:1])
    if positive:
        forest.weights = [(*w[:3], abs(w[3]) / 12) for w in forest.weights]
    made = node(
        "TreeEnsembleClassifier", "x", "y z", domain=ML, classlabels_int64s=[7, 9], post_transform=after,
        **forest.nodes, **forest.entries("class"),
    )  # fmt: skip
    x = rows(rng)
    got = rlx.onnx.load(ml([made], {"x": ["n", 4]}, {"y": (["n"], I64), "z": ["n", 2]})).run(
        {"x": x}, device="cpu"
    )
    s = np.array([forest.leaves(row).sum() for row in x])
    want = {"LOGISTIC": 1 / (1 + np.exp(s)), "NONE": 1 - s if positive else -s}[after]
    assert np.allclose(got["z"][:, 0], want, atol=1e-5)
    assert np.array_equal(got["y"], np.where(got["z"][:, 1] > got["z"][:, 0], 9, 7))


def test_sets_in_the_newest_form(device: str) -> None:
    """x0 of {1, 3, 5} → leaf 0, else x1 ≤ 0 → leaf 1, else leaf 2; and a tree that is a leaf."""
    tensor = numpy_helper.from_array
    made = node(
        "TreeEnsemble", "x", "y", domain=ML, n_targets=2, aggregate_function=1, tree_roots=[0, 2],
        nodes_featureids=[0, 1, 0], nodes_modes=tensor(np.array([6, 0, 0], np.uint8)),
        nodes_splits=tensor(np.array([0, 0, 0], np.float64)), nodes_trueleafs=[1, 1, 1], nodes_falseleafs=[0, 1, 1],
        nodes_truenodeids=[0, 1, 3], nodes_falsenodeids=[1, 2, 3], leaf_targetids=[0, 1, 0, 1],
        leaf_weights=tensor(np.array([10, 20, 30, 0.5])), membership_values=tensor(np.array([1, 3, 5, np.nan])),
    )  # fmt: skip
    x = np.array([[1, 0], [3, 9], [5, 0], [2, -1], [4, 1], [np.nan, 1]], np.float64)
    got = run(made, x, F64, F64, 5, device)
    assert got.tolist() == [[10, 0.5], [10, 0.5], [10, 0.5], [0, 20.5], [30, 0.5], [30, 0.5]]


def test_labels_are_looked_up_on_the_device(device: str) -> None:
    made = node("LabelEncoder", "x", "y", domain=ML, keys_strings=["a", "b", "a"], values_int64s=[1, 2, 3])
    loaded = rlx.onnx.load(ml([made], {"x": ([None], TEXT)}, {"y": ([None], I64)}))
    for words in (["a", "b", "c"], ["", "new", "a"]):
        got = loaded.run({"x": words}, device=device)["y"]
        assert got.tolist() == [{"a": 3, "b": 2}.get(w, -1) for w in words]
    assert len(loaded.programs) == 1
    names = node(
        "LabelEncoder", "x", "y", domain=ML, keys_int64s=[-5, 1 << 40, 7], values_strings=["a", "b", "c"],
        default_string="?",
    )  # fmt: skip
    assert run(names, np.array([7, 8, 1 << 40, -5]), I64, TEXT, device=device).tolist() == [
        "c",
        "?",
        "b",
        "a",
    ]
    floats = node(
        "LabelEncoder", "x", "y", domain=ML, keys_floats=[0.5, float("nan")], values_floats=[1.0, 2.0]
    )
    x = np.float32([np.nan, 0.5, 3])
    assert run(floats, x, F32, F32, device=device).tolist() == [2, 1, 0]
    old = node("LabelEncoder", "x", "y", domain=ML, classes_strings=["p", "q"])
    assert run(old, np.array(["q", "r"]), TEXT, I64, 1).tolist() == [1, -1]
    assert run(old, np.array([1, 5]), I64, TEXT, 1).tolist() == ["q", "_Unused"]
    hot = node("OneHotEncoder", "x", "y", domain=ML, cats_strings=["p", "q"])
    assert run(hot, np.array([["q", "r"]]), TEXT, F32, device=device).tolist() == [[[0, 1], [0, 0]]]
    strict = node("OneHotEncoder", "x", "y", domain=ML, cats_int64s=[3, 4], zeros=0)
    assert run(strict, np.float32([4, 3]), F32, F32).tolist() == [[0, 1], [1, 0]]
    with pytest.raises(ModelFormatError, match="a category that is not listed"):
        run(strict, np.float32([4, 5]), F32, F32)


def test_a_pipeline_of_features_and_a_linear_model(device: str) -> None:
    rng = np.random.default_rng(4)
    weights, added = rng.standard_normal((3, 4)).astype(np.float32), np.float32([0.1, 0.2, 0.3])
    nodes = [
        node("Imputer", "x", "a", domain=ML, imputed_value_floats=[0.0, 1.0, 2.0, 3.0],
             replaced_value_float=float("nan")),
        node("Scaler", "a", "b", domain=ML, offset=[1.0] * 4, scale=[0.5, 1.0, 2.0, 4.0]),
        node("Normalizer", "b", "c", domain=ML, norm="L2"),
        node("LinearClassifier", "c", "y z", domain=ML, coefficients=weights.reshape(-1).tolist(),
             intercepts=added.tolist(), classlabels_strings=["u", "v", "w"], post_transform="LOGISTIC"),
        node("LinearRegressor", "c", "r", domain=ML, coefficients=weights[0].tolist(), intercepts=[0.5]),
    ]  # fmt: skip
    x = rows(rng)
    outputs = {"y": (["n"], TEXT), "z": ["n", 3], "r": ["n", 1]}
    got = rlx.onnx.load(ml(nodes, {"x": ["n", 4]}, outputs)).run({"x": x}, device=device)
    a = np.where(np.isnan(x), [0, 1, 2, 3], x.astype(np.float64))
    b = (a - 1) * [0.5, 1, 2, 4]
    c = b / np.maximum(np.sqrt((b**2).sum(1, keepdims=True)), 1e-30)
    scores = c @ weights.T.astype(np.float64) + added
    assert np.allclose(got["z"], 1 / (1 + np.exp(-scores)), atol=1e-6)
    assert got["y"].tolist() == ["uvw"[k] for k in scores.argmax(1)]
    assert np.allclose(got["r"], c @ weights[0].astype(np.float64)[:, None] + 0.5, atol=1e-6)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_support_vectors(kernel: str) -> None:
    rng = np.random.default_rng(5)
    vectors, weights = rng.standard_normal((6, 4)), rng.standard_normal(6)
    made = node(
        "SVMRegressor", "x", "y", domain=ML, kernel_type=kernel, kernel_params=[0.3, 0.2, 3.0], n_supports=6,
        coefficients=weights.tolist(), support_vectors=vectors.reshape(-1).tolist(), rho=[0.4],
    )  # fmt: skip
    x = rng.standard_normal((5, 4))
    dot = x @ vectors.T
    k = {
        "LINEAR": dot, "POLY": (0.3 * dot + 0.2) ** 3, "SIGMOID": np.tanh(0.3 * dot + 0.2),
        "RBF": np.exp(-0.3 * ((x[:, None] - vectors) ** 2).sum(-1)),
    }[kernel]  # fmt: skip
    assert np.allclose(
        run(made, x.astype(np.float32), F32, F32), (k @ weights + 0.4)[:, None], rtol=1e-4, atol=1e-4
    )


def test_small_ones() -> None:
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    two = {"x": ([2, 3], F32), "i": ([2], I64)}
    picked = ml([node("ArrayFeatureExtractor", "x i", "y", domain=ML)], two, {"y": None})
    got = rlx.onnx.load(picked).run({"x": x, "i": np.array([2, 0])}, device="cpu")["y"]
    assert got.tolist() == [[3, 1], [6, 4]]
    assert run(node("Binarizer", "x", "y", domain=ML, threshold=3.0), x, F32, F32).tolist() == [
        [0, 0, 0],
        [1, 1, 1],
    ]
    beside = node("FeatureVectorizer", "x x", "y", domain=ML, inputdimensions=[1, 4])
    assert run(beside, x, F32, F32).tolist() == [[1, 1, 2, 3, 0], [4, 4, 5, 6, 0]]
    top = node("Normalizer", "x", "y", domain=ML, norm="MAX")
    assert np.allclose(run(top, x, F32, F32), x / [[3], [6]])


def test_probabilities_by_name(device: str) -> None:
    """What converters of scikit-learn put behind a classifier."""
    keys = {"string": ["u", "v"], "int64": [3, 4]}
    for kind, names in keys.items():
        attribute = {"classlabels_strings" if kind == "string" else "classlabels_int64s": names}
        proto = ml(
            [node("Softmax", "x", "p"), node("ZipMap", "p", "y", domain=ML, **attribute)], {"x": ["n", 2]}, {}
        )
        key = TEXT if kind == "string" else I64
        of_rows = helper.make_map_type_proto(key, helper.make_tensor_type_proto(F32, []))
        proto.graph.output.append(helper.make_value_info("y", helper.make_sequence_type_proto(of_rows)))
        loaded = rlx.onnx.load(proto)
        assert loaded.outputs[0].type == f"seq(map({kind},tensor(float)))"
        got = loaded.run({"x": np.float32([[0, 0], [0, np.log(3)]])}, device=device)["y"]
        assert [list(row) for row in got] == [names, names]
        assert np.allclose([list(row.values()) for row in got], [[0.5, 0.5], [0.25, 0.75]])
        assert said(got).startswith("2 items; {")
        proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3
        with pytest.raises(ModelFormatError, match="2 keys for"):
            rlx.onnx.load(proto).run({"x": np.zeros((1, 3), np.float32)}, device=device)
    proto.graph.input[0].CopyFrom(proto.graph.output[0])
    proto.graph.input[0].name = "x"
    with pytest.raises(UnsupportedOp, match="'x': is a map"):
        rlx.onnx.load(proto)


def tree(**changes: Any) -> Any:
    given = {
        "nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0] * 3, "nodes_values": [0.0] * 3,
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0],
        "n_targets": 1,
    }  # fmt: skip
    return node("TreeEnsembleRegressor", "x", "y", domain=ML, name="n", **{**given, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes_truenodeids": [0, 0, 0]}, {"nodes_truenodeids": [9, 0, 0]}, {"nodes_featureids": [7, 0, 0]},
        {"nodes_featureids": [-1, 0, 0]}, {"nodes_modes": ["BRANCH_WHAT", "LEAF", "LEAF"]}, {"nodes_values": [0.0]},
        {"nodes_nodeids": [0, 1, 1]}, {"target_ids": [0, 5]}, {"target_nodeids": [1, 9]}, {"target_weights": [1.0]},
        {"nodes_modes": ["LEAF"]}, {"aggregate_function": "MEDIAN"}, {"post_transform": "MORE"},
        {"base_values": [1.0, 2.0]},
        {"nodes_missing_value_tracks_true": [1]}, {"n_targets": 1 << 40},
        {"nodes_values_as_tensor": helper.make_tensor("t", TEXT, [3], [b"a"] * 3)},
    ],
    ids=lambda v: next(iter(v)),
)  # fmt: skip
def test_trees_that_lie(changes: dict[str, Any]) -> None:
    assert run(tree(), np.float32([[-1], [1]]), F32, F32).tolist() == [[1], [2]]
    with pytest.raises((ModelFormatError, UnsupportedOp), match="'n'"):
        run(tree(**changes), np.float32([[-1], [1]]), F32, F32)


@pytest.mark.parametrize(
    "made",
    [
        node("LabelEncoder", "x", "y", domain=ML, keys_int64s=[1], values_int64s=[2]),
        node("LabelEncoder", "x", "y", domain=ML, keys_floats=[1.0], values_int64s=[1, 2]),
        node("LabelEncoder", "x", "y", domain=ML, keys_floats=[1.0]),
        node("LinearRegressor", "x", "y", domain=ML, coefficients=[1.0, 2.0, 3.0]),
        node("LinearRegressor", "x", "y", domain=ML, targets=-1, coefficients=[1.0, 2.0]),
        node("Scaler", "x", "y", domain=ML, offset=[1.0] * 3, scale=[1.0]),
        node("Imputer", "x", "y", domain=ML),
        node("Normalizer", "x", "y", domain=ML, norm="L7"),
        node("FeatureVectorizer", "x", "y", domain=ML, inputdimensions=[1 << 40]),
        node(
            "SVMRegressor",
            "x",
            "y",
            domain=ML,
            n_supports=3,
            coefficients=[1.0],
            support_vectors=[1.0],
            rho=[0.0],
        ),
        node(
            "SVMRegressor",
            "x",
            "y",
            domain=ML,
            n_supports=-3,
            coefficients=[1.0],
            support_vectors=[1.0],
            rho=[0.0],
        ),
    ],
    ids=lambda v: v.op_type,
)
def test_attributes_that_do_not_fit(made: onnx.NodeProto) -> None:
    with pytest.raises(RlxError):
        run(made, np.float32([[1, 2]]), F32, F32 if made.op_type != "LabelEncoder" else I64)
