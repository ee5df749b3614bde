"""A route that a bench recommends can be put into the same file, however providers bill."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import anyio
import pytest

from headstart.config.loading import load_settings
from headstart.config.providers import model_at
from headstart.lab.bench import Recommendation, Sample, Subject, recommend
from headstart.lab.commands.bench_calls import Source, open_configured

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


MODEL = "llama-3.3-70b"
PAIRS = {
    "both stop": ('preset = "together"', 'preset = "fireworks"'),
    "the first bills": ('preset = "groq"', 'preset = "together"'),
    "the second bills": ('preset = "together"', 'preset = "groq"'),
    "nobody knows": (
        f'name = "x"\nbase_url = "https://x.example/v1"\nmodels = {{ fast = "{MODEL}" }}',
        f'name = "y"\nbase_url = "https://y.example/v1"\nmodels = {{ quick = "{MODEL}" }}',
    ),
}


def _made(
    subject: Subject, ttft_s: Iterator[float], speed: float = 1e3, cost_usd: float | None = None
) -> list[Sample]:
    return [
        Sample(
            subject=subject,
            cold=False,
            ttft_s=first,
            total_s=first + tokens / speed,
            tokens_per_s=speed,
            completion_tokens=tokens,
            cost_usd=cost_usd,
        )
        for first, tokens in zip(ttft_s, (10, 400) * 100, strict=False)
    ]


def _steady(seconds: float) -> Iterator[float]:
    while True:
        yield seconds


def _stalling(seconds: float) -> Iterator[float]:
    while True:
        yield from (*(seconds,) * 9, 30.0)


def _wide(seed: int) -> Iterator[float]:
    chance = random.Random(seed)
    while True:
        yield 2 * chance.lognormvariate(0, 0.8)


def _measured(rule: str, first: Subject, second: Subject) -> list[Sample]:
    match rule:
        case "hedge":
            return _made(first, _stalling(0.1)) + _made(second, _steady(0.5))
        case "race":
            return _made(first, _wide(1)) + _made(second, _wide(2))
        case "fastest":
            return _made(first, _steady(0.1), 50) + _made(second, _steady(0.8), 500)
        case "cheapest":
            return _made(first, _steady(0.4), 1e3, 1.0) + _made(second, _steady(0.5), 1e3, 0.1)
        case "single":
            return _made(first, _steady(0.4))
    return _made(first, _steady(0.2)) + _made(second, _steady(0.5))


async def _subjects(source: Source) -> list[Subject]:
    async with source as measured:
        return [target.subject for target in measured.targets]


def _recommended(path: Path, rule: str, pair: str) -> Recommendation:
    """Write a file with two upstreams, and add to it what a bench of them recommends."""
    tables = (
        f'[[upstream]]\n{each}\napi_key_env = ["KEY{at}"]\n' for at, each in enumerate(PAIRS[pair])
    )
    path.write_text("\n".join(tables))
    models = () if pair == "nobody knows" else (MODEL,)
    subjects = anyio.run(_subjects, open_configured(path, (), models))
    found = recommend(subjects, _measured(rule, *subjects))
    assert found is not None
    with path.open("a") as file:
        file.write("\n" + found.toml())
    return found


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("rule", ["single", "hedge", "race", "fastest", "cheapest", "fallback"])
def test_a_recommended_route_loads_and_asks_for_the_measured_models(
    tmp_path: Path, rule: str, pair: str
) -> None:
    path = tmp_path / "headstart.toml"
    found = _recommended(path, rule, pair)
    if rule == "race" and pair != "both stop":
        assert found.strategy != "race", "the loser would be paid in full"
    else:
        assert found.strategy == rule
    settings = load_settings(path, {})
    [route] = settings.route
    assert (route.strategy, route.upstreams) == (found.strategy, found.upstreams)
    reals = {"x": MODEL, "y": MODEL, "groq": "llama-3.3-70b-versatile"}
    for upstream in settings.upstream:
        asked = model_at(upstream, route.match.model)
        if upstream.name in found.upstreams and upstream.name in reals:
            assert asked == reals[upstream.name]


def test_a_hedge_that_may_be_billed_says_so_and_who_bills(tmp_path: Path) -> None:
    for pair, billed in (("both stop", None), ("the first bills", "groq"), ("nobody knows", "x")):
        found = _recommended(tmp_path / "headstart.toml", "hedge", pair)
        assert found.race_billed == (billed is not None)
        assert ("may bill" in found.why[0]) == (billed is not None)
        assert billed is None or billed in found.why[0].partition(";")[2]
