"""What a failed call means: is it worth a retry here, a try elsewhere, a mark against the provider?

The tables below hold the words of the providers; ``docs/failover.md`` explains them row by row.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from headstart.errors import (
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from headstart.policies.routing import error_texts
from headstart.policies.routing.waits import exhausted_until_s, message_wait_s, retry_after_s
from headstart.types import Frozen

if TYPE_CHECKING:
    from headstart.errors import UpstreamError
    from headstart.types import Headers

_LONG_CLOSURE_S = 300.0
"""A wrong key, an unpaid bill or a missing model is put right by people."""
_SHORT_CLOSURE_S = 1.0
"""A rate limit that does not say when it ends; the breaker doubles it while it lasts."""
_READ = 2000
"""Characters of a message that are looked at."""


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
    """The provider's filter stopped an answer; another provider's may not."""
    UNAUTHORIZED = "unauthorized"
    NO_SUCH_MODEL = "no-such-model"
    CONTEXT_TOO_LONG = "context-too-long"
    CONTENT_POLICY = "content-policy"
    """The request was refused for what it asks."""
    BAD_REQUEST = "bad-request"
    STALLED = "stalled"
    CUT = "cut"


class Failure(Frozen):
    """What to do about a failed call."""

    kind: FailureKind
    retry_here: bool
    """One more try on the same target may help."""
    fail_over: bool
    """Another target may help. False: the caller's own fault, who gets the provider's answer."""
    charges: bool
    """It counts against the breaker."""
    closes_s: float | None
    """Close (upstream, model, key) at once, for this long."""
    retry_after_s: float | None
    """When the provider asks to be asked again."""
    larger_context: bool = False
    """Only a target with a larger context can help."""


_LONGEST_WAITS_S = {
    # Asking once an hour costs nothing, whatever the header says.
    FailureKind.RATE_LIMITED: 3600.0,
    # Nobody knows how long trouble will last: a recovery must be noticed soon.
    FailureKind.OVERLOADED: 30.0,
    FailureKind.SERVER: 30.0,
    FailureKind.TIMEOUT: 30.0,
}


def _row(
    kind: FailureKind,
    *,
    retry: bool = False,
    over: bool = True,
    charges: bool = False,
    closes_s: float | None = None,
) -> Failure:
    return Failure(
        kind=kind,
        retry_here=retry,
        fail_over=over,
        charges=charges,
        closes_s=closes_s,
        retry_after_s=None,
        larger_context=kind is FailureKind.CONTEXT_TOO_LONG,
    )


_FAILURES = {
    row.kind: row
    for row in (
        _row(FailureKind.RATE_LIMITED, retry=True, closes_s=_SHORT_CLOSURE_S),
        _row(FailureKind.QUOTA, closes_s=_LONG_CLOSURE_S),
        _row(FailureKind.OVERLOADED, retry=True, charges=True),
        _row(FailureKind.SERVER, retry=True, charges=True),
        _row(FailureKind.UNREACHABLE, retry=True, charges=True),
        _row(FailureKind.TIMEOUT, charges=True),
        _row(FailureKind.SILENT, charges=True),
        _row(FailureKind.EMPTY, retry=True, charges=True),
        _row(FailureKind.PROTOCOL, retry=True, charges=True),
        _row(FailureKind.FILTERED),
        _row(FailureKind.UNAUTHORIZED, closes_s=_LONG_CLOSURE_S),
        _row(FailureKind.NO_SUCH_MODEL, closes_s=_LONG_CLOSURE_S),
        _row(FailureKind.CONTEXT_TOO_LONG),
        _row(FailureKind.CONTENT_POLICY, over=False),
        _row(FailureKind.BAD_REQUEST, over=False),
        _row(FailureKind.STALLED, charges=True),
        _row(FailureKind.CUT, retry=True, charges=True),
    )
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
    404: _row(FailureKind.NO_SUCH_MODEL),
    408: _row(FailureKind.TIMEOUT, retry=True, charges=True),
    409: _row(FailureKind.SERVER, retry=True),
    425: _row(FailureKind.SERVER, retry=True),
    429: _FAILURES[FailureKind.RATE_LIMITED],
    498: _FAILURES[FailureKind.OVERLOADED],
    503: _FAILURES[FailureKind.OVERLOADED],
    504: _row(FailureKind.TIMEOUT, retry=True, charges=True),
    529: _FAILURES[FailureKind.OVERLOADED],
}


def failure(kind: FailureKind) -> Failure:
    """Return what to do about a failure that came without a status."""
    return _FAILURES[kind]


def classify(
    status: int, *, code: str | None, message: str, headers: Headers, now: float
) -> Failure:
    """Judge an error answer. ``code`` is its code or type, ``now`` Unix seconds.

    Also for an error inside a 200 answer: ``code`` and ``message`` are read first.
    """
    return _classify(status, (code,) if code else (), message, headers, now)


def failure_of(error: UpstreamError, now: float) -> Failure:
    """Judge an error that an upstream raised. ``now`` is Unix seconds.

    What the error itself says of its kind holds.
    """
    if error.kind is not None:
        return _FAILURES[FailureKind(error.kind)]
    match error:
        case UpstreamRefused():
            codes, message = error_texts.read_error(error.body)
            return _classify(
                error.status, (error.code, *codes), message or str(error), error.headers, now
            )
        case UpstreamUnavailable():
            return msgspec.structs.replace(
                _row(FailureKind.OVERLOADED), retry_after_s=error.retry_after_s
            )
        case UpstreamTimeout():
            return _FAILURES[FailureKind.TIMEOUT]
        case UpstreamProtocolError():
            return _FAILURES[FailureKind.PROTOCOL]
        case _:
            return _FAILURES[FailureKind.UNREACHABLE]


def _classify(
    status: int, codes: tuple[str, ...], message: str, headers: Headers, now: float
) -> Failure:
    text = message[:_READ].lower()
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
        return _FAILURES[kind]
    if status in (400, 413, 422):
        return _refused(text)
    return _by_status(status, text)


def _by_status(status: int, text: str) -> Failure:
    if status == 404 and "model" in text:
        return _FAILURES[FailureKind.NO_SUCH_MODEL]
    if status in _STATUSES:
        return _STATUSES[status]
    if 400 <= status < 500:
        return _FAILURES[FailureKind.BAD_REQUEST]
    return _FAILURES[
        FailureKind.OVERLOADED if error_texts.OVERLOAD.search(text) else FailureKind.SERVER
    ]


def _refused(text: str) -> Failure:
    """Read what a status for callers' mistakes is about; some of them are not the caller's.

    None closes anything: such messages quote the request, so callers could write them.
    """
    if error_texts.TOO_LARGE.search(text):
        return _row(FailureKind.RATE_LIMITED)
    for kind, pattern in (
        (FailureKind.CONTEXT_TOO_LONG, error_texts.CONTEXT),
        (FailureKind.QUOTA, error_texts.QUOTA),
        (FailureKind.UNAUTHORIZED, error_texts.KEY),
        (FailureKind.NO_SUCH_MODEL, error_texts.MODEL),
        (FailureKind.CONTENT_POLICY, error_texts.POLICY),
    ):
        if pattern.search(text):
            return msgspec.structs.replace(_FAILURES[kind], closes_s=None)
    return _FAILURES[FailureKind.BAD_REQUEST]


def _limited(status: int, text: str, *, coded: bool, waits: bool) -> Failure:
    """Tell a limit that time lifts from one that money lifts and from one that nothing lifts."""
    if error_texts.TOO_LARGE.search(text):
        return _row(FailureKind.RATE_LIMITED)
    # Rate limits, too, speak of plans and billing (Gemini, Groq): whoever waits can be served.
    if error_texts.PLAN.search(text) or (
        error_texts.QUOTA.search(text) and not waits and not coded
    ):
        return _FAILURES[FailureKind.QUOTA]
    if status == 403:
        return _forbidden(text)
    return _FAILURES[
        FailureKind.OVERLOADED if error_texts.OVERLOAD.search(text) else FailureKind.RATE_LIMITED
    ]


def _forbidden(text: str) -> Failure:
    if error_texts.POLICY.search(text):
        return _FAILURES[FailureKind.CONTENT_POLICY]
    return _FAILURES[
        FailureKind.NO_SUCH_MODEL if error_texts.MODEL.search(text) else FailureKind.UNAUTHORIZED
    ]


def _timed(found: Failure, wait_s: float | None) -> Failure:
    """Add when the provider wants to be asked again; it stays closed until then."""
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
