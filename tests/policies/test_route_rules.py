"""Terms: which route's rules hold, how strict the caller may be, and who learns together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headstart.errors import RequestError
from headstart.policies.route_rules import RouteRule, first_rule, match_context, requested_max_error

if TYPE_CHECKING:
    from headstart.types import Headers

RULES = (
    RouteRule("app", headers=((b"x-app", "faq*"), (b"x-lang", "en"))),
    RouteRule("small", model="gpt-4o-[mn]*"),
    RouteRule("ask", path="/ask/*"),
)


@pytest.mark.parametrize(
    ("model", "path", "headers", "name"),
    [
        ("gpt-4o-mini", "/v1", ((b"x-app", b"faq-2"), (b"x-lang", b"en")), "app"),
        ("gpt-4o-mini", "/v1", ((b"x-app", b"faq-2"),), "small"),
        ("gpt-4o-mini", "/v1", ((b"x-app", b"faq"), (b"x-lang", b"EN")), "small"),
        ("gpt-4o", "/ask/x", (), "ask"),
        ("GPT-4o-mini", "/v1", ((b"x-app", b"other"),), ""),
    ],
)
def test_the_first_rule_that_fits_holds(model: str, path: str, headers: Headers, name: str) -> None:
    assert first_rule(RULES, model=model, path=path, headers=headers).name == name


@pytest.mark.parametrize(
    ("value", "share"),
    [(b"0.01", 0.01), (b"1%", 0.01), (b" 0.5 % ", 0.005), (b"1e-3", 0.001), (b"0", 0), (b"0%", 0)],
)
def test_a_caller_states_a_share_or_a_percentage(value: bytes, share: float) -> None:
    assert requested_max_error(((b"x-headstart-max-error", value),)) == pytest.approx(share)


def test_the_strictest_of_several_headers_counts() -> None:
    headers = ((b"x-headstart-max-error", b"2%"), (b"x-headstart-max-error", b"1%"), (b"x", b"0"))
    assert requested_max_error(headers) == 0.01
    assert requested_max_error(()) is None


@pytest.mark.parametrize(
    "value", [b"", b"low", b"-0.1", b"1", b"100%", b"-1%", b"1%%", b"nan", b"\xff"]
)
def test_a_value_that_is_not_a_share_is_the_callers_fault(value: bytes) -> None:
    with pytest.raises(RequestError, match="x-headstart-max-error") as caught:
        requested_max_error(((b"x-headstart-max-error", value),))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("targets", "strictest"),
    [((0.02, 0.01), 0.01), ((0.01, 0.05), 0.01), ((None, 0.05), 0.05), ((None, None), None)],
)
def test_a_caller_can_only_be_stricter(
    targets: tuple[float | None, ...], strictest: float | None
) -> None:
    assert match_context(("s",), targets).max_error == strictest


def test_scope_path_rule_and_learner_divide_what_is_learned() -> None:
    domains = {
        match_context(parties, (), learning).domain
        for parties, learning in [
            (("s", "/a", ""), ""),
            (("t", "/a", ""), ""),
            (("s", "/b", ""), ""),
            (("s", "/a", "faq"), ""),
            (("s", "/a", ""), "encoder 2"),
        ]
    }
    assert len(domains) == 5
    assert all(len(domain) == 16 for domain in domains)


def test_a_request_may_name_its_route() -> None:
    rules = (RouteRule("a"), RouteRule("b", model="never"))
    named = ((b"x-headstart-route", b" b "),)
    assert first_rule(rules, model="m", path="/p", headers=named).name == "b"
    assert first_rule(rules, model="m", path="/p", headers=()).name == "a"
    with pytest.raises(RequestError, match="there is no route 'c'; there is: a, b"):
        first_rule(rules, model="m", path="/p", headers=((b"x-headstart-route", b"c"),))
