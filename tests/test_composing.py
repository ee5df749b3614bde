"""Strategies in code mean what they mean in a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

import headstart
from headstart.config.checks import checked
from headstart.config.loading import load_settings
from headstart.config.strategies import strategy_of
from headstart.settings import RouteSettings, Settings, Strategy, UpstreamSettings

if TYPE_CHECKING:
    from pathlib import Path

    from headstart.interfaces import DraftJudge

FILE = """
[[upstream]]
name = "a"
base_url = "http://127.0.0.1:1"
[[upstream]]
name = "b"
base_url = "http://127.0.0.1:2"
[[upstream]]
name = "c"
base_url = "http://127.0.0.1:3"
[[route]]
name = "chat"
match = { model = "llama-*" }
strategy = "race"
upstreams = ["a", { strategy = "hedge", upstreams = ["b", "c"], extra_calls = 0.1 }]
deadline_s = 5.0
"""


def _settings(*routes: RouteSettings) -> Settings:
    return Settings(
        upstream=tuple(
            UpstreamSettings(name=name, base_url=f"http://127.0.0.1:{port}")
            for port, name in enumerate("abc", 1)
        ),
        route=routes,
    )


def test_code_and_file_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "headstart.toml"
    file.write_text(FILE)
    answer = headstart.race("a", headstart.hedge("b", "c", extra_calls=0.1))
    in_code = checked(_settings(headstart.route("chat", answer, model="llama-*", deadline_s=5.0)))
    assert in_code.route == load_settings(file, {}).route


def test_one_upstream_is_a_route_too() -> None:
    route = headstart.route("plain", "a")
    assert (route.strategy, route.upstreams) == ("single", ("a",))


@pytest.mark.parametrize(
    "strategy",
    [headstart.fallback, headstart.fastest, headstart.cheapest, headstart.cascade],
)
def test_each_strategy_is_named_after_its_function(strategy: object) -> None:
    assert callable(strategy)
    assert strategy("a", "b").strategy == getattr(strategy, "__name__", "")


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="extra_call"):
        headstart.race("a", "b", extra_call=0.1)


def test_own_judges_of_a_cascade_are_handed_on_whatever_stands_around_it() -> None:
    @dataclass
    class Judge:
        """A callable that msgspec could encode is handed on as well."""

        least: float

        def __call__(self, *_: object) -> float:
            return self.least

    judges: list[DraftJudge] = [lambda *_: True, Judge(0.5)]
    answer = headstart.fallback(headstart.cascade("a", "b", judges=judges), "c")
    settings = checked(_settings(headstart.route("r", answer)))
    around = strategy_of(checked(settings).route[0])
    assert not around.judges
    [inside, _] = around.upstreams
    assert isinstance(inside, Strategy)
    assert [each.ask for each in inside.judges] == judges


def test_functions_stand_only_where_they_are_asked(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="do not hold"):
        checked(_settings(headstart.route("r", headstart.race("a", "b", judges=[print, len]))))
    file = tmp_path / "headstart.toml"
    file.write_text(FILE + 'judges = ["refusal"]\n')
    with pytest.raises(headstart.ConfigError, match=r"judges\[0\]"):
        load_settings(file, {})
