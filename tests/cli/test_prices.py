"""``headstart prices import`` makes a file of prices from public price lists."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headstart.__main__ import main
from headstart.config.checks import checked
from headstart.config.loading import load_settings
from headstart.config.providers import price_at
from headstart.errors import ConfigError
from headstart.settings import PriceSettings, Settings, UpstreamSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

LITELLM = {
    "sample_spec": {"litellm_provider": "one of https://…", "input_cost_per_token": 0.0},
    "gpt-5-mini": {
        "litellm_provider": "openai",
        "mode": "chat",
        "input_cost_per_token": 3e-07,
        "output_cost_per_token": 2.4e-06,
        "cache_read_input_token_cost": 3e-08,
        "max_input_tokens": 272000,
    },
    "groq/openai/gpt-new": {
        "litellm_provider": "groq",
        "mode": "chat",
        "input_cost_per_token": 1.5e-07,
        "output_cost_per_token": 6e-07,
    },
    "groq/groq/compound": {
        "litellm_provider": "groq",
        "mode": "chat",
        "input_cost_per_token": 1e-07,
        "output_cost_per_token": 1e-07,
    },
    "qwencloud/tiers": {
        "litellm_provider": "qwencloud",
        "mode": "chat",
        "tiered_pricing": [
            {"input_cost_per_token": 1e-06, "output_cost_per_token": 5e-06, "range": [0, 32000]},
            {"input_cost_per_token": 3e-06, "output_cost_per_token": 9e-06, "range": [32000, 1]},
        ],
    },
    "text-embedding-new": {
        "litellm_provider": "openai",
        "mode": "embedding",
        "input_cost_per_token": 2e-08,
        "output_cost_per_token": 0.0,
    },
    "old": {
        "litellm_provider": "openai",
        "mode": "chat",
        "input_cost_per_token": 1e-06,
        "output_cost_per_token": 1e-06,
        "deprecation_date": "2024-01-01",
    },
    "dall-e-9": {"litellm_provider": "openai", "mode": "image_generation"},
    "free": {
        "litellm_provider": "openai",
        "mode": "chat",
        "input_cost_per_token": 0.0,
        "output_cost_per_token": 0.0,
    },
    "else/model": {"litellm_provider": "else", "mode": "chat", "input_cost_per_token": 1e-06},
}
OPENROUTER = {
    "data": [
        {
            "id": "openai/gpt-4o",
            "context_length": 128000,
            "pricing": {
                "prompt": "0.0000025",
                "completion": "0.00001",
                "request": "0.001",
                "input_cache_read": "0.00000125",
            },
        },
        {"id": "openrouter/auto", "pricing": {"prompt": "-1", "completion": "-1"}},
        {"id": "some/free", "pricing": {"prompt": "0", "completion": "0"}},
        {"pricing": None},
    ]
}
OWN = {"groq": {"mine": {"input_per_million": 1, "output_per_million": 2.5}}}


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def run(document: object, *options: str) -> None:
    Path("list.json").write_text(json.dumps(document), "utf-8")
    main(["prices", "import", "list.json", *options])


def written() -> Mapping[str, Any]:
    return tomllib.loads(Path("prices.toml").read_text("utf-8"))


def test_litellms_map_becomes_prices_by_preset(capsys: pytest.CaptureFixture[str]) -> None:
    run(LITELLM)
    prices = written()
    assert prices["openai"] == {
        "gpt-5-mini": {
            "input_per_million": 0.3,
            "output_per_million": 2.4,
            "cached_per_million": 0.03,
            "context_tokens": 272000,
        },
        "text-embedding-new": {"input_per_million": 0.02, "output_per_million": 0.0},
    }
    assert prices["groq"] == {
        "openai/gpt-new": {"input_per_million": 0.15, "output_per_million": 0.6},
        "groq/compound": {"input_per_million": 0.1, "output_per_million": 0.1},
    }
    assert prices["qwen"] == {"tiers": {"input_per_million": 1.0, "output_per_million": 5.0}}
    shown = capsys.readouterr().out
    assert "LiteLLM's price map: 5 prices of 3 providers" in shown
    assert "openai: 2, of which 1 are new and 1 have changed" in shown
    for line in ("1, retired", "1, a provider without a preset", "1, not billed by tokens of text"):
        assert f"left out: {line}" in shown


def test_openrouters_list_becomes_prices(capsys: pytest.CaptureFixture[str]) -> None:
    run(OPENROUTER)
    assert written()["openrouter"] == {
        "openai/gpt-4o": {
            "input_per_million": 2.5,
            "output_per_million": 10.0,
            "cached_per_million": 1.25,
            "per_request": 0.001,
            "context_tokens": 128000,
        }
    }
    assert "left out: 2, free, or no fixed price" in capsys.readouterr().out


def test_the_data_of_genai_prices_becomes_prices(capsys: pytest.CaptureFixture[str]) -> None:
    begun = {
        "constraint": {"start_date": "2026-01-01"},
        "prices": {"input_mtok": 3, "output_mtok": 15},
    }
    later = {
        "constraint": {"start_date": "9999-01-01"},
        "prices": {"input_mtok": 9, "output_mtok": 9},
    }
    old = {"prices": {"input_mtok": 2, "output_mtok": 10}}
    tiers = {"base": 1.25, "tiers": [{"start": 200_000, "price": 2.5}]}
    run(
        [
            {
                "id": "google",
                "models": [
                    {
                        "id": "gemini-new",
                        "prices": {
                            "input_mtok": tiers,
                            "output_mtok": 10,
                            "cache_read_mtok": 0.125,
                        },
                        "context_window": 1_000_000,
                    },
                ],
            },
            {
                "id": "openrouter",
                "models": [
                    {"id": "a/dated", "prices": [old, begun, later]},
                    {"id": "a/free", "prices": {}},
                ],
            },
            *(
                {
                    "id": f"huggingface_{company}",
                    "models": [
                        {"id": "open/model", "prices": {"input_mtok": price, "output_mtok": price}}
                    ],
                }
                for company, price in (("groq", 0.9), ("novita", 0.1), ("together", 0.3))
            ),
            {
                "id": "unheard-of",
                "models": [{"id": "m", "prices": {"input_mtok": 1, "output_mtok": 1}}],
            },
        ]
    )
    prices = written()
    assert prices["gemini"]["gemini-new"] == {
        "input_per_million": 1.25,
        "output_per_million": 10.0,
        "cached_per_million": 0.125,
        "context_tokens": 1_000_000,
    }
    assert prices["openrouter"] == {
        "a/dated": {"input_per_million": 3.0, "output_per_million": 15.0}
    }
    assert prices["huggingface"]["open/model:groq"]["input_per_million"] == 0.9
    assert prices["huggingface"]["open/model"] == {
        "input_per_million": 0.3,
        "output_per_million": 0.3,
        "assumed": True,
    }
    shown = capsys.readouterr().out
    assert "left out: 1, a provider without a preset" in shown
    assert "left out: 1, free, or no price by tokens" in shown


def test_written_prices_can_be_imported_again() -> None:
    run(OWN)
    first = Path("prices.toml").read_text("utf-8")
    main(["prices", "import", "prices.toml", "--output", "again.toml"])
    assert tomllib.loads(first)["groq"] == tomllib.loads(Path("again.toml").read_text())["groq"]


def test_a_dry_run_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    run(OWN, "--dry-run")
    assert not Path("prices.toml").exists()
    assert "1 prices of 1 providers" in capsys.readouterr().out


def test_only_the_named_providers_are_taken() -> None:
    run(LITELLM, "--provider", "groq")
    assert written().keys() == {"as_of", "groq"}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "not a list of prices"),
        ({}, "the file is empty"),
        ({"nobody": {"m": {"input_per_million": 1, "output_per_million": 1}}}, "nobody: no preset"),
        ({"groq": {"m": {"input_per_million": -1, "output_per_million": 1}}}, "groq.m: "),
        ({"groq": {"m": {"input": 1}}}, "groq.m: "),
        ({"x": {"litellm_provider": "else"}}, "no price of a provider that has a preset"),
        ([{"id": "openai", "models": []}, {"name": "no id"}], "a field of an entry is missing"),
        (
            [{"id": "openai", "models": [{"id": "m", "prices": None}]}],
            "a field of an entry is missing",
        ),
        ({"m": {"litellm_provider": "openai", "mode": ["chat"]}}, "a field of an entry is missing"),
    ],
)
def test_a_wrong_list_is_refused_and_nothing_written(
    document: object, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        run(document)
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert "list.json" in told
    assert message in told
    assert not Path("prices.toml").exists()


def test_a_file_of_someone_else_is_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    Path("prices.toml").write_text("mine = 1\n")
    with pytest.raises(SystemExit) as left:
        run(OWN)
    assert left.value.code == 2
    assert "was not written by this command" in capsys.readouterr().err
    run(OWN, "--output", "other.toml")
    run(LITELLM, "--output", "other.toml")
    assert "openai" in tomllib.loads(Path("other.toml").read_text())


def test_the_file_comes_after_the_users_price_and_before_the_shipped_one() -> None:
    run(LITELLM)
    own = PriceSettings(input_per_million=9.0, output_per_million=9.0)
    shown = {"prices.file": "prices.toml", "upstream": [{"preset": "openai"}, {"preset": "groq"}]}
    openai, groq = load_settings(None, {}, shown).upstream
    changed, shipped = price_at(openai, "gpt-5-mini"), price_at(openai, "gpt-4o-mini")
    assert changed is not None
    assert changed.input_per_million == 0.3
    assert shipped is not None
    assert shipped.input_per_million == 0.15
    assert price_at(groq, "openai/gpt-new") is not None
    mine = UpstreamSettings(preset="openai", price={"default": own}, price_file="prices.toml")
    assert price_at(checked(Settings(upstream=(mine,))).upstream[0], "gpt-5-mini") == own


@pytest.mark.parametrize("text", ["{", "[nobody]\n", '[groq]\nm = { input_per_million = "x" }\n'])
def test_a_wrong_file_is_a_problem_of_the_configuration(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("prices.toml").write_text(text)
    Path("headstart.toml").write_text(
        '[prices]\nfile = "prices.toml"\n[[upstream]]\npreset = "vllm"\n'
    )
    with pytest.raises(SystemExit) as left:
        main(["config", "check"])
    assert left.value.code == 2
    assert f"upstream.price_file: {Path.cwd() / 'prices.toml'}" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"prices\.file"):
        price_at(load_settings(Path("headstart.toml"), {}).upstream[0], "m")


def test_config_check_says_what_cheapest_cannot_compare(capsys: pytest.CaptureFixture[str]) -> None:
    Path("headstart.toml").write_text(
        """
        [[upstream]]
        preset = "nvidia"
        [[upstream]]
        preset = "groq"
        [[route]]
        name = "one"
        match = { model = "openai/gpt-oss-120b" }
        strategy = "cheapest"
        upstreams = ["nvidia", "groq"]
        [[route]]
        name = "all"
        strategy = "cheapest"
        upstreams = ["nvidia", "groq"]
        """
    )
    with pytest.raises(SystemExit):  # no key is set here
        main(["config", "check"])
    shown = capsys.readouterr().out
    one = "route 'one': no price is known of 'openai/gpt-oss-120b' at nvidia"
    assert f"{one}, so its cost is not booked, and cheapest cannot compare it" in shown
    assert "route 'all': no price of a model at nvidia is known, so cheapest cannot" in shown
    assert "at groq" not in shown
