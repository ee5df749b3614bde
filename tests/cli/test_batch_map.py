"""``headstart batch --map``: a long document becomes many calls, and one answer."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from headstart.compression.tokens import count_tokens
from headstart.errors import ConfigError
from headstart.lab.simulator import Simulator
from headstart.middleware.batches.documents import MapOptions, group_answers, split_document
from headstart.middleware.batches.journal import BatchJournal, read_requests
from headstart.middleware.respond import send_whole
from support.command import COMMAND, run
from support.serving import serving_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.types import Receive, Scope, Send

DOCS = Path(__file__).parents[2] / "docs"


def tokens(text: str) -> int:
    return count_tokens(text, "gpt-4o").tokens


# --- parts -----------------------------------------------------------------------------------

TEXTS = {
    "a page": (DOCS / "configuration.md").read_text(),
    "prose": (DOCS / "safe-hits.md").read_text().replace("\n\n", " "),
    "no white space": "長い文章です。" * 400,
    "one word": "x" * 5000,
    "windows": (DOCS / "batch.md").read_text().replace("\n", "\r\n"),
}


@pytest.mark.parametrize("most", [40, 300, 2000])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_parts_are_the_whole_text_and_fit(text: str, most: int) -> None:
    parts = split_document(text, most, tokens)
    assert "".join(parts) == text
    assert max(map(tokens, parts)) <= most


def test_a_text_is_cut_at_paragraphs_where_they_fit() -> None:
    paragraphs = [f"Paragraph {n} says little. It ends here." for n in range(40)]
    parts = split_document("\n\n".join(paragraphs), 50, tokens)
    assert 1 < len(parts) < 40
    assert [line for part in parts for line in part.strip().split("\n\n")] == paragraphs


def test_a_long_paragraph_is_cut_at_its_sentences() -> None:
    sentences = [f"Sentence {n} of Dr. Who has some words." for n in range(40)]
    parts = split_document(" ".join(sentences), 50, tokens)
    assert len(parts) > 1
    assert all(part.strip().startswith("Sentence") and part.strip()[-1] == "." for part in parts)


@pytest.mark.parametrize("most", [1, 10, 1000])
def test_grouping_always_leaves_fewer_answers(most: int) -> None:
    texts = [f"answer {n} " * 10 for n in range(9)]
    groups = group_answers(texts, most, tokens)
    assert [text for group in groups for text in group] == texts
    assert len(groups) < len(texts)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "Sum up:"}, "line 1: text: --map needs a text or a list"),
        ({"prompt": "Sum up:", "text": " \n"}, "line 1: text: --map needs"),
        ({"prompt": "Sum up:", "text": []}, "line 1: text: --map needs"),
        (
            {"url": "/v1/embeddings", "body": {"input": "a"}, "text": "b"},
            "line 1: --map: requests of /v1/embeddings cannot be split",
        ),
        ({"body": {"messages": []}, "text": "b"}, "line 1: --map: the request has no last message"),
    ],
)
def test_a_line_that_cannot_be_split_is_named(row: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_requests([json.dumps(row).encode()], "m", "text")


def test_another_reduce_prompt_is_another_batch(tmp_path: Path) -> None:
    requests = read_requests([b'{"prompt": "Sum up:", "text": "a"}'], "m", "text")
    BatchJournal(tmp_path / "j", requests, options(reduce="One")).close()
    BatchJournal(tmp_path / "j", requests, options(reduce="One")).close()
    with pytest.raises(ConfigError, match="journal of other requests"):
        BatchJournal(tmp_path / "j", requests, options(reduce="Two"))


def options(reduce: str) -> MapOptions:
    return MapOptions(field="text", reduce=reduce, chunk_tokens=100)


# --- the command -----------------------------------------------------------------------------


class Clerk:
    """A provider that does what the prompt says: count words, add numbers, write in capitals."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.systems: list[str] = []
        self.refused = ""
        """A prompt with this text is refused."""
        self.delay_s = 0.0
        self._lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message["body"]
            if not message["more_body"]:
                break
        *system, last = json.loads(body)["messages"]
        prompt, _, text = last["content"].partition("\n\n")
        with self._lock:
            self.asked.append(last["content"])
            self.systems += [each["content"] for each in system]
        await anyio.sleep(self.delay_s)
        if self.refused and self.refused in text:
            error = json.dumps({"error": {"message": "this text is not allowed"}}).encode()
            return await send_whole(send, 400, ((b"content-type", b"application/json"),), error)
        found = {
            "Count:": lambda: str(len(text.split())),
            "Add:": lambda: str(sum(map(int, text.split()))),
            "Capitals:": text.upper,
            "Long:": lambda: f"{text[:10]} " * 40,
        }[prompt]()
        choice = {"index": 0, "message": {"role": "assistant", "content": found}}
        answer = {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "gpt-4o",
            "choices": [{**choice, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11},
        }
        await send_whole(
            send, 200, ((b"content-type", b"application/json"),), json.dumps(answer).encode()
        )


@pytest.fixture
def clerk() -> Iterator[Clerk]:
    found = Clerk()
    with serving_in_thread(found, lifespan="off") as url:
        found.url = url  # type: ignore[attr-defined]
        yield found


def prepare(folder: Path, url: str, *rows: dict[str, Any]) -> list[str]:
    upstream = f'[[upstream]]\npreset = "openai"\nbase_url = "{url}/v1"\napi_key_env = []\n'
    cache = '[cache]\nstore = "memory:"\naudit = { mode = "off" }\n\n'
    (folder / "headstart.toml").write_text(cache + upstream)
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = str(folder / "headstart.toml")
    words = ["batch", str(folder / "in.jsonl"), "--model", "gpt-4o", "--config", config, "--json"]
    return [*words, "--map", "text"]


def bodies_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "in.out.jsonl").read_text().splitlines()
    return [json.loads(line)["response"]["body"] for line in lines]


