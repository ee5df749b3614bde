"""Anthropic Messages: reading and writing requests."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import msgspec

from headstart.canonical_request import (
    NO_RESULT,
    CallPart,
    CanonicalRequest,
    ForeignPart,
    ForeignTool,
    MediaPart,
    Message,
    ReasoningOptions,
    ReasoningPart,
    ResponseFormat,
    ResultPart,
    TextPart,
    Tool,
    ToolChoice,
    WrittenRequest,
    name_results,
    safe_id,
)
from headstart.dialects.openai_requests import check_image
from headstart.dialects.request_form import turns_of, without_attribution
from headstart.dialects.requests import (
    Fields,
    TranslationLosses,
    budget_of,
    call_input,
    decode_object,
    described_schema,
    drop_extra,
    effort_of,
    filled,
    id_digest,
    last_user_text,
    marked_origin,
    plain_text,
    read_field,
    read_limit,
    read_message_list,
    read_model,
    repeats_keys,
    strict_mode,
    write_edited,
)
from headstart.errors import InvalidRequest
from headstart.schemas import closed_schema, is_closed
from headstart.types import UNDECODABLE, ChatRequest, json_or_none

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headstart.canonical_request import MessagePart, Quirks, Role

NAME = "anthropic-messages"
_LEAST_BUDGET = 1024
"""The least tokens for Claude's thinking."""
_REFUSED_USER = re.compile(r"(?s)@|\A\+?[\d\s().-]{7,}\Z|\A.{257}")
_DISPLAYS = {"summarized": True, "omitted": False}
_MODE_OF_CHOICE = {"auto": "auto", "none": "none", "any": "required", "tool": "named"}


def read_request(request: ChatRequest) -> CanonicalRequest:
    """Return the request in the common form. Raises InvalidRequest.

    A user turn that holds tool results becomes a ``tool`` message and, for what is left, a user
    message.
    """
    system = without_attribution(request.document.get("system"))
    fields = Fields({**request.document, "system": system})
    messages = (*_system(fields), *_messages(fields))
    choice, parallel = _tool_choice(fields)
    output = fields.object("output_config")
    extra: dict[str, Any] = {}
    effort = output.text("effort") if output else None
    wanted = _response_format(output) if output else None
    if output and (rest := output.rest()):
        extra["output_config"] = rest
    reasoning = _read_reasoning(fields, effort)
    metadata = fields.object("metadata")
    user = _without_session(metadata.text("user_id") or "") if metadata else None
    if metadata and (rest := metadata.rest()):
        extra["metadata"] = rest
    return CanonicalRequest(
        model=fields.required_text("model"),
        messages=name_results(messages),
        stream=bool(fields.boolean("stream")),
        include_usage=True,
        max_tokens=fields.limit("max_tokens"),
        temperature=fields.number("temperature"),
        top_p=fields.number("top_p"),
        top_k=fields.integer("top_k"),
        stop=fields.texts("stop_sequences"),
        tools=tuple(map(_read_tool, fields.objects("tools"))),
        tool_choice=choice,
        parallel_tool_calls=parallel,
        response_format=wanted,
        reasoning=reasoning,
        user=user or None,
        extra={**fields.rest(), **extra},
    )


# --- messages --------------------------------------------------------------------------------


def _system(fields: Fields) -> tuple[Message, ...]:
    parts = fields.parts("system", _read_block)
    return (Message(role="system", parts=parts),) if parts else ()


def _messages(fields: Fields) -> Iterator[Message]:
    for message in fields.objects("messages"):
        role = message.required_text("role")
        parts = message.parts("content", _read_block)
        extra = message.rest()
        results = tuple(part for part in parts if isinstance(part, ResultPart))
        if role == "user" and results:
            yield Message(role="tool", parts=results)
            parts = tuple(part for part in parts if not isinstance(part, ResultPart))
            if not parts:
                continue
        if role not in ("user", "assistant", "system"):
            raise message.invalid("role", "must be user, assistant or system")
        yield Message(role=cast("Role", role), parts=parts, extra=extra)


