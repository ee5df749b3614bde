"""Weather by the simulated clock: pure, then through a real socket."""

from __future__ import annotations

import random

import pytest

from headstart.errors import ConfigError
from headstart.lab.simulator import ProviderProfile, Simulator, Spell, find_weather
from headstart.lab.simulator.faults import WEATHERS, Cut, Status, read_weather, weather_effect
from support.simulated import chat, exchange, simulated

DOWN = Status(status=503)


@pytest.mark.parametrize(
    ("spell", "at_s", "strength"),
    [
        (Spell(from_s=10, to_s=20), 9.9, 0),
        (Spell(from_s=10, to_s=20), 10, 1),
        (Spell(from_s=10, to_s=20), 20, 0),
        (Spell(), 1e9, 1),
        (Spell(from_s=10, to_s=20, worsens=True), 10, 0),
        (Spell(from_s=10, to_s=20, worsens=True), 15, 0.5),
        (Spell(period_s=60), 29, 0),
        (Spell(period_s=60), 31, 1),
        (Spell(period_s=60), 61, 0),
        (Spell(period_s=60, fair_share=0.9), 53, 0),
    ],
)
def test_the_strength_of_a_spell(spell: Spell, at_s: float, strength: float) -> None:
    assert spell.strength(at_s) == strength


def test_a_share_of_requests_is_struck_and_grows() -> None:
    spell = Spell(to_s=100, fault=DOWN, share=0.4, worsens=True)
    rng = random.Random(0)
    struck = sum(weather_effect([spell], 50, rng.random()).fault is DOWN for _ in range(10_000))
    assert struck / 10_000 == pytest.approx(0.2, abs=0.02)


def test_slowness_multiplies_and_the_first_fault_wins() -> None:
    cut = Cut()
    found = weather_effect([Spell(slower=2), Spell(slower=3, fault=DOWN), Spell(fault=cut)], 0, 0.5)
    assert found.slower == 6
    assert found.fault is DOWN
    assert weather_effect([Spell(from_s=1, fault=cut)], 0, 0.5).fault is None


def test_worsening_weather_needs_an_end() -> None:
    with pytest.raises(ValueError, match="needs to_s"):
        Spell(worsens=True)


@pytest.mark.parametrize("name", WEATHERS)
def test_every_named_weather_turns_bad_sometime(name: str) -> None:
    around = [weather_effect(find_weather(name), at_s, 0.0) for at_s in range(0, 700, 7)]
    assert any(one.fault for one in around)


def test_weather_is_found_by_name_and_read_from_a_file() -> None:
    with pytest.raises(ConfigError, match="did you mean 'flapping'"):
        find_weather("flaping")
    (spell,) = read_weather(b"[[spell]]\nto_s = 5\nfault = { fault = 'cut', after = 3 }")
    assert spell == Spell(to_s=5, fault=Cut(after=3))
    with pytest.raises(ConfigError, match="unknown field `until`"):
        read_weather(b"[[spell]]\nuntil = 5")


@pytest.mark.anyio
async def test_an_outage_ends_by_the_simulated_clock() -> None:
    now = 1000.0
    outage = [Spell(to_s=60, fault=DOWN)]
    simulator = Simulator(weather=outage, speed=2, clock=lambda: now)
    async with simulated(simulator) as url:
        statuses = []
        for step_s in (0, 29, 1, 0):
            now += step_s
            statuses.append((await exchange(url, chat())).status)
        simulator.reset()
        statuses.append((await exchange(url, chat())).status)
    assert statuses == [503, 503, 200, 200, 503]


@pytest.mark.anyio
async def test_a_slow_spell_slows_both_the_first_token_and_the_rest() -> None:
    profile = ProviderProfile(model="m", ttft_ms=1000, tokens_per_s=(100, 100))
    simulator = Simulator(profile, weather=[Spell(slower=5)], speed=1000)
    async with simulated(simulator) as url:
        await exchange(url, chat(max_tokens=10, stream=True))
    (record,) = simulator.stats.ended_calls()
    assert record.first_token_s is not None
    assert record.first_token_s >= 5.0 / 1000
    assert record.ended_s >= (5.0 + 9 * 0.05) / 1000
