"""What follows from a failed call; circuit breakers, and the budget of retries.

A failed call may lead to a retry or to a call to another upstream, and may count against the
circuit breaker. The tables below have the error texts of the providers; ``docs/failover.md``
explains them row by row. Unless a docstring says otherwise, ``now`` is in monotonic seconds.

An error goes this way:

1. ``failure_of`` turns an error into a ``Failure``. For an error answer it reads codes and message
   (``read_error_document``), and ``classify`` judges them, then the status.
2. ``AttemptSchedule`` (``schedule.py``) plans a retry or another upstream by this ``Failure``, if
   the ``RetryBudget`` has a retry left.
3. ``CircuitBreaker.failed`` counts it, and may stop the calls to this upstream for a time.

For example, a status 429 with ``retry-after: 7`` is ``RATE_LIMITED``. Another upstream is asked if
there is one (``fail_over``); otherwise the call waits 7 seconds and is made again (``retry_here``).
Meanwhile this upstream gets no calls (``pauses_s``). The breaker does not count it as a failure
(``charges`` is False).
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from headstart.dialects.dialect import Dialect, decode_first
from headstart.errors import (
    CONTEXT_CODES,
    CONTEXT_TEXTS,
    IdleConnectionClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from headstart.policies.routing.rate_limits import exhausted_until_s, message_wait_s, retry_after_s
from headstart.types import ErrorReported, Frozen, Headers, word_classes

if TYPE_CHECKING:
    from collections.abc import Sequence


# What providers write into their errors. All patterns are for lower-case text.
_POLICY_TEXTS = re.compile(
    r"content (?:management |usage )?polic|content[ _-]filter|safety system|usage polic"
    r"|responsible ?ai|content exists risk|(?:was|been|input) flagged|requires moderation"
    r"|inappropriate content|violat\w+ .{0,60}(?:polic|guidelines|terms)"
)
_MODEL_TEXTS = re.compile(
    r"\bmodels?[ /:]\S{1,200} (?:does not exist|(?:is |was )?not found|has been decommissioned)"
    r"|\b(?:invalid|unknown) model\b|\bnot a valid model\b"
    r"|\bonly \S{1,200} allowed now, your model\b"
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
"""Matches if one request has more tokens than the rate limit allows: waiting does not help."""


_FASTCHAT_CODE = re.compile(r"(?:429|5\d\d)\d\d")
"""FastChat's codes of errors that are not the caller's."""


def read_error_document(body: bytes) -> tuple[tuple[str, ...], str]:
    """Return the codes and the message of an error document in any dialect."""
    document = decode_first(body)
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


_LONG_PAUSE_S = 300.0
"""Seconds for which an upstream is asked last after a failure that only a person can correct: a
wrong key, an unpaid bill or a missing model."""
_SHORT_PAUSE_S = 1.0
"""Seconds without calls after a rate limit that does not say when it ends. The breaker doubles them
with each further refusal."""
_MESSAGE_CHARACTERS = 2000
"""Number of characters of a message that are searched."""


class FailureKind(StrEnum):
    """Why a call failed. The values are metric labels and kinds of booked attempts."""

    RATE_LIMITED = "rate-limited"
    QUOTA = "quota"
    OVERLOADED = "overloaded"
    SERVER = "server-error"
    UNREACHABLE = "unreachable"
    IDLE_CLOSED = "idle-closed"
    """The provider closed an idle connection while the request was on its way."""
    TIMEOUT = "timeout"
    SILENT = "silent"
    """No first token in time."""
    EMPTY = "empty"
    PROTOCOL = "protocol"
    REDIRECTED = "redirected"
    """The answer is a redirect. It is not followed, because that would send the key elsewhere."""
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
    """Whether a retry on the same target may help."""
    fail_over: bool = True
    """Whether another target may help. If not, the failure is the caller's fault, and the caller
    gets the provider's answer."""
    charges: bool = False
    """Whether it counts against the circuit breaker."""
    pauses_s: float | None = None
    """The seconds for which this upstream gets no call for this model and key. After failures that
    only a person can correct, it still gets calls if no other upstream is ready."""
    retry_after_s: float | None = None
    """The seconds for which the provider asks us to wait."""
    retries_freely: bool = False
    """Whether a retry is not charged to the retry budget, because the provider read no request."""
    reason: str | None = None
    """What happened, for the books and the log; None if kind and status say it."""

    @property
    def ends_with_time(self) -> bool:
        """Whether it is a rate limit, so that the same call may succeed later."""
        return (
            self.kind is FailureKind.RATE_LIMITED and self.retry_here and self.pauses_s is not None
        )

    @property
    def larger_context(self) -> bool:
        """Whether only a target with a larger context window can help."""
        return self.kind is FailureKind.CONTEXT_TOO_LONG


