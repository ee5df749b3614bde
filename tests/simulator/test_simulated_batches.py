"""The simulator's batch endpoints, asked by the official SDKs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anthropic
import openai
import pytest
from openai.types import Batch, BatchRequestCounts
from openai.types.chat import ChatCompletion

from headstart.lab.simulator import Simulator
from support.serving import serving_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator


CHAT = "/v1/chat/completions"


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def url(clock: Clock) -> Iterator[str]:
    with serving_in_thread(Simulator("instant", clock=clock), lifespan="off") as url:
        yield url


def line(id: str, text: str, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {
        "custom_id": id, "method": "POST", "url": CHAT,
        "body": {"model": "gpt-4o", "messages": messages, **body},
    }  # fmt: skip


def submit(client: openai.OpenAI, *rows: dict[str, Any]) -> Batch:
    data = "\n".join(map(json.dumps, rows)).encode()
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    assert client.files.content(file.id).read() == data
    return client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"mark": "x"},
    )


def test_openai_batches(url: str, clock: Clock) -> None:
    with openai.OpenAI(api_key="sk-a", base_url=f"{url}/v1", max_retries=0) as client:
        made = submit(client, line("a", "Where is Rome?"), line("b", "Grüße", n=1000))
        assert (made.status, made.metadata) == ("in_progress", {"mark": "x"})
        clock.now += 61
        done = client.batches.retrieve(made.id)
        assert done.status == "completed"
        assert done.request_counts == BatchRequestCounts(completed=1, failed=1, total=2)
        assert done.output_file_id
        assert done.error_file_id
        [good] = client.files.content(done.output_file_id).text.splitlines()
        answer = json.loads(good)
        body = ChatCompletion.model_validate(answer["response"]["body"])
        direct = client.chat.completions.create(**line("a", "Where is Rome?")["body"])
        assert body.choices[0].message.content == direct.choices[0].message.content
        [bad] = client.files.content(done.error_file_id).text.splitlines()
        assert json.loads(bad)["response"]["status_code"] == 400
        assert [each.id for each in client.batches.list()] == [made.id]


def test_a_wrong_file_fails_its_batch(url: str) -> None:
    with openai.OpenAI(api_key="sk-a", base_url=f"{url}/v1", max_retries=0) as client:
        other = line("b", "x", model="gpt-5")
        failed = submit(client, line("a", "x"), other, line("a", "y"))
        assert failed.status == "failed"
        assert failed.errors
        assert [each.code for each in failed.errors.data or ()] == [
            "mismatched_model", "duplicate_custom_id",
        ]  # fmt: skip


def test_lists_have_pages_and_belong_to_a_key(url: str) -> None:
    with openai.OpenAI(api_key="sk-a", base_url=f"{url}/v1", max_retries=0) as client:
        made = [submit(client, line("a", f"{n}")).id for n in range(5)]
        assert [each.id for each in client.batches.list(limit=2)] == made[::-1]
        cancelled = client.batches.cancel(made[0])
        assert cancelled.status == "cancelled"
        stranger = client.with_options(api_key="sk-b")
        assert list(stranger.batches.list()) == []
        with pytest.raises(openai.NotFoundError):
            stranger.batches.retrieve(made[0])


def test_anthropic_batches(url: str, clock: Clock) -> None:
    def asked(id: str, **params: Any) -> Any:
        messages = [{"role": "user", "content": f"Where is {id}?"}]
        params = {"model": "claude-opus-5", "max_tokens": 50, "messages": messages, **params}
        return {"custom_id": id, "params": params}

    with anthropic.Anthropic(api_key="sk-a", base_url=url, max_retries=0) as client:
        batches = client.messages.batches
        made = batches.create(requests=[asked("rome"), asked("oslo", top_p="x")])
        assert (made.processing_status, made.request_counts.processing) == ("in_progress", 2)
        clock.now += 61
        done = batches.retrieve(made.id)
        assert (done.processing_status, done.request_counts.errored) == ("ended", 1)
        good, bad = batches.results(made.id)
        assert good.result.type == "succeeded"
        assert good.result.message.content[0].type == "text"
        assert bad.result.type == "errored"
        assert bad.result.error.error.type == "invalid_request_error"
        later = batches.create(requests=[asked("lima")])
        assert [each.id for each in batches.list(limit=1)] == [later.id, made.id]
        with pytest.raises(anthropic.BadRequestError, match="custom_id"):
            batches.create(requests=[asked("no spaces")])
        with pytest.raises(anthropic.BadRequestError, match="custom_id"):
            client.post("/v1/messages/batches", body={"requests": [1]}, cast_to=object)
