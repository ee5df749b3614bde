"""OpenAI Chat Completions: reading and writing requests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

import msgspec

from headstart.canonical_request import (
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
)
from headstart.dialects.openai_answers import REASONING_FIELDS
from headstart.dialects.requests import (
    Fields,
    TranslationLosses,
    call_input,
    check_choices,
    check_types,
    data_url,
    decode_object,
    drop_extra,
    edit_fields,
    effort_of,
    filled,
    fitting_user,
    kept_stops,
    last_user_text,
    named_user,
    plain_text,
    read_field,
    read_limit,
    read_message_list,
    read_model,
    repeats_keys,
    split_data_url,
    strict_mode,
    titled_text,
)
from headstart.errors import InvalidRequest
from headstart.types import ChatRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headstart.canonical_request import MessagePart, Quirks, Role


def read_messages(fields: Fields) -> tuple[Message, ...]:
    """Read the messages of a request. Raises InvalidRequest."""
    messages = []
    function = ""
    for position, message in enumerate(fields.objects("messages")):
        role = message.required_text("role")
        if "function_call" in message:
            # The legacy form names no call: its result is the next ``function`` message.
            function = f"call_{position}"
        messages.append(_read_message(role, message, function))
    return name_results(messages)


def _read_message(role: str, fields: Fields, function: str) -> Message:
    if role in ("tool", "function"):
        return _read_result(fields, function if role == "function" else None)
    parts: tuple[MessagePart, ...]
    if role == "assistant":
        parts = (
            *_reasoning_parts(fields),
            *fields.parts("content", _read_part),
            *_other_parts(fields, function),
        )
    else:
        parts = fields.parts("content", _read_part)
    if role not in ("system", "developer", "user", "assistant"):
        raise fields.invalid("role", "must be system, developer, user, assistant, tool or function")
    name = fields.text("name")
    return Message(role=cast("Role", role), parts=parts, name=name, extra=fields.rest())


def _read_result(fields: Fields, function: str | None) -> Message:
    part = ResultPart(
        id=fields.required_text("tool_call_id") if function is None else function,
        name=fields.text("name"),
        content=fields.parts("content", _read_part),
        extra=fields.rest(),
    )
    return Message(role="tool", parts=(part,))


def _reasoning_parts(fields: Fields) -> tuple[ReasoningPart, ...]:
    texts = {name: fields.text(name) for name in REASONING_FIELDS}
    return tuple(ReasoningPart(text=text, field=name) for name, text in texts.items() if text)


def _other_parts(fields: Fields, function: str) -> tuple[MessagePart, ...]:
    """Read the fields of an assistant message beside its content."""
    parts: list[MessagePart] = []
    refusal = fields.text("refusal")
    if refusal:
        parts.append(TextPart(text=refusal, refusal=True))
    audio = fields.mapping("audio")
    if audio is not None:
        parts.append(ForeignPart(kind="audio", value=audio))
    parts.extend(map(_read_call, fields.objects("tool_calls")))
    legacy = fields.object("function_call")
    if legacy is not None:
        name = legacy.required_text("name")
        parts.append(CallPart(id=function, name=name, arguments=legacy.text("arguments") or ""))
    return tuple(parts)


def _read_call(fields: Fields) -> MessagePart:
    kind = fields.text("type") or "function"
    if kind not in ("function", "custom"):
        raise fields.invalid("type", "must be function or custom")
    id, body = fields.required_text("id"), fields.required_object(kind)
    name = body.required_text("name")
    if kind == "custom":
        arguments = custom_arguments(body.text("input") or "")
    else:
        arguments = body.text("arguments") or ""
    return CallPart(id=id, name=name, arguments=arguments, extra=fields.rest())


def _read_part(fields: Fields) -> TextPart | MediaPart | ForeignPart:
    kind = fields.required_text("type")
    if kind == "text":
        return TextPart(text=fields.required_text("text"), extra=fields.rest())
    if kind == "refusal":
        return TextPart(text=fields.required_text("refusal"), refusal=True, extra=fields.rest())
    if kind == "image_url":
        image = fields.required_object("image_url")
        return fields.image(image.required_text("url"), image.text("detail"))
    if kind == "input_audio":
        return fields.audio()
    if kind == "file":
        return _file(fields)
    return ForeignPart(kind=kind, value={"type": kind, **fields.rest()})


def _file(fields: Fields) -> MediaPart | ForeignPart:
    file = fields.required_object("file")
    name, data = file.text("filename"), file.text("file_data")
    if data is None:
        value = {**({"filename": name} if name else {}), **file.rest()}
        return ForeignPart(kind="file", value={"type": "file", "file": value, **fields.rest()})
    found = split_data_url(data)
    if found is None:
        raise file.invalid("file_data", "must be a data: URL with base64")
    return MediaPart(
        kind="file", media_type=found[0], data=found[1], name=name, extra=fields.rest()
    )


NAME = "openai-chat"


def read_request(request: ChatRequest) -> CanonicalRequest:
    """Return the request in the common form. Raises InvalidRequest.

    The legacy ``functions`` and ``function_call`` become tools, ``function`` messages results.
    """
    fields = Fields(request.document)
    tools = (*_tools(fields), *(each.tool({}) for each in fields.objects("functions")))
    choice = _read_tool_choice(fields) or _function_choice(fields)
    logprobs, top_logprobs = _logprobs(fields)
    include_usage, options = _stream_options(fields)
    user = fields.text("user")
    return CanonicalRequest(
        model=fields.required_text("model"),
        messages=read_messages(fields),
        stream=bool(fields.boolean("stream")),
        include_usage=include_usage,
        max_tokens=fields.limit("max_completion_tokens", "max_tokens"),
        temperature=fields.number("temperature"),
        top_p=fields.number("top_p"),
        top_k=fields.integer("top_k"),
        frequency_penalty=fields.number("frequency_penalty"),
        presence_penalty=fields.number("presence_penalty"),
        seed=fields.integer("seed"),
        stop=fields.texts("stop"),
        choices=fields.integer("n") or 1,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=fields.boolean("parallel_tool_calls"),
        response_format=_read_response_format(fields),
        reasoning=_read_reasoning(fields),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        user=user or request.user,
        extra={**fields.rest(), **options},
    )


# --- tools -----------------------------------------------------------------------------------

CUSTOM_INPUT = "input"
"""The argument of a function that stands for a custom tool."""
_TEXT = {CUSTOM_INPUT: {"type": "string"}}
_TEXT_ARGUMENT = {"type": "object", "properties": _TEXT, "required": [CUSTOM_INPUT]}
_FREE_TEXT = (
    f"Its argument `{CUSTOM_INPUT}` is the whole text for this tool, as it is. The text itself is "
    "neither JSON nor a code block."
)


def read_custom_tool(fields: Fields) -> Tool:
    """Read a custom tool, whose input is free text, as a function that takes this text."""
    name, about = fields.required_text("name"), fields.text("description")
    form = fields.object("format")
    told = [about, _FREE_TEXT] if about else [_FREE_TEXT]
    if form is not None and form.text("type") == "grammar":
        grammar = form.object("grammar") or form  # Chat Completions has one more object
        syntax, rules = grammar.text("syntax"), grammar.required_text("definition")
        told.append(f"It must match this grammar ({syntax}):\n{rules}")
    about = "\n\n".join(told)
    return Tool(name=name, description=about, parameters=_TEXT_ARGUMENT, extra=fields.rest())


def custom_arguments(text: str) -> str:
    """Return the input of a custom tool's call as the arguments of a function."""
    return msgspec.json.encode({CUSTOM_INPUT: text}).decode()


