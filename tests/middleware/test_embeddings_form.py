"""Vectors are kept small and come back exactly; items are told apart by what they say."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.dialects.registry import (
    EMBEDDINGS,
    MOST_ITEMS,
    RERANK,
    read_items,
    read_usage,
    read_vectors,
    write_vectors,
)
from headstart.errors import InvalidRequest

doubles = st.floats(allow_nan=False, allow_infinity=False)
singles = st.floats(allow_nan=False, allow_infinity=False, width=32)


def answer(*embeddings: Any, **more: Any) -> bytes:
    rows = [
        {"object": "embedding", "index": place, "embedding": each, **more}
        for place, each in enumerate(embeddings)
    ]
    head = {"object": "list", "model": "m", "usage": {"prompt_tokens": 3, "total_tokens": 3}}
    return json.dumps({**head, "data": rows}).encode()


@given(st.lists(st.lists(doubles | singles, min_size=1, max_size=8), min_size=1, max_size=3))
def test_numbers_come_back_exactly(vectors: list[list[float]]) -> None:
    body = answer(*vectors)
    read = read_vectors(body, len(vectors))
    assert read is not None
    assert read.model == "m"
    assert json.loads(write_vectors(read.items, head=read.head)) == json.loads(body)


@given(st.binary(min_size=1, max_size=40) | st.lists(st.integers(-128, 127), min_size=1))
def test_other_forms_come_back_exactly(vector: bytes | list[int]) -> None:
    encoded = base64.b64encode(vector).decode() if isinstance(vector, bytes) else vector
    body = answer(encoded, note="é")
    read = read_vectors(body, 1)
    assert read is not None
    assert json.loads(write_vectors(read.items, head=read.head)) == json.loads(body)


@pytest.mark.parametrize("form", ["float", "base64"])
def test_single_precision_takes_four_bytes_a_number(form: str) -> None:
    numbers = [struct.unpack("<f", struct.pack("<f", 0.1 * n))[0] for n in range(1, 1025)]
    packed = base64.b64encode(struct.pack("<1024f", *numbers)).decode()
    read = read_vectors(answer(numbers if form == "float" else packed), 1)
    assert read is not None
    assert 4096 <= len(read.items[0]) < 4096 + 10


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"data": 1}',
        b'{"data": [{"index": 0}]}',
        b'{"data": [{"index": 1, "embedding": [0.5]}]}',
        b'{"data": [{"index": 0, "embedding": []}]}',
        b'{"data": [{"index": 0, "embedding": ""}]}',
        b'{"data": [{"index": 0, "embedding": "no base64"}]}',
        b'{"data": [{"index": 0, "embedding": "AAAAA"}]}',
        b'{"data": [{"index": 0, "embedding": "\xc3\xa9\xc3\xa9\xc3\xa9"}]}',
        b'{"data": [{"index": 0, "embedding": null}]}',
        b'{"data": [{"index": 0, "embedding": [1.5, "a"]}]}',
        b'{"data": [{"index": 0, "embedding": [0.5]}, {"index": 1, "embedding": [0.5]}]}',
        b'{"data": [{"index": 0, "embedding": [0.5]}], "error": {}}',
    ],
)
def test_other_answers_are_not_taken_apart(body: bytes) -> None:
    assert read_vectors(body, 1) is None


def test_two_rows_of_one_index_are_not_an_answer() -> None:
    row = {"index": 0, "embedding": [0.5]}
    assert read_vectors(msgspec.json.encode({"data": [row, row]}), 2) is None


@pytest.mark.parametrize(
    ("field", "items"),
    [
        (b'"a"', [b'"a"']),
        (b'""', [b'""']),
        (b'[ "\\u0061", "b" ]', [b'"a"', b'"b"']),
        (b"[1, 2]", [b"[1,2]"]),
        (b"[[1, 2],\n[3]]", [b"[1,2]", b"[3]"]),
        (b"[]", None),
        (b"[-1]", None),
        (b"[1.5]", None),
        (b"[[1],2]", None),
        (b'[[1],["a"]]', None),
        (b'["a",1]', None),
        (b'["a",null]', None),
        (b'{"text":"a"}', None),
        (b"null", None),
        (b"", None),
        (b'["a"' + b',"a"' * MOST_ITEMS + b"]", None),
    ],
)
def test_items_are_texts_or_lists_of_tokens(field: bytes, items: list[bytes] | None) -> None:
    assert read_items(field) == items


def test_a_request_for_some_items_keeps_all_other_fields() -> None:
    body = b'{"model": "m", "input": ["a", "b"], "x": 1.50, "y": {"input": 1}}'
    sent = EMBEDDINGS.with_items(body, [b'"b"'])
    assert json.loads(sent) == {"model": "m", "input": ["b"], "x": 1.5, "y": {"input": 1}}
    assert b"1.50" in sent


def test_users_and_items_are_not_among_the_keyed_fields() -> None:
    body = b'{"model": "m", "input": "a", "user": "u", "dimensions": 3}'
    request = EMBEDDINGS.parse(body)
    assert request.user == "u"
    assert request.document == {"rest": {"model": "m", "dimensions": 3}, "items": [b'"a"']}


@pytest.mark.parametrize("form", [EMBEDDINGS, RERANK])
def test_repeated_names_are_found(form: Any) -> None:
    assert form.parse(b'{"model": "m", "input": "a", "input": "b"}').duplicate_keys
    assert not form.parse(b'{"model": "m", "input": [[1, 2], [1, 2]]}').duplicate_keys


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a": "\xff"}', b"[" * 100_000])
def test_a_body_that_is_not_an_object_is_invalid(body: bytes) -> None:
    for form in (EMBEDDINGS, RERANK):
        with pytest.raises(InvalidRequest):
            form.parse(body)


USAGE = {"prompt_tokens": 3, "total_tokens": 3}


@pytest.mark.parametrize("size", [1, 600_000])
@pytest.mark.parametrize("nested", [{}, {"details": {"cached": 1}}])
@pytest.mark.parametrize("place", ["first", "last", "middle", "none"])
def test_usage_is_found_wherever_it_stands(place: str, size: int, nested: dict[str, Any]) -> None:
    usage = {**USAGE, **nested}
    data = {"data": "x" * size, "more": "y" * size}
    orders = {
        "first": {"usage": usage, **data},
        "last": {**data, "usage": usage},
        "middle": {"data": data["data"], "usage": usage, "more": data["more"]},
        "none": {**data, "note": '{"usage": {"prompt_tokens": 9}}'},
    }
    body = json.dumps(orders[place]).encode()
    assert read_usage(body) == (None if place == "none" else usage)


@pytest.mark.parametrize("body", [b"", b"[1]", b'{"usage": 1}', b'{"usage": {'])
def test_an_answer_without_usage_reports_none(body: bytes) -> None:
    assert read_usage(body) is None
