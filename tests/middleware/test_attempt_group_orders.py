"""Groups of attempts: which member comes first, and what a hedge may cost."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from headstart.attempts import RoutingEstimate
from headstart.errors import UpstreamUnavailable
from headstart.policies.cost import Price
from support.candidates import Actor, Candid, Targets, attempt_group, chat_call, read, whole

if TYPE_CHECKING:
    from headstart.middleware.upstreams.attempt_group import AttemptGroup
    from headstart.middleware.upstreams.target import Target
    from headstart.reply import Reply
    from headstart.types import Call

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_clock]

FREE = Price(input_per_million=0.0, output_per_million=0.0)


async def ask(upstream: AttemptGroup, id: str = "call", **fields: Any) -> str:
    async with await upstream.send(chat_call(id, **fields)) as reply:
        return await read(reply)


@pytest.mark.parametrize("price", [None, FREE], ids=["unknown", "free"])
async def test_a_first_member_without_a_price_is_hedged(price: Price | None) -> None:
    targets = Targets()
    slow, quick = Actor("a", [[asyncio.Event()]]), Actor("b", [whole("b")])
    upstream = attempt_group("hedge", targets.target(slow, price), targets.target(quick))
    # While nothing is known of either, the hedge starts after half of the time that is left.
    deadline = asyncio.get_running_loop().time() + 0.5
    assert await ask(upstream, deadline=deadline) == "b"
    assert sorted(targets.roles()) == [("a", "first"), ("b", "hedge")]


async def test_a_conversation_stays_where_it_was_served_only_if_that_is_asked_for() -> None:
    for sticky, then in ((True, "b"), (False, "a")):
        targets = Targets()
        a, b = Actor("a", [whole("a")]), Actor("b", [whole("b")])
        members = targets.target(a), targets.target(b)
        assert await ask(attempt_group("single", members[1]), affinity="talk") == "b"
        upstream = attempt_group("fallback", *members, sticky=sticky)
        assert await ask(upstream, affinity="talk") == then
        assert await ask(upstream, affinity="another") == "a"


@pytest.mark.parametrize(("draw", "first"), [(0.2, "a"), (0.4, "b")])
async def test_an_upstream_that_recovers_gets_its_share_of_the_calls(
    draw: float, first: str
) -> None:
    targets = Targets()
    back, well = (
        RoutingEstimate(name=name, weight=weight) for name, weight in (("a", 0.3), ("b", 1.0))
    )
    a, b = Actor("a", [whole("a")]), Actor("b", [whole("b")])
    members = (
        Candid(targets.target(a), lambda _: back),
        Candid(targets.target(b), lambda _: well),
    )
    assert await ask(attempt_group("fallback", *members, draw=draw)) == first


def closed(target: Target, retry_after_s: float | None) -> Candid:
    """Return a member that may not be asked now."""

    async def send(call: Call) -> Reply:
        raise UpstreamUnavailable("closed", retry_after_s=retry_after_s)

    member = Candid(target, target.estimate)
    member.send = send
    return member


async def test_callers_learn_when_the_first_of_several_upstreams_may_be_asked_again() -> None:
    targets = Targets()
    members = [
        closed(targets.target(Actor(name, [whole(name)])), wait_s)
        for name, wait_s in (("a", None), ("b", 9.0), ("c", 4.0))
    ]
    for order in itertools.permutations(members):
        with pytest.raises(UpstreamUnavailable) as raised:
            await ask(attempt_group("fallback", *order))
        assert raised.value.retry_after_s == 4.0
