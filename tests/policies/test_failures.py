"""The meaning of a provider's error: a table of real answers and verdicts."""

from __future__ import annotations

import msgspec
import pytest

from headstart.errors import (
    IdleConnectionClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
    UpstreamUnreachable,
)
from headstart.policies.routing.failures import (
    Failure,
    FailureKind,
    classify,
    failure,
    failure_of,
)

NOW = 1_790_000_000.0
K = FailureKind

ANSWERS = [
    (
        429,
        "rate_limit_exceeded",
        "Rate limit reached for gpt-4o on requests per min.",
        K.RATE_LIMITED,
    ),
    (429, None, "Requests rate limit exceeded", K.RATE_LIMITED),
    (429, "RESOURCE_EXHAUSTED", "Resource has been exhausted", K.RATE_LIMITED),
    (429, "insufficient_quota", "You exceeded your current quota.", K.QUOTA),
    (429, None, "You exceeded your current quota, please check your plan", K.QUOTA),
    (429, None, "This model is not available on your current plan", K.QUOTA),
    (429, "RESOURCE_EXHAUSTED", "Quota exceeded for metric: x, limit: 0, model: y", K.QUOTA),
    (429, None, "Service tier capacity exceeded for this model.", K.OVERLOADED),
    (
        429,
        "rate_limit_exceeded",
        "Rate limit reached. Need more tokens? Upgrade to Dev Tier at /settings/billing",
        K.RATE_LIMITED,
    ),
    (
        413,
        "rate_limit_exceeded",
        "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 8000",
        K.RATE_LIMITED,
    ),
    (402, None, "Insufficient Balance", K.QUOTA),
    (400, "invalid_request_error", "Your credit balance is too low to access the API.", K.QUOTA),
    (498, None, "Flex tier capacity exceeded", K.OVERLOADED),
    (529, "overloaded_error", "Overloaded", K.OVERLOADED),
    (503, "UNAVAILABLE", "The model is overloaded.", K.OVERLOADED),
    (503, None, "", K.OVERLOADED),
    (500, "api_error", "Internal server error", K.SERVER),
    (500, None, "Model currently overloaded", K.OVERLOADED),
    (502, None, "<html>Bad Gateway</html>", K.SERVER),
    (504, None, "", K.TIMEOUT),
    (408, None, "", K.TIMEOUT),
    (409, None, "Conflict", K.SERVER),
    (401, "invalid_api_key", "Incorrect API key provided", K.UNAUTHORIZED),
    (403, "permission_error", "Your key may not use this", K.UNAUTHORIZED),
    (403, None, "Forbidden", K.UNAUTHORIZED),
    (403, None, "Input was flagged: it requires moderation", K.CONTENT_POLICY),
    (403, None, "Project `p` does not have access to model `gpt-5`", K.NO_SUCH_MODEL),
    (400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", K.UNAUTHORIZED),
    (404, "model_not_found", "The model `x` does not exist", K.NO_SUCH_MODEL),
    (404, "not_found_error", "model: claude-9", K.NO_SUCH_MODEL),
    (404, "NOT_FOUND", "models/x is not found for API version v1beta", K.NO_SUCH_MODEL),
    (400, "1500", "Invalid model: x", K.NO_SUCH_MODEL),
    (400, "model_decommissioned", "The model `x` has been decommissioned", K.NO_SUCH_MODEL),
    (400, "context_length_exceeded", "", K.CONTEXT_TOO_LONG),
    (400, None, "This model's maximum context length is 8192 tokens.", K.CONTEXT_TOO_LONG),
    (
        400,
        "invalid_request_error",
        "prompt is too long: 210000 tokens > 200000 maximum",
        K.CONTEXT_TOO_LONG,
    ),
    (
        400,
        "invalid_request_error",
        "input length and `max_tokens` exceed context limit: 1 + 2 > 2",
        K.CONTEXT_TOO_LONG,
    ),
    (
        400,
        "INVALID_ARGUMENT",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        K.CONTEXT_TOO_LONG,
    ),
    (
        400,
        None,
        "too many tokens: total number of tokens in the prompt cannot exceed 4081",
        K.CONTEXT_TOO_LONG,
    ),
    (400, None, "Please reduce the length of the messages or completion.", K.CONTEXT_TOO_LONG),
    (
        400,
        None,
        "Prompt contains 9 tokens, too large for model with 8 maximum context length",
        K.CONTEXT_TOO_LONG,
    ),
    (
        400,
        None,
        "This model's maximum prompt length is 131072 but the request contains 2e5 tokens",
        K.CONTEXT_TOO_LONG,
    ),
    (
        422,
        None,
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097",
        K.CONTEXT_TOO_LONG,
    ),
    (
        400,
        "content_policy_violation",
        "Your request was rejected by our safety system.",
        K.CONTENT_POLICY,
    ),
    (400, "content_filter", "The response was filtered", K.CONTENT_POLICY),
    (400, "invalid_request_error", "Output blocked by content filtering policy", K.CONTENT_POLICY),
    (400, None, "Content Exists Risk", K.CONTENT_POLICY),
    (400, "tool_use_failed", "Failed to call a function.", K.PROTOCOL),
    (400, "unsupported_parameter", "Unsupported parameter: 'max_tokens'", K.BAD_REQUEST),
    (400, None, "'temperature' is not supported with this model", K.BAD_REQUEST),
    (400, None, "max_tokens is too large: 9000. This model supports at most 4096", K.BAD_REQUEST),
    (413, "request_too_large", "Request exceeds the maximum size", K.BAD_REQUEST),
    (422, None, "Field required", K.BAD_REQUEST),
    (405, None, "", K.BAD_REQUEST),
    (400, "40001", "1 validation error", K.BAD_REQUEST),
    (400, "40301", "Only vicuna&&tiny allowed now, your model gpt", K.NO_SUCH_MODEL),
    (400, "40303", "This model's maximum context length is 2048 tokens.", K.CONTEXT_TOO_LONG),
    (400, "42903", "**NETWORK ERROR DUE TO HIGH TRAFFIC.**", K.RATE_LIMITED),
    (400, "50001", "**NETWORK ERROR DUE TO HIGH TRAFFIC.**", K.SERVER),
    (400, "10007", "the license is missing", K.BAD_REQUEST),
    # Inside a 200 stream.
    (200, "overloaded_error", "Overloaded", K.OVERLOADED),
    (200, "429", "Rate limited upstream", K.RATE_LIMITED),
    (200, "502", "Provider returned error", K.SERVER),
    (200, None, "something broke", K.SERVER),
]


def judge(status: int, headers: dict[str, str] | None = None, message: str = "") -> Failure:
    pairs = tuple((k.encode(), v.encode()) for k, v in (headers or {}).items())
    return classify(status, (), message, pairs, NOW)


@pytest.mark.parametrize(("status", "code", "message", "kind"), ANSWERS)
def test_each_providers_words_are_understood(
    status: int, code: str | None, message: str, kind: FailureKind
) -> None:
    assert classify(status, (code or "",), message, (), NOW).kind is kind


def test_only_the_provider_s_own_troubles_charge_it() -> None:
    charging = {kind for kind in FailureKind if failure(kind).charges}
    assert charging == {
        K.OVERLOADED, K.SERVER, K.UNREACHABLE, K.TIMEOUT, K.SILENT, K.EMPTY, K.PROTOCOL, K.STALLED,
        K.CUT,
    }  # fmt: skip


def test_only_the_callers_own_faults_are_not_tried_again() -> None:
    staying = {kind for kind in FailureKind if not failure(kind).fail_over}
    assert staying == {K.BAD_REQUEST, K.CONTENT_POLICY}


def test_a_silent_provider_is_not_tried_again() -> None:
    assert not failure(K.SILENT).retry_here
    assert failure(K.SILENT).fail_over


def test_a_prompt_too_long_asks_for_a_larger_context_and_for_nothing_else() -> None:
    found = classify(400, ("context_length_exceeded",), "", (), NOW)
    assert found.larger_context
    assert (found.retry_here, found.charges, found.pauses_s) == (False, False, None)
    assert not judge(400).larger_context


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "350", "retry-after": "1"}, 0.35),
        ({"x-ms-retry-after-ms": "1200"}, 1.2),
        ({"retry-after": "Mon, 21 Sep 2026 14:13:30 GMT"}, 10.0),
        ({"retry-after": "Thu, 01 Jan 2015 00:00:00 GMT"}, 0.0),
        ({"retry-after": "999999"}, 3600.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360.0),
        (
            {
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2026-09-21T14:13:35Z",
            },
            15.0,
        ),
    ],
)
def test_a_rate_limit_closes_until_the_provider_asks_to_be_asked(
    headers: dict[str, str], seconds: float
) -> None:
    found = judge(429, headers)
    assert found.retry_after_s == pytest.approx(seconds)
    assert found.pauses_s == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["", "soon", "nan", "inf", "-3s", "1" * 400, "Mon, 99 Foo"])