# What to do about each kind of failure, unless its status or headers say otherwise.
_FAILURES = {
    each.kind: each
    for each in (
        Failure(FailureKind.RATE_LIMITED, retry_here=True, pauses_s=_SHORT_PAUSE_S),
        Failure(FailureKind.QUOTA, pauses_s=_LONG_PAUSE_S),
        Failure(FailureKind.OVERLOADED, retry_here=True, charges=True),
        Failure(FailureKind.SERVER, retry_here=True, charges=True),
        Failure(FailureKind.UNREACHABLE, retry_here=True, charges=True),
        Failure(FailureKind.IDLE_CLOSED, retry_here=True, retries_freely=True),
        Failure(FailureKind.TIMEOUT, charges=True),
        Failure(FailureKind.SILENT, charges=True),
        Failure(FailureKind.EMPTY, retry_here=True, charges=True),
        Failure(FailureKind.PROTOCOL, retry_here=True, charges=True),
        Failure(FailureKind.REDIRECTED),
        Failure(FailureKind.FILTERED),
        Failure(FailureKind.UNAUTHORIZED, pauses_s=_LONG_PAUSE_S),
        Failure(FailureKind.NO_SUCH_MODEL, pauses_s=_LONG_PAUSE_S),
        Failure(FailureKind.CONTEXT_TOO_LONG),
        Failure(FailureKind.CONTENT_POLICY, fail_over=False),
        Failure(FailureKind.BAD_REQUEST, fail_over=False),
        Failure(FailureKind.STALLED, charges=True),
        Failure(FailureKind.CUT, retry_here=True, charges=True),
    )
}

# The longest waits that a provider may ask for, by kind; no entry: its wait is ignored.
_LONGEST_WAITS_S = {
    # One call an hour costs little, even if the header asks for a longer wait.
    FailureKind.RATE_LIMITED: 3600.0,
    # The length of an outage is unknown, and a recovery must be noticed soon.
    FailureKind.OVERLOADED: 30.0,
    FailureKind.SERVER: 30.0,
    FailureKind.TIMEOUT: 30.0,
}

# What the codes of errors mean, in lower case.
_CODES = word_classes(
    {
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
        FailureKind.CONTEXT_TOO_LONG: " ".join(CONTEXT_CODES),
        FailureKind.CONTENT_POLICY: "content_policy_violation content_filter"
        " responsibleaipolicyviolation data_inspection_failed prohibited_content",
        # It is the model's mistake, not the caller's: Groq refuses text that its own model wrote.
        FailureKind.PROTOCOL: "tool_use_failed json_validate_failed",
    }
)

