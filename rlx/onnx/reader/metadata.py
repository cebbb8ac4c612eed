"""What an ONNX file says of itself."""

from __future__ import annotations

from typing import Any

from rlx.records import Record


class Metadata(Record):
    """A model's producer, graph and description, under ONNX Runtime's names."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


def metadata_of(model: Any) -> Metadata:
    """The metadata of a ModelProto; a string that is no UTF-8 is left empty."""

    def text(value: Any) -> str:
        return value if isinstance(value, str) else ""

    return Metadata(
        text(model.producer_name), text(model.graph.name), text(model.domain), text(model.doc_string),
        text(model.graph.doc_string), int(model.model_version),
        {text(p.key): text(p.value) for p in model.metadata_props},
    )  # fmt: skip
