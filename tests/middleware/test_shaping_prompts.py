"""Prompts of three dialects in the form that compression reads, and back."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from headstart.compression.compress import compress
from headstart.compression.lossless import expand
from headstart.dialects.registry import DIALECTS as RECORDS
from support.prompts import ROWS, TABLE, chat, contents, messages

if TYPE_CHECKING:
    from headstart.settings import CompressionMode

RESULT = {"type": "tool_result", "content": TABLE}
USE = {"type": "tool_use", "name": "f", "input": {}}
DIALECTS = {
    "openai-chat": chat,
    "anthropic-messages": messages,
    "gemini-generate": contents,
}


def compressed(dialect: str, document: dict[str, Any]) -> dict[str, Any]:
    prompt = RECORDS[dialect].form.read(document)
    assert prompt is not None
    return prompt.with_messages(compress(prompt.messages).messages)


def result_of(dialect: str, document: dict[str, Any]) -> Any:
    match dialect:
        case "openai-chat":
            return document["messages"][3]["content"]
        case "anthropic-messages":
            return document["messages"][2]["content"][0]["content"]
    return document["contents"][2]["parts"][0]["functionResponse"]["response"]["output"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_only_the_result_changes_and_can_be_read_back(dialect: str) -> None:
    document = DIALECTS[dialect]()
    before = copy.deepcopy(document)
    sent = compressed(dialect, document)
    short = result_of(dialect, sent)
    assert len(short) < 0.6 * len(TABLE)
    assert json.loads(expand(short)) == ROWS
    assert document == before
    whole = copy.deepcopy(sent)
    match dialect:
        case "openai-chat":
            whole["messages"][3]["content"] = TABLE
        case "anthropic-messages":
            whole["messages"][2]["content"][0]["content"] = TABLE
        case _:
            whole["contents"][2]["parts"][0]["functionResponse"]["response"]["output"] = TABLE
    assert whole == before


@pytest.mark.parametrize("dialect", DIALECTS)
def test_unchanged_messages_keep_their_objects(dialect: str) -> None:
    document = DIALECTS[dialect]("short")
    field = "contents" if dialect == "gemini-generate" else "messages"
    sent = compressed(dialect, document)
    assert all(new is old for new, old in zip(sent[field], document[field], strict=True))
    document = DIALECTS[dialect]()
    sent = compressed(dialect, document)
    assert [new is old for new, old in zip(sent[field], document[field], strict=True)] == [
        *[True] * (len(document[field]) - 1),
        False,
    ]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_results_that_show_files_are_left_alone(dialect: str) -> None:
    document = DIALECTS[dialect](tool="read_file")
    assert result_of(dialect, compressed(dialect, document)) is result_of(dialect, document)


def test_a_result_that_tells_an_error_is_left_alone() -> None:
    document = messages()
    document["messages"][2]["content"][0]["is_error"] = True
    assert compressed("anthropic-messages", document) == document


def test_only_the_plain_text_of_a_result_in_parts_is_changed() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "aa"}}
    kept = {"type": "text", "text": TABLE, "citations": []}
    parts = [image, {"type": "text", "text": TABLE}, kept]
    sent = compressed("anthropic-messages", messages(parts))["messages"][2]["content"][0]["content"]
    assert sent[0] is image
    assert len(sent[1]["text"]) < len(TABLE)
    assert sent[2] is kept


def test_geminis_answers_without_a_call_before_them_are_left_alone() -> None:
    document = contents()
    del document["contents"][1]
    assert compressed("gemini-generate", document) == document


def test_geminis_calls_of_one_name_are_told_apart_by_their_order() -> None:
    document = contents()
    path = {"functionCall": {"name": "look", "args": {"path": "/etc/hosts"}}}
    other = {"functionCall": {"name": "look", "args": {"topic": "flights"}}}
    answer = {"functionResponse": {"name": "look", "response": {"output": TABLE}}}
    document["contents"][1]["parts"] = [path, other]
    document["contents"][2]["parts"] = [answer, copy.deepcopy(answer)]
    first, second = compressed("gemini-generate", document)["contents"][2]["parts"]
    assert first is answer
    assert len(second["functionResponse"]["response"]["output"]) < len(TABLE)


def test_geminis_structured_answers_are_left_alone() -> None:
    document = contents()
    response = document["contents"][2]["parts"][0]["functionResponse"]
    response["response"] = {"output": TABLE, "more": TABLE}
    assert compressed("gemini-generate", document) == document


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_messages_of_a_request_begin_the_next_request(dialect: str) -> None:
    document = DIALECTS[dialect]()
    field = "contents" if dialect == "gemini-generate" else "messages"
    sent = compressed(dialect, document)
    longer = {**document, field: [*document[field], *document[field]]}
    again = compressed(dialect, longer)[field]
    assert again[: len(document[field])] == sent[field]


@pytest.mark.parametrize(
    ("dialect", "document"),
    [
        ("openai-chat", {"messages": [{"role": ["user"], "content": TABLE}]}),
        ("openai-chat", {"messages": [{"role": "user", "content": 5}]}),
        ("openai-chat", {"messages": [{"role": "assistant", "tool_calls": 5}]}),
        ("openai-chat", {"messages": [{"role": "tool", "tool_call_id": ["x"], "content": 5}]}),
        ("anthropic-messages", {"messages": [{"role": "user", "content": [5]}]}),
        ("anthropic-messages", {"messages": [{"role": ["user"], "content": [TABLE]}]}),
        ("anthropic-messages", {"messages": [{"role": "user", "content": [RESULT]}]}),
        ("anthropic-messages", {"messages": [{"role": "assistant", "content": [USE]}]}),
        ("anthropic-messages", {"messages": [], "system": 5}),
        ("gemini-generate", {"contents": [5]}),
        ("gemini-generate", {"contents": [{"parts": 5}]}),
        ("gemini-generate", {"contents": [{"role": "model", "parts": [{"functionCall": {}}]}]}),
        ("gemini-generate", {"contents": [{"parts": [{"functionResponse": {"name": ["f"]}}]}]}),
        ("gemini-generate", {"contents": [], "systemInstruction": {"parts": 5}}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["safe", "aggressive"])
def test_malformed_messages_are_left_to_the_provider(
    dialect: str, document: dict[str, Any], mode: CompressionMode
) -> None:
    prompt = RECORDS[dialect].form.read(document)
    assert prompt is None or not compress(prompt.messages, mode=mode, clear_history=True).spans


# --- more text at the end of the system text ---------------------------------------------------

WORDS = "Answer directly."
USER = {"role": "user", "content": "Why does the moon move the sea?"}
BLOCK = {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}


def with_text(document: dict[str, Any], dialect: str, text: str) -> dict[str, Any] | None:
    return RECORDS[dialect].form.with_system_text(document, text)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([USER], [{"role": "system", "content": WORDS}, USER]),
        (
            [{"role": "system", "content": "Be kind."}, USER],
            [{"role": "system", "content": "Be kind.\n\n" + WORDS}, USER],
        ),
        (
            [{"role": "system", "content": "A"}, {"role": "developer", "content": "B"}, USER],
            [
                {"role": "system", "content": "A"},
                {"role": "developer", "content": "B\n\n" + WORDS},
                USER,
            ],
        ),
        (
            [{"role": "system", "content": [BLOCK]}, USER],
            [{"role": "system", "content": [BLOCK, {"type": "text", "text": WORDS}]}, USER],
        ),
    ],
)
def test_the_words_end_the_system_text(before: list[Any], after: list[Any]) -> None:
    document = with_text({"model": "m", "messages": before}, "openai-chat", WORDS)
    assert document == {"model": "m", "messages": after}


@pytest.mark.parametrize(
    ("system", "after"),
    [
        (None, WORDS),
        ("Be kind.", "Be kind.\n\n" + WORDS),
        ([BLOCK], [BLOCK, {"type": "text", "text": WORDS}]),
    ],
)
def test_anthropics_system_text_keeps_its_form_and_its_marks(system: Any, after: Any) -> None:
    document = {"messages": [USER]} if system is None else {"messages": [USER], "system": system}
    changed = with_text(document, "anthropic-messages", WORDS)
    assert changed is not None
    assert changed["system"] == after
    assert changed["messages"] is document["messages"]


def test_geminis_instruction_gets_another_part() -> None:
    part = {"text": "Be kind."}
    changed = with_text({"systemInstruction": {"parts": [part]}}, "gemini-generate", WORDS)
    assert changed == {"systemInstruction": {"parts": [part, {"text": WORDS}]}}
    assert with_text({}, "gemini-generate", WORDS) == {
        "systemInstruction": {"parts": [{"text": WORDS}]}
    }


def test_a_system_text_of_no_known_form_stays_as_it_is() -> None:
    odd = {"messages": [{"role": "system", "content": 7}, USER]}
    assert with_text(odd, "openai-chat", WORDS) is None
    assert with_text({"systemInstruction": "Be kind."}, "gemini-generate", WORDS) is None


def test_a_turn_more_leaves_the_prefix_as_it_was() -> None:
    turns = [USER, {"role": "assistant", "content": "Gravity."}, {"role": "user", "content": "So?"}]
    short = with_text({"messages": turns[:1]}, "openai-chat", WORDS)
    longer = with_text({"messages": turns}, "openai-chat", WORDS)
    assert short is not None
    assert longer is not None
    assert longer["messages"][:2] == short["messages"]
