"""A model without a price is named in the log once, where the provider sends a bill."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.attempts import AttemptOutcome
from headstart.cli.explain import print_explained
from headstart.decisions import Outcome
from headstart.middleware.observers import UnpricedModels
from support.booked import attempt, served
from support.proxied import proxied

if TYPE_CHECKING:
    from rich.console import Console

    from headstart.observe import Served


def asked(upstream: str = "far", model: str = "m", **fields: Any) -> Served:
    return served(attempts=(attempt(upstream=upstream, model=model, total_s=0.1, **fields),))


def test_each_model_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    log = UnpricedModels(frozenset({"far"}))
    for each in (
        asked(),
        asked(),
        asked(model="other"),
        asked(model="priced", cost_usd=0.0),
        asked(model="refused", outcome=AttemptOutcome.FAILED),
        asked("own server"),
        msgspec.structs.replace(asked(model="/v1/files"), outcome=Outcome.RELAY),
    ):
        log.notify(each)
    assert [record.args for record in caplog.records] == [("m", "far"), ("other", "far")]
    assert "cheapest cannot compare it" in caplog.records[0].getMessage()


def test_made_up_names_do_not_fill_the_memory(caplog: pytest.LogCaptureFixture) -> None:
    log = UnpricedModels(frozenset({"far"}))
    for number in range(3000):
        log.notify(asked(model=str(number)))
    assert len(caplog.records) == len(log._warned) == 1000


@pytest.mark.anyio
async def test_a_server_of_ones_own_sends_no_bill(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with proxied() as proxy:
            assert (await proxy.ask()).status == 200
    assert "no price" not in caplog.text


def test_explain_says_what_cheapest_cannot_compare() -> None:
    from rich.console import Console

    console: Console = Console(record=True, width=200)
    print_explained(console, asked(), None)
    shown = console.export_text()
    assert "asked     far, first: won, 100 ms, no price is known" in shown
    assert "unpriced  m at far: its cost is not booked" in shown


def test_explain_says_what_was_relayed_and_misses_no_price() -> None:
    from rich.console import Console

    console: Console = Console(record=True, width=200)
    row = msgspec.structs.replace(
        asked(model="/v1/files"), outcome=Outcome.RELAY, endpoint="/v1/files", bytes_down=1234
    )
    print_explained(console, row, None)
    shown = console.export_text()
    assert "asked     far, first: won, 100 ms\n" in shown
    assert "/v1/files is not cached: 0 bytes went up, 1,234 came down" in shown
    assert "price" not in shown