def _tools(fields: Fields) -> tuple[Tool | ForeignTool, ...]:
    tools: list[Tool | ForeignTool] = []
    names: dict[str, set[str]] = {"function": set(), "custom": set()}
    for tool in fields.objects("tools"):
        kind = tool.text("type") or "function"
        if kind == "function":
            read = tool.required_object("function").tool(tool.rest())
        elif kind == "custom":
            read = read_custom_tool(tool.required_object(kind))
            read = msgspec.structs.replace(read, extra={**read.extra, **tool.rest()})
        else:
            tools.append(ForeignTool(kind=kind, value={"type": kind, **tool.rest()}))
            continue
        tools.append(read)
        names[kind].add(read.name)
    if shared := names["custom"] & names["function"]:
        raise InvalidRequest(
            f"tools: a function and a custom tool have the name {min(shared)}, and only OpenAI's "
            "API tells their calls apart"
        )
    return tuple(tools)


def _read_tool_choice(fields: Fields) -> ToolChoice | None:
    value = fields.peek("tool_choice")
    if value in ("auto", "none", "required"):
        return ToolChoice(mode=fields.value("tool_choice"))
    choice = fields.object("tool_choice")
    if choice is None:
        return None
    kind = choice.text("type") or "function"
    if kind == "allowed_tools":
        return _allowed(choice.required_object("allowed_tools"))
    if kind not in ("function", "custom"):
        raise choice.invalid("type", "must be function, custom or allowed_tools")
    return ToolChoice(mode="named", names=(choice.required_object(kind).required_text("name"),))


