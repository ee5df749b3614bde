"""Logs that other tools wrote are read in the forms that these tools use."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from headstart.cli.data_sources import as_log_lines
from headstart.lab.commands.playing import read_log, read_replay_input

if TYPE_CHECKING:
    from pathlib import Path

MESSAGES = [{"role": "user", "content": "What is a hedge?"}]
ANSWER = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "gpt-4o",
    "choices": [{"index": 0, "finish_reason": "stop",
                 "message": {"role": "assistant", "content": "A second call."}}],
}  # fmt: skip
LITELLM: dict[str, Any] = {
    "id": "1", "call_type": "acompletion", "status": "success", "startTime": 1700000000.5,
    "endTime": 1700000001.0, "model": "gpt-4o", "messages": MESSAGES, "response": ANSWER,
    "model_parameters": {"temperature": 0.2}, "response_cost": 0.001,
}  # fmt: skip
SPEND: dict[str, Any] = {
    "request_id": "1", "call_type": "acompletion", "startTime": "2023-11-14T22:13:20.500000Z",
    "model": "gpt-4o", "messages": json.dumps(MESSAGES), "response": json.dumps(ANSWER),
}  # fmt: skip
LANGFUSE: dict[str, Any] = {
    "id": "1", "traceId": "t", "type": "GENERATION", "level": "DEFAULT", "model": "gpt-4o",
    "startTime": "2023-11-14T22:13:20.500Z", "modelParameters": {"temperature": 0.2},
    "input": MESSAGES, "output": {"role": "assistant", "content": "A second call."},
}  # fmt: skip
HELICONE: dict[str, Any] = {
    "request_id": "1", "request_created_at": "2023-11-14T22:13:20.500+00:00",
    "request_body": {"model": "gpt-4o", "messages": MESSAGES, "temperature": 0.2},
    "response_body": ANSWER, "response_status": 200,
}  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        LITELLM,
        {**LITELLM, "response": ANSWER["choices"][0]["message"]},  # type: ignore[index]
        SPEND,
        LANGFUSE,
        {**LANGFUSE, "input": {"messages": MESSAGES}},
        {**LANGFUSE, "input": "What is a hedge?", "output": "A second call."},
        HELICONE,
        {**HELICONE, "request_body": json.dumps(HELICONE["request_body"])},
    ],
)
def test_a_logged_call_is_a_request_and_its_answer(row: dict[str, Any], tmp_path: Path) -> None:
    [exchange] = read_log(as_log_lines([json.dumps(row).encode()]))
    assert exchange.at == 1700000000.5
    request = json.loads(exchange.request)
    assert (request["model"], request["messages"]) == ("gpt-4o", MESSAGES)
    assert request.get("temperature") in (None, 0.2)
    message = json.loads(exchange.response)["choices"][0]["message"]
    assert message["content"] == "A second call."
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps(row), "utf-8")
    assert len(read_replay_input([log]).rows) == 1


@pytest.mark.parametrize(
    "row",
    [
        {**LITELLM, "status": "failure", "response": {}},
        {**LITELLM, "messages": "redacted"},
        {**LANGFUSE, "type": "SPAN"},
        {**LANGFUSE, "level": "ERROR"},
        {**LANGFUSE, "output": None},
        {**HELICONE, "response_status": 500},
        {**HELICONE, "request_body": {"input": "an embedding"}},
        {**HELICONE, "response_body": {"error": {"message": "no"}}},
    ],
)
def test_a_call_without_an_answer_is_left_out(row: dict[str, Any]) -> None:
    assert list(as_log_lines([json.dumps(row).encode()])) == [b""]


@pytest.mark.parametrize(
    "line",
    [
        b'{"request": {"messages": []}, "response": {}}',
        b'{"messages": [{"role": "user", "content": "a"}]}',
        b'{"prompt": "a", "class": 1}',
        b'{"broken',
        b"[1]",
    ],
)
def test_other_lines_stay_as_they_are(line: bytes) -> None:
    assert list(as_log_lines([line])) == [line]
