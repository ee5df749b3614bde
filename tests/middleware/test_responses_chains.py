"""What a request of Responses refers to, what a provider may get of a turn, and how answers end."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from headstart.dialects.responses_chains import (
    StreamTail,
    list_items,
    list_page,
    portable,
    read_answer,
    read_asked,
    response_in,
    write_whole,
)
from headstart.errors import InvalidRequest


def raw(item: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(item).encode())


@pytest.mark.parametrize(
    ("body", "previous", "references"),
    [
        ({"input": "a"}, None, (None,)),
        ({"input": "a", "previous_response_id": None}, None, (None,)),
        ({"input": "a", "previous_response_id": ""}, None, (None,)),
        ({"input": "a", "previous_response_id": "resp_1"}, "resp_1", (None,)),
        ({"previous_response_id": "resp_1"}, "resp_1", ()),
        ({"input": [{"role": "user", "content": "a", "id": "msg_1"}]}, None, (None,)),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, None, ("msg_1",)),
        ({"input": [{"type": None, "id": "msg_1"}, {"id": "rs_1"}]}, None, ("msg_1", "rs_1")),
    ],
)
def test_the_references_of_a_request_are_read(
    body: dict[str, Any], previous: str | None, references: tuple[str | None, ...]
) -> None:
    asked = read_asked(json.dumps({"model": "m", **body}).encode())
    assert asked is not None
    assert (asked.previous, asked.references) == (previous, references)


def test_escapes_hide_no_reference() -> None:
    body = (
        b'{"model":"m","pr\\u0065vious_response_id":"resp_1",'
        b'"input":[{"type":"item\\u005freference","id":"msg_1"}]}'
    )
    asked = read_asked(body)
    assert asked is not None
    assert (asked.previous, asked.references) == ("resp_1", ("msg_1",))


@pytest.mark.parametrize(
    ("fields", "keeps"),
    [
        ({}, True),
        ({"store": True}, True),
        ({"store": None}, True),
        ({"store": False}, False),
        ({"background": True}, False),
        ({"conversation": "conv_1"}, False),
        ({"conversation": None}, True),
    ],
)
def test_whether_an_answer_is_to_be_kept(fields: dict[str, Any], keeps: bool) -> None:
    asked = read_asked(json.dumps({"model": "m", "input": "a", **fields}).encode())
    assert asked is not None
    assert asked.keeps is keeps


@pytest.mark.parametrize("field", ["store", "background", "conversation", "input", "tools"])
def test_a_field_of_another_type_hides_no_reference(field: str) -> None:
    body = {"model": "m", "previous_response_id": "resp_1", field: {"x": [1]}}
    asked = read_asked(json.dumps(body).encode())
    assert asked is not None
    assert asked.previous == "resp_1"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"input":["a"]}', b'{"input":[1]}', b"\xff"])
def test_a_body_of_another_shape_is_left_to_its_provider(body: bytes) -> None:
    assert read_asked(body) is None


def test_a_request_is_written_out_with_all_its_other_fields() -> None:
    body = b'{"model":"m","previous_response_id":"resp_1","input":"b","tools":[{"z":1,"a":2}]}'
    written = write_whole(body, [raw({"role": "user", "content": "a"}), b'{"b":1}'])
    assert json.loads(written) == {
        "model": "m",
        "input": [{"role": "user", "content": "a"}, {"b": 1}],
        "tools": [{"z": 1, "a": 2}],
    }
    assert b'{"z":1,"a":2}' in written


MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
SEALED = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "x"}
MARKED = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [],
    "encrypted_content": "headstart:thinking",
}
OPEN = {"id": "rs_1", "type": "reasoning", "summary": []}
CALL = {"id": "fc_1", "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed"}
OWN_SEARCH = {"id": "tsc_1", "type": "tool_search_call", "call_id": "c", "execution": "client"}


def without_id(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name != "id"}


@pytest.mark.parametrize(
    ("item", "elsewhere", "same"),
    [
        (MESSAGE, without_id(MESSAGE), without_id(MESSAGE)),
        (CALL, without_id(CALL), without_id(CALL)),
        (SEALED, None, SEALED),
        (MARKED, MARKED, MARKED),
        (OPEN, None, None),
        (SEARCH, None, None),
        (OWN_SEARCH, without_id(OWN_SEARCH), without_id(OWN_SEARCH)),
    ],
)
def test_a_provider_gets_the_portable_items_of_an_answer(
    item: Any, elsewhere: Any, same: Any
) -> None:
    for same_account, wanted in ((False, elsewhere), (True, same)):
        got = portable([raw(item)], from_model=True, same_account=same_account)
        assert [json.loads(bytes(each)) for each in got] == ([] if wanted is None else [wanted])


def test_items_of_the_caller_stay_even_if_their_type_is_unknown() -> None:
    written = {"type": "a_later_type", "id": "x_1"}
    assert portable([raw(written)], from_model=False, same_account=False) == (raw(written),)


RESPONSE = {"id": "resp_1", "status": "completed", "output": [MESSAGE], "note": "ü\n\n\r\n\r\n"}


def frames(end: str) -> bytes:
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**RESPONSE, "status": "in_progress"}},
        {"type": "response.output_text.delta", "delta": '"response.completed"'},
        {"type": "response.completed", "sequence_number": 2, "response": RESPONSE},
    ]
    told = [f"event: {each['type']}{end}data: {json.dumps(each)}{end}{end}" for each in events]
    return "".join([f": waiting{end}{end}", *told]).encode()


@given(some.sampled_from(["\n", "\r\n"]), some.lists(some.integers(1, 60), max_size=60))
def test_the_response_is_found_wherever_the_stream_is_cut(end: str, cuts: list[int]) -> None:
    data, tail, found = frames(end), StreamTail(10_000), []
    for cut in [*cuts, len(data)]:
        piece, data = data[:cut], data[cut:]
        found.append(tail.feed(piece))
    wanted = [each for each in found if each is not None]
    assert [json.loads(response_in(each) or b"") for each in wanted] == [RESPONSE]


def test_an_event_beyond_the_limit_is_given_up_and_takes_no_memory() -> None:
    tail = StreamTail(100)
    assert tail.feed(frames("\n")[:-1]) is None
    assert len(tail._rest) <= 100


@pytest.mark.parametrize(
    ("document", "read"),
    [
        ({"id": "resp_1", "status": "completed", "output": []}, True),
        ({"id": "resp_1", "status": "incomplete", "output": []}, True),
        ({"id": "resp_1", "status": "failed", "output": []}, False),
        ({"id": "resp_1", "status": "queued", "output": []}, False),
        ({"id": "", "status": "completed"}, False),
        ({"error": {}}, False),
    ],
)
def test_only_answers_that_can_be_continued_are_read(document: Any, read: bool) -> None:
    assert (read_answer(json.dumps(document).encode()) is not None) is read


def test_input_items_are_listed_whole_each_with_an_id_that_stays() -> None:
    items = [raw({"role": "user", "content": "a"}), raw(CALL), raw({"role": "user", "content": []})]
    once, again = list_items(items, "resp_1"), list_items(items, "resp_1")
    assert once == again
    assert once[0]["content"] == [{"type": "input_text", "text": "a"}]
    assert once[1] == CALL
    assert len({item["id"] for item in once}) == 3


@pytest.mark.parametrize(
    ("query", "ids", "more"),
    [
        ({"order": "asc"}, "abc", False),
        ({}, "cba", False),
        ({"limit": "2"}, "cb", True),
        ({"after": "b", "limit": "2"}, "a", False),
        ({"after": "c", "limit": "2", "order": "asc"}, "", False),
    ],
)
def test_a_list_has_pages(query: dict[str, str], ids: str, more: bool) -> None:
    found = list_page([{"id": "c"}, {"id": "b"}, {"id": "a"}], query, size=20, largest=100)
    assert [item["id"] for item in found["data"]] == list(ids)
    assert found["has_more"] is more


@pytest.mark.parametrize(
    "query", [{"after": "z"}, {"limit": "0"}, {"limit": "x"}, {"limit": "9" * 9}]
)
def test_a_page_that_no_list_has_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(query))):
        list_page([{"id": "a"}], query, size=20, largest=100)
