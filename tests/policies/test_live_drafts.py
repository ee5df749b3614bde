"""Which final request a draft became, and what an early call may cost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.attempts import RoutingEstimate
from headstart.errors import InvalidRequest
from headstart.policies.live_drafts import (
    PLACEHOLDER,
    Trigger,
    TriggerUse,
    WasteAccount,
    ending,
    expected_waste,
    read_template,
    refuse_call,
    refuse_warming,
    same_prompt,
    submitted_text,
)


def body(text: str, **fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], **fields}).encode()


@given(st.text(), st.sampled_from([None, 2]))
def test_the_text_of_the_final_request_is_found(text: str, indent: int | None) -> None:
    template = read_template(body(f"About x: {PLACEHOLDER} (short)", model="m", stream=True))
    assert json.loads(template.body(text))["messages"][0]["content"] == f"About x: {text} (short)"
    final = {
        "stream": True,
        "model": "m",
        "messages": [{"content": f"About x: {text} (short)", "role": "user"}],
        "user": None,
    }
    assert submitted_text(template, json.dumps(final, indent=indent).encode()) == text


@pytest.mark.parametrize(
    "final",
    [
        body("x", model="n"),
        body("x", model="m", temperature=0),
        body("x", model="m", stream=True),
        json.dumps({"model": "m", "messages": []}).encode(),
        json.dumps({"model": "m", "messages": [{"role": "system", "content": "x"}]}).encode(),
        b"[]",
        b"{",
        b"",
    ],
)
def test_a_request_that_differs_has_no_text(final: bytes) -> None:
    assert submitted_text(read_template(body(PLACEHOLDER, model="m")), final) is None


def test_values_of_other_types_differ() -> None:
    template = read_template(body(PLACEHOLDER, n=1))
    assert submitted_text(template, body("x", n=True)) is None
    assert submitted_text(template, body("x", n=1.0)) is None
    assert submitted_text(template, body("x", n=1, stream=False)) == "x"


def test_a_deep_request_is_refused_and_not_fatal() -> None:
    deep = "[" * 900 + "]" * 900
    template = read_template(b'{"a": %b, "q": "{{draft}}"}' % deep.encode())
    assert submitted_text(template, b'{"a": %b, "q": "x"}' % deep.encode()) in ("x", None)


@pytest.mark.parametrize(
    "wrong", [b"{}", b'{"a": {{draft}}}', b'{"a": "{{draft}}", "b": "{{draft}}"}', b'["{{draft}}"]']
)
def test_a_template_has_one_text(wrong: bytes) -> None:
    with pytest.raises(InvalidRequest, match="request"):
        read_template(wrong)


@pytest.mark.parametrize(
    ("draft", "final", "same"),
    [
        ("Who?", "Who?", True),
        ("Who", "Who?", True),
        ("Who? ", "Who?", True),
        ("Who?!", "Who.", True),
        ("Who", "Whom", False),
        ("who", "Who", False),
        (" Who", "Who", False),
        ("Is it 5.", "Is it 5", True),
        ("Is it 5.5", "Is it 5.", False),
        ("?", "!", False),
        ("", "", True),
    ],
)
def test_only_the_end_may_differ(draft: str, final: str, same: bool) -> None:
    assert same_prompt(draft, final) is same
    assert same_prompt(final, draft) is same


def test_the_end_of_a_text_is_a_trigger() -> None:
    assert ending("Who is it?") is Trigger.QUESTION
    assert ending("Tell me. ") is Trigger.SENTENCE
    assert ending("\u8ab0\u3067\u3059\u304b\uff1f") is Trigger.QUESTION
    assert ending("Tell me") is None
    assert ending("...") is None
    assert ending("") is None


def test_the_use_of_a_trigger_is_learned() -> None:
    use = TriggerUse()
    assert use.share(Trigger.QUESTION) > use.share(Trigger.PAUSE)
    for _ in range(50):
        use.learn(Trigger.QUESTION, used=False)
        use.learn(Trigger.PAUSE, used=True)
    assert use.share(Trigger.QUESTION) < 0.1
    assert use.share(Trigger.PAUSE) > 0.9


def estimate(**fields: Any) -> RoutingEstimate:
    return RoutingEstimate(name="a", **{"cost_usd": 0.01, "waste_usd": 0.004, **fields})


@pytest.mark.parametrize(
    ("fields", "use", "refusal"),
    [
        ({}, 0.9, None),
        ({}, 0.1, "extra-cost"),
        ({"cost_usd": None}, 0.9, "unknown-price"),
        ({"cost_usd": 2.0}, 0.9, "budget"),
        ({"ready": False}, 0.9, "not-ready"),
    ],
)
def test_a_call_is_made_where_it_pays(
    fields: dict[str, Any], use: float, refusal: str | None
) -> None:
    account = WasteAccount(0.05)
    account.left_usd(0.01)
    assert refuse_call(estimate(**fields), use, account, budget_usd=1.0) == refusal


def test_what_is_wasted_stays_a_share_of_what_answers_cost() -> None:
    account, wasted, answered = WasteAccount(0.15), 0.0, 0.0
    for _ in range(2000):
        while refuse_call(estimate(), 0.5, account, budget_usd=1.0) is None:
            account.wasted(0.004)
            wasted += 0.004
        account.answered(0.01)
        answered += 0.01
    assert wasted / answered <= 0.16
    assert wasted / answered >= 0.12


def test_nothing_is_wasted_where_nothing_may_be() -> None:
    account = WasteAccount(0.0)
    assert refuse_call(estimate(), 0.9, account, budget_usd=1.0) is not None


def test_a_short_or_warm_prompt_is_not_warmed() -> None:
    long = read_template(body("x" * 8000 + PLACEHOLDER))
    account = WasteAccount(1.0)
    assert refuse_warming(long, estimate(), account, alone=True, budget_usd=1.0) is None
    assert refuse_warming(long, estimate(warm=True), account, alone=True, budget_usd=1.0) == "warm"
    assert refuse_warming(long, estimate(), account, alone=True, budget_usd=0.001) == "budget"
    short = read_template(body(PLACEHOLDER))
    assert refuse_warming(short, estimate(), account, alone=True, budget_usd=1.0) == "short"


def test_what_warming_costs_is_learned() -> None:
    account = WasteAccount(0.15)
    account.answered(1.0)
    for _ in range(50):
        account.warmed(0.01, 0.009)
    assert account.warm_extra == pytest.approx(0.1, abs=0.01)


def test_early_answers_have_the_first_claim() -> None:
    long = read_template(body("x" * 8000 + PLACEHOLDER))
    account = WasteAccount(0.15)
    assert refuse_warming(long, estimate(), account, alone=False, budget_usd=1.0) is None
    account.wasted(0.6 * account.left_usd(0.01))
    assert refuse_warming(long, estimate(), account, alone=False, budget_usd=1.0) == "extra-cost"
    assert refuse_warming(long, estimate(), account, alone=True, budget_usd=1.0) is None


def test_calls_at_the_same_time_share_what_may_be_wasted() -> None:
    account, begun = WasteAccount(0.15), 0
    while refuse_call(estimate(), 0.5, account, budget_usd=1.0) is None:
        account.reserve(expected_waste(estimate(), 0.5, account))
        begun += 1
    assert 10 < begun < 40  # a full account has three answers' cost
    account.reserve(-begun * expected_waste(estimate(), 0.5, account))
    assert account.left_usd(0.01) == pytest.approx(0.03)
