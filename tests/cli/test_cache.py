"""``headstart cache``: lists the entries of a store, moves them to another store, deletes them."""

from __future__ import annotations

import json
import re
import stat
import time
from typing import TYPE_CHECKING

import anyio
import msgspec
import pytest

from headstart.__main__ import main
from headstart.embeddings.stores.store_urls import open_store
from support.entries import ORIGIN, full_entry, put, vector
from support.labels import label
from support.redis_server import redis_server
from support.remote import remote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from headstart.interfaces import Store
    from headstart.types import Entry, Record

NOW = time.time()  # noqa: TID251 - the commands run by the real clock


def with_store(url: str, act: Callable[[Store], object]) -> object:
    """Run ``await act(store)``."""

    async def run() -> object:
        store = open_store(url)
        await store.open()
        try:
            return await act(store)  # type: ignore[misc]
        finally:
            await store.aclose()

    return anyio.run(run)


def fill(url: str, records: Sequence[Record], labels: int = 0) -> None:
    async def act(store: Store) -> None:
        await store.append(records)
        await store.add_labels([label(f"l{number}") for number in range(labels)])

    with_store(url, act)


def contents(url: str) -> tuple[dict[str, Entry], dict[str, bytes | None], list[str], bytes]:
    """Return entries, vectors and labels by id, and the secret."""

    async def act(store: Store) -> object:
        entries = {each.id: each async for page in store.entries() for each in page}
        vectors = {each.id: each.vector async for page in store.scan() for each in page}
        labels = [each.id for _, each in await store.read_labels()]
        return entries, vectors, labels, await store.secret()

    return with_store(url, act)  # type: ignore[return-value]


@pytest.fixture
def old(tmp_path: Path) -> str:
    """A store with a few hundred entries and labels."""
    url = f"sqlite:///{tmp_path / 'old.db'}"
    many = [put(f"e{number}", created=NOW) for number in range(600)]
    whole = msgspec.structs.replace(full_entry(), created=NOW, expires=None)
    fill(url, [*many, put("tagged", tags=("x", "y"), created=NOW - 7200.0)], labels=3)
    fill(url, [msgspec.structs.replace(many[0], entry=whole, vector=vector(0.5))])
    return url


def run(*arguments: str) -> None:
    main(["cache", *arguments])


