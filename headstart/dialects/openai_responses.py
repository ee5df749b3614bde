"""The dialect of OpenAI's Responses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from headstart.attempts import Tokens
from headstart.dialects.dialect import (
    CountForm,
    Dialect,
    FieldUse,
    KeyForm,
    SharedForm,
    as_count,
    field_uses,
    listed_objects,
)
from headstart.dialects.openai_answers import error_body, token_details
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.request_form import (
    PromptMessages,
    RequestForm,
    add_cache_key,
    canonical_tools,
    decoded_digest,
    keep_property_order,
    keyed_media,
    ordinal,
)
from headstart.dialects.responses_answers import (
    ResponsesDecoder,
    contradicts,
    decode_body,
    error_frame,
)
from headstart.dialects.responses_chains import OWN
from headstart.dialects.responses_requests import (
    LOGPROBS,
    NAME,
    SUMMARY,
    all_tools,
    apply_quirks,
    call_kinds,
    input_items,
    is_search,
    kind_of,
    namespaced,
    parse_request,
    read_request,
    shows_reasoning,
    write_request,
)
from headstart.dialects.responses_writing import (
    ResponsesEncoder,
    beside_text,
    echo,
    known_id,
    render,
    write_body,
)
from headstart.types import Completion, Headers, random_bytes, words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headstart.dialects.request_form import PromptMessage


def _tokens(usage: dict[str, Any]) -> Tokens:
    asked, said = token_details(usage, "input"), token_details(usage, "output")
    return Tokens(
        prompt=as_count(usage.get("input_tokens")),
        completion=as_count(usage.get("output_tokens")),
        # The second names are Perplexity's.
        cached=as_count(asked.get("cached_tokens") or asked.get("cache_read_input_tokens")),
        cache_write=as_count(
            asked.get("cache_write_tokens") or asked.get("cache_creation_input_tokens")
        ),
        reasoning=as_count(said.get("reasoning_tokens")),
    )


def _usage(tokens: Tokens) -> dict[str, Any]:
    cached = {"cached_tokens": tokens.cached, "cache_write_tokens": tokens.cache_write}
    return {
        "input_tokens": tokens.prompt,
        "input_tokens_details": cached,
        "output_tokens": tokens.completion,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": tokens.prompt + tokens.completion,
    }


def _encoder(id: str, created: int, *, include_usage: bool) -> ResponsesEncoder:  # noqa: ARG001
    """Return a writer for one stream. It always reports the usage."""
    return ResponsesEncoder(id, created)


_FIELDS = field_uses(
    keyed=(
        "model input instructions access_programs background background_options "
        "context_management conversation image include max_tool_calls moderation "
        "parallel_tool_calls previous_response_id prompt reasoning temperature text tool_choice "
        "tools top_p truncation"
    ),
    ranged="max_output_tokens top_logprobs",
    ignored=(
        "metadata prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier "
        "service_tier store stream stream_options user cache client_metadata"
    ),
)
"""``user`` and ``safety_identifier`` join the scope instead. ``cache`` is litellm's own field, and
``client_metadata`` is Codex's. Of ``include``, log probabilities are ranged."""

_OWN_IDS = words_of(
    "message reasoning function_call function_call_output custom_tool_call custom_tool_call_output"
)
"""Items whose ids no item refers to: a call and its result have the same ``call_id``."""


