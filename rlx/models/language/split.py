"""Programs and states of a model whose layers are on several devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.ir import Graph, TensorType
from rlx.models.language.graph import LOG
from rlx.models.language.placement import layer_of
from rlx.records import Record
from rlx.runtime import CompiledGraph, Session, State, Store


class Stage(Record, slots=False):
    """Some layers of a model on one device: their weights, and their caches."""

    session: Session
    layers: range
    weights: Store
    state: State

    @property
    def where(self) -> str:
        """The device, and how many layers are there."""
        return f"{self.session.info.id} ({len(self.layers)} layer{'s' * (len(self.layers) > 1)})"


class Done:
    """A completed run with its outputs, with the interface of a device's Launch."""

    def __init__(self, made: dict[str, Any]) -> None:
        self._made = made

    def wait(self, out: str = "host") -> dict[str, Any]:
        """The outputs, on the host, at once."""
        return self._made


class SplitStates:
    """The states of a model in parts: a layer's are on its device, those of a step (tokens, positions, inputs of
    sampling) on the host."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages
        self.step: dict[str, npt.NDArray[Any]] = {}

    def _of(self, name: str) -> State | None:
        layer = layer_of(name)
        if layer is not None:
            return next(stage.state for stage in self._stages if layer in stage.layers)
        # The corrections of an output matrix are named after its weight, which may be the embeddings.
        return self._stages[-1].state if name.startswith(("lm_head.", "embed_tokens.")) else None

    def reserve(self, types: Mapping[str, TensorType]) -> None:
        for name, kind in types.items():
            if (state := self._of(name)) is not None:
                state.reserve({name: kind})

    def set(self, name: str, value: Any) -> None:
        state = self._of(name)
        if state is None:
            self.step[name] = np.array(value)
        else:
            state.set(name, value)

    def get(self, name: str) -> Any:
        state = self._of(name)
        return self.step[name].copy() if state is None else state.get(name)


class SplitProgram:
    """The parts of a graph, each compiled on the device of its layers: a run passes the hidden states between two parts
    as an rlx.Array, and the inputs of layers if there are any. `graph` is the whole graph, for its inputs and states.
    """

    def __init__(self, graph: Graph, parts: Sequence[CompiledGraph], states: SplitStates, context: int) -> None:
        self.graph = graph
        self._last = context - 1  # the last position
        self._parts = parts
        self._states = states

    def prepare(self) -> None:
        for part in self._parts:
            part.prepare()

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the parts one after the other; as `CompiledGraph.run`."""
        result: dict[str, Any] = {}
        for part in self._parts:
            given = {name: inputs[name] for name in part.graph.inputs if name not in result}
            given |= {name: value.to(part.device) for name, value in result.items()}
            result = part.run(given, out="host" if part is self._parts[-1] else "device")
        return result

    def launch(self, inputs: Mapping[str, Any] | None = None) -> Done:
        """A decoding step with the tokens and positions as states on the host, as in a graph of the head "next"."""
        step = self._states.step
        made = self.run({**step, **(inputs or {})})
        token = made["token"]
        at = step["at"]
        log = step.setdefault("log", np.zeros((len(at), LOG), np.int32))
        log[np.arange(len(at)), at % LOG] = token[:, 0]
        step["ids"], step["at"] = token, np.minimum(at + step["stride"], self._last)
        return Done(made)

    def close(self) -> None:
        for part in self._parts:
            part.close()
