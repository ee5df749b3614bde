"""The kind of store that a URL opens, and the message for a wrong URL."""

from __future__ import annotations

import stat
import sys
from typing import TYPE_CHECKING

import pytest

from headstart.embeddings.stores.memory import MemoryStore
from headstart.embeddings.stores.redis import RedisStore
from headstart.embeddings.stores.sqlite import SQLiteStore
from headstart.embeddings.stores.store_urls import open_store
from headstart.errors import ConfigError
from support.stores import Clock

if TYPE_CHECKING:
    from pathlib import Path


def install(folder: Path, name: str, entries: str) -> None:
    """Leave what an installer leaves of a distribution that offers stores."""
    metadata = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[headstart.stores]\n{entries}\n")


def names_in(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("memory:", MemoryStore),
        ("sqlite:///store.db", SQLiteStore),
        ("sqlite:////var/lib/store.db", SQLiteStore),
        ("redis://127.0.0.1", RedisStore),
        ("redis://", RedisStore),
        ("rediss://user:password@host:6380/1", RedisStore),
        ("redis://[::1]:6379/1?socket_keepalive=yes", RedisStore),
        ("redis+sentinel://host/main", RedisStore),
        ("rediss+sentinel://user:password@one:26379,two/main/2?sentinel_password=x", RedisStore),
        ("redis+cluster://one,two:7000", RedisStore),
    ],
)
def test_a_url_names_its_store(url: str, kind: type) -> None:
    assert isinstance(open_store(url), kind)


@pytest.mark.anyio
@pytest.mark.parametrize("slashes", ["///", "////"], ids=["relative", "absolute"])
async def test_three_slashes_begin_a_relative_path_and_four_an_absolute_one(
    slashes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "sub/store.db" if slashes == "///" else str(tmp_path / "sub/store.db")[1:]
    store = open_store(f"sqlite:{slashes}{name}", clock=Clock())
    await store.open()
    await store.aclose()
    assert names_in(tmp_path / "sub") == ["store.db"]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory",
        "memory://x",
        "sqlite:",
        "sqlite:///",
        "sqlite://x",
        "mysql://u:secret@h",
        "redis+other://u:secret@h",
    ],
)
def test_any_other_url_is_refused_unquoted(url: str) -> None:
    with pytest.raises(ConfigError, match=r"cache\.store: not a store's URL") as refused:
        open_store(url)
    assert "secret" not in str(refused.value)


def test_a_third_partys_store_is_found_by_its_scheme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_store.py").write_text(
        "def make(url, *, limits, clock, observer):\n    return url, limits.max_entries\n"
    )
    install(tmp_path, "their-store", "theirs = their_store:make")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    made: object = open_store("theirs://host", max_entries=7)
    assert made == ("theirs://host", 7)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ("theirs = their_absent_store:make", "ModuleNotFoundError"),
        ("theirs = json:absent", "AttributeError"),
        ("theirs = json:loads", "TypeError"),
    ],
)
def test_a_third_partys_store_that_cannot_be_made_is_refused_with_its_name(
    entries: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "their-store", entries)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ConfigError, match=rf"'theirs' cannot be made: {reason}") as refused:
        open_store("theirs://user:secret@host")
    assert "secret" not in str(refused.value)


def test_two_stores_for_one_scheme_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "one", "theirs = one:make")
    install(tmp_path, "two", "theirs = two:make")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ConfigError, match="several distributions offer 'theirs': one:make, two:ma"):
        open_store("theirs://host")


@pytest.mark.anyio
async def test_a_file_behind_a_link_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    link, made = tmp_path / "link.db", tmp_path / "made.db"
    link.symlink_to(made)
    store = SQLiteStore(link)
    await store.open()
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    await store.aclose()
