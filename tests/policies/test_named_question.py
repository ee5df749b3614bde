"""The named question: one span of a prompt is compared by meaning, the rest must be equal."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.policies.key import NOT_FOUND, KeyContext, Question, chat_key, find_question, raw_key
from headstart.types import CacheKey, ChatRequest

CONTEXT = KeyContext(dialect="openai-chat", path=b"/v1/chat/completions", upstream="u")
TEMPLATE = re.compile(r"(?s).*Question: (?P<query>.+?)\s*$")
PROMPT = "Document: open daily\nQuestion: caf\u00e9 open?"


@pytest.mark.parametrize(
    ("given_by", "text"),
    [
        ({"names": ["caf\u00e9 open?"]}, "caf\u00e9 open?"),
        ({"names": ["5%20", "open?"]}, "open?"),
        ({"names": ["daily"], "pattern": TEMPLATE}, "daily"),
        ({"pattern": TEMPLATE}, "caf\u00e9 open?"),
        ({"names": ["shop open?"]}, None),
        ({"names": ["shop open?"], "pattern": TEMPLATE}, None),
        ({"names": ["", " "]}, None),
        ({"pattern": re.compile("Q: (?P<query>.*)")}, None),
        ({"pattern": re.compile("(?P<query>x?)Document")}, None),
        ({"pattern": re.compile("(?P<query>x)?Document")}, None),
    ],
)
def test_a_question_is_named_or_matched_or_not_found(
    given_by: dict[str, Any], text: str | None
) -> None:
    found = find_question(PROMPT, **given_by)
    assert found is not None
    assert (None if found is NOT_FOUND else PROMPT[found.start : found.end]) == text


def test_nothing_names_a_question() -> None:
    assert find_question(PROMPT) is None


def test_the_last_of_several_copies_is_the_question() -> None:
    found = find_question("FAQ. Open? Yes.\nQuestion: Open?", names=["Open?"])
    assert found is not None
    assert found.start == 26


def key(text: str | list[str], question: Question | None, **fields: Any) -> CacheKey:
    content = text if isinstance(text, str) else [{"type": "text", "text": each} for each in text]
    document = {"model": "m", "messages": [{"role": "user", "content": content}], **fields}
    query = text if isinstance(text, str) else "\n".join(text)
    request = ChatRequest(model="m", stream=False, document=document, query=query)
    return chat_key(request, scope="s", context=CONTEXT, question=question)


def named_key(text: str | list[str], question: str, **fields: Any) -> CacheKey:
    whole = text if isinstance(text, str) else "\n".join(text)
    found = find_question(whole, names=[question])
    assert found is not NOT_FOUND
    return key(text, found, **fields)


def test_only_the_question_is_compared_by_meaning() -> None:
    one, other = (named_key(f"Doc A\nQ: {q}", q) for q in ("open today?", "is it open today?"))
    assert one.partition == other.partition
    assert one.exact != other.exact
    assert (one.query, other.query) == ("open today?", "is it open today?")


@pytest.mark.parametrize(
    ("text", "question", "fields"),
    [
        ("Doc B\nQ: open today?", "open today?", {}),
        ("Doc A\nQ: open today?!", "open today?", {}),
        ("Doc A\nQ: open today?", "open today?", {"temperature": 0}),
        ("Doc A\nQ: open today?", "today?", {}),
        (["Doc A", "Q: open today?"], "open today?", {}),
    ],
)
def test_everything_but_the_question_divides(
    text: str | list[str], question: str, fields: dict[str, Any]
) -> None:
    named = named_key("Doc A\nQ: open today?", "open today?")
    assert named_key(text, question, **fields).partition != named.partition


def test_a_question_in_one_of_several_parts_is_cut_there() -> None:
    one, other = (named_key(["Doc A", f"Q: {q}"], q) for q in ("open?", "is it open?"))
    assert one.partition == other.partition
    assert named_key(["Doc A\nQ: open?", ""], "open?").partition != one.partition


def test_a_question_across_parts_leaves_the_exact_tier_alone() -> None:
    one, other = (key(["Q: is it", q], Question(text=f"it\n{q}", start=6, end=9 + len(q)))
                  for q in ("open?", "closed?"))  # fmt: skip
    assert one.partition != other.partition


def test_a_named_question_and_a_whole_prompt_never_compare() -> None:
    assert named_key("open?", "open?").partition != key("open?", None).partition


def test_a_document_that_repeats_the_question_is_still_exact() -> None:
    five = named_key("The limit is 5.\nQuestion: 5", "5")
    seven = named_key("The limit is 7.\nQuestion: 7", "7")
    assert five.partition != seven.partition


words = st.text(alphabet="ab ?", max_size=6)
question_words = st.text(alphabet="ab ?", min_size=1, max_size=3).filter(str.strip)


@given(words, question_words, words, words, question_words, words)
def test_prompts_share_a_partition_only_if_all_but_the_question_is_equal(
    before: str, question: str, after: str, before2: str, question2: str, after2: str
) -> None:
    """Also for a question crafted to equal a part of the template or of a document."""
    texts = (before + question + after, before2 + question2 + after2)
    for make in (named_key, raw):
        one, other = make(texts[0], question), make(texts[1], question2)
        around = [
            _around(text, asked) for text, asked in zip(texts, (question, question2), strict=True)
        ]
        assert (one.partition == other.partition) == (around[0] == around[1])
        assert (one.exact == other.exact) == (around[0] == around[1] and question == question2)


def _around(text: str, question: str) -> tuple[str, str]:
    before, _, after = text.rpartition(question)
    return before, after


def raw(text: str, question: str) -> CacheKey:
    found = find_question(text, names=[question])
    return raw_key({"k": None}, query=text, scope="s", context=CONTEXT, question=found)
