"""Anthropic Messages: a stored answer as byte templates, JSON and stream alike.

Everything but the id is encoded once; a replay only joins bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.middleware.dialects.anthropic_events import DELTAS, FINISHES, THINKING
from headstart.middleware.dialects.chunks import split_text
from headstart.types import CONTENT_BLOCKS, Reasoning, Refusal, ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headstart.types import Choice, Completion, Part

IN_DELTA = ("container", "stop_details")
"""Fields of a message that its stream tells at the end."""
BESIDE_DELTA = ("context_management",)
"""The same, beside the delta that tells how it ended."""
_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
    "eos": "end_turn",
}
_OWN_REASONS = frozenset({*FINISHES, "pause_turn"})
NO_USAGE: dict[str, Any] = {"input_tokens": 0, "output_tokens": 0}
_TEXTS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
_encode = msgspec.json.encode


def stop_reason(finish: str, native: str | None, *, calls: bool, refused: bool) -> str:
    """Return the API's name of why an answer stopped.

    ``native`` counts only if it is the API's own. Clients act on tool calls and refusals only
    where the reason says so, which other providers' may not.
    """
    if native in _OWN_REASONS:
        return native
    if finish == "stop" and (calls or refused):
        return "tool_use" if calls else "refusal"
    return _STOP_REASONS.get(finish, finish)


class RenderedMessage:
    """One answer, prebuilt. The id is the only hole.

    What the API does not have is left out: choices but the first, logprobs, and reasoning under
    another name than the API's, for which its clients did not ask.
    """

    __slots__ = ("_body", "_stream", "nbytes")

    def __init__(self, completion: Completion) -> None:
        choice = completion.choices[0]
        extra = completion.extra
        stop = {
            "stop_reason": _stop_reason_of(choice),
            "stop_sequence": choice.beside.get("stop_sequence"),
        }
        usage = {**NO_USAGE, **(completion.usage or {})}
        message = {"type": "message", "role": "assistant", "model": completion.model}
        blocks = tuple(_blocks(choice))
        content = [_whole(block, deltas) for block, deltas in blocks]
        self._body = _members({**message, "content": content, **stop, "usage": usage, **extra})
        late = (*IN_DELTA, *BESIDE_DELTA)
        start = {
            **message,
            "content": [],
            **dict.fromkeys(stop),
            "usage": {**usage, "output_tokens": 0},
            **{name: value for name, value in extra.items() if name not in late},
        }
        delta = {**stop, **{name: extra[name] for name in IN_DELTA if name in extra}}
        beside = {name: extra[name] for name in BESIDE_DELTA if name in extra}
        events = (
            *_block_events(blocks),
            {"type": "message_delta", "delta": delta, "usage": usage, **beside},
            {"type": "message_stop"},
        )
        self._stream = b"%b}\n\n%b" % (_members(start), b"".join(map(_frame, events)))
        self.nbytes = len(self._body) + len(self._stream)

    def json(self, id: str, created: int) -> bytes:  # noqa: ARG002
        """Return the body of the answer that is not streamed. The dialect knows no time."""
        return b'{"id":%b,%b' % (_encode(id), self._body)

    def sse(self, id: str, created: int, *, include_usage: bool) -> bytes:  # noqa: ARG002
        """Return the whole stream, ``message_stop`` included. It always tells the usage."""
        head = b'event: message_start\ndata: {"type":"message_start","message":{"id":'
        return b"%b%b,%b" % (head, _encode(id), self._stream)


def _stop_reason_of(choice: Choice) -> str:
    return stop_reason(
        choice.finish,
        choice.native_finish,
        calls=any(isinstance(part, ToolCall) for part in choice.parts),
        refused=any(isinstance(part, Refusal) for part in choice.parts),
    )


def _members(document: dict[str, Any]) -> bytes:
    """Encode an object without its opening brace, to follow the members of a template."""
    return _encode(document)[1:]


def _frame(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event))


_Block = tuple[dict[str, Any], list[dict[str, Any]]]
"""A content block as its stream begins it, and the deltas that follow."""


def _blocks(choice: Choice) -> Iterator[_Block]:
    """Yield the content blocks in order: parts fill the places that no other block has."""
    details: dict[int, dict[str, Any]] = {}
    for detail in choice.extra.get(CONTENT_BLOCKS, ()):
        fields = {name: value for name, value in detail.items() if name != "index"}
        details.setdefault(detail["index"], {}).update(fields)
    parts = iter([part for part in choice.parts if not _is_foreign(part)])
    index = 0
    while True:
        fields = details.pop(index, {})
        deltas = fields.pop(DELTAS, [])
        if "type" in fields:
            yield fields, deltas
        else:
            part = next(parts, None)
            if part is None:
                break
            block, own = _part_block(part)
            yield {**block, **fields}, [*own, *deltas]
        index += 1
    for _, fields in sorted(details.items()):
        if "type" in fields:
            yield fields, fields.pop(DELTAS, [])


def _is_foreign(part: Part) -> bool:
    return isinstance(part, Reasoning) and part.field != THINKING


def _part_block(part: Part) -> _Block:
    if isinstance(part, ToolCall):
        block = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}, **part.extra}
        return block, _deltas("input_json_delta", "partial_json", part.arguments)
    if isinstance(part, Reasoning):
        block = {"type": "thinking", "thinking": "", "signature": ""}
        deltas = _deltas("thinking_delta", "thinking", part.text)
        if part.signature:
            deltas.append({"type": "signature_delta", "signature": part.signature})
        return block, deltas
    return {"type": "text", "text": ""}, _deltas("text_delta", "text", part.text)


def _deltas(kind: str, field: str, text: str) -> list[dict[str, Any]]:
    return [{"type": kind, field: piece} for piece in split_text(text)]


def _block_events(blocks: Iterable[_Block]) -> Iterator[dict[str, Any]]:
    for index, (block, deltas) in enumerate(blocks):
        # Clients append citations to those that a block begins with.
        cited = block.get("citations")
        cited = cited if isinstance(cited, list) else ()
        told = [{"type": "citations_delta", "citation": citation} for citation in cited]
        first = {**block, "citations": []} if told else block
        yield {"type": "content_block_start", "index": index, "content_block": first}
        for delta in (*deltas, *told):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}


def _whole(block: dict[str, Any], deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the block that a stream's first event and its deltas add up to."""
    whole = dict(block)
    json_pieces = []
    for delta in deltas:
        match delta:
            case {"type": "input_json_delta", "partial_json": str(piece)}:
                json_pieces.append(piece)
            case {"type": "citations_delta", "citation": citation}:
                known = whole.get("citations")
                whole["citations"] = [*(known if isinstance(known, list) else ()), citation]
            case _:
                _add_fields(whole, delta)
    if arguments := "".join(json_pieces):
        whole["input"] = _input(arguments)
    return whole


def _add_fields(whole: dict[str, Any], delta: dict[str, Any]) -> None:
    """Add a delta of any type: its texts go on with the block's, other fields replace."""
    for name, value in delta.items():
        if name == "type":
            continue
        known = whole.get(name)
        both = isinstance(known, str) and isinstance(value, str)
        whole[name] = known + value if both else value


def _input(arguments: str) -> Any:
    """Return a tool call's input; one that was cut is wrapped as the API's guide has clients do."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return {"INVALID_JSON": arguments}
    return (
        msgspec.Raw(arguments.encode()) if isinstance(value, dict) else {"INVALID_JSON": arguments}
    )
