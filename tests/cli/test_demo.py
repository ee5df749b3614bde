"""``headstart demo`` shows hits, a refused trap and providers that fail, and then reports."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import uvicorn

from headstart.__main__ import main
from headstart.lab.simulator.app import serve_app

if TYPE_CHECKING:
    from headstart.types import Receive, Scope, Send


def test_the_demo_shows_hits_failover_and_rescue(capfd: pytest.CaptureFixture[str]) -> None:
    main(["demo", "--requests", "0", "--profile", "groq", "--speed", "4"])
    shown = " ".join(capfd.readouterr().out.split())
    assert "exact first token" in shown
    assert "semantic first token" in shown
    assert "refused: negation" in shown
    assert "simulated-503: first, failed simulated-groq: race, won" in shown
    assert "simulated-cut: first, broken simulated-groq: rescue, won" in shown
    assert "9 requests" in shown
    assert "0 failed" in shown


def test_an_unknown_profile_is_refused_with_the_known_ones(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--profile", "nope"])
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "'nope' is not one of 'openai', 'anthropic'" in shown.err


def test_ctrl_c_while_it_starts_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    async def start() -> None:
        config = uvicorn.Config(slow, log_level="error", lifespan="on")
        async with serve_app(config):
            raise AssertionError("it never starts")

    async def interrupted() -> None:
        starting = asyncio.current_task()
        assert starting is not None
        asyncio.get_running_loop().call_later(0.05, starting.cancel)
        await start()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(interrupted())  # it cancels the app, too
    assert capfd.readouterr().err == ""
