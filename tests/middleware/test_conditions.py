"""Conditions: what is known of upstreams outlives callers who name models that do not exist."""

from __future__ import annotations

from headstart.middleware.upstreams.accounting import UpstreamStates
from headstart.policies.routing.failures import FailureKind, failure


def answered(conditions: UpstreamStates, model: str) -> None:
    breaker = conditions.of("a", model, "key").breaker
    permit = breaker.admit(0.0)
    assert permit is not None
    breaker.succeeded(permit, 0.0)


def fail(conditions: UpstreamStates, model: str, *, times: int = 5) -> None:
    breaker = conditions.of("a", model, "key").breaker
    for _ in range(times):
        permit = breaker.admit(1.0)
        assert permit is not None
        breaker.failed(permit, failure(FailureKind.SERVER), 1.0)


def test_made_up_models_put_no_model_out_that_has_answered() -> None:
    conditions = UpstreamStates(most=10)
    answered(conditions, "real")
    fail(conditions, "real")
    for number in range(100):
        fail(conditions, f"made-up-{number}", times=1)
    assert conditions.of("a", "real", "key").breaker.ready_in_s(1.0) > 0.0
    assert len(conditions.items()) <= 20


def test_among_equals_the_least_recently_used_leaves() -> None:
    conditions = UpstreamStates(most=2)
    for model in ("first", "second", "third"):
        answered(conditions, model)
        conditions.of("a", model, "key")
        conditions.of("a", "first", "key")
    assert [model for (_, model, _), _ in conditions.items()] == ["third", "first"]


def test_what_never_answered_is_bounded_too_and_kept_while_it_is_asked() -> None:
    conditions = UpstreamStates(most=2)
    fail(conditions, "down")
    for number in range(10):
        conditions.of("a", f"made-up-{number}", "key")
        assert conditions.of("a", "down", "key").breaker.degraded(0.0)
    assert len(conditions.items()) == 2
