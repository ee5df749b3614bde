"""Answers of OpenAI's Responses: as a provider writes them whole, and as events."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from support.completions import some_text, text

USAGE = {
    "input_tokens": 3,
    "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
    "output_tokens": 4,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 7,
}


def said(words: str, **more: Any) -> dict[str, Any]:
    """Return a text as a content part."""
    return {"type": "output_text", "text": words, "annotations": [], "logprobs": [], **more}


def message(*parts: dict[str, Any], id: str = "msg_1", **more: Any) -> dict[str, Any]:
    item = {"id": id, "type": "message", "status": "completed", "role": "assistant"}
    return {**item, "content": list(parts), **more}


def called(id: str = "fc_1", **more: Any) -> dict[str, Any]:
    call = {"call_id": "call_1", "name": "f", "arguments": '{"a":1}'}
    return {"id": id, "type": "function_call", "status": "completed", **call, **more}


def thought(*summaries: str, id: str = "rs_1", **more: Any) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": each} for each in summaries]
    return {"id": id, "type": "reasoning", "summary": summary, **more}


def response(*output: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a whole answer."""
    return {
        "id": "resp_up",
        "object": "response",
        "created_at": 7,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": "Be brief.",
        "metadata": {},
        "model": "m-real",
        "output": list(output),
        "parallel_tool_calls": True,
        "service_tier": "default",
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": USAGE,
        **more,
    }


def event(kind: str, number: int, **fields: Any) -> bytes:
    """Return one event as the API frames it."""
    data = json.dumps({"type": kind, "sequence_number": number, **fields}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()


def events_in(stream: bytes) -> list[dict[str, Any]]:
    """Return the data of each event, whose name must be its type."""
    found = []
    for frame in stream.decode().split("\n\n")[:-1]:
        name, data = frame.strip("\n").split("\n")
        told = json.loads(data.removeprefix("data: "))
        assert name == f"event: {told['type']}"
        found.append(told)
    return found


_ids = st.text("abc123", min_size=1, max_size=8)
_unknown = st.dictionaries(st.sampled_from(("x_one", "x_two")), st.integers() | text, max_size=1)
_place = {"start_index": 0, "end_index": 1}
_cited = st.just({"type": "url_citation", "url": "https://a.test", "title": "t", **_place})
_parts = st.one_of(
    st.builds(
        lambda words, cited, more: said(words, annotations=cited, **more),
        some_text,
        st.lists(_cited, max_size=2),
        _unknown,
    ),
)
_messages = st.builds(
    lambda parts, name, phase, more: message(*parts, id=name, **phase, **more),
    st.lists(_parts, min_size=1, max_size=3),
    _ids,
    st.sampled_from(({}, {"phase": "commentary"}, {"phase": "final_answer"})),
    _unknown,
)
_refusals = st.builds(
    lambda words, name: message({"type": "refusal", "refusal": words}, id=name), some_text, _ids
)
_thoughts = st.builds(
    lambda summaries, name, sealed, raw: thought(*summaries, id=name, **sealed, **raw),
    st.lists(some_text, max_size=3),
    _ids,
    st.sampled_from(({}, {"encrypted_content": "gAAA"}, {"encrypted_content": None})),
    st.sampled_from(({}, {"content": [{"type": "reasoning_text", "text": "raw"}]})),
)
_calls = st.builds(
    lambda name, arguments, more: called(name, arguments=arguments, call_id=f"call_{name}", **more),
    _ids,
    text,
    _unknown,
)
_customs = st.builds(
    lambda name, given: {
        "id": name,
        "type": "custom_tool_call",
        "call_id": f"call_{name}",
        "name": "sh",
        "input": given,
    },
    _ids,
    text,
)
_hosted = st.builds(
    lambda name: {
        "id": name,
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    },
    _ids,
)


def _has_one_refusal(output: list[dict[str, Any]]) -> bool:
    """Return whether there is at most one refusal. Two in a row would be joined to one part."""
    return sum("refusal" in part for item in output for part in item.get("content", ())) < 2


outputs = st.lists(
    st.one_of(_messages, _refusals, _thoughts, _calls, _customs, _hosted), min_size=1, max_size=5
).filter(_has_one_refusal)
"""Outputs of every shape that the API documents."""
