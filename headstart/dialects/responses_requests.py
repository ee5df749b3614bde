"""OpenAI Responses: reading and writing requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

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
    portable_name,
)
from headstart.dialects.dialect import as_text, listed_objects
from headstart.dialects.openai_requests import check_image, custom_arguments, read_custom_tool
from headstart.dialects.requests import (
    THINKING_MARK,
    Fields,
    TranslationLosses,
    check_types,
    data_url,
    decode_object,
    drop_extra,
    effort_of,
    filled,
    fitting_user,
    is_marked,
    marked_origin,
    named_user,
    read_limit,
    read_model,
    repeats_keys,
    split_data_url,
    strict_mode,
    titled_text,
    write_edited,
)
from headstart.dialects.requests import apply_quirks as leave_out_rejected
from headstart.errors import InvalidRequest
from headstart.types import NAMESPACE, ChatRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from headstart.canonical_request import MessagePart, Quirks, Role

NAME = "openai-responses"
SUMMARY = "summary"
"""The name of reasoning in answers to clients."""
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
"""Values of ``include``."""

_TYPES = {
    "stream": bool,
    "max_output_tokens": int,
    "top_logprobs": int,
    "user": str,
    "safety_identifier": str,
}
_SUMMARIES = (SUMMARY, "generate_summary")
_STATE = ("previous_response_id", "conversation", "prompt")
"""Fields that refer to state at the provider."""
_OF_ITEMS = ("id", "status")
"""Fields of an item that no other API has."""
SEARCH, _SEARCH_CALL, _SEARCH_OUTPUT = "tool_search", "tool_search_call", "tool_search_output"
"""The search for tools, its calls and its results. A client or the provider runs it."""


def parse_request(body: bytes) -> ChatRequest:
    """Read a request body. Raises InvalidRequest.

    A request with a stored prompt may leave the model to it.
    """
    document = decode_object(body)
    items = input_items(document)
    check_types(document, _TYPES)
    named = document.get("model") is not None or document.get("prompt") is None
    include = document.get("include")
    return ChatRequest(
        dialect=NAME,
        model=read_model(document) if named else "",
        stream=bool(document.get("stream")),
        document=document,
        query=_last_user_text(items),
        include_usage=True,
        max_tokens=read_limit(document, "max_output_tokens"),
        logprobs=isinstance(include, list) and LOGPROBS in include,
        user=named_user(document),
        duplicate_keys=repeats_keys(body, document),
    )


def input_items(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the items of a request's ``input``. A string is a message of the user.

    Raises InvalidRequest.
    """
    asked = document.get("input")
    if asked is None:
        return []
    if isinstance(asked, str):
        return [{"role": "user", "content": asked}]
    if not isinstance(asked, list):
        raise InvalidRequest("input: must be a string or an array")
    for position, item in enumerate(asked):
        if not isinstance(item, dict):
            raise InvalidRequest(f"input[{position}]: must be an object")
    return asked


def kind_of(item: dict[str, Any]) -> str:
    """Return the type of an item of ``input``; messages may leave it out."""
    kind = item.get("type")
    if kind is None:
        return "message" if "role" in item else ""
    return kind if isinstance(kind, str) else ""


def _last_user_text(items: list[dict[str, Any]]) -> str | None:
    """Return the last item's text if it is the user's and is text alone, else None."""
    if not items or kind_of(items[-1]) != "message" or items[-1].get("role") != "user":
        return None
    content = items[-1].get("content")
    if isinstance(content, list):
        texts = []
        for part in content:
            match part:
                case {"type": "input_text", "text": str(text)}:
                    texts.append(text)
                case _:
                    return None
        content = "\n".join(texts)
    return content or None if isinstance(content, str) else None


def read_request(request: ChatRequest) -> CanonicalRequest:
    """Return the request in the common form.

    Raises InvalidRequest, also if the request depends on state or tools that only a provider of
    this dialect has.
    """
    document, items = request.document, input_items(request.document)
    fields = Fields({**document, "input": items, "tools": all_tools(document)})
    for name in (*_STATE, "background"):
        if fields.value(name):
            raise _only_here(name)
    instructions = fields.text("instructions")
    system = (TextPart(text=instructions),) if instructions else ()
    messages = [Message(role="system", parts=system)] if system else []
    messages += _read_items(fields)
    wanted, verbosity = _read_text(fields)
    include, logprobs = _read_include(fields)
    user, safety = fields.text("user"), fields.text("safety_identifier")
    if fields.peek("truncation") == "disabled":  # it only repeats the default
        fields.discard("truncation")
    return CanonicalRequest(
        model=fields.text("model") or "",
        messages=name_results(messages),
        stream=bool(fields.boolean("stream")),
        include_usage=True,
        max_tokens=fields.limit("max_output_tokens"),
        temperature=fields.number("temperature"),
        top_p=fields.number("top_p"),
        tools=tuple(_read_tools(fields)),
        tool_choice=_read_tool_choice(fields, request.document),
        parallel_tool_calls=fields.boolean("parallel_tool_calls"),
        response_format=wanted,
        reasoning=_read_reasoning(fields),
        logprobs=logprobs,
        top_logprobs=fields.integer("top_logprobs"),
        user=user or safety or None,
        extra={**fields.rest(), **verbosity, **include},
    )


