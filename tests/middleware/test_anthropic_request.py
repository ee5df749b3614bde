from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.errors import InvalidRequest

if TYPE_CHECKING:
    from headstart.dialects.dialect import Dialect

DIALECT: Dialect = ANTHROPIC_MESSAGES
HELLO = [{"role": "user", "content": "Hello"}]


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "max_tokens": 9, "messages": HELLO, **fields}).encode()


MALFORMED = {
    "not JSON": (b"model=m", "JSON"),
    "an array": (b"[]", "object"),
    "nested 200 deep": (body(metadata=json.loads("[" * 200 + "]" * 200)), "deep"),
    "no model": (b'{"messages":[]}', "model:"),
    "no messages": (b'{"model":"m"}', "messages:"),
    "a message is a string": (body(messages=["x"]), r"messages\[0\]:"),
    "stream is a string": (body(stream="true"), "stream:"),
    "max_tokens is a string": (body(max_tokens="9"), "max_tokens:"),
    "metadata is a string": (body(metadata="u"), "metadata:"),
    "user_id is a number": (body(metadata={"user_id": 1}), "user_id:"),
}


@pytest.mark.parametrize(("raw", "field"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_request_is_refused_by_name(raw: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        DIALECT.parse_request(raw)


def test_fields_are_read() -> None:
    raw = body(stream=True, metadata={"user_id": "u1"}, system="Be brief.")
    request = DIALECT.parse_request(raw)
    assert (request.model, request.stream, request.max_tokens) == ("m", True, 9)
    assert (request.query, request.user, request.choices) == ("Hello", "u1", 1)
    assert request.document == json.loads(raw)
    assert not request.duplicate_keys


def test_nothing_is_added_to_a_request() -> None:
    raw = body(stream=True)
    assert DIALECT.add_usage(raw, DIALECT.parse_request(raw)) is None


def test_repeated_key_is_noticed() -> None:
    assert DIALECT.parse_request(b'{"model":"m","model":"n","messages":[]}').duplicate_keys


QUERIES: dict[str, tuple[list[dict[str, Any]], str | None]] = {
    "blocks of text": (
        [{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}],
        "a\nb",
    ),
    "a prefilled answer": ([*HELLO, {"role": "assistant", "content": "The"}], None),
    "a tool's result": (
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}],
        None,
    ),
    "an image": ([{"role": "user", "content": [{"type": "image", "source": {}}]}], None),
    "no messages": ([], None),
}


@pytest.mark.parametrize(("messages", "query"), QUERIES.values(), ids=QUERIES.keys())
def test_query_is_the_last_user_text_if_it_is_text_alone(
    messages: list[dict[str, Any]], query: str | None
) -> None:
    assert DIALECT.parse_request(body(messages=messages)).query == query
