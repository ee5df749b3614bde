"""How middleware, gateway and sidecar read ``settings`` and keyword arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headstart.errors import ConfigError
from headstart.mount import resolve_settings
from headstart.settings import CacheSettings, Settings

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE = "HEADSTART_CACHE__STORE"
FILE = "sqlite:///file.db"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "headstart.toml"
    path.write_text(f"[cache]\nstore = '{FILE}'")
    return path


def test_the_stores_default_yields_to_all_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert resolve_settings(None, {}, store="memory:").cache.store == "memory:"
    assert resolve_settings(path, {}, store="memory:").cache.store == FILE
    assert resolve_settings(Settings(), {}, store="memory:").cache.store == CacheSettings().store
    monkeypatch.setenv(VARIABLE, "sqlite:///variable.db")
    assert resolve_settings(None, {}, store="memory:").cache.store == "sqlite:///variable.db"
    argument = {"store": "sqlite:///argument.db"}
    assert resolve_settings(None, argument, store="memory:").cache.store == argument["store"]


@pytest.mark.parametrize("settings", [None, Settings()])
@pytest.mark.parametrize(
    ("cache", "words"),
    [
        ({"max_eror": 0.01}, "cache.max_eror: unknown setting; did you mean 'max_error'"),
        ({"mode": "exact"}, "cache.mode: 'exact' is not a choice; did you mean 'exact-only'"),
        ({"ttl_s": "7d"}, "cache.ttl_s: expected a number of seconds"),
        ({"endpoint": []}, "endpoint=: unknown argument; did you mean endpoints=?"),
        ({"audit": {"rat": 1}}, "cache.audit.rat: unknown setting; did you mean 'rate'"),
    ],
)
def test_a_wrong_argument_is_named_with_its_fix(
    settings: Settings | None, cache: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_settings(settings, cache)
    assert str(caught.value).startswith(words)


def test_arguments_override_settings() -> None:
    settings = Settings(cache=CacheSettings(ttl_s=5.0, holdout=0.5))
    cache = resolve_settings(settings, {"ttl_s": "none", "audit": {"rate": 0.1}}).cache
    assert (cache.ttl_s, cache.holdout, cache.audit.rate) == (None, 0.5, 0.1)


def test_settings_of_another_type_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected Settings, the path .* not dict"):
        resolve_settings({}, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [None, Settings()])
@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("upstream", 'Settings(upstream=(UpstreamSettings(base_url="..."),))'),
        ("server", "Settings(server=...)"),
    ],
)
def test_a_section_among_the_keyword_arguments_is_told_where_it_belongs(
    settings: Settings | None, name: str, right: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_settings(settings, {name: ["https://api.openai.com/v1"]})
    assert str(caught.value).startswith(f"{name}=: keyword arguments are keys of [cache]")
    assert right in str(caught.value)