# What a status means if neither a code nor the text says more.
_STATUSES = {
    402: _FAILURES[FailureKind.QUOTA],
    401: _FAILURES[FailureKind.UNAUTHORIZED],
    403: _FAILURES[FailureKind.UNAUTHORIZED],
    # A missing path or resource: no reason to think that the model is gone.
    404: Failure(
        FailureKind.NO_SUCH_MODEL,
        reason="the error does not name the model; upstream.base_url may be wrong",
    ),
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


def failure_of(error: UpstreamError, now: float) -> Failure:
    """Judge an error that an upstream raised. ``now`` is in Unix seconds.

    An error may name its kind itself.
    """
    if error.kind is not None:
        return failure(FailureKind(error.kind))
    match error:
        case UpstreamRefused():
            codes, message = read_error_document(error.body)
            codes, message = (error.code, *codes), message or str(error)
            return classify(error.status, codes, message, error.headers, now)
        case UpstreamUnavailable():
            return Failure(FailureKind.OVERLOADED, retry_after_s=error.retry_after_s)
        case UpstreamTimeout():
            return failure(FailureKind.TIMEOUT)
        case UpstreamProtocolError():
            return failure(FailureKind.PROTOCOL)
        case _:
            crossed = isinstance(error, IdleConnectionClosed)
            return failure(FailureKind.IDLE_CLOSED if crossed else FailureKind.UNREACHABLE)


_ABOUT_RESOURCES = (403, 404, 405, 409, 410)
"""Statuses that say something about the resource of a relayed path, such as a missing file."""


def fails_relayed(status: int, found: Failure) -> bool:
    """Tell whether an error answer to a relayed call means that the upstream failed.

    If it does not, the error is the answer for the caller. Fewer errors are failures than for a
    chat call, because many are about a file or a job that the caller named.
    """
    if status in _ABOUT_RESOURCES:
        # Another upstream may help only if the missing resource is the model.
        return found.kind is FailureKind.NO_SUCH_MODEL and found is not _STATUSES[404]
    return found.fail_over or found.retry_here


def limit_relayed_pause(found: Failure) -> Failure:
    """Limit how long a failed relayed call pauses the upstream.

    A caller can ask for any path and any model. So a refusal must not keep other callers' calls
    from the upstream.
    """
    if found.kind in (FailureKind.UNAUTHORIZED, FailureKind.NO_SUCH_MODEL):
        return msgspec.structs.replace(found, pauses_s=None)
    return found


def classify(
    status: int, codes: Sequence[str], message: str, headers: Headers, now: float
) -> Failure:
    """Return what follows from an error answer. ``now`` is in Unix seconds.

    ``codes`` are the codes and types of the error. They and ``message`` are read before the status,
    so that this also works for an error inside a 200 answer.
    """
    text = message[:_MESSAGE_CHARACTERS].lower()
    # OpenRouter and Gemini name the status as the code, also inside a stream that began with 200.
    numbers = [int(code) for code in codes if code.isdecimal() and len(code) == 3]
    if status == 400:  # FastChat's only status. Its code is the right one, with two more digits.
        numbers += [int(code[:3]) for code in codes if _FASTCHAT_CODE.fullmatch(code)]
    status = next((number for number in numbers if 400 <= number < 600), status)
    wait_s = retry_after_s(headers, now)
    found = _judge(status, [code.lower() for code in codes], text, waits=wait_s is not None)
    if found.kind is FailureKind.RATE_LIMITED and found.pauses_s is not None and wait_s is None:
        wait_s = exhausted_until_s(headers, now) or message_wait_s(text)
    return _obey_retry_header(_add_wait(found, wait_s), headers)


def _judge(status: int, codes: list[str], text: str, *, waits: bool) -> Failure:
    """Judge an error by its codes; else by the text, where a status is ambiguous; else by status.

    With ``waits`` the provider has named a time after which to ask again.
    """
    kind = next((_CODES[code] for code in codes if code in _CODES), None)
    if kind is FailureKind.RATE_LIMITED or (kind is None and status in (403, 429)):
        return _judge_limit(status, text, coded=kind is not None, waits=waits)
    if kind is not None:
        return failure(kind)
    if status in (400, 413, 422):
        return _judge_caller_error(text)
    return _judge_status(status, text)


def _judge_status(status: int, text: str) -> Failure:
    if status == 404 and "model" in text:
        return failure(FailureKind.NO_SUCH_MODEL)
    if status in _STATUSES:
        return _STATUSES[status]
    if 400 <= status < 500:
        return failure(FailureKind.BAD_REQUEST)
    return failure(FailureKind.OVERLOADED if _OVERLOAD_TEXTS.search(text) else FailureKind.SERVER)


def _judge_caller_error(text: str) -> Failure:
    """Judge a 4xx status by its text, because not all of them are the caller's fault.

    None of these failures pauses an upstream: such messages quote the request, so callers could
    cause a pause on purpose.
    """
    if _TOO_LARGE_TEXTS.search(text):
        return Failure(FailureKind.RATE_LIMITED)
    for kind, pattern in (
        (FailureKind.CONTEXT_TOO_LONG, CONTEXT_TEXTS),
        (FailureKind.QUOTA, _QUOTA_TEXTS),
        (FailureKind.UNAUTHORIZED, _KEY_TEXTS),
        (FailureKind.NO_SUCH_MODEL, _MODEL_TEXTS),
        (FailureKind.CONTENT_POLICY, _POLICY_TEXTS),
    ):
        if pattern.search(text):
            return msgspec.structs.replace(failure(kind), pauses_s=None)
    return failure(FailureKind.BAD_REQUEST)


def _judge_limit(status: int, text: str, *, coded: bool, waits: bool) -> Failure:
    """Distinguish limits that end with time, that end with a payment, and that never end.

    ``coded``: a code of the error says that it is a rate limit.
    """
    if _TOO_LARGE_TEXTS.search(text):
        return Failure(FailureKind.RATE_LIMITED)  # a retry of this request would fail, too
    # Rate limits may also mention plans and billing (Gemini, Groq). They end after a wait.
    if _PLAN_TEXTS.search(text) or (_QUOTA_TEXTS.search(text) and not waits and not coded):
        return failure(FailureKind.QUOTA)
    if status != 403:
        overloaded = _OVERLOAD_TEXTS.search(text)
        return failure(FailureKind.OVERLOADED if overloaded else FailureKind.RATE_LIMITED)
    if _POLICY_TEXTS.search(text):
        return failure(FailureKind.CONTENT_POLICY)
    no_model = _MODEL_TEXTS.search(text)
    return failure(FailureKind.NO_SUCH_MODEL if no_model else FailureKind.UNAUTHORIZED)


def _add_wait(found: Failure, wait_s: float | None) -> Failure:
    """Add the wait that the provider asks for; the upstream pauses until its end."""
    if wait_s is None or found.kind not in _LONGEST_WAITS_S or not found.retry_here:
        return found
    wait_s = min(wait_s, _LONGEST_WAITS_S[found.kind])
    return msgspec.structs.replace(found, retry_after_s=wait_s, pauses_s=wait_s)


def _obey_retry_header(found: Failure, headers: Headers) -> Failure:
    """Obey ``x-should-retry``, by which OpenAI and Anthropic overrule their own statuses."""
    for name, value in headers:
        if name == b"x-should-retry" and value in (b"true", b"false"):
            retry = value == b"true"
            return msgspec.structs.replace(
                found, retry_here=retry, fail_over=found.fail_over or retry
            )
    return found


# --- circuit breakers and the budget of retries ---------------------------------------------------

_STREAK = 5
"""The fewest failures in a row that open the breaker."""
_CHANCE = 1e-6
"""Failures in a row open the breaker only if chance makes them less likely than this."""
_KEPT = 64
"""Number of the last calls without an answer that are remembered."""
_ERROR_RATE = 0.5
"""The share of failed calls that opens the breaker, if there were ``_LEAST_CALLS`` lately."""
_LEAST_CALLS = 10.0
_MEMORY_S = 30.0
"""Seconds after which a call counts as 1/e of a new one."""
_FIRST_OPENING_S, _LONGEST_OPENING_S = 1.0, 20.0
"""Seconds for which the breaker stays open: at first, and at most. The time doubles each time."""
_LONGEST_BACKOFF_S = 8.0
"""The longest time without calls after a rate limit that does not say when it ends. It is short
because it is a guess, and callers of a single upstream wait for it."""
_NEEDS_PEOPLE = (FailureKind.UNAUTHORIZED, FailureKind.QUOTA, FailureKind.NO_SUCH_MODEL)
"""Failures that only a person can correct. If a call is made nevertheless, the provider refuses it
at once, and it costs nothing."""
_PROBE_S = 60.0
"""Seconds after which a probe that has not been reported counts as lost, and another one is
made."""
_NEXT_LOOK_S = 1.0
"""While a probe is under way, callers are told to ask again after this many seconds."""
_RAMP_S = 10.0
"""Seconds of slow start: the weight rises to 1 from ``_LEAST_WEIGHT``."""
_LEAST_WEIGHT = 0.1
_DEGRADED_RATE, _DEGRADED_STREAK = 0.25, 2
"""The share of failed calls, and the failures in a row, from which an upstream is degraded."""
_DEGRADED_S = 10.0
"""Seconds for which an upstream counts as degraded after a failure."""


class Permit(msgspec.Struct, frozen=True, gc=False):
    """The permission to make one call. Report its end: ``succeeded``, ``failed``, ``neutral``."""

    generation: int
    probe: bool
    """The call tests whether the provider has recovered. Only one such call is made at a time."""
    number: int
    """The number of the call among the admitted ones; 0: the call was not counted."""
    at: float
    """When the permit was given."""
    insisted: bool = False
    """The call is made although the breaker is open, because no other upstream is left. Only its
    success counts for the breaker, not its failure."""


class CircuitBreaker:
    """Decides whether an upstream gets calls, for one model and key.

    The breaker is closed, open or half-open, as in Nygard's "Release It!". A closed breaker admits
    calls. It opens after five failures in a row that count against the provider (as in Envoy's
    outlier detection: consecutive_5xx = 5). If the provider has failed now and then before, five
    failures in a row may be chance, so more are needed (``_streak_limit``). It also opens when half
    of the recent calls failed (as in Hystrix: 50 % over a rolling window, with a minimum volume).

    It stays open for 1 s, then 2, 4 ... up to 20 s: with a call every 4 s, a recovery is noticed
    within 24 s. Then it is half-open: one call at a time probes the provider. If a probe fails, the
    breaker is open again. If it succeeds, the breaker is closed, and the weight rises from 10 % in
    10 s (Envoy's slow start).

    A rate limit is no failure: the breaker stays closed, and pauses for the time that the provider
    names (``pause_for``). After a failure that a person has to correct, such as a wrong key, other
    upstreams are asked first for a time (``avoided_for_s``).

    Refusals come quickly and answers come late. So a provider that refuses every third call would
    seem to refuse all calls, if calls were counted when they end. Therefore they are counted when
    they are admitted: failures are in a row if their calls were admitted in a row.

    Each opening and each probe begins a new *generation* of calls. Reports about an older
    generation have no effect: such a call began before the breaker opened, or it was a probe that
    counts as lost.
    """

    def __init__(self) -> None:
        self.proven = False
        """Whether the upstream has answered before."""
        self._generation = 0
        self._admitted = 0
        """The number of calls that were admitted. It numbers the calls."""
        self._unanswered: dict[int, bool] = {}
        """The last calls that got no answer, by number. True: the call failed; False: it was
        cancelled, or its failure does not count."""
        self._streak = 0
        """Failures in a row up to the last one."""
        self._calls = 0.0
        self._errors = 0.0
        """The recent calls, and the failed ones. Old ones fade: these are their weights at
        ``_counted_at``."""
        self._counted_at = 0.0
        self._failed_at = -math.inf
        self._open = False
        """Whether the breaker is open, or half-open: it is half-open from ``_open_until`` on."""
        self._open_until = -math.inf
        self._openings = 0
        """Openings without a lasting recovery between them. Each one doubles the time."""
        self._probe_until = -math.inf
        """The time until which a probe is under way."""
        self._recovered_at = -math.inf
        """When the breaker closed. Slow start begins then."""
        self._paused_until = -math.inf
        self._limited_until = -math.inf
        """The end of the last pause for a rate limit."""
        self._avoided_until = -math.inf
        """The time until which other upstreams are asked first."""
        self._refusals = 0
        """Refusals in a row, each of a call that began after the previous refusal."""
        self._refused_at = -math.inf

    def ready_in_s(self, now: float) -> float:
        """Return the seconds until a call would be admitted; 0.0: a call is admitted now."""
        wait_s = self._paused_until - now
        if self._open:
            wait_s = max(wait_s, self._open_until - now, min(self._probe_until - now, _NEXT_LOOK_S))
        return max(0.0, wait_s)

    def open_for_s(self, now: float) -> float:
        """Return the seconds until the next probe; 0.0: it is due, or the breaker is closed."""
        return max(0.0, self._open_until - now) if self._open else 0.0

    def avoided_for_s(self, now: float) -> float:
        """Return the seconds for which other upstreams are asked first; 0.0: it is ready."""
        return max(self.ready_in_s(now), self._avoided_until - now)

    def limited(self, now: float) -> bool:
        """Tell whether only a rate limit prevents a call."""
        return now < self._limited_until and not self._open

    def admit(self, now: float) -> Permit | None:
        """Return a permit, or None. In the half-open state only one call at a time has a permit."""
        if self.ready_in_s(now) > 0.0:
            return None
        probe = self._open
        if probe:
            self._generation += 1
            self._probe_until = now + _PROBE_S
        self._fade(now)
        self._calls += 1.0
        self._admitted += 1
        return Permit(self._generation, probe, self._admitted, now)

    def insist(self, now: float) -> Permit:
        """Return a permit for a call that is made even if the breaker is open."""
        return Permit(self._generation, probe=False, number=0, at=now, insisted=True)

    def succeeded(self, permit: Permit, now: float) -> None:
        """Report an answer. The answer of a probe closes the breaker, and slow start begins."""
        self.proven = True
        if permit.generation != self._generation:
            return
        self._streak = 0
        self._refusals = 0
        self._avoided_until = -math.inf
        if self._open:
            self._open = False
            self._calls = self._errors = 0.0
            self._recovered_at = now
        elif now - self._recovered_at > _RAMP_S:
            self._openings = 0

    def learns_from_success(self, permit: Permit, now: float) -> bool:
        """Tell whether ``succeeded`` would change anything."""
        if not self.proven:
            return True
        if permit.generation != self._generation:
            return False
        return (
            self._open
            or self._streak > 0
            or self._refusals > 0
            or self._avoided_until > -math.inf
            or (self._openings > 0 and now - self._recovered_at > _RAMP_S)
        )

    def failed(self, permit: Permit, failure: Failure, now: float) -> None:
        """Report a failure.

        Only a failure that ``charges`` can open the breaker. Others have an effect only if they
        have ``pauses_s``.
        """
        if failure.pauses_s is not None and failure.kind in _NEEDS_PEOPLE:
            self._avoided_until = now + failure.pauses_s
        elif failure.pauses_s is not None:
            # This also applies to an older generation, because the provider has named the time.
            self.pause_for(self._pause_s(failure, failure.pauses_s, permit, now), now)
            if failure.kind is FailureKind.RATE_LIMITED:
                self._limited_until = self._paused_until
        if permit.generation != self._generation or permit.insisted:
            return
        if not failure.charges:
            self.neutral(permit)
            return
        self._fade(now)
        # A call's weight fades from its start. So its error gets the weight that the call has now.
        self._errors += math.exp(-max(0.0, now - permit.at) / _MEMORY_S)
        self._failed_at = now
        self._streak = self._failures_in_row(permit.number)
        often = self._fails_often(_LEAST_CALLS, _ERROR_RATE)
        if permit.probe or often or self._streak >= self._streak_limit():
            self._trip(now)

    def neutral(self, permit: Permit) -> None:
        """Report a call that neither succeeded nor failed. It does not end failures in a row."""
        self.superseded(permit)
        if permit.generation == self._generation and not permit.insisted:
            self._keep(permit.number, failed=False)

    def superseded(self, permit: Permit) -> None:
        """Report a call that was cancelled because another one was faster. It did not fail."""
        if permit.probe and permit.generation == self._generation:
            self._probe_until = -math.inf

    def pause_for(self, seconds: float, now: float) -> None:
        """Admit no call for ``seconds``. This does not count as a failure."""
        self._paused_until = max(self._paused_until, now + seconds)

    def degraded(self, now: float) -> bool:
        """Tell whether the breaker is open, or calls failed lately and too often.

        A degraded upstream is asked last, so there may be no call that shows its recovery.
        Therefore this state ends after ``_DEGRADED_S`` without a failure.
        """
        if self._open:
            return self.ready_in_s(now) > 0.0
        return now - self._failed_at < _DEGRADED_S and (
            self._streak >= _DEGRADED_STREAK or self._fails_often(_LEAST_CALLS / 2, _DEGRADED_RATE)
        )

    def weight(self, now: float) -> float:
        """Return the share of its usual calls that the upstream should get: 0 to 1 (healthy)."""
        if self.avoided_for_s(now) > 0.0:
            return 0.0
        if self._open:
            return 1.0  # a probe is due
        return min(1.0, max(_LEAST_WEIGHT, (now - self._recovered_at) / _RAMP_S))

    def _pause_s(self, failure: Failure, pauses_s: float, permit: Permit, now: float) -> float:
        """Return the seconds to pause: doubled at each rate limit whose end is not known."""
        if failure.kind is not FailureKind.RATE_LIMITED or failure.retry_after_s is not None:
            return pauses_s
        if permit.at > self._refused_at:  # not a call of the same burst, which tells nothing new
            self._refusals = min(self._refusals + 1, 16)
            self._refused_at = now
        return min(_LONGEST_BACKOFF_S, pauses_s * 2.0 ** (self._refusals - 1))

    def _trip(self, now: float) -> None:
        """Open the breaker, each time for twice as long, up to 20 s."""
        self._openings = min(self._openings + 1, 16)
        self._open = True
        self._open_until = now + min(
            _LONGEST_OPENING_S, _FIRST_OPENING_S * 2.0 ** (self._openings - 1)
        )
        self._probe_until = -math.inf
        self._streak = 0
        self._unanswered.clear()
        self._generation += 1

    def _failures_in_row(self, number: int) -> int:
        """Note that this call failed; return the number of failures in a row, with this one."""
        self._keep(number, failed=True)
        run = 1
        for step in (-1, 1):
            at = number + step
            while (failed := self._unanswered.get(at)) is not None:
                run += failed
                at += step
        return run

    def _streak_limit(self) -> int:
        """Return the number of failures in a row that are no longer likely by chance.

        Five in a row may be chance: if the provider refuses 30 % of the calls, they happen once in
        400 calls.
        """
        before = self._calls - self._streak
        if before < _LEAST_CALLS or self._errors <= self._streak:
            return _STREAK
        rate = min(_ERROR_RATE, (self._errors - self._streak) / before)
        return max(_STREAK, math.ceil(math.log(_CHANCE) / math.log(rate)))

    def _keep(self, number: int, *, failed: bool) -> None:
        """Remember a call without an answer. The oldest one is forgotten if there are too many."""
        if len(self._unanswered) >= _KEPT:
            del self._unanswered[next(iter(self._unanswered))]
        self._unanswered[number] = failed

    def _fade(self, now: float) -> None:
        """Let older calls and errors weigh exponentially less."""
        if now > self._counted_at:
            keep = math.exp((self._counted_at - now) / _MEMORY_S)
            self._calls *= keep
            self._errors *= keep
        self._counted_at = now

    def _fails_often(self, least_calls: float, rate: float) -> bool:
        return self._calls >= least_calls and self._errors >= rate * self._calls


class RetryBudget:
    """Keeps retries a small share of all calls, so that an outage is not multiplied.

    This is Finagle's RetryBudget: each call earns a fifth of a retry, and there is a minimum rate
    for times of little traffic. Finagle's minimum is ten retries a second, for RPC. Calls to
    language models are far fewer and cost money, so here it is one a second, up to ``burst`` at
    once.
    """

    def __init__(self, ratio: float = 0.2, per_s: float = 1.0, burst: float = 10.0) -> None:
        self._ratio = ratio
        self._per_s = per_s
        self._burst = burst
        self._level = burst
        self._at: float | None = None

    def earn(self, now: float) -> None:
        """Count a call that is not a retry. ``now`` is in monotonic seconds."""
        if self._level < self._burst:
            self._level = min(self._burst, self._refilled(now) + self._ratio)
        self._at = now

    def spend(self, now: float, *, none_left: bool) -> bool:
        """Take a retry out of the budget; return False if there is none left.

        Half of the budget is reserved for calls with no other member left (``none_left``). For
        other calls a retry only saves time.
        """
        self._level = self._refilled(now)
        if self._level < (1.0 if none_left else self._burst / 2.0):
            return False
        self._level -= 1.0
        return True

    def _refilled(self, now: float) -> float:
        """Return the retries that are left, with those of the minimum rate since the last call."""
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        return min(self._burst, self._level + passed * self._per_s)


# --- a provider's error as an error of ours -------------------------------------------------------

_CODE = re.compile(r"[A-Za-z0-9_.:/#-]{1,64}")


def error_in_answer(
    event: ErrorReported, upstream: str, headers: Headers, dialect: Dialect, request_id: str
) -> UpstreamRefused | UpstreamProtocolError:
    """Return the error inside a 200 answer as if the provider had sent an error status."""
    if event.is_ours:
        return UpstreamProtocolError(f"upstream {upstream}: {event.message}")
    status = event.status if event.status is not None and 400 <= event.status < 600 else 502
    refused = UpstreamRefused(
        f"upstream {upstream} answered 200 with an error: {event.message}",
        status=status,
        headers=headers_for_own_body(headers, dialect),
        body=dialect.error_body(event, request_id),
        code=safe_code(event),
        upstream=upstream,
    )
    refused.reason = "its answer contains an error"
    return refused


def safe_code(event: ErrorReported | None) -> str:
    """Return the code of a provider's error for books and logs.

    A code that is a text may quote the request, and is left out.
    """
    code = "" if event is None or event.code is None else event.code
    return code if _CODE.fullmatch(code) else UpstreamError.code


def headers_for_own_body(headers: Headers, dialect: Dialect) -> Headers:
    """Return a provider's headers without those that do not fit a body which we write."""
    kept = tuple(pair for pair in headers if not pair[0].startswith(b"content-"))
    return (*kept, (b"content-type", dialect.content_types.json))
