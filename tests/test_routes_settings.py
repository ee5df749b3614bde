"""Presets, models, prices and strategies: what is filled in, what wins, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import pytest

from headstart.canonical_request import Quirks
from headstart.config.checks import checked
from headstart.config.loading import load_settings
from headstart.config.providers import (
    Weights,
    aliases,
    context_at,
    model_at,
    model_table,
    preset,
    price_at,
    providers,
    read_data,
)
from headstart.config.strategies import strategy_of, uses
from headstart.errors import ConfigError
from headstart.settings import (
    PriceSettings,
    RouteMatch,
    RouteSettings,
    ServerSettings,
    Settings,
    Strategy,
    StrategySettings,
    UpstreamSettings,
    Use,
)

if TYPE_CHECKING:
    from pathlib import Path

LOCAL = "http://127.0.0.1:1/v1"
FREE = {"default": PriceSettings(input_per_million=0, output_per_million=0)}


def upstream(**fields: Any) -> UpstreamSettings:
    """Return one upstream as it is after checks."""
    [found] = checked(Settings(upstream=(UpstreamSettings(**fields),))).upstream
    return found


def route(*members: str | StrategySettings, model: str = "*", **fields: Any) -> RouteSettings:
    return RouteSettings(name="r", match=RouteMatch(model=model), upstreams=members, **fields)


def presets(*names: str) -> tuple[UpstreamSettings, ...]:
    return tuple(UpstreamSettings(preset=name) for name in names)


# --- presets ---------------------------------------------------------------------------------


def test_a_preset_is_a_whole_upstream() -> None:
    groq = upstream(preset="groq")
    assert (groq.name, groq.base_url) == ("groq", "https://api.groq.com/openai/v1")
    assert groq.key_variables == ("GROQ_API_KEY",)
    assert groq.cancels_billing is False
    assert groq.models["llama-3.3-70b"] == "llama-3.3-70b-versatile"
    assert groq.quirks.max_choices == 1


def test_every_preset_is_whole() -> None:
    needy = [each.name for each in providers().values() if not each.base_url]
    assert needy == ["azure"]
    names = [name for name in providers() if name not in needy]
    found = checked(Settings(upstream=presets(*names))).upstream
    assert [each.name for each in found] == names
    assert checked(Settings(upstream=found)).upstream == found, "whole ones stay as they are"


def test_a_users_setting_wins_over_the_preset() -> None:
    own = upstream(
        preset="together",
        name="fast",
        base_url="https://proxy.test/v1",
        api_key_env=("A", "B"),
        models={"llama-3.3-70b": "mine"},
        cancels_billing=False,
        drops=("seed",),
        unsupported="refuse",
        quirks=Quirks(max_choices=3),
    )
    assert (own.name, own.base_url, own.key_variables) == (
        "fast",
        "https://proxy.test/v1",
        ("A", "B"),
    )
    assert own.models["llama-3.3-70b"] == "mine"
    assert own.cancels_billing is False
    assert own.quirks.drops == ("seed",)
    assert (own.quirks.refuse, own.quirks.max_choices) == (True, 3)
    assert own.quirks.renames == {"max_completion_tokens": "max_tokens"}, "the preset's remain"


def test_a_preset_names_further_dialects_and_the_user_may_choose_among_them() -> None:
    both = upstream(preset="openrouter")
    assert (both.dialect, "anthropic" in both.further) == ("openai", True)
    turned = upstream(preset="openrouter", dialect="anthropic")
    assert (turned.dialect, "openai" in turned.further) == ("anthropic", True)
    assert turned.quirks == Quirks(), "those of the preset are its first dialect's"
    assert upstream(preset="openrouter", also_speaks=()).further == ()
    assert upstream(base_url="https://a.test/v1", also_speaks=("gemini",)).further == ("gemini",)
    assert upstream(base_url="https://a.test/v1").further == ()
    by_address = upstream(base_url="https://openrouter.ai/api/v1", dialect="anthropic")
    assert by_address.preset == "openrouter"


def test_a_provider_that_takes_no_stream_options_is_not_asked_for_usage() -> None:
    assert upstream(preset="together").include_usage is False
    assert upstream(preset="groq").include_usage is True


def test_a_known_address_brings_the_data_but_never_the_key() -> None:
    found = upstream(base_url="https://api.groq.com/openai/v1/")
    assert (found.preset, found.name, found.quirks.max_choices) == ("groq", "api.groq.com", 1)
    assert found.key_variables == ()


@pytest.mark.parametrize("empty", ["[]", "'none'"])
def test_a_preset_can_leave_the_key_to_the_caller(empty: str, tmp_path: Path) -> None:
    path = tmp_path / "headstart.toml"
    path.write_text(f"[[upstream]]\npreset = 'openai'\napi_key_env = {empty}", encoding="utf-8")
    assert load_settings(path, {}).upstream[0].key_variables == ()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"preset": "grok"}, ["upstream[0].preset", "did you mean 'groq'?"]),
        ({}, ["upstream[0].base_url", "name a preset: openai"]),
        ({"preset": "azure"}, ["upstream[0].base_url", "RESOURCE.openai.azure.com"]),
        ({"preset": "groq", "dialect": "anthropic"}, ["upstream[0].dialect", "speaks 'openai'"]),
        ({"preset": "gemini", "dialect": "openai"}, ["upstream[0].dialect", "speaks 'gemini'"]),
        (
            {"preset": "groq", "api_key_env": ("A", "")},
            ["upstream[0].api_key_env", "the name of an"],
        ),
        ({"preset": "groq", "first_token_s": 0.0}, ["upstream[0].first_token_s", "> 0.0"]),
        ({"preset": "groq", "price_multiplier": 0.0}, ["price_multiplier", "> 0.0"]),
    ],
)
def test_an_upstream_that_cannot_be_is_refused(fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        upstream(**fields)
    assert all(word in str(caught.value) for word in words), caught.value


# --- models and prices -----------------------------------------------------------------------


def test_no_name_means_two_models() -> None:
    meant: dict[str, str] = {}
    for model in read_data("models.toml")["model"]:
        for name in {model["name"], *model["at"].values()}:
            assert meant.setdefault(name, model["name"]) == model["name"]


def test_the_tables_name_presets_only() -> None:
    named = {provider for each in read_data("models.toml")["model"] for provider in each["at"]}
    files = ("prices.toml", "listed_prices.toml", "router_prices.toml")
    priced = {provider for file in files for provider in read_data(file)}
    assert named | priced <= set(providers())
    # Azure has deployments with names of their own, NVIDIA publishes no price by tokens.
    assert set(providers()) - priced == {"azure", "nvidia"}


def test_every_price_is_of_a_model_in_the_table_or_of_all_others() -> None:
    table = model_table()
    for provider, prices in read_data("prices.toml").items():
        for model in prices:
            snapshot = model == "gpt-4o-2024-05-13"
            assert model == "default" or snapshot or table.weights(model, provider), model


def test_a_model_is_known_by_any_of_its_names() -> None:
    table = model_table()
    turbo = "meta-llama/Llama-3.3-70B-Instruct-Turbo"
    assert table.real_name("llama-3.3-70b", "together") == turbo
    assert table.real_name("llama-3.3-70b-versatile", "together") == turbo
    assert table.real_name("llama-3.3-70b", "openai") is None
    assert table.real_name("gpt-9", "openai") is None
    assert "cerebras" in table.providers_of(turbo)
    assert table.providers_of("gpt-9") == ()


def test_a_provider_may_take_less_context_than_the_model() -> None:
    table = model_table()
    assert table.context_tokens("groq", "llama-3.1-8b-instant") == 131_072
    assert table.context_tokens("cerebras", "llama3.1-8b") == 32_768
    assert context_at(upstream(preset="groq"), "unknown") is None
    assert isinstance(table.weights("llama-3.1-8b"), Weights)


def test_a_price_is_the_users_then_the_books_then_unknown() -> None:
    own = PriceSettings(input_per_million=1.0, output_per_million=2.0)
    anthropic = upstream(preset="anthropic", price={"mine": own})
    assert price_at(anthropic, "mine") == own
    booked = price_at(anthropic, "claude-haiku-4-5-20251001")
    assert booked is not None
    assert (booked.input_per_million, booked.cached_per_million) == (1.0, 0.1)
    assert booked.cache_write_per_million == 1.25
    assert price_at(anthropic, "unknown") is None
    assert price_at(upstream(preset="groq", price={"default": own}), "anything") == own
    assert price_at(upstream(base_url=LOCAL), "gpt-4o") is None


def test_a_dated_release_with_a_price_of_its_own_keeps_it() -> None:
    openai = model_table()
    dated, plain = openai.price("openai", "gpt-4o-2024-05-13"), openai.price("openai", "gpt-4o")
    assert dated is not None
    assert plain is not None
    assert dated.output_per_million > plain.output_per_million


def test_an_upstream_is_asked_by_its_own_name_of_the_model() -> None:
    cerebras = upstream(preset="cerebras", models={"fast": "llama3.1-8b"})
    assert model_at(cerebras, "fast") == "llama3.1-8b"
    assert model_at(cerebras, "openai/gpt-oss-120b") == "gpt-oss-120b"
    assert model_at(cerebras, "unknown") == "unknown"
    assert aliases(cerebras)["openai/gpt-oss-120b"] == "gpt-oss-120b"
    assert "openai/gpt-oss-120b" not in cerebras.models, "who is asked first is not changed"


# --- strategies ------------------------------------------------------------------------------


def test_every_use_has_defaults_that_are_settings() -> None:
    assert set(uses()) == set(get_args(Use))
    for defaults in uses().values():
        assert isinstance(Strategy(**defaults), Strategy)


def test_a_written_setting_wins_over_its_use() -> None:
    voice = strategy_of(route("a", "b", use="voice", retries=2))
    assert (voice.strategy, voice.hedge_floor_s, voice.deadline_s) == ("hedge", 0.3, 10.0)
    assert voice.retries == 2


def test_one_upstream_needs_no_strategy() -> None:
    assert strategy_of(route("a", use="voice")).strategy == "single"
    assert strategy_of(route()).upstreams == ()


def test_a_nested_strategy_takes_over_what_it_does_not_say() -> None:
    inner = StrategySettings(strategy="hedge", upstreams=("b", "c"), extra_calls=0.2)
    outer = strategy_of(route("a", inner, strategy="race", race_billed=True, extra_cost=0.3))
    assert outer.members == ("a", "b", "c")
    nested = outer.upstreams[1]
    assert isinstance(nested, Strategy)
    assert (nested.strategy, nested.extra_calls, nested.extra_cost) == ("hedge", 0.2, 0.3)
    assert nested.race_billed
    assert outer.extra_calls == 0.05


def test_strategies_are_read_from_a_file_flat_and_nested(tmp_path: Path) -> None:
    path = tmp_path / "headstart.toml"
    path.write_text(
        """
        [[upstream]]
        preset = "together"
        [[upstream]]
        preset = "fireworks"
        [[upstream]]
        preset = "openrouter"
        [[route]]
        name = "r"
        strategy = "fallback"
        deadline_s = 5
        upstreams = [{ strategy = "race", upstreams = ["together", "fireworks"] }, "openrouter"]
        """,
        encoding="utf-8",
    )
    found = strategy_of(load_settings(path, {}).route[0])
    assert found.members == ("together", "fireworks", "openrouter")
    assert found.deadline_s == 5.0
    path.write_text(path.read_text("utf-8").replace("{ strategy", "{ stratgy"), "utf-8")
    with pytest.raises(ConfigError, match=r"route\[0\]\.upstreams\[0\]\.stratgy.*'strategy'"):
        load_settings(path, {})


def refused(members: tuple[UpstreamSettings, ...], chosen: RouteSettings) -> str:
    with pytest.raises(ConfigError) as caught:
        checked(Settings(upstream=members, route=(chosen,)))
    return str(caught.value)


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (route("togther", strategy="single"), ["upstreams", "did you mean 'together'?"]),
        (route("together", "fireworks"), ["there are 2", "route[0].strategy"]),
        (route("together", strategy="race"), ['"race" needs at least two']),
        (route(strategy="fallback"), ['"fallback" needs at least two']),
        (route("together", "fireworks", "groq", strategy="cascade"), ["fast model and then"]),
        (route("together", "together", strategy="race"), ["'together' is listed twice"]),
        (
            route("together", StrategySettings(upstreams=("groq", "fireworks")), strategy="race"),
            ["route[0].upstreams[1].upstreams", "there are 2"],
        ),
        (
            route("together", "groq", strategy="hedge"),
            ["'groq' bills a cancelled call in full", "race_billed = true"],
        ),
        (
            route("together", "openrouter", strategy="race"),
            ["not known whether 'openrouter' bills", "its cancels_billing", "race_billed = true"],
        ),
        (
            route("together", "openai", model="llama-3.3-70b", strategy="race"),
            ["not known that 'llama-3.3-70b' is one model", "openai 'llama-3.3-70b'", "assume"],
        ),
        (route("together", "fireworks", use="regulated", strategy="race"), ["unsupported"]),
    ],
)
def test_a_strategy_that_cannot_work_is_refused(chosen: RouteSettings, words: list[str]) -> None:
    known = presets("together", "fireworks", "groq", "openai", "openrouter")
    message = refused(known, chosen)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    "chosen",
    [
        route("together", "fireworks", strategy="race", model="llama-3.3-70b"),
        route("together", "fireworks", strategy="race"),
        route("together", "groq", strategy="race", race_billed=True, model="gpt-oss-20b"),
        route("together", "groq", strategy="fallback"),
        route("together", "openai", strategy="cascade"),
        route("together", "openai", strategy="hedge", model="m*", equal_models="assume"),
        route("openai", use="batch"),
    ],
)
def test_a_strategy_that_can_work_is_taken(chosen: RouteSettings) -> None:
    checked(Settings(upstream=presets("together", "fireworks", "groq", "openai"), route=(chosen,)))


@pytest.mark.parametrize(
    "fields",
    [
        {"base_url": "http://127.0.0.1:8000/v1"},
        {"base_url": "http://10.1.2.3:8000/v1"},
        {"base_url": "http://vllm:8000/v1"},
        {"base_url": "http://llm.default.svc.cluster.local/v1"},
        {"preset": "vllm", "base_url": "https://gpu.example.com/v1"},
        {"preset": "openrouter", "price": FREE},
        {"base_url": "https://llm.example.com/v1", "price": FREE},
        {"base_url": "https://llm.example.com/v1", "cancels_billing": True},
    ],
)
def test_servers_of_ones_own_and_free_ones_race_without_a_word_on_bills(
    fields: dict[str, Any],
) -> None:
    members = (
        UpstreamSettings(name="own", api_key_env="KEY", **fields),
        UpstreamSettings(preset="together"),
    )
    chosen = route("own", "together", strategy="race", equal_models="assume")
    found = checked(Settings(upstream=members, route=(chosen,))).upstream[0]
    assert found.cancels_billing is True


@pytest.mark.parametrize(
    "fields",
    [
        {"base_url": "https://llm.example.com/v1"},
        {"preset": "openrouter", "price": {"m": FREE["default"]}},
    ],
)
def test_the_billing_of_any_other_server_is_unknown(fields: dict[str, Any]) -> None:
    assert upstream(**fields).cancels_billing is None


@pytest.mark.parametrize("model", ["fast", "f*"])
def test_an_alias_for_two_models_does_not_race(model: str) -> None:
    def members(second: str) -> tuple[UpstreamSettings, ...]:
        return (
            UpstreamSettings(preset="together", models={"fast": "openai/gpt-oss-20b"}),
            UpstreamSettings(preset="fireworks", models={"fast": second}),
        )

    chosen = route("together", "fireworks", strategy="race", model=model)
    assert "'fast'" in refused(members("accounts/fireworks/models/gpt-oss-120b"), chosen)
    equal = members("accounts/fireworks/models/gpt-oss-20b")
    checked(Settings(upstream=equal, route=(chosen,)))


def test_equal_names_of_unknown_servers_are_equal_models() -> None:
    members = (
        UpstreamSettings(name="a", base_url="http://127.0.0.1:1/v1"),
        UpstreamSettings(name="b", base_url="http://127.0.0.1:2/v1"),
    )
    checked(Settings(upstream=members, route=(route("a", "b", model="mine", strategy="race"),)))


def test_a_callers_key_goes_to_one_upstream_alone() -> None:
    members = (
        UpstreamSettings(name="a", base_url="https://a.test/v1"),
        UpstreamSettings(name="b", base_url="https://b.test/v1", api_key_env="B_KEY"),
    )
    chosen = route("a", "b", strategy="fallback")
    assert "'a' has no key of its own" in refused(members, chosen)
    named = ServerSettings(client_keys=("k",))
    checked(Settings(server=named, upstream=members, route=(chosen,)))


def test_a_preset_by_name() -> None:
    assert preset("groq") is providers()["groq"]
    assert preset("nobody") is None
    assert preset(None) is None
