"""Strategies in code mean what they mean in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import headstart
from headstart.config import Settings, UpstreamSettings, checked, load_settings

if TYPE_CHECKING:
    from pathlib import Path

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


def test_code_and_file_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "headstart.toml"
    file.write_text(FILE)
    answer = headstart.race("a", headstart.hedge("b", "c", extra_calls=0.1))
    in_code = checked(
        Settings(
            upstream=tuple(
                UpstreamSettings(name=name, base_url=f"http://127.0.0.1:{port}")
                for port, name in enumerate("abc", 1)
            ),
            route=(headstart.route("chat", answer, model="llama-*", deadline_s=5.0),),
        )
    )
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
