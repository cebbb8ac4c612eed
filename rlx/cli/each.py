"""One command over several devices: the error of one is printed, and the others continue."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from rlx.driver.registry import probe_all
from rlx.errors import RlxError


def each_device(chosen: Sequence[str] | None, work: Callable[[str], None]) -> bool:
    """Calls `work` with every device, or with the chosen ones. Returns: whether it succeeded on all of them.

    Raises: RlxError where it failed on the only device that was asked for.
    """
    able = True
    for name in chosen or [info.id for info in probe_all()[0]]:
        try:
            work(name)
        except RlxError as error:
            if chosen is not None and len(chosen) == 1:
                raise
            print(f"rlx: {name}: {' '.join(str(error).split())}", file=sys.stderr)
            able = False
    return able
