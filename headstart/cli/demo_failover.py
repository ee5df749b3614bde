"""The demo's second screen: one provider fails, another answers."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from headstart.config import RouteMatch, RouteSettings, UpstreamSettings
from headstart.observe import Served
from headstart.simulator import Simulator, serve
from headstart.simulator.faults import Cut, Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    import aiohttp

    from headstart.attempts import Attempt
    from headstart.config import PriceSettings
    from headstart.simulator.faults import Fault

ROUTE = "x-headstart-route"


@dataclass(frozen=True)
class Trouble:
    """A provider that fails in one way, and a route that does not mind."""

    title: str
    prompt: str
    name: str
    strategy: Literal["race", "fallback"]
    fault: Fault


TROUBLES = (
    Trouble(
        title="two raced, and one answers 503",
        prompt="How do I boil an egg?",
        name="simulated-503",
        strategy="race",
        fault=Status(status=503),
    ),
    Trouble(
        title="a stream that breaks off: another provider goes on where the client stands",
        prompt="How do I get a wine stain out of a carpet?",
        name="simulated-cut",
        strategy="fallback",
        fault=Cut(after=8),
    ),
)


@contextlib.asynccontextmanager
async def failing_providers(
    profile: str, seed: int, speed: float, prices: Mapping[str, PriceSettings]
) -> AsyncIterator[tuple[UpstreamSettings, ...]]:
    """Run a provider for each trouble, and close them after."""
    async with contextlib.AsyncExitStack() as stack:
        upstreams = []
        for trouble in TROUBLES:
            refuses = isinstance(trouble.fault, Status)
            simulator = Simulator(
                "instant" if refuses else profile, seed=seed, speed=speed, fault=trouble.fault
            )
            url = await stack.enter_async_context(serve(simulator))
            upstreams.append(
                UpstreamSettings(name=trouble.name, base_url=f"{url}/v1", price=dict(prices))
            )
        yield tuple(upstreams)


def routes(healthy: str) -> tuple[RouteSettings, ...]:
    """Return a route for each trouble, taken by those alone who name it in ``ROUTE``."""
    return tuple(
        RouteSettings(
            name=trouble.name,
            match=RouteMatch(header={ROUTE: trouble.name}),
            strategy=trouble.strategy,
            upstreams=(trouble.name, healthy),
            retries=0,
        )
        for trouble in TROUBLES
    )


async def attempts_of(
    session: aiohttp.ClientSession, admin_url: str, request_id: str
) -> Sequence[Attempt]:
    """Return the upstream calls that a request caused."""
    async with session.get(f"{admin_url}/explain/{request_id}") as response:
        response.raise_for_status()
        return msgspec.json.decode(await response.read(), type=Served).attempts
