"""The configurations that the documentation and the examples show are valid."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import yaml

from headstart import Settings
from headstart.config.checks import checked
from headstart.config.loading import load_settings
from support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = ROOT / "examples"
VARIABLES = {"KEY_A": "a", "KEY_B": "b"}
"""What the configurations take from the environment."""
_TOML = re.compile(r"^```toml\n(.+?)^```", re.DOTALL | re.MULTILINE)
SHOWN = [
    (page, text)
    for page in ("quick-start", "migration", "deployment")
    for text in _TOML.findall((ROOT / f"docs/{page}.md").read_text("utf-8"))
]


@pytest.mark.parametrize(("page", "text"), SHOWN)
def test_a_configuration_of_the_documentation_is_valid(
    page: str, text: str, tmp_path: Path
) -> None:
    file = tmp_path / f"{page}.toml"
    file.write_text(text, "utf-8")
    checked(load_settings(file, VARIABLES, {}))  # raises ConfigError


def test_each_of_these_pages_shows_one() -> None:
    assert {page for page, _ in SHOWN} == {"quick-start", "migration", "deployment"}


def test_headstart_before_litellm_passes_its_keys_through() -> None:
    [upstream] = checked(load_settings(EXAMPLES / "litellm_behind.toml", {}, {})).upstream
    assert not upstream.has_own_key
    assert {*(upstream.also_speaks or ())} == {"responses", "anthropic"}


def test_litellm_before_headstart_names_the_address_of_serve_and_caches_nothing() -> None:
    document = yaml.safe_load((EXAMPLES / "litellm_before.yaml").read_text("utf-8"))
    server = Settings().server
    for model in document["model_list"]:
        assert model["litellm_params"]["api_base"] == f"http://{server.host}:{server.port}/v1"
        assert model["litellm_params"]["model"].startswith("openai/")
    assert document["litellm_settings"]["cache"] is False
