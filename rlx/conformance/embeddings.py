"""The float64 reference of a sentence encoder: its graph evaluated by the ops' references with the files' weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rlx.conformance.oracle import evaluate
from rlx.models import SentenceEncoder


def reference_embeddings(encoder: SentenceEncoder, sentences: Sequence[str]) -> npt.NDArray[np.float64]:
    """The embeddings, (n, hidden_size), in float64, computed without a device.

    The weights are read from the files, in full precision also where the encoder keeps them in half precision.
    """
    weights = encoder.file_weights()
    out = np.zeros((len(sentences), encoder.config.hidden_size))
    for rows, feeds, size in encoder.batches(sentences):
        graph = encoder.graph(*size)
        values = evaluate(graph, {**weights, **feeds})
        out[rows] = values[graph.outputs["embedding"].id][: len(rows)]
    return out