def test_an_unreadable_wait_is_none(value: str) -> None:
    found = judge(429, {"retry-after": value})
    assert found.retry_after_s is None
    assert found.pauses_s == 1.0


def test_a_wait_named_in_the_message_counts() -> None:
    assert judge(429, message="Please try again in 7.66s. Visit ...").retry_after_s == 7.66
    assert judge(429, message="Please retry after 1m2s.").retry_after_s == 62.0


def test_gemini_s_quota_message_with_a_wait_is_a_rate_limit() -> None:
    words = "You exceeded your current quota, please check your plan and billing details"
    assert judge(429, {"retry-after": "7"}, words).kind is K.RATE_LIMITED


def test_a_lasting_outage_is_looked_at_again_soon_whatever_the_header_says() -> None:
    assert judge(503, {"retry-after": "600"}).pauses_s == 30.0


def test_a_request_larger_than_the_limit_closes_nothing() -> None:
    for status in (429, 413, 400):
        words = "Request too large for gpt-4 on tokens per min (TPM)"
        found = judge(status, {"retry-after": "5"}, words)
        assert (found.retry_here, found.fail_over, found.pauses_s) == (False, True, None)


def test_a_400_never_closes_by_its_words_for_they_may_be_the_callers() -> None:
    for words in ("Invalid value: 'invalid api key'", "'credit balance' is not a field",
                  "unknown model 'x'"):  # fmt: skip
        assert judge(400, message=words).pauses_s is None


