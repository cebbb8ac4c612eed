"""One node of every operator in every version, its inputs and attributes drawn at random: it runs, or is refused by an
error of rlx's own. Most are refused; none may end in an error of NumPy's or of Python's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import rlx
from rlx.errors import RlxError
from rlx.onnx.reader.control import CONTROL
from rlx.onnx.reader.declared import DECLARED
from rlx.onnx.reader.elements import CODES
from rlx.onnx.reader.structure import BY_NAME

SCHEMAS = [
    *(s for s in onnx.defs.get_all_schemas_with_history()
      if s.domain in ("", "ai.onnx.ml") and s.name not in CONTROL),
    *DECLARED.values(),
]  # fmt: skip
TYPES = {name: dtype for name, dtype in BY_NAME.items() if dtype.kind in "biufO"}
WORDS = [b"x", b"constant", b"linear", b"SAME_UPPER", b"avg", b""]
SEEDS = (3, 14)


def draw(rng: random.Random, dtype: Any, usual: list[int]) -> np.ndarray:
    """A small array: often of the usual shape, else a scalar, or of any rank up to 4."""
    any_shape = [rng.randrange(1, 4) for _ in range(rng.randrange(1, 5))]
    shape = rng.choice([usual, usual, usual, [], any_shape])
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    if dtype.kind == "O":
        return numbers.choice(np.array(["a", "b", "1.5", ""], object), shape).reshape(shape)
    if dtype.kind in "iu":
        return numbers.integers(0 if dtype.kind == "u" else -2, 4, shape).astype(dtype)
    return np.asarray(numbers.standard_normal(shape)).astype(dtype)


def attribute(rng: random.Random, kind: str) -> Any:
    several = range(rng.randrange(1, 5))
    values: dict[str, Any] = {
        "INT": rng.choice([-1, 0, 1, 2, 3]), "FLOAT": rng.choice([0.0, 1.0, -0.5, float("nan")]),
        "STRING": rng.choice(WORDS), "INTS": [rng.choice([-1, 0, 1, 2]) for _ in several],
        "FLOATS": [rng.choice([0.0, 1.0, 2.5]) for _ in several], "STRINGS": [rng.choice("ab") for _ in several],
        "TENSOR": numpy_helper.from_array(np.array([1.5], np.float32)),
    }  # fmt: skip
    return values.get(kind)


def drawn_model(schema: Any, seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]] | None:
    """A node of this schema and its inputs; None where a type is none that is drawn here."""
    rng = random.Random(f"{schema.domain} {schema.name} {schema.since_version} {seed}")
    usual = [rng.randrange(0 if rng.random() < 0.1 else 1, 4) for _ in range(rng.randrange(0, 5))]
    kinds = {}
    for c in schema.type_constraints:
        possible = [t for t in c.allowed_type_strs if t in TYPES]
        kinds[c.type_param_str] = rng.choice(possible) if possible else ""
    names, feeds = [], {}
    for i in range(rng.randrange(schema.min_input, min(schema.max_input, schema.min_input + 3) + 1)):
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        kind = kinds.get(formal.type_str, formal.type_str)
        if kind not in TYPES:
            return None
        if formal.option.name == "Optional" and rng.random() < 0.3:
            names.append("")
            continue
        names.append(f"i{i}")
        feeds[f"i{i}"] = draw(rng, TYPES[kind], usual)
    made = {
        n: attribute(rng, a.type.name)
        for n, a in schema.attributes.items()
        if a.required or rng.random() < 0.4
    }
    count = max(schema.min_output, rng.randrange(0, min(schema.max_output, 3) + 1))
    one = helper.make_node(
        schema.name, names, [f"o{k}" for k in range(count)], domain=schema.domain,
        **{n: v for n, v in made.items() if v is not None},
    )  # fmt: skip
    inputs = [helper.make_tensor_value_info(n, CODES[a.dtype], list(a.shape)) for n, a in feeds.items()]
    graph = helper.make_graph([one], "g", inputs, [onnx.ValueInfoProto(name=n) for n in one.output])
    imports = [helper.make_opsetid(schema.domain, schema.since_version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8), feeds


@pytest.mark.filterwarnings("ignore::rlx.errors.ModelWarning")  # shapes that depart from a text
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of what is worked out from such numbers
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.full(seed=SEEDS[1:])
@pytest.mark.late
def test_no_node_ends_in_an_error_of_others(seed: int) -> None:
    ran = refused = 0
    for schema in SCHEMAS:
        drawn = drawn_model(schema, seed)
        if drawn is None:
            continue
        proto, feeds = drawn
        print(schema.domain, schema.name, schema.since_version)  # the last one is where it failed
        try:
            with rlx.onnx.load(proto) as loaded:
                loaded.run(feeds, device="cpu")
            ran += 1
        except RlxError:
            refused += 1
    assert ran > 200 and refused > 200
