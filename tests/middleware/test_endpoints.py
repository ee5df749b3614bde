"""Custom endpoints: naming the prompt in a JSON body."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.errors import ConfigError, InvalidRequest
from headstart.middleware.endpoints import Endpoint, EndpointTable, MatchedEndpoint, parse_custom

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("prompt", "body", "query", "rest"),
    [
        ("question", b'{"question":"why?","k":1}', "why?", {"question": None, "k": 1}),
        ("in.text", b'{"in":{"text":"why?","k":1}}', "why?", {"in": {"text": None, "k": 1}}),
        ("m.-1.c", b'{"m":[{"c":"a"},{"c":"b"}]}', "b", {"m": [{"c": "a"}, {"c": None}]}),
        ("m.--1.c", b'{"m":[{"c":"a"}]}', None, {"m": [{"c": "a"}]}),
        ("m.c", b'{"m":[{"c":"a"}]}', None, {"m": [{"c": "a"}]}),
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
def test_a_body_that_is_not_a_json_object_is_invalid(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_custom(Endpoint("/ask", prompt="question"), body)


def test_routes_match_method_and_exact_path() -> None:
    routes = EndpointTable((), (Endpoint("/ask"),))
    assert routes.match("POST", b"/ask") is not None
    assert routes.match("GET", b"/ask") is None
    assert routes.match("POST", b"/ask/") is None


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("ask", "must start with"),
        ("", "must start with"),
        ("/api/*/ask", r"name a parameter, as in /items/\{id\}/ask"),
        ("/api/**", "name a parameter"),
        ("/ask?verbose=1", "a query is part of the cache key"),
        ("/ask#top", "a path alone"),
        ("/projects/{id/ask", "a parameter is a whole segment"),
        ("/projects/id}/ask", "a parameter is a whole segment"),
        ("/projects/{}/ask", "with a plain name"),
        ("/projects/{id:int}/ask", "with a plain name"),
        ("/files/{path:path}", "with a plain name"),
        ("/projects/p-{id}/ask", "a whole segment"),
        ("/{a}{b}", "a whole segment"),
        ("/projects/{id}/chats/{id}", r"names the parameter \{id\} twice"),
        ("/fr\u00e5ga", "percent-encoded"),
        ("/two words", "percent-encoded"),
        ("/100%", "percent-encoded"),
        ("/a/../ask", "clients resolve"),
        ("/./ask", "clients resolve"),
    ],
)
def test_a_path_that_no_request_has_is_refused(path: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Endpoint(path)


@pytest.mark.parametrize(
    "method", ["HEAD", "DELETE", "OPTIONS", "CONNECT", "TRACE", "", "GET POST"]
)
def test_a_method_without_an_answer_to_keep_is_refused(method: str) -> None:
    with pytest.raises(ConfigError, match="method"):
        Endpoint("/ask", method=method)


PROJECTS = EndpointTable((), (Endpoint("/projects/{id}/ask"), Endpoint("/projects/all/ask")))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (b"/projects/7/ask", "/projects/{id}/ask"),
        (b"/projects/a%20b%C3%A9;v=1/ask", "/projects/{id}/ask"),
        (b"/projects/all/ask", "/projects/all/ask"),
        (b"/projects/%61ll/ask", "/projects/{id}/ask"),
        (b"/projects//ask", None),
        (b"/projects/7/ask/", None),
        (b"/projects/7/8/ask", None),
        (b"/projects/7%2F8/ask", None),
        (b"/projects/7%2f8/ask", None),
        (b"/projects/../ask", None),
        (b"/projects/%2e%2e/ask", None),
        (b"/projects/7%", None),
        (b"/x/projects/7/ask", None),
        (b"/projects/7/ask\n", None),
    ],
)
def test_a_parameter_is_one_segment_and_a_plain_path_comes_first(
    path: bytes, name: str | None
) -> None:
    route = PROJECTS.match("POST", path)
    assert (None if route is None else route.name) == name
    assert PROJECTS.match("GET", path) is None


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("/a/{x}", "/a/{y}", True),
        ("/a/{x}/c", "/a/b/{y}", True),
        ("/{x}/b", "/a/{y}", True),
        ("/a/{x}/c", "/a/{x}/d", False),
        ("/a/{x}", "/b/{x}", False),
        ("/a/{x}", "/a/{x}/b", False),
        ("/a/{x}", "/a/b", False),
        ("/ask", "/ask", True),
    ],
)
def test_two_endpoints_for_one_path_are_refused(one: str, other: str, *, both: bool) -> None:
    endpoints = (Endpoint(one), Endpoint(other))
    if both:
        with pytest.raises(ConfigError, match="endpoints"):
            EndpointTable((), endpoints)
    else:
        EndpointTable((), endpoints)
    EndpointTable((), (Endpoint(one), Endpoint(other, method="GET")))


SEGMENTS = st.lists(
    st.sampled_from(
        [b"a", b"b", b"%61", b"%2F", b"%2f", b"%", b"..", b"%2e", b"", b"a;b", b"\xc3"]
    ),
    max_size=4,
)


@given(SEGMENTS)
def test_a_request_matches_only_if_an_app_would_find_the_parameter_in_one_segment(
    segments: list[bytes],
) -> None:
    path = b"/" + b"/".join(segments)
    route = EndpointTable((), (Endpoint("/{one}/x/{two}"), Endpoint("/a/{one}"))).match(
        "POST", path
    )
    if route is not None:
        assert unquote_to_bytes(path).count(b"/") == route.name.count("/")
        assert b"" not in segments


def test_an_impossible_endpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"headstart\.Endpoint"):
        EndpointTable((), cast("tuple[Endpoint, ...]", ("/ask",)))


@pytest.mark.parametrize("named", ["prompt", "query"])
def test_a_body_that_the_users_function_cannot_read_is_invalid(named: str) -> None:
    functions: dict[str, Any] = {"prompt": lambda body: (body["q"], None)}
    if named == "query":
        functions = {"prompt": "text", "query": lambda body: body["q"]}
    with pytest.raises(InvalidRequest, match="KeyError"):
        parse_custom(Endpoint("/ask", **functions), b'{"text":"why?"}')


def test_a_chat_path_keeps_its_dialect_beside_an_endpoint() -> None:
    path = "/v1/chat/completions"
    route = EndpointTable((OPENAI_CHAT,), (Endpoint(path, idempotent=True),)).match(
        "POST", path.encode()
    )
    assert route is not None
    assert route.dialect is not None
    assert route.idempotent
    assert not MatchedEndpoint("/ask", None).idempotent


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Endpoint("/ask", query=re.compile("Q: (.*)")), "group named 'query'"),
        (lambda: EndpointTable((), (Endpoint("/ask", query="question"),)), "query needs prompt"),
    ],
)
def test_a_query_that_cannot_be_found_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
