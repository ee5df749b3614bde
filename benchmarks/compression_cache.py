"""The effect of compression on the provider's prefix cache, over real agent transcripts.

Each assistant message of a transcript was one request; its prompt is all that comes before it. The
cache is warm and has the session's previous prompt. The common beginning, in blocks of 128 tokens,
is read at a tenth of the price; the rest is written at 1.25 times the price. The transcripts
contain no tool schemas, so these are not counted.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from headstart import compress
from headstart.compression.result import texts
from headstart.compression.selection import parse_query, rank
from headstart.compression.tokens import _loaded
from headstart.types import Memo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from headstart.settings import CompressionMode

    Policy = Callable[[Sequence["Message"]], Sequence["Message"]]

Message = dict[str, Any]

READ, WRITE, BLOCK = 0.1, 1.25, 128


class Bill(NamedTuple):
    """The prompt tokens of a session: all, the cached ones, and the most that could be cached."""

    tokens: int
    cached: int
    shared: int
    """Without rounding to blocks: the tokens that a provider with exact breakpoints reads."""

    @property
    def cost(self) -> float:
        return READ * self.cached + WRITE * (self.tokens - self.cached)

    @property
    def exact_cost(self) -> float:
        return READ * self.shared + WRITE * (self.tokens - self.shared)


def sessions(folder: Path, joined: int) -> list[list[Message]]:
    """Return transcripts, ``joined`` of them behind one another under one system message."""
    rows = json.loads((folder / "taubench" / "gpt-4o-airline.json").read_text("utf-8"))
    return [
        rows[at]["traj"][:1]
        + [message for row in rows[at : at + joined] for message in row["traj"][1:]]
        for at in range(0, len(rows), joined)
    ]


@lru_cache(maxsize=100_000)
def _tokens(text: str) -> tuple[int, ...]:
    return tuple(_loaded("o200k_base").encode_ordinary(text))


def bills(transcripts: Iterable[Sequence[Message]], policy: Policy) -> Iterator[Bill]:
    """Yield for each session the tokens of all requests and how many came from the cache."""
    for transcript in transcripts:
        total = cached = shared = 0
        previous: list[int] = []
        for number, message in enumerate(transcript):
            if message["role"] != "assistant":
                continue
            prompt = [
                token
                for sent in policy(transcript[:number])
                for text in texts(sent)
                for token in (0, *_tokens(text))
            ]
            total += len(prompt)
            same = _shared(prompt, previous)
            shared += same
            cached += same // BLOCK * BLOCK
            previous = prompt
        yield Bill(total, cached, shared)


def _shared(prompt: list[int], previous: list[int]) -> int:
    if prompt[: len(previous)] == previous:
        return len(previous)
    return next(n for n, (a, b) in enumerate(zip(prompt, previous, strict=False)) if a != b)


def ours(
    mode: CompressionMode, *, clear_history: bool = False, repeated_reads: bool = False
) -> Policy:
    """Compress as the proxy would, with a memo as the only state.

    The last two messages are marked, as clients of Anthropic do: that must change nothing.
    """
    memo = Memo()

    def policy(messages: Sequence[Message]) -> Sequence[Message]:
        marked = [{**each, "cache_control": {"type": "ephemeral"}} for each in messages[-2:]]
        sent = [*messages[:-2], *marked]
        return compress(
            sent, mode=mode, clear_history=clear_history, repeated_reads=repeated_reads, memo=memo
        ).messages

    return policy


_NUMBER = re.compile(r"(?m)^ *\d+\u2192")


def standing(transcripts: Iterable[Sequence[Message]], policy: Policy) -> tuple[int, int]:
    """Return the number of edits, and of those whose search text stands in the prompt before."""
    edits = found = 0
    for transcript in transcripts:
        for number, message in enumerate(transcript):
            quoted = [
                json.loads(call["function"]["arguments"])["old_string"]
                for call in message.get("tool_calls", ())
                if call["function"]["name"] == "edit_file"
            ]
            if quoted:
                sent = policy(transcript[:number])
                prompt = [_NUMBER.sub("", text) for one in sent for text in texts(one)]
                edits += len(quoted)
                found += sum(any(each in text for text in prompt) for each in quoted)
    return edits, found


def halve_for_newest(messages: Sequence[Message]) -> list[Message]:
    """Keep the half of each tool result that suits the newest question, as other compressors do."""
    asked = next((m["content"] for m in reversed(messages) if m["role"] == "user"), "")
    return [
        {**m, "content": _half(m["content"], asked)} if m["role"] == "tool" else m for m in messages
    ]


def halve_causally(messages: Sequence[Message]) -> list[Message]:
    """Keep the half of each tool result that suits the question it was fetched for."""
    out, asked = [], ""
    for message in messages:
        if message["role"] == "user":
            asked = message["content"]
        tool = message["role"] == "tool"
        out.append({**message, "content": _half(message["content"], asked)} if tool else message)
    return out


@lru_cache(maxsize=100_000)
def _half(text: str, question: str) -> str:
    """Return half of a text, cut at commas. It represents compressors that cut inside JSON."""
    query = parse_query(question)
    pieces = text.split(",")
    if not query.terms or len(pieces) < 4:
        return text[: len(text) // 2]
    spans, at = [], 0
    for piece in pieces:
        spans.append((at, at + len(piece) + 1))
        at += len(piece) + 1
    scores = rank(text, spans, [0] * len(spans), [""], query).scores
    best = sorted(range(len(spans)), key=lambda n: -scores[n])[: len(spans) // 2]
    return ",".join(pieces[n] for n in sorted(best))


def clear_all_but_three(messages: Sequence[Message]) -> list[Message]:
    """Blank all tool results but the last three."""
    tools = [number for number, message in enumerate(messages) if message["role"] == "tool"]
    old = set(tools[:-3])
    return [{**m, "content": "[cleared]"} if n in old else m for n, m in enumerate(messages)]


def slide(messages: Sequence[Message]) -> list[Message]:
    """Keep the system message and the last four thousand tokens."""
    kept: list[Message] = []
    room = 4000
    for message in reversed(messages[1:]):
        room -= sum(len(_tokens(text)) for text in texts(message))
        if room < 0 and kept:
            break
        kept.append(message)
    return [*messages[:1], *reversed(kept)]


POLICIES: dict[str, Policy] = {
    "none": lambda messages: messages,
    "headstart, safe": ours("safe"),
    "headstart, safe, repeated reads": ours("safe", repeated_reads=True),
    "headstart, balanced": ours("balanced"),
    "headstart, aggressive": ours("aggressive"),
    "headstart, balanced, clear_history": ours("balanced", clear_history=True),
    "half of each result, causal": halve_causally,
    "half of each result, newest question": halve_for_newest,
    "all results but three cleared": clear_all_but_three,
    "sliding window of 4k": slide,
}
