"""Requests with every field: all values are read, and nothing malformed passes."""

from __future__ import annotations

import contextlib
import copy
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.canonical_request import Quirks
from headstart.errors import InvalidRequest
from support.translated import (
    ANTHROPIC,
    DIALECTS,
    OPENAI,
    PORTABLE,
    WHOLE,
    translate,
    unread_values,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

JUNK: tuple[Any, ...] = (None, True, 7, 1.5, "", "x", [], {}, [None], [{}], {"type": 1}, [["x"]])


RENAMED = {
    "openai": "None allowed_tools json_schema image_url function custom input_audio",
    "anthropic": "enabled base64 json_schema omitted url any tool_result Häuser",
}
"""Values that the common form has as types, flags or (the last one) as the bytes of a file."""


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_every_value_of_a_request_is_read(name: str) -> None:
    request = DIALECTS[name].parse_request(json.dumps(WHOLE[name]).encode())
    assert unread_values(WHOLE[name], DIALECTS[name].read_request(request)) == {
        *RENAMED[name].split()
    }


@pytest.mark.parametrize("requests", [WHOLE, PORTABLE], ids=["whole", "portable"])
@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_only_invalid_request_is_raised_for_a_malformed_one(
    name: str, requests: dict[str, dict[str, Any]]
) -> None:
    outcomes = Counter(_outcome(name, document) for document in _damaged(requests[name]))
    assert outcomes["unreadable"] > 100
    assert outcomes["written"] > 100


def _outcome(name: str, document: dict[str, Any]) -> str:
    try:
        request = DIALECTS[name].parse_request(json.dumps(document).encode())
        asked = DIALECTS[name].read_request(request)
    except InvalidRequest:
        return "unreadable"
    for target in (OPENAI, ANTHROPIC):
        with contextlib.suppress(InvalidRequest):
            assert json.loads(target.write_request(asked, Quirks()).body)["model"]
    return "written"


def _damaged(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the document with one node gone, or with something else in its place."""
    for path in _paths(document):
        broken = copy.deepcopy(document)
        del _parent(broken, path)[path[-1]]
        yield broken
        for junk in JUNK:
            broken = copy.deepcopy(document)
            _parent(broken, path)[path[-1]] = junk
            yield broken


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if not isinstance(value, dict | list):
        return
    for key, child in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _paths(child, (*path, key))


def _parent(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        document = document[key]
    return document


# What both dialects know, in the form in which each is written.
_NAMES = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=8)
_WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1).filter(
    lambda text: text.strip() != ""
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def _conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for turn in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(_WORDS)})
        calls = [
            {
                "id": f"call_{turn}_{n}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for n, (name, arguments) in enumerate(
                draw(st.lists(st.tuples(_NAMES, st.dictionaries(_NAMES, _VALUES)), max_size=2))
            )
        ]
        said = draw(_WORDS)
        if calls:
            messages.append({"role": "assistant", "content": said, "tool_calls": calls})
            messages.extend(
                {"role": "tool", "tool_call_id": call["id"], "content": draw(_WORDS)}
                for call in calls
            )
        messages.append({"role": "assistant", "content": draw(_WORDS)})
    messages.append({"role": "user", "content": draw(_WORDS)})
    return messages


@given(messages=_conversations(), limit=st.integers(1, 10_000), stream=st.booleans())
@settings(max_examples=60, deadline=None)
def test_fields_of_both_dialects_come_back_from_the_other(
    messages: list[dict[str, Any]], limit: int, stream: bool
) -> None:
    chat = {"model": "m", "messages": messages, "max_completion_tokens": limit}
    chat.update({"stream": True, "stream_options": {"include_usage": True}} if stream else {})
    there, lost = translate("openai", "anthropic", chat)
    back, lost_again = translate("anthropic", "openai", there)
    assert _with_decoded_arguments(back) == _with_decoded_arguments(chat)
    assert (lost, lost_again) == ((), ())


def _with_decoded_arguments(document: dict[str, Any]) -> dict[str, Any]:
    decoded = copy.deepcopy(document)
    for message in decoded["messages"]:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return decoded
