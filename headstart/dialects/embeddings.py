"""The answers to embeddings requests: taken apart into vectors, kept small, and put together."""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from sys import byteorder
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headstart.dialects.answers import UNDECODABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SINGLE, _DOUBLE, _BASE64, _AS_IT_CAME = range(4)
"""How a vector is kept: as numbers of 4 or 8 bytes, as the bytes that base64 holds, or as JSON."""
_EMPTY = frozenset({b"null", b'""', b"[]"})
"""What some providers give in place of a vector that they failed to make."""
_OWN = ("object", "index", "embedding")
_NO_USAGE = msgspec.Raw(b'{"prompt_tokens":0,"total_tokens":0}')


class Vectors(NamedTuple):
    """A whole answer, taken apart."""

    head: dict[str, msgspec.Raw]
    """All fields but the vectors."""
    items: list[bytes]
    """The packed vectors, in the order of the items that were asked for."""

    @property
    def model(self) -> str:
        """The model's name in the answer, or an empty one."""
        try:
            return msgspec.json.decode(self.head.get("model", b'""'), type=str)
        except UNDECODABLE:
            return ""


def read_vectors(body: bytes, count: int) -> Vectors | None:
    """Return an answer's vectors; None unless it has exactly one for each of ``count`` items."""
    try:
        head = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        rows = msgspec.json.decode(head.pop("data", b""), type=list[dict[str, msgspec.Raw]])
        if len(rows) != count or "error" in head:
            return None
        packed = {msgspec.json.decode(row["index"], type=int): _pack(row) for row in rows}
        return Vectors(head, [packed[index] for index in range(count)])
    except (*UNDECODABLE, KeyError, ValueError):  # ValueError: no base64
        return None


def write_vectors(
    items: Sequence[bytes], *, head: dict[str, msgspec.Raw] | None = None, model: str = ""
) -> bytes:
    """Return an answer with these packed vectors.

    ``head`` has the other fields of a provider's answer to some of them. Without it no provider
    was asked, so the answer reports no tokens.
    """
    data = msgspec.Raw(b"[%b]" % b",".join(_unpacked(items)))
    if head is None:
        known = {"model": msgspec.Raw(msgspec.json.encode(model)), "usage": _NO_USAGE}
        return msgspec.json.encode({"object": "list", "data": data, **known})
    first = {"object": head["object"]} if "object" in head else {}
    return msgspec.json.encode({**first, "data": data, **head})


def _pack(row: dict[str, msgspec.Raw]) -> bytes:
    """Return a vector and what stands beside it in as few bytes as say exactly the same."""
    vector = bytes(row["embedding"])
    if vector in _EMPTY:
        raise KeyError("embedding")
    kind, kept = _pack_vector(vector)
    more = {name: value for name, value in row.items() if name not in _OWN}
    return msgspec.msgpack.encode((kind, kept, msgspec.json.encode(more) if more else b""))


def _pack_vector(text: bytes) -> tuple[int, bytes]:
    if text.startswith(b'"'):
        encoded = msgspec.json.decode(text, type=str)
        decoded = b64decode(encoded, validate=True)
        return (_BASE64, decoded) if b64encode(decoded).decode() == encoded else (_AS_IT_CAME, text)
    if b"." not in text:  # whole numbers, as of a quantised vector
        return _AS_IT_CAME, text
    exact = array("d", msgspec.json.decode(text, type=list[float]))
    try:
        single = array("f", exact)
    except OverflowError:
        return _DOUBLE, _little(exact)
    return (_SINGLE, _little(single)) if array("d", single) == exact else (_DOUBLE, _little(exact))


def _unpacked(items: Iterable[bytes]) -> Iterable[bytes]:
    """Yield packed vectors as the rows of an answer."""
    for index, item in enumerate(items):
        kind, kept, more = msgspec.msgpack.decode(item, type=tuple[int, bytes, bytes])
        vector: Any
        if kind == _BASE64:
            vector = b'"%b"' % b64encode(kept)
        elif kind == _AS_IT_CAME:
            vector = kept
        else:
            numbers = array("f" if kind == _SINGLE else "d", kept)
            if byteorder == "big":
                numbers.byteswap()
            vector = msgspec.json.encode(numbers.tolist())
        rest = b"," + more[1:-1] if more else b""
        yield b'{"object":"embedding","index":%d,"embedding":%b%b}' % (index, vector, rest)


def _little(numbers: array[float]) -> bytes:
    if byteorder == "big":
        numbers = array(numbers.typecode, numbers)
        numbers.byteswap()
    return numbers.tobytes()