def _read_block(fields: Fields) -> MessagePart:
    kind = fields.required_text("type")
    if kind == "thinking":
        signature = fields.text("signature")
        return ReasoningPart(
            text=fields.required_text("thinking"),
            signature=signature,
            field=marked_origin(signature) or kind,
        )
    if kind == "redacted_thinking":
        return ReasoningPart(text="", signature=fields.required_text("data"), field=kind)
    if kind == "tool_use":
        return CallPart(
            id=fields.required_text("id"),
            name=fields.required_text("name"),
            arguments=msgspec.json.encode(fields.mapping("input") or {}).decode(),
            extra=fields.rest(),
        )
    if kind == "tool_result":
        return ResultPart(
            id=fields.required_text("tool_use_id"),
            content=fields.parts("content", _read_part),
            is_error=bool(fields.boolean("is_error")),
            extra=fields.rest(),
        )
    return _read_known(kind, fields)


def _read_part(fields: Fields) -> TextPart | MediaPart | ForeignPart:
    """Read a block that may also be in a tool's result."""
    return _read_known(fields.required_text("type"), fields)


def _read_known(kind: str, fields: Fields) -> TextPart | MediaPart | ForeignPart:
    if kind == "text":
        return TextPart(text=fields.required_text("text"), extra=fields.rest())
    media = _read_media(kind, fields) if kind in ("image", "document") else None
    return media or ForeignPart(kind=kind, value={"type": kind, **fields.rest()})


def _read_media(kind: str, fields: Fields) -> MediaPart | None:
    """Read a media block; None if only Anthropic can resolve its source."""
    value = fields.peek("source")
    if isinstance(value, dict) and value.get("type") not in ("base64", "url", "text"):
        return None
    source = fields.required_object("source")
    form = source.required_text("type")
    url = data = None
    if form == "url":
        url, media_type = source.required_text("url"), source.text("media_type")
    else:
        data, media_type = source.required_text("data"), source.required_text("media_type")
    if form == "text" and data:
        data = base64.b64encode(data.encode()).decode()
    return MediaPart(
        kind="image" if kind == "image" else "file",
        media_type=media_type,
        url=url,
        data=data,
        name=fields.text("title") if kind == "document" else None,
        extra=fields.rest(),
    )


# --- tools and parameters --------------------------------------------------------------------


def _read_tool(fields: Fields) -> Tool | ForeignTool:
    kind = fields.text("type") or "custom"
    if kind != "custom":
        return ForeignTool(kind=kind, value={"type": kind, **fields.rest()})
    return Tool(
        name=fields.required_text("name"),
        description=fields.text("description"),
        parameters=fields.mapping("input_schema"),
        strict=fields.boolean("strict"),
        extra=fields.rest(),
    )


def _tool_choice(fields: Fields) -> tuple[ToolChoice | None, bool | None]:
    """Read the choice, and whether calls may be made in parallel."""
    choice = fields.object("tool_choice")
    if choice is None:
        return None, None
    kind = choice.required_text("type")
    if kind not in _MODE_OF_CHOICE:
        raise choice.invalid("type", "must be auto, any, tool or none")
    alone = choice.boolean("disable_parallel_tool_use")
    names = (choice.required_text("name"),) if kind == "tool" else ()
    chosen = msgspec.convert({"mode": _MODE_OF_CHOICE[kind], "names": names}, ToolChoice)
    return chosen, None if alone is None else not alone


def _response_format(output: Fields) -> ResponseFormat | None:
    wanted = output.object("format")
    if wanted is None:
        return None
    if wanted.required_text("type") != "json_schema":
        raise wanted.invalid("type", "must be json_schema")
    return ResponseFormat(kind="schema", schema=wanted.mapping("schema") or {}, strict=True)


