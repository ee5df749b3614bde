"""The dialect of Gemini's generateContent."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headstart.attempts import Tokens
from headstart.dialects.dialect import (
    ContentTypes,
    CountForm,
    Dialect,
    KeyForm,
    ListedModel,
    LogprobsForm,
    ModelsForm,
    Operations,
    as_count,
    as_text,
    field_uses,
    listed_objects,
)
from headstart.dialects.gemini_answers import (
    THOUGHT,
    GenerateDecoder,
    GenerateEncoder,
    decode_body,
    error_body,
    error_frame,
    join_pieces,
    render,
    retry_delay_s,
    write_body,
)
from headstart.dialects.gemini_requests import (
    NAME,
    find_operation,
    parse_request,
    read_request,
    write_request,
)
from headstart.dialects.request_form import (
    RequestForm,
    add_part,
    as_ordered,
    as_tool_call,
    decoded_digest,
    ordinal,
    unsigned,
)
from headstart.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headstart.dialects.request_form import PromptMessage
    from headstart.types import ChatRequest, Completion, Headers


def _parse(path: bytes, query: bytes, body: bytes) -> ChatRequest:
    operation = find_operation(path, query)
    if operation is None:
        raise InvalidRequest("the path names no model and no method that generates content")
    return parse_request(body, operation)


def _read_logprobs(result: dict[str, Any]) -> dict[str, Any]:
    """Return a ``logprobsResult`` as the ``logprobs`` of an OpenAI choice."""
    chosen = _objects(result.get("chosenCandidates"))
    top = [_objects(step.get("candidates")) for step in _objects(result.get("topCandidates"))]
    top += [[] for _ in chosen[len(top) :]]
    content = [
        {**_token(each), "top_logprobs": [_token(other) for other in others]}
        for each, others in zip(chosen, top, strict=False)
    ]
    return {"content": content, "refusal": None}


def _write_logprobs(logprobs: dict[str, Any]) -> dict[str, Any]:
    """Return the ``logprobs`` of an OpenAI choice as a ``logprobsResult``."""
    content = _objects(logprobs.get("content"))
    return {
        "chosenCandidates": [_candidate(each) for each in content],
        "topCandidates": [
            {"candidates": [_candidate(other) for other in _objects(each.get("top_logprobs"))]}
            for each in content
        ],
    }


def _token(candidate: dict[str, Any]) -> dict[str, Any]:
    text = candidate.get("token")
    text = text if isinstance(text, str) else ""
    return {
        "token": text,
        # The API's JSON leaves out a 0.
        "logprob": candidate.get("logProbability", 0.0),
        "bytes": list(text.encode("utf-8", "surrogatepass")),
    }


def _candidate(token: dict[str, Any]) -> dict[str, Any]:
    return {"token": token.get("token", ""), "logProbability": token.get("logprob", 0.0)}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


_IN_PATH = re.compile(rb"(/models/)[^/:]+:([A-Za-z]+)$")


def _with_model(path: bytes, model: str) -> bytes | None:
    found = _IN_PATH.search(path)
    if found is None:
        return None
    name = quote(model.removeprefix("models/"), safe="").encode()
    return b"%b%b:%b" % (path[: found.end(1)], name, found[2])


def _streamed(path: bytes, query: bytes) -> tuple[bytes, bytes] | None:
    if _IN_PATH.search(path) is None:
        return None
    path = path.replace(b":generateContent", b":streamGenerateContent")
    return path, b"&".join(filter(None, (query, b"alt=sse")))


_PREFIXES = (b"/v1beta/", b"/v1alpha/", b"/upload/v1")
"""Of paths that only Google's clients use. They send files to ``/upload/v1beta/files``."""
_SOCKETS = b"/ws/google."
"""The beginning of the paths of Gemini's Live API, which name its service."""


def _claims(path: bytes, headers: Headers) -> bool:
    return path.startswith((*_PREFIXES, _SOCKETS)) or any(
        name == b"x-goog-api-key" for name, _ in headers
    )


def _tokens(usage: dict[str, Any]) -> Tokens:
    """Return the counts of a ``usageMetadata``: thoughts are completion, tools' use is prompt."""
    thoughts = as_count(usage.get("thoughtsTokenCount"))
    return Tokens(
        prompt=as_count(usage.get("promptTokenCount"))
        + as_count(usage.get("toolUsePromptTokenCount")),
        completion=as_count(usage.get("candidatesTokenCount")) + thoughts,
        cached=as_count(usage.get("cachedContentTokenCount")),
        reasoning=thoughts,
    )


