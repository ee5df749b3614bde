"""A request in no provider's dialect: what one dialect reads, another writes.

Built only where a request must be translated. Names follow OpenAI's Chat Completions, which most
providers speak. ``None`` always means that the client did not say.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from headstart.types import Frozen


class TextPart(Frozen, tag="text"):
    text: str
    refusal: bool = False
    """The assistant said it to decline."""
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields of the part that other dialects do not know, such as ``cache_control``."""


class MediaPart(Frozen, tag="media"):
    """An image, a sound or a file, by URL or by its bytes."""

    kind: Literal["image", "audio", "file"]
    media_type: str | None = None
    url: str | None = None
    data: str | None = None
    """Base64."""
    name: str | None = None
    detail: str | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class ReasoningPart(Frozen, tag="reasoning"):
    """Earlier reasoning. Its signature is good for the provider that made it, and no other."""

    text: str
    signature: str | None = None
    field: str = "reasoning_content"
    """The name under which the client sent it."""
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class CallPart(Frozen, tag="call"):
    """A tool call that the assistant made. ``arguments`` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class ForeignPart(Frozen, tag="foreign"):
    """A part that only its own dialect knows. Another dialect's writer refuses it by ``kind``."""

    kind: str
    value: dict[str, Any]


class ResultPart(Frozen, tag="result"):
    """What a tool call gave. ``name`` is the tool's, found by the call's id where need be."""

    id: str
    name: str | None = None
    content: tuple[TextPart | MediaPart | ForeignPart, ...] = ()
    is_error: bool = False
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


MessagePart: TypeAlias = TextPart | MediaPart | ReasoningPart | CallPart | ResultPart | ForeignPart


Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]


class Message(Frozen):
    """One turn. ``tool`` messages hold ResultParts alone; a system message may stand anywhere."""

    role: Role
    parts: tuple[MessagePart, ...]
    name: str | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class Tool(Frozen):
    """A function of the caller's. ``parameters`` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class ForeignTool(Frozen):
    """A tool that the provider runs (search, code), known to its own dialect alone."""

    kind: str
    value: dict[str, Any]


class ToolChoice(Frozen):
    mode: Literal["auto", "none", "required", "named"] = "auto"
    names: tuple[str, ...] = ()
    """The tool's name where it is ``named``; several where a choice is limited to them."""


class ResponseFormat(Frozen):
    kind: Literal["text", "json", "schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class ReasoningWish(Frozen):
    """How much the model shall think: by effort, by a budget in tokens, or not at all."""

    effort: str | None = None
    """``none``, ``minimal``, ``low``, ``medium``, ``high`` or a provider's own word."""
    budget_tokens: int | None = None
    enabled: bool | None = None
    """True without a budget: as much as the model sees fit."""
    shown: bool | None = None
    """Whether the client gets to see it. What it asked for is kept on the answer's way back."""
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class CanonicalRequest(Frozen):
    """A chat request, whole. ``extra`` holds the top-level fields that have no place here."""

    model: str
    messages: tuple[Message, ...]
    dialect: str = ""
    """The dialect it was read from. Signatures, ``extra`` and what is foreign mean something there
    alone."""
    stream: bool = False
    include_usage: bool = False
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    choices: int = 1
    tools: tuple[Tool | ForeignTool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning: ReasoningWish | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    user: str | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class Quirks(Frozen):
    """Where a provider deviates from the dialect that it speaks; data of its preset."""

    drops: tuple[str, ...] = ()
    """Top-level request fields that it rejects or that break it."""
    message_drops: tuple[str, ...] = ()
    """Fields of a message that it rejects."""
    renames: dict[str, str] = msgspec.field(default_factory=dict)
    """Top-level request fields that it knows under another name."""
    max_choices: int | None = None
    """Largest ``n`` that it takes."""
    stream_usage: bool = True
    """It takes ``stream_options.include_usage``."""
    default_max_tokens: int | None = None
    """Sent where the target requires a limit and the client named none."""
    sampling: bool = True
    """It takes temperature and its like (Anthropic's 2026-10-21 version does not)."""
    thinking: Literal["effort", "budget"] = "effort"
    """Whether its models are told an effort, or how many tokens to think (Claude before 4.6)."""
    prefill: Literal["no", "plain", "prefix"] = "no"
    """Whether it goes on from a last assistant message; ``prefix``: if that says
    ``"prefix": true``."""
    call_ids: Literal["any", "short"] = "any"
    """Which ids of tool calls it takes; ``short``: nine letters or digits."""
    prediction: bool = False
    """It takes a predicted output (``prediction``)."""
    refuse: bool = False
    """Refuse a request with a field that cannot be expressed, rather than drop the field."""


class Written(Frozen):
    """A request in a provider's dialect: where it goes, and what could not be said in it."""

    path: bytes
    """Raw path as under the provider's root, such as ``/v1/messages``."""
    body: bytes
    query: bytes = b""
    dropped: tuple[str, ...] = ()
    """Names of the fields left out, sorted, without repeats."""
