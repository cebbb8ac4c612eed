"""Conformance of attention, one file for each kind."""

from __future__ import annotations

from rlx.conformance.cases.attention import dense, step, sums, update

OPS = (*dense.OPS, *step.OPS, *sums.OPS, *update.OPS)
