"""Live drafts: the final request of a draft is found, and early calls keep to their costs."""

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
    Inference,
    Trigger,
    TriggerUse,
    WasteAccount,
    ending,
    expected_waste,
    inference_prompt,
    kept_inferences,
    next_segment,
    read_inference,
    read_template,
    refuse_call,
    refuse_warming,
    same_prompt,
    submitted_text,
    with_inferences,
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


def test_wasted_dollars_stay_a_share_of_the_cost_of_answers() -> None:
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
    assert refuse_warming(long, estimate(), account, only_warming=True, budget_usd=1.0) is None
    assert (
        refuse_warming(long, estimate(warm=True), account, only_warming=True, budget_usd=1.0)
        == "warm"
    )
    assert (
        refuse_warming(long, estimate(), account, only_warming=True, budget_usd=0.001) == "budget"
    )
    short = read_template(body(PLACEHOLDER))
    assert refuse_warming(short, estimate(), account, only_warming=True, budget_usd=1.0) == "short"


def test_the_extra_cost_of_warming_is_learned() -> None:
    account = WasteAccount(0.15)
    account.answered(1.0)
    for _ in range(50):
        account.warmed(0.01, 0.009)
    assert account.warm_extra == pytest.approx(0.1, abs=0.01)


def test_early_answers_have_the_first_claim() -> None:
    long = read_template(body("x" * 8000 + PLACEHOLDER))
    account = WasteAccount(0.15)
    assert refuse_warming(long, estimate(), account, only_warming=False, budget_usd=1.0) is None
    account.wasted(0.6 * account.left_usd(0.01))
    assert (
        refuse_warming(long, estimate(), account, only_warming=False, budget_usd=1.0)
        == "extra-cost"
    )
    assert refuse_warming(long, estimate(), account, only_warming=True, budget_usd=1.0) is None


def test_calls_at_the_same_time_share_what_may_be_wasted() -> None:
    account, begun = WasteAccount(0.15), 0
    while refuse_call(estimate(), 0.5, account, budget_usd=1.0) is None:
        account.reserve(expected_waste(estimate(), 0.5, account))
        begun += 1
    assert 10 < begun < 40  # a full account has three answers' cost
    account.reserve(-begun * expected_waste(estimate(), 0.5, account))
    assert account.left_usd(0.01) == pytest.approx(0.03)


LONG = (
    "A train leaves at nine with 240 passengers on board. At the first stop 35 people leave it and "
    "12 get on. At the second stop half of all passengers leave. Nobody gets on there. The third "
    "stop is in the mountains, where the train waits for ten minutes. Then 20 more people get on. "
    "How many passengers are on the train now?"
)


def test_inferences_read_finished_sentences_in_turn() -> None:
    inferences: list[Inference] = []
    read = []
    for end in range(len(LONG) + 1):
        segment = next_segment(LONG[:end], inferences)
        if segment is not None:
            read.append(segment)
            inferences.append(read_inference(segment, f"Fact {len(read)}."))
    assert all(LONG.startswith(each) and each.endswith((".", "?")) for each in read)
    assert read == sorted(read, key=len)
    assert len(read) >= 2
    assert not read[-1].endswith(
        "now?"
    )  # the last segment is held back: what follows may change it
    final = with_inferences(LONG, inferences)
    assert final is not None
    assert final.startswith(LONG)
    assert "- Fact 1." in final


def test_a_short_prompt_needs_no_inference() -> None:
    assert next_segment("One. Two. Three. Four.", []) is None


def test_an_edit_drops_what_was_inferred_from_the_old_text() -> None:
    segment = next_segment(LONG, [])
    assert segment is not None
    old = [read_inference(segment[:60], "a"), read_inference(segment, "b")]
    edited = LONG[:70].replace("nine", "nine") + "XXXX" + LONG[74:]
    assert [each.text for each in kept_inferences(old, edited)] == ["a"]


@pytest.mark.parametrize("said", ["wait", "Wait.", ' "wait" ', "", "  "])
def test_a_model_that_says_wait_gives_no_inference(said: str) -> None:
    assert read_inference("x", said).text == ""
    assert with_inferences("x", [read_inference("x", said)]) is None


def test_the_question_for_an_inference_has_what_was_said() -> None:
    asked = inference_prompt(
        "Part one.", [Inference("Part", "It is one."), Inference("Part o", "")]
    )
    assert "Part one." in asked
    assert asked.count("- ") == 1