def test_answers_to_parts_are_joined_in_order(
    tmp_path: Path, clerk: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    paragraphs = [f"This is paragraph {n} of a book." for n in range(30)]
    row = {"id": "book", "prompt": "Capitals:", "text": "\n\n".join(paragraphs)}
    arguments = [*prepare(tmp_path, clerk.url, row), "--chunk-tokens", "32"]
    status, summary = run(arguments, capsys)
    assert (status, summary["requests"], summary["outcomes"]) == (0, 1, {"miss": 1})
    assert summary["calls"] == len(clerk.asked) > 5
    [body] = bodies_of(tmp_path)
    answer = ChatCompletion.model_validate(body)
    assert answer.choices[0].message.content is not None
    assert answer.choices[0].message.content.split() == " ".join(paragraphs).upper().split()
    assert answer.usage is not None
    assert answer.usage.total_tokens == 11 * len(clerk.asked)


def test_a_list_gives_a_list_and_equal_items_are_asked_once(
    tmp_path: Path, clerk: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    items = ["one", "two words", "one", {"three": "words here"}]
    arguments = prepare(tmp_path, clerk.url, {"prompt": "Count:", "text": items})
    assert run(arguments, capsys)[0] == 0
    [body] = bodies_of(tmp_path)
    assert json.loads(body["choices"][0]["message"]["content"]) == ["1", "2", "1", "2"]
    assert len(clerk.asked) == 3


def test_answers_that_do_not_fit_are_reduced_in_a_tree(
    tmp_path: Path, clerk: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (DOCS / "configuration.md").read_text()
    messages = [
        {"role": "system", "content": "You are exact."},
        {"role": "user", "content": "Count:"},
    ]
    row = {"body": {"messages": messages}, "text": text}
    arguments = prepare(tmp_path, clerk.url, row)
    status, _ = run([*arguments, "--reduce", "Add:", "--chunk-tokens", "100"], capsys)
    assert status == 0
    [body] = bodies_of(tmp_path)
    # A part may begin within a line, so words are never cut: the sum is that of the text.
    assert body["choices"][0]["message"]["content"] == str(len(text.split()))
    adding = [each for each in clerk.asked if each.startswith("Add:")]
    assert len(adding) > 3
    assert set(clerk.systems) == {"You are exact."}


def test_long_answers_are_reduced_until_one_is_left(
    tmp_path: Path, clerk: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"prompt": "Long:", "text": [f"item {n}" for n in range(5)]}
    arguments = prepare(tmp_path, clerk.url, row)
    status, summary = run([*arguments, "--reduce", "Long:", "--chunk-tokens", "16"], capsys)
    assert (status, summary["requests"]) == (0, 1)
    assert len(clerk.asked) <= 5 + 3 + 2 + 1


def test_a_part_that_fails_fails_its_request_alone(
    tmp_path: Path, clerk: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"prompt": "Count:", "text": ["a b", "bad", "c"]},
        {"prompt": "Count:", "text": ["a b", "good"]},
    ]
    clerk.refused = "bad"
    arguments = prepare(tmp_path, clerk.url, *rows)
    status, summary = run(arguments, capsys)
    assert (status, summary["failed"], summary["outcomes"]) == (1, 1, {"miss": 1})
    failed, answered = bodies_of(tmp_path)
    assert failed["error"]["message"] == "part 2 of 3: 400: this text is not allowed"
    assert json.loads(answered["choices"][0]["message"]["content"]) == ["2", "1"]

    clerk.refused, asked = "", Counter(clerk.asked)
    status, summary = run(arguments, capsys)
    assert (status, summary["outcomes"], summary["resumed"]) == (0, {"miss": 2}, 1)
    again = Counter(clerk.asked) - asked
    assert again["Count:\n\nbad"] == 1
    assert again["Count:\n\na b"] == 0
    assert json.loads(bodies_of(tmp_path)[0]["choices"][0]["message"]["content"])[1] == "1"


def test_a_killed_batch_keeps_the_parts_that_were_answered(
    tmp_path: Path, clerk: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    clerk.delay_s = 0.1
    row = {"prompt": "Count:", "text": [f"{n} " * (n + 1) for n in range(60)]}
    arguments = [*prepare(tmp_path, clerk.url, row), "--concurrency", "2", "--reduce", "Add:"]
    arguments += ["--chunk-tokens", "40"]
    journal = tmp_path / "in.out.jsonl.journal"
    with subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.DEVNULL) as process:
        while not journal.exists() or journal.read_bytes().count(b"\n") < 15:
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    kept = journal.read_bytes().count(b"\n") - 1
    clerk.delay_s = 0.0
    status, summary = run(arguments, capsys)
    assert (status, summary["requests"], summary["resumed"]) == (0, 1, 0)
    [body] = bodies_of(tmp_path)
    assert body["choices"][0]["message"]["content"] == str(sum(range(1, 61)))
    counted = [each for each in clerk.asked if each.startswith("Count:")]
    assert 60 <= len(counted) <= 60 + 2  # the calls that ran when it was killed are lost
    assert summary["calls"] < len(clerk.asked) - kept + 3


@pytest.mark.parametrize(
    ("path", "extra", "form"),
    [
        ("/v1/messages", {"max_tokens": 100}, Message),
        ("/v1/responses", {}, Response),
    ],
)
def test_other_apis_are_split_and_joined_in_their_own_form(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    path: str,
    extra: dict[str, Any],
    form: type[Message | Response],
) -> None:
    asked: Any = [{"role": "user", "content": "Sum up:"}]
    field = "input" if path.endswith("responses") else "messages"
    body = {**extra, field: asked}
    row = {"url": path, "body": body, "text": ["Rome", "Paris", "Oslo"]}
    with serving_in_thread(Simulator("instant"), lifespan="off") as url:
        arguments = prepare(tmp_path, url, row)
        config = tmp_path / "headstart.toml"
        preset = "anthropic" if field == "messages" else "openai"
        config.write_text(config.read_text().replace('"openai"', f'"{preset}"'))
        status, _ = run(arguments, capsys)
    [found] = bodies_of(tmp_path)
    assert status == 0, found
    answer = form.model_validate(found, strict=False)
    text = answer.output_text if isinstance(answer, Response) else answer.content[0].text  # type: ignore[union-attr]
    assert len(set(json.loads(text))) == 3
