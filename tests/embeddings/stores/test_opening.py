"""Which URL makes which store, and what a wrong one says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from headstart.embeddings.stores.memory import MemoryStore
from headstart.embeddings.stores.opening import open_store
from headstart.embeddings.stores.redis import RedisStore
from headstart.embeddings.stores.sqlite import SQLiteStore
from headstart.errors import ConfigError
from support.stores import Clock

if TYPE_CHECKING:
    from pathlib import Path


def names_in(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("memory:", MemoryStore),
        ("sqlite:///store.db", SQLiteStore),
        ("sqlite:////var/lib/store.db", SQLiteStore),
        ("redis://127.0.0.1", RedisStore),
        ("rediss://user:password@host:6380/1", RedisStore),
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
    "url", ["", "memory", "memory://x", "sqlite:", "sqlite:///", "sqlite://x", "mysql://u:secret@h"]
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
    metadata = tmp_path / "their_store-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-store\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[headstart.stores]\ntheirs = their_store:make\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    made: object = open_store("theirs://host", max_entries=7)
    assert made == ("theirs://host", 7)
