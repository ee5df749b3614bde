"""``headstart batch``: the requests it sends, merges and stores, and its messages."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from headstart.attempts import AttemptOutcome
from headstart.cli.batch import INTERRUPTED, BatchSummary, summary_text
from headstart.errors import Overloaded
from headstart.lab.simulator import Simulator
from headstart.middleware.batches.journal import BatchJournal, BatchResult, read_requests
from headstart.middleware.batches.run import LOOKUPS, MOST_TRIES, BatchBooks, BatchRun
from headstart.middleware.concurrency import ConcurrencyLimit
from headstart.middleware.respond import send_whole
from headstart.policies.routing.schedule import MOST_REFUSED_ROUNDS
from support.booked import attempt, served
from support.command import COMMAND, run
from support.serving import serving_in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from headstart.middleware.batches.journal import BatchRequest
    from headstart.types import Receive, Scope, Send

FILE, OUTPUT = "questions.jsonl", "questions.out.jsonl"
JOURNAL = f"{OUTPUT}.journal"


# --- the command -----------------------------------------------------------------------------


class Provider:
    """A simulated provider that refuses everything while ``refusal`` is set."""

    def __init__(self, *, speed: float = 1.0, profile: str = "instant") -> None:
        self.simulator = Simulator(profile, speed=speed)
        self.refusal: tuple[int, str] | None = None
        self.url = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.refusal is None:
            return await self.simulator(scope, receive, send)
        while (await receive())["more_body"]:
            pass
        status, code = self.refusal
        body = json.dumps({"error": {"message": f"it is {code}", "code": code}}).encode()
        await send_whole(send, status, ((b"content-length", b"%d" % len(body)),), body)

    @property
    def calls(self) -> int:
        return self.simulator.stats.snapshot().calls


@pytest.fixture
def provider() -> Iterator[Provider]:
    found = Provider()
    with serving_in_thread(found, lifespan="off") as url:
        found.url = url
        yield found


def prepare(folder: Path, url: str, questions: list[str], store: str = "memory:") -> list[str]:
    """Write a configuration and a batch, and return the arguments of the command."""
    upstream = f'[[upstream]]\npreset = "openai"\nbase_url = "{url}/v1"\napi_key_env = []\n'
    cache = f'[cache]\nstore = "{store}"\naudit = {{ mode = "off" }}\n\n'
    (folder / "headstart.toml").write_text(cache + upstream)
    rows = [{"id": f"q{n}", "prompt": text} for n, text in enumerate(questions)]
    (folder / FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = str(folder / "headstart.toml")
    return ["batch", str(folder / FILE), "--model", "gpt-4o", "--config", config, "--json"]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / OUTPUT).read_text().splitlines()]


def text_of(row: dict[str, Any]) -> str:
    found: str = row["response"]["body"]["choices"][0]["message"]["content"]
    return found


def test_equal_requests_are_asked_once_and_answers_come_in_order(
    tmp_path: Path, provider: Provider, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = [f"Which {'ABC'[number % 3]} is a river?" for number in range(9)]
    status, summary = run(prepare(tmp_path, provider.url, questions), capsys)
    assert status == 0
    assert summary["outcomes"] == {"miss": 3, "exact": 6}
    assert summary["calls"] == provider.calls == 3
    assert summary["would_have_cost_usd"] == pytest.approx(3 * summary["paid_usd"], rel=0.1)
    rows = rows_of(tmp_path)
    assert [row["custom_id"] for row in rows] == [f"q{number}" for number in range(9)]
    assert {row["response"]["status_code"] for row in rows} == {200}
    texts = [text_of(row) for row in rows]
    assert texts == texts[:3] * 3
    assert len(set(texts)) == 3
    assert not (tmp_path / JOURNAL).exists()


def test_without_a_price_the_costs_are_unknown(
    tmp_path: Path, provider: Provider, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = prepare(tmp_path, provider.url, ["Where is Rome?"] * 2)
    arguments[arguments.index("gpt-4o")] = "a-model-of-our-own"
    status, summary = run(arguments, capsys)
    assert (status, summary["calls"]) == (0, 1)
    assert summary["paid_usd"] is summary["would_have_cost_usd"] is None


def test_failed_requests_are_asked_again_by_the_next_run(
    tmp_path: Path, provider: Provider, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = prepare(tmp_path, provider.url, ["Where is Rome?", "Who was Cato?"])
    provider.refusal = (400, "bad")
    status, summary = run(arguments, capsys)
    assert (status, summary["failed"], summary["unasked"]) == (1, 2, 0)
    [first, _] = rows_of(tmp_path)
    assert first["response"]["status_code"] == 400
    assert first["response"]["body"]["error"]["message"] == "it is bad"

    provider.refusal = None
    status, summary = run(arguments, capsys)
    assert (status, summary["outcomes"]) == (0, {"miss": 2})
    assert [row["response"]["status_code"] for row in rows_of(tmp_path)] == [200, 200]


@pytest.mark.parametrize(
    "refusal", [(401, "invalid_api_key"), (429, "insufficient_quota")], ids=["key", "quota"]
)
def test_a_failure_that_a_person_must_fix_stops_the_batch(
    tmp_path: Path,
    provider: Provider,
    capsys: pytest.CaptureFixture[str],
    refusal: tuple[int, str],
) -> None:
    arguments = prepare(tmp_path, provider.url, [f"Where is {n}?" for n in range(200)])
    provider.refusal = refusal
    status, summary = run(arguments, capsys)
    assert (status, summary["unasked"]) == (1, 200)
    assert f"it is {refusal[1]}" in summary["stopped_by"]
    assert not (tmp_path / OUTPUT).exists()
    provider.refusal = None
    assert run(arguments, capsys)[0] == 0


def test_an_output_that_exists_is_not_overwritten(
    tmp_path: Path, provider: Provider, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = prepare(tmp_path, provider.url, ["Where is Rome?"])
    (tmp_path / OUTPUT).write_text("mine")
    assert run(arguments, capsys) == (2, {})
    assert (tmp_path / OUTPUT).read_text() == "mine"


def test_an_output_without_a_folder_is_refused_before_anything_is_asked(
    tmp_path: Path, provider: Provider, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = prepare(tmp_path, provider.url, ["Where is Rome?"])
    missing = str(tmp_path / "missing" / "out.jsonl")
    assert run([*arguments, "--output", missing], capsys) == (2, {})
    assert provider.calls == 0


def started(folder: Path, arguments: list[str]) -> subprocess.Popen[str]:
    """Start a batch as a process of its own, and return when it has some answers."""
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    journal = folder / JOURNAL
    while not journal.exists() or journal.read_bytes().count(b"\n") < 20:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return process


@pytest.fixture
def slow() -> Iterator[Provider]:
    found = Provider(profile="openai", speed=10.0)
    with serving_in_thread(found, lifespan="off") as url:
        found.url = url
        yield found


def test_a_killed_batch_goes_on_and_asks_nothing_twice(
    tmp_path: Path, slow: Provider, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = prepare(tmp_path, slow.url, [f"Where is place {n}?" for n in range(60)])
    arguments += ["--concurrency", "4"]
    with started(tmp_path, arguments) as process:
        process.kill()
    answered = (tmp_path / JOURNAL).read_bytes().count(b"\n") - 1
    status, summary = run(arguments, capsys)
    assert (status, summary["resumed"]) == (0, answered)
    assert summary["calls"] == 60 - answered
    # Nobody can know the answers to the calls that ran when it was killed.
    assert slow.calls <= 60 + 4
    assert len({row["custom_id"] for row in rows_of(tmp_path)}) == 60


def test_ctrl_c_keeps_what_was_answered(
    tmp_path: Path, slow: Provider, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = prepare(tmp_path, slow.url, [f"Where is place {n}?" for n in range(60)])
    arguments += ["--concurrency", "4"]
    with started(tmp_path, arguments) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the next Ctrl-C drops them" in err
    summary = json.loads(out)
    assert summary["stopped_by"] == INTERRUPTED
    assert summary["calls"] == slow.calls == sum(summary["outcomes"].values())
    assert run(arguments, capsys)[0] == 0
    assert slow.calls == 60


# --- the run ---------------------------------------------------------------------------------


class ScriptedGateway:
    """An ASGI app that answers with what ``script`` says; it remembers what was asked, and when.

    Each call passes its ``concurrency``, after a lookup that takes ``lookup_s``.
    """

    def __init__(
        self,
        script: Callable[[str], Awaitable[tuple[int, dict[bytes, bytes]]]],
        lookup_s: float = 0.0,
    ) -> None:
        self.concurrency = ConcurrencyLimit(1, 1000)
        self.books = BatchBooks()
        self.asked: list[tuple[float, str]] = []
        self.most_in_flight = self.most_open = self._open = 0
        self._script = script
        self._lookup_s = lookup_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = json.loads((await receive())["body"])
        text = body["messages"][0]["content"]
        self._open += 1
        self.most_open = max(self.most_open, self._open)
        if self._lookup_s:
            await anyio.sleep(self._lookup_s)
        try:
            async with self.concurrency:
                began = asyncio.get_running_loop().time()
                self.asked.append((began, text))
                self.most_in_flight = max(self.most_in_flight, self.concurrency.active)
                status, headers = await self._script(text)
                took_s = asyncio.get_running_loop().time() - began
        except Overloaded:
            return await send_whole(send, 503, (), b"{}")
        finally:
            self._open -= 1
        at = time.time() - took_s  # noqa: TID251 - the books have Unix seconds
        outcome = AttemptOutcome.WON if status == 200 else AttemptOutcome.FAILED
        call = attempt(outcome, upstream="u", at=at, total_s=took_s, status=status)
        id = str(len(self.asked))
        self.books.notify(served(id=id, status=status, total_s=took_s, attempts=(call,)))
        headers = {**headers, b"x-headstart-request-id": id.encode()}
        await send_whole(send, status, tuple(headers.items()), b"{}")


def run_of(
    gateway: ScriptedGateway, journal: BatchJournal, requests: list[BatchRequest], most: int = 8
) -> BatchRun:
    return BatchRun(
        gateway, gateway.concurrency, gateway.books, journal, requests, headers=(), most=most
    )


async def played(
    folder: Path, gateway: ScriptedGateway, questions: list[str], most: int = 8
) -> BatchRun:
    requests = read_requests([json.dumps({"prompt": each}).encode() for each in questions], "m")
    journal = BatchJournal(folder / "journal", requests)
    found = run_of(gateway, journal, requests, most)
    await found.run()
    journal.close()
    return found


class FullJournal(BatchJournal):
    """A journal on a disk that becomes full."""

    full = False

    def add(self, result: BatchResult) -> None:
        if self.full:
            raise OSError("No space left on device")
        super().add(result)


virtual = [pytest.mark.anyio, pytest.mark.virtual_clock]


class TestRun:
    pytestmark = virtual

    async def test_equal_requests_wait_for_the_first(self, tmp_path: Path) -> None:
        async def script(text: str) -> tuple[int, dict[bytes, bytes]]:
            await anyio.sleep(1.0)
            return 200, {}

        gateway = ScriptedGateway(script)
        await played(tmp_path, gateway, ["a", "b", "a", "a"])
        began = gateway.asked[0][0]
        assert [(at - began, text) for at, text in gateway.asked] == [
            (0.0, "a"), (0.0, "b"), (1.0, "a"), (1.0, "a"),
        ]  # fmt: skip

    async def test_after_a_refusal_nothing_is_asked_for_the_named_time(
        self, tmp_path: Path
    ) -> None:
        refusals = iter([True])

        async def script(text: str) -> tuple[int, dict[bytes, bytes]]:
            await anyio.sleep(0.5)
            return (429, {b"retry-after": b"30"}) if next(refusals, False) else (200, {})

        gateway = ScriptedGateway(script)
        found = await played(tmp_path, gateway, [f"{n}" for n in range(9)])
        began = gateway.asked[0][0]
        later = [at - began for at, _ in gateway.asked if at > began]
        assert min(later) == pytest.approx(30.5)
        assert found.counts.outcomes.total() == 9
        assert found.counts.refusals == 1

    async def test_a_provider_that_refuses_everything_ends_the_run(self, tmp_path: Path) -> None:
        async def script(text: str) -> tuple[int, dict[bytes, bytes]]:
            await anyio.sleep(0.1)
            return 429, {}

        gateway = ScriptedGateway(script)
        found = await played(tmp_path, gateway, [f"{n}" for n in range(50)])
        assert found.stopped_by is not None
        assert found.counts.done == 0
        assert len(gateway.asked) < 2 * MOST_REFUSED_ROUNDS

    async def test_a_passing_failure_is_asked_again_some_times(self, tmp_path: Path) -> None:
        async def script(text: str) -> tuple[int, dict[bytes, bytes]]:
            await anyio.sleep(0.1)
            return (500 if text == "broken" else 200), {}

        gateway = ScriptedGateway(script)
        found = await played(tmp_path, gateway, ["broken", "whole"])
        assert Counter(text for _, text in gateway.asked) == {"broken": MOST_TRIES, "whole": 1}
        assert (found.counts.failed, found.counts.outcomes.total()) == (1, 1)

    async def test_no_more_calls_run_than_allowed(self, tmp_path: Path) -> None:
        async def script(text: str) -> tuple[int, dict[bytes, bytes]]:
            await anyio.sleep(0.1)
            return 200, {}

        gateway = ScriptedGateway(script)
        await played(tmp_path, gateway, [f"{n}" for n in range(100)], most=3)
        assert gateway.most_in_flight == 3

    async def test_lookups_hold_no_place_of_a_call(self, tmp_path: Path) -> None:
        async def script(text: str) -> tuple[int, dict[bytes, bytes]]:
            await anyio.sleep(0.1)
            return 200, {}

        gateway = ScriptedGateway(script, lookup_s=10.0)
        began = asyncio.get_running_loop().time()
        await played(tmp_path, gateway, [f"{n}" for n in range(100)], most=4)
        assert gateway.most_in_flight == 4
        assert LOOKUPS <= gateway.most_open <= LOOKUPS + 8
        assert asyncio.get_running_loop().time() - began < 45.0  # four rounds of lookups

    async def test_a_run_that_is_stopped_in_a_pause_ends_at_once(self, tmp_path: Path) -> None:
        async def script(text: str) -> tuple[int, dict[bytes, bytes]]:
            await anyio.sleep(0.1)
            return 429, {b"retry-after": b"3000"}

        gateway = ScriptedGateway(script, lookup_s=1.0)
        requests = read_requests([b'{"prompt": "%d"}' % n for n in range(50)], "m")
        journal = BatchJournal(tmp_path / "journal", requests)
        found = run_of(gateway, journal, requests)
        began = asyncio.get_running_loop().time()
        async with anyio.create_task_group() as group:
            group.start_soon(found.run)
            await anyio.sleep(20.0)
            assert gateway.concurrency.waiting
            found.stop(INTERRUPTED)
        journal.close()
        assert asyncio.get_running_loop().time() - began < 25.0
        assert (found.counts.done, len(gateway.asked)) == (0, 4)

    async def test_a_full_disk_stops_the_run(self, tmp_path: Path) -> None:
        async def script(text: str) -> tuple[int, dict[bytes, bytes]]:
            journal.full = True
            await anyio.sleep(0.1)
            return 200, {}

        requests = read_requests([b'{"prompt": "%d"}' % n for n in range(50)], "m")
        journal = FullJournal(tmp_path / "journal", requests)
        gateway = ScriptedGateway(script)
        found = run_of(gateway, journal, requests)
        await found.run()
        journal.close()
        assert found.stopped_by == "the journal cannot be written: No space left on device"
        assert (len(gateway.asked), found.counts.done) == (4, 0)

    async def test_a_stopped_run_lets_its_calls_end(self, tmp_path: Path) -> None:
        async def script(text: str) -> tuple[int, dict[bytes, bytes]]:
            await anyio.sleep(5.0)
            return 200, {}

        gateway = ScriptedGateway(script)
        requests = read_requests([b'{"prompt": "%d"}' % n for n in range(50)], "m")
        journal = BatchJournal(tmp_path / "journal", requests)
        found = run_of(gateway, journal, requests)
        async with anyio.create_task_group() as group:
            group.start_soon(found.run)
            await anyio.sleep(1.0)
            found.stop(INTERRUPTED)
        journal.close()
        assert len(gateway.asked) == found.counts.done == 4


# --- what is said ----------------------------------------------------------------------------


def summary_of(**given: Any) -> BatchSummary:
    fields: dict[str, Any] = {
        "requests": 100, "outcomes": {"miss": 60, "exact": 30, "semantic": 10}, "failed": 0,
        "unasked": 0, "resumed": 0, "calls": 61, "batches": 0, "refusals": 2,
        "refused_rewordings": {}, "concurrency": 12, "seconds": 200.0, "paid_usd": 0.6,
        "would_have_cost_usd": 1.0, "stopped_by": None,
    }  # fmt: skip
    return BatchSummary(**fields | given)


def test_the_summary_says_what_was_merged_and_saved() -> None:
    assert summary_text(summary_of(refused_rewordings={"number": 4})).splitlines() == [
        "100 requests: 100 answered, 0 failed",
        "merged: 30 exact repeats, 10 rewordings",
        "rewordings not merged: 4 number",
        "61 calls to providers in 3.3 min, at last 12 at once; 2 times a provider said to wait",
        "$0.6000 paid, $1.0000 without Headstart: saved 40%",
    ]


def test_the_summary_of_a_stopped_batch_says_how_to_go_on() -> None:
    lines = summary_text(
        summary_of(unasked=40, stopped_by="the providers refuse all calls: 429: no")
    )
    assert lines.endswith(
        "stopped: the providers refuse all calls: 429: no\n"
        "40 requests wait: the same command goes on"
    )
