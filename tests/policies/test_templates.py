"""The template that many prompts share is taken out of their keys, and only that."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.decisions import Encoding
from headstart.policies.guards.table import parse_prompt, task_of
from headstart.policies.key import LEAST_SHARED, MOST_TEMPLATES, WINDOW, Templates
from headstart.policies.match import StaticMatch
from headstart.types import CacheKey

if TYPE_CHECKING:
    from collections.abc import Iterable

EMPTY = Encoding(
    sentence=np.zeros(0, np.float32), tokens=np.zeros((0, 0), np.float32), spans=(), complete=False
)
QUESTIONS = [
    f"{opening} {thing}"
    for opening in ("how do I cancel", "where can I find", "what does it cost to renew")
    for thing in ("my order", "a ticket", "the invoice", "our contract", "the parcel", "this plan")
]
LONG = "You answer the customers of a shop. Be brief.\n\nMessage: {}\n\nAnswer in one sentence:"


def key(text: str, partition: str = "p", conversation: str | None = None) -> CacheKey:
    exact = f"{partition} {text}"
    return CacheKey(
        scope="s", partition=partition, exact=exact, query=text, conversation=conversation
    )


def taken_out(texts: Iterable[str], templates: Templates | None = None) -> list[CacheKey]:
    templates = templates or Templates()
    return [templates.take_out(key(text)) for text in texts]


@pytest.mark.parametrize(
    "template",
    [
        LONG,
        "Translate to French: {}",
        'Which team should answer "{}"? Reply with its name.',
        "<role>a helpful clerk</role>\n<message>{}</message>\nReply with a label only.",
        "Answer this for our customer.\n{}",
        "{}\n\nReply with a label, and no other words.",
        "Réponds à la question suivante : {}",
    ],
)
def test_the_question_is_all_that_prompts_with_one_template_do_not_share(template: str) -> None:
    keys = taken_out(template.format(question) for question in QUESTIONS)
    found = keys[LEAST_SHARED:]
    assert [each.query for each in found] == QUESTIONS[LEAST_SHARED:]
    assert len({each.partition for each in found}) == 1
    assert [each.partition for each in keys[: LEAST_SHARED - 1]] == ["p"] * (LEAST_SHARED - 1)
    exacts = [key(template.format(question)).exact for question in QUESTIONS]
    assert [each.exact for each in keys] == exacts


def test_two_templates_in_turn_are_both_found_and_never_share_a_partition() -> None:
    other = LONG.replace("one sentence", "French")
    keys = taken_out(each.format(question) for question in QUESTIONS for each in (LONG, other))
    assert [each.query for each in keys[-4:]] == [q for q in QUESTIONS[-2:] for _ in range(2)]
    assert keys[-1].partition != keys[-2].partition
    assert keys[-1].partition == keys[-3].partition


@pytest.mark.parametrize(
    "prompts",
    [
        QUESTIONS,
        [f"{question}?" for question in QUESTIONS],
        [f"Hi there! {question}, please. Thank you!" for question in QUESTIONS],
        [f"{question}? I asked on day {day}." for day, question in enumerate(QUESTIONS)],
        [f"please tell me: {question}. Thank you very much." for question in QUESTIONS],
    ],
)
def test_prompts_that_people_write_have_no_template(prompts: list[str]) -> None:
    assert taken_out(prompts) == [key(prompt) for prompt in prompts]


def test_a_repeat_does_not_count() -> None:
    few = [LONG.format(question) for question in QUESTIONS[: LEAST_SHARED - 1]]
    assert taken_out(few * 5) == [key(prompt) for prompt in few * 5]


def test_a_text_that_few_of_the_latest_prompts_share_is_no_template() -> None:
    others = (f"question number {number} of them" for number in range(10_000))
    templates, step = Templates(), WINDOW // (LEAST_SHARED - 2)
    for question in QUESTIONS:
        for _ in range(step):
            templates.take_out(key(next(others)))
        framed = key(LONG.format(question))
        assert templates.take_out(framed) == framed


@pytest.mark.parametrize(
    "other",
    [
        "You answer the customers of a shop. Be brief.\n\nName no price.\n\nMessage: {}",
        "You answer the customers of a bank. Be brief.\n\nMessage: {}",
        "You answer the customers of a shop. Be brief.\n\nMessage: {}\n\nReply in formal French.",
    ],
)
def test_a_template_may_change(other: str) -> None:
    templates = Templates()
    first = "You answer the customers of a shop. Be brief.\n\nMessage: {}"
    old = taken_out((first.format(question) for question in QUESTIONS), templates)[-1]
    new = taken_out((other.format(question) for question in QUESTIONS), templates)
    assert [each.query for each in new[LEAST_SHARED:]] == QUESTIONS[LEAST_SHARED:]
    assert new[-1].partition != old.partition
    again = taken_out([first.format(question) for question in QUESTIONS], templates)
    assert {each.partition for each in again} == {old.partition}


def test_two_templates_that_begin_alike_never_share_a_partition() -> None:
    begin = "You are the translator of a bank.\n"
    french, german = (f"{begin}Write it in {name}, please.\n{{}}" for name in ("French", "German"))
    prompts = [each.format(question) for question in QUESTIONS for each in (french, german)]
    keys = taken_out(prompts)
    assert [key.query for key in keys[-4:]] == [q for q in QUESTIONS[-2:] for _ in range(2)]
    assert keys[-1].partition != keys[-2].partition


def test_templates_in_use_stay_known() -> None:
    templates = Templates()
    first = taken_out((LONG.format(question) for question in QUESTIONS), templates)[-1]
    for number in range(3 * MOST_TEMPLATES):
        other = f"Rule number {number} of our shop is this.\n{{}}"
        taken_out((other.format(question) for question in QUESTIONS), templates)
        found = templates.take_out(key(LONG.format("how do I pay")))
        assert (found.partition, found.query) == (first.partition, "how do I pay")


def test_each_partition_has_its_own_templates() -> None:
    templates = Templates()
    taken_out((LONG.format(question) for question in QUESTIONS), templates)
    foreign = key(LONG.format("how do I pay"), partition="other")
    assert templates.take_out(foreign) == foreign


def test_a_template_without_a_question_stays_whole() -> None:
    templates = Templates()
    taken_out((LONG.format(question) for question in QUESTIONS), templates)
    bare = key(LONG.format("?!"))
    assert templates.take_out(bare) == bare


def test_a_conversation_has_no_template() -> None:
    prompts = [key(LONG.format(question), conversation="c") for question in QUESTIONS]
    templates = Templates()
    assert [templates.take_out(prompt) for prompt in prompts] == prompts


def test_a_template_with_examples_is_found() -> None:
    examples = "".join(f"Q: is {number} even?\nA: it is\n" for number in range(400))
    keys = taken_out(f"{examples}Q: {question}\nA: (in one word)" for question in QUESTIONS)
    assert [each.query for each in keys[LEAST_SHARED:]] == QUESTIONS[LEAST_SHARED:]


@pytest.mark.parametrize(
    "unit", ["'", " ", "(", "> ", "\n", ". ", " A", '")', "<a>", "a. A", '":"', '"}']
)
def test_a_text_of_nothing_but_signs_takes_no_long_time(unit: str) -> None:
    templates = Templates()
    began = time.thread_time()
    for number in range(20):
        templates.take_out(key(f"prompt number {number}: {unit * 16_000}"[:16_000]))
    assert time.thread_time() - began < 2.0  # square time would take ten


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(alphabet="ab \n.:\"'<>({éA?", max_size=60), min_size=1, max_size=20))
def test_equal_keys_have_equal_texts(texts: list[str]) -> None:
    """Whatever is taken out belongs to the partition: nothing of a text is lost but spaces."""
    prompts = [f"Say yes or no. {text}\nOne word is enough." for text in texts]
    prompts += [f"{text}\nQuestion: {text[:9]}\nAnswer:" for text in texts]
    prompts += [f'{{"{text}", "question": "{text[9:]}"}}' for text in texts]
    known: dict[tuple[str, str | None], str] = {}
    for prompt, found in zip(prompts, taken_out(prompts * 2), strict=False):
        same = known.setdefault((found.partition, found.query), prompt)
        assert "".join(same.split()) == "".join(prompt.split())


# --- a labelled question -------------------------------------------------------------------------

RETRIEVAL = "Use these documents to answer.\n\n{}\n\n{}"
DOCUMENTS = [f"Rule {n}: parcels of zone {n} take {n + 2} days.\nNo refunds." for n in range(3)]


def with_documents(ending: str) -> list[tuple[str, str, str]]:
    """Return (document, question, prompt)."""
    return [
        (document, question, RETRIEVAL.format(document, ending.format(question)))
        for question in QUESTIONS
        for document in DOCUMENTS
    ]


@pytest.mark.parametrize(
    "ending",
    [
        "Question: {}",
        "Question: {}\nHelpful Answer:",
        "User query:\n{}\n\n### Answer\n",
        "### Question\n{}\n\n### Answer",
        "[[ ## question ## ]]\n{}",
        "Now answer the following question: {}\nAnswer: ",
        "A customer of ours asks: {}\nBe short and friendly, and name your source.",
    ],
)
def test_documents_before_a_labelled_question_must_be_equal(ending: str) -> None:
    prompts = with_documents(ending)
    keys = taken_out(text for _, _, text in prompts)
    late = list(zip(prompts, keys, strict=True))[WINDOW:]
    assert [found.query for _, found in late] == [question for (_, question, _), _ in late]
    partitions = {document: set[str]() for document in DOCUMENTS}
    for (document, _, _), found in late:
        partitions[document].add(found.partition)
    assert [len(each) for each in partitions.values()] == [1, 1, 1]
    assert len(set.union(*partitions.values())) == 3


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
def test_the_last_field_of_json_may_name_the_question(separators: tuple[str, str]) -> None:
    """Quotes in a document begin no field."""
    prompts = [
        json.dumps({"context": f'"question": "{q}" {d}', "user_query": q}, separators=separators)
        for q in QUESTIONS
        for d in DOCUMENTS
    ]
    asked = [question for question in QUESTIONS for _ in DOCUMENTS]
    found = taken_out(prompts)[WINDOW:]
    assert [each.query for each in found] == asked[WINDOW:]
    assert len({each.partition for each in found}) == len(found)
    turned = [
        json.dumps({"question": q, "context": f"{d} {n}"}, separators=separators)
        for n, q in enumerate(QUESTIONS)
        for d in DOCUMENTS
    ]
    assert all("refunds" in (each.query or "") for each in taken_out(turned))


@pytest.mark.parametrize(
    "ending",
    [
        "Question: {}\n\nContext: {}",  # the question is not the last text
        "SQL query: {}",
        "Context: {}",
        "Error message: {}",
    ],
)
def test_another_label_names_no_question(ending: str) -> None:
    documents = [f"{question.title()} in zone {n}." for n, question in enumerate(QUESTIONS)]
    asked = list(zip(documents, reversed(QUESTIONS), strict=True))
    prompts = [
        RETRIEVAL.format(document, ending.format(question, document))
        for document, question in asked
    ]
    for document, found in zip(documents, taken_out(prompts), strict=True):
        assert document in (found.query or "")


def test_a_document_with_a_label_in_it_is_no_question() -> None:
    prompts = [
        RETRIEVAL.format(f"{number} x\nQuestion: {question}\nAnswer: no", f"Is {number} right?")
        for number, question in enumerate(QUESTIONS)
    ]
    for prompt, found in zip(prompts, taken_out(prompts), strict=True):
        assert "Question: " in (found.query or "")
        assert prompt.endswith(found.query or "-")


def test_a_label_that_few_prompts_have_is_part_of_the_text() -> None:
    few = [f"Read this {n}.\nQuestion: {q}" for n, q in enumerate(QUESTIONS[: LEAST_SHARED - 1])]
    assert taken_out(few) == [key(prompt) for prompt in few]


def test_a_labelled_question_is_found_below_a_very_long_document() -> None:
    long = [f"{'word ' * 9000}{n}\nQuestion: {q}" for n, q in enumerate(QUESTIONS)]
    assert [each.query for each in taken_out(long)[LEAST_SHARED:]] == QUESTIONS[LEAST_SHARED:]


def test_a_prompt_of_code_keeps_its_last_line() -> None:
    code = [f"Complete this function for me.\ndef f(x):\n    if x > {n}:" for n in range(20)]
    assert all((each.query or "").endswith(":") for each in taken_out(code))


# --- the task in a template -----------------------------------------------------------------------


def test_the_wording_counts_where_a_template_may_be_about_it() -> None:
    task = task_of("Translate into German:")
    match = StaticMatch()
    dogs, dog = (parse_prompt(text, EMPTY, task) for text in ("the dogs bark", "the dog barks"))
    assert match.veto(dogs, dog) == "substitution"
    assert match.veto(dogs, parse_prompt("The dogs bark!", EMPTY, task)) is None


def test_a_frame_around_a_question_asks_nothing_of_its_own() -> None:
    assert task_of("Please answer the question of this user.\n\nQuestion:") == ""
    assert task_of("Translate the question of this user:") != ""
    assert task_of("Translate into German:") != task_of("Translate into French:")
