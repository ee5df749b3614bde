"""Logs of requests and answers: three shapes, put in time order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headstart.lab.commands.playing import is_log, read_log
from headstart.lab.rates import LabelledDataError

ASKED = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
ANSWER = {"model": "m", "choices": [{"message": {"role": "assistant", "content": "Hello"}}]}


def lines(*rows: object) -> list[bytes]:
    return [msgspec.json.encode(row) for row in rows]


def bodies(row: dict[str, Any]) -> tuple[Any, Any]:
    (exchange,) = read_log(lines(row))
    return msgspec.json.decode(exchange.request), msgspec.json.decode(exchange.response)


def test_requests_and_responses_are_taken_as_they_are() -> None:
    assert bodies({"request": ASKED, "response": ANSWER}) == (ASKED, ANSWER)


def test_bodies_of_batches_are_unwrapped() -> None:
    row = {"request": {"body": ASKED}, "response": {"status_code": 200, "body": ANSWER}}
    assert bodies(row) == (ASKED, ANSWER)


def test_a_conversation_is_cut_before_its_answer() -> None:
    said = [*ASKED["messages"], {"role": "assistant", "content": "Hello"}]
    request, response = bodies({"messages": said, "model": "m"})
    assert request == ASKED
    assert response["choices"][0]["message"] == said[-1]


def test_lines_are_put_in_time_order_when_all_tell_it() -> None:
    rows = [{"request": ASKED, "response": ANSWER, "at": at} for at in (3, 1, 2)]
    assert [exchange.line for exchange in read_log(lines(*rows))] == [2, 3, 1]
    del rows[1]["at"]
    assert [exchange.line for exchange in read_log(lines(*rows))] == [1, 2, 3]


@pytest.mark.parametrize(
    "row",
    [{"request": ASKED}, {"response": ANSWER}, {"messages": []}, {"messages": ASKED["messages"]}],
)
def test_a_line_without_an_answer_is_named(row: dict[str, Any]) -> None:
    with pytest.raises(LabelledDataError, match="line 1: give request and response"):
        read_log(lines(row))


def test_logs_are_told_from_labelled_prompts() -> None:
    assert is_log({"request": 1})
    assert is_log({"messages": 1})
    assert not is_log({"prompt": 1, "class": 2})
