from __future__ import annotations

import pytest

from headstart.middleware.dialects.openai_chat import OpenAIChat
from headstart.middleware.replay import Replays, replay_raw
from headstart.types import (
    CacheKey,
    Choice,
    Completion,
    Entry,
    Headers,
    Origin,
    RawResponse,
    Text,
)

DIALECT = OpenAIChat()


def entry(id: str, answer: Completion | RawResponse | None = None) -> Entry:
    choice = Choice(index=0, parts=(Text(text=f"answer {id}"),), finish="stop")
    return Entry(
        id=id,
        key=CacheKey(scope="s", partition="p", exact="e"),
        answer=answer or Completion(model="m", choices=(choice,), created=1),
        origin=Origin(model="m", upstream="u", ttft_s=0.1, total_s=0.2),
        created=1.0,
    )


def test_entry_is_rendered_once() -> None:
    replays = Replays()
    first = replays.rendered(entry("a"), DIALECT)
    assert replays.rendered(entry("a"), DIALECT) is first
    assert replays.nbytes == first.nbytes


def test_least_recently_used_goes_first() -> None:
    size = DIALECT.render(entry("a").answer).nbytes  # type: ignore[arg-type]
    replays = Replays(max_bytes=2 * size)
    a, b = (replays.rendered(entry(id), DIALECT) for id in "ab")
    replays.rendered(entry("a"), DIALECT)
    replays.rendered(entry("c"), DIALECT)
    assert replays.rendered(entry("a"), DIALECT) is a
    assert replays.nbytes == 2 * size
    assert replays.rendered(entry("b"), DIALECT) is not b


def test_answer_larger_than_the_bound_is_served_and_not_kept() -> None:
    replays = Replays(max_bytes=1)
    assert b"answer a" in replays.rendered(entry("a"), DIALECT).json("id", 1)
    assert replays.nbytes == 0


def test_raw_answer_is_not_rendered() -> None:
    with pytest.raises(TypeError, match="raw answer"):
        Replays().rendered(entry("a", RawResponse(headers=(), body=b"")), DIALECT)


def test_raw_answer_keeps_its_headers_but_not_those_of_its_connection() -> None:
    headers: Headers = (
        (b"content-type", b"text/plain"),
        (b"link", b"<a>"),
        (b"link", b"<b>"),
        (b"connection", b"close, X-Hop"),
        (b"x-hop", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"99"),
        (b"date", b"Thu, 01 Jan 1970 00:00:00 GMT"),
        (b"set-cookie", b"session=1"),
    )
    kept = (*headers[:3], (b"content-length", b"2"))
    assert replay_raw(RawResponse(headers=headers, body=b"Hi")) == (kept, b"Hi")