def _usage(tokens: Tokens) -> dict[str, Any]:
    usage = {
        "promptTokenCount": tokens.prompt,
        "candidatesTokenCount": tokens.completion - tokens.reasoning,
        "totalTokenCount": tokens.prompt + tokens.completion,
    }
    if tokens.cached:
        usage["cachedContentTokenCount"] = tokens.cached
    if tokens.reasoning:
        usage["thoughtsTokenCount"] = tokens.reasoning
    return usage


def _shows_reasoning(request: ChatRequest) -> bool:
    """Tell whether the request asks for thoughts."""
    match request.document:
        case {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}:
            return True
    return False


def _encoder(id: str, created: int, *, include_usage: bool) -> GenerateEncoder:  # noqa: ARG001
    """Return a writer for one stream. It always reports the usage, and never the time."""
    return GenerateEncoder(id)


_FIELDS = field_uses(
    keyed=(
        "model contents systemInstruction cachedContent generationConfig safetySettings toolConfig "
        "tools"
    ),
    ignored="labels serviceTier store",
)
"""Uses the names that the reader gives to fields. In ``generationConfig`` the limits
``maxOutputTokens`` and ``candidateCount`` are ranged."""
_KEY_RANGED = frozenset({"maxOutputTokens", "candidateCount"})
_KEY_SCHEMAS = ("responseSchema", "responseJsonSchema")
_KEY_DECLARED = ("parameters", "parametersJsonSchema", "response", "responseJsonSchema")
_KEY_PATHS = (b"/v1/", b"/v1beta/")
_KEY_DELIVERY = (b"alt=", b"$alt=", b"%24alt=", b"prettyPrint=")


def _key_messages(contents: list[Any]) -> list[Any]:
    """Return contents as messages of the common form, in which equal conversations are equal.

    A content of one text becomes that text, and the pieces of a streamed answer become one; other
    parts keep their form. Random ids, inline media and signatures are replaced as in
    ``canonical_messages``.
    """
    ordinals: dict[str, int] = {}
    return [_key_message(content, ordinals) for content in join_pieces(contents)]