def _allowed(fields: Fields) -> ToolChoice:
    mode = fields.text("mode") or "auto"
    if mode not in ("auto", "required"):
        raise fields.invalid("mode", "must be auto or required")
    names = []
    for tool in fields.objects("tools"):
        kind = "custom" if "custom" in tool else "function"
        names.append(tool.required_object(kind).required_text("name"))
    return ToolChoice(mode="auto" if mode == "auto" else "required", names=tuple(names))


def _function_choice(fields: Fields) -> ToolChoice | None:
    value = fields.peek("function_call")
    if value in ("auto", "none"):
        return ToolChoice(mode=fields.value("function_call"))
    choice = fields.object("function_call")
    if choice is None:
        return None
    return ToolChoice(mode="named", names=(choice.required_text("name"),))


# --- parameters ------------------------------------------------------------------------------


def _read_response_format(fields: Fields) -> ResponseFormat | None:
    wanted = fields.object("response_format")
    return None if wanted is None else wanted.response_format("json_schema")


def _read_reasoning(fields: Fields) -> ReasoningOptions | None:
    effort = fields.text("reasoning_effort")
    return ReasoningOptions(effort=effort) if effort else None


def _logprobs(fields: Fields) -> tuple[bool, int | None]:
    """Read whether log probabilities are wanted. Some providers take one number for both fields."""
    top = fields.integer("top_logprobs")
    if type(fields.peek("logprobs")) is int:
        count = fields.integer("logprobs")
        return True, count if top is None else top
    return bool(fields.boolean("logprobs")), top


def _stream_options(fields: Fields) -> tuple[bool, dict[str, Any]]:
    """Read whether the usage is wanted, and the other options."""
    options = fields.object("stream_options")
    if options is None:
        return False, {}
    wanted = bool(options.boolean("include_usage"))
    others = options.rest()
    return wanted, {"stream_options": others} if others else {}


_OPTIONS = "stream_options"
_TYPES = {
    "max_completion_tokens": int,
    "n": int,
    "stream": bool,
    "user": str,
    "safety_identifier": str,
}


def parse_request(body: bytes) -> ChatRequest:
    """Read a request body. Raises InvalidRequest."""
    document = decode_object(body)
    model = read_model(document)
    query = last_user_text(read_message_list(document))
    check_types(document, _TYPES)
    repeats = repeats_keys(body, document)
    limit = read_limit(document, "max_completion_tokens", "max_tokens")
    user = named_user(document)
    reports_usage = (read_field(document, _OPTIONS, dict) or {}).get("include_usage")
    if not isinstance(reports_usage, bool | None):
        raise InvalidRequest(f"{_OPTIONS}.include_usage: must be a boolean")
    choices = document.get("n")
    if choices is not None and choices < 1:
        raise InvalidRequest("n: must be at least 1")
    logprobs = document.get("logprobs")
    if not isinstance(logprobs, bool | int | None):
        raise InvalidRequest("logprobs: must be a boolean")
    return ChatRequest(
        dialect=NAME,
        model=model,
        stream=bool(document.get("stream")),
        document=document,
        query=query,
        include_usage=bool(reports_usage),
        max_tokens=limit,
        choices=choices or 1,
        logprobs=bool(logprobs),
        user=user,
        duplicate_keys=repeats,
    )


def add_usage(body: bytes, request: ChatRequest) -> bytes | None:
    """Ask for the usage chunk with the smallest edit of the client's own bytes.

    None if there is nothing to add, or if the edit might change something else.
    """
    if not request.stream or request.include_usage or request.duplicate_keys:
        return None
    if _OPTIONS not in request.document:
        head, brace, tail = body.partition(b"{")
        return b'%b%b"stream_options":{"include_usage":true},%b' % (head, brace, tail)
    return _replace_options(body, request.document)


