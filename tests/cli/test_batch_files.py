"""The files of ``headstart batch``: its input, its journal, and the order of requests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headstart.errors import ConfigError
from headstart.middleware.batches.journal import (
    BatchJournal,
    BatchRequest,
    BatchResult,
    in_prefix_order,
    output_row,
    read_requests,
)
from headstart.middleware.batches.run import BatchReply, error_text


def read(*rows: dict[str, Any], model: str | None = "m") -> list[BatchRequest]:
    return read_requests([json.dumps(row).encode() for row in rows], model)


def result(request: BatchRequest, status: int = 200, text: str = "a") -> BatchResult:
    row = output_row(request, "ID", status, json.dumps({"text": text}).encode())
    return BatchResult(
        place=request.place, outcome="miss", succeeded=status == 200, usd=0.5, row=row
    )


def test_openai_batches_are_read() -> None:
    body = {"model": "gpt", "input": "hello"}
    [request] = read({"custom_id": "x", "method": "POST", "url": "/v1/responses", "body": body})
    assert (request.custom_id, request.path) == ("x", "/v1/responses")
    assert json.loads(request.body) == body


def test_the_short_form_is_a_chat() -> None:
    [one, other] = read({"id": 7, "prompt": "hello", "temperature": 0}, {"prompt": "bye"})
    assert (one.custom_id, other.custom_id) == ("7", "line-2")
    messages = [{"role": "user", "content": "hello"}]
    assert json.loads(one.body) == {"model": "m", "temperature": 0, "messages": messages}


def test_a_request_keeps_its_own_model() -> None:
    [request] = read({"prompt": "hello", "model": "mine"})
    assert json.loads(request.body)["model"] == "mine"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": "x"}, "line 2: it has neither body"),
        ({"body": []}, "line 2: body: it is not a JSON object"),
        ({"body": {}, "method": "GET"}, "line 2: method"),
        ({"body": {}, "url": "/admin"}, "line 2: url: '/admin'"),
        ({"prompt": "x", "stream": True}, "line 2: stream"),
        ({"id": "first", "prompt": "x"}, "line 2: the id 'first' is also that of line 1"),
    ],
)
def test_a_wrong_line_is_named_before_anything_is_asked(row: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read({"id": "first", "prompt": "x"}, row)


def test_lines_of_plain_text_are_told_what_a_line_is() -> None:
    with pytest.raises(ConfigError, match=r"line 1: .*each line is a JSON object"):
        read_requests([b"Who am I?"], "m")


def test_a_request_without_a_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="--model"):
        read({"prompt": "x"}, model=None)


def test_requests_that_begin_alike_are_neighbours() -> None:
    def chat(system: str, question: str) -> dict[str, Any]:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        return {"messages": messages}

    rows = [chat("B", "2"), chat("A", "2"), chat("B", "1"), chat("A", "1")]
    assert [each.place for each in in_prefix_order(read(*rows))] == [3, 1, 2, 0]


def test_the_journal_remembers_what_succeeded(tmp_path: Path) -> None:
    requests = read({"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"})
    journal = BatchJournal(tmp_path / "j", requests)
    journal.add(result(requests[1], text="old", status=500))
    journal.add(result(requests[2]))
    journal.close()

    journal = BatchJournal(tmp_path / "j", requests)
    assert [journal.succeeded(place) for place in range(3)] == [False, False, True]
    journal.add(result(requests[1], text="new"))
    journal.add(result(requests[0]))
    journal.write_output(tmp_path / "out")
    journal.close(delete=True)
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == ["line-1", "line-2", "line-3"]
    assert [row["response"]["body"]["text"] for row in rows] == ["a", "new", "a"]
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only some systems have a full disk")
def test_an_output_that_fills_the_disk_leaves_no_part_of_it(tmp_path: Path) -> None:
    requests = read({"prompt": "a"})
    journal = BatchJournal(tmp_path / "j", requests)
    journal.add(result(requests[0]))
    (tmp_path / "out.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        journal.write_output(tmp_path / "out")
    journal.close()
    assert [each.name for each in tmp_path.iterdir()] == ["j"]


def test_a_cut_last_line_is_dropped(tmp_path: Path) -> None:
    requests = read({"prompt": "a"}, {"prompt": "b"})
    journal = BatchJournal(tmp_path / "j", requests)
    for each in requests:
        journal.add(result(each))
    journal.close()
    whole = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(whole[:-20])

    journal = BatchJournal(tmp_path / "j", requests)
    assert [journal.succeeded(place) for place in range(2)] == [True, False]
    journal.add(result(requests[1]))
    journal.close()
    assert (tmp_path / "j").read_bytes() == whole


def test_the_journal_of_other_requests_is_refused(tmp_path: Path) -> None:
    BatchJournal(tmp_path / "j", read({"prompt": "a"})).close()
    with pytest.raises(ConfigError, match="journal of other requests"):
        BatchJournal(tmp_path / "j", read({"prompt": "b"}))


def test_two_processes_cannot_work_on_one_batch(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from headstart.middleware.batches.journal import *\n"
        "BatchJournal(Path(sys.argv[1]), [])"
    )
    journal = BatchJournal(tmp_path / "j", [])
    words = [sys.executable, "-c", code, str(tmp_path / "j")]
    other = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    journal.close()
    assert "another process works on this batch" in other.stderr


# Python 3.14 decodes what fits into its stack of some megabytes.
@pytest.mark.parametrize("body", ["<html>", "[" * 500_000 + "]" * 500_000], ids=["html", "deep"])
def test_an_answer_that_cannot_be_read_is_a_text(body: str) -> None:
    [request] = read({"prompt": "a"})
    row = json.loads(bytes(output_row(request, "ID", 502, body.encode())))
    assert row["response"] == {"status_code": 502, "request_id": "ID", "body": body}


def test_an_error_that_is_nested_too_deeply_has_no_message() -> None:
    body = b'{"error":' * 20_000 + b"1" + b"}" * 20_000
    assert error_text(BatchReply(400, (), body)) == "status 400"
