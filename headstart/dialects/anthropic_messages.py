"""The dialect of Anthropic's Messages."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.attempts import Tokens
from headstart.dialects.anthropic_answers import (
    THINKING,
    MessagesDecoder,
    MessagesEncoder,
    decode_body,
    error_body,
    error_frame,
    render,
    write_body,
)
from headstart.dialects.anthropic_requests import (
    NAME,
    as_raw_predict,
    parse_request,
    read_request,
    write_request,
)
from headstart.dialects.dialect import (
    CountForm,
    Dialect,
    KeyForm,
    LimitHeaders,
    ListedModel,
    ModelsForm,
    as_count,
    as_text,
    field_uses,
    listed_objects,
)
from headstart.dialects.request_form import (
    RequestForm,
    add_part,
    as_tool_call,
    canonical_body,
    mark_anthropic,
    without_attribution,
)
from headstart.dialects.requests import apply_quirks
from headstart.types import ChatRequest, Headers, random_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.canonical_request import Quirks
    from headstart.dialects.request_form import PromptMessage


def _tokens(usage: dict[str, Any]) -> Tokens:
    """Return the counts of a usage object. Its input tokens leave out cached tokens."""
    cached = as_count(usage.get("cache_read_input_tokens"))
    written = as_count(usage.get("cache_creation_input_tokens"))
    lives = usage.get("cache_creation")
    hour = lives.get("ephemeral_1h_input_tokens") if isinstance(lives, dict) else 0
    return Tokens(
        prompt=as_count(usage.get("input_tokens")) + cached + written,
        completion=as_count(usage.get("output_tokens")),
        cached=cached,
        cache_write=written,
        hour_write=min(written, as_count(hour)),
    )


def _usage(tokens: Tokens) -> dict[str, Any]:
    lives: dict[str, Any] = {}
    if hour := tokens.hour_write:
        lives["cache_creation"] = {
            "ephemeral_5m_input_tokens": tokens.cache_write - hour,
            "ephemeral_1h_input_tokens": hour,
        }
    return {
        **lives,
        "input_tokens": max(0, tokens.prompt - tokens.cached - tokens.cache_write),
        "cache_creation_input_tokens": tokens.cache_write,
        "cache_read_input_tokens": tokens.cached,
        "output_tokens": tokens.completion,
    }


def _shows_reasoning(request: ChatRequest) -> bool:
    """Tell whether the request asks for thinking, and to see it."""
    thinking = request.document.get("thinking")
    return (
        isinstance(thinking, dict)
        and thinking.get("type") in ("enabled", "adaptive")
        and thinking.get("display") != "omitted"
    )


def _encoder(id: str, created: int, *, include_usage: bool) -> MessagesEncoder:  # noqa: ARG001
    """Return a writer for one stream. It always reports the usage, and never the time."""
    return MessagesEncoder(id)


def _claims(path: bytes, headers: Headers) -> bool:
    """Tell whether a request is for Anthropic.

    The header counts, too: OpenAI has the same ``/v1/models``.
    """
    return (path + b"/").startswith(b"/v1/messages/") or any(
        name == b"anthropic-version" for name, _ in headers
    )


def _date(now: float, then: float) -> str:  # noqa: ARG001
    return datetime.fromtimestamp(then, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_FIELDS = field_uses(
    keyed=(
        "model messages system container diagnostics context_management inference_geo mcp_servers "
        "output_config output_format stop_sequences temperature thinking thread tool_choice tools "
        "top_k top_p"
    ),
    ranged="max_tokens",
    ignored="stream metadata cache_control service_tier speed cache",
)
"""``metadata.user_id`` joins the scope instead. ``cache`` is litellm's own field."""

_KEYED_HEADERS = frozenset(
    b"anthropic-version anthropic-beta anthropic-user-profile-id anthropic-workspace-id".split()
)


