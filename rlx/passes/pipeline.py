"""The passes that a device needs, in order."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

from rlx.ir import Graph
from rlx.ir import verify as verify_graph
from rlx.ir.rewrite import copied
from rlx.passes.bodies import change_bodies
from rlx.passes.fuse import fuse_epilogues, fuse_groups
from rlx.passes.fuse_heads import fuse_heads
from rlx.passes.fuse_norm import fuse_norms
from rlx.passes.fuse_normed import fuse_normed
from rlx.passes.hoist import hoist
from rlx.passes.integers import use_integers
from rlx.passes.isolate import isolate_results
from rlx.passes.join_narrow import join_narrow
from rlx.passes.join_transpositions import join_transpositions
from rlx.passes.legalize import PassReport, legalize
from rlx.passes.meet_early import meet_early
from rlx.passes.pad_classes import pad_classes
from rlx.passes.params import sink_casts
from rlx.passes.recognize import recognize
from rlx.passes.renew_last import renew_last
from rlx.passes.rewriting import SupportOf, native_everywhere
from rlx.passes.simplify import simplified, simplify


def optimize(
    graph: Graph,
    *,
    support: SupportOf = native_everywhere,
    fallback: Literal["host", "error"] = "host",
    fuse: bool = True,
    precision: str = "f32",
    launches: bool = True,
    verify: bool | None = None,
) -> tuple[Graph, PassReport]:
    """The graph as a device will run it, and how each node runs there.

    `support` says which nodes the device has kernels for. `fuse=False` runs the graph as written, with only the
    passes that the device needs (decomposing ops without a kernel, copying states that are results), and those that
    the session's `precision` asks for. `launches` says whether each node costs a launch: then a row's norm becomes part
    of the product; the CPU keeps the two, which have a kernel each. Bodies of control ops pass through the same, and
    the report lists their nodes behind the control node's name. `verify` checks the graph after each pass (None: if
    RLX_DEBUG is set).

    Raises: UnsupportedOp when `fallback` is "error" and a node has neither a kernel nor a decomposition.
    """
    if verify is None:
        verify = os.environ.get("RLX_DEBUG", "0") not in ("", "0")
    source = graph
    counts: list[tuple[str, int]] = [("given", len(graph.nodes))]

    def stage(name: str, run: Callable[[Graph], Graph]) -> None:
        nonlocal graph
        graph = run(graph)
        if verify:
            verify_graph(graph)
        counts.append((name, len(graph.nodes)))

    simple: Graph | None = None
    if fuse:
        begun, settled = simplified(graph)
        simple = begun if settled else None
        stage("simplify", lambda g: hoist(begun))
        stage("recognize", lambda g: recognize(g, support))
        stage("sink_casts", lambda g: sink_casts(g, support))
        if launches:
            padded = pad_classes(graph, support)
            simple = simple if padded is graph else None
            stage("pad_classes", lambda g: padded)
    if precision == "int8":
        stage("use_integers", use_integers)
    graph, report = legalize(graph, support, fallback)
    if verify:
        verify_graph(graph)
    counts.append(("legalize", len(graph.nodes)))
    native = report.tensors
    if fuse:
        if launches:
            from rlx.passes.share_means import share_means
            from rlx.passes.sink_reshapes import sink_reshapes
            from rlx.passes.split_norms import split_norms

            stage("split_norms", lambda g: split_norms(g, support))
            stage("share_means", share_means)
        stage("simplify", lambda g: g if g is simple else simplify(g))
        if launches:
            stage("join_narrow", join_narrow)
        stage("fuse_epilogues", lambda g: fuse_epilogues(g, support))
        if launches:
            from rlx.passes.keep_sums import keep_sums  # the CPU does without it

            stage("keep_sums", lambda g: keep_sums(g, support, precision))
        stage("fuse_heads", lambda g: fuse_heads(g, support))
        if launches:
            stage("join_transpositions", join_transpositions)
            stage("fuse_normed", lambda g: fuse_normed(g, support))
        stage("fuse_norms", lambda g: fuse_norms(g, support))
        stage("sink_casts", lambda g: sink_casts(g, support))
        if launches:
            stage("sink_reshapes", sink_reshapes)
        stage("fuse_groups", lambda g: fuse_groups(g, support, native, launches))
    stage("isolate_results", isolate_results)
    if fuse:
        stage("meet_early", meet_early)
        stage("renew_last", renew_last)
    report.nodes = counts

    def body(name: str, graph: Graph) -> Graph:
        result, inner = optimize(
            graph, support=support, fallback=fallback, fuse=fuse, precision=precision, launches=launches,
            verify=verify,
        )  # fmt: skip
        report.add(inner, name)
        return result

    graph = change_bodies(graph, body)
    if graph is source:  # the caller may still add nodes to its own graph
        graph = copied(graph)
    if verify:
        verify_graph(graph)
    return graph, report