def _replace_options(body: bytes, document: dict[str, Any]) -> bytes | None:
    options = {**(document[_OPTIONS] or {}), "include_usage": True}
    wanted = {**document, _OPTIONS: options}
    raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])[_OPTIONS]
    # The name may also be deeper in the body, so the edited body is decoded and compared.
    pattern = rb'(?<!\\)("stream_options"\s*:\s*)' + re.escape(bytes(raw))
    for match in re.finditer(pattern, body):
        parts = (body[: match.end(1)], msgspec.json.encode(options), body[match.end() :])
        edited = b"".join(parts)
        if msgspec.json.decode(edited) == wanted:
            return edited
    return None


_AUDIO = {"wav": "wav", "x-wav": "wav", "mp3": "mp3", "mpeg": "mp3"}


def write_messages(
    asked: CanonicalRequest, quirks: Quirks, losses: TranslationLosses
) -> list[dict[str, Any]]:
    """Return the messages. Raises InvalidRequest for content that has no form here.

    ``tool`` messages hold text alone, so media in results follow in a user message.
    """
    messages: Sequence[Message] = tuple(_with_media_apart(asked.messages))
    messages = messages if quirks.system == "anywhere" else _for_templates(messages)
    written: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "tool":
            results = (part for part in message.parts if isinstance(part, ResultPart))
            written += [_write_result(part, losses) for part in results]
        else:
            written.append(_write_message(message, losses))
    _mark_prefill(written, quirks)
    return written


