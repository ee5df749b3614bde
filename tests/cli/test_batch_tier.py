"""``headstart batch --tier batch``: calls go to the provider's batch endpoint, and none twice."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sqlite3
import subprocess
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.lab.simulator import Simulator
from headstart.middleware.respond import send_whole
from headstart.middleware.upstreams import batched
from support.command import COMMAND, run
from support.serving import serving_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headstart.types import Receive, Scope, Send


class Provider(Simulator):
    """A simulator that can lose its answers to requests for a path."""

    def __init__(self, batch_s: float = 0.0) -> None:
        super().__init__("instant", batch_s=batch_s)
        self.url = ""
        self.lost = ""
        """The end of a path: the next POST to it is carried out, and answered with 502."""
        self.held = ""
        """The end of a path: a POST to it is carried out, and never answered."""
        self.told: tuple[int, tuple[()], bytes] | None = None
        """The answer to every request for ``told_at``; None: that of the simulator."""
        self.told_at = ""
        """The end of a path; empty: every path."""
        self.keys = set[bytes]()
        self.teams = set[bytes | None]()
        """The values of a header that the operator set."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, headers = scope["path"], dict(scope["headers"])
        if self.told is not None and path.endswith(self.told_at):
            return await send_whole(send, *self.told)
        self.teams.add(headers.get(b"x-team"))
        self.keys.add(headers.get(b"authorization") or headers.get(b"x-api-key") or b"")
        if scope["method"] == "POST" and self.lost and path.endswith(self.lost):
            self.lost = ""

            async def lose(message: Any) -> None:
                if message["type"] == "http.response.start":
                    await send_whole(send, 502, (), b"{}")

            return await super().__call__(scope, receive, lose)
        if scope["method"] == "POST" and self.held and path.endswith(self.held):

            async def drop(message: Any) -> None:
                pass

            await super().__call__(scope, receive, drop)
            while (await receive())["type"] != "http.disconnect":
                pass
            return None
        return await super().__call__(scope, receive, send)

    @property
    def single_calls(self) -> int:
        counted = self.stats.snapshot().endpoints
        return sum(count for name, count in counted.items() if name != "batches")


@pytest.fixture
def provider() -> Iterator[Provider]:
    found = Provider()
    with serving_in_thread(found, lifespan="off") as url:
        found.url = url
        yield found


APIS = {
    "openai": ("openai", "/v1", "/v1/chat/completions", "gpt-4o"),
    "anthropic": ("anthropic", "", "/v1/messages", "claude-opus-5"),
}


def prepare(
    folder: Path, url: str, questions: list[str], api: str = "openai", **fields: Any
) -> list[str]:
    preset, base, path, model = APIS[api]
    (folder / "headstart.toml").write_text(
        f'[cache]\nstore = "sqlite:///{folder}/store.db"\naudit = {{ mode = "off" }}\n\n'
        f'[[upstream]]\npreset = "{preset}"\nbase_url = "{url}{base}"\napi_key_env = "BATCH_KEY"\n'
    )
    extra = {"max_tokens": 1000, **fields} if api == "anthropic" else fields
    rows = [
        {
            "custom_id": f"q{n}",
            "url": path,
            "body": {"model": model, "messages": [{"role": "user", "content": text}], **extra},
        }
        for n, text in enumerate(questions)
    ]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = str(folder / "headstart.toml")
    return ["batch", str(folder / "in.jsonl"), "--config", config, "--json", "--tier", "batch"]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "in.out.jsonl").read_text().splitlines()]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_KEY", "sk-batch")


@pytest.mark.parametrize("api", APIS)
def test_each_request_about_a_batch_has_the_headers_of_the_settings(
    tmp_path: Path, provider: Provider, capsys: pytest.CaptureFixture[str], api: str
) -> None:
    arguments = prepare(tmp_path, provider.url, ["Where is Rome?", "Who was Cato?"], api)
    with (tmp_path / "headstart.toml").open("a") as settings:
        settings.write('headers = { "X-Team" = "blue" }\n')
    status, summary = run(arguments, capsys)
    assert (status, summary["outcomes"]) == (0, {"miss": 2})
    assert provider.batches.submitted == 1
    assert provider.teams == {b"blue"}


