"""Counts of a prompt's tokens, as Anthropic, Gemini and Bedrock tell them before a call."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headstart.lab.simulator.anthropic_messages import AnthropicWire
from headstart.lab.simulator.bedrock import BedrockWire
from headstart.lab.simulator.gemini import GeminiWire

if TYPE_CHECKING:
    from headstart.lab.simulator.chat_request import ChatBody
    from headstart.lab.simulator.wire import SimulatedRequest, Wire

_ANTHROPIC: Wire = AnthropicWire()
_GEMINI: Wire = GeminiWire()
_BEDROCK: Wire = BedrockWire()
_PATHS: tuple[tuple[re.Pattern[bytes], Wire], ...] = (
    (re.compile(rb"/v1/messages/count_tokens"), _ANTHROPIC),
    (re.compile(rb"(/(?:v1|v1beta)/models/[^/:]+:)countTokens"), _GEMINI),
    (re.compile(rb"(/model/[^/]+/)count-tokens"), _BEDROCK),
)


class CountedPrompt(NamedTuple):
    """The chat request whose prompt was counted, and the body of the answer."""

    chat: ChatBody
    body: bytes


def counting_wire(incoming: SimulatedRequest) -> Wire | None:
    """Return the dialect of a request for a count, or None."""
    if incoming.method != "POST":
        return None
    return next((wire for path, wire in _PATHS if path.fullmatch(incoming.path)), None)


def count_tokens(incoming: SimulatedRequest) -> CountedPrompt | None:
    """Count a prompt; None for other requests. Raises BadRequest and msgspec.DecodeError."""
    wire = counting_wire(incoming)
    if wire is None:
        return None
    document = msgspec.json.decode(incoming.body, type=dict[str, Any])
    path = incoming.path
    if wire is _GEMINI:
        path = path.replace(b":countTokens", b":generateContent")
        document = document.get("generateContentRequest", document)
    elif wire is _BEDROCK:
        path = path.replace(b"/count-tokens", b"/converse")
        document = (document.get("input") or {}).get("converse", {})
    else:
        document = {"max_tokens": 1, **document}
    asked = msgspec.structs.replace(incoming, path=path, body=msgspec.json.encode(document))
    chat = wire.read(asked)
    return CountedPrompt(chat, msgspec.json.encode(_answer(wire, chat.prompt_tokens)))


def _answer(wire: Wire, tokens: int) -> dict[str, Any]:
    if wire is _GEMINI:
        details = [{"modality": "TEXT", "tokenCount": tokens}]
        return {"totalTokens": tokens, "promptTokensDetails": details}
    return {"inputTokens" if wire is _BEDROCK else "input_tokens": tokens}