def _only_here(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name}: cannot be expressed for an upstream that does not speak OpenAI's Responses; "
        'name one that does, with dialect or also_speaks = ["responses"]'
    )


# --- items -----------------------------------------------------------------------------------


def _read_items(fields: Fields) -> list[Message]:
    """Return the items as messages. Neighbouring items of the model become one turn."""
    messages: list[Message] = []
    parts: list[list[MessagePart]] = []
    for item in fields.objects("input"):
        kind = item.text("type") or ("message" if "role" in item else "unknown")
        if kind == "message":
            message = _read_message(item)
        elif kind in _READ:
            message = Message(role="assistant", parts=(_READ[kind](item),))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            message = Message(role="tool", parts=(_read_result(item),))
        elif kind == _SEARCH_OUTPUT and item.peek("execution") == "client":
            message = Message(role="tool", parts=(_read_found(item),))
        elif kind == "item_reference":
            raise _only_here(kind)
        else:
            foreign = ForeignPart(kind=kind, value={"type": kind, **item.rest()})
            message = Message(role="assistant", parts=(foreign,))
        if messages and _belongs_to(messages[-1].role, parts[-1], message):
            parts[-1] += message.parts
            messages[-1].extra.update(message.extra)
        else:
            messages.append(message)
            parts.append([*message.parts])
    return [
        msgspec.structs.replace(message, parts=tuple(said))
        for message, said in zip(messages, parts, strict=True)
    ]


def _belongs_to(role: Role, parts: Sequence[MessagePart], message: Message) -> bool:
    """Tell whether a message continues a turn. Two texts of the model stay two turns."""
    if role != message.role or message.role not in ("assistant", "tool"):
        return False
    speaks = any(isinstance(part, TextPart | MediaPart) for part in message.parts)
    return not speaks or all(isinstance(part, ReasoningPart | ForeignPart) for part in parts)


def _read_message(item: Fields) -> Message:
    role = item.required_text("role")
    if role not in ("system", "developer", "user", "assistant"):
        raise item.invalid("role", "must be system, developer, user or assistant")
    parts = item.parts("content", _read_part)
    item.discard(*_OF_ITEMS)
    return Message(role=cast("Role", role), parts=parts, extra=item.rest())


def _read_part(part: Fields) -> TextPart | MediaPart | ForeignPart:
    kind = part.required_text("type")
    if kind in ("input_text", "output_text", "text"):
        text = part.required_text("text")
        part.discard("logprobs")
        return TextPart(text=text, extra=part.rest())
    if kind == "refusal":
        return TextPart(text=part.required_text("refusal"), refusal=True, extra=part.rest())
    if kind == "input_image" and "file_id" not in part:
        return part.image(part.required_text("image_url"), part.text("detail"))
    if kind == "input_file" and "file_id" not in part:
        return _read_file(part)
    if kind == "input_audio":
        return part.audio()
    return ForeignPart(kind=kind, value={"type": kind, **part.rest()})


def _read_file(part: Fields) -> MediaPart:
    name, url, data = part.text("filename"), part.text("file_url"), part.text("file_data")
    if data is None and url is None:
        raise part.invalid("file_data", "a string is required")
    found = None if data is None else split_data_url(data)
    if data is not None and found is None:
        raise part.invalid("file_data", "must be a data: URL with base64")
    media_type, bytes_ = found or (None, None)
    return MediaPart(
        kind="file",
        media_type=media_type,
        data=bytes_,
        url=None if found else url,
        name=name,
        detail=part.text("detail"),
        extra=part.rest(),
    )


def _read_call(item: Fields) -> CallPart:
    item.discard(*_OF_ITEMS)
    return CallPart(
        id=item.required_text("call_id"),
        name=_one_name(item.text(NAMESPACE), item.required_text("name")),
        arguments=item.text("arguments") or "",
        extra=item.rest(),
    )


