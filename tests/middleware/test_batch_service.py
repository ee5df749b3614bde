"""``/v1/batches`` in one event loop: nothing blocks it, and batches end as they should."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import sys
import threading
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import openai
import pytest

from headstart.config.loading import load_settings
from headstart.lab.simulator import Simulator
from headstart.middleware.asgi import not_found
from headstart.middleware.batches import service as service_module
from headstart.middleware.batches.journal import BatchFolder, KeptBatch, KeptFile
from headstart.middleware.batches.service import PIECE, WINDOW_S, BatchService
from headstart.middleware.concurrency import Supervisor
from headstart.middleware.observers import Observers
from headstart.middleware.prepare import ValueLimit
from headstart.middleware.respond import send_whole
from headstart.mount import build_gateway
from headstart.settings import BatchSettings
from support.patience import until
from support.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from headstart.types import Message, Receive, Scope, Send

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
FORM = (
    b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
    b'content-disposition: form-data; name="file"; filename="f"\r\n\r\nDATA\r\n--b--'
)


def line(id: str, text: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {
        "custom_id": id, "method": "POST", "url": CHAT,
        "body": {"model": "gpt-4o", "messages": messages},
    }  # fmt: skip


def lines(count: int) -> bytes:
    return "\n".join(
        json.dumps(line(f"q{n}", f"Where is town {n}?")) for n in range(count)
    ).encode()


@contextlib.asynccontextmanager
async def asked(folder: Path, simulator: Simulator) -> AsyncIterator[openai.AsyncOpenAI]:
    """Yield a client of a sidecar before a simulated provider, all in this loop."""
    async with serving(simulator, lifespan="off") as url:
        upstream = {"name": "p", "preset": "openai", "base_url": f"{url}/v1", "api_key_env": []}
        overrides = {
            "upstream": [upstream],
            "cache.store": f"sqlite:///{folder}/store.db",
            "batches.dir": str(folder / "batches"),
        }
        settings = await anyio.to_thread.run_sync(load_settings, None, {}, overrides)
        app = build_gateway(settings, not_found, observers=Observers())
        async with (
            serving(app) as served,
            openai.AsyncOpenAI(api_key="sk-a", base_url=f"{served}/v1", max_retries=0) as client,
        ):
            yield client


async def ended(client: openai.AsyncOpenAI, data: bytes) -> openai.types.Batch:
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    with anyio.fail_after(60):
        while (batch := await client.batches.retrieve(batch.id)).status not in (
            "completed", "failed", "cancelled", "expired",
        ):  # fmt: skip
            await anyio.sleep(0.05)
    return batch


async def test_a_large_batch_never_blocks_the_event_loop(tmp_path: Path) -> None:
    async with asked(tmp_path, Simulator("instant")) as client:
        done = await ended(client, lines(3) + b"\n" * 3_000_000)
        assert done.status == "completed"
        content = await client.files.content(str(done.output_file_id))
        assert content.text.count("\n") == 3


async def test_a_refused_key_fails_the_batch(tmp_path: Path) -> None:
    async with asked(tmp_path, Simulator("instant", api_keys=["sk-right"])) as client:
        done = await ended(client, lines(30))
        assert done.status == "failed"
        assert done.errors
        [error] = done.errors.data or []
        assert "only a person can correct this" in (error.message or "")
        content = await client.files.content(str(done.error_file_id))
        rows = [json.loads(each) for each in content.text.splitlines()]
        assert len(rows) == 30
        assert {row["error"]["code"] for row in rows} == {"batch_stopped"}


# --- without a gateway -----------------------------------------------------------------------


class Caller:
    """Asks services on one folder; ``app`` answers the requests of their batches."""

    def __init__(self, folder: Path) -> None:
        self.now = 1_700_000_000.0  # before any file was written: none is too old
        self.open = anyio.Event()
        self.answered = 0
        self.name = "me"
        self.supervisor = Supervisor()
        self.folder = BatchFolder(folder / "batches")

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if self.answered >= 2:
            await self.open.wait()
        self.answered += 1
        await send_whole(send, 200, (), b'{"object": "chat.completion"}')

    def service(self, **options: Any) -> BatchService:
        return BatchService(
            BatchSettings(dir="x", **options),
            self.folder,
            self.app,
            owner=lambda _: self.name,
            spawn=self.supervisor.spawn,
            clock=lambda: self.now,
            request_id=lambda: "id",
            body_timeout_s=None,
            check=ValueLimit(50_000).check,
        )

    async def ask(
        self,
        service: BatchService,
        method: str,
        path: str,
        body: bytes = b"",
        query: bytes = b"",
        *headers: tuple[bytes, bytes],
    ) -> Any:
        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        return await self.exchange(service, method, path, receive, query, *headers)

    async def exchange(
        self,
        service: BatchService,
        method: str,
        path: str,
        receive: Receive,
        query: bytes = b"",
        *headers: tuple[bytes, bytes],
    ) -> Any:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "raw_path": path.encode(),
            "path": path,
            "query_string": query,
            "headers": [(b"content-type", b"multipart/form-data; boundary=b"), *headers],
        }
        assert await service.answer(scope, receive, send)
        return json.loads(b"".join(each.get("body", b"") for each in sent))

    async def upload(
        self, service: BatchService, data: bytes, *headers: tuple[bytes, bytes]
    ) -> Any:
        form = FORM.replace(b"DATA", data)
        return await self.ask(service, "POST", "/v1/files", form, b"", *headers)

    async def begin(self, service: BatchService, count: int) -> str:
        return await self.begin_with(service, lines(count))

    async def begin_with(self, service: BatchService, data: bytes) -> str:
        file = await self.upload(service, data)
        asked = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
        batch = await self.ask(service, "POST", "/v1/batches", json.dumps(asked).encode())
        return str(batch["id"])

    async def until(self, service: BatchService, id: str, *statuses: str) -> Any:
        with anyio.fail_after(30):
            while True:
                batch = await self.ask(service, "GET", f"/v1/batches/{id}")
                if batch["status"] in statuses:
                    return batch
                await anyio.sleep(0.02)

    async def until_stopped(self, service: BatchService, id: str) -> None:
        await until(lambda: service._runs[id].stopped_by is not None)

    async def aclose(self, *services: BatchService) -> None:
        for each in services:
            await each.aclose()
        await self.supervisor.aclose()


@pytest.fixture
def caller(tmp_path: Path) -> Caller:
    found = Caller(tmp_path)
    found.folder.prepare(found.now)
    return found


async def test_after_a_day_a_batch_is_expired(caller: Caller) -> None:
    service = caller.service(concurrency=1)
    id = await caller.begin(service, 5)
    while caller.answered < 2:
        await anyio.sleep(0.01)
    caller.now += WINDOW_S
    await caller.until_stopped(service, id)
    caller.open.set()
    batch = await caller.until(service, id, "expired")
    answered = batch["request_counts"]["completed"]
    assert answered < 5
    place = caller.folder.path("me", batch["error_file_id"], "data")
    text = await anyio.to_thread.run_sync(place.read_text)
    rows = [json.loads(each) for each in text.splitlines()]
    assert [row["error"]["code"] for row in rows] == ["batch_expired"] * (5 - answered)
    await caller.aclose(service)


async def test_another_process_shows_and_cancels_a_batch(caller: Caller) -> None:
    first, second = caller.service(concurrency=1), caller.service()
    id = await caller.begin(first, 5)
    await caller.until(first, id, "in_progress")
    assert [each["id"] for each in (await caller.ask(second, "GET", "/v1/batches"))["data"]] == [id]
    cancelled = await caller.ask(second, "POST", f"/v1/batches/{id}/cancel")
    assert cancelled["status"] == "cancelling"
    assert (await caller.ask(first, "GET", f"/v1/batches/{id}"))["status"] == "cancelling"
    await caller.until_stopped(first, id)
    caller.open.set()
    batch = await caller.until(second, id, "cancelled")
    assert batch["request_counts"]["completed"] == caller.answered < 5
    await caller.aclose(first, second)


async def test_a_batch_goes_on_elsewhere_although_the_clock_was_put_back(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headstart.middleware.batches.service.AGAIN_S", 0.01)
    first, second = caller.service(concurrency=1), caller.service()
    id = await caller.begin(first, 5)
    await caller.until(first, id, "in_progress")
    await caller.ask(second, "GET", "/v1/batches")  # it finds that the other one runs the batch
    await anyio.sleep(0.2)
    await first.aclose()
    caller.now -= 365 * 86_400
    caller.open.set()
    await caller.until(second, id, "completed")
    await caller.aclose(second)


async def test_a_batch_goes_on_although_its_folder_could_not_be_read_at_first(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OSError(errno.EIO, "Input/output error")]

    def listed(folder: BatchFolder, owner: str, kind: type[Any]) -> list[Any]:
        if failures:
            raise failures.pop()
        return known(folder, owner, kind)

    known = BatchFolder.listed
    first, second = caller.service(concurrency=1), caller.service()
    id = await caller.begin(first, 5)
    await caller.until(first, id, "in_progress")
    await first.aclose()
    monkeypatch.setattr(BatchFolder, "listed", listed)
    refused = await caller.ask(second, "GET", f"/v1/batches/{id}")
    assert "batches.dir cannot be used" in refused["error"]["message"]
    caller.open.set()
    await caller.until(second, id, "completed")
    await caller.aclose(second)


async def test_two_requests_after_a_restart_start_a_batch_once(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    looks: list[list[Any]] = []

    def listed(folder: BatchFolder, owner: str, kind: type[Any]) -> list[Any]:
        found = known(folder, owner, kind)
        looks.append(found)
        if len(looks) > 1:
            ended.wait(10)
        return found

    known = BatchFolder.listed
    first, second = caller.service(concurrency=1), caller.service()
    id = await caller.begin(first, 5)
    await caller.until(first, id, "in_progress")
    await first.aclose()
    monkeypatch.setattr(BatchFolder, "listed", listed)
    caller.open.set()
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(caller.ask, second, "GET", f"/v1/batches/{id}")
        await caller.until(second, id, "completed")
        ended.set()
    await until(lambda: not second._tasks)
    assert len(looks) == 1
    await caller.aclose(second)


@pytest.mark.parametrize("kind", [KeptFile, KeptBatch])
async def test_a_disk_that_is_full_at_the_end_keeps_one_output(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, kind: type[Any]
) -> None:
    monkeypatch.setattr("headstart.middleware.batches.service.AGAIN_S", 0.01)
    failed: list[Any] = []

    def save(folder: BatchFolder, owner: str, document: Any) -> None:
        ends = isinstance(document, KeptFile) or document.has_ended
        if type(document) is kind and ends and caller.open.is_set() and len(failed) < 3:
            failed.append(document)
            raise OSError(errno.ENOSPC, "No space left on device")
        saved(folder, owner, document)

    saved = BatchFolder.save
    service = caller.service()
    id = await caller.begin(service, 2)
    monkeypatch.setattr(BatchFolder, "save", save)
    caller.open.set()
    batch = await caller.until(service, id, "completed")
    assert len(failed) == 3
    data = await anyio.to_thread.run_sync(
        lambda: {p.stem for p in caller.folder.root.rglob("*.data")}
    )
    assert data == {batch["input_file_id"], batch["output_file_id"]}
    await caller.aclose(service)


async def test_a_slow_save_of_the_counts_does_not_set_an_ended_batch_back(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving, may_save, save = threading.Event(), threading.Event(), BatchFolder.save

    def save_counts_late(folder: BatchFolder, owner: str, document: KeptFile | KeptBatch) -> None:
        if isinstance(document, KeptBatch) and document.status == "in_progress":
            saving.set()
            may_save.wait(10)
        save(folder, owner, document)

    monkeypatch.setattr(BatchFolder, "save", save_counts_late)
    service = caller.service()
    id = await caller.begin(service, 2)
    await until(lambda: saving.is_set() and caller.answered == 2)
    await anyio.sleep(0.1)  # the run ends
    may_save.set()
    await caller.until(service, id, "completed")
    await anyio.sleep(0.1)
    batch = await caller.ask(service, "GET", f"/v1/batches/{id}")
    assert batch["status"] == "completed"
    file = await caller.ask(service, "GET", f"/v1/files/{batch['output_file_id']}")
    assert file["purpose"] == "batch_output"
    await caller.aclose(service)


async def test_one_batch_waits_for_another(caller: Caller) -> None:
    service = caller.service(max_running=1, concurrency=2)
    first, second = await caller.begin(service, 5), await caller.begin(service, 1)
    await caller.until(service, first, "in_progress")
    assert (await caller.ask(service, "GET", f"/v1/batches/{second}"))["status"] == "validating"
    caller.open.set()
    await caller.until(service, second, "completed")
    assert (await caller.ask(service, "GET", f"/v1/batches/{first}"))["status"] == "completed"
    assert len(await anyio.to_thread.run_sync(caller.folder.listed, "me", KeptBatch)) == 2
    await caller.aclose(service)


async def test_one_caller_leaves_a_place_to_the_others(caller: Caller) -> None:
    service = caller.service(max_running=2, concurrency=1)
    mine = [await caller.begin(service, 5) for _ in range(3)]
    await caller.until(service, mine[0], "in_progress")
    caller.name = "other"
    theirs = await caller.begin(service, 5)
    await caller.until(service, theirs, "in_progress")
    caller.name = "me"
    states = [(await caller.ask(service, "GET", f"/v1/batches/{id}"))["status"] for id in mine]
    assert states == ["in_progress", "validating", "validating"]
    caller.open.set()
    for id in mine:
        await caller.until(service, id, "completed")
    await caller.aclose(service)


# --- what a client may cost ------------------------------------------------------------------

DEEP = b'{"id":"a","prompt":' + b"[" * 20_000 + b"]" * 20_000 + b"}\n"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"id":"a","prompt":[%b0]}\n' % (b"[]," * 60_000), "server.max_body_values"),
        pytest.param(
            DEEP,
            "nested too deeply",
            marks=pytest.mark.skipif(
                sys.version_info >= (3, 14), reason="reads such a line; refuses its request alone"
            ),
        ),
        (b'{"id":"a","prompt":%b}\n' % (b"7" * 5000), "more than 1000 characters"),
    ],
)
async def test_a_line_that_is_too_expensive_to_decode_fails_the_batch(
    caller: Caller, line: bytes, why: str
) -> None:
    service = caller.service()
    id = await caller.begin_with(service, lines(1) + b"\n" + line)
    batch = await caller.until(service, id, "failed")
    [error] = batch["errors"]["data"]
    assert (error["line"], why in error["message"]) == (2, True)
    await caller.aclose(service)
    assert caller.answered == 0


async def test_a_batch_has_as_many_requests_as_at_openai(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "MOST_REQUESTS", 2)
    service = caller.service()
    allowed = await caller.begin(service, 2)
    await caller.until(service, allowed, "completed")
    id = await caller.begin(service, 3)
    batch = await caller.until(service, id, "failed")
    assert "at most 2 requests" in batch["errors"]["data"][0]["message"]
    await caller.aclose(service)


async def test_uploads_at_the_same_time_share_the_room(caller: Caller) -> None:
    service = caller.service(max_bytes=60_000)
    found: list[Any] = []

    async def upload() -> None:
        found.append(await caller.upload(service, b"x" * 20_000))

    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(upload)
    kept = [each for each in found if "error" not in each]
    assert 1 <= len(kept) <= 2
    assert await anyio.to_thread.run_sync(caller.folder.used_bytes) <= 60_000
    codes = {each["error"]["code"] for each in found if "error" in each}
    assert codes == {"request_too_large"}
    await caller.aclose(service)


@pytest.mark.parametrize("cancels", [1, 2])
@pytest.mark.parametrize("steps", range(1, 7))
async def test_a_cancelled_upload_leaves_no_file(caller: Caller, steps: int, cancels: int) -> None:
    """Also if it is cancelled again while it waits for the file's end."""
    service, root = caller.service(), caller.folder.root
    await caller.upload(service, b"x")
    uploading = caller.upload(service, b"x" * 3_000_000)
    task = asyncio.create_task(uploading)  # noqa: TID251 - a task group would wait for it
    await asyncio.sleep(steps / 1000)  # the cancellation comes at any point
    for _ in range(cancels):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([task])
    await until(lambda: not list(root.glob("*.part")))
    await anyio.sleep(0.02)  # for a thread that would make the file later
    assert not list(root.glob("*.part"))
    await caller.aclose(service)


