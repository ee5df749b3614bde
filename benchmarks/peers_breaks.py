"""The behaviour of a gateway when a client leaves a stream, and when an upstream breaks one off."""

from __future__ import annotations

import asyncio
import json
import statistics
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aiohttp

from benchmarks.overhead import unique
from benchmarks.peers_site import BREAKS, CHAT, ORACLE, SLOW, TOKENS, Site, Target, chat

_LEFT_AFTER = 5
"""Tokens that a client has read when it leaves."""
_LEAVERS = 5
_PATIENCE_S = 30.0


def _now() -> float:
    return datetime.now(UTC).timestamp()


@dataclass
class Heard:
    """The part of a stream that a client got."""

    status: int = 0
    text: str = ""
    error: str = ""
    """The place of the error: in the stream, as a status, or of the connection."""
    finish: str = ""
    """The finish reason, if one came."""
    done: bool = False
    """``[DONE]`` came."""
    left_at: float = 0.0
    """Unix seconds just before the client closed its connection early."""

    def take(self, line: bytes) -> None:
        """Take in a line of the stream."""
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self.done = True
            return
        event = json.loads(data)
        if error := event.get("error"):
            self.error = self.error or f"error event: {_message(error)}"
        for choice in event.get("choices") or ():
            self.text += choice.get("delta", {}).get("content") or ""
            self.finish = choice.get("finish_reason") or self.finish

    @property
    def tokens(self) -> int:
        """The number of words that came; the provider sends words."""
        return len(self.text.split())

    def verdict(self, right: str) -> str:
        """The client's view of the result; ``right`` is the whole answer."""
        if self.error:
            return self.error.partition(":")[0]
        if self.text == right:
            return "whole answer"
        if self.finish:
            return f"silent: {self.tokens} tokens, finish_reason {self.finish}"
        return f"silent: {self.tokens} tokens, {'[DONE]' if self.done else 'no [DONE]'}"


def _message(error: Any) -> str:
    return str(error.get("message") if isinstance(error, dict) else error)[:200]


async def listen(site: Site, target: Target, case: str, number: int, tokens: int) -> Heard:
    """Make a streamed call, and leave after so many tokens or at the end."""
    heard = Heard()
    headers = {"authorization": "Bearer bench", **dict(target.headers)}
    body = chat(case, number, stream=True)
    try:
        async with (
            asyncio.timeout(_PATIENCE_S),
            site.session.post(target.url + CHAT, json=body, headers=headers) as response,
        ):
            heard.status = response.status
            if response.status != 200:
                heard.error = f"status {response.status}: {(await response.text())[:200]}"
            async for line in response.content:
                heard.take(line)
                if heard.tokens >= tokens:
                    heard.left_at = _now()
                    response.close()
                    break
    except (TimeoutError, aiohttp.ClientError) as error:
        heard.error = heard.error or f"connection broken: {type(error).__name__}"
    return heard


async def leave(site: Site, target: Target, numbers: range) -> dict[str, Any]:
    """Leave some streams early, and ask the provider when it noticed."""
    after_s: list[float] = []
    for number in numbers[:_LEAVERS]:
        seen = len(await site.records(SLOW))
        heard = await listen(site, target, SLOW, number, _LEFT_AFTER)
        if not heard.left_at:
            return {"cancelled": None, "error": heard.error or "nothing to leave"}
        at = await _cancelled_at(site, seen)
        if at is None:
            return {"cancelled": False, "after_s": after_s}
        after_s.append(at - heard.left_at)
    return {"cancelled": True, "after_s": after_s, "median_s": statistics.median(after_s)}


async def _cancelled_at(site: Site, seen: int) -> float | None:
    """Return when the call after ``seen`` others was cancelled; None: it went on to its end."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            records = await site.records(SLOW)
            if len(records) > seen:
                return records[-1].cancelled_at
            await asyncio.sleep(0.05)


async def breaks(site: Site, target: Target, numbers: range) -> dict[str, dict[str, Any]]:
    """Have the upstream break off in each way, and describe the client's result."""
    rows = {}
    for case, number in zip(BREAKS, numbers, strict=False):
        before = await site.calls(case)
        heard = await listen(site, target, case, number, 10 * TOKENS)
        rows[case] = {
            "verdict": heard.verdict(ORACLE.truth(unique(number)).text),
            "tokens": heard.tokens,
            "error": heard.error,
            "finish_reason": heard.finish,
            "done": heard.done,
            "upstream_calls": await site.calls(case) - before,
        }
    return rows