def _read_custom_call(item: Fields) -> CallPart:
    text = item.text("input") or ""
    return msgspec.structs.replace(_read_call(item), arguments=custom_arguments(text))


def _read_search(item: Fields) -> CallPart | ForeignPart:
    if item.peek("execution") != "client":
        return ForeignPart(kind=_SEARCH_CALL, value={"type": _SEARCH_CALL, **item.rest()})
    item.discard(*_OF_ITEMS, "execution")
    arguments = msgspec.json.encode(item.value("arguments") or {}).decode()
    id = item.required_text("call_id")
    return CallPart(id=id, name=SEARCH, arguments=arguments, extra=item.rest())


def _read_found(item: Fields) -> ResultPart:
    """Read what a search found. The request has these tools, too (``all_tools``)."""
    item.discard(*_OF_ITEMS, "execution")
    found = _each_tool(listed_objects(item.value("tools"), "tools"))
    told = [f"Found the tool {portable_name(_one_name(space, name))}." for space, name, _ in found]
    text = TextPart(text="\n".join(told) or "Found no tool.")
    id = item.required_text("call_id")
    return ResultPart(id=id, name=SEARCH, content=(text,), extra=item.rest())


def _read_result(item: Fields) -> ResultPart:
    item.discard(*_OF_ITEMS)
    return ResultPart(
        id=item.required_text("call_id"),
        name=item.text("name"),
        content=item.parts("output", _read_part),
        extra=item.rest(),
    )


def _read_thought(item: Fields) -> ReasoningPart:
    """Read reasoning. With our mark, it came from another provider, under the name in the mark."""
    texts = {
        field: "\n\n".join(part.text("text") or "" for part in item.objects(field))
        for field in ("content", SUMMARY)
    }
    signature = item.text("encrypted_content")
    return ReasoningPart(
        text=texts["content"] or texts[SUMMARY],
        signature=signature,
        field=marked_origin(signature) or "reasoning item",
    )


_READ: dict[str, Callable[[Fields], MessagePart]] = {
    "function_call": _read_call,
    "custom_tool_call": _read_custom_call,
    _SEARCH_CALL: _read_search,
    "reasoning": _read_thought,
}
"""The functions that read items of the model, by their types."""


# --- tools and parameters --------------------------------------------------------------------


def _one_name(namespace: str | None, name: str) -> str:
    """Return one name for a tool and its namespace, which other APIs do not have."""
    if not namespace:
        return name
    return portable_name(f"{namespace.rstrip('_')}__{name}")


def all_tools(document: dict[str, Any]) -> Any:
    """Return the tools of a request, and those that searches found later, each once.

    Other APIs have no place for tools within a conversation.
    """
    listed = document.get("tools")
    items = listed_objects(document, "input")
    outputs = [item for item in items if item.get("type") == _SEARCH_OUTPUT]
    if not outputs or not isinstance(listed, list | None):
        return listed
    known = {(space, name) for space, name, _ in _each_tool(listed_objects(document, "tools"))}
    found: list[dict[str, Any]] = []
    for output in outputs:
        for tool in listed_objects(output, "tools"):
            inner = listed_objects(tool, "tools") if tool.get("type") == NAMESPACE else (tool,)
            for each in inner:
                one = {**tool, "tools": [each]} if each is not tool else tool
                places = {(space, name) for space, name, _ in _each_tool([one])}
                if not (places and places <= known):
                    found.append(one)
                known |= places
    return [*(listed or ()), *found]


