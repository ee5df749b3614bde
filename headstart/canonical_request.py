"""The form through which requests are translated: one dialect reads it, another writes it.

It is built only where a request must be translated. Names follow OpenAI's Chat Completions, which
most providers speak. ``None`` always means that the client set no value.

The functions below the form change requests that some providers would refuse: names and schemas of
functions, late system messages, and tool calls without results. For example, a history whose tool
was stopped gets a result for the call::

    user: "Sum up a.txt"           user: "Sum up a.txt"
    assistant: call c1 read_file   assistant: call c1 read_file
    user: "Stop"                   tool: result c1 "(no result)"
                                   user: "Stop"
"""

from __future__ import annotations

import re
from collections import deque
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from headstart.schemas import portable_answer, portable_schema
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class TextPart(Frozen, tag="text"):
    text: str
    refusal: bool = False
    """The text is the assistant's refusal."""
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields of the part that other dialects lack, such as ``cache_control``."""


class MediaPart(Frozen, tag="media"):
    """An image, a sound or a file, given by its URL or by its bytes."""

    kind: Literal["image", "audio", "file"]
    media_type: str | None = None
    url: str | None = None
    data: str | None = None
    """The bytes in Base64."""
    name: str | None = None
    detail: str | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class ReasoningPart(Frozen, tag="reasoning"):
    """Earlier reasoning. Only the provider that made the signature accepts it."""

    text: str
    signature: str | None = None
    field: str = "reasoning_content"
    """The field in which the client sent it."""


class CallPart(Frozen, tag="call"):
    """A tool call that the assistant made. ``arguments`` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class ForeignPart(Frozen, tag="foreign"):
    """A part that only one dialect knows. Writers of other dialects refuse it by its ``kind``."""

    kind: str
    value: dict[str, Any]


ResultContent: TypeAlias = TextPart | MediaPart | ForeignPart


class ResultPart(Frozen, tag="result"):
    """The result of a tool call. ``name`` is the tool's name, looked up by the call's id."""

    id: str
    name: str | None = None
    content: tuple[ResultContent, ...] = ()
    is_error: bool = False
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


MessagePart: TypeAlias = TextPart | MediaPart | ReasoningPart | CallPart | ResultPart | ForeignPart


Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]


class Message(Frozen):
    """One turn. A ``tool`` message holds ResultParts only; a system message may stand anywhere."""

    role: Role
    parts: tuple[MessagePart, ...]
    name: str | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class Tool(Frozen):
    """A function that the caller offers. ``parameters`` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class ForeignTool(Frozen):
    """A tool that the provider itself runs, such as search; only one dialect knows it."""

    kind: str
    value: dict[str, Any]


class ToolChoice(Frozen):
    mode: Literal["auto", "none", "required", "named"] = "auto"
    names: tuple[str, ...] = ()
    """The one tool of mode ``named``, or the tools that the choice is limited to."""
    hosted: tuple[str, ...] = ()
    """The types of tools of the provider to which the choice is limited, too."""


class ResponseFormat(Frozen):
    kind: Literal["text", "json", "schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class ReasoningOptions(Frozen):
    """How much the model should think: an effort, a budget in tokens, or no thinking."""

    effort: str | None = None
    """``none``, ``minimal``, ``low``, ``medium``, ``high`` or a provider's own word."""
    budget_tokens: int | None = None
    enabled: bool | None = None
    """True without a budget: the model decides how much to think."""
    shown: bool | None = None
    """Whether the client wants to see the reasoning."""
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class CanonicalRequest(Frozen):
    """A whole chat request. ``extra`` holds the top-level fields that have no name here.

    Signatures, each ``extra`` and foreign parts have a meaning in the client's dialect only.
    """

    model: str
    messages: tuple[Message, ...]
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
    reasoning: ReasoningOptions | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    user: str | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def wants_text(self) -> bool:
        """The caller asked for no other form of the answer than plain text."""
        return self.response_format is None or self.response_format.kind == "text"


