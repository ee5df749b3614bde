from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from headstart import compress
from headstart.compression.compress import results_to_clear
from headstart.compression.passages import CLEARED

Message = dict[str, Any]


def session(results: int, name: str = "lookup", **fields: Any) -> list[Message]:
    messages: list[Message] = [{"role": "user", "content": "What is it?"}]
    for number in range(results):
        function = {"name": name, "arguments": json.dumps({"n": number})}
        call = {"id": f"c{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        content = f"Result {number} is here and it is long. " * 80
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": content, **fields})
    return messages


def cleared(messages: list[Message]) -> list[bool]:
    sent = compress(messages, clear_history=True).messages
    return [message["content"] == CLEARED for message in sent if message["role"] == "tool"]


def test_old_results_are_cleared_together_and_the_latest_stay() -> None:
    assert cleared(session(4)) == [False] * 4
    assert cleared(session(6)) == [True, True, True, False, False, False]


def test_between_epochs_what_was_sent_is_a_prefix() -> None:
    messages = session(30)
    sent = [
        compress(messages[:end], clear_history=True).messages for end in range(1, len(messages) + 1)
    ]
    rewrites = sum(after[: len(before)] != before for before, after in pairwise(sent))
    assert 5 <= rewrites <= 12
    for before, after in pairwise(sent):
        gone = {number for number, message in enumerate(before) if message["content"] == CLEARED}
        assert all(after[number]["content"] == CLEARED for number in gone)


def test_a_span_says_that_a_result_was_omitted() -> None:
    messages = session(6)
    span = compress(messages, clear_history=True).spans[0]
    assert (span.message, span.transforms, span.lossless) == (2, ("history",), False)
    assert span.source_end == len(messages[2]["content"])


def test_files_and_errors_are_never_cleared() -> None:
    assert not any(cleared(session(9, name="read_file")))
    assert not any(cleared(session(9, is_error=True)))


def test_a_result_of_one_block_is_cleared_like_a_text() -> None:
    messages = session(6)
    for message in messages:
        if message["role"] == "tool":
            message["content"] = [{"type": "text", "text": message["content"]}]
    done = compress(messages, clear_history=True)
    assert [span.message for span in done.spans] == [2, 4, 6]
    assert done.messages[2]["content"] == [{"type": "text", "text": CLEARED}]
    messages[2]["content"].append({"type": "image_url", "image_url": {"url": "data:"}})
    assert [span.message for span in compress(messages, clear_history=True).spans] == []


def test_nothing_is_cleared_unless_asked_for() -> None:
    messages = session(9)
    assert compress(messages).messages == messages
    assert compress(messages, mode="off", clear_history=True).messages == messages
    assert compress(messages).version != compress(messages, clear_history=True).version


def test_a_long_tail_must_be_outweighed() -> None:
    sizes = [8000, 100, 100, 100, 90_000, 10]
    clearable = [True, True, True, False, False, True]
    assert results_to_clear(sizes, clearable) == frozenset()
    assert results_to_clear([8000, 100, 100, 100, 9_000, 10], clearable) == {0}
