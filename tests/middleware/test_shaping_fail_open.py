"""A shaper that fails costs nobody the answer."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from headstart.errors import UpstreamUnreachable
from headstart.middleware.shaping.fail_open import FailOpen
from headstart.middleware.shaping.shaper import Shaper
from headstart.observe import Observers, StageFailed
from support.candidates import Actor, House, read, whole
from support.guarded import a_call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.interfaces import UpstreamReply
    from headstart.observe import Observation
    from headstart.types import Call

pytestmark = pytest.mark.anyio


class Failing(Shaper):
    """Fails over an answer."""

    def __init__(self, inner: Shaper, error: Exception) -> None:
        super().__init__(inner)
        self._error = error

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[UpstreamReply]:
        async with self._inner.stream(call) as reply:
            yield self._look_at(reply)

    def _look_at(self, reply: UpstreamReply) -> UpstreamReply:
        raise self._error


class Watcher:
    def __init__(self) -> None:
        self.seen: list[Observation] = []

    def notify(self, observation: Observation) -> None:
        self.seen.append(observation)


async def test_a_call_that_cannot_be_shaped_is_made_as_it_came() -> None:
    actor, watcher = Actor("a", [whole("lost"), whole("Hi")]), Watcher()
    inner = Shaper(House().target(actor))
    shaped = FailOpen(Failing(inner, KeyError("x")), inner, Observers([watcher]))
    async with shaped.stream(a_call()) as reply:
        assert await read(reply) == "Hi"
    assert watcher.seen == [StageFailed(stage="output", error="KeyError")]
    assert actor.open == 0


async def test_an_upstreams_error_is_not_the_shapers() -> None:
    actor, watcher = Actor("a", [whole("lost")]), Watcher()
    inner = Shaper(House().target(actor))
    shaped = FailOpen(Failing(inner, UpstreamUnreachable("gone")), inner, Observers([watcher]))
    with pytest.raises(UpstreamUnreachable):
        async with shaped.stream(a_call()):
            pytest.fail("entered")
    assert watcher.seen == []