def _with_media_apart(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages, and the media of results in messages of the user."""
    media: list[MessagePart] = []
    for message in messages:
        if message.role == "tool":
            for part in message.parts:
                media += _result_media(part) if isinstance(part, ResultPart) else ()
        elif media:
            yield Message(role="user", parts=tuple(media))
            media = []
        yield message
    if media:
        yield Message(role="user", parts=tuple(media))


def _for_templates(messages: Sequence[Message]) -> list[Message]:
    """Return the messages as chat templates of open models take them.

    They take one system message, at the start, and turns of the user and the model in turn. System
    messages that came later are the user's already (``with_reminders``).
    """
    first: list[Message] = []
    said: list[list[Message]] = []
    for message in messages:
        if message.role in ("system", "developer"):
            first.append(message)
        elif said and _is_same_turn(said[-1][0], message):
            said[-1].append(message)
        else:
            said.append([message])
    turns = [each[0] if len(each) == 1 else _joined(each[0].role, each) for each in said]
    return [_joined("system", first), *turns] if first else turns


def _is_same_turn(first: Message, other: Message) -> bool:
    """Tell whether two messages, one after the other, are one turn. Each result is its own."""
    same_speaker = first.role == other.role and first.name == other.name
    return same_speaker and other.role != "tool"


def _joined(role: Role, messages: Sequence[Message]) -> Message:
    parts: list[MessagePart] = []
    for message in messages:
        if role == "assistant" and _has_text(parts) and _has_text(message.parts):
            parts.append(TextPart(text="\n"))  # its texts are joined without one
        parts += message.parts
    extra = {name: value for message in messages for name, value in message.extra.items()}
    name = next((each.name for each in messages if each.name is not None), None)
    return Message(role=role, name=name, parts=tuple(parts), extra=extra)


def _has_text(parts: Iterable[MessagePart]) -> bool:
    return any(isinstance(part, TextPart) and part.text for part in parts)


def _mark_prefill(written: list[dict[str, Any]], quirks: Quirks) -> None:
    """Ask the model to continue a last turn of its own, which other dialects do by themselves."""
    if not written or written[-1]["role"] != "assistant":
        return
    if quirks.prefill == "no":
        raise InvalidRequest(
            f"messages[{len(written) - 1}]: the upstream does not go on from an assistant message"
        )
    if quirks.prefill == "prefix":
        written[-1]["prefix"] = True


def _write_message(message: Message, losses: TranslationLosses) -> dict[str, Any]:
    said = [part for part in message.parts if _stands_in_content(part)]
    content = _write_content(said, "" if message.role == "assistant" else "\n", losses)
    beside = _beside_content(message.parts, losses)
    if message.name is not None:
        beside["name"] = message.name
    # An assistant message has other fields beside its content, or it has content.
    absent = content == "" and not beside.keys().isdisjoint(("tool_calls", "refusal"))
    losses.drop_filled(message.extra)
    return {"role": message.role, "content": None if absent else content, **beside}


def _stands_in_content(part: MessagePart) -> bool:
    if isinstance(part, ForeignPart):
        return part.kind != "audio"
    return isinstance(part, MediaPart) or (isinstance(part, TextPart) and not part.refusal)


def _beside_content(parts: Sequence[MessagePart], losses: TranslationLosses) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    calls = []
    for part in parts:
        if isinstance(part, CallPart):
            calls.append(_write_call(part, losses))
        elif isinstance(part, TextPart) and part.refusal:
            fields["refusal"] = fields.get("refusal", "") + part.text
        elif isinstance(part, ReasoningPart) and part.field in REASONING_FIELDS:
            # It came from a provider of this dialect. Some providers refuse a turn without it.
            fields[part.field] = fields.get(part.field, "") + part.text
        elif isinstance(part, ReasoningPart):
            losses.drop_reasoning(part)
        elif isinstance(part, ForeignPart) and part.kind == "audio":
            losses.refuse_foreign(part)
    if calls:
        fields["tool_calls"] = calls
    return fields


def _write_call(part: CallPart, losses: TranslationLosses) -> dict[str, Any]:
    losses.drop_filled(part.extra)
    function = {"name": part.name, "arguments": _arguments(part.arguments)}
    return {"id": part.id, "type": "function", "function": function}


def _arguments(arguments: str) -> str:
    """Return a call's arguments. Servers with chat templates read them as an object."""
    read = call_input(arguments)
    is_object = bool(arguments.strip()) and "_raw" not in read
    return arguments if is_object else msgspec.json.encode(read).decode()


def _write_result(part: ResultPart, losses: TranslationLosses) -> dict[str, Any]:
    if part.is_error:
        losses.drop("is_error")
    said = [piece for piece in part.content if not _is_media(piece)]
    content = _write_content(said, "\n", losses)
    losses.drop_filled(part.extra)
    return {"role": "tool", "tool_call_id": part.id, "content": content}


def _result_media(part: ResultPart) -> Iterator[MessagePart]:
    """Yield the media of a result, after a text that names their call."""
    media = list(filter(_is_media, part.content))
    if media:
        yield TextPart(text=f"Returned by the tool call {part.id}:")
        yield from media


def _is_media(part: MessagePart) -> bool:
    return isinstance(part, MediaPart) and plain_text(part) is None


# --- content ---------------------------------------------------------------------------------


def _write_content(
    parts: Sequence[MessagePart], joint: str, losses: TranslationLosses
) -> str | list[dict[str, Any]]:
    """Return text as a string, which all providers take, and other content as a list."""
    written = [_write_part(part, losses) for part in parts]
    if all(part["type"] == "text" for part in written):
        return joint.join(part["text"] for part in written)
    return written


def _write_part(part: MessagePart, losses: TranslationLosses) -> dict[str, Any]:
    if isinstance(part, ForeignPart):
        losses.refuse_foreign(part)
    assert isinstance(part, TextPart | MediaPart)
    if isinstance(part, MediaPart):
        written = _media(part, losses)
    else:
        written = {"type": "text", "text": part.text}
    losses.drop_filled(part.extra)
    return written


_IMAGES = frozenset({"image/gif", "image/jpeg", "image/jpg", "image/png", "image/webp"})
"""The types of images that OpenAI, Anthropic and Cohere name in the documentation of their APIs."""


def check_image(part: MediaPart, losses: TranslationLosses) -> None:
    """Raise InvalidRequest for an image that only other APIs take: Gemini's takes HEIC."""
    kind = (part.media_type or "").partition(";")[0].strip().lower()
    if kind.startswith("image/") and kind not in _IMAGES:
        raise losses.refusal(f"content of type image ({kind[:40]})")


def image_block(part: MediaPart, losses: TranslationLosses) -> dict[str, Any]:
    """Return an image. Raises InvalidRequest."""
    losses.drop_filled({"name": part.name})
    check_image(part, losses)
    detail = {"detail": part.detail} if part.detail is not None else {}
    return {"type": "image_url", "image_url": {"url": data_url(part), **detail}}


def _media(part: MediaPart, losses: TranslationLosses) -> dict[str, Any]:
    if part.kind == "image":
        return image_block(part, losses)
    if part.kind == "audio":
        losses.drop_filled({"name": part.name})
        form = (part.media_type or "").removeprefix("audio/")
        form = _AUDIO.get(form, form)
        if part.data is None or form not in _AUDIO.values():
            raise losses.refusal(f"content of type audio ({part.media_type})")
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": form}}
    text = titled_text(part)
    if text is not None:
        return {"type": "text", "text": text}
    if part.data is None:
        raise losses.refusal("content of type file (by URL)")
    file = {"filename": part.name or "file", "file_data": data_url(part)}
    return {"type": "file", "file": file}


_PATH = b"/v1/chat/completions"
_MOST_STOPS = 4


def write_request(asked: CanonicalRequest, quirks: Quirks) -> WrittenRequest:
    """Return the request for a provider of this dialect, with its quirks. Raises InvalidRequest.

    A last turn of the assistant, which the model should continue, is refused if the provider cannot
    do that. OpenAI is asked to follow a schema strictly only if it accepts the schema.
    """
    losses = TranslationLosses(NAME, refuse=quirks.refuse)
    check_choices(asked.choices, quirks)
    drop_extra(asked, losses)
    body: dict[str, Any] = {
        "model": asked.model,
        "messages": write_messages(asked, quirks, losses),
        "tools": [_write_tool(tool, losses) for tool in asked.tools],
        **_write_tool_choice(asked),
        **_write_response_format(asked, losses),
        **_write_reasoning(asked, losses),
        **_parameters(asked, losses),
        **_streaming(asked, quirks),
    }
    said = {name: value for name, value in body.items() if value is not None and value != []}
    # We ask for the usage ourselves. If that is not possible, the client loses nothing.
    said_by_client = {name: value for name, value in said.items() if name != "stream_options"}
    edited = edit_fields(msgspec.json.encode(said), said_by_client, quirks, losses)
    return WrittenRequest(path=_PATH, body=edited, dropped=losses.names)


def _parameters(asked: CanonicalRequest, losses: TranslationLosses) -> dict[str, Any]:
    if asked.top_k is not None:
        losses.drop("top_k")
    return {
        "max_completion_tokens": asked.max_tokens,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "frequency_penalty": asked.frequency_penalty,
        "presence_penalty": asked.presence_penalty,
        "seed": asked.seed,
        "stop": list(kept_stops(asked, _MOST_STOPS, losses)),
        "n": asked.choices if asked.choices > 1 else None,
        "logprobs": asked.logprobs or None,
        "top_logprobs": asked.top_logprobs,
        "user": fitting_user(asked.user),
    }


def _streaming(asked: CanonicalRequest, quirks: Quirks) -> dict[str, Any]:
    if not asked.stream:
        return {}
    wants_usage = asked.include_usage and quirks.stream_usage
    return {"stream": True, "stream_options": {"include_usage": True} if wants_usage else None}


# --- tools -----------------------------------------------------------------------------------


def _write_tool(tool: Tool | ForeignTool, losses: TranslationLosses) -> dict[str, Any]:
    if isinstance(tool, ForeignTool):
        losses.refuse_foreign(tool)
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": strict_mode(tool.strict, tool.parameters, losses),
    }
    losses.drop_filled(tool.extra)
    return {"type": "function", "function": filled(function)}


