"""Variables of the environment: how they are read, and which are refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from headstart.config.loading import load_settings
from headstart.errors import ConfigError
from headstart.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def load(environ: dict[str, str]) -> Settings:
    return load_settings(None, environ)


@pytest.mark.parametrize(
    ("variable", "text", "section", "value"),
    [
        ("SERVER__PORT", "9000", "server.port", 9000),
        ("SERVER__DEADLINE_S", "none", "server.deadline_s", None),
        ("SERVER__TRUSTED_PROXIES", "::1", "server.trusted_proxies", ("::1",)),
        ("CACHE__ENABLED", "false", "cache.enabled", False),
        ("CACHE__HOLDOUT", "0.02", "cache.holdout", 0.02),
        ("CACHE__GUARDS", "number, negation", "cache.guards", ("number", "negation")),
        ("CACHE__GUARDS", "none", "cache.guards", ()),
        ("CACHE__SCOPE", "header:x-tenant", "cache.scope", "header:x-tenant"),
        ("CACHE__STORE", "", "cache.store", "sqlite:///headstart.db"),
        ("ENCODER__THREADS", "2", "encoder.threads", 2),
        ("CACHE__MODE", "shadow", "cache.mode", "shadow"),
        ("CACHE__MATCH", "none", "cache.match", None),
        ("CACHE__MAX_ERROR", "0.01", "cache.max_error", 0.01),
        ("CACHE__AUDIT__RATE", "0.05", "cache.audit.rate", 0.05),
        ("CACHE__AUDIT__MAX_CALLS_PER_HOUR", "none", "cache.audit.max_calls_per_hour", None),
        ("CACHE__TTL_BY_CLASS__LIVE", "60", "cache.ttl_by_class.live", 60.0),
    ],
)  # fmt: skip
def test_variable_is_read_as_its_settings_type(
    variable: str, text: str, section: str, value: object
) -> None:
    settings = load({f"HEADSTART_{variable}": text})
    found: Any = settings
    for step in section.split("."):
        found = getattr(found, step)
    assert found == value


def test_upstreams_come_from_one_variable_as_json() -> None:
    tables = [{"base_url": "http://a/v1"}, {"base_url": "http://b/v1"}]
    settings = load({"HEADSTART_UPSTREAM": json.dumps(tables)})
    assert [upstream.name for upstream in settings.upstream] == ["a", "b"]


@pytest.mark.parametrize(
    ("variable", "text", "word"),
    [
        ("HEADSTART_CACHE__TRESHOLD", "1", "did you mean 'threshold'?"),
        ("HEADSTART_CASHE__THRESHOLD", "1", "did you mean 'cache'?"),
        ("HEADSTART_CACHE__THRESHOLD", "high", 'expected a number or "none"'),
        ("HEADSTART_CACHE__AUDIT__RAT", "1", "did you mean 'rate'?"),
        ("HEADSTART_CACHE__AUDIT", "0.1", "HEADSTART_CACHE__AUDIT__NAME"),
        ("HEADSTART_ROUTE", "faq", "JSON list"),
        ("HEADSTART_ENCODER__MODEL__X", "1", "unknown setting"),
        ("HEADSTART_UPSTREAM__0__BASE_URL", "http://a", "HEADSTART_UPSTREAM"),
        ("HEADSTART_UPSTREAM", "http://a", ": it holds all of [[upstream]] as a JSON list"),
        ("HEADSTART_CACHE__ENABLED", "no", "expected true or false"),
        ("HEADSTART_CACHE__TTL_S", "7d", 'expected a number of seconds or "none"'),
        ("HEADSTART_CACHE__SCOPE", "tenant", '"header:NAME"'),
        ("HEADSTART_CACHE_MAX_ERROR", "0.01", "did you mean HEADSTART_CACHE__MAX_ERROR?"),
        ("HEADSTART_CACHE_AUDIT_RATE", "0.1", "did you mean HEADSTART_CACHE__AUDIT__RATE?"),
        ("HEADSTART_SERVER_CLIENTKEYS", "k", "did you mean HEADSTART_SERVER__CLIENT_KEYS?"),
        ("HEADSTART_CACHE", "off", "did you mean HEADSTART_CACHE__NAME?"),
        ("HEADSTART_ROUTES", "[]", "did you mean HEADSTART_ROUTE?"),
        ("HEADSTART_UPSTREAM_URL", "http://a", "did you mean HEADSTART_UPSTREAM?"),
        ("HEADSTART_PORT", "9000", "did you mean HEADSTART_SERVER__PORT?"),
        ("HEADSTART_STORE", "memory:", "did you mean HEADSTART_CACHE__STORE?"),
    ],
)
def test_refused_variable_is_named(variable: str, text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=f"^{variable}: ") as caught:
        load({variable: text})
    assert word in str(caught.value)


@pytest.mark.parametrize(
    "environ",
    [
        {"HEADSTART_ADMIN_TOKEN": "x", "HEADSTART_VERSION": "1", "HEADSTARTER": "y"},
        {"HEADSTART_CACHE_MAX_ERROR": "", "HEADSTART_ROUTES": " "},
        {  # of Kubernetes, for services named headstart and headstart-cache
            "HEADSTART_PORT": "tcp://10.0.0.1:8080",
            "HEADSTART_PORT_8080_TCP_ADDR": "10.0.0.1",
            "HEADSTART_CACHE_SERVICE_HOST": "10.0.0.2",
            "HEADSTART_CACHE_SERVICE_PORT_REDIS": "6379",
            "HEADSTART_CACHE_PORT": "tcp://10.0.0.2:6379",
            "HEADSTART_CACHE_PORT_6379_TCP_PROTO": "tcp",
        },
    ],
)
def test_other_variables_of_the_prefix_are_left_alone(environ: dict[str, str]) -> None:
    assert load(environ) == Settings()


def test_a_variable_that_a_setting_names_is_the_users_own(tmp_path: Path) -> None:
    environ = {"HEADSTART_UPSTREAM_KEY": "k", "HEADSTART_SERVER_KEY": "c"}
    path = tmp_path / "headstart.toml"
    path.write_text(
        "[server]\nclient_keys = ['env:HEADSTART_SERVER_KEY']\n"
        "[[upstream]]\npreset = 'groq'\napi_key_env = ['HEADSTART_UPSTREAM_KEY']"
    )
    assert load_settings(path, environ).server.client_keys == ("c",)
    with pytest.raises(ConfigError, match="HEADSTART_SERVER_KEY: unknown variable"):
        load(environ)
