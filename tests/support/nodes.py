"""Nodes: gateways that share one Redis and one provider."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from headstart.observe import Committed
from support.patience import PATIENCE_S, until
from support.sidecar import Sidecar, sidecar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


NUMBERS = itertools.count()
"""The numbers of questions, so that no question is asked twice in a run."""


@asynccontextmanager
async def nodes(*urls: str, **cache: Any) -> AsyncIterator[tuple[Sidecar, ...]]:
    """Run a node for each URL of a store, without matching by meaning."""
    running: list[Sidecar] = []
    async with AsyncExitStack() as exits:
        for url in urls:
            # Answers of another provider are not shared.
            upstream = {"base_url": running[0].provider_url} if running else None
            settings = {"store": url, "mode": "exact-only", **cache}
            node = sidecar(cache=settings, upstream=upstream)
            running.append(await exits.enter_async_context(node))
        yield tuple(running)


def committed(asking: Sidecar) -> int:
    """Return how many answers a node has stored."""
    return sum(isinstance(seen, Committed) for seen in asking.recorder.seen)


async def share(asking: Sidecar, *others: Sidecar) -> str:
    """Ask new questions until all nodes have the answer that the first one stored to one of them.

    Returns that question.
    """
    async with asyncio.timeout(PATIENCE_S):
        for number in NUMBERS:
            question, before = f"What is question {number}?", committed(asking)
            await asking.ask(question)
            try:
                async with asyncio.timeout(1.0):
                    await until(lambda: committed(asking) > before)  # noqa: B023 - in its round
            except TimeoutError:
                continue  # the store has not taken it
            verdicts = [await verdict(other, question) for other in others]
            if all(each.endswith("detail=exact") for each in verdicts):
                return question
    raise AssertionError("unreachable")


async def verdict(node: Sidecar, question: str) -> str:
    """Ask a node; return the ``Cache-Status`` of its answer, whose status must be 200."""
    reply = await node.ask(question)
    assert reply.status == 200, reply.body
    return reply.verdict


async def ask_new(*running: Sidecar, count: int = 5) -> None:
    """Ask each node new questions, all at the same time. Each must be answered with status 200."""
    async with asyncio.TaskGroup() as tasks:
        for node in running:
            for number in itertools.islice(NUMBERS, count):
                tasks.create_task(verdict(node, f"What is new {number}?"))
