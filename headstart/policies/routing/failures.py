"""The consequences of a failed call: a retry, another upstream, a charge against the provider.

The tables below have the providers' error texts; ``docs/failover.md`` explains them row by row.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from headstart.errors import (
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from headstart.policies.routing.rate_limits import exhausted_until_s, message_wait_s, retry_after_s
from headstart.types import Frozen

if TYPE_CHECKING:
    from headstart.errors import UpstreamError
    from headstart.types import Headers

# What providers write into their errors. All patterns are for lower-case text.
_CONTEXT_TEXTS = re.compile(
    r"context[ _](?:length|window|size|limit)"
    r"|maximum (?:prompt|input|model|sequence) length"
    r"|(?:prompt|input|request|conversation) (?:is |was )?too long"
    r"|too many (?:input |prompt )?tokens"
    r"|token count\b.{0,80}\bexceeds"
    r"|input tokens exceed"
    r"|tokens \+ .?max_new_tokens.? must be"
    r"|reduce the length of (?:the|your) (?:messages|prompt|input)"
)
_POLICY_TEXTS = re.compile(
    r"content (?:management |usage )?polic|content[ _-]filter|safety system|usage polic"
    r"|responsible ?ai|content exists risk|(?:was|been|input) flagged|requires moderation"
    r"|inappropriate content|violat\w+ .{0,60}(?:polic|guidelines|terms)"
)
_MODEL_TEXTS = re.compile(
    r"\bmodels?[ /:]\S{1,200} (?:does not exist|(?:is |was )?not found|has been decommissioned)"
    r"|\b(?:invalid|unknown) model\b|\bnot a valid model\b"
    r"|do(?:es)? not have access to (?:the )?model|unable to access (?:model|non-serverless)"
)
_KEY_TEXTS = re.compile(
    r"(?:invalid|incorrect|expired|disabled) api[ -]?key|api[ -]?key (?:is )?(?:not valid|invalid|"
    r"expired)|location is not supported"
)
_PLAN_TEXTS = re.compile(
    r"\bplan (?:does not|doesn't|lacks)|not (?:available|included|supported) (?:on|in|for|with|by)"
    r" (?:your|the) (?:current |free )?(?:plan|tier|subscription)|\blimit: 0(?![\d.])"
)
_QUOTA_TEXTS = re.compile(
    r"credit balance|insufficient (?:balance|credit|quota|fund)|exceeded your current quota"
    r"|out of credits|spend(?:ing)? limit|more credits|monthly (?:limit|quota)"
)
_OVERLOAD_TEXTS = re.compile(r"overloaded|at capacity|capacity exceeded|over capacity")
_TOO_LARGE_TEXTS = re.compile(
    r"request too large for model|request too large for \S+ .{0,80}tokens per"
)


def read_error(body: bytes) -> tuple[tuple[str, ...], str]:
    """Return the codes and the message of an error document in any dialect."""
    try:
        document: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return (), ""
    if isinstance(document, list) and document:
        document = document[0]
    error = document.get("error", document) if isinstance(document, dict) else document
    if not isinstance(error, dict):
        return (), error if isinstance(error, str) else ""
    codes = tuple(
        str(error[name])
        for name in ("code", "type", "status")
        if isinstance(error.get(name), str | int)
    )
    message = error.get("message", error.get("detail"))
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        # Gemini's ErrorInfo.
        if isinstance(detail, dict) and isinstance(detail.get("reason"), str):
            codes = (*codes, detail["reason"])
    return codes, message if isinstance(message, str) else ""


_LONG_CLOSURE_S = 300.0
"""People have to put right a wrong key, an unpaid bill or a missing model."""
_SHORT_CLOSURE_S = 1.0
"""For a rate limit that does not say when it ends. The breaker doubles it while the limit lasts."""
_MESSAGE_CHARACTERS = 2000
"""So many characters of a message are searched."""


class FailureKind(StrEnum):
    """Why a call failed. The values are metric labels and kinds of booked attempts."""

    RATE_LIMITED = "rate-limited"
    QUOTA = "quota"
    OVERLOADED = "overloaded"
    SERVER = "server-error"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    SILENT = "silent"
    """No first token in time."""
    EMPTY = "empty"
    PROTOCOL = "protocol"
    FILTERED = "filtered"
    """The provider's filter stopped an answer. Another provider's filter may let it pass."""
    UNAUTHORIZED = "unauthorized"
    NO_SUCH_MODEL = "no-such-model"
    CONTEXT_TOO_LONG = "context-too-long"
    CONTENT_POLICY = "content-policy"
    """The request was refused because of its content."""
    BAD_REQUEST = "bad-request"
    STALLED = "stalled"
    CUT = "cut"


class Failure(Frozen, kw_only=False):
    """What to do about a failed call."""

    kind: FailureKind
    retry_here: bool = False
    """One more try on the same target may help."""
    fail_over: bool = True
    """Another target may help. False: the fault is the caller's, who gets the provider's answer."""
    charges: bool = False
    """It counts against the circuit breaker."""
    closes_s: float | None = None
    """Close (upstream, model, key) at once, for this long."""
    retry_after_s: float | None = None
    """The provider asks not to be asked before."""

    @property
    def larger_context(self) -> bool:
        """Only a target with a larger context can help."""
        return self.kind is FailureKind.CONTEXT_TOO_LONG


_FAILURES = {
    each.kind: each
    for each in (
        Failure(FailureKind.RATE_LIMITED, retry_here=True, closes_s=_SHORT_CLOSURE_S),
        Failure(FailureKind.QUOTA, closes_s=_LONG_CLOSURE_S),
        Failure(FailureKind.OVERLOADED, retry_here=True, charges=True),
        Failure(FailureKind.SERVER, retry_here=True, charges=True),
        Failure(FailureKind.UNREACHABLE, retry_here=True, charges=True),
        Failure(FailureKind.TIMEOUT, charges=True),
        Failure(FailureKind.SILENT, charges=True),
        Failure(FailureKind.EMPTY, retry_here=True, charges=True),
        Failure(FailureKind.PROTOCOL, retry_here=True, charges=True),
        Failure(FailureKind.FILTERED),
        Failure(FailureKind.UNAUTHORIZED, closes_s=_LONG_CLOSURE_S),
        Failure(FailureKind.NO_SUCH_MODEL, closes_s=_LONG_CLOSURE_S),
        Failure(FailureKind.CONTEXT_TOO_LONG),
        Failure(FailureKind.CONTENT_POLICY, fail_over=False),
        Failure(FailureKind.BAD_REQUEST, fail_over=False),
        Failure(FailureKind.STALLED, charges=True),
        Failure(FailureKind.CUT, retry_here=True, charges=True),
    )
}

_LONGEST_WAITS_S = {
    # One call an hour costs little, even if the header asks for a longer wait.
    FailureKind.RATE_LIMITED: 3600.0,
    # The length of an outage is unknown, and a recovery must be noticed soon.
    FailureKind.OVERLOADED: 30.0,
    FailureKind.SERVER: 30.0,
    FailureKind.TIMEOUT: 30.0,
}

_CODES = {
    code: kind
    for kind, codes in {
        FailureKind.QUOTA: "insufficient_quota billing_error billing_not_active"
        " billing_hard_limit_reached insufficient_balance insufficient_credits",
        FailureKind.RATE_LIMITED: "rate_limit_exceeded rate_limit_error resource_exhausted"
        " too_many_requests",
        FailureKind.OVERLOADED: "overloaded_error engine_overloaded unavailable"
        " service_unavailable server_overloaded capacity_exceeded service_tier_capacity_exceeded",
        FailureKind.SERVER: "server_error api_error internal_server_error internal internal_error",
        FailureKind.TIMEOUT: "timeout_error deadline_exceeded",
        FailureKind.UNAUTHORIZED: "invalid_api_key authentication_error permission_error"
        " unauthenticated permission_denied api_key_invalid wrong_api_key account_deactivated",
        FailureKind.NO_SUCH_MODEL: "model_not_found model_not_active model_decommissioned"
        " model_not_available deploymentnotfound",
        FailureKind.CONTEXT_TOO_LONG: "context_length_exceeded context_window_exceeded"
        " model_context_window_exceeded exceed_context_size_error input_too_long",
        FailureKind.CONTENT_POLICY: "content_policy_violation content_filter"
        " responsibleaipolicyviolation data_inspection_failed prohibited_content",
        # The model's slip, not the caller's: Groq refuses what its own model wrote.
        FailureKind.PROTOCOL: "tool_use_failed json_validate_failed",
    }.items()
    for code in codes.split()
}

_STATUSES = {
    402: _FAILURES[FailureKind.QUOTA],
    401: _FAILURES[FailureKind.UNAUTHORIZED],
    403: _FAILURES[FailureKind.UNAUTHORIZED],
    # A missing path or resource: no reason to think that the model is gone.
    404: Failure(FailureKind.NO_SUCH_MODEL),
    408: Failure(FailureKind.TIMEOUT, retry_here=True, charges=True),
    409: Failure(FailureKind.SERVER, retry_here=True),
    425: Failure(FailureKind.SERVER, retry_here=True),
    429: _FAILURES[FailureKind.RATE_LIMITED],
    498: _FAILURES[FailureKind.OVERLOADED],
    503: _FAILURES[FailureKind.OVERLOADED],
    504: Failure(FailureKind.TIMEOUT, retry_here=True, charges=True),
    529: _FAILURES[FailureKind.OVERLOADED],
}


def failure(kind: FailureKind) -> Failure:
    """Return what to do about a failure that came without a status."""
    return _FAILURES[kind]


def classify(
    status: int, *, code: str | None, message: str, headers: Headers, now: float
) -> Failure:
    """Judge an error answer. ``code`` is its code or type, ``now`` is in Unix seconds.

    This is also for an error inside a 200 answer: ``code`` and ``message`` are read first.
    """
    return _classify(status, (code,) if code else (), message, headers, now)


def failure_of(error: UpstreamError, now: float) -> Failure:
    """Judge an error that an upstream raised. ``now`` is in Unix seconds.

    An error may name its kind itself.
    """
    if error.kind is not None:
        return failure(FailureKind(error.kind))
    match error:
        case UpstreamRefused():
            codes, message = read_error(error.body)
            return _classify(
                error.status, (error.code, *codes), message or str(error), error.headers, now
            )
        case UpstreamUnavailable():
            return Failure(FailureKind.OVERLOADED, retry_after_s=error.retry_after_s)
        case UpstreamTimeout():
            return failure(FailureKind.TIMEOUT)
        case UpstreamProtocolError():
            return failure(FailureKind.PROTOCOL)
        case _:
            return failure(FailureKind.UNREACHABLE)


_ABOUT_RESOURCES = (403, 404, 405, 409, 410)
"""Statuses that tell a caller of a relayed path about the resource that it asked for."""


def fails_relayed(status: int, found: Failure) -> bool:
    """Tell whether an error is a failure of the upstream of a relayed call, or else its answer.

    Fewer errors are failures than for a chat call: many are about a file or a job.
    """
    if status in _ABOUT_RESOURCES:
        # Only if the error names the model, another upstream may have what is missing.
        return found.kind is FailureKind.NO_SUCH_MODEL and found is not _STATUSES[404]
    return found.fail_over or found.retry_here


def closing_relayed(found: Failure) -> Failure:
    """Return what a failure means to later relayed calls.

    A caller can ask for any path and any model, so a refusal must not close an upstream for others.
    """
    if found.kind in (FailureKind.UNAUTHORIZED, FailureKind.NO_SUCH_MODEL):
        return msgspec.structs.replace(found, closes_s=None)
    return found


def _classify(
    status: int, codes: tuple[str, ...], message: str, headers: Headers, now: float
) -> Failure:
    text = message[:_MESSAGE_CHARACTERS].lower()
    # OpenRouter and Gemini name the status as the code, also inside a stream that began with 200.
    numbers = [int(code) for code in codes if code.isdecimal() and len(code) == 3]
    status = next((number for number in numbers if 400 <= number < 600), status)
    wait_s = retry_after_s(headers, now)
    found = _judge(status, [code.lower() for code in codes], text, waits=wait_s is not None)
    if found.kind is FailureKind.RATE_LIMITED and found.closes_s is not None and wait_s is None:
        wait_s = exhausted_until_s(headers, now) or message_wait_s(text)
    return _asked(_timed(found, wait_s), headers)


def _judge(status: int, codes: list[str], text: str, *, waits: bool) -> Failure:
    kind = next((_CODES[code] for code in codes if code in _CODES), None)
    if kind is FailureKind.RATE_LIMITED or (kind is None and status in (403, 429)):
        return _limited(status, text, coded=kind is not None, waits=waits)
    if kind is not None:
        return failure(kind)
    if status in (400, 413, 422):
        return _refused(text)
    return _by_status(status, text)


def _by_status(status: int, text: str) -> Failure:
    if status == 404 and "model" in text:
        return failure(FailureKind.NO_SUCH_MODEL)
    if status in _STATUSES:
        return _STATUSES[status]
    if 400 <= status < 500:
        return failure(FailureKind.BAD_REQUEST)
    return failure(FailureKind.OVERLOADED if _OVERLOAD_TEXTS.search(text) else FailureKind.SERVER)


def _refused(text: str) -> Failure:
    """Judge a status for mistakes of callers by its text: some are not the caller's.

    None of these failures closes anything: such messages quote the request, so a caller could
    write them.
    """
    if _TOO_LARGE_TEXTS.search(text):
        return Failure(FailureKind.RATE_LIMITED)
    for kind, pattern in (
        (FailureKind.CONTEXT_TOO_LONG, _CONTEXT_TEXTS),
        (FailureKind.QUOTA, _QUOTA_TEXTS),
        (FailureKind.UNAUTHORIZED, _KEY_TEXTS),
        (FailureKind.NO_SUCH_MODEL, _MODEL_TEXTS),
        (FailureKind.CONTENT_POLICY, _POLICY_TEXTS),
    ):
        if pattern.search(text):
            return msgspec.structs.replace(failure(kind), closes_s=None)
    return failure(FailureKind.BAD_REQUEST)


def _limited(status: int, text: str, *, coded: bool, waits: bool) -> Failure:
    """Distinguish limits that end with time, that end with a payment, and that never end."""
    if _TOO_LARGE_TEXTS.search(text):
        return Failure(FailureKind.RATE_LIMITED)
    # Rate limits, too, speak of plans and billing (Gemini, Groq), and end after a wait.
    if _PLAN_TEXTS.search(text) or (_QUOTA_TEXTS.search(text) and not waits and not coded):
        return failure(FailureKind.QUOTA)
    if status == 403:
        return _forbidden(text)
    return failure(
        FailureKind.OVERLOADED if _OVERLOAD_TEXTS.search(text) else FailureKind.RATE_LIMITED
    )


def _forbidden(text: str) -> Failure:
    if _POLICY_TEXTS.search(text):
        return failure(FailureKind.CONTENT_POLICY)
    return failure(
        FailureKind.NO_SUCH_MODEL if _MODEL_TEXTS.search(text) else FailureKind.UNAUTHORIZED
    )


def _timed(found: Failure, wait_s: float | None) -> Failure:
    """Add the wait that the provider asks for; the upstream stays closed until its end."""
    if wait_s is None or found.kind not in _LONGEST_WAITS_S or not found.retry_here:
        return found
    wait_s = min(wait_s, _LONGEST_WAITS_S[found.kind])
    return msgspec.structs.replace(found, retry_after_s=wait_s, closes_s=wait_s)


def _asked(found: Failure, headers: Headers) -> Failure:
    """Obey ``x-should-retry``, by which OpenAI and Anthropic overrule their own statuses."""
    for name, value in headers:
        if name == b"x-should-retry" and value in (b"true", b"false"):
            retry = value == b"true"
            return msgspec.structs.replace(
                found, retry_here=retry, fail_over=found.fail_over or retry
            )
    return found