def _read_reasoning(fields: Fields, effort: str | None) -> ReasoningOptions | None:
    value = fields.peek("thinking")
    if isinstance(value, dict) and value.get("type") in ("enabled", "adaptive", "disabled"):
        thinking = fields.required_object("thinking")
        kind = thinking.required_text("type")
        budget = thinking.integer("budget_tokens") if kind == "enabled" else None
        if kind == "enabled" and budget is None:
            raise thinking.invalid("budget_tokens", "an integer is required")
        shown = _DISPLAYS.get(str(thinking.peek("display")))
        if shown is not None:
            thinking.value("display")
        return ReasoningOptions(
            effort=effort,
            budget_tokens=budget,
            enabled=kind != "disabled",
            shown=shown,
            extra=thinking.rest(),
        )
    if value is not None and not isinstance(value, dict):
        raise fields.invalid("thinking", "must be an object")
    # Other values, such as ``between_tools``, exist only here and go into ``extra``.
    return ReasoningOptions(effort=effort) if effort else None


def parse_request(body: bytes) -> ChatRequest:
    """Read a request body. Raises InvalidRequest."""
    document = decode_object(body)
    return ChatRequest(
        dialect=NAME,
        model=read_model(document),
        stream=bool(read_field(document, "stream", bool)),
        document=document,
        query=last_user_text(read_message_list(document)),
        include_usage=True,
        max_tokens=read_limit(document, "max_tokens"),
        user=_user(document),
        duplicate_keys=repeats_keys(body, document),
    )


_SESSION = re.compile(r"_session_[0-9a-f-]{36}$")
"""The end of a user id of older versions of Claude Code."""


def _user(document: dict[str, Any]) -> str | None:
    metadata = document.get("metadata")
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise InvalidRequest("metadata: must be an object")
    return _without_session(read_field(metadata, "user_id", str) or "") or None


def _without_session(user: str) -> str:
    """Return the user's id without the session, which Claude Code writes beside it."""
    if user.startswith("{"):
        fields = json_or_none(user, dict[str, Any])
        if fields is None or fields.pop("session_id", None) is None:
            return user
        return msgspec.json.encode(fields, order="deterministic").decode()
    return _SESSION.sub("", user)


_Blocks = list[dict[str, Any]]


def strip_end(blocks: list[dict[str, Any]]) -> None:
    """Strip the end of a text that the model should continue, in place.

    Anthropic and Bedrock refuse a space there.
    """
    if blocks and "text" in blocks[-1]:
        blocks[-1] = {**blocks[-1], "text": blocks[-1]["text"].rstrip()}


def write_messages(
    asked: CanonicalRequest, losses: TranslationLosses
) -> tuple[str | _Blocks, list[dict[str, Any]]]:
    """Return ``system`` and the messages. Raises InvalidRequest for content that has no form here.

    Each turn has its tool results first.
    """

    def write(message: Message) -> _Blocks:
        blocks = _blocks(message.parts, losses)
        losses.drop_filled(message.extra)
        if message.name is not None:
            losses.drop("name")
        return blocks

    system, turns = turns_of(asked.messages, write)
    if turns[-1][0] == "assistant":
        strip_end(turns[-1][1])
    for _, blocks in turns:
        blocks.sort(key=lambda block: block["type"] != "tool_result")
    return _write_content(system), [
        {"role": role, "content": _write_content(blocks)} for role, blocks in turns
    ]


def _write_content(blocks: _Blocks) -> str | _Blocks:
    """Return content. A single plain text becomes a string, the shorter of two equal forms."""
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
        return str(blocks[0]["text"])
    return blocks


def _blocks(parts: Iterable[MessagePart], losses: TranslationLosses) -> _Blocks:
    written = []
    for part in parts:
        # Anthropic refuses blank texts, which are common in other dialects.
        if isinstance(part, ReasoningPart):
            losses.drop_reasoning(part)
        elif not isinstance(part, TextPart) or part.text.strip():
            written.append(_write_block(part, losses))
    return written


def _write_block(
    part: TextPart | MediaPart | CallPart | ResultPart | ForeignPart, losses: TranslationLosses
) -> dict[str, Any]:
    if isinstance(part, ForeignPart):
        losses.refuse_foreign(part)
    block: dict[str, Any]
    if isinstance(part, TextPart):
        block = {"type": "text", "text": part.text}
    elif isinstance(part, MediaPart):
        block = _write_media(part, losses)
    elif isinstance(part, CallPart):
        block = {
            "type": "tool_use",
            "id": safe_id(part.id),
            "name": part.name,
            "input": call_input(part.arguments),
        }
    else:
        block = _result(part, losses)
    losses.drop_filled(part.extra)
    return block


