"""No request and no answer makes the code that reads it for the cache raise an error.

Each field of full requests and answers gets each odd value in turn, and pairs of fields any JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.openai_responses import OPENAI_RESPONSES
from headstart.errors import RequestError
from headstart.middleware.endpoints import Endpoint, EndpointTable
from headstart.middleware.identity import AcceptedCredentials, SharingOptions
from headstart.middleware.prepare import Preparer
from headstart.middleware.reading import SSEDecoder
from headstart.middleware.request_context import deadlines
from headstart.middleware.respond import fit
from headstart.policies.admission import Admission
from headstart.policies.agreement.judge import answer_text
from headstart.reply import Transcript
from headstart.types import CacheKey, ChatRequest, Choice, Completion, Ended, Entry, Origin, Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headstart.dialects.dialect import Dialect
    from headstart.types import StreamEvent

ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    10**40,
    "",
    "x",
    "data:;base64,@",
    [],
    [[]],
    [["a"]],
    [{}],
    [0, None],
    {},
    {"a": [{}]},
    {"type": {}},
    {"type": [["a"]], "required": [["a"], {}], "properties": {"a": {"type": {}}, "b": 1}},
)

PNG = "data:image/png;base64,QUJD"
SCHEMA = {
    "type": "object",
    "required": ["a"],
    "properties": {"a": {"type": ["string", "null"]}, "b": {"type": "integer"}},
}
OPENAI = {
    "model": "m",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "signature": "s",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "7"},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
                {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}},
                {"type": "file", "file": {"file_data": PNG}},
            ],
        },
        {"role": "user", "content": [{"type": "text", "text": "Why is my order 12345 late?"}]},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
    "functions": [{"name": "f", "parameters": SCHEMA}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    "modalities": ["text"],
    "audio": None,
    "background": False,
    "web_search_options": None,
    "temperature": 0.5,
    "seed": None,
    "n": 1,
    "max_tokens": 50,
    "max_completion_tokens": 50,
    "logprobs": True,
    "top_logprobs": 2,
    "stream": False,
    "stream_options": {"include_usage": True},
    "user": "u",
    "safety_identifier": "s",
    "metadata": {"a": "b"},
}
ANTHROPIC = {
    "model": "m",
    "max_tokens": 50,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "content": [{"type": "text", "text": "7"}],
                },
                {"type": "image", "source": {"type": "base64", "media_type": "x", "data": "QUJD"}},
            ],
        },
        {"role": "user", "content": "Why is the sky blue?"},
    ],
    "tools": [{"type": "custom", "name": "f", "input_schema": SCHEMA}],
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "output_format": None,
    "mcp_servers": [],
    "container": None,
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "metadata": {"user_id": "u"},
    "stream": False,
    "stop_sequences": ["x"],
    "temperature": 0,
}
GEMINI = {
    "contents": [
        {"role": "user", "parts": [{"text": "Hi"}]},
        {
            "role": "model",
            "parts": [
                {"text": "hm", "thought": True, "thoughtSignature": "s"},
                {"functionCall": {"id": "c", "name": "f", "args": {"a": 1}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "c", "name": "f", "response": {"a": 1}}},
                {"inlineData": {"mimeType": "image/png", "data": "QUJD"}},
            ],
        },
        {"role": "user", "parts": [{"text": "Why?"}]},
    ],
    "systemInstruction": {"role": "system", "parts": [{"text": "Be brief."}]},
    "generationConfig": {
        "maxOutputTokens": 50,
        "candidateCount": 1,
        "responseLogprobs": True,
        "logprobs": 2,
        "responseModalities": ["TEXT"],
        "responseMimeType": "application/json",
        "responseSchema": SCHEMA,
        "responseJsonSchema": SCHEMA,
        "temperature": 0,
        "seed": 1,
    },
    "tools": [{"functionDeclarations": [{"name": "f", "parameters": SCHEMA}]}],
    "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
    "safetySettings": [{"category": "c", "threshold": "t"}],
    "labels": {"a": "b"},
}
RESPONSES = {
    "model": "m",
    "instructions": "Be brief.",
    "input": [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
        {"role": "user", "content": "Hi"},
        {
            "id": "rs_1",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "content": [{"type": "reasoning_text", "text": "hm"}],
            "encrypted_content": "s",
        },
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "Hm.", "annotations": [], "logprobs": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "7"}],
        },
        {
            "role": "user",
            "content": [
                {"type": "input_image", "image_url": PNG, "detail": "low"},
                {"type": "input_file", "filename": "a.pdf", "file_data": PNG},
                {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}},
            ],
        },
        {"role": "user", "content": [{"type": "input_text", "text": "Why is it late?"}]},
    ],
    "tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}],
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
    "prompt_cache_options": {"prewarm": False},
    "background": False,
    "conversation": None,
    "previous_response_id": None,
    "max_output_tokens": 50,
    "top_logprobs": 2,
    "temperature": 0.5,
    "stream": False,
    "store": True,
    "user": "u",
    "safety_identifier": "s",
    "metadata": {"a": "b"},
}
CUSTOM = {"in": {"text": "Why? Because.", "n": 1}, "question": "Why?", "tools": [{"type": "x"}]}

REQUESTS = {
    "/v1/chat/completions": OPENAI,
    "/v1/responses": RESPONSES,
    "/v1/messages": ANTHROPIC,
    "/v1beta/models/m:generateContent": GEMINI,
    "/ask": CUSTOM,
}
LOGPROBS = {"content": [{"token": "{", "logprob": -1.0, "top_logprobs": [{"token": "["}]}]}
MESSAGE = {
    "role": "assistant",
    "content": '{"a": "b", "b": 2.0}',
    "refusal": None,
    "reasoning_content": "hm",
    "annotations": [],
    "content_blocks": [{"index": 0, "text": "x"}],
    "audio": None,
    "tool_calls": None,
}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
OPENAI_ANSWER = {
    "id": "i",
    "object": "chat.completion",
    "created": 7,
    "model": "m",
    "choices": [
        {"index": 0, "message": MESSAGE, "finish_reason": "stop", "logprobs": LOGPROBS},
        {"index": 1, "message": {"tool_calls": [CALL]}, "finish_reason": "tool_calls"},
    ],
    "usage": USAGE,
    "moderation": {"flagged": False, "results": [{"flagged": False}]},
    "service_tier": "default",
    "system_fingerprint": "f",
}
ANTHROPIC_ANSWER = {
    "id": "i",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": '{"a": 1}', "citations": None},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
        {"type": "server_tool_use", "id": "t", "index": 0, "deltas": [], "part": {}},
    ],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 1},
    "container": None,
}
GEMINI_ANSWER = {
    "candidates": [
        {
            "index": 0,
            "content": {
                "role": "model",
                "parts": [
                    {"text": "hm", "thought": True},
                    {"text": '{"a": 1}', "thoughtSignature": "s"},
                    {"functionCall": {"id": "c", "name": "f", "args": {"a": 1}}},
                    {"executableCode": {"code": "1"}, "index": 0, "part": {}},
                ],
            },
            "finishReason": "STOP",
            "groundingMetadata": {},
            "urlContextMetadata": None,
            "safetyRatings": [{"blocked": False}],
            "logprobsResult": {
                "topCandidates": [{"candidates": [{"token": "{", "logProbability": -1.0}]}],
                "chosenCandidates": [{"token": "{", "logProbability": -1.0}],
            },
        }
    ],
    "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 5},
    "modelVersion": "m",
    "responseId": "i",
    "promptFeedback": None,
}
RESPONSES_PART = {
    "type": "output_text",
    "text": '{"a": "b", "b": 2.0}',
    "annotations": [],
    "logprobs": [{"token": "{", "logprob": -1.0, "bytes": [123], "top_logprobs": []}],
}
RESPONSES_ANSWER = {
    "id": "resp_1",
    "object": "response",
    "created_at": 7,
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "model": "m",
    "output": [
        {
            "id": "rs_1",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "encrypted_content": "s",
        },
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [RESPONSES_PART],
        },
        {"id": "fc", "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"id": "ws", "type": "web_search_call", "status": "completed", "action": {}},
    ],
    "service_tier": "default",
    "usage": {"input_tokens": 3, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}},
    "moderation": {"output": {"flagged": False}},
    "metadata": {},
    "tools": [],
}
AT = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
RESPONSES_STREAM = [
    {
        "type": "response.created",
        "response": {**RESPONSES_ANSWER, "status": "in_progress", "output": []},
    },
    {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {"id": "msg_1", "type": "message", "status": "in_progress", "content": []},
    },
    {"type": "response.content_part.added", **AT, "part": {"type": "output_text", "text": ""}},
    {"type": "response.output_text.delta", **AT, "delta": '{"a": "b", "b": 2.0}'},
    {"type": "response.output_text.done", **AT, "text": '{"a": "b", "b": 2.0}'},
    {
        "type": "response.output_item.done",
        "output_index": 0,
        "item": {"id": "msg_1", "type": "message", "content": [RESPONSES_PART]},
    },
    {
        "type": "response.reasoning_summary_text.delta",
        "output_index": 1,
        "summary_index": 0,
        "delta": "hm",
    },
    {
        "type": "response.output_item.added",
        "output_index": 2,
        "item": {"id": "fc", "type": "function_call", "call_id": "c", "name": "f"},
    },
    {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": "{}"},
    {"type": "response.completed", "response": RESPONSES_ANSWER},
]
DIALECTS: dict[str, Dialect] = {
    "openai": OPENAI_CHAT,
    "responses": OPENAI_RESPONSES,
    "anthropic": ANTHROPIC_MESSAGES,
    "gemini": GEMINI_GENERATE,
}
ANSWERS = {
    "openai": OPENAI_ANSWER,
    "responses": RESPONSES_ANSWER,
    "anthropic": ANTHROPIC_ANSWER,
    "gemini": GEMINI_ANSWER,
}
DELTAS = {**MESSAGE, "tool_calls": [CALL]}
STREAMS: dict[str, list[Any]] = {
    "openai": [
        {
            "id": "i",
            "object": "chat.completion.chunk",
            "created": 7,
            "model": "m",
            "choices": [{"index": 0, "delta": DELTAS, "finish_reason": None, "logprobs": LOGPROBS}],
        },
        {"id": "i", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"id": "i", "choices": [], "usage": USAGE},
    ],
    "anthropic": [
        {"type": "message_start", "message": {**ANTHROPIC_ANSWER, "content": []}},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": "", "citations": []},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": '{"a": 1}'},
        },
        {"type": "content_block_stop", "index": 0},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        },
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": "{}"},
        },
        {"type": "content_block_stop", "index": 1},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 2},
        },
        {"type": "message_stop"},
    ],
    "gemini": [GEMINI_ANSWER],
    "responses": RESPONSES_STREAM,
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where something stands in a document, at every depth."""
    yield path
    names = (
        value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    )
    for name in names:
        yield from places(value[name], (*path, name))


