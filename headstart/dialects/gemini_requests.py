"""Gemini's generateContent: reading and writing requests."""

from __future__ import annotations

import mimetypes
import re
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote, unquote_to_bytes

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
from headstart.dialects.gemini_answers import (
    MINTED,
    SIGNATURE,
    THOUGHT,
    arguments_object,
    join_pieces,
)
from headstart.dialects.request_form import turns_of
from headstart.dialects.requests import (
    LONGEST_MODEL,
    Fields,
    TranslationLosses,
    check_choices,
    decode_object,
    described_schema,
    drop_extra,
    effort_of,
    filled,
    kept_stops,
    read_field,
    read_limit,
    read_message_list,
    repeats_keys,
    too_long_model,
)
from headstart.errors import InvalidRequest
from headstart.schemas import schema_for_gemini
from headstart.types import ChatRequest, json_or_none, words_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headstart.canonical_request import MessagePart, Quirks

_PATH = re.compile(rb"/v1(?:beta)?/models/([^/:]+):(generateContent|streamGenerateContent)")
_SNAKE = re.compile(r"(?<!_)_+([a-z0-9])")
_FREE = words_of(
    "args labels parameters parametersJsonSchema response responseJsonSchema responseSchema"
)
"""Fields whose names within are the caller's own, or a schema's."""


class Operation(NamedTuple):
    """The model and the mode that a path names."""

    model: str
    stream: bool


def find_operation(path: bytes, query: bytes) -> Operation | None:
    """Return the operation that is asked for, or None if it is relayed.

    A stream without ``alt=sse`` is one JSON array that grows. Only the API itself writes that form.
    """
    match = _PATH.fullmatch(unquote_to_bytes(path))
    if match is None:
        return None
    stream = match[2] == b"streamGenerateContent"
    wanted = {
        pair for pair in query.split(b"&") if pair.startswith((b"alt=", b"$alt=", b"%24alt="))
    }
    if wanted - {b"alt=sse" if stream else b"alt=json"} or (stream and not wanted):
        return None
    try:
        return Operation(match[1].decode(), stream)
    except UnicodeDecodeError:
        return None


def parse_request(body: bytes, operation: Operation | None = None) -> ChatRequest:
    """Read a request. Raises InvalidRequest.

    Without an ``operation`` only the body is read: no model, and no stream. The API takes two
    spellings of its names; the document has one of them, and also the model.
    """
    document = decode_object(body)
    named, twice = camel_cased(document)
    if operation is not None:
        named["model"] = operation.model
        if len(operation.model) > LONGEST_MODEL:
            raise too_long_model()
    contents = read_message_list(named, "contents")
    config = named.setdefault("generationConfig", {})
    if not isinstance(config, dict):
        raise InvalidRequest("generationConfig: must be an object")
    choices = read_field(config, "candidateCount", int)
    if choices is not None and choices < 1:
        raise InvalidRequest("generationConfig.candidateCount: must be at least 1")
    return ChatRequest(
        dialect=NAME,
        model=operation.model if operation is not None else "",
        stream=operation is not None and operation.stream,
        document=named,
        query=_last_user_text(contents),
        include_usage=True,
        max_tokens=read_limit(config, "maxOutputTokens"),
        choices=choices or 1,
        logprobs=config.get("responseLogprobs") is True,
        duplicate_keys=twice or repeats_keys(body, document),
    )


