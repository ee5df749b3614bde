"""The opt-in record: its content, its callers, its age, and a disk that fails."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import stat
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from click.testing import CliRunner

from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.errors import ConfigError
from headstart.lab.commands.replay import replay
from headstart.lab.commands.tune import tune
from headstart.middleware import record
from headstart.middleware.concurrency import Supervisor
from headstart.middleware.record import Recorder
from headstart.observe import StageFailed
from headstart.types import Call, RawResponse
from support import fakes
from support.candidates import make_call
from support.entries import entry
from support.patience import until
from support.proxied import proxied
from support.scripted_messages import ScriptedMessages
from support.sidecar import PROMPT, sidecar
from support.simulated import chat

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import click

pytestmark = pytest.mark.anyio
DAY_S = 86_400.0
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
CHAT = OPENAI_CHAT


class Bench:
    """A recorder, its clock and what observers were told."""

    def __init__(self, path: Path, supervisor: Supervisor, days: int = 30) -> None:
        self.now = NOON
        self.told = fakes.Recorder()
        self.recorder = Recorder(
            path,
            retention_days=days,
            spawn=supervisor.spawn,
            clock=lambda: self.now,
            observer=self.told,
        )

    async def write(self, id: str = "1", prompt: str = "Hi", **fields: Any) -> None:
        self.recorder.add(call(prompt, **fields), CHAT, entry(id))
        await self.recorder.aclose()


def call(prompt: str = "Hi", **fields: Any) -> Call:
    body = msgspec.json.encode(chat(prompt, **fields))
    return make_call(body, CHAT, headers=((b"authorization", b"Bearer sk-secret"),))


@asynccontextmanager
async def bench(path: Path, days: int = 30) -> AsyncIterator[Bench]:
    supervisor = Supervisor()
    try:
        yield Bench(path, supervisor, days)
    finally:
        await supervisor.aclose()


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def names(folder: Path) -> list[str]:
    return [file.name for file in files(folder)]


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (line for file in files(folder) for line in file.read_bytes().splitlines())
    return [json.loads(line) for line in lines if line]


async def run(command: click.Command, *arguments: str) -> str:
    found = await asyncio.to_thread(CliRunner().invoke, command, arguments, catch_exceptions=False)
    assert found.exit_code == 0, found.stderr
    return found.stdout


# --- what is written -------------------------------------------------------------------------


async def test_a_line_has_both_bodies_and_no_credential(tmp_path: Path) -> None:
    async with bench(tmp_path / "log.jsonl") as at:
        await at.write("id-1", "Hi\nthere", temperature=0)
    assert names(tmp_path) == ["log-2026-11-21.jsonl"]
    (row,) = rows(tmp_path)
    response = row.pop("response")
    assert row == {
        "at": entry("id-1").created,
        "id": "id-1",
        "scope": "scope",
        "dialect": "openai-chat",
        "request": chat("Hi\nthere", temperature=0),
    }
    assert response["object"] == "chat.completion"
    assert response["choices"][0]["message"]["content"] == "answer"
    assert b"sk-secret" not in (tmp_path / "log-2026-11-21.jsonl").read_bytes()


async def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    async with bench(tmp_path / "log.jsonl") as at:
        await at.recorder.open()
        await at.write()
    assert [stat.S_IMODE(file.stat().st_mode) for file in files(tmp_path)] == [0o600]


async def test_answers_of_custom_endpoints_are_left_out(tmp_path: Path) -> None:
    async with bench(tmp_path / "log.jsonl") as at:
        raw = RawResponse(headers=(), body=b"{}")
        at.recorder.add(call(), None, entry("1", answer=raw))
        await at.recorder.aclose()
    assert names(tmp_path) == []


async def test_lines_are_written_without_waiting_for_the_end(tmp_path: Path) -> None:
    async with bench(tmp_path / "log.jsonl") as at:
        at.recorder.add(call(), CHAT, entry("1"))
        await until(lambda: names(tmp_path) != [] and len(rows(tmp_path)) == 1)


async def test_two_recorders_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    async with bench(path) as one, bench(path) as other:
        for number in range(50):
            one.recorder.add(call("x" * 5000), CHAT, entry(f"one-{number}"))
            other.recorder.add(call("y" * 5000), CHAT, entry(f"other-{number}"))
        await until(lambda: names(tmp_path) != [] and _lines(tmp_path) == 100)
    assert len({row["id"] for row in rows(tmp_path)}) == 100


async def test_a_line_that_another_process_is_writing_is_not_mended(tmp_path: Path) -> None:
    async with bench(tmp_path / "log.jsonl") as one, asyncio.TaskGroup() as group:
        await one.write("first")
        (name,) = names(tmp_path)
        with (tmp_path / name).open("ab", buffering=0) as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            other.write(b'{"id": "oth')
            writing = group.create_task(one.write("second"))
            await asyncio.sleep(0.1)
            other.write(b'er"}\n')
        await writing
    assert [row["id"] for row in rows(tmp_path)] == ["first", "other", "second"]
    assert b"\n\n" not in (tmp_path / name).read_bytes()


def _lines(folder: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in files(folder))


async def test_a_line_that_was_cut_off_spoils_no_other(tmp_path: Path) -> None:
    file = tmp_path / "log-2026-11-21.jsonl"
    file.write_bytes(b'{"at":1,"id":"0","requ')
    async with bench(tmp_path / "log.jsonl") as at:
        await at.write("1")
        await at.write("2")
    first, *whole = file.read_bytes().splitlines()
    assert first == b'{"at":1,"id":"0","requ'
    assert [json.loads(line)["id"] for line in whole] == ["1", "2"]
    printed = await run(tune, str(file), "--out", str(tmp_path / "state.bin"))
    assert "not kept: cut-off-line 1" in printed


# --- how long it is kept ---------------------------------------------------------------------


async def test_each_day_has_its_file_and_old_ones_leave(tmp_path: Path) -> None:
    others = ("log-notes.jsonl", "log-2026-13-41.jsonl", "blog-2020-01-01.jsonl")
    for name in ("log-2026-11-18.jsonl", "log-2026-11-20.jsonl", *others):
        (tmp_path / name).touch()
    async with bench(tmp_path / "log.jsonl", days=2) as at:
        await at.write("1")
        pruning = at.recorder.spawn(at.recorder.prune, 0.001)
        kept = {"log-2026-11-20.jsonl", "log-2026-11-21.jsonl", *others}
        await until(lambda: set(names(tmp_path)) == kept)
        pruning.cancel()
    async with bench(tmp_path / "log.jsonl", days=2) as at:  # the next day
        at.now += DAY_S
        await at.write("2")
        kept = {"log-2026-11-21.jsonl", "log-2026-11-22.jsonl", *others}
        pruning = at.recorder.spawn(at.recorder.prune, 0.001)
        await until(lambda: set(names(tmp_path)) == kept)
        pruning.cancel()


@pytest.mark.parametrize("ahead_at_start", [True, False])
async def test_a_clock_that_is_ahead_deletes_nothing(tmp_path: Path, ahead_at_start: bool) -> None:
    old, recent = tmp_path / "log-2026-11-01.jsonl", tmp_path / "log-2026-11-20.jsonl"
    for file in (old, recent):
        file.write_text("{}\n")
        os.utime(file, (NOON - DAY_S, NOON - DAY_S))
    async with bench(tmp_path / "log.jsonl", days=10) as at:
        at.now = NOON + 300 * DAY_S if ahead_at_start else NOON - DAY_S + 60.0
        await at.recorder.open()
        pruning = at.recorder.spawn(at.recorder.prune, 0.001)
        await until(lambda: not old.exists())  # it was too old when the last line was written
        at.now = NOON + 300 * DAY_S
        await asyncio.sleep(0.05)
        pruning.cancel()
    assert recent.exists()


# --- what a broken disk costs ----------------------------------------------------------------


async def test_a_folder_that_is_gone_is_told_once_until_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    told = StageFailed(stage="record", error="FileNotFoundError")
    async with bench(folder / "log.jsonl") as at:
        await at.recorder.open()
        shutil.rmtree(folder)
        await at.write("1")
        await at.write("2")
        assert at.told.seen == [told]
        folder.mkdir()
        await at.write("3")
        shutil.rmtree(folder)
        await at.write("4")
        assert at.told.seen == [told, told]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
async def test_a_full_disk_is_told(tmp_path: Path) -> None:
    (tmp_path / "log-2026-11-21.jsonl").symlink_to("/dev/full")
    async with bench(tmp_path / "log.jsonl") as at:
        await at.write()
        assert at.told.seen == [StageFailed(stage="record", error="OSError")]


async def test_lines_beyond_the_limit_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "MAX_WAITING", 2)
    async with bench(tmp_path / "log.jsonl") as at:
        for number in range(4):
            at.recorder.add(call(), CHAT, entry(str(number)))
        await at.recorder.aclose()
        assert at.told.seen == [StageFailed(stage="record", error="QueueFull")]
    assert [row["id"] for row in rows(tmp_path)] == ["0", "1"]


async def test_a_path_that_cannot_be_written_is_refused_at_start(tmp_path: Path) -> None:
    async with bench(tmp_path / "nowhere" / "log.jsonl") as at:
        with pytest.raises(ConfigError, match=r"^record\.path: .*nowhere"):
            await at.recorder.open()


# --- the whole way ---------------------------------------------------------------------------


def recorded(folder: Path) -> dict[str, Any]:
    return {"record": {"enabled": True, "path": str(folder / "log.jsonl")}}


async def test_the_record_of_a_sidecar_can_be_tuned_and_replayed(tmp_path: Path) -> None:
    prompts = (PROMPT, "What is the capital of Norway?", "Name three prime numbers")
    folder = tmp_path / "records"
    folder.mkdir()
    async with sidecar(**recorded(folder)) as running:
        await running.ask(prompts[0])
        await running.ask(prompts[1], stream=True)
        await running.ask(prompts[2])
        await running.finished(3)
        await running.ask(prompts[0])
        await running.ask("Keep this to yourself", headers={"cache-control": "no-store"})
        await running.finished(5)
    found = rows(folder)
    assert sorted(row["request"]["messages"][0]["content"] for row in found) == sorted(prompts)
    assert len({row["scope"] for row in found}) == 1
    assert "sk-test" not in json.dumps(found)
    log = [str(file) for file in files(folder)]
    tuned = json.loads(await run(tune, *log, "--json", "--out", str(tmp_path / "state.bin")))
    assert (tuned["n"], tuned["skipped"]) == (3, {})
    played = json.loads(await run(replay, *log, "--json", "--policy", "static:0.90"))
    assert (played["policies"]["static:0.90"]["n"], played["skipped"]) == (3, {})


async def test_an_audit_is_recorded_and_the_hit_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    cache = {"audit.mode": "background", "audit.null_rate": 1.0}
    async with sidecar(cache=cache, **recorded(folder)) as running:
        await running.ask()
        await running.finished(1)
        assert "hit" in (await running.ask()).verdict
        await running.finished(3)
    assert running.provider.calls == 2
    found = rows(folder)
    assert len({row["id"] for row in found}) == 2
    assert found[0]["request"] == found[1]["request"]


@pytest.mark.parametrize("stream", [False, True])
async def test_other_wire_formats_are_recorded_in_their_own(stream: bool, tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    question = {"model": "m", "max_tokens": 99, "messages": chat("Hi")["messages"]}
    body = {**question, "stream": stream}
    async with proxied(
        ScriptedMessages(), provider={"dialect": "anthropic"}, **recorded(folder)
    ) as proxy:
        url, headers = proxy.url + "/v1/messages", {"x-api-key": "k"}
        async with proxy.session.post(url, json=body, headers=headers) as response:
            assert response.status == 200
            await response.read()
    (row,) = rows(folder)
    assert (row["dialect"], row["request"]) == ("anthropic-messages", body)
    assert row["response"]["type"] == "message"
    (log,) = files(folder)
    tuned = json.loads(await run(tune, str(log), "--json", "--out", str(tmp_path / "state.bin")))
    assert (tuned["n"], tuned["skipped"]) == (1, {})


async def test_a_sidecar_records_nothing_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with sidecar() as running:
        await running.ask()
        await running.finished(1)
    assert names(tmp_path) == []


async def test_a_record_that_cannot_be_written_costs_no_answer(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    async with sidecar(**recorded(folder)) as running:
        shutil.rmtree(folder)
        assert (await running.ask()).status == 200
        told = StageFailed(stage="record", error="FileNotFoundError")
        await until(lambda: told in running.recorder.seen)
        assert (await running.ask()).status == 200
    assert running.recorder.seen.count(told) == 1
