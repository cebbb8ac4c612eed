"""The options of `rlx bench --simulate-ranks`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlx.cli.language import Loading
from rlx.cli.outputs import check_file
from rlx.errors import RlxError
from rlx.records import Record


class Scaling(Record, slots=False, kw_only=True):
    """What is simulated, and over which links."""

    simulate_ranks: Annotated[
        Path | None,
        typer.Option(help="Instead, measure one card's part of a language model on 2, 8 and 64 cards, and write a page "
                          "of how it would scale here."),
    ] = None  # fmt: skip
    ranks: Annotated[str | None, typer.Option(help="With it, the numbers of cards. Default: 1,2,8,64.")] = None
    link: Annotated[
        str | None,
        typer.Option(metavar="US:GBS",
                     help="With it, the link between two cards: the microseconds of a small sum and the gigabytes a "
                     "second of a large one, such as 4.6:221. Default: measured, where there are two."),
    ] = None  # fmt: skip
    across: Annotated[
        str | None,
        typer.Option(metavar="US:GBS", help="With it, the same between two machines. Default: as within one."),
    ] = None
    per_machine: Annotated[
        int | None, typer.Option(help="With --across, how many cards a machine has. Default: 8.", min=1)
    ] = None
    simulate_batch: Annotated[
        str | None,
        typer.Option(metavar="ROWSxTOKENS", help="With it, a training too, of so many texts on each card: 8x1024."),
    ] = None
    activations: Annotated[
        str | None, typer.Option(help='With it, the tensors between layers: "f32", "f16" or "bf16".')
    ] = None

    def others(self) -> list[str]:
        """The options that are given beside --simulate-ranks."""
        values = {"--ranks": self.ranks, "--link": self.link, "--across": self.across,
                  "--per-machine": self.per_machine, "--simulate-batch": self.simulate_batch,
                  "--activations": self.activations}  # fmt: skip
        return [option for option, value in values.items() if value is not None]

    def simulate(self, model: Path, loading: Loading, prompt: int, answer: int) -> None:
        """Measures and writes the page. Raises: as `rlx.cli.scaling.simulate`."""
        from rlx.cli.scaling import SIZES, simulate  # only here: it loads the runtime

        check_file("--simulate-ranks", self.simulate_ranks, ".html")
        assert self.simulate_ranks is not None
        sizes: tuple[int, ...] = SIZES
        if self.ranks is not None:
            numbers = self.ranks.split(",")
            if not all(number.isdecimal() and int(number) for number in numbers):
                raise RlxError(f"--ranks {self.ranks}: expected numbers of cards, such as 2,8,64")
            sizes = tuple(sorted({1, *map(int, numbers)}))
        if self.per_machine is not None and self.across is None:
            raise RlxError("--per-machine is for --across, the link between machines, which is missing")
        simulate(model, self.simulate_ranks, loading, sizes, prompt, answer, self.simulate_batch, self.link,
                 self.across, self.per_machine or 8)  # fmt: skip


NONE = Scaling()
