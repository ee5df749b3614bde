"""The part of the OpenAI chat request that changes a simulated answer; the rest is ignored."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from headstart.types import Frozen


class BadRequest(Exception):
    """The body is not a chat request; the message goes to the caller."""


class ContentPart(Frozen):
    type: str
    text: str = ""
    refusal: str = ""


class Message(Frozen):
    role: str
    content: str | tuple[ContentPart, ...] | None = None

    @property
    def text(self) -> str:
        """All text of the message, text parts joined by newlines."""
        if isinstance(self.content, tuple):
            return "\n".join(part.text for part in self.content if part.type == "text")
        return self.content or ""


class Function(Frozen):
    name: str
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)


class Tool(Frozen):
    type: str = "function"
    function: Function | None = None


class StreamOptions(Frozen):
    include_usage: bool = False


class JsonSchema(Frozen):
    name: str = ""
    schema: dict[str, Any] = msgspec.field(default_factory=dict)


class ResponseFormat(Frozen):
    type: str = "text"
    json_schema: JsonSchema | None = None


class NamedFunction(Frozen):
    name: str


class NamedTool(Frozen):
    type: str = "function"
    function: NamedFunction | None = None


class ChatBody(Frozen):
    """A decoded ``POST /v1/chat/completions`` body."""

    model: str
    messages: tuple[Message, ...]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: str | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    response_format: ResponseFormat | None = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def limit(self) -> int | None:
        """The cap on completion tokens, or None."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def prompt_tokens(self) -> int:
        """Simulated: a quarter of the characters of all messages, rounded up."""
        return math.ceil(sum(len(message.text) for message in self.messages) / 4)


_decoder = msgspec.json.Decoder(ChatBody)


def decode_chat(body: bytes) -> ChatBody:
    """Decode a request body. Raises BadRequest with a reason fit for the caller."""
    try:
        chat = _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise BadRequest(f"We could not parse the JSON body of your request: {error}") from error
    if not chat.messages:
        raise BadRequest("Invalid 'messages': empty array.")
    return chat
