"""Replaying Gemini's answers, and writing them as they come, to Google's own client."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.errors import Overloaded
from headstart.types import (
    Choice,
    Completion,
    Ended,
    ErrorReported,
    Finished,
    ReasoningDelta,
    Started,
    Text,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)
from support.events import events_of
from support.gemini_stream import DIALECT, USAGE, chunk, collected, event, events_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.types import StreamEvent

CALL: dict[str, Any] = {
    "functionCall": {"name": "f", "args": {"city": "Oslo"}},
    "thoughtSignature": "c2ln",
}
THOUGHT = {"text": "Hm.", "thought": True}
CODE = {"executableCode": {"language": "PYTHON", "code": "print(1)"}}
LAST = {"text": "", "thoughtSignature": "c2ln"}
GROUNDED = {"groundingMetadata": {"webSearchQueries": ["q"]}}
LOGPROBS = {"chosenCandidates": [{"token": "Hi", "logProbability": -0.1}]}
FOREIGN: list[StreamEvent] = [
    Started(id="x", model="claude"),
    TextDelta(text=""),
    ReasoningDelta(text="Hm.", field="thought"),
    TextDelta(text="Let me look."),
    ToolCallDelta(index=0, id="toolu_1", name="f", arguments='{"city":\n '),
    ToolCallDelta(index=1, id="toolu_2", name="g"),
    ToolCallDelta(index=0, arguments='"Oslo"}'),
    Finished(reason="tool_calls", native="tool_use"),
    UsageReported(usage=USAGE),
    Ended(),
]


def answer(*parts: dict[str, Any], **beside: Any) -> dict[str, Any]:
    content = {"parts": list(parts), "role": "model"}
    return {
        "responseId": "r1",
        "candidates": [{"content": content, "finishReason": "STOP", **beside, "index": 0}],
        "usageMetadata": USAGE,
        "modelVersion": "gemini-2.5-flash",
    }


@pytest.mark.parametrize(
    "document",
    [
        answer({"text": "Hello"}),
        answer({"text": "Hello"}, {"text": "again"}),
        answer(THOUGHT, {"text": "Hello"}, CALL, CALL),
        answer(CODE, {"text": "Hello", "thoughtSignature": "c2ln"}, LAST),
        answer({**CALL, "functionCall": {**CALL["functionCall"], "id": "mine", "new": 1}}),
        answer({"text": "Hello"}, logprobsResult=LOGPROBS, **GROUNDED),
        answer({"text": "Hello"}, finishReason="OF_TOMORROW", finishMessage="later"),
        {**answer({"text": "Hello"}), "promptFeedback": {}, "createTime": "2026-01-01T00:00:00Z"},
        {"responseId": "r1", "promptFeedback": {"blockReason": "SAFETY"}, "modelVersion": "m"},
    ],
)
def test_a_whole_answer_is_replayed_field_by_field(document: dict[str, Any]) -> None:
    completion = collected(DIALECT.decode_body(200, json.dumps(document).encode()))
    stored = msgspec.json.decode(msgspec.json.encode(completion), type=Completion)
    rendered = DIALECT.render(stored)
    assert json.loads(rendered.json("r1", 0)) == document
    replay = collected(events_in(rendered.sse("r1", 0, include_usage=True)))
    joined = [
        "".join(p.text for p in c.choices[0].parts if isinstance(p, Text))
        for c in (replay, completion)
    ]
    assert joined[0] == joined[1]
    assert replay.usage == completion.usage
    assert replay.extra == completion.extra
    assert replay.choices[0].beside == completion.choices[0].beside
    assert rendered.nbytes > 0


@pytest.mark.parametrize(
    "raw",
    [
        chunk({"text": "Hello"}) + chunk({"text": " you"}) + chunk({"text": ""}, finish="STOP"),
        chunk(THOUGHT) + chunk({"text": "x" * 900}) + chunk(CALL) + chunk(CALL, finish="STOP"),
        chunk(CODE) + chunk({"text": "So:"}) + chunk(LAST, finish="MAX_TOKENS", modelStatus={}),
        event(promptFeedback={"blockReason": "SAFETY"}),
    ],
)
def test_a_stream_survives_storage_and_replay(raw: bytes) -> None:
    completion = collected(events_in(raw))
    assert collected(events_of(completion)) == completion
    rendered = DIALECT.render(completion)
    assert collected(events_in(rendered.sse("r1", 0, include_usage=True))) == completion
    body = collected(DIALECT.decode_body(200, rendered.json("r1", 0)))
    assert body == completion


def test_candidates_are_told_apart() -> None:
    choices = tuple(Choice(index=n, parts=(Text(text=f"No. {n}"),), finish="stop") for n in (0, 1))
    completion = Completion(model="m", choices=choices, created=0)
    replay = collected(events_in(DIALECT.render(completion).sse("r", 0, include_usage=True)))
    assert [choice.parts for choice in replay.choices] == [choice.parts for choice in choices]


def test_events_of_other_dialects_are_written_as_they_come() -> None:
    encoder = DIALECT.encoder("r9", 0, include_usage=False)
    pieces = [encoder.feed([each]) for each in FOREIGN]
    assert [bool(piece) for piece in pieces] == [False, False, True, True, *[False] * 5, True]
    assert encoder.feed([TextDelta(text="more"), Ended()]) == b""
    chunks = [json.loads(piece[6:]) for piece in pieces if piece]
    assert all(piece.count(b"\n") == 2 for piece in pieces if piece)
    (last,) = chunks[-1]["candidates"]
    assert last["content"]["parts"] == [
        {"functionCall": {"id": "toolu_1", "name": "f", "args": {"city": "Oslo"}}},
        {"functionCall": {"id": "toolu_2", "name": "g", "args": {}}},
    ]
    assert last["finishReason"] == "STOP"
    assert chunks[-1]["usageMetadata"] == USAGE
    assert {each["responseId"] for each in chunks} == {"r9"}


def test_an_encoder_goes_on_where_a_client_already_is() -> None:
    straight = DIALECT.encoder("r9", 0, include_usage=True)
    wanted = [straight.feed([each]) for each in FOREIGN]
    later = DIALECT.encoder("r9", 0, include_usage=True)
    later.feed(FOREIGN[:4])
    assert [later.feed([each]) for each in FOREIGN[4:]] == wanted[4:]


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", "7"])
def test_arguments_that_are_not_an_object_are_wrapped(arguments: str) -> None:
    encoder = DIALECT.encoder("r", 0, include_usage=False)
    call = ToolCallDelta(index=0, id="c", name="f", arguments=arguments)
    raw = encoder.feed([call, Finished(reason="tool_calls"), Ended()])
    (part,) = json.loads(raw[6:])["candidates"][0]["content"]["parts"]
    assert part["functionCall"]["args"] == {"INVALID_JSON": arguments}


def test_our_errors_name_the_request() -> None:
    error = json.loads(DIALECT.error_body(Overloaded("busy"), "req-1"))["error"]
    assert (error["code"], error["status"]) == (429, "RESOURCE_EXHAUSTED")
    assert error["details"][0]["requestId"] == "req-1"
    data, bare = DIALECT.error_frame(ErrorReported(message="gone", status=502), "r").split(b"\n\n")
    (event_,) = events_in(data + b"\n\n")
    assert event_ == ErrorReported(message="gone", code="INTERNAL", status=502)
    assert data == b"data: " + bare.rstrip(), "Google's client for Go wants it without data"


# --- Google's own client ---------------------------------------------------------------------


@contextmanager
def google_client(status: int, content_type: str, body: bytes) -> Iterator[Any]:
    """Yield a client whose provider always gives the same answer."""
    genai = pytest.importorskip("google.genai")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Stay quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield genai.Client(api_key="k", http_options={"base_url": url})
        finally:
            server.shutdown()
            thread.join()


def heard(raw: bytes) -> list[Any]:
    with google_client(200, "text/event-stream", raw) as client:
        return list(client.models.generate_content_stream(model="m", contents="Hi"))


@pytest.mark.filterwarnings("ignore")
def test_googles_client_hears_a_replay() -> None:
    completion = collected(
        events_in(chunk(THOUGHT) + chunk({"text": "Hello " * 90}) + chunk(CALL, finish="STOP"))
    )
    rendered = DIALECT.render(completion)
    chunks = heard(rendered.sse("r1", 0, include_usage=True))
    with google_client(200, "application/json", rendered.json("r1", 0)) as client:
        whole = client.models.generate_content(model="m", contents="Hi")
    parts = [part for each in chunks for part in each.candidates[0].content.parts]
    assert "".join(part.text for part in parts if part.text and not part.thought) == "Hello " * 90
    assert [part.text for part in parts if part.thought] == ["Hm."]
    for calls in (chunks[-1].function_calls, whole.function_calls):
        assert [(call.id, call.name, call.args) for call in calls] == [
            (None, "f", {"city": "Oslo"})
        ]
    assert parts[-1].thought_signature == b"sig"
    assert chunks[-1].candidates[0].finish_reason.value == "STOP"
    assert chunks[-1].usage_metadata.total_token_count == 10
    assert whole.usage_metadata == chunks[-1].usage_metadata
    assert whole.response_id == chunks[0].response_id == "r1"


@pytest.mark.filterwarnings("ignore")
def test_googles_client_hears_another_providers_stream() -> None:
    encoder = DIALECT.encoder("r9", 0, include_usage=True)
    chunks = heard(b"".join(encoder.feed([each]) for each in FOREIGN))
    assert "".join(each.text or "" for each in chunks) == "Let me look."
    assert [call.args for call in chunks[-1].function_calls] == [{"city": "Oslo"}, {}]
    assert chunks[-1].model_version == "claude"


@pytest.mark.filterwarnings("ignore")
def test_googles_client_raises_our_errors() -> None:
    errors = pytest.importorskip("google.genai.errors")
    body = DIALECT.error_body(ErrorReported(message="no", status=400, code="bad"), "req-1")
    with (
        google_client(400, "application/json", body) as client,
        pytest.raises(errors.ClientError, match="no") as raised,
    ):
        client.models.generate_content(model="m", contents="Hi")
    assert raised.value.status == "INVALID_ARGUMENT"
    frame = DIALECT.error_frame(ErrorReported(message="gone", status=502), "req-1")
    with pytest.raises(errors.ServerError, match="gone"):
        heard(chunk({"text": "Hello"}) + frame)