def _canonical(body: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return settings and messages. A string means the same as a list of one text block."""
    return canonical_body(body, string_is_one_text=True)


def _apply_quirks(
    body: bytes, request: ChatRequest, quirks: Quirks
) -> tuple[bytes, tuple[str, ...]]:
    body, dropped = apply_quirks(body, request, quirks, NAME)
    if quirks.attribution or request.duplicate_keys:
        return body, dropped
    document = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    system = msgspec.json.decode(document.get("system", b"null"))
    left = without_attribution(system)
    if left is system:
        return body, dropped
    document["system"] = msgspec.Raw(msgspec.json.encode(left))
    if not left:
        del document["system"]
    return msgspec.json.encode(document), (*dropped, "attribution")


class _MessagesForm(RequestForm):
    always_limited = True
    takes_prediction = False
    joins_results = True
    work_fields = RequestForm.work_fields | {"thread"}

    def work_beside_text(self, document: dict[str, Any]) -> str | None:
        """Return ``conversation`` if the provider keeps the conversation, or what others do.

        The next request names this answer by its id, which only the provider knows.
        """
        if document.get("thread") is not None:
            return "conversation"
        return super().work_beside_text(document)

    def with_system_text(self, document: dict[str, Any], text: str) -> dict[str, Any] | None:
        system = self._extended_system(document.get("system"), text)
        return None if system is None else {**document, "system": system}

    def system_fields(self, document: dict[str, Any]) -> tuple[object, object]:
        return without_attribution(document.get("system")), None

    def answer_message(self, answer: dict[str, Any]) -> PromptMessage:
        return {"role": "assistant", "content": answer["content"]}

    def system(self, document: dict[str, Any]) -> list[PromptMessage]:
        return [{"role": "system", "content": document.get("system")}]

    def split(self, message: PromptMessage, previous: PromptMessage) -> list[PromptMessage]:  # noqa: ARG002
        blocks, role = message.get("content"), message.get("role")
        if not isinstance(blocks, list) or role not in {"user", "assistant"}:
            return [message]
        if role == "assistant":
            calls = [
                as_tool_call(each["id"], each) for each in blocks if each.get("type") == "tool_use"
            ]
            return [{**message, "tool_calls": calls}]
        split: list[PromptMessage] = []
        for block in blocks:
            if block.get("type") == "tool_result":
                result = {
                    "role": "tool",
                    "tool_call_id": block["tool_use_id"],
                    "content": block.get("content"),
                    "is_error": block.get("is_error"),
                }
                split.append(result)
            else:
                add_part(split, block)
        return split

    def join(self, message: PromptMessage, sent: Sequence[PromptMessage]) -> PromptMessage:
        if not isinstance(message["content"], list):
            return sent[0]
        blocks: list[Any] = []
        for each in sent:
            block = message["content"][len(blocks)]
            if each["role"] == "user":
                blocks += each["content"]
            elif each["content"] is block.get("content"):
                blocks.append(block)
            else:
                blocks.append({**block, "content": each["content"]})
        return {**message, "content": blocks}


_MODELS_FORM = "anthropic"


def _read_models(document: Any) -> list[ListedModel]:
    return [
        ListedModel(
            id=each["id"],
            created=_unix(each.get("created_at")),
            title=as_text(each.get("display_name")) or "",
            form=_MODELS_FORM,
            fields=each,
        )
        for each in listed_objects(document, "data")
        if as_text(each.get("id"))
    ]


def _unix(time: Any) -> int:
    try:
        return int(datetime.fromisoformat(time).timestamp())
    except (TypeError, ValueError):
        return 0


def _write_model(model: ListedModel) -> dict[str, Any]:
    created = datetime.fromtimestamp(model.created, UTC)
    return {
        **model.fields_in(_MODELS_FORM),
        "type": "model",
        "id": model.id,
        "display_name": model.title or model.id,
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "owned_by": model.owner,
    }


def _write_models(models: Sequence[ListedModel]) -> dict[str, Any]:
    return {
        "data": list(map(_write_model, models)),
        "has_more": False,
        "first_id": models[0].id if models else None,
        "last_id": models[-1].id if models else None,
    }


_MODELS = ModelsForm(
    _MODELS_FORM, b"/v1/models", b"limit=1000", _read_models, _write_model, _write_models
)


ANTHROPIC_MESSAGES = Dialect(
    name=NAME,
    setting="anthropic",
    key_header=(b"x-api-key", b""),
    required_headers={"anthropic-version": "2023-06-01"},
    models=_MODELS,
    count=CountForm(
        re.compile(rb"/v1/messages/count_tokens"), lambda tokens: {"input_tokens": tokens}
    ),
    text_fields=frozenset({"text", "thinking"}),
    reasoning_field=THINKING,
    marks_reasoning=True,
    own_statuses=frozenset({529}),
    tells_prompt_first=True,
    mark_cache=mark_anthropic,
    limit_headers=LimitHeaders("anthropic-ratelimit-{unit}-{part}", _date),
    apply_quirks=_apply_quirks,
    claims=_claims,
    request_id_header=b"request-id",
    paths=("/v1/messages",),
    key=KeyForm(fields=_FIELDS, canonical=_canonical, headers=_KEYED_HEADERS),
    form=_MessagesForm(),
    parse_request=parse_request,
    read_request=read_request,
    write_request=write_request,
    raw_predict=as_raw_predict,
    version_header="anthropic-version",
    shows_reasoning=_shows_reasoning,
    tokens=_tokens,
    usage=_usage,
    decoder=MessagesDecoder,
    decode_body=decode_body,
    encoder=_encoder,
    write_body=write_body,
    render=render,
    new_id=lambda: "msg_" + random_bytes(12).hex(),
    call_prefix="toolu_",
    error_body=error_body,
    error_frame=error_frame,
)
