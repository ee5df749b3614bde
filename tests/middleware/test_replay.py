from __future__ import annotations

import json

import msgspec
import pytest

from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.middleware.respond import RenderedAnswers
from headstart.types import (
    CacheKey,
    Choice,
    Completion,
    Entry,
    Origin,
    RawResponse,
    Text,
)

DIALECT = OPENAI_CHAT


def entry(name: str, answer: Completion | RawResponse | None = None) -> Entry:
    choice = Choice(index=0, parts=(Text(text=f"answer {name}"),), finish="stop")
    return Entry(
        id=name,
        key=CacheKey(scope="s", partition="p", exact="e"),
        answer=answer or Completion(model="m", choices=(choice,), created=1),
        origin=Origin(model="m", upstream="u", ttft_s=0.1, total_s=0.2),
        created=1.0,
    )


def test_entry_is_rendered_once() -> None:
    replays = RenderedAnswers()
    first = replays.rendered(entry("a"), DIALECT)
    assert replays.rendered(entry("a"), DIALECT) is first
    assert replays.nbytes == first.nbytes


def test_least_recently_used_goes_first() -> None:
    size = DIALECT.render(entry("a").answer).nbytes  # type: ignore[arg-type]
    replays = RenderedAnswers(max_bytes=2 * size)
    a, b = (replays.rendered(entry(name), DIALECT) for name in "ab")
    replays.rendered(entry("a"), DIALECT)
    replays.rendered(entry("c"), DIALECT)
    assert replays.rendered(entry("a"), DIALECT) is a
    assert replays.nbytes == 2 * size
    assert replays.rendered(entry("b"), DIALECT) is not b


def test_answer_larger_than_the_bound_is_served_and_not_kept() -> None:
    replays = RenderedAnswers(max_bytes=1)
    assert b"answer a" in replays.rendered(entry("a"), DIALECT).json("id", 1)
    assert replays.nbytes == 0


@pytest.mark.parametrize("streamed", [True, False])
def test_a_stream_without_usage_gives_whole_hits_with_an_estimate(*, streamed: bool) -> None:
    """Clients rely on the usage in whole answers."""
    kept = entry("a")
    origin = msgspec.structs.replace(
        kept.origin, streamed=streamed, prompt_tokens=7, completion_tokens=3
    )
    kept = msgspec.structs.replace(kept, origin=origin)
    usage = json.loads(RenderedAnswers().rendered(kept, DIALECT).json("id", 1)).get("usage", {})
    assert usage.get("total_tokens") == (10 if streamed else None)


def test_raw_answer_is_not_rendered() -> None:
    with pytest.raises(TypeError, match="raw answer"):
        RenderedAnswers().rendered(entry("a", RawResponse(headers=(), body=b"")), DIALECT)
