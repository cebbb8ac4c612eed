"""Forms with files: the parts of a body of multipart/form-data (RFC 7578, RFC 2046)."""

from __future__ import annotations

from email.message import Message

from rlx.records import Record
from rlx.serve.protocol import Refused

_MAX_PARTS = 64
_MAX_HEADERS = 8 << 10  # bytes of a part's headers


class Part(Record):
    """A member of a form: its name, its file's name (None for a text), and its bytes."""

    name: str
    file: str | None
    content: bytes


def parts(content: bytes, kind: str) -> list[Part]:
    """The parts of a body, by its Content-Type. Raises: Refused for a body that is no form."""
    boundary = _params("content-type", kind).get("boundary", "")
    if not 1 <= len(boundary) <= 70 or not boundary.isascii():
        raise Refused(400, "the Content-Type has no boundary of 1 to 70 ASCII characters")
    mark = b"\r\n--" + boundary.encode()
    _, *rest = (b"\r\n" + content).split(mark, _MAX_PARTS + 2)
    if len(rest) > _MAX_PARTS + 1:
        raise Refused(400, f"the form has more than {_MAX_PARTS} parts")
    if not rest or not rest[-1].startswith(b"--"):
        raise Refused(400, "the form ends too early, or has another boundary than its Content-Type says")
    result = list[Part]()
    for held in rest[:-1]:
        head, end, body = held.lstrip(b" \t").partition(b"\r\n\r\n")
        if not end or not head.startswith(b"\r\n") or len(head) > _MAX_HEADERS:
            raise Refused(400, f"part {len(result)} of the form has no headers that end, or more than {_MAX_HEADERS:,} "
                          "bytes of them")  # fmt: skip
        lines = head.decode("utf-8", "replace").replace("\r\n ", " ").replace("\r\n\t", " ").split("\r\n")[1:]
        named = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in named}
        said = headers.get("content-disposition", "")
        params = _params("content-disposition", said)
        if not said.lower().startswith("form-data") or "name" not in params:
            raise Refused(400, f"part {len(result)} of the form has no Content-Disposition: form-data with a name")
        if headers.get("content-transfer-encoding", "binary").lower() not in ("binary", "8bit", "7bit"):
            what = f"part {len(result)} of the form has a Content-Transfer-Encoding; send its bytes as they are"
            raise Refused(400, what)
        result.append(Part(params["name"], params.get("filename"), body))
    return result


def _params(name: str, value: str) -> dict[str, str]:
    """The parameters of a header."""
    message = Message()
    message[name] = value.replace("\r", " ").replace("\n", " ")
    return {key.lower(): held if isinstance(held, str) else held[2]
            for key, held in message.get_params([], name)[1:]}  # fmt: skip
