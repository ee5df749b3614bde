"""``[output]`` and the settings of a route for the same things."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headstart.config.loading import load_settings
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from headstart.settings import Settings


def load(toml: str, tmp_path: Path, environ: dict[str, str] | None = None) -> Settings:
    path = tmp_path / "headstart.toml"
    path.write_text(toml, encoding="utf-8")
    return load_settings(path, environ or {}, {})


def test_a_route_has_its_own_limits_on_answers(tmp_path: Path) -> None:
    settings = load(
        "[output]\nmax_tokens = 'guard'\nconcise = 1\nholdout = 0.2\n"
        "[[route]]\nname = 'a'\nmax_output = 800\nconcise = 0\n[[route]]\nname = 'b'",
        tmp_path,
    )
    found = [settings.output.at(route) for route in (*settings.route, None)]
    assert [each.max_tokens for each in found] == [800, "guard", "guard"]
    assert [each.concise for each in found] == [0, 1, 1]
    assert {each.holdout for each in found} == {0.2}


def test_a_route_decides_on_edits_quotes_and_predictions(tmp_path: Path) -> None:
    settings = load(
        "[output]\nedits = 'blocks'\nquotes = true\n[[route]]\nname = 'a'\n"
        "edits = 'off'\nquotes = false\npredictions = true\n[[route]]\nname = 'b'",
        tmp_path,
    )
    found = [settings.output.at(route) for route in (*settings.route, None)]
    assert [(each.edits, each.quotes, each.predictions) for each in found] == [
        ("off", False, True),
        ("blocks", True, False),
        ("blocks", True, False),
    ]


def test_answers_are_left_alone_by_default(tmp_path: Path) -> None:
    assert (load("", tmp_path).output.max_tokens, load("", tmp_path).output.concise) == ("off", 0)


@pytest.mark.parametrize(("value", "found"), [("tight", "tight"), ("300", 300), ("off", "off")])
def test_a_limit_on_answers_is_a_name_or_a_number(
    value: str, found: str | int, tmp_path: Path
) -> None:
    assert load("", tmp_path, {"HEADSTART_OUTPUT__MAX_TOKENS": value}).output.max_tokens == found


@pytest.mark.parametrize(
    "line", ["max_tokens = 'gard'", "max_tokens = 0", "max_tokens = -1", "concise = 4"]
)
def test_anything_else_is_refused(line: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"output.{line.split(maxsplit=1)[0]}"):
        load(f"[output]\n{line}", tmp_path)
