"""``headstart demo`` shows hits, a refused trap and providers that fail, and then reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.__main__ import main

if TYPE_CHECKING:
    import pytest


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