@pytest.mark.parametrize("age_s", [60, 7200])
async def test_a_start_deletes_only_uploads_that_nobody_goes_on_with(
    caller: Caller, age_s: int
) -> None:
    """Other workers, and the gateway before a reload, may receive a file at that time."""
    service, root = caller.service(), caller.folder.root
    half, started = asyncio.Event(), asyncio.Event()
    [begin, end] = FORM.split(b"DATA")

    async def receive() -> Message:
        if not half.is_set():
            half.set()
            return {"type": "http.request", "body": begin + b"x" * PIECE, "more_body": True}
        await started.wait()
        return {"type": "http.request", "body": end, "more_body": False}

    answers: list[Any] = []

    async def upload() -> None:
        answers.append(await caller.exchange(service, "POST", "/v1/files", receive))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(upload)
        await until(lambda: any(each.stat().st_size for each in root.glob("*.part")))
        [part] = root.glob("*.part")
        now = part.stat().st_mtime + age_s
        await anyio.to_thread.run_sync(caller.folder.prepare, now)
        assert bool(list(root.glob("*.part"))) == (age_s == 60)
        started.set()
    assert ("error" in answers[0]) == (age_s != 60)
    await caller.aclose(service)


@pytest.mark.parametrize("digits", [19, 4_301, 60_000])
async def test_a_length_of_any_number_of_digits_is_too_large_for_an_upload(
    caller: Caller, digits: int
) -> None:
    """Python refuses to read numbers of more than 4,300 digits."""
    service = caller.service()
    answer = await caller.upload(service, b"x", (b"content-length", b"9" * digits))
    assert answer["error"]["code"] == "request_too_large"
    await caller.aclose(service)


async def test_batches_stop_where_the_folder_is_full(caller: Caller) -> None:
    service = caller.service(max_bytes=40_000)
    file = await caller.upload(service, lines(1))
    asked = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    found = [
        await caller.ask(service, "POST", "/v1/batches", json.dumps(asked).encode())
        for _ in range(20)
    ]
    assert found[0]["status"] == "validating"
    assert found[-1]["error"]["code"] == "request_too_large"
    await caller.aclose(service)


async def test_requests_that_no_client_makes_are_refused(caller: Caller) -> None:
    service = caller.service()
    deep = b'{"input_file_id":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    for method, body, query in (
        ("POST", deep, b""),
        ("GET", b"", b"limit=" + b"1" * 5000),
        ("GET", b"", "limit=\u0663".encode()),
    ):
        found = await caller.ask(service, method, "/v1/batches", body, query)
        assert found["error"]["code"] == "invalid_request"
    await caller.aclose(service)