def _write_tool_choice(asked: CanonicalRequest) -> dict[str, Any]:
    """Return the choice of tools. OpenAI refuses the field in a request without tools."""
    if not asked.tools:
        return {}
    parallel = {"parallel_tool_calls": asked.parallel_tool_calls}
    choice = asked.tool_choice
    if choice is None:
        return parallel
    named = [{"type": "function", "function": {"name": name}} for name in choice.names]
    if choice.mode == "named":
        return {"tool_choice": named[0], **parallel}
    if named:
        allowed = {"mode": choice.mode, "tools": named}
        return {"tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}, **parallel}
    return {"tool_choice": choice.mode, **parallel}


# --- how to answer ---------------------------------------------------------------------------


def _write_response_format(asked: CanonicalRequest, losses: TranslationLosses) -> dict[str, Any]:
    wanted = asked.response_format
    if wanted is None:
        return {}
    if wanted.kind != "schema":
        kind = "text" if wanted.kind == "text" else "json_object"
        return {"response_format": {"type": kind}}
    schema = {
        "name": wanted.name or "response",
        "description": wanted.description,
        "schema": wanted.schema,
        "strict": strict_mode(wanted.strict, wanted.schema, losses),
    }
    return {"response_format": {"type": "json_schema", "json_schema": filled(schema)}}


def _write_reasoning(asked: CanonicalRequest, losses: TranslationLosses) -> dict[str, Any]:
    """Return the effort. No value switches thinking off for all models."""
    wish = asked.reasoning
    if wish is None:
        return {}
    losses.drop_filled(wish.extra)
    if wish.enabled is False:
        losses.drop("thinking")
        return {}
    return {"reasoning_effort": effort_of(wish)}