@pytest.mark.parametrize("api", APIS)
def test_misses_go_into_one_batch_at_half_the_price(
    tmp_path: Path, provider: Provider, capsys: pytest.CaptureFixture[str], api: str
) -> None:
    questions = ["Where is Rome?", "Who was Cato?", "Where is Rome?"]
    arguments = prepare(tmp_path, provider.url, questions, api)
    status, summary = run(arguments, capsys)
    assert (status, summary["outcomes"]) == (0, {"miss": 2, "exact": 1})
    assert (provider.single_calls, provider.batches.submitted) == (0, 1)
    assert sorted(provider.batches.asked.values()) == [1, 1]
    assert provider.keys in ({b"Bearer sk-batch"}, {b"sk-batch"})
    batched = rows_of(tmp_path)
    assert [row["custom_id"] for row in batched] == ["q0", "q1", "q2"]

    # The same questions, asked one by one elsewhere: the same answers, at twice the price.
    other = tmp_path / "other"
    other.mkdir()
    single = prepare(other, provider.url, questions, api)[:-2]
    status, full = run(single, capsys)
    assert status == 0
    assert summary["paid_usd"] == pytest.approx(full["paid_usd"] / 2)
    field = "choices" if api == "openai" else "content"
    texts = [row["response"]["body"][field] for row in batched]
    assert texts == [row["response"]["body"][field] for row in rows_of(other)]

    # The cache and the books have them.
    (tmp_path / "in.out.jsonl").unlink()
    status, again = run(arguments, capsys)
    assert (again["outcomes"], provider.batches.submitted) == ({"exact": 3}, 1)
    with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as store:
        [(rows,)] = store.execute("select count(*) from books")
    assert rows == 3 + 3  # a request that waits for its batch is booked once


