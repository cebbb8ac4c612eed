"""Control ops: their bodies are padded as the graph around them is, and lengths are captures.

A loop's carries keep their layout. Steps of a scan that are padding change no carry."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.dtypes import bool_
from rlx.ir import Graph, Tensor
from rlx.passes.lengths.axes import Axis, Factor, Layout, Refused, certain, is_fixed, joined, size_of
from rlx.passes.lengths.padding import Maker, Unlike
from rlx.passes.lengths.site import Made, Site, rule


class _Body:
    """One body of a node, padded: its graph and the layouts of its outputs."""

    def __init__(self, site: Site, attribute: str, layouts: Sequence[Layout]) -> None:
        source: Graph = site.node.attrs[attribute]
        names = [*source.inputs, *source.params]
        outer = site.maker
        try:
            self.maker = Maker(
                outer.root,
                outer.roots,
                lambda graph: site.counterpart(graph).attrs[attribute],
                outer,
                dict(zip(names, layouts, strict=True)),
            )
            self.graph = self.maker.make()
        except (Refused, Unlike) as refused:
            raise Refused(f"in its body, {refused}") from None
        self.source = source
        self.layouts = [certain(self.maker.layouts[t.id]) for t in source.outputs.values()]

    def finished(self) -> Graph:
        """The finished body, with its new captures after the ones it had."""
        body = self.graph
        body.inputs = {
            n: body.inputs[n] for n in [*self.source.inputs, *(set(body.inputs) - set(self.source.inputs))]
        }
        more = [t.node.attrs["name"] for _, t in self.maker.captured.values()]
        body.params = {n: body.params[n] for n in [*self.source.params, *more]}
        return body

    def captures(self) -> list[Tensor]:
        return [t for t, _ in self.maker.captured.values()]


def _same(a: Layout, b: Layout) -> Layout:
    """The layout that two values of one variable share. Raises: Refused."""
    return tuple(joined([x, y], size_of(x)) for x, y in zip(a, b, strict=True))


@rule("cond", sized=["then", "otherwise"])
def cond(site: Site) -> Made:
    one, two = (_Body(site, name, site.layouts[1:]) for name in ("then", "otherwise"))
    for body, other in ((two, one), (one, two)):
        missing = [t for t in other.captures() if t.id not in body.maker.captured]
        if body is two:
            # Both branches take the same captures, in the order of the first's.
            own = list(body.maker.captured.items())
            body.maker.captured.clear()
            for t in other.captures():
                captured = dict(own).get(t.id)
                body.maker.captured[t.id] = captured or (t, _declare(body, t))
            body.maker.captured.update((k, v) for k, v in own if k not in body.maker.captured)
        else:
            for t in missing:
                body.maker.captured[t.id] = (t, _declare(body, t))
    attrs = {"then": one.finished(), "otherwise": two.finished()}
    results = site.new.add(site.node.op, (*site.inputs, *one.captures()), attrs, site.node.label)
    return [(t, _same(a, b)) for t, a, b in zip(results, one.layouts, two.layouts, strict=True)]


def _declare(body: _Body, t: Tensor) -> Tensor:
    names = body.graph.params
    return body.graph.param(f"length {len(names)} more", t.shape, t.dtype)


@rule("while_loop", sized=["body"])
def while_loop(site: Site) -> Made:
    body = _Body(site, "body", site.layouts[1:])
    carries = len(body.source.inputs)
    layouts = [
        _same(certain(a), b) for a, b in zip(site.layouts[1 : carries + 1], body.layouts[1:], strict=True)
    ]
    attrs = {**site.node.attrs, "body": body.finished()}
    results = site.new.add(site.node.op, (*site.inputs, *body.captures()), attrs, site.node.label)
    return list(zip(results, layouts, strict=True))


@rule("scan", sized=["body", "length"])
def scan(site: Site) -> Made:
    node = site.node
    n, source = node.attrs["carries"], node.attrs["body"]
    count = len(source.inputs)
    steps = _steps(site)
    rows = site.layouts[n:count]
    for layout in rows:
        joined([layout[0], steps], size_of(steps))
    body = _Body(site, "body", [*site.layouts[:n], *(p[1:] for p in rows), *site.layouts[count:]])
    layouts = [_same(certain(a), b) for a, b in zip(site.layouts[:n], body.layouts[:n], strict=True)]
    inputs = list(site.inputs)
    if not is_fixed(steps):
        site.maker.masks.append(node.name)
        graph = body.graph
        counts = graph.input("step counts", (), bool_)
        for name, carry in list(zip(source.outputs, source.inputs, strict=False))[:n]:
            old, new = graph.inputs[carry], graph.outputs[name]
            graph.outputs[name] = graph.add("where", (counts, new, old))[0]
        inputs.insert(count, site.mask(steps))
    attrs = {**node.attrs, "body": body.finished()}
    results = site.new.add(node.op, (*inputs, *body.captures()), attrs, node.label)
    return list(zip(results, [*layouts, *((steps, *p) for p in body.layouts[n:])], strict=True))


def _steps(site: Site) -> Axis:
    """The axis of a scan's rows: as many as it has steps."""
    size = site.node.attrs["length"]
    reading = site.read(lambda node: node.attrs["length"])
    true = site.maker.true(reading)
    # A scan without rows has no shape that tells how many steps it makes.
    if all(k == size for k in true):
        site.maker.require(reading, f"{site.node.name}: its length depends on that of the inputs")
        return (Factor(size),)
    site.require(
        lambda node: node.attrs["length"] <= size,
        f"{site.node.name} has more steps than at the bucket's size",
    )
    return (Factor(size, true, reading),)
