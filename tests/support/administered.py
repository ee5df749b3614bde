"""A gateway that learns, with the admin API behind it, all on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import CollectorRegistry

from headstart.middleware.admin import admin_app
from headstart.middleware.admin_front import AdminState, LivePages
from headstart.middleware.asgi import behind_gateway
from headstart.middleware.metrics import PrometheusObserver
from headstart.middleware.observers import RecentRequests
from headstart.policies.callers import OriginRules
from support.patience import PATIENCE_S
from support.proxied import Reply, reply_of
from support.sidecar import Sidecar, sidecar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.decisions import Label
    from headstart.interfaces import Store
    from headstart.middleware.learning.hit_decisions import HitDecider
    from headstart.types import ASGIApp

CHATGPT = "How can I sign up for ChatGPT?"
REWORDED = "I want to sign up for ChatGPT"
ELSEWISE = "I want to sign up to ChatGPT"
NEGATED = "How can I not sign up for ChatGPT?"


@dataclass
class Administered:
    """A running gateway, and calls of its admin API."""

    gateway: Sidecar

    @property
    def store(self) -> Store:
        return self.gateway.parts[0].store

    @property
    def hit_decider(self) -> HitDecider:
        hit_decider = self.gateway.parts[0].hit_decider
        assert hit_decider is not None
        return hit_decider

    async def call(self, method: str, path: str, **options: Any) -> Reply:
        url = f"{self.gateway.url}/_headstart/{path}"
        async with self.gateway.session.request(method, url, **options) as response:
            return await reply_of(response)

    async def get(self, path: str, **options: Any) -> Any:
        return decode(await self.call("GET", path, **options), 200)

    async def post(self, path: str, body: Any, **options: Any) -> Reply:
        return await self.call("POST", path, json=body, **options)

    async def ask(self, prompt: str) -> str:
        """Send a prompt and return its request's id."""
        reply = await self.gateway.ask(prompt)
        return reply.headers["x-headstart-request-id"]

    async def ask_first(self, prompt: str = CHATGPT) -> str:
        """Send a prompt, and wait until later prompts can find its answer by meaning."""
        id = await self.ask(prompt)
        await self.gateway.indexed(1)
        return id

    async def labels(self, count: int) -> list[Label]:
        """Wait until the store has this many labels; return them."""
        async with asyncio.timeout(PATIENCE_S):
            while len(found := await self.store.read_labels()) < count:
                await asyncio.sleep(0.005)
        return [label for _, label in found]

    async def booked(self, count: int) -> None:
        """Wait until the books in the store have this many requests."""
        async with asyncio.timeout(PATIENCE_S):
            while len([row async for row in self.store.read_books()]) < count:
                await asyncio.sleep(0.005)


def decode(reply: Reply, status: int) -> Any:
    assert reply.status == status, (reply.status, reply.body)
    assert reply.headers["content-type"].startswith("application/json")
    return json.loads(reply.body)


def message(reply: Reply, status: int) -> str:
    """Return the message of an error, after checking that it has the form of the admin API."""
    error = decode(reply, status)["error"]
    assert error.keys() == {"message", "type", "code"}
    return str(error["message"])


@contextlib.asynccontextmanager
async def administered(
    token: bytes | None = None,
    *,
    upstreams: dict[str, Any] | None = None,
    pages: LivePages | None = None,
    **cache: Any,
) -> AsyncIterator[Administered]:
    """Run a gateway with its admin API and a simulated provider; ``cache`` may switch audits on.

    ``upstreams`` are arguments of ``sidecar``.
    """
    cache = {"audit.mode": "off", **cache}
    behind = partial(_admin, token=token, pages=pages or LivePages())
    async with sidecar(behind=behind, cache=cache, **(upstreams or {})) as running:
        yield Administered(running)


def _admin(running: Sidecar, token: bytes | None, pages: LivePages) -> ASGIApp:
    metrics, recent = PrometheusObserver(CollectorRegistry()), RecentRequests()
    running.observers.add(metrics)
    running.observers.add(recent)
    state = AdminState(
        engine=lambda: running.parts[-1] if running.parts else None,
        metrics=metrics,
        recent=recent,
        observers=running.observers,
        config={},
        clock=time.time,  # noqa: TID251 - as the sidecar does
        started=0.0,
        pages=pages,
    )
    return behind_gateway(cast("ASGIApp", admin_app(state, token=token, rules=OriginRules())))
