"""OpenAI Chat Completions: a stored answer as byte templates, JSON and stream alike.

Everything but the id and the creation time is encoded once; a replay only joins bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from headstart.middleware.dialects.chunks import CHUNK_CHARACTERS, split_text
from headstart.middleware.dialects.openai_chat_encode import reasoning_field
from headstart.types import CONTENT_BLOCKS, Reasoning, Refusal, Text, ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.types import Choice, Completion

_Object: TypeAlias = dict[str, Any]
_encode = msgspec.json.encode
_DONE = b"data: [DONE]\n\n"


class RenderedChat:
    """One answer, prebuilt. Ids and times are the only holes."""

    __slots__ = ("_body", "_head", "_plain", "_with_usage", "nbytes")

    def __init__(self, completion: Completion) -> None:
        common = {
            "model": completion.model,
            **({"service_tier": completion.tier} if completion.tier else {}),
            "system_fingerprint": completion.fingerprint,
        }
        usage = {} if completion.usage is None else {"usage": completion.usage}
        messages = [_whole_choice(choice) for choice in completion.choices]
        self._body = _members({**common, "choices": messages, **usage, **completion.extra})
        self._head = _members(common).removesuffix(b"}") + b","
        chunks = [_members(chunk) + b"\n\n" for chunk in _chunks(completion)]
        last = chunks.pop()
        extra_chunk = _members({"choices": [], **usage}) + b"\n\n" + _DONE
        # Joining by the head puts one before every chunk: hence the empty first item.
        self._plain = (b"", *chunks, last + _DONE)
        self._with_usage = (b"", *chunks, last, extra_chunk) if usage else self._plain
        self.nbytes = sum(map(len, (self._body, self._head, *chunks, last, last, extra_chunk)))

    def json(self, id: str, created: int) -> bytes:
        """Return the body of the answer that is not streamed."""
        return b'{"id":%b,"object":"chat.completion","created":%d,%b' % (
            _encode(id),
            created,
            self._body,
        )

    def sse(self, id: str, created: int, *, include_usage: bool) -> bytes:
        """Return the whole stream, ``[DONE]`` included."""
        head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,%b' % (
            _encode(id),
            created,
            self._head,
        )
        return head.join(self._with_usage if include_usage else self._plain)


def _members(document: dict[str, Any]) -> bytes:
    """Encode an object without its opening brace, to follow the members of a template."""
    return _encode(document)[1:]


# --- JSON ------------------------------------------------------------------------------------


def _whole_choice(choice: Choice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "message": _message(choice),
        "logprobs": choice.logprobs,
        "finish_reason": choice.finish,
        **choice.beside,
    }


def _message(choice: Choice) -> dict[str, Any]:
    text = _joined(choice, Text)
    calls = [part for part in choice.parts if isinstance(part, ToolCall)]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text or (None if calls or _joined(choice, Refusal) else ""),
        "refusal": _joined(choice, Refusal) or None,
    }
    for part in choice.parts:
        if isinstance(part, Reasoning):
            field = reasoning_field(part.field)
            message[field] = message.get(field, "") + part.text
    if functions := [call for call in calls if call.kind == "function_call"]:
        message["function_call"] = _named(functions[0], functions[0].arguments)["function_call"]
    if tools := [_named(call, call.arguments) for call in calls if call not in functions]:
        message["tool_calls"] = tools
    message.update(_own_fields(choice))
    if text and isinstance(message["content"], list):
        # Mistral's reasoning arrives as content parts, and its text after them as a string.
        message["content"] = [*message["content"], {"type": "text", "text": text}]
    return message


def _own_fields(choice: Choice) -> dict[str, Any]:
    return {name: value for name, value in choice.extra.items() if name != CONTENT_BLOCKS}


def _joined(choice: Choice, kind: type[Text | Refusal]) -> str:
    return "".join(part.text for part in choice.parts if isinstance(part, kind))


def _named(call: ToolCall, arguments: str) -> dict[str, Any]:
    """Return a call with its name, as JSON answers and first fragments hold it."""
    if call.kind == "function_call":
        return {"function_call": {"name": call.name, "arguments": arguments}}
    body = {"name": call.name, _arguments_field(call): arguments}
    return {"id": call.id, "type": call.kind, call.kind: body, **call.extra}


def _arguments_field(call: ToolCall) -> str:
    return "input" if call.kind == "custom" else "arguments"


# --- stream ----------------------------------------------------------------------------------


def _chunks(completion: Completion) -> Iterator[dict[str, Any]]:
    """Yield the chunks in order; fields of the answer itself ride on the last one."""
    last = completion.choices[-1]
    for choice in completion.choices:
        pieces, logprobs = _pieces(choice)
        yield _chunk(choice, _opening(choice))
        for delta, tokens in pieces:
            yield _chunk(choice, delta, logprobs=tokens)
        closing = _chunk(choice, {}, logprobs=logprobs, finish=choice.finish, **choice.beside)
        yield {**closing, **completion.extra} if choice is last else closing


def _chunk(
    choice: Choice,
    delta: dict[str, Any],
    *,
    logprobs: dict[str, Any] | None = None,
    finish: str | None = None,
    **beside: Any,
) -> dict[str, Any]:
    content = {"index": choice.index, "delta": delta, "logprobs": logprobs}
    return {"choices": [{**content, "finish_reason": finish, **beside}]}


def _opening(choice: Choice) -> dict[str, Any]:
    calls = any(isinstance(part, ToolCall) for part in choice.parts)
    text = None if calls and not _joined(choice, Text) else ""
    return {"role": "assistant", "content": text, "refusal": None, **_own_fields(choice)}


def _pieces(choice: Choice) -> tuple[list[tuple[_Object, _Object | None]], _Object | None]:
    """Return deltas, each with its share of the logprobs, and the logprobs left over."""
    pieces: list[tuple[_Object, _Object | None]] = []
    left = dict(choice.logprobs or {})
    nothing = dict.fromkeys(left)
    calls = 0
    for part in choice.parts:
        if isinstance(part, ToolCall):
            pieces.extend((delta, None) for delta in _call_deltas(part, calls))
            calls += 1
            continue
        field, key = _text_fields(part)
        shares = _by_tokens(part.text, left.get(key)) if key else None
        if shares is None:
            pieces.extend(({field: text}, None) for text in split_text(part.text))
            continue
        pieces.extend(({field: text}, {**nothing, key: tokens}) for text, tokens in shares)
        left[key] = None
    return pieces, choice.logprobs and (left if left != nothing else None)


def _text_fields(part: Text | Reasoning | Refusal) -> tuple[str, str]:
    """Return a part's field in the delta, and in the logprobs ("" for none)."""
    if isinstance(part, Reasoning):
        return reasoning_field(part.field), ""
    return ("content", "content") if isinstance(part, Text) else ("refusal", "refusal")