def _result(part: ResultPart, losses: TranslationLosses) -> dict[str, Any]:
    content = _write_content(_blocks(part.content, losses))
    if part.is_error and not content:
        content = NO_RESULT  # the API refuses an error that says nothing
    return {
        "type": "tool_result",
        "tool_use_id": safe_id(part.id),
        **({"content": content} if content else {}),
        **({"is_error": True} if part.is_error else {}),
    }


def _write_media(part: MediaPart, losses: TranslationLosses) -> dict[str, Any]:
    if part.detail not in (None, "auto"):
        losses.drop("detail")
    if part.kind == "image":
        losses.drop_filled({"name": part.name})
        check_image(part, losses)
        return {"type": "image", "source": _source(part)}
    if part.kind == "audio":
        raise losses.refusal(f"content of type audio ({part.media_type})")
    title = {} if part.name is None else {"title": part.name}
    text = plain_text(part)
    if text is not None:
        source = {"type": "text", "media_type": "text/plain", "data": text}
        return {"type": "document", "source": source, **title}
    if part.data is not None and part.media_type != "application/pdf":
        raise losses.refusal(f"content of type file ({part.media_type})")
    return {"type": "document", "source": _source(part), **title}


def _source(part: MediaPart) -> dict[str, Any]:
    if part.url is not None:
        return {"type": "url", "url": part.url}
    media_type = (part.media_type or "").partition(";")[0].strip().lower()
    media_type = "image/jpeg" if media_type == "image/jpg" else media_type
    return {"type": "base64", "media_type": media_type, "data": part.data}


_PATH = b"/v1/messages"
_COUNT_PATH = b"/v1/messages/count_tokens"
_GOOGLE_COUNT_PATH = b"/v1/models/count-tokens:rawPredict"
_GOOGLE_VERSIONS = {"2023-06-01": "vertex-2023-10-16"}
"""Versions of the API that have another name at Google."""
_MAX_TOKENS = 4096
"""The limit if nobody named one. Every Claude model can write an answer of this length."""
_EFFORTS = {"minimal": "low", **{name: name for name in ("low", "medium", "high", "xhigh", "max")}}
_CHOICE_OF_MODE = {"auto": "auto", "none": "none", "required": "any", "named": "tool"}


def write_request(asked: CanonicalRequest, quirks: Quirks) -> WrittenRequest:
    """Return the request for a provider of this dialect. Raises InvalidRequest.

    If the client named no limit, it is ``quirks.default_max_tokens`` or 4096, plus the tokens for
    thinking. A wish to think is dropped if a tool is forced, or if the limit is too small for it.
    """
    losses = TranslationLosses(NAME, refuse=quirks.refuse)
    if asked.choices > 1:
        raise losses.refusal("n")
    drop_extra(asked, losses)
    system, messages = write_messages(asked, losses)
    thinking, effort = _write_reasoning(asked, quirks, losses)
    limit = asked.max_tokens
    if limit is None:
        limit = (quirks.default_max_tokens or _MAX_TOKENS) + _thought(thinking, effort)
    body: dict[str, Any] = {
        "model": asked.model,
        "max_tokens": limit,
        "system": system or None,
        "messages": messages,
        **_tools(asked, losses),
        "thinking": thinking or None,
        "output_config": _output(asked, effort, losses),
        **_sampling(asked, quirks, losses, thinks=thinking.get("type") in ("enabled", "adaptive")),
        "stop_sequences": _stop(asked, losses),
        "metadata": {"user_id": _opaque_user(asked.user)} if asked.user else None,
        "stream": asked.stream or None,
    }
    losses.drop_filled(
        {
            "frequency_penalty": asked.frequency_penalty or None,
            "presence_penalty": asked.presence_penalty or None,
            "seed": asked.seed,
            "logprobs": asked.logprobs,
            "top_logprobs": asked.top_logprobs,
        }
    )
    return write_edited(_PATH, body, quirks, losses)


