"""`rlx bench --simulate-ranks`: how a model would go on more cards than there are, from times measured on one.

What a rank computes is measured: its own program, without the others. What the ranks send each other is counted in that
program, and how long it takes follows from the link, which is measured between two devices or given."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlx.cli.gguf import is_gguf
from rlx.cli.language import Loading
from rlx.cli.table import format_table
from rlx.driver.registry import find_device
from rlx.dtypes import f32
from rlx.errors import DeviceUnavailable, OutOfDeviceMemory, RlxError, ShapeError, UnsupportedOp
from rlx.host.files import written_whole
from rlx.host.progress import drawn
from rlx.ranks.links import Link, Links, stops
from rlx.records import Record
from rlx.runtime.solo import Meeting, SoloMesh, SoloSession

SIZES = (1, 2, 8, 64)
RUNS = 3
_LINKS = 16  # sums in the program that measures a link
_BYTES = (1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
_TEMPLATE = Path(__file__).with_name("scaling.html")


class Row(Record):
    """A number of ranks: the seconds that a rank computes and that the sums take, how often ranks meet in a step and
    the bytes that each gives; or why there can be no so many."""

    ranks: int
    computes: float = 0.0
    sums: float = 0.0
    meetings: int = 0
    nbytes: int = 0
    why_not: str = ""

    @property
    def seconds(self) -> float:
        return self.computes + self.sums


class Part(Record):
    """One way to use several cards: what a step is, the tokens that all ranks compute in it (by the number of ranks),
    and the table's rows."""

    title: str
    step: str
    tokens: Callable[[int], int]
    rows: Sequence[Row]

    def speed(self, row: Row) -> float:
        """Tokens a second of all ranks together."""
        return self.tokens(row.ranks) / row.seconds

    def each(self, row: Row) -> float:
        """The speed of each rank, as a share of the speed of one rank alone."""
        one = next((self.speed(r) / r.ranks for r in self.rows if not r.why_not), 1.0)
        return self.speed(row) / row.ranks / one

    def stop(self) -> Row | None:
        """The first row in which each rank has less than half the speed of one rank alone."""
        able = [row for row in self.rows if not row.why_not]
        at = stops([row.ranks for row in able], [self.speed(row) for row in able]) if able else None
        return next((row for row in able if row.ranks == at), None)

    def why(self) -> str:
        """A sentence that says at how many ranks scaling stops, and why."""
        able = [row for row in self.rows if not row.why_not]
        none = next((f" {row.ranks} ranks cannot be: {row.why_not}" for row in self.rows if row.why_not), "")
        if not able:
            return none[1:]
        at = self.stop()
        if at is not None:
            one = able[0].computes * (able[0].ranks / at.ranks if self.tokens(2) == self.tokens(1) else 1)
            rest = max(at.computes - one, 0.0)
            cause = f"the sums take {_share(at.sums, at)} of a step"
            if at.sums < rest:
                cause = f"what does not become less on a rank takes {_share(rest, at)} of a step, and {cause}"
            return f"On {at.ranks} each does less than half of what one alone does: {cause}.{none}"
        last = able[-1]
        return f"On {last.ranks} the sums take {_share(last.sums, last)} of a step.{none}"


def _share(seconds: float, row: Row) -> str:
    return f"{100 * seconds / row.seconds:.0f} %"


def simulate(
    model: Path, page: Path, loading: Loading, sizes: Sequence[int], prompt: int, answer: int, batch: str | None,
    link: str | None, across: str | None, machine: int,
) -> list[Part]:  # fmt: skip
    """Measures, prints the tables and writes the page. Raises: RlxError for options that are none, DeviceUnavailable
    without a link that could be measured; as `load`."""
    rows, tokens = _pair("--simulate-batch", batch, "x") if batch is not None else (0, 0)
    far = None if across is None else _link("--across", across)
    device = find_device(loading.device)
    near = measured_link(device.id) if link is None else _link("--link", link)
    links = Links(near, far, machine)
    parts = []
    with drawn(device.id):
        parts += tensor_parallel(model, loading, sizes, prompt, answer, links)
        if rows:
            parts.append(data_parallel(model, loading, sizes, rows, tokens, links))
    said = "given" if link is not None else f"measured between two of {device.name}"
    for part in parts:
        print(f"\n{part.title}: {part.step}\n")
        print("\n".join(format_table(_TITLES, [_cells(part, row) for row in part.rows], right=set(_TITLES))))
        print(f"\n{part.why()}")
    _write(page, str(model), device.name, parts, links, said)
    return parts


