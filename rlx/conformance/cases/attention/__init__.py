"""Conformance of attention, by files that hold one kind each."""

from __future__ import annotations

from rlx.conformance.cases.attention import dense, step, sums

OPS = (*dense.OPS, *step.OPS, *sums.OPS)