class Quirks(Frozen):
    """The deviations of a provider from the dialect that it speaks, as its preset states them."""

    drops: tuple[str, ...] = ()
    """Top-level request fields that the provider rejects, or that make it fail."""
    message_drops: tuple[str, ...] = ()
    """Fields of a message that the provider rejects."""
    renames: dict[str, str] = msgspec.field(default_factory=dict)
    """Top-level request fields that the provider knows under another name."""
    raw_predict: bool = False
    """The provider takes requests at ``/models/NAME:rawPredict``, as Google does for Claude."""
    max_choices: int | None = None
    """The largest ``n`` that the provider accepts."""
    stream_usage: bool = True
    """The provider accepts ``stream_options.include_usage``."""
    default_max_tokens: int | None = None
    """The limit to send if the dialect requires one and the client set none."""
    sampling: bool = True
    """The provider accepts temperature, top_p and top_k (Anthropic's version 2026-10-21 does
    not)."""
    thinking: Literal["effort", "budget"] = "effort"
    """Whether a request states an effort, or a number of thinking tokens (Claude before 4.6)."""
    prefill: Literal["no", "plain", "prefix"] = "no"
    """Whether the provider continues a last assistant message. ``prefix``: only if the message has
    ``"prefix": true``."""
    system: Literal["first", "anywhere"] = "first"
    """Whether system messages may stand anywhere in a conversation. Chat templates of open models
    take one, at the start; Anthropic, Gemini and Bedrock have a place of its own for it."""
    attribution: bool = True
    """The provider takes Claude Code's line about its billing, which begins system prompts."""
    call_ids: Literal["any", "short"] = "any"
    """The ids of tool calls that the provider accepts; ``short``: nine letters or digits."""
    prediction: bool = False
    """The provider accepts a predicted output (``prediction``)."""
    prompt_cache_key: bool = False
    """The provider accepts ``prompt_cache_key``."""
    refuse: bool = False
    """Refuse a request with a field that cannot be translated, instead of dropping the field."""


_PORTABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
"""Matches the names of functions that all providers take. For Gemini a name begins with a letter or
``_``."""


def portable_name(name: str) -> str:
    """Return a name of a function that all providers take: the same, or a new one with a digest."""
    if _PORTABLE.fullmatch(name):
        return name
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    short = re.sub("^(?=[0-9-])|[^a-zA-Z0-9_-]", "_", name)
    return f"{short[:55]}_{digest}"


def portable_request(request: CanonicalRequest, quirks: Quirks) -> CanonicalRequest:
    """Return a request that all providers take: its names of functions, and its schemas.

    System messages stand where the provider with these ``quirks`` takes them.
    """
    placed = with_reminders(request.messages) if quirks.system == "first" else request.messages
    messages = tuple(map(_with_portable_names, placed))
    tools = tuple(map(_portable_tool, request.tools))
    choice = request.tool_choice
    if choice is not None and choice.names:
        choice = replace(choice, names=tuple(map(portable_name, choice.names)))
    form = request.response_format
    if form is not None:
        form = replace(form, schema=portable_answer(form.schema))
    changed = replace(request, messages=messages, tools=tools)
    return replace(changed, tool_choice=choice, response_format=form)


def _portable_tool(tool: Tool | ForeignTool) -> Tool | ForeignTool:
    if isinstance(tool, ForeignTool):
        return tool
    parameters = portable_schema(tool.parameters)
    return replace(tool, name=portable_name(tool.name), parameters=parameters)


def _with_portable_names(message: Message) -> Message:
    parts = tuple(map(_portable_part, message.parts))
    return message if parts == message.parts else replace(message, parts=parts)


def _portable_part(part: MessagePart) -> MessagePart:
    if not isinstance(part, CallPart | ResultPart):
        return part
    if part.name is not None and not _PORTABLE.fullmatch(part.name):
        part = replace(part, name=portable_name(part.name))
    if isinstance(part, ResultPart) and any(isinstance(e, ForeignPart) for e in part.content):
        part = replace(part, content=tuple(map(_reference_as_text, part.content)))
    return part


