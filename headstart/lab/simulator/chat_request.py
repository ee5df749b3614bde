"""The fields of an OpenAI chat request that change its answer.

Requests of other dialects are read into the same values, so that the same question gets the same
answer in every dialect.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from headstart.types import UNDECODABLE, Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

Body = TypeVar("Body")
CHARACTERS = 4
"""The number of characters of a simulated prompt token."""
MOST_CHOICES = 128
MOST_LOGPROBS = 20
"""OpenAI's limits. They keep a single request from occupying the simulator."""


class BadRequest(Exception):
    """The body is not a chat request; the message goes to the caller."""


class ContentPart(Frozen):
    type: str
    text: str = ""


class CalledFunction(Frozen):
    name: str = ""
    arguments: str = ""


class AskedCall(Frozen):
    """A tool call that the assistant made in an earlier turn."""

    function: CalledFunction = CalledFunction()

    @classmethod
    def of(cls, name: str, arguments: dict[str, Any]) -> AskedCall:
        """Return a call with these arguments."""
        written = msgspec.json.encode(arguments).decode()
        return cls(function=CalledFunction(name=name, arguments=written))


class AskedMessage(Frozen):
    role: str
    content: str | tuple[ContentPart, ...] | None = None
    tool_calls: tuple[AskedCall, ...] | None = None

    @classmethod
    def of(cls, role: str, texts: Iterable[str]) -> AskedMessage:
        """Return a message of these texts, joined as OpenAI's text parts are."""
        return cls(role=role, content="\n".join(texts))

    @property
    def text(self) -> str:
        """All text of the message, text parts joined by newlines."""
        if isinstance(self.content, tuple):
            return "\n".join(part.text for part in self.content if part.type == "text")
        return self.content or ""

    @property
    def whole_text(self) -> str:
        """All that a provider counts: the text, and the tool calls."""
        calls = [f"{each.function.name}{each.function.arguments}" for each in self.tool_calls or ()]
        return "".join([self.text, *calls])


class Function(Frozen):
    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)


class OfferedTool(Frozen):
    function: Function | None = None
    """None: it is a tool of the provider."""

    @classmethod
    def of(cls, name: str, parameters: dict[str, Any] | None, description: str = "") -> OfferedTool:
        """Return a tool that is a function."""
        function = Function(name=name, description=description, parameters=parameters or {})
        return cls(function=function)

    @property
    def text(self) -> str:
        """The text that a provider counts."""
        return "" if self.function is None else msgspec.json.encode(self.function).decode()


class StreamOptions(Frozen):
    include_usage: bool = False


class JsonSchema(Frozen):
    schema: dict[str, Any] = msgspec.field(default_factory=dict)


class WantedFormat(Frozen):
    type: str = "text"
    json_schema: JsonSchema | None = None

    @classmethod
    def of(cls, schema: dict[str, Any] | None) -> WantedFormat:
        """Return the format for JSON, with the schema if there is one."""
        if schema is None:
            return cls(type="json_object")
        return cls(type="json_schema", json_schema=JsonSchema(schema=schema))


class NamedFunction(Frozen):
    name: str


class NamedTool(Frozen):
    function: NamedFunction | None = None

    @classmethod
    def of(cls, name: str) -> NamedTool:
        """Return the choice of one function."""
        return cls(function=NamedFunction(name=name))


class ChatBody(Frozen):
    """A decoded ``POST /v1/chat/completions`` body."""

    model: str
    messages: tuple[AskedMessage, ...]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MOST_CHOICES)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MOST_LOGPROBS)] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    tools: tuple[OfferedTool, ...] | None = None
    tool_choice: str | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    response_format: WantedFormat | None = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def limit(self) -> int | None:
        """The limit of completion tokens, or None."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def prompt_tokens(self) -> int:
        """Simulated tokens: ``CHARACTERS`` each, rounded up."""
        return math.ceil(len(self.prompt_text) / CHARACTERS)

    @property
    def prompt_text(self) -> str:
        """Tools and messages as one text."""
        tools = "".join([tool.text for tool in self.tools or ()])
        return tools + "".join([message.whole_text for message in self.messages])

    @property
    def prefill(self) -> str | None:
        """The beginning of an answer that the caller asks to be continued, or None."""
        last = self.messages[-1]
        return last.text if last.role == "assistant" and last.text else None


_decoder = msgspec.json.Decoder(ChatBody)


def decode_chat(body: bytes) -> ChatBody:
    """Decode an OpenAI request body. Raises BadRequest with a reason fit for the caller."""
    chat = decode_as(_decoder, body)
    if not chat.messages:
        raise BadRequest("Invalid 'messages': empty array.")
    return chat


def decode_as(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    """Decode any dialect's body. Raises BadRequest for JSON of another shape."""
    try:
        return decoder.decode(body)
    except UNDECODABLE as error:
        raise BadRequest(f"We could not parse the JSON body of your request: {error}") from error
