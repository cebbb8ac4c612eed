"""How many processors this process may use."""

from __future__ import annotations

import os

from rlx.host.files import system_text


def available_threads() -> int:
    """The number of processors that this process may run on; in a container with a quota of processor time, at most the
    quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(count, _quota("/sys/fs/cgroup"))


def _quota(base: str | os.PathLike[str]) -> int:
    """A container's quota in processors, rounded up."""
    text = system_text(base, "cpu.max")
    if text is None:
        one = system_text(base, "cpu", "cpu.cfs_quota_us")
        text = "" if one is None else f"{one} {system_text(base, 'cpu', 'cpu.cfs_period_us')}"
    words = text.split()
    if len(words) != 2 or not all(w.isdecimal() for w in words) or not int(words[1]):  # "max", or -1: no quota
        return 1 << 30
    return max(1, -(-int(words[0]) // int(words[1])))
