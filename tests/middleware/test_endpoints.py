"""Custom endpoints: naming the prompt in a JSON body."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

import pytest

from headstart.errors import ConfigError, InvalidRequest
from headstart.middleware.dialects.openai_chat import OpenAIChat
from headstart.middleware.endpoints import Endpoint, Route, Routes, parse_custom

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("prompt", "body", "query", "rest"),
    [
        ("question", b'{"question":"why?","k":1}', "why?", {"question": None, "k": 1}),
        ("in.text", b'{"in":{"text":"why?","k":1}}', "why?", {"in": {"text": None, "k": 1}}),
        ("m.-1.c", b'{"m":[{"c":"a"},{"c":"b"}]}', "b", {"m": [{"c": "a"}, {"c": None}]}),
        ("question", b'{"k":1}', None, {"k": 1}),
        ("question", b'{"question":7}', None, {"question": 7}),
        (None, b'{"question":"why?"}', None, {"question": "why?"}),
    ],
)
def test_the_prompt_is_split_from_everything_else(
    prompt: str | None, body: bytes, query: str | None, rest: dict[str, Any]
) -> None:
    request = parse_custom(Endpoint("/ask", prompt=prompt), body)
    assert request.query == query
    assert request.document == {"rest": rest}


def test_a_function_may_name_the_prompt() -> None:
    endpoint = Endpoint("/ask", prompt=lambda body: (body["q"].strip(), body["lang"]))
    request = parse_custom(endpoint, b'{"q":" why? ","lang":"en"}')
    assert (request.query, request.document) == ("why?", {"rest": "en"})


@pytest.mark.parametrize("body", [b"{", b"[1]", b'"text"', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_invalid(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_custom(Endpoint("/ask", prompt="question"), body)


def test_routes_match_method_and_exact_path() -> None:
    routes = Routes({}, (Endpoint("/ask"),))
    assert routes.match("POST", b"/ask") is not None
    assert routes.match("GET", b"/ask") is None
    assert routes.match("POST", b"/ask/") is None


def test_a_relative_endpoint_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="must start with"):
        Endpoint("ask")


def test_a_path_with_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match="without parameters"):
        Endpoint("/ask/{id}")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"on_repeat": "again"}, 'use "hit" or "fresh"'),
        ({"on_repeat": "fresh", "repeat_window_s": 0.0}, "above 0 seconds"),
    ],
)
def test_a_repeat_setting_that_means_nothing_is_refused(fields: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Endpoint("/ask", **fields)


def test_what_is_no_endpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"headstart\.Endpoint"):
        Routes({}, cast("tuple[Endpoint, ...]", ("/ask",)))


@pytest.mark.parametrize("named", ["prompt", "query"])
def test_a_body_that_the_users_function_cannot_read_is_invalid(named: str) -> None:
    functions: dict[str, Any] = {"prompt": lambda body: (body["q"], None)}
    if named == "query":
        functions = {"prompt": "text", "query": lambda body: body["q"]}
    with pytest.raises(InvalidRequest, match="KeyError"):
        parse_custom(Endpoint("/ask", **functions), b'{"text":"why?"}')


def test_a_chat_path_keeps_its_dialect_beside_an_endpoint() -> None:
    routes = Routes({"/v1/chat": OpenAIChat()}, (Endpoint("/v1/chat", idempotent=True),))
    route = routes.match("POST", b"/v1/chat")
    assert route is not None
    assert route.dialect is not None
    assert route.idempotent
    assert not Route("/ask", None).idempotent


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Endpoint("/ask", query=re.compile("Q: (.*)")), "group named 'query'"),
        (lambda: Routes({}, (Endpoint("/ask", query="question"),)), "query needs prompt"),
    ],
)
def test_a_query_that_cannot_be_found_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