def _each_tool(tools: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the namespace (or ""), the name and the object of each tool with a name."""
    for tool in tools:
        inside = tool.get("type") == NAMESPACE
        space = (as_text(tool.get("name")) or "") if inside else ""
        for each in listed_objects(tool, "tools") if inside else (tool,):
            if name := as_text(each.get("name")) or (SEARCH if is_search(each) else None):
                yield space, name, each


def is_search(tool: dict[str, Any]) -> bool:
    """Tell whether a tool is a search for tools that the client runs, as Codex has it."""
    return tool.get("type") == SEARCH and tool.get("execution") == "client"


def namespaced(document: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the namespace and the own name of each tool in a namespace, by its one name."""
    tools = _each_tool(listed_objects(all_tools(document), "tools"))
    return {_one_name(space, name): (space, name) for space, name, _ in tools if space}


def call_kinds(document: dict[str, Any]) -> dict[str, str]:
    """Return the kinds of calls that are no function calls, by the one names of their tools."""
    tools = _each_tool(listed_objects(all_tools(document), "tools"))
    return {
        portable_name(_one_name(space, name)): str(tool["type"])
        for space, name, tool in tools
        if tool.get("type") in ("custom", SEARCH)
    }


def _read_tools(fields: Fields) -> Iterator[Tool | ForeignTool]:
    """Yield the tools. The first tool of a namespace begins with the description of it.

    Raises InvalidRequest if a tool in a namespace would have the name of another tool, or if tools
    of two types have one name: nothing tells their calls apart.
    """
    tools, described, kinds = fields.objects("tools"), set[str](), dict[str, Any]()
    taken = {as_text(tool.peek("name")) for tool in tools if tool.peek("type") != NAMESPACE}
    for tool in tools:
        kind = tool.peek("type")
        if kind != NAMESPACE:
            read = _read_tool(tool)
            if isinstance(read, Tool) and kinds.setdefault(read.name, kind) != kind:
                raise _only_here(f"two tools with the name {read.name}")
            yield read
            continue
        tool.discard("type")
        namespace, about = tool.required_text("name"), tool.text("description")
        for each in tool.objects("tools"):
            read = _read_tool(each, namespace)
            if isinstance(read, Tool):
                if read.name in taken:
                    raise _only_here(f"two tools with the name {read.name}")
                taken.add(read.name)
            if about and namespace not in described and isinstance(read, Tool):
                told = f"{about}\n\n{read.description}" if read.description else about
                read = msgspec.structs.replace(read, description=told)
                described.add(namespace)
            yield read


def _read_tool(tool: Fields, namespace: str | None = None) -> Tool | ForeignTool:
    kind = tool.required_text("type")
    tool.discard("defer_loading")  # other APIs get all tools at once
    if kind == SEARCH and tool.peek("execution") == "client":
        tool.discard("execution")
        about, schema = tool.text("description"), tool.mapping("parameters")
        return Tool(name=SEARCH, description=about, parameters=schema, extra=tool.rest())
    if kind not in ("function", "custom"):
        return ForeignTool(kind=kind, value={"type": kind, **tool.rest()})
    read = tool.tool() if kind == "function" else read_custom_tool(tool)
    return msgspec.structs.replace(read, name=_one_name(namespace, read.name))


def _read_tool_choice(fields: Fields, document: dict[str, Any]) -> ToolChoice | None:
    value = fields.peek("tool_choice")
    if value in ("auto", "none", "required"):
        return ToolChoice(mode=fields.value("tool_choice"))
    choice = fields.object("tool_choice")
    if choice is None:
        return None
    kind = choice.required_text("type")
    if kind == "allowed_tools":
        mode = choice.text("mode") or "auto"
        if mode not in ("auto", "required"):
            raise choice.invalid("mode", "must be auto or required")
        listed = [(tool.text("type"), tool) for tool in choice.objects("tools")]
        names, hosted = _chosen(listed, document)
        limit: Literal["auto", "required"] = "auto" if mode == "auto" else "required"
        return ToolChoice(mode=limit, names=names, hosted=hosted)
    names, hosted = _chosen([(kind, choice)], document)
    return ToolChoice(mode="named" if len(names) == 1 else "required", names=names, hosted=hosted)


_NAMED = ("function", "custom", NAMESPACE, None)
"""The types of tools that a choice names by their names."""


def _chosen(
    tools: Sequence[tuple[str | None, Fields]], document: dict[str, Any]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the one names of tools that a choice names, and the types of those of the provider.

    It names tools by their own names, or by a namespace.
    """
    found: dict[tuple[bool, str], list[str]] = {}
    for one, (space, own) in namespaced(document).items():
        found.setdefault((True, space), []).append(one)
        found.setdefault((False, own), []).append(one)
    for space, name, _ in _each_tool(listed_objects(document, "tools")):
        if not space:
            found[False, name] = [name]
    named = [
        (kind == NAMESPACE, tool.required_text("name")) for kind, tool in tools if kind in _NAMED
    ]
    names = tuple(one for place in dict.fromkeys(named) for one in found.get(place, place[1:]))
    return names, tuple(kind for kind, _ in tools if kind is not None and kind not in _NAMED)


def _read_text(fields: Fields) -> tuple[ResponseFormat | None, dict[str, Any]]:
    """Read the form of the answer, and the other fields of ``text``."""
    text = fields.object("text")
    if text is None:
        return None, {}
    wanted = text.object("format")
    return None if wanted is None else wanted.response_format(), text.rest()


def _read_include(fields: Fields) -> tuple[dict[str, Any], bool]:
    """Read which extra content the answer should have, and whether log probabilities."""
    wanted = fields.texts("include")
    others = [each for each in wanted if each not in (LOGPROBS, ENCRYPTED)]
    return {"include": others} if others else {}, LOGPROBS in wanted


def _read_reasoning(fields: Fields) -> ReasoningOptions | None:
    wish = fields.object("reasoning")
    if wish is None:
        return None
    effort, summaries = wish.text("effort"), [wish.text(name) for name in _SUMMARIES]
    return ReasoningOptions(effort=effort, shown=any(summaries) or None, extra=wish.rest())


def shows_reasoning(request: ChatRequest) -> bool:
    """Tell whether the request asks for a summary of the reasoning."""
    wish = request.document.get("reasoning")
    return isinstance(wish, dict) and any(wish.get(name) is not None for name in _SUMMARIES)


# --- writing ---------------------------------------------------------------------------------

_PATH = b"/v1/responses"
_LEAST_LIMIT = 16
"""Claude Code tries a key with a limit of 1, which this API refuses."""


def write_request(asked: CanonicalRequest, quirks: Quirks) -> WrittenRequest:
    """Return the request for a provider of this dialect. Raises InvalidRequest.

    The provider does not keep the answer: clients of other dialects could not name it.
    """
    losses = TranslationLosses(NAME, refuse=quirks.refuse)
    if asked.choices > 1:
        raise losses.refusal("n")
    drop_extra(asked, losses)
    limit = quirks.default_max_tokens if asked.max_tokens is None else asked.max_tokens
    body: dict[str, Any] = {
        "model": asked.model,
        "input": [item for message in asked.messages for item in _write_message(message, losses)],
        "max_output_tokens": None if limit is None else max(limit, _LEAST_LIMIT),
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        **_write_tools(asked, losses),
        "text": _write_text(asked.response_format, losses),
        "reasoning": _write_reasoning(asked.reasoning, losses),
        "include": [LOGPROBS] if asked.logprobs else None,
        "top_logprobs": asked.top_logprobs,
        "user": fitting_user(asked.user),
        "store": False,
        "stream": asked.stream or None,
    }
    losses.drop_filled(
        {
            "top_k": asked.top_k,
            "frequency_penalty": asked.frequency_penalty or None,
            "presence_penalty": asked.presence_penalty or None,
            "seed": asked.seed,
            "stop": list(asked.stop),
        }
    )
    return write_edited(_PATH, body, quirks, losses)


def _write_message(message: Message, losses: TranslationLosses) -> Iterator[dict[str, Any]]:
    """Yield the items for a message. Calls, results and texts become separate items."""
    losses.drop_beside(message)
    said: list[MessagePart] = []
    for part in message.parts:
        if isinstance(part, ReasoningPart):
            losses.drop_reasoning(part)
        elif isinstance(part, CallPart | ResultPart):
            yield from _write_texts(message, said, losses)
            said = []
            yield _write_call(part, losses)
        else:
            said.append(part)
    yield from _write_texts(message, said, losses)


def _write_texts(
    message: Message, parts: Sequence[MessagePart], losses: TranslationLosses
) -> Iterator[dict[str, Any]]:
    """Yield messages of these parts. Texts and refusals of the model become plain texts."""
    if message.role == "assistant":
        for part in parts:
            content = _write_content([part], losses)
            if content:
                yield {"role": message.role, "content": content}
    elif parts and (content := _write_content(parts, losses)):
        yield {"role": message.role, "content": content}


def _write_call(part: CallPart | ResultPart, losses: TranslationLosses) -> dict[str, Any]:
    losses.drop_filled(part.extra)
    if isinstance(part, CallPart):
        return {
            "type": "function_call",
            "call_id": part.id,
            "name": part.name,
            "arguments": part.arguments or "{}",
        }
    losses.drop_filled({"is_error": part.is_error})
    output = _write_content(part.content, losses)
    return {"type": "function_call_output", "call_id": part.id, "output": output or ""}


def _write_content(
    parts: Sequence[MessagePart], losses: TranslationLosses
) -> str | list[dict[str, Any]]:
    written = [_write_part(part, losses) for part in parts]
    if len(written) == 1 and written[0]["type"] == "input_text":
        return str(written[0]["text"])
    return [part for part in written if part.get("text") != ""]


def _write_part(part: MessagePart, losses: TranslationLosses) -> dict[str, Any]:
    if isinstance(part, ForeignPart):
        losses.refuse_foreign(part)
    assert isinstance(part, TextPart | MediaPart)
    losses.drop_filled(part.extra)
    if isinstance(part, MediaPart):
        return _write_media(part, losses)
    return {"type": "input_text", "text": part.text}


def _write_media(part: MediaPart, losses: TranslationLosses) -> dict[str, Any]:
    detail = {} if part.detail is None else {"detail": part.detail}
    if part.kind == "image":
        losses.drop_filled({"name": part.name})
        check_image(part, losses)
        return {
            "type": "input_image",
            "image_url": data_url(part),
            **(detail or {"detail": "auto"}),
        }
    if part.kind == "audio":
        raise losses.refusal(f"content of type audio ({part.media_type})")
    text = titled_text(part)
    if text is not None:
        return {"type": "input_text", "text": text}
    if part.data is None:
        return {"type": "input_file", "file_url": part.url, **detail}
    name = part.name or "file"
    return {"type": "input_file", "filename": name, "file_data": data_url(part), **detail}


def _write_tools(asked: CanonicalRequest, losses: TranslationLosses) -> dict[str, Any]:
    if not asked.tools:
        return {}
    tools = [_write_tool(tool, losses) for tool in asked.tools]
    told = {"tools": tools, "parallel_tool_calls": asked.parallel_tool_calls}
    choice = asked.tool_choice
    if choice is None:
        return told
    named = [{"type": "function", "name": name} for name in choice.names]
    if choice.mode == "named":
        return {**told, "tool_choice": named[0]}
    if named:
        allowed = {"type": "allowed_tools", "mode": choice.mode, "tools": named}
        return {**told, "tool_choice": allowed}
    return {**told, "tool_choice": choice.mode}


def _write_tool(tool: Tool | ForeignTool, losses: TranslationLosses) -> dict[str, Any]:
    """Return a tool. Without the field ``strict`` this API is strict, and others are not."""
    if isinstance(tool, ForeignTool):
        losses.refuse_foreign(tool)
    losses.drop_filled(tool.extra)
    described = {} if tool.description is None else {"description": tool.description}
    return {
        "type": "function",
        "name": tool.name,
        **described,
        "parameters": tool.parameters or {"type": "object", "properties": {}},
        "strict": bool(strict_mode(tool.strict, tool.parameters, losses)),
    }


def _write_text(wanted: ResponseFormat | None, losses: TranslationLosses) -> dict[str, Any] | None:
    if wanted is None or wanted.kind == "text":
        return None
    if wanted.kind == "json":
        return {"format": {"type": "json_object"}}
    schema = {
        "type": "json_schema",
        "name": wanted.name or "response",
        "schema": wanted.schema or {},
        "description": wanted.description,
        # Null means strict here, but not in other APIs.
        "strict": bool(strict_mode(wanted.strict, wanted.schema, losses)),
    }
    return {"format": filled(schema)}


def _write_reasoning(
    wish: ReasoningOptions | None, losses: TranslationLosses
) -> dict[str, Any] | None:
    """Return the effort. No value switches thinking off for all models."""
    if wish is None:
        return None
    losses.drop_filled(wish.extra)
    if wish.enabled is False:
        losses.drop("thinking")
        return None
    wanted = {"effort": effort_of(wish), SUMMARY: "auto" if _shows(wish) else None}
    return filled(wanted) or None


def _shows(wish: ReasoningOptions) -> bool:
    return bool(wish.enabled) if wish.shown is None else wish.shown


def apply_quirks(
    body: bytes, request: ChatRequest, quirks: Quirks
) -> tuple[bytes, tuple[str, ...]]:
    """Return the body in the form that the provider accepts, and the client's fields left out.

    Reasoning of other providers, which has our mark, is left out. Raises InvalidRequest.
    """
    left: tuple[str, ...] = ()
    asked = request.document.get("input")
    if not request.duplicate_keys and THINKING_MARK in body and isinstance(asked, list):
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        items = msgspec.json.decode(fields["input"], type=list[msgspec.Raw])
        own = [raw for raw, item in zip(items, asked, strict=True) if not is_marked(item)]
        if len(own) < len(items):
            fields["input"] = msgspec.Raw(msgspec.json.encode(own))
            body, left = msgspec.json.encode(fields), ("reasoning",)
    body, dropped = leave_out_rejected(body, request, quirks, NAME)
    return body, tuple(sorted({*left, *dropped}))
