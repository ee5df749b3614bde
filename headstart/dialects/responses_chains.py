"""Chains of Responses: reads the references of a request, and writes their content into it.

A client of Responses may send only the new items, and name earlier ones by ids: the id of the
answer before (``previous_response_id``), or of single items (``item_reference``). If these answers
are stored here, they can be written out, as if the client had sent the whole conversation.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headstart.dialects.requests import marked_origin
from headstart.errors import InvalidRequest
from headstart.types import UNDECODABLE, words_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

OWN = "resp_hs"
"""The beginning of the ids that we give to answers. No provider gives such an id."""
_OWN_ITEM = re.compile("[a-z]+_hs[0-9a-f]{32,}")
"""The ids that we give to items: of answers that no provider stored, and of listed input."""
REFERENCE = "item_reference"
_PREVIOUS = "previous_response_id"
_PORTABLE = words_of(
    "message function_call function_call_output custom_tool_call custom_tool_call_output"
)
"""Output items that any provider takes as input. Items of hosted tools are known only to the
account that made them."""

_encode = msgspec.json.encode


class ChainedRequest(NamedTuple):
    """The parts of a request that chains are made of."""

    previous: str | None
    """The id of the answer that it follows."""
    items: tuple[msgspec.Raw, ...]
    """The items of its input."""
    references: tuple[str | None, ...]
    """For each item the id that it refers to; None if it refers to nothing."""
    keeps: bool
    """The client wants the answer to be kept."""


class _Request(msgspec.Struct):
    """The fields have any type, because even an invalid request may name an answer."""

    previous_response_id: Any = None
    input: msgspec.Raw = msgspec.Raw(b"null")
    store: Any = None
    conversation: Any = None
    background: Any = None


class _ReferableItem(msgspec.Struct):
    type: Any = None
    role: Any = None
    id: Any = None

    @property
    def own_id(self) -> str | None:
        return self.id if isinstance(self.id, str) else None

    @property
    def reference(self) -> str | None:
        if self.type == REFERENCE or (self.type is None and self.role is None):
            return self.own_id
        return None


class NamedAnswer(msgspec.Struct):
    """The parts of a response that chains are made of."""

    id: str
    status: str = ""
    output: tuple[msgspec.Raw, ...] = ()
    store: Any = None
    """False: the provider does not keep it."""


_read_request = msgspec.json.Decoder(_Request).decode
read_raws = msgspec.json.Decoder(tuple[msgspec.Raw, ...]).decode
_read_items = msgspec.json.Decoder(tuple[_ReferableItem, ...]).decode
_read_item = msgspec.json.Decoder(_ReferableItem).decode
_read_answer = msgspec.json.Decoder(NamedAnswer).decode
_read_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def own_id(seed: str) -> str:
    """Return an id of ours, the same for equal seeds."""
    return OWN + blake2b(seed.encode(), digest_size=16).hexdigest()


def is_own(id: str) -> bool:
    """Tell whether we gave this id to an answer or an item."""
    return id.startswith(OWN) or _OWN_ITEM.fullmatch(id) is not None


def may_refer(body: bytes) -> bool:
    """Tell whether a request could refer to anything, without decoding it.

    In a body without escapes, names appear unchanged.
    """
    return b'"id"' in body or b"previous_response_id" in body or b"\\u" in body


def read_asked(body: bytes) -> ChainedRequest | None:
    """Read a request's body; None if it has another form, which its provider will refuse."""
    try:
        request = _read_request(body)
        raw = bytes(request.input)
        keeps = request.store is not False and not (request.background or request.conversation)
        named = request.previous_response_id
        previous = named if isinstance(named, str) and named else None
        if raw[:1] != b"[":
            said = _encode({"role": "user", "content": request.input})
            items = () if raw == b"null" else (msgspec.Raw(said),)
            return ChainedRequest(previous, items, (None,) * len(items), keeps)
        references = tuple([item.reference for item in _read_items(raw)])
        return ChainedRequest(previous, read_raws(raw), references, keeps)
    except UNDECODABLE:
        return None


def read_answer(document: bytes) -> NamedAnswer | None:
    """Read a whole response; None if it is no response, or cannot be continued."""
    try:
        answer = _read_answer(document)
    except UNDECODABLE:
        return None
    return answer if answer.id and answer.status in ("completed", "incomplete") else None


def item_ids(answer: NamedAnswer) -> list[str | None]:
    """Return the ids of its output items."""
    return [_read_item(raw).own_id for raw in answer.output]


def write_whole(body: bytes, items: Iterable[bytes | msgspec.Raw]) -> bytes:
    """Return a request's body with these items as its input, and without a previous answer."""
    fields = _read_fields(body)
    fields.pop(_PREVIOUS, None)
    fields["input"] = as_array(items)
    return _encode(fields)


def as_array(items: Iterable[bytes | msgspec.Raw]) -> msgspec.Raw:
    """Return items as a JSON array."""
    return msgspec.Raw(b"[%b]" % b",".join(map(bytes, items)))


def portable(
    items: Sequence[msgspec.Raw], *, from_model: bool, same_account: bool
) -> tuple[msgspec.Raw, ...]:
    """Return items of a turn in a form that a provider accepts which did not store the turn.

    ``from_model``: the model wrote the items. Their ids are dropped, because a provider would look
    them up. Encrypted reasoning stays only with ``same_account``, because only the account that
    made it can read it. Reasoning with our mark is text of another provider, and passes.
    """
    kept = (_portable(raw, from_model=from_model, same_account=same_account) for raw in items)
    return tuple([raw for raw in kept if raw is not None])