def _key_settings(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body with its settings in canonical form, without ``contents``."""
    return {
        name: _KEY_FORMS[name](value) if name in _KEY_FORMS else value
        for name, value in body.items()
    }


def _key_target(path: bytes, query_string: bytes) -> tuple[bytes, bytes]:
    """Return path and query without the model and the delivery of the answer."""
    version = next((prefix for prefix in _KEY_PATHS if path.startswith(prefix)), path)
    pairs = query_string.split(b"&")
    # Behind a ";" may be another parameter.
    kept = [pair for pair in pairs if b";" in pair or not pair.startswith(_KEY_DELIVERY)]
    return version, b"&".join(kept)


def _key_message(content: object, ordinals: dict[str, int]) -> object:
    match content:
        case {"parts": list(parts), **rest}:
            role = rest.pop("role", "user")
            said = [_key_part(part, ordinals) for part in parts]
            rest["role"] = "assistant" if role == "model" else role
            match said:
                case [{"text": str(text), **more}] if not more:
                    return {**rest, "content": text}
            return {**rest, "content": said}
        case _:
            return content


def _key_part(part: object, ordinals: dict[str, int]) -> object:
    if not isinstance(part, dict):
        return part
    part = unsigned(part)
    for name in ("functionCall", "functionResponse"):
        call = part.get(name)
        if isinstance(call, dict) and "id" in call:
            part = {**part, name: {**call, "id": ordinal(call["id"], ordinals)}}
    match part:
        case {"inlineData": {"data": str(data)} as media}:
            part = {**part, "inlineData": {**media, "data": decoded_digest(data, url_safe=True)}}
    return part


def _key_system(instruction: object) -> object:
    match instruction:
        case {"parts": list(parts)}:
            # The role of an instruction has no meaning.
            return [_key_part(part, {}) for part in parts]
        case _:
            return instruction


def _key_config(config: object) -> object:
    if not isinstance(config, dict):
        return config
    kept = {name: value for name, value in config.items() if name not in _KEY_RANGED}
    return _with_ordered(kept, _KEY_SCHEMAS)


def _key_tools(tools: object) -> object:
    return [_key_tool(tool) for tool in tools] if isinstance(tools, list) else tools


def _key_tool(tool: object) -> object:
    match tool:
        case {"functionDeclarations": list(functions), **rest}:
            declared = [_with_ordered(each, _KEY_DECLARED) for each in functions]
            return {**rest, "functionDeclarations": declared}
        case _:
            return tool


def _with_ordered(fields: object, schemas: Sequence[str]) -> object:
    """Return an object whose schemas, the fields with these names, keep their order."""
    if not isinstance(fields, dict):
        return fields
    return {n: as_ordered(value) if n in schemas else value for n, value in fields.items()}


_KEY_FORMS: Mapping[str, Callable[[object], object]] = {
    "systemInstruction": _key_system,
    "generationConfig": _key_config,
    "tools": _key_tools,
}


def _canonical(body: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return the settings and the contents, in the shapes in which other dialects are keyed."""
    settings = _key_settings(body)
    contents = settings.pop("contents", None)
    return {"settings": settings}, _key_messages(contents) if isinstance(contents, list) else []


class _ContentsForm(RequestForm):
    field = "contents"
    content = "parts"
    assistant = "model"
    prefills = False
    names_model = False
    takes_prediction = False
    tool_result = "functionResponse"
    joins_results = True
    work_fields = RequestForm.work_fields | {"generationConfig"}
    sources = ("groundingMetadata", "urlContextMetadata")

    def block(self, text: str) -> Any:
        return {"text": text}

    def with_system_text(self, document: dict[str, Any], text: str) -> dict[str, Any] | None:
        system = document.get("systemInstruction", {})
        parts = system.get("parts", []) if isinstance(system, dict) else None
        if not isinstance(parts, list):
            return None
        extended = {**system, "parts": [*parts, self.block(text)]}
        return {**document, "systemInstruction": extended}

    def with_limit(self, document: dict[str, Any], tokens: int) -> dict[str, Any]:
        config = {**document["generationConfig"], "maxOutputTokens": tokens}
        return {**document, "generationConfig": config}

    def with_tool(self, document: dict[str, Any], tool: dict[str, Any]) -> dict[str, Any]:
        tools = document.get("tools") or []
        for place, own in enumerate(tools):
            if isinstance(own, dict) and "functionDeclarations" in own:
                declared = [*own["functionDeclarations"], *tool["functionDeclarations"]]
                extended = {**own, "functionDeclarations": declared}
                return {**document, "tools": [*tools[:place], extended, *tools[place + 1 :]]}
        return {**document, "tools": [*tools, tool]}

    def answer_message(self, answer: dict[str, Any]) -> PromptMessage:
        content: PromptMessage = answer["candidates"][0]["content"]
        return content

    def turn(self, role: str, text: str) -> PromptMessage:
        return {"role": role, "parts": [self.block(text)]}

    def system(self, document: dict[str, Any]) -> list[PromptMessage]:
        instruction = document.get("systemInstruction") or {}
        return [
            {"role": "system", "content": [_text_part(p) for p in instruction.get("parts", ())]}
        ]

    def split(self, message: PromptMessage, previous: PromptMessage) -> list[PromptMessage]:
        parts = message.get("parts") or []
        if message.get("role") == "model":
            calls = [
                as_tool_call(id, call) for id, call in _numbered("functionCall", parts).items()
            ]
            texts = [_text_part(part) for part in parts]
            return [{"role": "assistant", "content": texts, "tool_calls": calls}]
        asked = _numbered("functionCall", previous.get("parts") or [])
        ids = {id(each): name for name, each in _numbered("functionResponse", parts).items()}
        split: list[PromptMessage] = []
        for part in parts:
            response = part.get("functionResponse")
            call = ids.get(id(response))
            if call in asked and _only_text(response) is not None:
                content = _only_text(response)
                split.append({"role": "tool", "tool_call_id": call, "content": content})
            else:
                add_part(split, _text_part(part))
        return split

    def join(self, message: PromptMessage, sent: Sequence[PromptMessage]) -> PromptMessage:
        parts: list[Any] = []
        for each in sent:
            if each["role"] == "tool":
                parts.append(_with_response(message["parts"][len(parts)], each["content"]))
                continue
            for new in each["content"]:
                own = message["parts"][len(parts)]
                same = new["type"] != "text" or new["text"] == own["text"]
                parts.append(own if same else {"text": new["text"]})
        return {**message, "parts": parts}

    def sampling(self, document: dict[str, Any]) -> dict[str, Any]:
        config = document.get("generationConfig")
        return config if isinstance(config, dict) else document

    def modalities(self, document: dict[str, Any]) -> object:
        return self.sampling(document).get("responseModalities") or document.get("modalities")

    def is_hosted(self, tool: dict[str, Any]) -> bool:
        return bool(tool.keys() - {"functionDeclarations"})

    def forces_call(self, document: dict[str, Any]) -> bool:
        match document.get("toolConfig"):
            case {"functionCallingConfig": {"mode": str(mode)}}:
                return mode.upper() == "ANY"
            case _:
                return False

    def response_format(self, document: dict[str, Any]) -> object:
        config = self.sampling(document)
        schema = config.get("responseJsonSchema") or config.get("responseSchema")
        if schema is None and config.get("responseMimeType") != "application/json":
            return None
        return {"type": "json_schema", "schema": schema if isinstance(schema, dict) else {}}

    def has_logprobs(self, answer: Completion, document: dict[str, Any]) -> bool:  # noqa: ARG002
        """Tell whether there are any: their number is in the key."""
        return all(choice.logprobs for choice in answer.choices)

    def system_fields(self, document: dict[str, Any]) -> tuple[object, object]:
        return None, document.get("systemInstruction")


def _numbered(kind: str, parts: Sequence[Any]) -> dict[str, Any]:
    """Return Gemini's calls, or responses, by their id, or else by name and number."""
    found: dict[str, Any] = {}
    names: dict[str, int] = {}
    for part in parts:
        each = part.get(kind)
        if each is None:
            continue
        name = each["name"]
        names[name] = names.get(name, 0) + 1
        found[each.get("id") or f"{name} {names[name]}"] = each
    return found


def _text_part(part: dict[str, Any]) -> dict[str, Any]:
    if part.keys() == {"text"}:
        return {"type": "text", "text": part["text"]}
    return {"type": "other"}


def _only_text(response: dict[str, Any]) -> str | None:
    """Return the text of a function's answer if it has nothing else, or None."""
    match response:
        case {"response": dict(fields)} if len(fields) == 1:
            (text,) = fields.values()
            return text if isinstance(text, str) else None
    return None


def _with_response(part: dict[str, Any], text: str) -> dict[str, Any]:
    answered = part["functionResponse"]
    if _only_text(answered) == text:
        return part
    (field,) = answered["response"]
    return {**part, "functionResponse": {**answered, "response": {field: text}}}


_MODELS_FORM = "gemini"
_PREFIX = "models/"


def _read_models(document: Any) -> list[ListedModel]:
    return [
        ListedModel(
            id=each["name"].removeprefix(_PREFIX),
            title=as_text(each.get("displayName")) or "",
            form=_MODELS_FORM,
            fields=each,
        )
        for each in listed_objects(document, "models")
        if as_text(each.get("name"))
    ]


def _write_model(model: ListedModel) -> dict[str, Any]:
    """Return the model in Gemini's form, which has no field for its owner but the description."""
    return {
        "displayName": model.title or model.id,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
        **model.fields_in(_MODELS_FORM),
        "name": _PREFIX + model.id,
        "description": f"Answered by {model.owner}.",
    }


def _write_models(models: Sequence[ListedModel]) -> dict[str, Any]:
    return {"models": list(map(_write_model, models))}


_MODELS = ModelsForm(
    _MODELS_FORM, b"/v1beta/models", b"pageSize=1000", _read_models, _write_model, _write_models
)


GEMINI_GENERATE = Dialect(
    name=NAME,
    setting="gemini",
    key_header=(b"x-goog-api-key", b""),
    account_headers=frozenset({b"x-goog-user-project"}),
    models=_MODELS,
    count=CountForm(
        re.compile(rb"/v1(?:beta)?/models/[^/:]+:countTokens"),
        lambda tokens: {"totalTokens": tokens},
    ),
    prefixes=_PREFIXES,
    socket_prefix=_SOCKETS,
    text_fields=frozenset({"text"}),
    reasoning_field=THOUGHT,
    logprobs=LogprobsForm(read=_read_logprobs, write=_write_logprobs),
    retry_delay_s=retry_delay_s,
    apply_quirks=None,
    claims=_claims,
    ends_at_finish=True,
    content_types=ContentTypes(b"application/json; charset=UTF-8", b"text/event-stream"),
    operations=Operations(
        endpoint="/v1beta/models/{model}:generateContent",
        part=b"/models/",
        answers=lambda path, query: find_operation(path, query) is not None,
        parse=_parse,
        with_model=_with_model,
        streamed=_streamed,
    ),
    key=KeyForm(
        fields=_FIELDS,
        canonical=_canonical,
        target=_key_target,
        headers=frozenset({b"x-goog-fieldmask"}),
    ),
    form=_ContentsForm(),
    parse_request=parse_request,
    read_request=read_request,
    write_request=write_request,
    shows_reasoning=_shows_reasoning,
    tokens=_tokens,
    usage=_usage,
    decoder=GenerateDecoder,
    decode_body=decode_body,
    encoder=_encoder,
    write_body=write_body,
    render=render,
    new_id=lambda: secrets.token_urlsafe(16),
    error_body=error_body,
    error_frame=error_frame,
    bare_errors=True,
)