_TITLES = ["ranks", "computes ms", "sums ms", "meets", "KB a step", "tokens/s", "times one", "each"]


def _cells(part: Part, row: Row) -> list[str]:
    if row.why_not:
        return [str(row.ranks), *[""] * 6, "cannot be"]
    each = part.each(row)
    return [
        str(row.ranks), f"{1e3 * row.computes:.3f}", f"{1e3 * row.sums:.3f}", str(row.meetings),
        f"{row.nbytes / 1e3:,.0f}", f"{part.speed(row):,.0f}", f"{each * row.ranks:.2f}", f"{100 * each:.0f} %",
    ]  # fmt: skip


def _sums(meetings: Sequence[Meeting], links: Links, ranks: int, computes: float) -> Row:
    seconds = sum(m.times * links.seconds(m.op, m.nbytes, ranks) for m in meetings)
    return Row(ranks, computes, seconds, sum(m.times for m in meetings), sum(m.times * m.nbytes for m in meetings))


# -- a model cut over ranks


def tensor_parallel(
    model: Path, loading: Loading, sizes: Sequence[int], prompt: int, answer: int, links: Links
) -> list[Part]:
    """A prompt and an answer of a language model, whose matrices are cut over the ranks."""
    read: list[Row] = []
    write: list[Row] = []
    for n in sizes:
        try:
            with _rank_of(model, loading, n, max(prompt, answer + 1)) as (d, session):
                seconds = prompt_seconds(d, prompt)
                read.append(_sums(_of_prompt(d, session, prompt), links, n, seconds))
                seconds = token_seconds(d, answer)
                write.append(_sums(session.meetings[d.program(1, "next")], links, n, seconds))
        except (ShapeError, UnsupportedOp, OutOfDeviceMemory) as error:
            read.append(Row(n, why_not=str(error)))
            write.append(Row(n, why_not=str(error)))
    return [
        Part("Tensor parallel, an answer", "one token of one sequence", lambda n: 1, write),
        Part("Tensor parallel, a prompt", f"a prompt of {prompt} tokens", lambda n: prompt, read),
    ]


class _rank_of:
    """The decoder of one rank of several, by itself."""

    def __init__(self, model: Path, loading: Loading, ranks: int, context: int) -> None:
        from rlx.models.language.model import load_folder, load_gguf
        from rlx.models.language.parallel import AXIS
        from rlx.models.language.ranks import Meeting as Ranks

        self.session = SoloSession(loading.device, precision=loading.precision, threads=loading.threads)
        mesh = SoloMesh({AXIS: ranks})
        meeting = None if mesh.world is None else Ranks(mesh, mesh.world, [self.session], f32, None)
        settings: Any = {"context": context, "dtype": loading.dtype, "activations": loading.activations,
                         "cache": loading.cache, "meeting": meeting}  # fmt: skip
        if is_gguf(model):
            from rlx.formats.gguf.reader import GgufFile

            with GgufFile(model) as file:
                self.model = load_gguf(file, self.session, **settings)
        else:
            from rlx.formats.huggingface import ModelFolder

            self.model = load_folder(ModelFolder(model), self.session, **settings)

    def __enter__(self) -> tuple[Any, SoloSession]:
        return self.model.decoder, self.session

    def __exit__(self, *_: object) -> None:
        self.model.close()


def prompt_seconds(d: Any, count: int) -> float:
    """How long a decoder takes a prompt of so many tokens."""
    from rlx.models.language.decoder import Sampling

    ids = np.random.default_rng(0).integers(0, d.config.vocabulary, count).astype(np.int32)

    def once() -> None:
        d.reset(0)
        d.prefill(ids, Sampling())

    return _least(once)


def _of_prompt(d: Any, session: SoloSession, count: int) -> list[Meeting]:
    d.reset(0)
    return [m for size in d.chunks(count) for m in session.meetings[d.program(size)]]


