"""One small call to each upstream, to check its key, its model and its speed.

The call takes the same path as every request: the same connection, translation and headers.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from headstart.config.providers import model_at, model_table
from headstart.config.strategies import strategy_of
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.registry import BY_SETTING
from headstart.errors import RequestError, UpstreamError
from headstart.factory.context import clock
from headstart.factory.upstreams import open_upstreams
from headstart.middleware.upstreams.accounting import UpstreamStates
from headstart.policies.routing.failures import FailureKind, classify, failure_of
from headstart.types import (
    Call,
    ErrorReported,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    new_ulid,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.interfaces import Upstream
    from headstart.settings import Settings, UpstreamSettings
    from headstart.types import Headers, StreamEvent

LIMIT_S = 10.0
"""The time for one upstream, with the list of its models."""
_SHOWN = 5
_LIST_BYTES = 4 * 1024 * 1024
_CONTENT = (TextDelta, ReasoningDelta, RefusalDelta, ToolCallDelta, Finished)
_WILD = frozenset("*?[")
_HEADERS: Headers = ((b"content-type", b"application/json"),)


class LiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one upstream."""

    upstream: str
    model: str | None
    ttft_s: float | None = None
    error: str | None = None
    """The kind of the failure and the provider's message; None: it answered."""
    models: tuple[str, ...] = ()
    """Some models of the upstream, if it does not know the requested model."""


async def ask_all(settings: Settings) -> list[LiveResult]:
    """Ask all upstreams at the same time; return the results in the order of the settings."""
    results: dict[str, LiveResult] = {}

    async def ask(upstream: Upstream, chosen: UpstreamSettings) -> None:
        results[chosen.name] = await ask_one(upstream, chosen, model_for(chosen, settings))

    async with AsyncExitStack() as stack:
        opened = await open_upstreams(settings, UpstreamStates(), stack)
        async with anyio.create_task_group() as group:
            for each in opened:
                group.start_soon(ask, each.http, each.settings)
    return [results[each.name] for each in settings.upstream]


def model_for(upstream: UpstreamSettings, settings: Settings) -> str | None:
    """Return the model to ask for: a route's, else one of the user's aliases, else the cheapest."""
    for route in settings.route:
        pattern = route.match.model
        if upstream.name in strategy_of(route).members and not _WILD & set(pattern):
            return model_at(upstream, pattern)
    known = model_table().names_at(upstream.preset or "")
    own = [real for alias, real in upstream.models.items() if known.get(alias) != real]
    return own[0] if own else model_table().cheapest(upstream.preset or "")


async def ask_one(upstream: Upstream, chosen: UpstreamSettings, model: str | None) -> LiveResult:
    """Ask for one token of ``model``, or of the first that is listed. Errors are results."""
    listed: tuple[str, ...] = ()
    ttft_s = None
    error: str | None = f"{FailureKind.TIMEOUT}: no answer within {LIMIT_S:g} s"
    with anyio.move_on_after(LIMIT_S):
        try:
            if model is None:
                listed = await _models(upstream, chosen.speaks)
                model = next(iter(listed), None)
            if model is None:
                error = f"{FailureKind.NO_SUCH_MODEL}: none is known; set one in models"
            else:
                ttft_s, error = await _first_token(upstream, model)
            if error is not None and error.startswith(FailureKind.NO_SUCH_MODEL):
                listed = listed or await _models(upstream, chosen.speaks)
        except UpstreamError as failed:
            error = error_line(failure_of(failed, clock()).kind, str(failed))
        except RequestError as refused:  # the upstream's dialect cannot express the call
            error = error_line(FailureKind.BAD_REQUEST, str(refused))
    return LiveResult(
        upstream=chosen.name,
        model=model,
        ttft_s=ttft_s,
        error=error,
        models=() if error is None else listed[:_SHOWN],
    )


def error_line(kind: str, words: str) -> str:
    """Return the kind and the provider's message in one short line."""
    return f"{kind}: {' '.join(words.split())[:200]}"


async def _first_token(upstream: Upstream, model: str) -> tuple[float | None, str | None]:
    """Return time to first token and None, or None and the error. Raises UpstreamError."""
    call = chat_call("check", model, [{"role": "user", "content": "Hi"}], max_tokens=1)
    began = time.perf_counter()
    async with await upstream.send(call) as reply:
        async for piece in reply.pieces:
            for event in piece.events:
                if isinstance(event, ErrorReported):
                    return None, _reported(event, reply.status, reply.headers)
                if isinstance(event, _CONTENT) and not _is_empty(event):
                    return time.perf_counter() - began, None
    empty = FailureKind.EMPTY if reply.status < 400 else FailureKind.SERVER
    return None, error_line(empty, f"status {reply.status} without an answer")


def _is_empty(event: StreamEvent) -> bool:
    return isinstance(event, TextDelta) and not event.text


def _reported(event: ErrorReported, status: int, headers: Headers) -> str:
    failure = classify(
        event.status or status,
        code=event.code,
        message=event.message,
        headers=headers,
        now=clock(),
    )
    return error_line(failure.kind, event.message)


async def _models(upstream: Upstream, dialect: str) -> tuple[str, ...]:
    """Return the models that an upstream lists, if any. Raises UpstreamError."""
    form = BY_SETTING[dialect].models
    if form is None:
        return ()
    call = Call(
        id=new_ulid(clock),
        method="GET",
        path=form.path,
        query_string=form.query,
        headers=(),
        body=b"",
        dialect="",
        endpoint="check",
    )
    body = b""
    async with await upstream.send(call) as reply:
        async for piece in reply.pieces:
            body += piece.data
            if len(body) > _LIST_BYTES:
                return ()
    try:
        return tuple(each.id for each in form.read(msgspec.json.decode(body)))
    except msgspec.DecodeError:
        return ()


def chat_call(
    endpoint: str, model: str, messages: Sequence[Any], max_tokens: int, **fields: Any
) -> Call:
    """Return a streamed chat in OpenAI's dialect; ``endpoint`` names its purpose in the books."""
    dialect = OPENAI_CHAT
    document = {
        "model": model,
        "messages": messages,
        "max_completion_tokens": max_tokens,
        "stream": True,
        **fields,
    }
    body = msgspec.json.encode(document)
    return Call(
        id=new_ulid(clock),
        method="POST",
        path=b"/v1/chat/completions",
        query_string=b"",
        headers=_HEADERS,
        body=body,
        dialect=dialect.name,
        endpoint=endpoint,
        request=dialect.parse_request(body),
    )
