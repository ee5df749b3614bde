"""Tiers of one provider: ready candidates with their prices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headstart.config.checks import checked
from headstart.config.loading import load_settings
from headstart.config.providers import model_table, price_at, read_data, tiers
from headstart.errors import ConfigError
from headstart.factory.upstreams import price_of
from headstart.settings import PriceSettings, Settings, UpstreamSettings

if TYPE_CHECKING:
    from pathlib import Path

TIERS = [
    (provider, name) for provider in ("openai", "gemini", "anthropic") for name in tiers(provider)
]


def _settings(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "headstart.toml"
    path.write_text(text)
    return load_settings(path, {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"})


ROUTE = """
[[upstream]]
preset = "openai"
fields = { user = "x" }
[[route]]
name = "patient"
strategy = "fallback"
upstreams = ["openai:flex", "openai"]
"""


def test_a_route_names_a_tier_of_an_upstream(tmp_path: Path) -> None:
    settings = _settings(tmp_path, ROUTE)
    standard, flex = settings.upstream
    assert (standard.name, standard.tier) == ("openai", None)
    assert (flex.name, flex.tier, flex.base_url) == ("openai:flex", "flex", standard.base_url)
    assert standard.fields == {"user": "x"}
    assert flex.fields == {"user": "x", "service_tier": "flex"}
    usual, half = price_of(standard, "gpt-5-mini"), price_of(flex, "gpt-5-mini")
    assert usual is not None
    assert half is not None
    assert half.output_per_million == pytest.approx(usual.output_per_million / 2)
    assert half.cached_per_million == pytest.approx((usual.cached_per_million or 0) / 2)
    assert checked(settings).upstream == settings.upstream, "once is enough"


def test_tiers_within_strategies_are_found(tmp_path: Path) -> None:
    nested = 'upstreams = [{ strategy = "race", upstreams = ["openai:priority", "openai"] }, "b"]'
    other = '[[upstream]]\nname = "b"\nbase_url = "http://127.0.0.1:9/v1"\n'
    text = other + ROUTE.replace('upstreams = ["openai:flex", "openai"]', nested)
    names = [each.name for each in _settings(tmp_path, text).upstream]
    assert names == ["b", "openai", "openai:priority"]


def test_fast_needs_a_field_and_a_header(tmp_path: Path) -> None:
    (fast,) = _settings(tmp_path, '[[upstream]]\npreset = "anthropic"\ntier = "fast"\n').upstream
    assert fast.fields == {"speed": "fast"}
    assert fast.headers == {"anthropic-beta": "fast-mode-2026-02-01"}


def test_a_model_outside_the_tier_has_no_known_price() -> None:
    flex = UpstreamSettings(name="o", preset="openai", tier="flex")
    assert price_at(flex, "gpt-4o") is None
    assert price_at(flex, "gpt-5-mini-2025-08-07") is not None, "a dated release costs the same"
    own = PriceSettings(input_per_million=1.0, output_per_million=2.0)
    priced = UpstreamSettings(name="o", preset="openai", tier="flex", price={"gpt-4o": own})
    assert price_at(priced, "gpt-4o") == own, "the user's price is that of the tier"


@pytest.mark.parametrize(
    "text",
    [
        '[[upstream]]\npreset = "groq"\ntier = "flex"\n',
        '[[upstream]]\npreset = "anthropic"\ntier = "flex"\n',
        ROUTE.replace("openai:flex", "openai:fast"),
    ],
)
def test_a_tier_that_a_provider_does_not_have_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"tier|openai:fast"):
        _settings(tmp_path, text)


@pytest.mark.parametrize(("provider", "name"), TIERS)
def test_every_tier_prices_a_model_once(provider: str, name: str) -> None:
    tier = tiers(provider)[name]
    models = [model for each in tier.times.values() for model in each]
    assert len(models) == len(set(models))
    assert any(model_table().price(provider, model) for model in models)
    assert all(0.1 < float(factor) < 10 for factor in tier.times)


def test_the_file_has_no_other_provider() -> None:
    assert {provider for provider, _ in TIERS} == set(read_data("tiers.toml"))