def as_raw_predict(path: bytes, body: bytes, version: str) -> tuple[bytes, bytes]:
    """Return the path and the body of a request as Google takes it for Claude.

    The path names the model, and the body the version of the API, which the request has in a
    header. Raises InvalidRequest for paths that Google does not have.
    """
    if path not in (_PATH, _COUNT_PATH):
        shown = path.decode("latin-1")
        raise InvalidRequest(f"{shown}: Google has no such path for Claude, only {_PATH.decode()}")
    try:
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        named = msgspec.json.encode(_GOOGLE_VERSIONS.get(version, version))
        members.setdefault("anthropic_version", msgspec.Raw(named))
        if path == _COUNT_PATH:
            return _GOOGLE_COUNT_PATH, msgspec.json.encode(members)
        model = msgspec.json.decode(members.pop("model"), type=str)
        stream = msgspec.json.decode(members.get("stream", b"false"), type=bool | None)
    except (*UNDECODABLE, KeyError) as error:
        raise InvalidRequest("the body must be a JSON object that names its model") from error
    method = b"streamRawPredict" if stream else b"rawPredict"
    name = quote(model, safe="@").encode()
    return b"/v1/models/%b:%b" % (name, method), msgspec.json.encode(members)


def _opaque_user(user: str) -> str:
    """Return the user's id; a digest in place of one that Anthropic refuses.

    It takes no e-mail addresses, no telephone numbers, and at most 256 characters.
    """
    return user if _REFUSED_USER.search(user) is None else id_digest(user)


def _stop(asked: CanonicalRequest, losses: TranslationLosses) -> list[str] | None:
    """Return the stop sequences; Anthropic refuses blank ones."""
    kept = [text for text in asked.stop if text.strip()]
    if len(kept) < len(asked.stop):
        losses.drop("stop")
    return kept or None


def _sampling(
    asked: CanonicalRequest, quirks: Quirks, losses: TranslationLosses, *, thinks: bool
) -> dict[str, Any]:
    """Return the sampling fields that Anthropic accepts.

    It accepts a temperature up to 1, which is also its default, or ``top_p``, but not both. With
    thinking it accepts neither.
    """
    wanted = {"temperature": asked.temperature, "top_p": asked.top_p, "top_k": asked.top_k}
    said = {name: v for name, v in filled(wanted).items() if name == "top_k" or v != 1}
    refused = set(said) if thinks or not quirks.sampling else set()
    if said.get("temperature", 0) > 1:
        refused.add("temperature")
    if "temperature" in said.keys() - refused and "top_p" in said:
        refused.add("top_p")
    losses.drop(*sorted(refused))
    return {name: value for name, value in said.items() if name not in refused}


# --- tools and format ------------------------------------------------------------------------


def _tools(asked: CanonicalRequest, losses: TranslationLosses) -> dict[str, Any]:
    """Return tools and choice. A choice limited to some tools leaves the others out."""
    choice = asked.tool_choice
    limited = choice.names if choice and choice.mode in ("auto", "required") else ()
    sent = [
        tool
        for tool in asked.tools
        if not limited or (isinstance(tool, Tool) and tool.name in limited)
    ]
    tools = [_write_tool(tool, losses) for tool in sent]
    if not tools:
        return {}
    check_arguments(sent, asked.model, losses)
    alone = {"disable_parallel_tool_use": True} if asked.parallel_tool_calls is False else {}
    if choice is None:
        return {"tools": tools, **({"tool_choice": {"type": "auto", **alone}} if alone else {})}
    written: dict[str, Any] = {"type": _CHOICE_OF_MODE[choice.mode]}
    if choice.mode == "named":
        written["name"] = choice.names[0]
    if choice.mode != "none":
        written.update(alone)
    return {"tools": tools, "tool_choice": written}


_ARGUMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check_arguments(
    tools: Iterable[Tool | ForeignTool], model: str, losses: TranslationLosses
) -> None:
    """Raise InvalidRequest for a name of an argument that Claude refuses with the whole request.

    Claude looks only at the top of a schema.
    """
    if "claude" not in model:
        return
    for tool in tools:
        if not isinstance(tool, Tool):
            continue
        for name in (tool.parameters or {}).get("properties", ()):
            if not _ARGUMENT.fullmatch(name):
                shown = msgspec.json.encode(name[:80]).decode()
                refusal = losses.refusal(f"tools: the argument {shown} of {tool.name}")
                raise InvalidRequest(f"{refusal}: Claude takes {_ARGUMENT.pattern}")


