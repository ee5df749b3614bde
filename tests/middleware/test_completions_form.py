"""Legacy completions: their requests and answers are read and written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headstart.dialects.openai_completions import OPENAI_COMPLETIONS
from headstart.errors import InvalidRequest
from headstart.policies.admission import Admission
from support.events import folded


def request(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "x", **fields}).encode()


@pytest.mark.parametrize(
    ("fields", "choices"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"prompt": ["a", "b"], "n": 2}, 4),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1], [2]]}, 2),
        ({"prompt": []}, 1),
    ],
)
def test_each_prompt_has_its_choices(fields: dict[str, Any], choices: int) -> None:
    assert OPENAI_COMPLETIONS.parse_request(request(**fields)).choices == choices


@pytest.mark.parametrize(
    "fields",
    [
        {"model": 1},
        {"n": 0},
        {"stream": "yes"},
        {"stream_options": 1},
        {"user": 1},
        {"safety_identifier": 1},
    ],
)
def test_fields_of_other_types_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        OPENAI_COMPLETIONS.parse_request(request(**fields))


def test_users_that_differ_in_one_of_their_two_names_are_not_the_same() -> None:
    names = [{"user": "a"}, *({"user": "a", "safety_identifier": each} for each in ("b", "c"))]
    users = {OPENAI_COMPLETIONS.parse_request(request(**each)).user for each in names}
    assert len(users) == 3


@pytest.mark.parametrize("finish", ["stop", "length", "content_filter"])
def test_an_answer_that_its_limit_cut_is_kept_since_the_limit_is_keyed(finish: str) -> None:
    body = {"model": "m", "choices": [{"index": 0, "text": "a", "finish_reason": finish}]}
    answer = folded(OPENAI_COMPLETIONS.decode_body(200, json.dumps(body).encode()))
    refusal = Admission().refuse_store(OPENAI_COMPLETIONS.parse_request(request()), answer)
    assert refusal == ("content-filter" if finish == "content_filter" else None)


def test_an_answer_of_several_choices_is_replayed_in_the_order_of_its_text() -> None:
    dialect = OPENAI_COMPLETIONS
    body = {
        "id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m",
        "choices": [
            {"index": 0, "text": "añ🙂" * 150, "logprobs": None, "finish_reason": "stop",
             "stop_reason": 2},
            {"index": 1, "text": "", "logprobs": {"tokens": [], "top_logprobs": None},
             "finish_reason": "length"},
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
        "kv_transfer_params": {"a": 1},
    }  # fmt: skip
    completion = folded(dialect.decode_body(200, json.dumps(body).encode()))
    assert json.loads(dialect.render(completion).json("cmpl-1", 1)) == body
    frames = dialect.render(completion).sse("cmpl-1", 1, include_usage=True).split(b"\n\n")
    chunks = [json.loads(frame.removeprefix(b"data: ")) for frame in frames[:-2]]
    assert frames[-2:] == [b"data: [DONE]", b""]
    assert {chunk["id"] for chunk in chunks} == {"cmpl-1"}
    texts = [c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == 0]
    assert "".join(texts) == body["choices"][0]["text"]  # type: ignore[index]
    assert chunks[-1]["usage"] == body["usage"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-2]["kv_transfer_params"] == {"a": 1}
