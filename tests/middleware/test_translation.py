from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from headstart.dialects.dialect import translate_events, translate_headers, translate_status
from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.dialects.openai_responses import OPENAI_RESPONSES
from headstart.dialects.registry import with_retry_after
from headstart.types import (
    Choice,
    Completion,
    Ended,
    ErrorReported,
    ExtraDelta,
    Finished,
    LogprobsDelta,
    ReasoningDelta,
    Started,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    UsageReported,
)
from support.completions import some_text
from support.events import crumbled, decoded, encoded, events_of, folded, said

if TYPE_CHECKING:
    from headstart.dialects.dialect import Dialect
    from headstart.types import Part, StreamEvent

OPENAI, ANTHROPIC, GEMINI = OPENAI_CHAT, ANTHROPIC_MESSAGES, GEMINI_GENERATE


def texts_and_calls(completion: Completion) -> tuple[str, list[tuple[str, object]]]:
    """Return what all dialects must agree on."""
    (choice,) = completion.choices
    text = "".join(part[1] for part in said(choice) if part[0] == "text")
    calls = [part for part in choice.parts if isinstance(part, ToolCall)]
    return text, [(call.name, json.loads(call.arguments or "{}")) for call in calls]


@st.composite
def plain_answers(draw: st.DrawFn) -> Completion:
    """Return what every dialect can say: texts, and calls whose arguments are objects."""
    arguments = st.sampled_from(("{}", '{"x": [1]}'))
    drawn = draw(st.lists(st.builds(ToolCall, id=some_text, name=some_text, arguments=arguments)))
    parts: list[Part] = [*drawn]
    for at in range(len(drawn), -1, -1):
        parts[at:at] = [Text(text=text) for text in draw(st.lists(some_text, max_size=1))]
    choice = Choice(index=0, parts=tuple(parts), finish="tool_calls" if drawn else "stop")
    return Completion(model="m", choices=(choice,), created=1)


@given(plain_answers())
@pytest.mark.parametrize("target", [ANTHROPIC, GEMINI, OPENAI])
def test_texts_and_calls_agree_across_dialects(target: Dialect, completion: Completion) -> None:
    events = crumbled(events_of(completion))
    there = decoded(target, encoded(target, translate_events(events, OPENAI, target)))
    read = folded(there if isinstance(there[-1], Ended) else [*there, Ended()])
    assert texts_and_calls(read) == texts_and_calls(completion)


ONLY_HERE: dict[str, tuple[StreamEvent, StreamEvent | None]] = {
    "a fingerprint": (
        Started(id="i", model="m", fingerprint="f", tier="t"),
        Started(id="i", model="m"),
    ),
    "a signed thought": (
        ReasoningDelta(text="hm", field="thinking", signature="s", block=1),
        ReasoningDelta(text="hm", block=1),
    ),
    "a call's own fields": (
        ToolCallDelta(index=0, id="a", name="f", extra={"caller": {}}),
        ToolCallDelta(index=0, id="a", name="f"),
    ),
    "unknown fields": (ExtraDelta(fields={"provider": "x"}), None),
    "logprobs": (LogprobsDelta(value={}), None),
    "usage": (
        UsageReported(usage={"input_tokens": 3, "output_tokens": 4}),
        UsageReported(
            usage={
                "prompt_tokens": 3,
                "completion_tokens": 4,
                "total_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0},
            }
        ),
    ),
    "a native reason": (
        Finished(reason="stop", native="end_turn"),
        Finished(reason="stop", native="end_turn"),
    ),
    "a status of its own": (
        ErrorReported(message="m", status=529),
        ErrorReported(message="m", status=503),
    ),
}


@pytest.mark.parametrize(("event", "translated"), ONLY_HERE.values(), ids=ONLY_HERE)
def test_content_of_one_dialect_alone_is_not_translated(
    event: StreamEvent, translated: StreamEvent | None
) -> None:
    wanted = () if translated is None else (translated,)
    assert translate_events((event,), ANTHROPIC, OPENAI) == wanted
    assert translate_events((event,), ANTHROPIC, ANTHROPIC) == (event,)


@pytest.mark.parametrize(
    ("target", "name", "signature"),
    [(ANTHROPIC, "thinking", "headstart:reasoning"), (GEMINI, "thought", None)],
)
def test_reasoning_comes_under_its_name_to_those_alone_who_asked(
    target: Dialect, name: str, signature: str | None
) -> None:
    thought = ReasoningDelta(text="hm", field="reasoning", signature="s")
    shown = ReasoningDelta(text="hm", field=name, signature=signature)
    assert translate_events((thought,), OPENAI, target) == (shown,)
    (hidden,) = translate_events((thought,), OPENAI, target, shows_reasoning=False)
    assert b"hm" not in encoded(target, (hidden, Finished(reason="stop"), Ended()))


@pytest.mark.parametrize(
    ("status", "target", "known"),
    [
        (529, OPENAI, 503),
        (529, ANTHROPIC, 529),
        (498, OPENAI, 503),
        (498, ANTHROPIC, 503),
        (429, OPENAI, 429),
        (400, ANTHROPIC, 400),
    ],
)
def test_status_is_one_that_the_clients_know(status: int, target: Dialect, known: int) -> None:
    assert translate_status(status, target) == known


