from __future__ import annotations

import json
from typing import Any

from headstart.dialects.request_form import add_cache_key, mark_anthropic, mark_bedrock
from headstart.types import CacheMarks

ALL = CacheMarks(shared=True, previous=True, last=True)
LAST = CacheMarks(last=True)
MARK = {"type": "ephemeral"}


def _text(text: str, *, marked: bool = False) -> dict[str, Any]:
    return {"type": "text", "text": text} | ({"cache_control": MARK} if marked else {})


def _anthropic(body: dict[str, Any], marks: CacheMarks) -> Any:
    marked = mark_anthropic(json.dumps(body).encode(), marks)
    return None if marked is None else json.loads(marked)


def test_anthropic_gets_marks_at_tools_system_and_both_ends_of_the_conversation() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "found"}
    body = {
        "model": "claude-x",
        "system": "Be brief.",
        "tools": [{"name": "a"}, {"name": "b"}],
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "a"}]},
            {"role": "user", "content": [result, _text("and now?")]},
        ],
    }
    marked = _anthropic(body, ALL)
    assert marked["tools"] == [{"name": "a"}, {"name": "b", "cache_control": MARK}]
    assert marked["system"] == [_text("Be brief.", marked=True)]
    first, answer, last = marked["messages"]
    assert first == {"role": "user", "content": [_text("one", marked=True)]}
    assert answer == body["messages"][1]
    assert last["content"] == [result, _text("and now?", marked=True)]
    assert json.dumps(marked).count("cache_control") == 4


def test_thinking_and_empty_texts_take_no_mark() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    body = {
        "messages": [
            {"role": "user", "content": [_text("one"), _text(" "), thinking]},
            {"role": "assistant", "content": "{"},
        ]
    }
    marked = _anthropic(body, LAST)
    assert marked["messages"][0]["content"] == [_text("one", marked=True), _text(" "), thinking]
    assert marked["messages"][1] == body["messages"][1], "the beginning of an answer is no prefix"
    assert _anthropic({"messages": [{"role": "user", "content": ""}]}, ALL) is None
    assert _anthropic({"messages": []}, ALL) is None


def test_a_tool_that_is_loaded_later_takes_no_mark() -> None:
    body = {"tools": [{"name": "a", "defer_loading": True}], "messages": []}
    assert _anthropic(body, CacheMarks(shared=True)) is None


def test_a_mark_behind_the_request_before_needs_an_answer() -> None:
    body = {"messages": [{"role": "user", "content": "one"}]}
    assert _anthropic(body, CacheMarks(previous=True)) is None


def test_unmarked_members_keep_their_bytes() -> None:
    turn = b'{"role": "user",  "content":"\\u0041 1.50"}'
    body = b'{"temperature": 1.50, "messages": [%b,{"role":"assistant","content":"b"},%b]}'
    marked = mark_anthropic(body % (turn, turn), LAST)
    assert marked is not None
    assert b'"temperature":1.50' in marked
    assert marked.count(turn) == 1


def test_bedrock_gets_points_behind_the_blocks() -> None:
    point = {"cachePoint": {"type": "default"}}
    turns = [{"role": "user", "content": [{"text": "one"}]}]
    turns += [{"role": "assistant", "content": [{"text": "yes"}]}, turns[0]]
    body = {
        "system": [{"text": "s"}],
        "toolConfig": {"tools": [{"toolSpec": {}}]},
        "messages": turns,
    }
    marked = json.loads(mark_bedrock(json.dumps(body).encode(), ALL) or b"")
    assert marked["system"] == [{"text": "s"}, point]
    assert marked["toolConfig"] == {"tools": [{"toolSpec": {}}, point]}
    marked_turn = {"role": "user", "content": [{"text": "one"}, point]}
    assert marked["messages"] == [marked_turn, turns[1], marked_turn]
    assert mark_bedrock(b'{"messages":[]}', ALL) is None


def test_openai_gets_the_key_of_the_conversation() -> None:
    body = add_cache_key(b'{"messages": [ 1.50 ]}', CacheMarks(key="k"))
    assert body == b'{"messages":[ 1.50 ],"prompt_cache_key":"k"}'
    assert add_cache_key(b"{}", CacheMarks()) is None