def camel_cased(document: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the document with every name in camel case, and whether one came in two spellings."""
    twice = False

    def renamed(value: Any) -> Any:
        nonlocal twice
        if isinstance(value, list):
            return [renamed(item) for item in value]
        if not isinstance(value, dict):
            return value
        fields: dict[str, Any] = {}
        for name, inner in value.items():
            camel = _SNAKE.sub(lambda match: match[1].upper(), name)
            twice = twice or camel in fields
            fields[camel] = inner if camel in _FREE else renamed(inner)
        return fields

    return renamed(document), twice


def _last_user_text(contents: list[dict[str, Any]]) -> str | None:
    """Return the last content's text if it is the user's and is text alone, else None."""
    if not contents or contents[-1].get("role", "user") != "user":
        return None
    parts = contents[-1].get("parts")
    if not isinstance(parts, list):
        return None
    texts = [
        part["text"]
        for part in parts
        if isinstance(part, dict) and part.keys() == {"text"} and isinstance(part["text"], str)
    ]
    return "\n".join(texts) or None if len(texts) == len(parts) else None


_COUNTS = words_of("minItems maxItems minLength maxLength minProperties maxProperties")
"""Numbers of 64 bits, which the API's JSON writes as strings."""
_LONGEST_COUNT = 19
"""Digits of a number of 64 bits."""


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema as JSON Schema: types in small letters, null as a type of its own."""
    converted: dict[str, Any] = {}
    for name, value in schema.items():
        match name, value:
            case "type", str():
                converted["type"] = value.lower()
            case "properties", dict():
                converted["properties"] = {key: _inner(inner) for key, inner in value.items()}
            case "items" | "additionalProperties", _:
                converted[name] = _inner(value)
            case "anyOf" | "any_of" | "prefixItems", list():
                converted[name.replace("any_of", "anyOf")] = [_inner(inner) for inner in value]
            case ("nullable" | "propertyOrdering" | "property_ordering" | "example", _):
                continue
            case _, str() if name in _COUNTS and value.isdecimal() and len(value) <= _LONGEST_COUNT:
                converted[name] = int(value)
            case _:
                converted[name] = value
    if schema.get("nullable") is True and isinstance(converted.get("type"), str):
        converted["type"] = [converted["type"], "null"]
    return converted


def _inner(schema: Any) -> Any:
    return json_schema(schema) if isinstance(schema, dict) else schema


NAME = "gemini-generate"
_MODE_OF_CALLING: dict[str, Literal["auto", "none", "required"]] = {
    "NONE": "none",
    "ANY": "required",
}


def read_request(request: ChatRequest) -> CanonicalRequest:
    """Return the request in the common form. Raises InvalidRequest that names the field.

    ``request.document`` has the names that ``parse_request`` gives it.
    """
    document = {**request.document, "model": request.model}
    if isinstance(contents := document.get("contents"), list):
        document["contents"] = join_pieces(contents)
    fields = Fields(document)
    config = fields.object("generationConfig") or Fields({})
    thinking = config.object("thinkingConfig")
    choices = fields.object("toolConfig") or Fields({})
    calling = choices.object("functionCallingConfig")
    stop = config.texts("stopSequences")
    asked = CanonicalRequest(
        model=fields.required_text("model"),
        messages=name_results(_messages(fields)),
        stream=request.stream,
        include_usage=True,
        max_tokens=config.limit("maxOutputTokens"),
        temperature=config.number("temperature"),
        top_p=config.number("topP"),
        top_k=_whole(config.number("topK")),
        frequency_penalty=config.number("frequencyPenalty"),
        presence_penalty=config.number("presencePenalty"),
        seed=config.integer("seed"),
        stop=stop,
        choices=config.integer("candidateCount") or 1,
        tools=tuple(tool for each in fields.objects("tools") for tool in _read_tools(each)),
        tool_choice=None if calling is None else _read_choice(calling),
        response_format=_read_format(config),
        reasoning=None if thinking is None else _reasoning(thinking),
        logprobs=config.boolean("responseLogprobs") or False,
        top_logprobs=config.integer("logprobs"),
    )
    return msgspec.structs.replace(asked, extra=_extra(fields, config, choices))


def _extra(fields: Fields, config: Fields, choices: Fields) -> dict[str, Any]:
    modalities = [name.lower() for name in config.texts("responseModalities")]
    settings, extra = config.rest(), fields.rest()
    if modalities not in ([], ["text"]):
        extra["modalities"] = modalities
    if settings:
        extra["generationConfig"] = settings
    if rest := choices.rest():
        extra["toolConfig"] = rest
    return extra


# --- messages --------------------------------------------------------------------------------


class _Calls:
    """Gives ids to calls and results that came without one, and pairs them in their order."""

    def __init__(self) -> None:
        self._count = 0
        self._open: dict[str, deque[str]] = {}

    def call(self, id: str | None, name: str) -> str:
        self._count += 1
        id = id or f"{MINTED}{self._count}"
        self._open.setdefault(name, deque()).append(id)
        return id

    def result(self, id: str | None, name: str) -> str:
        waiting = self._open.get(name)
        if id is not None:
            if waiting and id in waiting:
                waiting.remove(id)
            return id
        if waiting:
            return waiting.popleft()
        self._count += 1
        return f"{MINTED}{self._count}"


def _messages(fields: Fields) -> tuple[Message, ...]:
    messages: list[Message] = []
    instruction = fields.object("systemInstruction")
    if instruction is not None:
        parts = tuple(_part(part, _Calls()) for part in instruction.objects("parts"))
        messages.append(Message(role="system", parts=parts))
    calls = _Calls()
    for content in fields.objects("contents"):
        model = content.text("role") == "model"
        parts = tuple(_part(part, calls) for part in content.objects("parts"))
        if model:
            messages.append(Message(role="assistant", parts=parts))
            continue
        results = tuple(part for part in parts if isinstance(part, ResultPart))
        others = tuple(part for part in parts if not isinstance(part, ResultPart))
        if results:
            messages.append(Message(role="tool", parts=results))
        if others:
            messages.append(Message(role="user", parts=others))
    return tuple(messages)


def _part(part: Fields, calls: _Calls) -> MessagePart:
    if "functionCall" in part:
        return _call(part, calls)
    if "functionResponse" in part:
        return _result(part, calls)
    for name, source in (("inlineData", "data"), ("fileData", "fileUri")):
        if name in part:
            return _read_media(part, part.required_object(name), source)
    if "text" not in part:
        rest = part.rest()
        return ForeignPart(kind=next(iter(rest), "empty"), value=rest)
    text = part.required_text("text")
    if part.boolean("thought"):
        signature = part.text("thoughtSignature")
        return ReasoningPart(text=text, signature=signature, field=THOUGHT)
    return TextPart(text=text, extra=part.rest())


def _read_media(part: Fields, media: Fields, source: str) -> MediaPart:
    media_type = media.text("mimeType")
    content = media.required_text(source)
    return MediaPart(
        kind=_kind(media_type),
        media_type=media_type,
        data=content if source == "data" else None,
        url=content if source != "data" else None,
        name=media.text("displayName"),
        extra=part.rest(),
    )


def _call(part: Fields, calls: _Calls) -> CallPart:
    call = part.required_object("functionCall")
    name = call.required_text("name")
    arguments = msgspec.json.encode(call.mapping("args") or {}).decode()
    id = calls.call(call.text("id"), name)
    return CallPart(id=id, name=name, arguments=arguments, extra=part.rest())


def _result(part: Fields, calls: _Calls) -> ResultPart:
    result = part.required_object("functionResponse")
    name = result.required_text("name")
    response = result.mapping("response") or {}
    id = calls.result(result.text("id"), name)
    media = tuple(
        inner
        for inner in (_part(each, calls) for each in result.objects("parts"))
        if isinstance(inner, TextPart | MediaPart | ForeignPart)
    )
    text, failed = _result_text(response)
    return ResultPart(
        id=id, name=name, content=(TextPart(text=text), *media), is_error=failed, extra=part.rest()
    )


def _result_text(response: dict[str, Any]) -> tuple[str, bool]:
    """Return a function's result as text. ``output`` and ``error`` are the API's own names."""
    match response:
        case {"output": str(text), **rest} if not rest:
            return text, False
        case {"error": str(text), **rest} if not rest:
            return text, True
        case _:
            return msgspec.json.encode(response).decode(), False


def _kind(media_type: str | None) -> Literal["image", "audio", "file"]:
    kind = (media_type or "").partition("/")[0]
    if kind == "image":
        return "image"
    return "audio" if kind == "audio" else "file"


# --- settings --------------------------------------------------------------------------------


def _read_tools(tool: Fields) -> tuple[Tool | ForeignTool, ...]:
    functions = tuple(_read_function(each) for each in tool.objects("functionDeclarations"))
    hosted = tuple(ForeignTool(kind=kind, value={kind: v}) for kind, v in tool.rest().items())
    return (*functions, *hosted)


def _read_function(function: Fields) -> Tool:
    own = function.mapping("parameters")
    schema = function.mapping("parametersJsonSchema")
    return Tool(
        name=function.required_text("name"),
        description=function.text("description"),
        parameters=schema if own is None else json_schema(own),
        extra=function.rest(),
    )


def _read_choice(calling: Fields) -> ToolChoice:
    mode = _MODE_OF_CALLING.get((calling.text("mode") or "").upper(), "auto")
    names = calling.texts("allowedFunctionNames")
    is_named = mode == "required" and len(names) == 1
    return ToolChoice(mode="named" if is_named else mode, names=names)


def _read_format(config: Fields) -> ResponseFormat | None:
    media_type = config.text("responseMimeType")
    own = config.mapping("responseSchema")
    schema = config.mapping("responseJsonSchema")
    if own is not None:
        schema = json_schema(own)
    if schema is not None:
        return ResponseFormat(kind="schema", schema=schema)
    return ResponseFormat(kind="json") if media_type == "application/json" else None


def _reasoning(thinking: Fields) -> ReasoningOptions:
    level = thinking.text("thinkingLevel")
    budget = thinking.integer("thinkingBudget")
    enabled = None if budget is None else budget != 0
    return ReasoningOptions(
        effort=level.lower() if level else None,
        budget_tokens=budget if budget is not None and budget > 0 else None,
        enabled=enabled,
        shown=thinking.boolean("includeThoughts"),
        extra=thinking.rest(),
    )


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


_VERSION = re.compile(r"gemini-(\d+)(?:\.(\d+))?")
_BUDGETS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24576}
"""Google's own table for the efforts of its OpenAI endpoint."""
_LEAST_OF_PRO = 128
_LEVELS = {"none": "minimal", "xhigh": "high", "max": "high"}
_LEVELS.update((level, level) for level in ("minimal", "low", "medium", "high"))
ANY_SIGNATURE = "skip_thought_signature_validator"
"""The signature that Google wants for calls that another model made."""


def wants_signatures(model: str) -> bool:
    """Tell whether the model refuses calls of its own turns that come back without signatures."""
    return _version(model) >= (3, 0)


def thinking_config(
    wish: ReasoningOptions, model: str, losses: TranslationLosses
) -> dict[str, Any] | None:
    """Return ``thinkingConfig`` for a wish; None if the request has no wish."""
    version = _version(model)
    effort = "none" if wish.enabled is False else wish.effort
    if version < (2, 5):
        if effort != "none":
            losses.drop("reasoning_effort")
        return None
    shown = wish.shown
    if shown is None and (wish.enabled or wish.budget_tokens is not None):
        shown = True
    losses.drop_filled(wish.extra)
    config: dict[str, Any] = {} if shown is None else {"includeThoughts": shown}
    if version >= (3, 0):
        config |= _thinking_level(effort or effort_of(wish), losses)
    else:
        config |= _thinking_budget(wish, effort, model)
    return config or None


def _thinking_level(effort: str | None, losses: TranslationLosses) -> dict[str, Any]:
    """Return the wish as Gemini 3 takes it: a level."""
    if effort is not None and effort not in _LEVELS:
        losses.drop("reasoning_effort")
    return {"thinkingLevel": _LEVELS[effort]} if effort in _LEVELS else {}


def _thinking_budget(wish: ReasoningOptions, effort: str | None, model: str) -> dict[str, Any]:
    """Return the wish as Gemini 2.5 takes it: a number of tokens."""
    budget = wish.budget_tokens
    if budget is None and effort is not None:
        budget = _BUDGETS.get(effort, _BUDGETS["high"])
    if budget is None and wish.enabled:
        budget = -1  # -1: the model decides how much to think
    if budget == 0 and "pro" in model:
        budget = _LEAST_OF_PRO
    return {} if budget is None else {"thinkingBudget": budget}


def _version(model: str) -> tuple[int, int]:
    """Return a model's generation. A model without a number counts as the latest."""
    match = _VERSION.match(model)
    if match is None:
        return (2, 5) if model.startswith("gemini") else (0, 0)
    return int(match[1]), int(match[2] or 0)


_Parts = list[dict[str, Any]]


def _write_message(message: Message, losses: TranslationLosses, *, signatures: bool) -> _Parts:
    """Return the parts of a message. ``signatures``: the model refuses calls without one."""
    losses.drop_beside(message)
    parts = _write_parts(message.parts, losses)
    first = next((part for part in parts if "functionCall" in part), None)
    if signatures and first is not None:
        first.setdefault(SIGNATURE, ANY_SIGNATURE)
    return parts


def _write_parts(parts: Iterable[MessagePart], losses: TranslationLosses) -> _Parts:
    """Return the parts. The thoughts of another model are not sent to this one."""
    written: _Parts = []
    for part in parts:
        match part:
            case TextPart():
                if part.text:
                    written.append({"text": part.text})
                    losses.drop_filled(part.extra)
            case ReasoningPart():
                losses.drop_reasoning(part)
            case CallPart():
                written.append(_write_call(part, losses))
            case ResultPart():
                written.append({"functionResponse": _write_result(part, losses)})
                losses.drop_filled(part.extra)
            case MediaPart():
                if part.detail not in (None, "auto"):
                    losses.drop("detail")
                written.append(_write_media(part))
                losses.drop_filled(part.extra)
            case ForeignPart():
                losses.refuse_foreign(part)
    return written


def _write_call(part: CallPart, losses: TranslationLosses) -> dict[str, Any]:
    body = {**_id(part.id), "name": part.name, "args": arguments_object(part.arguments)}
    sent = (SIGNATURE, "extra_content")
    losses.drop_filled({n: v for n, v in part.extra.items() if n not in sent})
    return {"functionCall": body, **_signature(part.extra)}


def _write_result(part: ResultPart, losses: TranslationLosses) -> dict[str, Any]:
    texts = [each.text for each in part.content if isinstance(each, TextPart)]
    media = _write_parts((each for each in part.content if not isinstance(each, TextPart)), losses)
    return {
        **_id(part.id),
        "name": part.name or part.id,
        "response": _response("\n".join(texts), failed=part.is_error),
        **({"parts": media} if media else {}),
    }


def _id(id: str) -> dict[str, str]:
    return {} if id.startswith(MINTED) else {"id": id}


def _signature(extra: dict[str, Any]) -> dict[str, str]:
    """Return a call's signature, also from the place where Google's OpenAI endpoint puts it."""
    match extra:
        case {"thoughtSignature": str(signature)}:
            return {SIGNATURE: signature}
        case {"extra_content": {"google": {"thought_signature": str(signature)}}}:
            return {SIGNATURE: signature}
        case _:
            return {}


def _response(text: str, *, failed: bool) -> dict[str, Any]:
    """Return a function's result, which must be an object: text goes under the API's own names."""
    if failed:
        return {"error": text}
    value = json_or_none(text, dict[str, Any])
    return {"output": text} if value is None else value


def _write_media(part: MediaPart) -> dict[str, Any]:
    guessed = mimetypes.guess_type(part.name or part.url or "")[0]
    media_type = part.media_type or guessed
    kind = {"mimeType": media_type} if media_type else {}
    name = {"displayName": part.name} if part.name else {}
    if part.data is not None:
        return {"inlineData": {**kind, "data": part.data, **name}}
    return {"fileData": {**kind, "fileUri": part.url, **name}}


_MOST_STOPS = 5
_SEEDS = range(-(2**31), 2**31)
"""The seeds that the API accepts."""
_CALLING_OF_MODE = {"auto": "AUTO", "none": "NONE", "required": "ANY", "named": "ANY"}
_NAMES = {
    "max_completion_tokens": "maxOutputTokens",
    "max_tokens": "maxOutputTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "frequency_penalty": "frequencyPenalty",
    "presence_penalty": "presencePenalty",
    "seed": "seed",
    "stop": "stopSequences",
    "logprobs": "responseLogprobs",
    "top_logprobs": "logprobs",
}
"""The API's names of settings that ``Quirks.drops`` may name."""


def write_request(asked: CanonicalRequest, quirks: Quirks) -> WrittenRequest:
    """Return the request for Gemini. Raises InvalidRequest (see ``Dialect.write_request``)."""
    losses = TranslationLosses(NAME, refuse=quirks.refuse)
    model = asked.model.removeprefix("models/")
    signatures = wants_signatures(model)
    system, turns = turns_of(
        asked.messages, lambda message: _write_message(message, losses, signatures=signatures)
    )
    contents = [
        {"role": "model" if role == "assistant" else role, "parts": parts}
        for role, parts in turns
        if parts
    ]
    document: dict[str, Any] = {"contents": contents}
    if system:
        document["systemInstruction"] = {"parts": system}
    if asked.tools:
        document["tools"] = _write_tools(asked, losses)
    if asked.tool_choice is not None:
        document["toolConfig"] = {"functionCallingConfig": _write_choice(asked.tool_choice)}
    config = _settings(asked, model, quirks, losses)
    drop_extra(asked, losses)
    for name in quirks.drops:
        if config.pop(_NAMES.get(name, name), None) is not None or document.pop(name, None):
            losses.drop(name)
    if config:
        document["generationConfig"] = config
    if asked.user is not None:
        losses.drop("user")
    if asked.parallel_tool_calls is False:
        losses.drop("parallel_tool_calls")
    method = b"streamGenerateContent" if asked.stream else b"generateContent"
    return WrittenRequest(
        path=b"/v1beta/models/%b:%b" % (quote(model, safe="").encode(), method),
        query=b"alt=sse" if asked.stream else b"",
        body=msgspec.json.encode(document),
        dropped=losses.names,
    )


def _settings(
    asked: CanonicalRequest, model: str, quirks: Quirks, losses: TranslationLosses
) -> dict[str, Any]:
    check_choices(asked.choices, quirks)
    limit, seed = asked.max_tokens, asked.seed
    if seed is not None and seed not in _SEEDS:
        losses.drop("seed")
        seed = None
    config = {
        "maxOutputTokens": quirks.default_max_tokens if limit is None else limit,
        "frequencyPenalty": asked.frequency_penalty,
        "presencePenalty": asked.presence_penalty,
        "seed": seed,
        "stopSequences": kept_stops(asked, _MOST_STOPS, losses) or None,
        "candidateCount": asked.choices if asked.choices > 1 else None,
        "responseLogprobs": True if asked.logprobs else None,
        "logprobs": asked.top_logprobs if asked.logprobs else None,
        **_write_format(asked.response_format),
    }
    if asked.top_logprobs and not asked.logprobs:
        losses.drop("top_logprobs")
    sampling = {"temperature": asked.temperature, "top_p": asked.top_p, "top_k": asked.top_k}
    for name, value in sampling.items():
        if value is not None and not quirks.sampling:
            losses.drop(name)
        else:
            config[_NAMES[name]] = value
    if asked.reasoning is not None:
        config["thinkingConfig"] = thinking_config(asked.reasoning, model, losses)
    return filled(config)


def _write_tools(asked: CanonicalRequest, losses: TranslationLosses) -> list[dict[str, Any]]:
    functions = []
    for tool in asked.tools:
        if isinstance(tool, ForeignTool):
            losses.refuse_foreign(tool)
        functions.append(_write_function(tool, losses))
    return [{"functionDeclarations": functions}]


def _write_function(tool: Tool, losses: TranslationLosses) -> dict[str, Any]:
    written: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        written["description"] = tool.description
    if tool.parameters is not None:
        written["parametersJsonSchema"] = schema_for_gemini(tool.parameters)
    if tool.strict:
        losses.drop("strict")
    losses.drop_filled(tool.extra)
    return written


def _write_choice(choice: ToolChoice) -> dict[str, Any]:
    mode = _CALLING_OF_MODE[choice.mode]
    if choice.names and mode == "AUTO":
        mode = "VALIDATED"
    allowed = {"allowedFunctionNames": choice.names} if choice.names else {}
    return {"mode": mode, **allowed}


def _write_format(wanted: ResponseFormat | None) -> dict[str, Any]:
    if wanted is None or wanted.kind == "text":
        return {}
    schema = described_schema(wanted)
    told = {} if schema is None else {"responseJsonSchema": schema_for_gemini(schema)}
    return {"responseMimeType": "application/json", **told}
