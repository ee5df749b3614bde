"""Which stored answers another API can express completely."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.openai_responses import OPENAI_RESPONSES
from headstart.dialects.registry import in_dialect, refuse_in_dialect
from headstart.types import CacheKey, Choice, Completion, Entry, Origin, Text
from support.events import folded

PART = {"type": "output_text", "text": "Blue.", "annotations": [], "logprobs": []}
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "status": "completed"}
USAGE = {"input_tokens": 3, "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 0}}
ECHO = {"tools": [], "tool_choice": "auto", "temperature": 1.0, "truncation": "disabled"}
KEY = CacheKey(scope="s", partition="p", exact="e")
ORIGIN = Origin(model="m", upstream="u", ttft_s=0.0, total_s=0.0)


def entry(*output: Any, dialect: str = OPENAI_RESPONSES.name, **fields: Any) -> Entry:
    """Return the entry of an answer of Responses."""
    whole = {"id": "r", "object": "response", "status": "completed", "model": "m", "created_at": 1}
    document = {**whole, **ECHO, "usage": USAGE, "output": list(output), **fields}
    answer = folded(OPENAI_RESPONSES.decode_body(200, json.dumps(document).encode()))
    return Entry(id="1", key=KEY, answer=answer, origin=ORIGIN, created=0.0, dialect=dialect)


def message(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {**MESSAGE, "content": list(parts or (PART,)), **fields}


CHAT = OPENAI_CHAT.parse_request(b'{"model":"m","messages":[]}')
OWN = OPENAI_RESPONSES.parse_request(b'{"model":"m","input":"hi"}')
SEARCH = {"type": "web_search_call", "id": "w", "status": "completed"}
THOUGHT = {"type": "reasoning", "id": "t", "summary": []}
CITED = {"type": "url_citation", "url": "http://a.example", "start_index": 0, "end_index": 1}
CALL = {"type": "function_call", "id": "f", "call_id": "c", "name": "n", "arguments": "{}"}
REASONED = {**USAGE, "output_tokens_details": {"reasoning_tokens": 4}}


def test_a_text_is_told_whole_in_the_other_form() -> None:
    found = entry(message())
    assert refuse_in_dialect(CHAT, found) is None
    written = OPENAI_CHAT.write_body(in_dialect(found, OPENAI_CHAT.name), "c", 1)
    document = json.loads(written)
    assert document["choices"][0]["message"]["content"] == "Blue."
    assert document["usage"]["completion_tokens"] == 9
    assert "output_items" not in document


@pytest.mark.parametrize(
    ("output", "fields", "why"),
    [
        ([THOUGHT, message()], {}, "reasoning"),
        ([message()], {"usage": REASONED}, "reasoning"),
        ([message(phase="commentary")], {}, "phase"),
        ([message({**PART, "annotations": [CITED]})], {}, "annotations"),
        ([message({**PART, "logprobs": [{"token": "B", "logprob": 0.0}]})], {}, "logprobs"),
        ([SEARCH, message()], {}, "web_search_call"),
        ([CALL], {}, "function_call"),
        ([message(), message()], {}, "parts"),
        ([message(PART, PART)], {}, "parts"),
        ([message()], {"moderation": {"input": 1}}, "fields"),
        (
            [message()],
            {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
            "finish-reason",
        ),
    ],
)
def test_content_that_the_other_dialect_lacks_is_named(
    output: list[Any], fields: dict[str, Any], why: str
) -> None:
    found = entry(*output, **fields)
    assert refuse_in_dialect(CHAT, found) == f"other-api:{why}"
    assert refuse_in_dialect(OWN, found) is None


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        ([0, 1], "choices"),
        ([], "choices"),
        ([{"logprobs": {"content": [{"token": "B", "logprob": 0.0}]}}], "logprobs"),
    ],
)
def test_a_chat_that_the_other_dialect_cannot_tell_is_named(choices: list[Any], why: str) -> None:
    whole = tuple(
        Choice(
            index=number,
            parts=(Text(text="Blue."),),
            finish="stop",
            logprobs=choice["logprobs"] if isinstance(choice, dict) else None,
        )
        for number, choice in enumerate(choices)
    )
    answer = Completion(model="m", choices=whole, created=1)
    found = Entry(
        id="1", key=KEY, answer=answer, origin=ORIGIN, created=0.0, dialect=OPENAI_CHAT.name
    )
    assert refuse_in_dialect(OWN, found) == f"other-api:{why}"
    assert refuse_in_dialect(CHAT, found) is None


def test_an_entry_that_does_not_say_its_form_serves_nobody_whose_keys_are_shared() -> None:
    found = entry(message(), dialect="")
    assert refuse_in_dialect(OWN, found) == "other-api:unknown"
    assert refuse_in_dialect(CHAT, found) is None
