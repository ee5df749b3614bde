"""The command without what only Linux and macOS have (``support.windows``)."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headstart.__main__ import main
from headstart.lab.simulator import Simulator
from headstart.middleware.concurrency import replace_file
from headstart.sockets import reason_of
from support.serving import serving_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator


WINDOWS = [sys.executable, "-m", "support.windows"]


def variables() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*WINDOWS, *arguments],
        cwd=folder, env=variables(), capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip


@pytest.fixture
def provider() -> Iterator[str]:
    """The URL of a provider."""
    with serving_in_thread(Simulator("instant"), lifespan="off") as url:
        yield url


@contextlib.contextmanager
def sidecar(folder: Path, upstream: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a server and its URL."""
    options = ["--upstream", f"{upstream}/v1", "--port", "0", "--workers", "auto"]
    with subprocess.Popen(
        [*WINDOWS, "serve", *options], cwd=folder, env=variables(), stdout=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        said = process.stdout.readline()
        yield process, said.split()[4]
        process.kill()


def ask(url: str, question: str, **fields: Any) -> tuple[str, bytes]:
    """Return the cache's verdict, and the answer."""
    document = {"model": "m", "messages": [{"role": "user", "content": question}], **fields}
    headers = {"content-type": "application/json", "authorization": "Bearer a"}
    asked = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(document).encode(), headers
    )
    with urllib.request.urlopen(asked, timeout=60) as reply:
        return reply.headers["cache-status"], reply.read()


def test_all_modules_load(tmp_path: Path) -> None:
    done = run(tmp_path, "import-all")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_sidecar_serves_hits_misses_and_streams_and_ends_on_ctrl_c(
    tmp_path: Path, provider: str
) -> None:
    with sidecar(tmp_path, provider) as (process, url):
        answers = [ask(url, "Where is Oslo?") for _ in range(2)]
        assert "fwd=miss" in answers[0][0]
        assert "hit" in answers[1][0]
        streams = [ask(url, "Where is Rome?", stream=True) for _ in range(2)]
        assert "fwd=miss" in streams[0][0]
        assert "hit" in streams[1][0]
        assert all(body.endswith(b"data: [DONE]\n\n") for _, body in streams)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    with sidecar(tmp_path, provider) as (_, url):  # the store has kept the answers
        assert "hit" in ask(url, "Where is Oslo?")[0]


def test_several_workers_are_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "serve", "--upstream", "http://127.0.0.1:9", "--workers", "2")
    assert done.returncode == 2
    assert "server.workers: on Windows a server has one process; set 1" in done.stderr


def test_a_batch_is_answered_and_its_journal_deleted(tmp_path: Path, provider: str) -> None:
    (tmp_path / "headstart.toml").write_text(
        f'[[upstream]]\npreset = "openai"\nbase_url = "{provider}/v1"\napi_key_env = []\n'
    )
    (tmp_path / "asked.jsonl").write_text("".join(f'{{"prompt": "Place {n}"}}\n' for n in range(3)))
    done = run(tmp_path, "batch", "asked.jsonl", "--model", "gpt-4o", "--output", "out.jsonl")
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3
    assert not (tmp_path / "out.jsonl.journal").exists()


def test_a_file_that_somebody_reads_is_replaced_a_moment_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    part, place = tmp_path / "part", tmp_path / "place"
    part.write_text("new")
    replace, tries = Path.replace, []

    def refuse_at_first(self: Path, target: Path) -> Path:
        tries.append(target)
        if len(tries) < 3:
            raise PermissionError
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", refuse_at_first)
    replace_file(part, place)
    assert place.read_text() == "new"


@pytest.mark.parametrize(
    ("code", "windows_code", "words"),
    [(22, 1225, "error 1225"), (10061, None, "error 10061"), (13, None, "Permission denied")],
)
def test_errors_of_connections_have_the_words_of_windows(
    monkeypatch: pytest.MonkeyPatch, code: int, windows_code: int | None, words: str
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "FormatError", "error {}.".format, raising=False)
    error: Any = OSError(code, "of a library")
    error.winerror = windows_code
    assert reason_of(error) == words


def test_output_to_a_pipe_is_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.BytesIO()
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(pipe, encoding="cp1252"))
    with pytest.raises(SystemExit):
        main(["serve", "--config", "Zoë-你好.toml"])
    sys.stderr.flush()
    assert "Zoë-你好.toml" in pipe.getvalue().decode()


def test_doctor_leaves_out_what_windows_does_not_tell(tmp_path: Path, provider: str) -> None:
    done = run(tmp_path, "doctor", "--upstream", f"{provider}/v1", "--port", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "files" not in done.stdout