def _canonical(body: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return the settings and the items, in the shapes in which other dialects are keyed."""
    asked = body.pop("input", None)
    for name, canonical in _KEY_FORMS.items():
        if name in body:
            body[name] = canonical(body[name])
    if body.get("include", ...) == []:
        del body["include"]
    if isinstance(asked, str):
        return {"settings": body}, [{"role": "user", "content": asked}]
    if isinstance(asked, list) and asked:
        ordinals: dict[str, int] = {}
        return {"settings": body}, [_key_item(item, ordinals) for item in asked]
    return {"settings": body, "input": asked}, []


def _key_include(include: object) -> object:
    """Return the wanted extra fields in one order, without those that an answer may lack."""
    if not (isinstance(include, list) and all(isinstance(each, str) for each in include)):
        return include
    return sorted({*include} - {LOGPROBS})


_KEY_FORMS: Mapping[str, Callable[[object], object]] = {
    "include": _key_include,
    "text": keep_property_order,
    "tools": canonical_tools,
}


def _key_item(item: object, ordinals: dict[str, int]) -> object:
    """Return an item without ids and signatures that differ from answer to answer."""
    if not isinstance(item, dict):
        return item
    kind = kind_of(item)
    left = {"id", "status"} if kind in _OWN_IDS else set[str]()
    if kind == "message":
        left.add("type")
    elif kind == "reasoning" and any(item.get(name) for name in (SUMMARY, "content")):
        left.add("encrypted_content")
    keyed = {name: value for name, value in item.items() if name not in left}
    if "call_id" in keyed:
        keyed["call_id"] = ordinal(keyed["call_id"], ordinals)
    for name in ("content", "output"):
        if isinstance(keyed.get(name), list):
            keyed[name] = _one_text([_key_part(part) for part in keyed[name]])
    return keyed


def _key_part(part: object) -> object:
    if not isinstance(part, dict):
        return part
    part = {name: value for name, value in part.items() if name != "prompt_cache_breakpoint"}
    if part.get("type") == "output_text":
        part = {n: v for n, v in part.items() if v or n not in ("annotations", "logprobs")}
    for name in ("image_url", "file_data"):
        if name in part:
            part[name] = keyed_media(part[name])
    match part:
        case {"input_audio": {"data": str(data)} as audio}:
            part["input_audio"] = {**audio, "data": decoded_digest(data)}
    return part


def _one_text(parts: list[object]) -> object:
    """Return a list of one text as that text, which means the same."""
    match parts:
        case [{"type": "input_text" | "output_text", "text": str(text), **rest}] if not rest:
            return text
    return parts


_TEXT_REQUEST = frozenset({"model", "input", "instructions", "temperature", "top_p"}).union(
    [name for name, use in _FIELDS.items() if use is not FieldUse.KEYED]
)
"""The fields of a request for text that also Chat Completions have, and those that no key has."""
_ROLES = frozenset({"user", "assistant", "system", "developer"})
_SPOKEN = frozenset({"type", "role", "content", "id", "status"})
"""The fields of a message that is text alone."""
_SAID = frozenset({"type", "text", "prompt_cache_breakpoint"})
"""The fields of its parts."""


def _as_chat(document: dict[str, Any]) -> dict[str, Any] | None:
    """Return a request for text as one of Chat Completions; None if it asks for more."""
    if not document.keys() <= _TEXT_REQUEST:
        beside = {name: value for name, value in document.items() if name not in _TEXT_REQUEST}
        beside["include"] = _key_include(beside.get("include"))
        if any(value not in (None, []) for value in beside.values()):
            return None
    asked, told = document.get("input"), document.get("instructions")
    if told is not None and not isinstance(told, str):
        return None
    messages: list[Any] = [{"role": "system", "content": told}] if told else []
    if isinstance(asked, str):
        messages.append({"role": "user", "content": asked})
    elif isinstance(asked, list) and asked:
        for item in asked:
            said = _spoken(item)
            if said is None:
                return None
            messages.append({"role": item["role"], "content": said})
    else:
        return None
    kept = {
        n: document[n] for n in ("model", "temperature", "top_p") if document.get(n) is not None
    }
    return {**kept, "messages": messages}


def _spoken(item: object) -> object:
    """Return the content of a text message in the form of Chat Completions, or None."""
    if not (isinstance(item, dict) and item.keys() <= _SPOKEN and item.get("role") in _ROLES):
        return None
    if kind_of(item) != "message":
        return None
    content = item.get("content")
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    texts: list[dict[str, Any]] = []
    for part in content:
        if not (isinstance(part, dict) and _is_text(part)):
            return None
        if any(part[name] for name in part.keys() - _SAID):
            return None
        texts.append({"type": "text", "text": part["text"]})
    return texts[0]["text"] if len(texts) == 1 else texts or None


class _ItemsForm(RequestForm):
    field = "input"
    hides_rounds = False
    prefills = False
    takes_prediction = False
    work_fields = words_of(
        "background conversation previous_response_id prompt prompt_cache_options tools"
    )

    def read(self, document: dict[str, Any]) -> PromptMessages | None:
        return super().read(self._with_list(document))

    def system(self, document: dict[str, Any]) -> list[PromptMessage]:
        return [{"role": "system", "content": document.get("instructions")}]

    def split(self, message: PromptMessage, previous: PromptMessage) -> list[PromptMessage]:  # noqa: ARG002
        kind = kind_of(message)
        if kind == "function_call":
            called = {"name": message["name"], "arguments": message["arguments"]}
            calls = [{"id": message["call_id"], "function": called}]
            return [{"role": "assistant", "content": None, "tool_calls": calls}]
        if kind == "function_call_output":
            content = _prompt_content(message["output"])
            return [{"role": "tool", "tool_call_id": message["call_id"], "content": content}]
        if kind != "message":
            return [{"role": "assistant", "content": None}]
        return [{**message, "content": _prompt_content(message.get("content"))}]

    def join(self, message: PromptMessage, sent: Sequence[PromptMessage]) -> PromptMessage:
        field = "output" if kind_of(message) == "function_call_output" else "content"
        content = sent[0]["content"]
        if isinstance(content, list):
            content = [
                {**own, "text": new["text"]} if new["type"] == "text" else own
                for own, new in zip(message[field], content, strict=True)
            ]
        return {**message, field: content}

    def block(self, text: str) -> Any:
        return {"type": "input_text", "text": text}

    def with_system_text(self, document: dict[str, Any], text: str) -> dict[str, Any] | None:
        instructions = self._extended_system(document.get("instructions"), text)
        return None if instructions is None else {**document, "instructions": instructions}

    def with_last_text(self, document: dict[str, Any], text: str) -> dict[str, Any] | None:
        return super().with_last_text(self._with_list(document), text)

    def with_limit(self, document: dict[str, Any], tokens: int) -> dict[str, Any]:
        return {**document, "max_output_tokens": tokens}

    def with_turns(
        self, document: dict[str, Any], turns: Sequence[PromptMessage]
    ) -> dict[str, Any]:
        return super().with_turns(self._with_list(document), turns)

    def work_beside_text(self, document: dict[str, Any]) -> str | None:
        """Return the work that the request asks for, or depends on, beside text."""
        listed = self._listed(document)
        if any(kind_of(item) == "item_reference" for item in listed):
            return "item-reference"
        more = [t for item in listed for t in item.get("tools") or () if "tools" in item]
        if self.work_fields.isdisjoint(document) and not more:
            return None
        if document.get("background"):
            return "background"
        for field, reason in _STATE.items():
            if document.get(field) is not None:
                return reason
        match document.get("prompt_cache_options"):
            case {"prewarm": True}:
                return "cache-warming"
        tools = document.get("tools")
        offered = [*(tools if isinstance(tools, list) else ()), *more]
        hosted = any(isinstance(tool, dict) and self.is_hosted(tool) for tool in offered)
        return "hosted-tools" if hosted else None

    def is_hosted(self, tool: dict[str, Any]) -> bool:
        if tool.get("type") != "namespace":
            return super().is_hosted(tool) and not is_search(tool)
        return any(map(super().is_hosted, listed_objects(tool, "tools")))

    def tool_names(self, document: dict[str, Any]) -> Mapping[str, tuple[str, str]]:
        plain = super().tool_names({"tools": all_tools(document)})
        return {**plain, **namespaced(document)}

    def call_kinds(self, document: dict[str, Any]) -> Mapping[str, str]:
        return call_kinds(document)

    def _holds_result(self, message: dict[str, Any]) -> bool:
        return kind_of(message).endswith("_output")

    def response_format(self, document: dict[str, Any]) -> object:
        text = document.get("text")
        return text.get("format") if isinstance(text, dict) else None

    def has_logprobs(self, answer: Completion, document: dict[str, Any]) -> bool:
        wanted = {"top_logprobs": document.get("top_logprobs") or 0}
        return super().has_logprobs(answer, wanted)

    def opening(self, document: dict[str, Any]) -> list[Any]:
        return super().opening(self._with_list(document))

    def system_fields(self, document: dict[str, Any]) -> tuple[object, object]:
        return document.get("instructions"), None

    def _listed(self, document: dict[str, Any]) -> list[dict[str, Any]]:
        return super()._listed(self._with_list(document))

    def _with_list(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the document with items in place of a string."""
        if not isinstance(document.get("input"), str):
            return document
        return {**document, "input": input_items(document)}


_STATE = {
    "conversation": "conversation",
    "previous_response_id": "previous-response",
    "prompt": "stored-prompt",
}
"""The reason why a request bypasses the cache if it depends on state at its provider."""


def _prompt_content(content: Any) -> Any:
    """Return the text content of an item in OpenAI's older form."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "text", "text": part["text"]} if _is_text(part) else {"type": "other"}
        for part in content
    ]


def _is_text(part: dict[str, Any]) -> bool:
    return part.get("type") in ("input_text", "output_text") and isinstance(part.get("text"), str)


def _claims(path: bytes, headers: Headers) -> bool:  # noqa: ARG001
    return (path + b"/").startswith(b"/v1/responses/")


OPENAI_RESPONSES = Dialect(
    name=NAME,
    setting="responses",
    account_headers=OPENAI_CHAT.account_headers,
    models=OPENAI_CHAT.models,
    path_below_version="/responses",
    text_fields=frozenset({"delta"}),
    reasoning_field=SUMMARY,
    marks_reasoning=True,
    logprobs=OPENAI_CHAT.logprobs,
    mark_cache=add_cache_key,
    limit_headers=OPENAI_CHAT.limit_headers,
    apply_quirks=apply_quirks,
    heartbeat=b": waiting\n\n",
    claims=_claims,
    count=CountForm(
        re.compile(rb"/v1/responses/input_tokens"),
        lambda tokens: {"object": "response.input_tokens", "input_tokens": tokens},
    ),
    paths=("/v1/responses",),
    names_answers=True,
    known_id=known_id,
    echo=echo,
    beside_text=beside_text,
    contradicts=contradicts,
    key=KeyForm(
        fields=_FIELDS,
        canonical=_canonical,
        headers=OPENAI_CHAT.key.headers,
        shared=SharedForm(
            OPENAI_CHAT.name, b"/v1/responses", OPENAI_CHAT.paths[0].encode(), _as_chat
        ),
    ),
    form=_ItemsForm(),
    parse_request=parse_request,
    read_request=read_request,
    write_request=write_request,
    shows_reasoning=shows_reasoning,
    tokens=_tokens,
    usage=_usage,
    decoder=ResponsesDecoder,
    decode_body=decode_body,
    encoder=_encoder,
    write_body=write_body,
    render=render,
    new_id=lambda: OWN + random_bytes(16).hex(),
    error_body=error_body,
    error_frame=error_frame,
)
