"""``headstart config check``: files and variables that ``serve`` could not start without."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from headstart.cli.config import start_problems
from headstart.config.loading import load_settings
from headstart.errors import ConfigError
from headstart.factory import start_engine
from headstart.middleware.observers import Observers

if TYPE_CHECKING:
    from pathlib import Path

UPSTREAM = "[[upstream]]\nname = 'corp'\nbase_url = 'http://127.0.0.1:9/v1'\n"
MEMORY = "[cache]\nstore = 'memory:'\n"
EXACT = f"{MEMORY}mode = 'exact-only'\n"
STORED = "[cache]\nstore = 'sqlite:///h.db'\nmode = 'exact-only'\n"


def file_with(toml: str, folder: Path) -> Path:
    path = folder / "headstart.toml"
    path.write_text(toml, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        (f"{EXACT}{UPSTREAM}ca_file = 'gone.pem'", "'corp': ca_file: gone.pem cannot be read: No"),
        (f"{EXACT}{UPSTREAM}ca_file = 'headstart.toml'", "holds no certificate in PEM format"),
        (
            f"{EXACT}{UPSTREAM}client_cert_file = 'headstart.toml'",
            "client_cert_file: headstart.toml holds no certificate with its key in PEM format",
        ),
        (f"{UPSTREAM}{MEMORY}[encoder]\nmodel = 'gone'", "encoder.model: "),
        (f"{MEMORY}state = 'gone.bin'\n{UPSTREAM}", "cache.state: gone.bin cannot be read"),
        (f"{MEMORY}state = 'headstart.toml'\n{UPSTREAM}", "cache.state: headstart.toml: "),
        (f"{EXACT}{UPSTREAM}[record]\nenabled = true\npath = 'gone/log.jsonl'", "record.path: "),
        (f"{EXACT}{UPSTREAM}api_key_env = 'CORP_KEY'", "'corp'"),
        (f"[cache]\nstore = 'sqlite:///.'\nmode = 'exact-only'\n{UPSTREAM}", "cache.store: . is a"),
        (f"[cache]\nstore = 'redis+cluster://h/3'\n{UPSTREAM}", "the Redis URL cannot be read"),
        (f"[cache]\nstore = 'redis+sentinel://h'\n{UPSTREAM}", "the Redis URL cannot be read"),
        (f"{STORED}{UPSTREAM}[batches]\ndir = 'headstart.toml'", "batches.dir: "),
        (f"{STORED}{UPSTREAM}[batches]\ndir = 'headstart.toml/in'", "batches.dir: "),
        (f"{EXACT}encryption_key_env = 'CORP_KEY'\n{UPSTREAM}", "CORP_KEY is not set"),
    ],
)
def test_problems_of_the_start_are_found_without_starting(
    toml: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CORP_KEY", raising=False)
    settings = load_settings(file_with(toml, tmp_path), {})
    [problem] = start_problems(settings, os.environ)
    assert words in problem
    with pytest.raises(ConfigError) as caught:
        anyio.run(partial(start_engine, settings, Observers(), wrapped=False))
    assert words in str(caught.value)


def test_a_folder_for_batches_that_the_server_will_make_is_no_problem(tmp_path: Path) -> None:
    toml = f"[batches]\ndir = '{(tmp_path / 'new' / 'batches').as_posix()}'"
    assert list(start_problems(load_settings(file_with(toml, tmp_path), {}), {})) == []


def test_a_token_that_is_not_set_is_found_and_no_likely_key_is_shown(tmp_path: Path) -> None:
    toml = "[server]\nadmin_token_env = '{}'"
    settings = load_settings(file_with(toml.format("ADMIN_TOKEN"), tmp_path), {})
    assert list(start_problems(settings, {"ADMIN_TOKEN": "t"})) == []
    [problem] = start_problems(settings, {})
    assert problem == "server.admin_token_env: the variable ADMIN_TOKEN is not set"
    settings = load_settings(file_with(toml.format("hf_secret"), tmp_path), {})
    [problem] = start_problems(settings, {})
    assert "hf_secret" not in problem


def test_parts_that_are_switched_off_need_no_files(tmp_path: Path) -> None:
    toml = f"{EXACT}[encoder]\nmodel = 'gone'\n[record]\npath = 'gone/log.jsonl'"
    assert list(start_problems(load_settings(file_with(toml, tmp_path), {}), {})) == []
