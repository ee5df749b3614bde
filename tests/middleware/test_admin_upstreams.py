"""What the admin API shows of upstreams, through a real gateway."""

from __future__ import annotations

import pytest

from support.administered import administered

pytestmark = pytest.mark.anyio


async def test_an_upstream_is_shown_with_what_was_measured() -> None:
    async with administered() as running:
        assert await running.get("upstreams") == {"upstreams": []}
        await running.gateway.ask(stream=True)
        (shown,) = (await running.get("upstreams"))["upstreams"]
        assert shown["ready"]
        assert shown["in_flight"] == 0
        assert shown["ttft_p50_s"] > 0
        assert shown["first_token_limit_s"] >= 30