def _portable(raw: msgspec.Raw, *, from_model: bool, same_account: bool) -> msgspec.Raw | None:
    item: Any = msgspec.json.decode(raw)
    kind = item.get("type") or "message"
    if kind == "reasoning":
        signature = item.get("encrypted_content")
        marked = isinstance(signature, str) and marked_origin(signature) is not None
        return raw if marked or (same_account and signature) else None
    by_client = kind.startswith("tool_search") and item.get("execution") == "client"
    if kind not in _PORTABLE and not by_client:
        return None if from_model else raw
    if "id" not in item:
        return raw
    return msgspec.Raw(_encode({name: value for name, value in item.items() if name != "id"}))


# --- lists of input items, and the pages of any list ----------------------------------------------


def list_items(items: Sequence[msgspec.Raw], response_id: str) -> list[dict[str, Any]]:
    """Return the input items of a response as the API lists them: whole, each with an id."""
    return [_listed(raw, response_id, place) for place, raw in enumerate(items)]


def _listed(raw: msgspec.Raw, response_id: str, place: int) -> dict[str, Any]:
    item: dict[str, Any] = msgspec.json.decode(raw)
    kind = item.get("type") or "message"
    own = {"type": kind}
    if kind == "message":
        own["status"] = "completed"
        content = item.get("content")
        if isinstance(content, str):
            part = "output_text" if item.get("role") == "assistant" else "input_text"
            item["content"] = [{"type": part, "text": content}]
    digest = blake2b(f"{response_id} {place}".encode(), digest_size=16).hexdigest()
    return {"id": f"{'msg' if kind == 'message' else 'item'}_hs{digest}", **own, **item}


def list_page(
    items: Sequence[dict[str, Any]], query: Mapping[str, str], *, size: int, largest: int
) -> dict[str, Any]:
    """Return the page of a list that a query asks for. Raises InvalidRequest.

    ``items`` are the whole list, the newest first. Without ``limit`` a page has ``size`` items; no
    page has more than ``largest``.
    """
    limit, after = query.get("limit", str(size)), query.get("after")
    if not (limit.isdecimal() and len(limit) < 9 and 1 <= int(limit) <= largest):
        raise InvalidRequest(f"limit: must be a number from 1 to {largest}")
    ordered = list(reversed(items) if query.get("order") == "asc" else items)
    if after is not None:
        ids = [item["id"] for item in ordered]
        if after not in ids:
            raise InvalidRequest("after: no item of this list has this id")
        ordered = ordered[ids.index(after) + 1 :]
    shown = ordered[: int(limit)]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(ordered) > len(shown),
    }


# --- answers on their way ------------------------------------------------------------------------

_TERMINAL = (b'"response.completed"', b'"response.incomplete"')
_IN_EACH_TERMINAL = b"omplete"
_NAMED = (b"event: response.completed\n", b"event: response.incomplete\n")
_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


class _Event(msgspec.Struct):
    type: str = ""
    response: msgspec.Raw = msgspec.Raw(b"null")


_read_event = msgspec.json.Decoder(_Event).decode


class StreamTail:
    """Finds the terminal event of a stream while its bytes pass.

    It keeps up to ``most`` bytes of an event. A longer event is not found.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._rest = b""

    def feed(self, data: bytes) -> bytes | None:
        """Return the terminal event once it has come, else None. ``response_in`` reads it."""
        if not self._rest and _IN_EACH_TERMINAL not in data and data.endswith(b"\n\n"):
            return None  # the usual case: whole frames that do not end the stream
        pending = self._rest + data if self._rest else data
        start = 0
        while (at := _place_of_terminal(pending, start)) is not None:
            begin, end = _begin_of_frame(pending, start, at), _end_of_frame(pending, at)
            if end is None:
                start = begin
                break
            frame = pending[begin:end]
            if frame.startswith(_NAMED) or response_in(frame) is not None:
                self._rest = b""
                return frame
            start = end
        else:
            start = _begin_of_frame(pending, start, len(pending))
        self._rest = pending[start:] if len(pending) - start <= self._most else b""
        return None


def _place_of_terminal(data: bytes, start: int) -> int | None:
    """Return the place of the next name of a terminal event, or None."""
    return min([at for kind in _TERMINAL if (at := data.find(kind, start)) >= 0], default=None)


def _begin_of_frame(data: bytes, start: int, until: int) -> int:
    """Return the place after the last empty line before ``until``, or ``start``."""
    ends = [(data.rfind(end, start, until), len(end)) for end in _ENDS]
    return max([start, *(at + length for at, length in ends if at >= 0)])


def _end_of_frame(data: bytes, start: int) -> int | None:
    """Return the place after the next empty line, or None."""
    found = [(at, len(end)) for end in _ENDS if (at := data.find(end, start)) >= 0]
    if not found:
        return None
    at, length = min(found)
    return at + length


def response_in(frame: bytes) -> bytes | None:
    """Return the whole response in a terminal event as JSON; None if the event is another one."""
    data = b"\n".join(
        [line[5:].strip() for line in frame.splitlines() if line.startswith(b"data:")]
    )
    try:
        event = _read_event(data)
    except UNDECODABLE:
        return None
    terminal = event.type in ("response.completed", "response.incomplete")
    return bytes(event.response) if terminal else None