def test_the_provider_has_the_last_word_on_retries() -> None:
    assert not judge(500, {"x-should-retry": "false"}).retry_here
    assert judge(500, {"x-should-retry": "false"}).fail_over
    assert judge(400, {"x-should-retry": "true"}).retry_here


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UpstreamTimeout("x"), K.TIMEOUT),
        (UpstreamUnreachable("x"), K.UNREACHABLE),
        (UpstreamProtocolError("x"), K.PROTOCOL),
        (UpstreamError("x"), K.UNREACHABLE),
    ],
)
def test_errors_without_a_status_are_judged_by_type(error: UpstreamError, kind: K) -> None:
    assert failure_of(error, NOW) == failure(kind)


def test_an_unavailable_strategy_passes_on_when_it_may_be_asked() -> None:
    found = failure_of(UpstreamUnavailable("x", retry_after_s=4.0), NOW)
    assert (found.fail_over, found.retry_here, found.charges) == (True, False, False)
    assert found.retry_after_s == 4.0


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"error": {"message": "x", "type": "invalid_request_error",
                    "code": "context_length_exceeded"}}, K.CONTEXT_TOO_LONG),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, K.OVERLOADED),
        ([{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "x"}}],
         K.RATE_LIMITED),
        ({"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "x",
                    "details": [{"reason": "API_KEY_INVALID"}, None]}}, K.UNAUTHORIZED),
        ({"message": "too many tokens: 9"}, K.CONTEXT_TOO_LONG),
        ({"detail": "prompt is too long"}, K.CONTEXT_TOO_LONG),
        ({"error": "prompt is too long"}, K.CONTEXT_TOO_LONG),
        ("prompt is too long", K.CONTEXT_TOO_LONG),
        ({"error": {"message": 7, "code": None}}, K.BAD_REQUEST),
        ([], K.BAD_REQUEST),
    ],
)  # fmt: skip
def test_a_refusal_is_judged_by_its_body(body: object, kind: FailureKind) -> None:
    error = UpstreamRefused(
        "refused", status=400, headers=(), body=msgspec.json.encode(body), code="upstream_error"
    )
    assert failure_of(error, NOW).kind is kind


def test_a_refusal_without_a_readable_body_is_judged_by_its_status() -> None:
    error = UpstreamRefused("x", status=503, headers=(), body=b"<html>", code="upstream_error")
    assert failure_of(error, NOW).kind is K.OVERLOADED


def test_a_refusal_that_quotes_half_of_a_character_is_read() -> None:
    body = rb'{"error": {"message": "prompt is too long: \ud83d", "type": "invalid_request_error"}}'
    error = UpstreamRefused("refused", status=400, headers=(), body=body, code="upstream_error")
    assert failure_of(error, NOW).kind is K.CONTEXT_TOO_LONG


def test_an_error_that_names_its_kind_is_of_that_kind() -> None:
    assert failure_of(UpstreamProtocolError("x", kind="empty"), NOW) == failure(K.EMPTY)
    assert failure_of(UpstreamTimeout("x", kind="silent"), NOW) == failure(K.SILENT)


def test_the_end_of_an_idle_connection_is_no_failure_of_the_provider() -> None:
    crossed, refused = (
        failure_of(error, 0.0) for error in (IdleConnectionClosed("x"), UpstreamUnreachable("x"))
    )
    assert (crossed.retry_here, crossed.retries_freely, crossed.charges) == (True, True, False)
    assert (refused.retry_here, refused.retries_freely, refused.charges) == (True, False, True)