def _reference_as_text(part: ResultContent) -> ResultContent:
    """Return the result of a search for tools as text, in the words of Claude Code.

    Only Anthropic's API has references to tools. Other APIs get the schemas of all tools at once.
    """
    if isinstance(part, ForeignPart) and part.kind == "tool_reference":
        return TextPart(text=f"Found the tool {part.value.get('tool_name')}.")
    return part


def with_reminders(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with system messages only before the first turn of the model.

    A later system message becomes a message of the user, in the form in which Claude Code sends it
    to models that take no later system messages. So the beginning of the conversation stays the
    same, and the provider's prompt cache finds it. A message of the user comes before the first one
    of the model, because most providers refuse other beginnings.
    """
    found: list[Message] = []
    began = False  # the model has had a turn
    opened = False  # a message has come after the system messages at the beginning
    for message in messages:
        is_model = message.role == "assistant"
        is_system = message.role in ("system", "developer")
        began = began or is_model or message.role == "tool"
        # A blank system message, or a blank turn of the model at the beginning, is left out.
        if not _has_content(message):
            if not is_system and (opened or not is_model):
                found.append(message)
            continue
        if is_model and not opened:  # most providers want a message of the user first
            found.append(_NO_MESSAGE)
        opened = opened or began or not is_system
        found.append(_reminder(message) if is_system and began else message)
    if found and found[-1].role == "user" and not _has_content(found[-1]):
        return (*found[:-1], _NO_MESSAGE)  # without it, the model would go on from its last turn
    return tuple(found) if any(map(_has_content, found)) else (*found, _NO_MESSAGE)


def _has_content(message: Message) -> bool:
    """Tell whether more than blank texts and reasoning is left of a message in another dialect."""
    texts = (TextPart, ReasoningPart)
    return any(
        not isinstance(part, texts) or (isinstance(part, TextPart) and part.text.strip())
        for part in message.parts
    )


def _reminder(message: Message) -> Message:
    begin, end = TextPart(text="<system-reminder>"), TextPart(text="</system-reminder>")
    return Message(role="user", parts=(begin, *message.parts, end), extra=message.extra)


_NO_MESSAGE = Message(role="user", parts=(TextPart(text="(no message)"),))


class WrittenRequest(Frozen):
    """A request in a provider's dialect, and the fields that could not be translated."""

    path: bytes
    """The raw path under the provider's root, such as ``/v1/messages``."""
    body: bytes
    query: bytes = b""
    dropped: tuple[str, ...] = ()
    """The names of the fields that were left out, sorted, without repeats."""


# --- tool calls and their results -----------------------------------------------------------------

_LONGEST_ID = 40
"""The most characters of a call's id that all providers take. OpenAI's Chat Completions takes the
fewest."""
NO_RESULT = "(no result)"
_LATE_RESULT = "The result of an earlier tool call:"
_UNSAFE_ID = re.compile(r"[^A-Za-z0-9_-]")


def safe_id(id: str) -> str:
    """Return a call's id without the characters that Anthropic and Bedrock refuse in it."""
    return _UNSAFE_ID.sub("_", id) or "_"


def name_results(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with each tool result under the id and the name of its call.

    A call gets a new id if it has none, a long one, or the id of an earlier call. Some servers give
    all calls the same id, and most providers refuse such a history. Two ids also differ after
    ``safe_id``. Providers also refuse calls without results, and results without calls: ``_pair``
    mends these.
    """
    names, turn, named = _CallNames(), 0, []
    for message in messages:
        turn += message.role != "assistant"
        parts = tuple([names.named(part, turn) for part in message.parts])
        named.append(replace(message, parts=parts))
    return tuple(named if _is_paired(named) else _pair(named))


class _TurnCalls(NamedTuple):
    """The calls with the same id in one turn.

    Each result belongs to the first call and removes it, but the last call is never removed.
    """

    turn: int
    calls: deque[CallPart]


class _CallNames:
    """The calls of a history so far, by the ids that the client gave them."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._renamed = 0
        self._latest: dict[str, _TurnCalls] = {}
        """The calls of the last turn with this id."""

    def named(self, part: MessagePart, turn: int) -> MessagePart:
        """Return a call with an id of its own, or a result with the id and the name of its call."""
        if isinstance(part, CallPart):
            return self._named_call(part, turn)
        if not isinstance(part, ResultPart) or part.id not in self._latest:
            return part
        calls = self._latest[part.id].calls
        call = calls.popleft() if len(calls) > 1 else calls[0]
        return replace(part, id=call.id, name=part.name or call.name)

    def _named_call(self, part: CallPart, turn: int) -> CallPart:
        own = id = part.id
        if len(own) > _LONGEST_ID:
            own = id = f"call_{sha256(own.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"
        while not id or safe_id(id) in self._taken:
            self._renamed += 1
            id = f"call_{self._renamed}_{own}"[:_LONGEST_ID]
        self._taken.add(safe_id(id))
        call = replace(part, id=id)
        if part.id not in self._latest or self._latest[part.id].turn != turn:
            self._latest[part.id] = _TurnCalls(turn, deque())
        self._latest[part.id].calls.append(call)
        return call


def _calls(message: Message) -> list[CallPart]:
    return [part for part in message.parts if isinstance(part, CallPart)]


def _results(message: Message) -> list[ResultPart]:
    return [part for part in message.parts if isinstance(part, ResultPart)]


def _is_paired(messages: Sequence[Message]) -> bool:
    """Tell whether exactly one result follows each call, before any other message.

    The calls of the last message need no results. A part that only one dialect knows may be a call,
    too; other dialects refuse it anyway.
    """
    waiting: set[str] = set()
    for message in messages:
        if any(isinstance(part, ForeignPart) for part in message.parts):
            return True
        if message.role != "tool":
            if waiting:
                return False
            waiting = {call.id for call in _calls(message)}
        for result in _results(message):
            if result.id not in waiting:
                return False
            waiting.remove(result.id)
    return not waiting or messages[-1].role == "assistant"


def _pair(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages with one result for each call, directly after the model's turn.

    Clients stop while a tool runs, cut off the beginning of a conversation, repeat results when
    they resume a session, or put notes between call and result. Some APIs take such a history, and
    others refuse it, with each later request. A result without a call becomes a text of the user. A
    second result of a call does, too, if it differs from the first one; otherwise it is left out.
    """
    results: dict[str, ResultPart] = {}
    for result in (result for message in messages for result in _results(message)):
        results.setdefault(result.id, result)
    ids = {call.id for message in messages for call in _calls(message)}
    turns = list(_joined_turns(messages))
    for message in turns:
        calls = _calls(message)
        if message.role != "tool":
            yield message
        for part in _results(message):
            if part.id not in ids or part.content != results[part.id].content:
                yield Message(role="user", parts=(TextPart(text=_LATE_RESULT), *part.content))
        if calls and (message is not turns[-1] or any(call.id in results for call in calls)):
            none = (TextPart(text=NO_RESULT),)
            found = (
                results.get(call.id) or ResultPart(id=call.id, name=call.name, content=none)
                for call in calls
            )
            yield Message(role="tool", parts=tuple(found))


def _joined_turns(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages. Those of one turn of the model are joined, with its calls at the end."""
    joined: list[list[Message]] = []
    for message in messages:
        if message.role == "assistant" and joined and _calls(joined[-1][0]):
            joined[-1].append(message)
        else:
            joined.append([message])
    for first, *others in joined:
        parts = (part for message in (first, *others) for part in message.parts)
        ordered = tuple(sorted(parts, key=lambda part: isinstance(part, CallPart)))
        yield replace(first, parts=ordered) if others else first
