"""The dialect of OpenAI Chat Completions and of the many providers that speak it."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from headstart.dialects.dialect import (
    Dialect,
    KeyForm,
    LimitHeaders,
    ListedModel,
    LogprobsForm,
    ModelsForm,
    as_text,
    field_uses,
    listed_objects,
)
from headstart.dialects.openai_answers import (
    ChatDecoder,
    ChatEncoder,
    decode_body,
    error_body,
    error_frame,
    render,
    usage_tokens,
    write_body,
)
from headstart.dialects.openai_requests import (
    NAME,
    add_usage,
    parse_request,
    read_request,
    write_request,
)
from headstart.dialects.request_form import RequestForm, add_cache_key, canonical_body
from headstart.dialects.requests import apply_quirks
from headstart.types import ChatRequest, Headers, random_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.attempts import Tokens


def _usage(tokens: Tokens) -> dict[str, Any]:
    written = {"cache_write_tokens": tokens.cache_write} if tokens.cache_write else {}
    return {
        "prompt_tokens": tokens.prompt,
        "completion_tokens": tokens.completion,
        "total_tokens": tokens.prompt + tokens.completion,
        "prompt_tokens_details": {"cached_tokens": tokens.cached, **written},
        "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
    }


def _shows_reasoning(request: ChatRequest) -> bool:  # noqa: ARG001 - clients need not ask
    return True


def _asks_functions(request: ChatRequest) -> bool:
    return bool(request.document.get("functions")) and not request.document.get("tools")


def _claims(path: bytes, headers: Headers) -> bool:  # noqa: ARG001
    """Return True: a request that no other dialect claims is meant for OpenAI."""
    return True


def _as_it_is(logprobs: dict[str, Any]) -> dict[str, Any]:
    return logprobs


_FIELDS = field_uses(
    keyed=(
        "model messages audio frequency_penalty presence_penalty logit_bias modalities moderation "
        "parallel_tool_calls reasoning_effort response_format seed stop temperature tool_choice "
        "tools top_p verbosity web_search_options functions function_call"
    ),
    ranged="n logprobs top_logprobs max_tokens max_completion_tokens",
    ignored=(
        "stream stream_options metadata prediction prompt_cache_key prompt_cache_options "
        "prompt_cache_retention safety_identifier service_tier store user cache_control cache "
        "request_id rid"
    ),
)
"""``user`` and ``safety_identifier`` join the scope instead. ``cache`` is litellm's own field, and
``request_id`` (vLLM) and ``rid`` (SGLang) name one call."""


def _time_left(now: float, then: float) -> str:
    minutes, seconds = divmod(max(0, math.ceil(then - now)), 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


_MODELS_FORM = "openai"


def _read_models(document: Any) -> list[ListedModel]:
    return [
        ListedModel(
            id=each["id"],
            created=created if isinstance(created := each.get("created"), int) else 0,
            title=as_text(each.get("display_name") or each.get("name")) or "",
            form=_MODELS_FORM,
            fields=each,
        )
        for each in listed_objects(document, "data")
        if as_text(each.get("id"))
    ]


def _write_model(model: ListedModel) -> dict[str, Any]:
    return {
        **model.fields_in(_MODELS_FORM),
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": model.owner,
    }


def _write_models(models: Sequence[ListedModel]) -> dict[str, Any]:
    return {"object": "list", "data": list(map(_write_model, models))}


_MODELS = ModelsForm(_MODELS_FORM, b"/v1/models", b"", _read_models, _write_model, _write_models)


OPENAI_CHAT = Dialect(
    name=NAME,
    setting="openai",
    includes=("completions",),
    account_headers=frozenset({b"openai-organization", b"openai-project"}),
    models=_MODELS,
    path_below_version="/chat/completions",
    text_fields=frozenset({"content", "reasoning", "reasoning_content"}),
    logprobs=LogprobsForm(read=_as_it_is, write=_as_it_is),
    logprobs_field="logprobs",
    asks_functions=_asks_functions,
    mark_cache=add_cache_key,
    limit_headers=LimitHeaders("x-ratelimit-{part}-{unit}", _time_left),
    apply_quirks=partial(apply_quirks, dialect=NAME),
    claims=_claims,
    heartbeat=b": waiting\n\n",
    paths=("/v1/chat/completions",),
    key=KeyForm(
        fields=_FIELDS,
        canonical=canonical_body,
        headers=frozenset({b"openai-organization", b"openai-project"}),
    ),
    form=RequestForm(),
    parse_request=parse_request,
    read_request=read_request,
    write_request=write_request,
    shows_reasoning=_shows_reasoning,
    add_usage=add_usage,
    tokens=usage_tokens,
    usage=_usage,
    decoder=ChatDecoder,
    decode_body=decode_body,
    encoder=ChatEncoder,
    write_body=write_body,
    render=render,
    new_id=lambda: "chatcmpl-" + random_bytes(12).hex(),
    error_body=error_body,
    error_frame=error_frame,
)
