"""States of upstreams are kept, however many unknown models callers name."""

from __future__ import annotations

from headstart.middleware.upstreams.accounting import UpstreamStates
from headstart.policies.routing.failures import FailureKind, failure


def answered(states: UpstreamStates, model: str) -> None:
    breaker = states.of("a", model, "key").breaker
    permit = breaker.admit(0.0)
    assert permit is not None
    breaker.succeeded(permit, 0.0)


def fail(states: UpstreamStates, model: str, *, times: int = 5) -> None:
    breaker = states.of("a", model, "key").breaker
    for _ in range(times):
        permit = breaker.admit(1.0)
        assert permit is not None
        breaker.failed(permit, failure(FailureKind.SERVER), 1.0)


def test_made_up_models_put_no_model_out_that_has_answered() -> None:
    states = UpstreamStates(most=10)
    answered(states, "real")
    fail(states, "real")
    for number in range(100):
        fail(states, f"made-up-{number}", times=1)
    assert states.of("a", "real", "key").breaker.ready_in_s(1.0) > 0.0
    assert len(states.items()) <= 20


def test_among_equals_the_least_recently_used_leaves() -> None:
    states = UpstreamStates(most=2)
    for model in ("first", "second", "third"):
        answered(states, model)
        states.of("a", model, "key")
        states.of("a", "first", "key")
    assert [model for (_, model, _), _ in states.items()] == ["third", "first"]


def test_states_of_models_without_answers_are_bounded_and_kept_while_in_use() -> None:
    states = UpstreamStates(most=2)
    fail(states, "down")
    for number in range(10):
        states.of("a", f"made-up-{number}", "key")
        assert states.of("a", "down", "key").breaker.degraded(0.0)
    assert len(states.items()) == 2