def test_headers_of_the_body_go_and_the_request_id_takes_the_clients_name() -> None:
    headers = (
        (b"content-length", b"3"),
        (b"content-type", b"application/json"),
        (b"request-id", b"req_1"),
        (b"retry-after", b"2"),
    )
    assert translate_headers(headers, ANTHROPIC, OPENAI, content_type=b"x/y") == (
        (b"request-id", b"req_1"),
        (b"retry-after", b"2"),
        (b"x-request-id", b"req_1"),
        (b"content-type", b"x/y"),
    )


@pytest.mark.parametrize(
    ("headers", "body", "wait"),
    [
        ((), b'{"error":{"details":[{"retryDelay":"34.07s"}]}}', [b"35"]),
        (((b"retry-after", b"1"),), b'{"error":{"details":[{"retryDelay":"9s"}]}}', [b"1"]),
        ((), b'{"error":{"details":[{"retryDelay":"soon"}]}}', []),
        ((), b"busy", []),
    ],
)
def test_geminis_wait_becomes_a_header(
    headers: tuple[tuple[bytes, bytes], ...], body: bytes, wait: list[bytes]
) -> None:
    assert [value for _, value in with_retry_after(headers, body)] == wait


CHOSEN = {"token": "Hé", "tokenId": 7, "logProbability": -0.5}
OTHER = {"token": "Hi", "tokenId": 8, "logProbability": -1.5}
LOGPROBS = {"chosenCandidates": [CHOSEN], "topCandidates": [{"candidates": [CHOSEN, OTHER]}]}
TOKEN = {"token": "Hé", "logprob": -0.5, "bytes": [72, 195, 169]}
OTHER_TOKEN = {"token": "Hi", "logprob": -1.5, "bytes": [72, 105]}
OF_TOKENS = {"content": [{**TOKEN, "top_logprobs": [TOKEN, OTHER_TOKEN]}], "refusal": None}


def test_logprobs_pass_between_openai_and_gemini() -> None:
    there = translate_events((LogprobsDelta(value=LOGPROBS, choice=1),), GEMINI, OPENAI)
    assert there == (LogprobsDelta(value=OF_TOKENS, choice=1),)
    (back,) = translate_events(there, OPENAI, GEMINI)
    assert isinstance(back, LogprobsDelta)
    names = ("token", "logProbability")
    plain = [{name: each[name] for name in names} for each in (CHOSEN, OTHER)]
    assert back.value == {
        "chosenCandidates": plain[:1],
        "topCandidates": [{"candidates": plain}],
    }


@pytest.mark.parametrize("junk", [{}, {"chosenCandidates": 1}, {"chosenCandidates": [{}, 2]}])
def test_logprobs_of_another_shape_do_no_harm(junk: dict[str, object]) -> None:
    (event,) = translate_events((LogprobsDelta(value=junk),), GEMINI, OPENAI)
    assert isinstance(event, LogprobsDelta)
    assert all(token["top_logprobs"] == [] for token in event.value["content"])


def test_geminis_clients_get_logprobs_whole_and_in_a_stream() -> None:
    answer = (
        Started(id="i", model="m"),
        TextDelta(text="Hé"),
        LogprobsDelta(value=OF_TOKENS),
        Finished(reason="stop"),
        Ended(),
    )
    translated = translate_events(answer, OPENAI, GEMINI)
    streamed = folded([*decoded(GEMINI, encoded(GEMINI, translated)), Ended()])
    whole = folded(GEMINI.decode_body(200, GEMINI.render(folded(translated)).json("i", 0)))
    for completion in (streamed, whole):
        (choice,) = completion.choices
        assert choice.logprobs is not None
        assert choice.logprobs["chosenCandidates"] == [{"token": "Hé", "logProbability": -0.5}]


CHATS = [OPENAI, OPENAI_RESPONSES, ANTHROPIC, GEMINI]


@pytest.mark.parametrize("dialect", CHATS, ids=lambda each: each.setting)
@pytest.mark.parametrize("end", [Ended(), ErrorReported(message="The end.", status=500)])
def test_nothing_is_written_after_the_end(dialect: Dialect, end: StreamEvent) -> None:
    encoder = dialect.encoder("id", 1, include_usage=True)
    said = encoder.feed((Started(model="m"), TextDelta(text="Hi")))
    assert b"Hi" in said
    last = encoder.feed((Finished(reason="stop"), end))
    assert (b"The end." in last) is isinstance(end, ErrorReported)
    assert encoder.feed((TextDelta(text="more"), Finished(reason="stop"), Ended())) == b""


@pytest.mark.parametrize("dialect", CHATS, ids=lambda each: each.setting)
def test_an_error_that_is_only_a_text_is_told(dialect: Dialect) -> None:
    (event,) = dialect.decode_body(503, b'{"error": "Busy."}')
    assert isinstance(event, ErrorReported)
    assert (event.message, event.status) == ("Busy.", 503)


def test_tools_have_precedence_over_functions_in_an_answer() -> None:
    function = {"name": "f"}
    asked = {"model": "m", "messages": [], "functions": [function]}
    tools = [{"type": "function", "function": function}]
    for document, functions in ((asked, True), ({**asked, "tools": tools}, False)):
        request = OPENAI.parse_request(json.dumps(document).encode())
        assert OPENAI.asks_functions(request) is functions