def token_seconds(d: Any, count: int) -> float:
    """How long a decoder takes for each of so many tokens of an answer."""
    from rlx.models.language.decoder import Sampling

    seconds = []
    for _ in range(RUNS + 1):
        d.reset(0)
        token = d.prefill(np.zeros(1, np.int32), Sampling())
        start = time.perf_counter()
        tokens = [*d.decode(token, Sampling(), most=count)]
        seconds.append((time.perf_counter() - start) / len(tokens))
    return min(seconds[1:])


def _least(call: Callable[[], None]) -> float:
    """The least seconds of some calls, after one that is not counted."""
    seconds = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


# -- a training whose batch the ranks share


def data_parallel(
    model: Path, loading: Loading, sizes: Sequence[int], rows: int, tokens: int, links: Links
) -> Part:
    """Training all weights by AdamW, with a batch of `rows` texts of `tokens` tokens on each rank."""
    listed = []
    for n in sizes:
        try:
            session = SoloSession(loading.device, precision=loading.precision, threads=loading.threads)
            seconds = training_step(model, loading.activations, session, SoloMesh({"data": n}), rows, tokens)
            meetings = max(session.meetings.values(), key=len)
            listed.append(_sums(meetings, links, n, seconds))
        except (RlxError, OutOfDeviceMemory) as error:
            listed.append(Row(n, why_not=str(error)))
    step = f"a step of training all weights (AdamW in f32), {rows} × {tokens} tokens on each card"
    return Part("Data parallel, a training", step, lambda n: n * rows * tokens, listed)


def training_step(model: Path, activations: str | None, device: Any, mesh: Any, rows: int, tokens: int) -> float:
    """The seconds of a training step, the least over some runs of several steps."""
    import rlx.ops as ops
    from rlx import optim
    from rlx.models.as_functions import trainable
    from rlx.train.loop import training

    function, weights = trainable(model, "f32", activations=activations, context=tokens + 1)

    def loss(p: Mapping[str, Any], ids: Any) -> Any:
        half = p if activations is None else {
            name: ops.cast(x, activations) if len(x.shape) > 1 else x for name, x in p.items()
        }
        return ops.mean(ops.cast(ops.cross_entropy(function(half, ids[:, :-1]), ids[:, 1:]), "f32"))

    count = rows * (1 if mesh is None else mesh.size)
    ids = np.random.default_rng(0).integers(0, 256, (count, tokens + 1)).astype(np.int32)
    steps = 4
    with training(loss, weights, optim.adamw(1e-4), device=device, mesh=mesh, progress=False) as run:

        def several() -> None:
            for _ in range(steps):
                metrics = run.step(ids)
            float(metrics["loss"])

        return _least(several) / steps


# -- links


