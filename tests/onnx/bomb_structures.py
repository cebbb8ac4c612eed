"""Families of bombs: control flow, functions, sequences, strings, counts of parts, data elsewhere. The result is t."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from tests.onnx import mutant_bombs as old
from tests.onnx.bomb_parts import ODD, SIZES, Made, Rng, floats
from tests.onnx.models import I64, info, node


def unsqueezed(rng: Rng) -> Made:
    """Axes, or lengths, that grow in a loop."""
    grow = rng.choice(
        (
            lambda: node("Unsqueeze", "v zeros", "v2"),
            lambda: node("Concat", "v v", "v2", axis=0),
            lambda: node("NonZero", "v", "v2"),
            lambda: node("Pad", "v two", "v2"),
            lambda: node("Tile", "v twos", "v2"),
            lambda: node("Einsum", "v v", "v2", equation="...,...->..."),
            lambda: node("MatMul", "v v", "v2"),
            lambda: node("Mul", "v v", "v2"),
        )
    )()
    start = rng.choice((np.ones(2, np.int64), np.ones((2, 2), np.int64), np.ones((40, 40), np.int64)))
    on = rng.choice((node("Identity", "go", "on"), node("Less", "i many", "on")))
    body = helper.make_graph(
        [grow, on],
        "b",
        [info("i", [], I64), info("go", [], 9), info("v", None, I64)],
        [info("on", [], 9), info("v2", None, I64)],
    )
    return Made(
        [node("Loop", rng.choice(("m true start", "_ true start")), "t", body=body)],
        {
            "m": rng.choice((3, 31, 33, 64, 100, 2000, 2**40)),
            "many": rng.choice((5, 40, 10**6)),
            "true": np.array(True),
            "start": start,
            "zeros": [0],
            "two": [1] * (2 * start.ndim),
            "twos": [2] * start.ndim,
        },
    )


def scanned(rng: Rng) -> Made:
    """Scan and Loop with outputs that stack up."""
    steps = rng.choice((3, 17, 2049, 10**5, 10**7))
    body = helper.make_graph(
        [node("Identity", "c", "c2"), node("Expand", "e s", "r")],
        "b",
        [info("c", [1]), info("e", [1])],
        [info("c2", [1]), info("r", None)],
    )
    return Made(
        [node("Expand", "f n", "xs"), node("Scan", "f xs", "c9 t", body=body, num_scan_inputs=1)],
        {"f": floats(1), "n": [steps, 1], "s": [rng.choice((1, 1000, 10**6, 10**9))]},
    )


def branches(rng: Rng) -> Made:
    """Ifs in a row or in one another, whose predicate only a run knows, or everyone."""
    count = rng.choice((3, 30, 300, 1000))
    nodes: list[Any] = [node("ReduceMax", "x", "m", keepdims=0), node("Greater", "m half", "p")]
    pred = rng.choice(("p", "true"))

    def branch(op: str, before: str, k: int, inside: Any = None) -> Any:
        made = (
            [node(op, before, f"b{op}{k}")]
            if inside is None
            else [inside, node(op, inside.output[0], f"b{op}{k}")]
        )
        return helper.make_graph(made, "g", [], [helper.make_empty_tensor_value_info(f"b{op}{k}")])

    if rng.random() < 0.5:
        nodes += [
            node(
                "If",
                pred,
                f"t{k}",
                then_branch=branch("Neg", f"t{k - 1}" if k else "x", k),
                else_branch=branch("Abs", f"t{k - 1}" if k else "x", k),
            )
            for k in range(count)
        ]
        return Made(
            [*nodes, node("Identity", f"t{count - 1}", "t")],
            {"half": np.float32(0.5), "true": np.array(True)},
        )
    inner = None
    for k in range(rng.choice((2, 5, 8, 15))):
        inner = node(
            "If",
            pred,
            f"n{k}",
            then_branch=branch("Neg", "x", 2 * k, inner),
            else_branch=branch("Abs", "x", 2 * k + 1, inner),
        )
    return Made(
        [*nodes, node("Identity", inner.output[0], "t")], {"half": np.float32(0.5), "true": np.array(True)}
    )


def sequences(rng: Rng) -> Made:
    kind = rng.randrange(4)
    if kind == 0:
        return Made(
            [
                node("Expand", "one s", "e"),
                node("SplitToSequence", rng.choice(("e", "e one", "e q")), "t", axis=0),
            ],
            {"s": [rng.choice((10, 3000, 10**5, 10**7))], "q": rng.choice(ODD)},
            sequence=True,
        )
    if kind == 1:
        body = helper.make_graph(
            [node("SequenceInsert", "v x", "v2"), node("Identity", "go", "on")],
            "b",
            [info("i", [], I64), info("go", [], 9), helper.make_tensor_sequence_value_info("v", 1, None)],
            [info("on", [], 9), helper.make_tensor_sequence_value_info("v2", 1, None)],
        )
        return Made(
            [node("SequenceEmpty", "", "s"), node("Loop", "m true s", "t", body=body)],
            {"m": rng.choice((5, 1000, 5000, 2**40)), "true": np.array(True)},
            sequence=True,
        )
    if kind == 2:
        nodes, before = [], "s0"
        for k in range(rng.choice((3, 100, 1000))):
            nodes.append(node("SequenceInsert", f"{before} x", f"s{k + 1}"))
            before = f"s{k + 1}"
        return Made(
            [node("SequenceConstruct", "x x", "s0"), *nodes, node("Identity", before, "t")], sequence=True
        )
    count = rng.choice((10, 1000, 5000))
    return Made(
        [
            node("SequenceConstruct", " ".join(["x"] * count), "s"),
            node("ConcatFromSequence", "s", "t", axis=rng.choice((0, 1, 2**40)), new_axis=rng.choice((0, 1))),
        ]
    )


def strings(rng: Rng) -> Made:
    word = "ab" * rng.choice((1, 100, 10_000))
    array = np.array([word] * rng.choice((1, 10)), object)
    kind = rng.randrange(4)
    if kind == 0:
        count = rng.choice((3, 12, 25, 60))
        nodes = [
            node("StringConcat", f"{f'c{k - 1}' if k else 'w'} {f'c{k - 1}' if k else 'w'}", f"c{k}")
            for k in range(count)
        ]
        return Made(
            [*nodes, node("Equal", f"c{count - 1} w", "b"), node("Cast", "b", "t", to=1)], {"w": array}
        )
    if kind == 1:
        pattern = rng.choice(
            (
                "(a*)*b",
                "a{1000}{1000}",
                "(a|b)" * 200,
                "(" * 500 + ")" * 500,
                "[ab]{0,1000}" * 20,
                "a" * 10**5,
                "(?:a?){500}a{500}",
                "\\",
                "[" * 99,
            )
        )
        return Made(
            [node("RegexFullMatch", "w", "b", pattern=pattern), node("Cast", "b", "t", to=1)], {"w": array}
        )
    if kind == 2:
        return Made(
            [
                node("Expand", "w s", "e"),
                node(
                    "StringSplit", "e", "p n", delimiter=rng.choice(("", "a", "b")), maxsplit=rng.choice(ODD)
                ),
                node("Cast", "n", "t", to=1),
            ],
            {"w": array[:1], "s": [rng.choice((1, 1000, 10**6, 10**9))]},
        )
    return Made(
        [
            node("Expand", "d s", "e"),
            node("Cast", "e", "u", to=8),
            node("StringConcat", "u u", "k"),
            node("Equal", "k k", "b"),
            node("Cast", "b", "t", to=1),
        ],
        {"d": np.float64([1e308]), "s": [rng.choice((1, 1000, 10**5, 10**7))]},
    )


def called(rng: Rng) -> Made:
    """Functions that call each other: chains, and each several times."""
    times, depth = rng.choice(((1, 31), (2, 8), (2, 14), (3, 30), (100, 2), (16, 4))), 0
    width, depth = times
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]
    functions = []
    for k in range(depth):
        name, domain = (f"F{k + 1}", "f") if k + 1 < depth else (rng.choice(("Neg", "Softmax", "Gelu")), "")
        inside = [node(name, f"t{i - 1}" if i else "a", f"t{i}", domain=domain) for i in range(width)]
        functions.append(helper.make_function("f", f"F{k}", ["a"], [f"t{width - 1}"], inside, imports))
    return Made([node("F0", "x", "t", domain="f")], functions=functions)


def counts(rng: Rng) -> bytes:
    """Very many small parts: nodes, attributes, names, outputs, numbers."""
    kind, n = rng.randrange(9), rng.choice((10, 10**4, 10**5, 3 * 10**5))
    f, v = old.field, old.varint
    neg = f(1, b"x") + f(2, b"y") + f(4, b"Neg")
    parts = {
        0: f(1, b"") * n,
        1: f(1, neg + f(5, b"") * n),
        2: f(1, neg + f(5, f(1, b"a") + f(8, b"\1" * n))),
        3: f(11, b"") * n,
        4: f(12, b"") * n,
        5: f(1, f(1, b"x") * n + f(2, b"y") + f(4, b"Sum")),
        6: f(1, neg + f(3, b"n" * n)),
        7: f(5, f(1, b"\0" * n) + v(2 << 3) + v(1) + f(8, b"w")),
        8: f(15, f(1, b"")) * n,
    }
    inputs = f(11, f(1, b"x") + f(2, f(1, v(1 << 3) + v(1) + f(2, f(1, v(1 << 3) + v(2))))))
    graph = parts[kind] + f(2, b"g") + inputs + (f(12, f(1, b"y")) if kind != 4 else b"")
    head = rng.choice((b"", b"", f(14, b"") * n, f(25, b"") * n)) if kind == 0 else b""
    return v(1 << 3) + v(10) + head + f(8, v(2 << 3) + v(21)) + f(7, graph)


def chain(rng: Rng) -> Made:
    """Large results, made again and again."""
    count, n = rng.choice((3, 30, 300, 1000)), rng.choice((10, 10**4, 10**6, 10**7, 10**8))
    kind = rng.choice(("Neg", "Erf", "Add", "Concat", "Transpose", "Sort", "Cast"))
    nodes = [node("Expand", "x s", "t0")]
    for k in range(1, count):
        if kind == "Sort":
            nodes.append(node("TopK", f"t{k - 1} two", f"t{k} i{k}", axis=1))
        elif kind in ("Add", "Concat"):
            nodes.append(
                node(kind, f"t{k - 1} t{k - 1}", f"t{k}", **({"axis": 0} if kind == "Concat" else {}))
            )
        else:
            nodes.append(
                node(kind, f"t{k - 1}", f"t{k}", **({"to": 1 + 10 * (k % 2)} if kind == "Cast" else {}))
            )
    return Made([*nodes, node("Identity", f"t{count - 1}", "t")], {"s": [n, 1, 1], "two": [1]})


def trees(rng: Rng) -> bytes:
    name = rng.choice(list(old.BOMBS))
    return old.BOMBS[name](rng)


def external(rng: Rng) -> Made:
    """Data outside the file that is not there, or claims too much; sparse tensors."""
    tensor = helper.make_tensor("v", 1, [1], [1.0])
    if rng.random() < 0.5:
        del tensor.float_data[:]
        tensor.dims[:] = [rng.choice(SIZES)]
        tensor.data_location = 1
        for key, value in (
            ("location", rng.choice(("../" * 1000 + "etc/passwd", "w" * 10**5, "w.bin", "/dev/zero"))),
            ("length", str(rng.choice(SIZES))),
            ("offset", "9" * rng.choice((1, 18, 10**5))),
        ):
            tensor.external_data.add(key=key, value=value)
        return Made([node("Constant", "", "t", value=tensor)])
    indices = helper.make_tensor("i", I64, [1], [0])
    return Made(
        [
            node(
                "Constant",
                "",
                "t",
                sparse_value=helper.make_sparse_tensor(tensor, indices, [rng.choice(SIZES), 2]),
            )
        ]
    )


STRUCTURES = (unsqueezed, scanned, branches, sequences, strings, called, counts, chain, trees, external)
