"""``/v1/batches`` of the sidecar, asked by OpenAI's SDK."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pytest
from openai.types import Batch, BatchRequestCounts
from openai.types.chat import ChatCompletion

from headstart.config.loading import load_settings
from headstart.errors import ConfigError, InvalidRequest
from headstart.lab.simulator import Simulator
from headstart.middleware.asgi import not_found
from headstart.middleware.batches.journal import BatchFolder, UploadWriter
from headstart.middleware.batches.service import BatchService
from headstart.middleware.concurrency import Supervisor
from headstart.middleware.observers import Observers
from headstart.mount import build_gateway
from headstart.settings import BatchSettings
from support.serving import free_port, serving_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator


NOW = time.time()  # noqa: TID251 - the files of the system have its time
CHAT = "/v1/chat/completions"


def line(id: str, text: str, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {
        "custom_id": id, "method": "POST", "url": CHAT,
        "body": {"model": "gpt-4o", "messages": messages, **body},
    }  # fmt: skip


@pytest.fixture
def provider() -> Iterator[tuple[Simulator, str]]:
    simulator = Simulator("instant")
    with serving_in_thread(simulator, lifespan="off") as url:
        yield simulator, url


def calls(simulator: Simulator) -> int:
    return simulator.stats.snapshot().calls


@contextlib.contextmanager
def sidecar(folder: Path, url: str, **batches: Any) -> Iterator[str]:
    settings = load_settings(None, {}, {
        "upstream": [{"name": "p", "preset": "openai", "base_url": f"{url}/v1", "api_key_env": []}],
        "cache.store": f"sqlite:///{folder}/store.db",
        "cache.audit": {"mode": "off"},
        "batches.dir": str(folder / "batches"),
        **{f"batches.{name}": value for name, value in batches.items()},
    })  # fmt: skip
    app = build_gateway(settings, not_found, observers=Observers())
    with serving_in_thread(app) as served:
        yield served


@contextlib.contextmanager
def client_of(url: str, key: str = "sk-a") -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key=key, base_url=f"{url}/v1", max_retries=0) as client:
        yield client


def submit(client: openai.OpenAI, *rows: dict[str, Any], **metadata: str) -> Batch:
    data = "\n".join(map(json.dumps, rows)).encode()
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    assert (file.bytes, file.filename) == (len(data), "in.jsonl")
    return client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata=metadata,
    )


def ended(client: openai.OpenAI, id: str) -> Batch:
    until = time.monotonic() + 60
    while (batch := client.batches.retrieve(id)).status not in (
        "completed", "failed", "cancelled", "expired",
    ):  # fmt: skip
        assert time.monotonic() < until, batch
        time.sleep(0.05)
    return batch


def rows_of(client: openai.OpenAI, file: str | None) -> list[dict[str, Any]]:
    assert file is not None
    return [json.loads(each) for each in client.files.content(file).text.splitlines()]


def test_a_batch_runs_and_equal_requests_are_asked_once(
    tmp_path: Path, provider: tuple[Simulator, str]
) -> None:
    simulator, url = provider
    rows = [line(f"q{n}", f"Where is town {n % 5}, Grüße?") for n in range(20)]
    with sidecar(tmp_path, url) as served, client_of(served) as client:
        made = submit(client, *rows, project="towns")
        assert made.metadata == {"project": "towns"}
        done = ended(client, made.id)
        assert (done.status, done.errors, done.error_file_id) == ("completed", None, None)
        assert done.request_counts == BatchRequestCounts(completed=20, failed=0, total=20)
        assert calls(simulator) == 5
        found = rows_of(client, done.output_file_id)
        assert [row["custom_id"] for row in found] == [f"q{n}" for n in range(20)]
        texts = []
        for row in found:
            answer = ChatCompletion.model_validate(row["response"]["body"])
            texts.append(answer.choices[0].message.content)
        assert len(set(texts)) == 5

        # The cache is the same as that of single calls.
        again = client.chat.completions.create(**rows[0]["body"])
        assert (again.choices[0].message.content, calls(simulator)) == (texts[0], 5)


def test_errors_have_a_file_of_their_own(tmp_path: Path, provider: tuple[Simulator, str]) -> None:
    _, url = provider
    with sidecar(tmp_path, url) as served, client_of(served) as client:
        done = ended(client, submit(client, line("a", "x"), line("b", "y", n=1000)).id)
        assert done.request_counts == BatchRequestCounts(completed=1, failed=1, total=2)
        [good], [bad] = rows_of(client, done.output_file_id), rows_of(client, done.error_file_id)
        assert (good["custom_id"], bad["custom_id"]) == ("a", "b")
        assert bad["response"]["status_code"] == 400


def test_another_key_finds_nothing(tmp_path: Path, provider: tuple[Simulator, str]) -> None:
    _, url = provider
    with sidecar(tmp_path, url) as served, client_of(served) as client:
        done = ended(client, submit(client, line("a", "x")).id)
        assert done.output_file_id
        with client_of(served, "sk-b") as other:
            assert list(other.batches.list()) == []
            assert list(other.files.list()) == []
            for ask in (
                lambda: other.batches.retrieve(done.id),
                lambda: other.batches.cancel(done.id),
                lambda: other.files.content(str(done.output_file_id)),
                lambda: other.files.delete(done.input_file_id),
            ):
                with pytest.raises(openai.NotFoundError):
                    ask()
            with pytest.raises(openai.BadRequestError, match="no such file"):
                other.batches.create(
                    input_file_id=done.input_file_id,
                    endpoint="/v1/chat/completions",
                    completion_window="24h",
                )
        assert client.files.delete(done.input_file_id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(done.input_file_id)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"custom_id": "a"}], "line 1"),
        ([line("a", "x"), line("a", "y")], "line 2: the id 'a'"),
        ([{**line("a", "x"), "url": "/v1/embeddings"}], "is not the batch's endpoint"),
        ([line("a", "x", stream=True)], "stream"),
        ([], "no requests"),
    ],
)
def test_a_wrong_file_fails_its_batch(
    tmp_path: Path, provider: tuple[Simulator, str], rows: list[dict[str, Any]], message: str
) -> None:
    simulator, url = provider
    with sidecar(tmp_path, url) as served, client_of(served) as client:
        done = ended(client, submit(client, *rows).id)
        assert done.status == "failed"
        assert done.errors
        [error] = done.errors.data or []
        assert message in (error.message or "")
        assert calls(simulator) == 0


def test_a_batch_can_be_cancelled(tmp_path: Path) -> None:
    simulator = Simulator("openai", speed=5.0)
    rows = [line(f"q{n}", f"Where is town {n}?") for n in range(300)]
    with (
        serving_in_thread(simulator, lifespan="off") as url,
        sidecar(tmp_path, url, concurrency=2) as served,
        client_of(served) as client,
    ):
        made = submit(client, *rows)
        while not calls(simulator):
            time.sleep(0.02)
        assert client.batches.cancel(made.id).status == "cancelling"
        done = ended(client, made.id)
        assert done.status == "cancelled"
        assert done.request_counts
        answered = done.request_counts.completed
        assert answered == calls(simulator) < 300
        if answered:
            assert len(rows_of(client, done.output_file_id)) == answered
        with pytest.raises(openai.BadRequestError, match="cancelled"):
            client.batches.cancel(made.id)


def test_lists_have_pages(tmp_path: Path, provider: tuple[Simulator, str]) -> None:
    _, url = provider
    with sidecar(tmp_path, url) as served, client_of(served) as client:
        made = {submit(client, line("a", f"{n}")).id for n in range(5)}
        assert {each.id for each in client.batches.list(limit=2)} == made
        assert len(list(client.files.list(purpose="batch"))) == 5


def test_limits_are_kept(tmp_path: Path, provider: tuple[Simulator, str]) -> None:
    _, url = provider
    with sidecar(tmp_path, url, max_file_bytes=10_000, max_bytes=50_000) as served:
        with client_of(served) as client, pytest.raises(openai.APIStatusError) as refused:
            client.files.create(file=("in.jsonl", b"x" * 90_000), purpose="batch")
        assert refused.value.status_code == 413
        with client_of(served) as client, pytest.raises(openai.BadRequestError, match="purpose"):
            client.files.create(file=("in.jsonl", b"x"), purpose="assistants")
    assert [each for each in (tmp_path / "batches").rglob("*") if each.is_file()] == []


def test_old_files_are_deleted(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path)
    folder.prepare(NOW)
    for n in range(2):
        (tmp_path / "d").write_bytes(b"data")
        file = folder.keep(f"owner{n}", tmp_path / "d", "in.jsonl", "batch", NOW)
        if n == 0:
            for kind in ("json", "data"):
                os.utime(folder.path("owner0", file.id, kind), (1.0, 1.0))
    assert folder.used_bytes() > 0
    assert folder.sweep(NOW - 3600) == 2
    assert not list(folder.of("owner0").iterdir())
    assert folder.find("owner1", file.id, type(file)) == file
    assert folder.find("owner0", file.id, type(file)) is None
    assert folder.find("owner1", "../" + file.id, type(file)) is None


def test_a_clock_that_is_ahead_deletes_no_files_of_batches(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path)
    folder.prepare(NOW)
    for owner in ("old", "new"):
        (tmp_path / "d").write_bytes(b"data")
        file = folder.keep(owner, tmp_path / "d", "in.jsonl", "batch", NOW)
        for kind in ("json", "data") if owner == "old" else ():
            os.utime(folder.path(owner, file.id, kind), (1.0, 1.0))

    async def sweep() -> None:
        service = BatchService(
            BatchSettings(dir=str(tmp_path)),
            folder,
            not_found,
            owner=lambda _: None,
            spawn=Supervisor().spawn,
            clock=lambda: 1e11,
            request_id=str,
            body_timeout_s=None,
            check=lambda _: None,
        )
        while list(folder.of("old").iterdir()):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # the rest of the same look
        await service.aclose()

    asyncio.run(asyncio.wait_for(sweep(), 20))
    assert folder.find("new", file.id, type(file)) == file


@pytest.mark.parametrize("data", [b"", b"\r\n--x", b"--x--", "ü".encode(), b"a\r\n" * 9])
def test_the_data_of_a_form_comes_through(data: bytes, tmp_path: Path) -> None:
    form = (
        b'--bound\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--bound\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n'
        b"content-type: text/plain\r\n\r\n" + data + b"\r\n--bound--\r\n"
    )
    for size in (1, 7, len(form)):
        written = UploadWriter("multipart/form-data; boundary=bound", tmp_path / "data")
        with contextlib.closing(written):
            for start in range(0, len(form), size):
                written.write(form[start : start + size])
            written.write(b"")
        assert (tmp_path / "data").read_bytes() == data
        assert (written.filename, written.purpose) == ("a.jsonl", "batch")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only some systems have a full disk")
def test_an_upload_is_deleted_although_the_disk_is_full(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to("/dev/full")
    upload = UploadWriter("multipart/form-data; boundary=b", tmp_path / "data")
    field = b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\n'
    upload.write(field + b"x" * 100)  # it waits in a buffer
    upload.discard()
    assert not list(tmp_path.iterdir())


def test_the_name_of_a_file_may_be_of_any_language(tmp_path: Path) -> None:
    for told, name in (
        ('filename="ü.jsonl"'.encode(), "ü.jsonl"),
        (b"filename*=utf-8''%C3%BC.jsonl", "ü.jsonl"),
        (b"", "file"),
    ):
        upload = UploadWriter("multipart/form-data; boundary=b", tmp_path / "data")
        with contextlib.closing(upload):
            field = b'content-disposition: form-data; name="file"; ' + told
            upload.write(b"--b\r\n" + field + b"\r\n\r\n{}\r\n")
        assert upload.filename == name


@pytest.mark.parametrize(
    "form",
    [
        b"--b\r\nx: y\r\n\r\n\r\n" * 5000 + b"--b--",
        b'--b\r\ncontent-disposition: form-data; name="a"' + b';"' * 5000 + b"\r\n\r\n\r\n--b--",
    ],
    ids=["fields", "parameters"],
)
def test_a_form_that_is_expensive_to_read_is_refused(form: bytes, tmp_path: Path) -> None:
    upload = UploadWriter("multipart/form-data; boundary=b", tmp_path / "data")
    with contextlib.closing(upload), pytest.raises(InvalidRequest):
        upload.write(form)


def test_a_content_type_that_is_expensive_to_read_is_refused(tmp_path: Path) -> None:
    kind = 'multipart/form-data; boundary=b; x="' + ";" * 5000
    with pytest.raises(InvalidRequest, match="too long"):
        UploadWriter(kind, tmp_path / "data")


@pytest.mark.parametrize(
    "form",
    [
        b"",
        b"--b--",
        b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\n{}\r\n--b--',
        b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\n{}',
        b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\n{}\r\n' * 2 + b"--b--",
        b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n' * 2 + b"--b--",
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="\xfc"\r\n\r\n{}\r\n--b--',
    ],
    ids=["empty", "no field", "no purpose", "cut", "two files", "two purposes", "latin 1"],
)
def test_a_form_that_lacks_something_is_refused(form: bytes, tmp_path: Path) -> None:
    upload = UploadWriter("multipart/form-data; boundary=b", tmp_path / "data")
    with contextlib.closing(upload), pytest.raises(InvalidRequest):
        list(map(upload.write, (form, b"")))


def test_a_store_in_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"batches\.dir"):
        load_settings(None, {}, {"cache.store": "memory:", "batches.dir": str(tmp_path)})


SERVE = [sys.executable, "-m", "headstart", "serve"]


@contextlib.contextmanager
def served_process(config: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        [*SERVE, "--config", str(config), "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            with client_of(url) as client:
                for _ in range(600):
                    with contextlib.suppress(openai.APIConnectionError):
                        client.batches.list()
                        break
                    time.sleep(0.05)
            yield process, url
        finally:
            process.kill()


@pytest.mark.parametrize("ends_by", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "stop"])
def test_a_batch_survives_a_restart_and_asks_nothing_twice(
    tmp_path: Path, ends_by: signal.Signals
) -> None:
    simulator = Simulator("openai", speed=20.0)
    rows = [line(f"q{n}", f"Where is town {n}?") for n in range(120)]
    with serving_in_thread(simulator, lifespan="off") as url:
        config = tmp_path / "headstart.toml"
        config.write_text(
            f'[cache]\nstore = "sqlite:///{tmp_path}/store.db"\naudit = {{ mode = "off" }}\n'
            f'[batches]\ndir = "{tmp_path}/batches"\nconcurrency = 4\n'
            f'[[upstream]]\npreset = "openai"\nbase_url = "{url}/v1"\napi_key_env = []\n'
        )
        with served_process(config) as (process, served), client_of(served) as client:
            made = submit(client, *rows)
            while calls(simulator) < 20:
                time.sleep(0.02)
            process.send_signal(ends_by)
            process.wait(30)
        before = calls(simulator)
        assert before < 120
        [journal] = (tmp_path / "batches").rglob("*.journal")
        kept = journal.read_bytes().count(b"\n") - 1
        with served_process(config) as (process, served), client_of(served) as client:
            done = ended(client, made.id)
            assert (done.status, done.request_counts) == (
                "completed", BatchRequestCounts(completed=120, failed=0, total=120),
            )  # fmt: skip
            found = rows_of(client, done.output_file_id)
        assert [row["custom_id"] for row in found] == [f"q{n}" for n in range(120)]
        assert kept >= 10
        # Nobody can know the answers to the calls that ran when it was killed.
        assert calls(simulator) <= 120 + 4
