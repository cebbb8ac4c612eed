"""Limits: how much of everything the server takes."""

from __future__ import annotations

from rlx.records import Record


class Limits(Record):
    """Bytes, counts and seconds beyond which a request is refused or ended."""

    body_bytes: int = 1 << 20
    sound_bytes: int = 25 << 20  # a form with a sound
    prompt_tokens: int | None = None  # None: as many as the context holds
    connections: int = 256
    waiting: int = 64  # sequences that wait for a slot
    choices: int = 16  # sequences of one request
    inputs: int = 256  # texts of one request for embeddings
    responses: int = 256  # responses kept so that later requests can continue them, and the bytes of their messages
    response_bytes: int = 16 << 20
    header_seconds: float = 10.0  # the time in which a request's headers must arrive
    body_seconds: float = 30.0
    send_seconds: float = 30.0  # the time in which a client has to read what was sent
    request_seconds: float = 600.0
    grace_seconds: float = 5.0  # the time for running answers when the server is told to stop