def put(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of the document with another value in one place."""
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = put(copy[path[0]], path[1:], value)
    return copy


def oddities(document: Any) -> Iterator[Any]:
    for path in places(document):
        for value in ODD:
            yield put(document, path, value)


ROUTES = EndpointTable(
    (OPENAI_CHAT, ANTHROPIC_MESSAGES, GEMINI_GENERATE, OPENAI_RESPONSES),
    (Endpoint("/ask", prompt="in.text", query="question"),),
)
ADMISSION = Admission("variants:3", share_users=True)
WHOLE = Completion(
    model="m",
    choices=(Choice(index=0, parts=(Text(text='{"a": [1]}'),), finish="stop"),),
    created=0,
)


class Strict:
    """Lets no step fail that is to be passed over."""

    def notify(self, observation: object) -> None:
        raise AssertionError(observation)


def preparer(*, wrapped: bool) -> Preparer:
    return Preparer(
        SharingOptions(wrapped=wrapped),
        ADMISSION,
        AcceptedCredentials(lambda: 0.0),
        secret=b"secret",
        upstreams=lambda *_: ("up", frozenset(("up",))),
        observer=Strict(),
    )


PREPARERS = {wrapped: preparer(wrapped=wrapped) for wrapped in (True, False)}


def ask(
    path: str,
    document: Any,
    headers: Sequence[tuple[bytes, bytes]] = (),
    query: bytes = b"",
    *,
    wrapped: bool = True,
) -> bool:
    """Send a request through all that reads it; tell whether it got a key."""
    route = ROUTES.match("POST", path.encode())
    assert route is not None
    pairs = [(b"authorization", b"k"), *headers]
    scope = {"method": "POST", "path": path, "query_string": query, "headers": pairs}
    try:
        prepared = PREPARERS[wrapped].prepare(route, scope, msgspec.json.encode(document))
        deadlines(pairs, None)
    except RequestError:
        return False
    request, key = prepared.request, prepared.key
    assert prepared.lifetime.seconds is None
    if request is None or key is None:
        return False
    if route.dialect is not None:
        ADMISSION.variants(request)
        ADMISSION.refuse_store(request, WHOLE)
        ADMISSION.refuse_serve(request, entry(WHOLE, key))
    return True


def entry(answer: Completion, key: CacheKey) -> Entry:
    origin = Origin(model="m", upstream="u", ttft_s=0.1, total_s=0.2, completion_tokens=1)
    return Entry(id="e", key=key, answer=answer, origin=origin, created=0.0)


def judge(dialect: Dialect, asked: dict[str, Any], events: Sequence[StreamEvent]) -> bool:
    """Collect an answer, decide about it and replay it; tell whether there was one."""
    transcript = Transcript()
    transcript.feed(events)
    if transcript.usage is not None:
        dialect.tokens(transcript.usage)
    answer = transcript.completion(0.0)
    if answer is None:
        return False
    request = ChatRequest(model="m", stream=False, document=asked, query=None, logprobs=True)
    ADMISSION.refuse_store(request, answer)
    ADMISSION.refuse_serve(request, entry(answer, CacheKey(scope="s", partition="p", exact="e")))
    answer_text(answer)
    rendered = dialect.render(fit(answer, request))
    rendered.json("id", 1)
    rendered.sse("id", 1, include_usage=True)
    return True


def read_stream(dialect: Dialect, said: Sequence[Any]) -> list[StreamEvent]:
    decoder = dialect.decoder()
    stream = b"".join(b"data: %b\n\n" % msgspec.json.encode(each) for each in said)
    return [event for frame in SSEDecoder().feed(stream) for event in decoder.feed(frame)]


@pytest.mark.parametrize("path", REQUESTS)
def test_a_request_with_any_odd_field_is_understood_or_refused(path: str) -> None:
    understood = [ask(path, each) for each in oddities(REQUESTS[path])]
    assert sum(understood) > len(understood) / 3


@pytest.mark.parametrize("name", DIALECTS)
def test_an_answer_with_any_odd_field_is_read_judged_and_replayed(name: str) -> None:
    dialect = DIALECTS[name]
    read = [
        judge(dialect, OPENAI, dialect.decode_body(200, msgspec.json.encode(each)))
        for each in oddities(ANSWERS[name])
    ]
    assert sum(read) > len(read) / 3


@pytest.mark.parametrize("name", DIALECTS)
def test_a_stream_with_any_odd_field_is_read_judged_and_replayed(name: str) -> None:
    dialect = DIALECTS[name]
    read = [
        judge(dialect, OPENAI, [*read_stream(dialect, each), Ended()])
        for each in oddities(STREAMS[name])
        if isinstance(each, list)
    ]
    assert sum(read) > len(read) / 3


@pytest.mark.parametrize("path", REQUESTS)
def test_a_whole_answer_is_judged_by_any_odd_request(path: str) -> None:
    for document in oddities(REQUESTS[path]):
        if isinstance(document, dict):
            request = ChatRequest(model="m", stream=False, document=document, query="Why?")
            ADMISSION.refuse_lookup(request)
            ADMISSION.refuse_store(request, WHOLE)
            ADMISSION.refuse_semantic(request)
            ADMISSION.variants(request)


LEAVES = st.sampled_from(ODD) | st.integers() | st.text(max_size=6)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(st.sampled_from(sorted(REQUESTS)), st.data())
def test_any_json_in_two_fields_of_a_request_is_understood_or_refused(
    path: str, data: st.DataObject
) -> None:
    document = REQUESTS[path]
    for _ in range(2):
        place = data.draw(st.sampled_from(list(places(document))))
        document = put(document, place, data.draw(JSON))
    ask(path, document, wrapped=data.draw(st.booleans()))


NUMBERS = (b"9" * 4301, b'"7"', b"-1", b"1e9", b"7.5", b"", b"\xd9\xa3", b"0x1", b"inf", b"nan")
STEERING = (
    b"cache-control",
    b"x-headstart-max-error",
    b"x-headstart-query",
    b"x-headstart-scope",
    b"x-headstart-compress",
    b"x-headstart-route",
    b"x-headstart-deadline-ms",
    b"x-stainless-read-timeout",
    b"x-stainless-retry-count",
    b"content-encoding",
    b"anthropic-beta",
    b"cookie",
    b"x-headstart-tags",
)


@pytest.mark.parametrize("name", STEERING)
@pytest.mark.parametrize("path", REQUESTS)
def test_any_value_of_a_header_is_understood_or_refused(path: str, name: bytes) -> None:
    for number in NUMBERS:
        for value in (number, b"max-age=" + number, b"max-age," + number, b"safe;" + number):
            ask(path, REQUESTS[path], [(name, value)], b"key=%FF&" + number[:20])


@given(st.lists(st.tuples(st.sampled_from(STEERING), st.binary(max_size=30)), max_size=3))
def test_any_bytes_in_headers_are_understood_or_refused(headers: list[tuple[bytes, bytes]]) -> None:
    ask("/ask", CUSTOM, headers)
