"""Entries for the tests of stores."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from headstart.types import (
    CacheKey,
    Choice,
    Completion,
    Entry,
    Origin,
    Put,
    RawResponse,
    Reasoning,
    Refusal,
    Sketch,
    Text,
    ToolCall,
    Turn,
    VectorRow,
)

NOW = 1_700_000_000.0
SKETCH = Sketch(table="table", row=b"\x00\x3c\xff\x00")
ORIGIN = Origin(model="m", upstream="u", ttft_s=0.25, total_s=1.5)


def key(exact: str) -> CacheKey:
    return CacheKey(scope="scope", partition="partition", exact=exact, query="question")


def answer(text: str = "answer") -> Completion:
    choice = Choice(index=0, parts=(Text(text=text),), finish="stop")
    return Completion(model="m", choices=(choice,), created=int(NOW))


def entry(id: str, *, exact: str = "", text: str = "answer", **fields: Any) -> Entry:
    """Return an entry under its own exact key, unless one is given."""
    fields = {"answer": answer(text), "origin": ORIGIN, "created": NOW, **fields}
    return Entry(id=id, key=key(exact or f"exact-{id}"), **fields)


def vector(seed: float = 0.0) -> bytes:
    return struct.pack("<4e", 1.0, 0.0, seed, -0.5)


def put(id: str, *, exact: str = "", text: str = "answer", **fields: Any) -> Put:
    return Put(entry=entry(id, exact=exact, text=text, **fields), vector=vector())


def row(id: str, seed: float = 0.0, sketch: Sketch | None = None) -> VectorRow:
    """Return the row that followers read after an entry was ``put``."""
    return VectorRow(
        id=id, partitions=("partition",), encoder="", vector=vector(seed), sketch=sketch
    )


def full_entry() -> Entry:
    """Return an entry in which no field has its default, in the nested parts either."""
    choice = Choice(
        index=1,
        parts=(
            Reasoning(text="because\n", field="reasoning", signature="c2ln"),
            Text(text="añ🙂\x00"),
            Refusal(text="no"),
            ToolCall(
                id="call_1", name="f", arguments='{"a": 1.0}', kind="custom", extra={"sig": "c"}
            ),
        ),
        finish="tool_calls",
        native_finish="end_turn",
        logprobs={"content": [{"token": "a", "logprob": -0.1, "bytes": [97], "top": []}]},
        extra={"annotations": [{"deep": {"er": [None, True, 2**63, -1, 1e300]}}]},
        beside={"content_filter_results": {}},
    )
    completion = Completion(
        model="m-2",
        choices=(choice, Choice(index=0, parts=(), finish="stop")),
        created=1_700_000_001,
        usage={"prompt_tokens": 3, "details": {"cached_tokens": 0}},
        fingerprint="fp",
        tier="default",
        usage_beside=True,
        extra={"provider": None},
    )
    origin = Origin(
        model="m",
        upstream="u",
        ttft_s=0.25,
        total_s=1.5,
        streamed=True,
        prompt_tokens=3,
        completion_tokens=4,
        extra_tokens=5,
        cost_usd=0.0001,
        extra_usd=0.00003,
        prefix_usd=0.00002,
        estimated=True,
    )
    return Entry(
        id="full",
        key=msgspec.structs.replace(
            key("exact-full"),
            conversation="talk",
            history=(Turn(user=True, text="before"),),
            task="t",
        ),
        answer=completion,
        origin=origin,
        created=NOW,
        expires=NOW + 60,
        tags=("a", "b"),
        transforms=("compressed",),
        evidence=b"\x00\xffevidence",
        evidence_version="v1",
        encoder="minilm",
        dialect="anthropic",
    )


def raw_entry() -> Entry:
    headers = ((b"content-type", b"text/plain"), (b"x-a", b"1"), (b"x-a", b"\xff"))
    return entry("raw", answer=RawResponse(headers=headers, body=b"\x00\xff" * 100, status=201))