def test_calls_of_several_models_go_into_several_batches(
    tmp_path: Path, provider: Provider, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = prepare(tmp_path, provider.url, ["Where is Rome?", "Who was Cato?"])
    file = tmp_path / "in.jsonl"
    file.write_text(file.read_text().replace("gpt-4o", "gpt-5-mini", 1))
    assert run(arguments, capsys)[0] == 0
    assert provider.batches.submitted == 2


def test_requests_that_the_provider_refuses_fail_and_are_submitted_again(
    tmp_path: Path, provider: Provider, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = prepare(tmp_path, provider.url, ["Where is Rome?", "Who was Cato?"])
    file = tmp_path / "in.jsonl"
    good, bad = file.read_text().splitlines()
    file.write_text(good + "\n" + bad.replace('"messages"', '"n": 1000, "messages"') + "\n")
    status, summary = run(arguments, capsys)
    assert (status, summary["failed"], summary["outcomes"]) == (1, 1, {"miss": 1})
    assert rows_of(tmp_path)[1]["response"]["status_code"] == 400
    status, _ = run(arguments, capsys)
    assert (status, provider.batches.submitted) == (1, 2)
    assert sorted(provider.batches.asked.values()) == [1, 2]


def test_many_errors_in_a_batch_fail_their_requests_alone(
    tmp_path: Path, provider: Provider, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = prepare(tmp_path, provider.url, [f"Where is {n}?" for n in range(60)])
    whole = provider.batches.answer

    def answer(incoming: Any, path: bytes, body: bytes) -> tuple[int, bytes]:
        number = int(re.findall(rb"\d+", json.loads(body)["messages"][0]["content"].encode())[0])
        broken = b'{"error": {"message": "it is broken"}}'
        return (500, broken) if number % 3 else whole(incoming, path, body)

    provider.batches.answer = answer
    status, summary = run(arguments, capsys)
    assert (status, summary["failed"], summary["outcomes"]) == (1, 40, {"miss": 20})
    assert summary["stopped_by"] is None
    rows = rows_of(tmp_path)
    assert rows[1]["response"]["body"] == {"error": {"message": "it is broken"}}
    provider.batches.answer = whole
    status, summary = run(arguments, capsys)
    assert (status, summary["resumed"], summary["outcomes"]) == (0, 20, {"miss": 60})
    assert provider.batches.asked.total() == 100


@pytest.mark.parametrize("lost", ["files", "batches"])
@pytest.mark.parametrize("api", APIS)
def test_a_lost_answer_submits_nothing_twice(
    tmp_path: Path, provider: Provider, capsys: pytest.CaptureFixture[str], api: str, lost: str
) -> None:
    provider.lost = lost
    assert run(prepare(tmp_path, provider.url, ["Where is Rome?"], api), capsys)[0] == 0
    assert provider.batches.submitted == 1


def started(arguments: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("when", ["before the answer", "while it waits", "by Ctrl-C"])
def test_a_killed_run_finds_its_batch(
    tmp_path: Path,
    provider: Provider,
    capsys: pytest.CaptureFixture[str],
    api: str,
    when: str,
) -> None:
    questions = [f"Where is place {n}?" for n in range(5)]
    arguments = prepare(tmp_path, provider.url, questions, api)
    provider.batches.takes_s = 3600.0
    provider.held = "batches" if when == "before the answer" else ""
    journal = tmp_path / "in.out.jsonl.journal"
    known = re.compile(rb'"token":' if when == "before the answer" else rb'"batch":"')
    with started(arguments) as process:
        while not (
            provider.batches.submitted and journal.exists() and known.search(journal.read_bytes())
        ):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT if when == "by Ctrl-C" else signal.SIGKILL)
    assert process.returncode == (130 if when == "by Ctrl-C" else -signal.SIGKILL)
    provider.held, provider.batches.takes_s = "", 0.0
    status, summary = run(arguments, capsys)
    assert (status, summary["outcomes"]) == (0, {"miss": 5})
    assert (provider.batches.submitted, provider.single_calls) == (1, 0)
    assert set(provider.batches.asked.values()) == {1}
    assert not journal.exists()


def test_a_document_that_is_split_goes_through_batches(
    tmp_path: Path, provider: Provider, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = prepare(tmp_path, provider.url, ["Name the town:"])
    row = json.loads((tmp_path / "in.jsonl").read_text())
    row["towns"] = ["Rome", "Oslo", "Lima"]
    (tmp_path / "in.jsonl").write_text(json.dumps(row))
    status, summary = run([*arguments, "--map", "towns", "--reduce", "Join:"], capsys)
    assert (status, summary["requests"], provider.single_calls) == (0, 1, 0)
    assert provider.batches.submitted == 2
    assert provider.batches.asked.total() == 4


_NESTED = b"[" * 20_000 + b"]" * 20_000


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ((401, (), _NESTED), "401: without a message"),
        ((200, (), _NESTED), "cannot be read"),
        ((200, (), b"[]"), "cannot be read"),
        ((200, (), b"null"), "cannot be read"),
        ((200, (), b'{"id":7}'), "cannot be read"),
        ((200, (), b"{}"), "cannot be read"),
    ],
    ids=["refused", "nested", "list", "null", "number", "empty"],
)
@pytest.mark.parametrize("api", APIS)
def test_an_error_of_the_batch_endpoint_stops_the_run(
    tmp_path: Path,
    provider: Provider,
    capsys: pytest.CaptureFixture[str],
    api: str,
    told: tuple[int, tuple[()], bytes],
    said: str,
) -> None:
    provider.told = told
    arguments = prepare(tmp_path, provider.url, ["Where is Rome?"], api)
    exit_status, summary = run(arguments, capsys)
    assert (exit_status, summary["unasked"]) == (1, 1)
    assert said in summary["stopped_by"]
    provider.told = None
    assert run(arguments, capsys)[0] == 0


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b'{"custom_id":"a-b"}',
        b'{"custom_id":"a-b","error":"no","result":"no"}',
        b'{"custom_id":"a-b","response":{"status_code":"ok","body":{}},"result":{"type":"errored"}}',
    ],
    ids=["list", "no answer", "texts", "no numbers"],
)
@pytest.mark.parametrize("api", APIS)
def test_results_of_another_form_stop_the_run(
    tmp_path: Path,
    provider: Provider,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    api: str,
    line: bytes,
) -> None:
    monkeypatch.setattr(batched, "LONGEST_LOOK_S", 0.5)  # it asks only once
    provider.told, provider.told_at = (200, (), line), "content" if api == "openai" else "results"
    arguments = prepare(tmp_path, provider.url, ["Where is Rome?"], api)
    exit_status, summary = run(arguments, capsys)
    assert (exit_status, summary["unasked"]) == (1, 1)
    assert "cannot be read" in summary["stopped_by"]
    provider.told = None
    assert run(arguments, capsys)[0] == 0
    assert provider.batches.submitted == 1


def test_a_result_with_an_unknown_name_changes_nothing(
    tmp_path: Path, provider: Provider, capsys: pytest.CaptureFixture[str]
) -> None:
    row = b'{"custom_id":"other","response":{"status_code":200,"body":{}}}'
    provider.told, provider.told_at = (200, (), row), "content"
    arguments = prepare(tmp_path, provider.url, ["Where is Rome?"])
    exit_status, summary = run(arguments, capsys)
    assert (exit_status, summary["stopped_by"]) == (1, None)
    assert summary["failed"] == 1


def test_a_path_without_a_batch_endpoint_is_named(
    tmp_path: Path, provider: Provider, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = prepare(tmp_path, provider.url, ["Where is Rome?"])
    row = {"url": "/v1/rerank", "body": {"model": "m", "query": "a", "documents": ["b"]}}
    (tmp_path / "in.jsonl").write_text(json.dumps(row))
    assert run(arguments, capsys)[0] == 1
    [found] = rows_of(tmp_path)
    assert "no batch endpoint for /v1/rerank" in msgspec.json.encode(found).decode()
