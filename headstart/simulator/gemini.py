"""Gemini on the wire: CRLF frames without names, whole function calls, usage that accumulates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.simulator.gemini_request import read_gemini
from headstart.simulator.likelihood import likelihoods
from headstart.simulator.reply import Piece
from headstart.simulator.wire import RefusedKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.simulator.chat_request import ChatBody
    from headstart.simulator.generation import Alternative
    from headstart.simulator.incoming import Incoming
    from headstart.simulator.limit_headers import LimitForm
    from headstart.simulator.wire import Answer, Pace
    from headstart.types import Headers

_FINISHES = {
    "stop": "STOP",
    "length": "MAX_TOKENS",
    "tool_calls": "STOP",
    "content_filter": "SAFETY",
}
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
_SIGNATURE = "c2ltdWxhdGVkLXNpZ25hdHVyZQ=="
_encode = msgspec.json.encode


class Gemini:
    """The dialect of ``…/models/{model}:generateContent`` and ``:streamGenerateContent``."""

    endpoint = "gemini"
    limit_headers: LimitForm = "none"
    refused_key = RefusedKey(
        400, "API key not valid. Please pass a valid API key.", code="api_key_invalid"
    )
    keep_alive = b""
    broken_event = b'data: {"candidates": [{"content": {"parts": [{"text":\r\n\r\n'

    def read(self, incoming: Incoming) -> ChatBody:
        """Read a request into the common terms; the path says model and mode. Raises BadRequest."""
        return read_gemini(incoming)

    def caches_prefix(self, body: bytes) -> bool:  # noqa: ARG002 - it always does
        """Gemini caches long prefixes unasked."""
        return True

    def whole(self, answer: Answer) -> bytes:
        """Return one ``GenerateContentResponse``."""
        candidates = [
            _candidate(place, list(_parts(said)), said.finish) | _logprobs(said, answer)
            for place, said in enumerate(answer.generation.alternatives)
        ]
        return _encode(_response(answer, candidates, answer.completion_tokens))

    def events(self, answer: Answer, pace: Pace, incoming: Incoming) -> Iterator[Piece]:
        """Yield a response a token; the last one finishes. Without ``alt=sse``, a JSON array."""
        chunks = list(_chunks(answer, pace))
        if b"alt=sse" in incoming.query:
            for at_s, body, delta in chunks:
                yield Piece(at_s, b"data: %b\r\n\r\n" % body, delta=delta)
            return
        for place, (at_s, body, delta) in enumerate(chunks):
            yield Piece(at_s, (b",\r\n" if place else b"[") + body, delta=delta)
        yield Piece(chunks[-1][0], b"]", terminal=True)

    def error(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> bytes:
        """Return ``{"error": {code, message, status, details}}``; a detail gives our ``code``."""
        name = type or _STATUSES.get(status, "UNKNOWN")
        error: dict[str, Any] = {"code": status, "message": message, "status": name}
        details: list[dict[str, Any]] = []
        if code is not None:
            reason = {"@type": _ERROR_INFO, "reason": code.upper(), "domain": "googleapis.com"}
            details.append(reason)
        if retry_after_s is not None:
            details.append({"@type": _RETRY_INFO, "retryDelay": f"{retry_after_s:g}s"})
        if details:
            error["details"] = details
        return _encode({"error": error})

    def error_event(self, message: str, code: str | None, *, named: bool) -> bytes:  # noqa: ARG002 - it has neither
        """Return the error object as the last frame."""
        return b"data: %b\r\n\r\n" % self.error(500, message)

    def headers(self, answer_id: str, ttft_s: float) -> Headers:  # noqa: ARG002 - the body has the id
        """Return the time it took; the id is in the body."""
        return ((b"server-timing", b"gfet4t7; dur=%d" % (ttft_s * 1000)),)


def _response(
    answer: Answer, candidates: list[dict[str, Any]], completion_tokens: int
) -> dict[str, Any]:
    thoughts = min(answer.reasoning_tokens, completion_tokens)
    usage: dict[str, Any] = {
        "promptTokenCount": answer.prompt_tokens,
        "candidatesTokenCount": completion_tokens - thoughts,
        "totalTokenCount": answer.prompt_tokens + completion_tokens,
    }
    if thoughts:
        usage["thoughtsTokenCount"] = thoughts
    if answer.cached_tokens:
        usage["cachedContentTokenCount"] = answer.cached_tokens
    return {
        "candidates": candidates,
        "usageMetadata": usage,
        "modelVersion": answer.model,
        "responseId": answer.id,
    }


def _candidate(
    place: int, parts: list[dict[str, Any]], finish: str | None = None
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": place}
    if finish is not None:
        candidate["finishReason"] = _FINISHES[finish]
    return candidate


def _parts(said: Alternative) -> Iterator[dict[str, Any]]:
    if said.reasoning:
        yield {"text": "".join(said.reasoning), "thought": True}
    if said.tokens:
        yield {"text": said.text}
    for call in said.tool_calls:
        arguments = msgspec.json.decode(call.arguments)
        yield {
            "functionCall": {"name": call.name, "args": arguments},
            "thoughtSignature": _SIGNATURE,
        }


def _chunks(answer: Answer, pace: Pace) -> Iterator[tuple[float, bytes, bool]]:
    """Yield when each response is due, its body, and whether it says something.

    The usage of each counts what was said up to it; a function call is due when its last token is.
    """
    said_tokens, at_s = 0, pace.ttft_s
    alternatives = answer.generation.alternatives
    for place, said in enumerate(alternatives):
        for tokens, part in _streamed_parts(said):
            said_tokens += tokens
            at_s = pace.at_s(said_tokens - 1)
            body = _response(answer, [_candidate(place, [part])], said_tokens)
            yield at_s, _encode(body), True
    for place, said in enumerate(alternatives):
        candidate = _candidate(place, [{"text": ""}], said.finish) | _logprobs(said, answer)
        yield at_s, _encode(_response(answer, [candidate], said_tokens)), False


def _streamed_parts(said: Alternative) -> Iterator[tuple[int, dict[str, Any]]]:
    for token in said.reasoning:
        yield 1, {"text": token, "thought": True}
    for token in said.tokens:
        yield 1, {"text": token}
    calls = msgspec.structs.replace(said, tokens=(), reasoning=())
    for call, part in zip(said.tool_calls, _parts(calls), strict=True):
        yield len(call.fragments), part


def _logprobs(said: Alternative, answer: Answer) -> dict[str, Any]:
    if not answer.chat.logprobs:
        return {}
    top = answer.chat.top_logprobs or 0
    listed = likelihoods(answer.generation.class_id, said.tokens, top)
    chosen = [{"token": likely.token, "logProbability": likely.logprob} for likely in listed]
    ranked = [
        {"candidates": [{"token": token, "logProbability": value} for token, value in row.ranked]}
        for row in listed
    ]
    mean = sum(likely.logprob for likely in listed) / max(len(listed), 1)
    return {
        "avgLogprobs": mean,
        "logprobsResult": {"chosenCandidates": chosen, "topCandidates": ranked if top else []},
    }
