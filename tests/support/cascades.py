"""Cascades over scripted targets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headstart.dialects.registry import DIALECTS
from headstart.errors import UpstreamRefused
from headstart.middleware.upstreams.cascade import Cascade
from headstart.settings import JudgeInCode, Strategy
from support.candidates import UNIX, Actor, Targets, chat_call, read, whole

if TYPE_CHECKING:
    from headstart.interfaces import Candidate
    from headstart.types import Call

REFUSAL = "I'm sorry, but I can't help with that."


def cascade(
    targets: Targets,
    fast: Actor | Candidate,
    slow: Actor | Candidate,
    *own: Any,
    draw: float = 1.0,
    **options: Any,
) -> Cascade:
    return Cascade(
        "cascade",
        targets.target(fast) if isinstance(fast, Actor) else fast,
        targets.target(slow) if isinstance(slow, Actor) else slow,
        Strategy(judges=tuple(map(JudgeInCode, own)), **options),
        draw=lambda: draw,
        clock=lambda: UNIX,
    )


def fast_says(*words: str) -> Actor:
    return Actor("fast", [whole(*words)])


def slow_says(*words: str) -> Actor:
    return Actor("slow", [whole(*words)])


def broken(name: str) -> Actor:
    return Actor(name, [[UpstreamRefused("down", status=500, headers=(), body=b"", code="x")]])


def asking(prompt: str, **fields: Any) -> Call:
    call = chat_call()
    document = {
        "model": "m",
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        **fields,
    }
    body = msgspec.json.encode(document)
    return msgspec.structs.replace(
        call, body=body, request=DIALECTS[call.dialect].parse_request(body)
    )


async def ask(upstream: Cascade, call: Call | None = None) -> tuple[str, tuple[str, ...]]:
    async with await upstream.send(call or chat_call()) as reply:
        return await read(reply), reply.transforms
