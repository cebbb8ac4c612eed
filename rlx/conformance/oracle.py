"""The oracle that judges every device: a graph evaluated with the ops' references in float64."""

from __future__ import annotations

from rlx.ops.interpret import apply_reference as apply_reference
from rlx.ops.interpret import evaluate as evaluate
from rlx.ops.interpret import evaluate_node as evaluate_node