def measured_link(device: str) -> Link:
    """The link between two devices from this one on, by sums as links of a chain in a program. Raises:
    DeviceUnavailable where there are no two."""
    from rlx.ranks.mesh import Mesh
    from rlx.runtime.session import Session

    info = find_device(device)
    names = ["cpu", "cpu"]
    if info.kind != "cpu":
        try:
            names = [info.id, find_device(f"{info.backend}:{info.index + 1}").id]
        except DeviceUnavailable as error:
            raise DeviceUnavailable(
                f"--simulate-ranks: there is one device of this kind, so no link to measure ({error}); give it, such "
                "as --link 4.6:221, the microseconds of a small sum over two cards and the gigabytes a second of a "
                "large one"
            ) from error
    mesh = Mesh({"ranks": 2}, devices=names)

    def points() -> list[tuple[float, float]]:
        threads = 1 if info.kind == "cpu" else None
        session = Session(names[mesh.rank], threads=threads)
        return [(float(n), _chained(session, n // 4)) for n in _BYTES]

    measured = mesh.run(points)[0]
    for i in range(len(measured) - 1, 0, -1):  # noise must not make a smaller sum slower than a larger one
        measured[i - 1] = (measured[i - 1][0], min(measured[i - 1][1], measured[i][1]))
    return Link(tuple(measured))


def _chained(session: Any, size: int) -> float:
    """The seconds of an all-reduce of so many f32, with an elementwise kernel before each."""
    import rlx.ops as ops
    from rlx.ir import Graph

    graph = Graph("chain")
    x = graph.input("x", (size,))
    for _ in range(_LINKS):
        x = ops.all_reduce(x * 0.5, "ranks")
    graph.output("y", x[:1])
    with session.compile(graph) as program:
        bound = program.bind()
        return _least(bound.run) / _LINKS


def _pair(option: str, text: str, between: str) -> tuple[int, int]:
    first, _, second = text.partition(between)
    if not (first.isdecimal() and second.isdecimal() and int(first) and int(second)):
        raise RlxError(f"{option} {text}: expected two numbers, such as 8{between}1024")
    return int(first), int(second)


def _link(option: str, text: str) -> Link:
    try:
        latency, bandwidth = (float(number) for number in text.split(":"))
    except ValueError:
        latency = bandwidth = 0.0
    if not (0 < latency < 1e9 and 0 < bandwidth < 1e9):
        raise RlxError(f"{option} {text}: expected microseconds and gigabytes a second, such as 4.6:221")
    return Link.of(latency * 1e-6, bandwidth * 1e9)


# -- the page


def _write(page: Path, model: str, device: str, parts: Sequence[Part], links: Links, said: str) -> None:
    near = f"{1e6 * links.near.latency:.1f} µs for a small sum of two, {_rate(links.near)} GB/s for a large one"
    link = f"{said}: {near}"
    if links.far is not None:
        far = f"{1e6 * links.far.latency:.1f} µs and {_rate(links.far)} GB/s"
        link += f"; machines of {links.machine}, between them {far}"
    texts = {
        "title": html.escape(f"{model} on more cards"), "device": html.escape(device), "link": html.escape(link),
        "parts": "".join(_section(part) for part in parts),
    }  # fmt: skip
    text = _TEMPLATE.read_text("utf-8")
    for name, value in texts.items():
        text = text.replace(f"@{name}@", value)
    try:
        with written_whole(page) as file:
            file.write(text.encode())
    except OSError as error:
        raise RlxError(f"--simulate-ranks: {page} cannot be written: {error.strerror}") from error
    print(f"\n{page} shows this")


def _rate(link: Link) -> str:
    (b0, t0), (b1, t1) = link.points[0], link.points[-1]
    return f"{(b1 - b0) / max(t1 - t0, 1e-12) / 1e9:,.3g}"


def _section(part: Part) -> str:
    head = "".join(f"<th>{title}</th>" for title in _TITLES)
    body = "".join(
        f"<tr><td>{row.ranks}</td><td colspan={len(_TITLES) - 1} class=none>cannot be</td></tr>" if row.why_not else
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(part, row)) + "</tr>" for row in part.rows
    )  # fmt: skip
    return (
        f"<section><h2>{html.escape(part.title)}</h2><p>{html.escape(part.step)}.</p>{_bars(part)}"
        f"<p><strong>{html.escape(part.why())}</strong></p>"
        f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></section>\n"
    )


def _bars(part: Part) -> str:
    """A picture: for each number of ranks a bar of a step's time, computing and sums, and what each rank does."""
    longest = max((row.seconds for row in part.rows), default=0.0) or 1.0
    stop, lines, height = part.stop(), [], 26 * len(part.rows) + 6
    for i, row in enumerate(part.rows):
        y, a, b = 26 * i + 4, 222 * row.computes / longest, 222 * row.sums / longest
        said = "cannot be" if row.why_not else f"{1e3 * row.seconds:.3g} ms, {100 * part.each(row):.0f} % each"
        lines.append(
            f'<text x="32" y="{y + 14}" text-anchor="end">{row.ranks}</text>'
            f'<rect class="computes" x="40" y="{y}" width="{a:.1f}" height="18"/>'
            f'<rect class="sums" x="{40 + a:.1f}" y="{y}" width="{b:.1f}" height="18"/>'
            f'<text x="{46 + a + b:.1f}" y="{y + 14}">{said}'
            f"{'<tspan class=stop>: stops here</tspan>' if row is stop else ''}</text>"
        )
    head = f'<svg viewBox="0 0 520 {height}" role="img" aria-label="milliseconds of a step by ranks">'
    return f"{head}{''.join(lines)}</svg>"