def test_entries_and_labels_move_to_another_store(
    old: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, new = tmp_path / "cache.jsonl", f"sqlite:///{tmp_path / 'new.db'}"
    run("export", str(file), "--store", old)
    assert "602 entries and 3 labels" in capsys.readouterr().out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    run("import", str(file), "--store", new)
    assert "602 entries and 3 labels were read" in capsys.readouterr().out
    assert contents(new) == contents(old)
    run("import", str(file), "--store", new)
    assert "0 entries and 0 labels were read" in capsys.readouterr().out
    assert contents(new) == contents(old)


def test_an_import_reads_the_standard_input(
    old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, new = tmp_path / "cache.jsonl", f"sqlite:///{tmp_path / 'new.db'}"
    run("export", str(file), "--store", old)
    with file.open() as standard_input:
        monkeypatch.setattr("sys.stdin", standard_input)
        run("import", "-", "--store", new)
    assert contents(new) == contents(old)


def test_an_export_to_the_standard_output_is_the_file(
    old: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    file = tmp_path / "cache.jsonl"
    run("export", str(file), "--store", old)
    capsysbinary.readouterr()
    run("export", "-", "--store", old)
    written = capsysbinary.readouterr()
    assert written.out == file.read_bytes()
    assert b"602 entries and 3 labels were written" in written.err


def test_entries_move_from_an_old_store_to_redis(old: str, tmp_path: Path) -> None:
    file = tmp_path / "cache.jsonl"
    run("export", str(file), "--store", old)
    with redis_server() as server:
        run("import", str(file), "--store", server.url)
        moved, kept = contents(server.url), contents(old)
    assert moved == kept


def test_a_store_with_another_secret_takes_nothing(
    old: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "cache.jsonl", f"sqlite:///{tmp_path / 'other.db'}"
    fill(other, [put("mine", created=NOW)])
    run("export", str(file), "--store", old)
    with pytest.raises(SystemExit) as left:
        run("import", str(file), "--store", other)
    assert left.value.code == 2
    assert "another secret" in capsys.readouterr().err
    assert list(contents(other)[0]) == ["mine"]


def test_expired_entries_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (f"sqlite:///{tmp_path / name}.db" for name in ("old", "new"))
    tomorrow = NOW + 86_400.0  # a run of all tests may take longer than a TTL of minutes
    fill(old, [put("long", created=NOW), put("short", created=NOW, expires=tomorrow)])
    file = tmp_path / "cache.jsonl"
    run("export", str(file), "--store", old)
    aged = file.read_text("utf-8").replace(str(tomorrow), str(NOW - 1.0))
    assert aged != file.read_text("utf-8")
    file.write_text(aged, "utf-8")
    run("import", str(file), "--store", new)
    assert "1 entry was left out" in capsys.readouterr().out
    assert list(contents(new)[0]) == ["long"]


@pytest.mark.parametrize("text", ["", '{"type":"put"}\n', "not json\n"])
def test_another_file_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text(text, "utf-8")
    with pytest.raises(SystemExit) as left:
        run("import", str(file), "--store", f"sqlite:///{tmp_path / 'new.db'}")
    assert left.value.code == 2
    assert not (tmp_path / "new.db").exists()
    assert capsys.readouterr().err.startswith("headstart: ")


def test_an_export_overwrites_nothing(old: str, tmp_path: Path) -> None:
    file = tmp_path / "mine"
    file.write_text("mine", "utf-8")
    with pytest.raises(SystemExit):
        run("export", str(file), "--store", old)
    assert file.read_text("utf-8") == "mine"


@pytest.mark.parametrize("store", ["missing.db", "broken.db"])
def test_an_export_that_fails_leaves_no_file(store: str, tmp_path: Path) -> None:
    (tmp_path / "broken.db").write_bytes(b"no database")
    file = tmp_path / "cache.jsonl"
    with pytest.raises(SystemExit):
        run("export", str(file), "--store", f"sqlite:///{tmp_path / store}")
    assert not file.exists()


def test_stats_count_what_a_store_holds(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("stats", "--store", old, "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["entries"], found["labels"]) == (602, 3)
    assert sum(found["models"].values()) == 602
    assert found["tags"]["x"] == 1
    assert found["oldest"] == pytest.approx(NOW - 7200.0)
    run("stats", "--store", old)
    told = capsys.readouterr().out
    assert "602 entries" in told
    assert re.search(r"\n  \S+ \S+ to 2 hours old\n", told)


def test_stats_show_entries_without_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = f"sqlite:///{tmp_path / 'apps.db'}"
    fill(store, [put("a", origin=msgspec.structs.replace(ORIGIN, model=""))])
    run("stats", "--store", store)
    assert "model  (none): 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--tag", "x"], 601),
        (["--older", "1h"], 601),
        (["--older", "3h"], 602),
        (["--id", "e7", "--id", "e8"], 600),
        (["--id", "e7", "--tag", "x"], 602),
        (["--model", "nobody"], 602),
        (["--prefix", "quest"], 0),
        (["--prefix", "uest"], 602),
        (["--all"], 0),
        (["--all", "--dry-run"], 602),
    ],
)
def test_entries_that_fit_all_options_are_deleted(
    options: list[str], left: int, old: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run("invalidate", *options, "--store", old)
    gone = 602 if "--all" in options else 602 - left
    verb = "would be" if "--dry-run" in options else "was" if gone == 1 else "were"
    entries = "1 entry" if gone == 1 else f"{gone:,} entries"
    assert f"{entries} {verb} deleted" in capsys.readouterr().out
    assert len(contents(old)[0]) == left


def test_nothing_is_deleted_without_a_choice(old: str) -> None:
    with pytest.raises(SystemExit):
        run("invalidate", "--store", old)
    assert len(contents(old)[0]) == 602


def test_a_running_server_is_warmed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "What is a hit?"}]}
    other = {"model": "m", "messages": [{"role": "user", "content": "What is a miss?"}]}
    file = tmp_path / "questions.jsonl"
    failed = {**asked, "response": {}, "status": "failure"}
    rows = [asked, {"request": asked, "response": {}}, {"request": {"body": other}}, failed]
    file.write_text("\n\n".join(map(json.dumps, rows)), "utf-8-sig")  # as some editors do
    with remote(mode="exact-only", scope="shared") as server:
        run("warm", str(file), "--url", server.url, "--concurrency", "1")
        assert capsys.readouterr().out == "1 hit\n2 miss\n"
        run("warm", str(file), "--url", server.url)
        assert capsys.readouterr().out == "3 hit\n"
        assert server.admin("stats")["now"]["entries"] == 2
    with pytest.raises(SystemExit) as left:
        run("warm", str(file), "--url", server.url)
    assert left.value.code == 1
    told = capsys.readouterr().err
    assert "3 of 3 requests failed; " in told
    assert "is it running? --url" in told


def test_warming_says_why_requests_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"model": "m", "messages": [{"role": "user", "content": "What is a hit?"}]}
    file = tmp_path / "questions.jsonl"
    rows = [good, {"messages": []}, {"model": 7}, {"model": "m"}]
    file.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    with remote(mode="exact-only", scope="shared") as server, pytest.raises(SystemExit):
        run("warm", str(file), "--url", server.url)
    out, err = capsys.readouterr()
    assert out == "1 miss\n"
    assert "3 of 4 requests failed; most of them: status 400: model: a string is required" in err


def test_warming_refuses_an_export(
    tmp_path: Path, old: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cache.jsonl"
    run("export", str(file), "--store", old)
    with pytest.raises(SystemExit) as left:
        run("warm", str(file), "--url", "http://127.0.0.1:9")
    assert left.value.code == 2
    assert "use cache import" in capsys.readouterr().err
