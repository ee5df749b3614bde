"""Settings of safe hits: error targets, audits, the judge, routes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from headstart.config.checks import checked
from headstart.config.loading import load_settings
from headstart.errors import ConfigError
from headstart.settings import (
    AuditSettings,
    CacheSettings,
    JudgeSettings,
    RouteMatch,
    RouteSettings,
    Settings,
    UpstreamSettings,
)

if TYPE_CHECKING:
    from pathlib import Path


def load(toml: str, tmp_path: Path, environ: dict[str, str] | None = None) -> Settings:
    path = tmp_path / "headstart.toml"
    path.write_text(toml, encoding="utf-8")
    return load_settings(path, environ or {})


def test_routes_come_from_one_variable_as_json() -> None:
    tables = [{"name": "faq", "match": {"header": {"x-app": "faq*"}}, "semantic": False}]
    [route] = load_settings(None, {"HEADSTART_ROUTE": json.dumps(tables)}).route
    assert route == RouteSettings(
        name="faq", match=RouteMatch(header={"x-app": "faq*"}), semantic=False
    )


def test_inner_tables_are_read_and_joined_with_variables(tmp_path: Path) -> None:
    toml = """
    [cache.audit]
    mode = "sync"
    rate = 0.1
    max_calls_per_hour = "none"
    [cache.judge]
    upstream = "a"
    model = "small"
    [[upstream]]
    base_url = "http://a/v1"
    api_key_env = "A_KEY"
    """
    settings = load(toml, tmp_path, {"HEADSTART_CACHE__AUDIT__NULL_RATE": "0"})
    assert settings.cache.audit == AuditSettings(mode="sync", rate=0.1, null_rate=0.0)
    assert settings.cache.judge == JudgeSettings(upstream="a", model="small")


def test_shares_may_be_written_in_percent(tmp_path: Path) -> None:
    file = tmp_path / "headstart.toml"
    file.write_text(
        "[cache]\nmax_error = '2%'\nconfidence = '95%'\nholdout = '0.5 %'\n"
        "[[route]]\nname = 'a'\nmax_error = '1%'\n"
    )
    settings = load_settings(file, {})
    cache = settings.cache
    assert (cache.max_error, cache.confidence, cache.holdout) == (0.02, 0.95, 0.005)
    assert settings.route[0].max_error == 0.01
    assert load_settings(None, {"HEADSTART_CACHE__MAX_ERROR": "3%"}).cache.max_error == 0.03
    for wrong in ("max_error = 'x%'", "ttl_s = '5%'"):
        file.write_text(f"[cache]\n{wrong}\n")
        with pytest.raises(ConfigError, match=r"expected a number"):
            load_settings(file, {})


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({}, "verified"),
        ({"max_error": 0.01}, "verified"),
        ({"threshold": 0.9}, "static"),
        ({"match": "static"}, "static"),
        ({"match": "verified"}, "verified"),
    ],
)
def test_a_threshold_alone_asks_for_static_matching(given: dict[str, Any], match: str) -> None:
    assert checked(Settings(cache=CacheSettings(**given))).cache.effective_match == match


def test_a_judge_on_this_machine_needs_no_key() -> None:
    judge = JudgeSettings(upstream="local", model="small")
    local = UpstreamSettings(name="local", base_url="http://127.0.0.1:11434/v1")
    settings = Settings(cache=CacheSettings(judge=judge), upstream=(local,))
    assert checked(settings).cache.judge == judge


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[cache]\nmax_error = 5", ["cache.max_error", "for 5 % write 0.05"]),
        ("[cache]\nmax_error = 0", ["cache.max_error", 'cache.mode = "exact-only"']),
        (
            "[[route]]\nname = 'a'\nmax_error = 0",
            ["route[0].max_error", "semantic = false"],
        ),
        ("[cache]\nmax_error = -0.1", ["cache.max_error", "0.01 is 1 %"]),
        (
            "[cache]\nthreshold = 0.9\ncold_start = 'optimistic'",
            ["cache.cold_start", 'match = "verified"'],
        ),
        ("[[route]]\nname = 'a'\nmax_error = -1", ["route[0].max_error", "above 0"]),
        ("[cache]\nconfidence = 0.9", ["cache.confidence", "0.69, 0.84 or 0.95"]),
        ("[cache]\nmatch = 'verfied'", ["cache.match", "did you mean 'verified'?"]),
        (
            "[cache]\nmatch = 'verified'\nthreshold = 0.9",
            ["cache.threshold", 'match = "static"', "cache.max_error"],
        ),
        (
            "[cache]\nthreshold = 0.9\nmax_error = 0.01",
            ["cache.max_error", 'match = "verified"'],
        ),
        (
            "[cache]\nthreshold = 0.9\n[[route]]\nname = 'a'\nmax_error = 0.01",
            ["route[0].max_error", 'match = "verified"'],
        ),
        ("[cache]\nshadow_first = -1", ["cache.shadow_first", ">= 0"]),
        (
            (
                "[cache.judge]\nupstream = 'c'\nmodel = 'm'\n"
                "[[upstream]]\nname = 'c'\nbase_url = 'http://127.0.0.1'\ndialect = 'anthropic'"
            ),
            ["cache.judge.upstream", "does not speak OpenAI's dialect"],
        ),
        ("[cache.audit]\nrat = 1", ["cache.audit.rat", "did you mean 'rate'?"]),
        ("[cache.audit]\nmode = 'on'", ["cache.audit.mode", "known: background, sync, off"]),
        (
            "[cache.audit]\nmax_usd_per_day = 1\n[[upstream]]\nbase_url = 'http://a'",
            ["cache.audit.max_usd_per_day", "upstream[0].price"],
        ),
        (
            "[cache.judge]\nupstream = 'b'\nmodel = 'm'\n[[upstream]]\nbase_url = 'http://a'",
            ["cache.judge.upstream", "'b'", "there is: a"],
        ),
        (
            "[cache.judge]\nupstream = 'a'\nmodel = 'm'\n[[upstream]]\nbase_url = 'http://a'",
            ["cache.judge.upstream", "api_key_env"],
        ),
        ("[cache.judge]\nupstream = 'a'", ["cache.judge", "model"]),
        ("[cache.ttl_by_class]\nstable = 1", ["cache.ttl_by_class.stable", "known: live, dated"]),
        ("[[route]]\nsemantic = false", ["route[0]", "name"]),
        ("[[route]]\nname = 'a'\non_repeat = 'anew'", ["route[0].on_repeat", "hit, fresh"]),
        (
            "[[route]]\nname = 'a'\nrepeat_window_s = 60",
            ["route[0].repeat_window_s", 'on_repeat = "fresh"'],
        ),
        ("[[route]]\nname = 'a'\non_repeat = 'fresh'\nrepeat_window_s = 0", ["repeat_window_s"]),
        ("[[route]]\nname = 'a'\nquerry = 'x'", ["route[0].querry", "did you mean 'query'?"]),
        ("[[route]]\nname = 'a'\nquery = '('", ["route[0].query", "regular expression"]),
        ("[[route]]\nname = 'a'\nquery = 'Q: (.*)'", ["route[0].query", "?P<query>"]),
        ("[[route]]\nname = 'a'\nmatch = { modle = 'm' }", ["route[0].match.modle", "'model'"]),
        (
            "[[route]]\nname = 'a'\nmatch.header = { 'x app' = '*' }",
            ["route[0].match.header", "x app"],
        ),
        ("[[route]]\nname = 'a'\n[[route]]\nname = 'a'", ["route[1].name", "taken"]),
    ],
)
def test_refusal_names_the_setting_and_the_fix(toml: str, words: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(toml, tmp_path)
    assert all(word in str(caught.value) for word in words), caught.value