def _call_deltas(call: ToolCall, index: int) -> Iterator[dict[str, Any]]:
    """Yield a call's deltas: its name and fields first, then its arguments."""
    first = _named(call, "")
    if call.kind == "function_call":
        yield first
        for text in split_text(call.arguments):
            yield {"function_call": {"arguments": text}}
        return
    yield {"tool_calls": [{"index": index, **first}]}
    for text in split_text(call.arguments):
        yield {"tool_calls": [{"index": index, call.kind: {_arguments_field(call): text}}]}


def _by_tokens(text: str, tokens: Any) -> list[tuple[str, list[Any]]] | None:
    """Cut a text between tokens, each piece with its tokens; None if the tokens do not spell it.

    A token may end inside a character: a piece ends only where the bytes so far are whole.
    """
    if not tokens or not isinstance(tokens, list):
        return None
    raw = text.encode()
    shares: list[tuple[str, list[Any]]] = []
    start = end = first = 0
    for position, token in enumerate(tokens, 1):
        spelled = _token_bytes(token)
        if spelled is None or not raw.startswith(spelled, end):
            return None
        end += len(spelled)
        if position < len(tokens):
            inside_character = end < len(raw) and raw[end] & 0xC0 == 0x80
            if inside_character or end - start < CHUNK_CHARACTERS:
                continue
        elif end < len(raw):
            return None
        shares.append((raw[start:end].decode(), tokens[first:position]))
        start, first = end, position
    return shares


def _token_bytes(token: Any) -> bytes | None:
    if not isinstance(token, dict):
        return None
    codes, spelled = token.get("bytes"), token.get("token")
    if isinstance(codes, list) and all(type(code) is int and 0 <= code < 256 for code in codes):
        return bytes(codes)
    return spelled.encode() if isinstance(spelled, str) else None