def _write_tool(tool: Tool | ForeignTool, losses: TranslationLosses) -> dict[str, Any]:
    if isinstance(tool, ForeignTool):
        losses.refuse_foreign(tool)
    schema = tool.parameters or {}
    written = {
        "name": tool.name,
        "description": tool.description,
        "input_schema": schema if "type" in schema else {"type": "object", **schema},
        "strict": strict_mode(tool.strict, tool.parameters, losses, is_closed),
    }
    losses.drop_filled(tool.extra)
    return filled(written)


def _output(
    asked: CanonicalRequest, effort: str | None, losses: TranslationLosses
) -> dict[str, Any] | None:
    output: dict[str, Any] = filled({"effort": effort})
    wanted = asked.response_format
    if wanted is not None and wanted.kind == "json":
        raise losses.refusal("response_format of type json_object (name a json_schema)")
    if wanted is not None and wanted.kind == "schema":
        schema = closed_schema(described_schema(wanted) or {})
        output["format"] = {"type": "json_schema", "schema": schema}
    return output or None


# --- thinking --------------------------------------------------------------------------------


def _write_reasoning(
    asked: CanonicalRequest, quirks: Quirks, losses: TranslationLosses
) -> tuple[dict[str, Any], str | None]:
    """Return ``thinking`` and the effort."""
    wish = asked.reasoning
    if wish is None:
        return {}, None
    losses.drop_filled(wish.extra)
    if wish.enabled is False or wish.effort == "none":
        return {"type": "disabled"}, None
    if quirks.thinking == "budget":
        return _budgeted(asked, wish, losses), None
    effort = effort_of(wish)
    if effort is not None and effort not in _EFFORTS:
        losses.drop("reasoning_effort")
        return {}, None
    thinking = {} if _forces_tool(asked) else {"type": "adaptive", **_display(wish)}
    return thinking, None if effort is None else _EFFORTS[effort]


def _thought(thinking: dict[str, Any], effort: str | None) -> int:
    """Return the tokens that the model may think before it writes anything."""
    if thinking.get("type") == "adaptive":
        return budget_of(effort or "medium")
    return int(thinking.get("budget_tokens", 0))


def _display(wish: ReasoningOptions) -> dict[str, str]:
    if wish.shown is None:
        return {}
    return {"display": "summarized" if wish.shown else "omitted"}


def _budgeted(
    asked: CanonicalRequest, wish: ReasoningOptions, losses: TranslationLosses
) -> dict[str, Any]:
    """Return ``thinking`` with a budget; nothing if Claude cannot think now."""
    wanted = wish.budget_tokens or budget_of(wish.effort or "medium")
    budget = fitting_budget(max(wanted, _LEAST_BUDGET), asked)
    if budget is None:
        losses.drop("reasoning_effort")
        return {}
    return {"type": "enabled", "budget_tokens": budget, **_display(wish)}


def fitting_budget(budget: int, asked: CanonicalRequest) -> int | None:
    """Return a budget for Claude's thinking, at most half of the answer's limit; None: no thinking.

    Claude refuses a budget below its least one. It also refuses to think in a turn that must call
    a tool, and in a turn whose earlier tool calls were made without thinking.
    """
    if asked.max_tokens is not None and budget >= asked.max_tokens:
        budget = asked.max_tokens // 2
    may_think = not (_forces_tool(asked) or _is_amid_calls(asked))
    return budget if budget >= _LEAST_BUDGET and may_think else None


def _forces_tool(asked: CanonicalRequest) -> bool:
    """Tell whether the model has to call a tool."""
    return asked.tool_choice is not None and asked.tool_choice.mode in ("required", "named")


def _is_amid_calls(asked: CanonicalRequest) -> bool:
    """Tell whether the model has called tools since the user last said something."""
    for message in reversed(asked.messages):
        if message.role == "user":
            return False
        if any(isinstance(part, CallPart) for part in message.parts):
            return True
    return False
