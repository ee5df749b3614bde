"""Every field of a request in no dialect: each target says it, refuses it or names its loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.canonical_request import (
    CallPart,
    CanonicalRequest,
    ForeignPart,
    ForeignTool,
    MediaPart,
    Message,
    Quirks,
    ReasoningOptions,
    ReasoningPart,
    ResponseFormat,
    ResultPart,
    TextPart,
    Tool,
    ToolChoice,
    WrittenRequest,
)
from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.bedrock_converse import BEDROCK_CONVERSE
from headstart.dialects.cohere_chat import COHERE_CHAT
from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.openai_responses import OPENAI_RESPONSES
from headstart.errors import InvalidRequest

if TYPE_CHECKING:
    from headstart.canonical_request import MessagePart
    from headstart.dialects.dialect import UpstreamDialect

TARGETS: dict[str, UpstreamDialect] = {
    "openai": OPENAI_CHAT,
    "responses": OPENAI_RESPONSES,
    "anthropic": ANTHROPIC_MESSAGES,
    "gemini": GEMINI_GENERATE,
    "cohere": COHERE_CHAT,
    "bedrock": BEDROCK_CONVERSE,
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
HI = Message(role="user", parts=(TextPart(text="Hi"),))
TEXT = TextPart(text="a")
IMAGE = MediaPart(kind="image", media_type="image/png", data="aQ==")
BY_URL = MediaPart(kind="image", url="https://example.org/a.png")
FILE = MediaPart(kind="file", media_type="text/plain", data="aQ==")
THOUGHT = ReasoningPart(text="Hm.", field="thought")
CALL = CallPart(id="c", name="f", arguments="{}")
RESULT = ResultPart(id="c", content=(TEXT,))
TOOL = Tool(name="f", parameters=SCHEMA)
SCHEMED = ResponseFormat(kind="schema", schema=SCHEMA)
THINKS = ReasoningOptions(budget_tokens=2000, enabled=True)


def asking(**fields: Any) -> CanonicalRequest:
    least = {"model": "gemini-2.5-flash", "messages": (HI,)}
    return CanonicalRequest(**{**least, **fields})


def holding(part: MessagePart) -> CanonicalRequest:
    """Return a conversation that holds this part where it belongs."""
    called = Message(role="assistant", parts=(CALL,))
    answered = Message(role="tool", parts=(RESULT,))
    match part:
        case CallPart():
            called = Message(role="assistant", parts=(part,))
        case ResultPart():
            answered = Message(role="tool", parts=(part,))
        case ReasoningPart():
            called = Message(role="assistant", parts=(part, CALL))
        case _:
            return asking(messages=(Message(role="user", parts=(TEXT, part)),))
    return asking(messages=(HI, called, answered, HI))


def changed(base: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(base, **fields)


def _of_request(**fields: Any) -> tuple[CanonicalRequest, CanonicalRequest]:
    return asking(), asking(**fields)


def _of_part(base: Any, **fields: Any) -> tuple[CanonicalRequest, CanonicalRequest]:
    return holding(base), holding(changed(base, **fields))


def _of_message(**fields: Any) -> tuple[CanonicalRequest, CanonicalRequest]:
    return asking(messages=(HI, HI)), asking(messages=(HI, changed(HI, **fields)))


def _of_tool(**fields: Any) -> tuple[CanonicalRequest, CanonicalRequest]:
    return asking(tools=(TOOL,)), asking(tools=(changed(TOOL, **fields),))


def _of_choice(base: ToolChoice, **fields: Any) -> tuple[CanonicalRequest, CanonicalRequest]:
    tools = (TOOL, Tool(name="g"))
    return (
        asking(tools=tools, tool_choice=base),
        asking(tools=tools, tool_choice=changed(base, **fields)),
    )


def _of_format(base: ResponseFormat, **fields: Any) -> tuple[CanonicalRequest, CanonicalRequest]:
    return asking(response_format=base), asking(response_format=changed(base, **fields))


def _of_wish(base: ReasoningOptions, **fields: Any) -> tuple[CanonicalRequest, CanonicalRequest]:
    return asking(reasoning=base), asking(reasoning=changed(base, **fields))


ODD = {"odd": 1}
SAMPLES: dict[tuple[type, str], tuple[CanonicalRequest, CanonicalRequest]] = {
    (CanonicalRequest, "model"): _of_request(model="gemini-2.5-pro"),
    (CanonicalRequest, "messages"): _of_request(messages=(HI, HI)),
    (CanonicalRequest, "stream"): _of_request(stream=True),
    (CanonicalRequest, "include_usage"): (
        asking(stream=True),
        asking(stream=True, include_usage=True),
    ),
    (CanonicalRequest, "max_tokens"): _of_request(max_tokens=7),
    (CanonicalRequest, "temperature"): _of_request(temperature=0.5),
    (CanonicalRequest, "top_p"): _of_request(top_p=0.5),
    (CanonicalRequest, "top_k"): _of_request(top_k=5),
    (CanonicalRequest, "frequency_penalty"): _of_request(frequency_penalty=1.5),
    (CanonicalRequest, "presence_penalty"): _of_request(presence_penalty=-0.5),
    (CanonicalRequest, "seed"): _of_request(seed=2**40),
    (CanonicalRequest, "stop"): _of_request(stop=("a", "b", "c", "d", "e", "f")),
    (CanonicalRequest, "choices"): _of_request(choices=2),
    (CanonicalRequest, "tools"): _of_request(tools=(TOOL,)),
    (CanonicalRequest, "tool_choice"): (
        asking(tools=(TOOL,)),
        asking(tools=(TOOL,), tool_choice=ToolChoice(mode="required")),
    ),
    (CanonicalRequest, "parallel_tool_calls"): (
        asking(tools=(TOOL,)),
        asking(tools=(TOOL,), parallel_tool_calls=False),
    ),
    (CanonicalRequest, "response_format"): _of_request(response_format=SCHEMED),
    (CanonicalRequest, "reasoning"): _of_request(reasoning=ReasoningOptions(effort="high")),
    (CanonicalRequest, "logprobs"): _of_request(logprobs=True),
    (CanonicalRequest, "top_logprobs"): _of_request(top_logprobs=3),
    (CanonicalRequest, "user"): _of_request(user="u"),
    (CanonicalRequest, "extra"): _of_request(extra=ODD),
    (Message, "role"): _of_message(role="system"),
    (Message, "parts"): _of_message(parts=(TEXT, TEXT)),
    (Message, "name"): _of_message(name="ann"),
    (Message, "extra"): _of_message(extra=ODD),
    (TextPart, "text"): _of_part(TEXT, text="b"),
    (TextPart, "refusal"): _of_part(TEXT, refusal=True),
    (TextPart, "extra"): _of_part(TEXT, extra=ODD),
    (MediaPart, "kind"): _of_part(IMAGE, kind="audio"),
    (MediaPart, "media_type"): _of_part(IMAGE, media_type="image/gif"),
    (MediaPart, "url"): _of_part(BY_URL, url="https://example.org/b.png"),
    (MediaPart, "data"): _of_part(IMAGE, data="ag=="),
    (MediaPart, "name"): _of_part(IMAGE, name="a.png"),
    (MediaPart, "detail"): _of_part(IMAGE, detail="low"),
    (MediaPart, "extra"): _of_part(IMAGE, extra=ODD),
    (ReasoningPart, "text"): (holding(CALL), holding(THOUGHT)),
    (ReasoningPart, "signature"): _of_part(THOUGHT, signature="s"),
    (ReasoningPart, "field"): _of_part(THOUGHT, field="reasoning_content"),
    (CallPart, "id"): _of_part(CALL, id="d"),
    (CallPart, "name"): _of_part(CALL, name="g"),
    (CallPart, "arguments"): _of_part(CALL, arguments='{"a":1}'),
    (CallPart, "extra"): _of_part(CALL, extra=ODD),
    (ForeignPart, "kind"): (holding(TEXT), holding(ForeignPart(kind="odd", value={}))),
    (ForeignPart, "value"): (holding(TEXT), holding(ForeignPart(kind="odd", value=ODD))),
    (ResultPart, "id"): _of_part(RESULT, id="d"),
    (ResultPart, "name"): _of_part(RESULT, name="g"),
    (ResultPart, "content"): _of_part(RESULT, content=(TextPart(text="b"),)),
    (ResultPart, "is_error"): _of_part(RESULT, is_error=True),
    (ResultPart, "extra"): _of_part(RESULT, extra=ODD),
    (Tool, "name"): _of_tool(name="g"),
    (Tool, "description"): _of_tool(description="Look."),
    (Tool, "parameters"): _of_tool(parameters={**SCHEMA, "required": ["a"]}),
    (Tool, "strict"): _of_tool(strict=True),
    (Tool, "extra"): _of_tool(extra=ODD),
    (ForeignTool, "kind"): _of_request(tools=(ForeignTool(kind="odd", value={}),)),
    (ForeignTool, "value"): _of_request(tools=(ForeignTool(kind="odd", value=ODD),)),
    (ToolChoice, "mode"): _of_choice(ToolChoice(), mode="none"),
    (ToolChoice, "names"): _of_choice(ToolChoice(mode="required"), names=("f",)),
    (ToolChoice, "hosted"): _of_choice(ToolChoice(mode="required"), hosted=("web_search",)),
    (ResponseFormat, "kind"): _of_format(ResponseFormat(kind="text"), kind="json"),
    (ResponseFormat, "name"): _of_format(SCHEMED, name="trip"),
    (ResponseFormat, "schema"): _of_format(SCHEMED, schema={**SCHEMA, "required": ["a"]}),
    (ResponseFormat, "strict"): _of_format(SCHEMED, strict=True),
    (ResponseFormat, "description"): _of_format(SCHEMED, description="Where to."),
    (ReasoningOptions, "effort"): _of_wish(ReasoningOptions(), effort="odd"),
    (ReasoningOptions, "budget_tokens"): _of_wish(ReasoningOptions(), budget_tokens=9000),
    (ReasoningOptions, "enabled"): _of_request(reasoning=ReasoningOptions(enabled=True)),
    (ReasoningOptions, "shown"): _of_wish(THINKS, shown=False),
    (ReasoningOptions, "extra"): _of_wish(THINKS, extra=ODD),
}

NO_LOSS: dict[tuple[type, str], tuple[str, ...]] = {
    # It tells what else means something, and says nothing itself.
    (CanonicalRequest, "dialect"): tuple(TARGETS),
    # They report the usage unasked.
    (CanonicalRequest, "include_usage"): ("responses", "anthropic", "gemini", "cohere", "bedrock"),
    # Who declines, and who says so, is the assistant either way.
    (TextPart, "refusal"): ("responses", "anthropic", "gemini", "cohere", "bedrock"),
    # It goes by the media type.
    (MediaPart, "kind"): ("gemini",),
    # Lost with the reasoning, under its name.
    (ReasoningPart, "signature"): tuple(TARGETS),
    # Results are found by the id of their call.
    (ResultPart, "name"): ("openai", "responses", "anthropic", "cohere", "bedrock"),
    # A label that the model does not read.
    (ResponseFormat, "name"): ("anthropic", "gemini", "cohere"),
    # They keep to every schema.
    (ResponseFormat, "strict"): ("anthropic", "gemini", "cohere", "bedrock"),
    # As much as the model sees fit: so it does by itself.
    (ReasoningOptions, "enabled"): ("openai",),
    # Kept on the way back: reasoning that shall not be seen is not passed on.
    (ReasoningOptions, "shown"): ("openai", "cohere"),
}
each_target = pytest.mark.parametrize("target", TARGETS)
each_sample = pytest.mark.parametrize(
    "field", SAMPLES, ids=[f"{struct.__name__}.{name}" for struct, name in SAMPLES]
)


def write(target: str, asked: CanonicalRequest, *, refuse: bool = False) -> WrittenRequest | None:
    """Return what is written; None: it is refused."""
    try:
        return TARGETS[target].write_request(asked, Quirks(refuse=refuse))
    except InvalidRequest:
        return None


def test_every_field_has_a_sample() -> None:
    structs = {struct for struct, _ in SAMPLES}
    fields = {(each, field.name) for each in structs for field in msgspec.structs.fields(each)}
    assert fields == set(SAMPLES)


@each_target
@each_sample
def test_no_field_is_lost_in_silence(field: tuple[type, str], target: str) -> None:
    without, with_it = (write(target, asked) for asked in SAMPLES[field])
    silent = without is not None and with_it == without
    assert silent == (target in NO_LOSS.get(field, ()))


@each_target
@each_sample
def test_a_named_loss_is_refused_where_no_loss_is_allowed(
    field: tuple[type, str], target: str
) -> None:
    for asked in SAMPLES[field]:
        written = write(target, asked)
        refused = write(target, asked, refuse=True) is None
        assert refused == (written is None or bool(written.dropped))
