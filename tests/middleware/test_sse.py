from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.dialects.dialect import Frame
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.errors import UpstreamProtocolError
from headstart.middleware.reading import SSEDecoder
from headstart.middleware.translated_reading import SentencePace

if TYPE_CHECKING:
    from headstart.types import Message

PIECES = (
    b"data: {}",
    b"data:x",
    b"data",
    b"data:",
    b"event: error",
    b": comment",
    b"id: 1",
    b"retry: 5",
    b"\n",
    b"\n\n",
    b"\r\n",
    b"\r\n\r\n",
    b"\r",
    b"\xef\xbb\xbf",
    "é".encode(),
)
streams = st.lists(st.sampled_from(PIECES)).map(b"".join)


def decode(*chunks: bytes) -> tuple[list[Frame], bytes]:
    decoder = SSEDecoder()
    frames = [frame for chunk in chunks for frame in decoder.feed(chunk)]
    return frames, decoder.rest()


def meaning(stream: bytes) -> list[tuple[bytes | None, bytes | None]]:
    return [(frame.data, frame.event) for frame in decode(stream)[0]]


@given(streams)
def test_raw_frames_and_rest_are_the_input(stream: bytes) -> None:
    frames, rest = decode(stream)
    assert b"".join(frame.raw for frame in frames) + rest == stream


@given(streams, st.lists(st.integers(min_value=0, max_value=60)))
def test_frames_do_not_depend_on_the_split(stream: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[a:b] for a, b in pairwise(edges)]
    assert decode(*chunks) == decode(stream)


@given(streams)
def test_frames_survive_one_byte_at_a_time(stream: bytes) -> None:
    assert decode(*(stream[i : i + 1] for i in range(len(stream)))) == decode(stream)


@given(streams)
def test_fields_are_those_of_a_line_by_line_reader(stream: bytes) -> None:
    frames, _ = decode(stream)
    whole = b"".join(frame.raw for frame in frames)
    read = [frame.data for frame in frames if frame.data is not None]
    assert read == list(_read_by_the_book(whole.removeprefix(b"\xef\xbb\xbf")))


def _read_by_the_book(stream: bytes) -> list[bytes]:
    """WHATWG HTML 9.2.6, but events with empty data are kept."""
    events: list[bytes] = []
    data: list[bytes] = []
    for line in stream.splitlines():
        if not line:
            if data:
                events.append(b"\n".join(data))
            data = []
        elif line == b"data":
            data.append(b"")
        elif line.startswith(b"data:"):
            value = line[5:]
            data.append(value[1:] if value.startswith(b" ") else value)
    return events


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_ending_ends_a_frame(end: bytes) -> None:
    stream = b"event: error" + end + b"data: a" + end + b"data: b" + end + end + b": next"
    assert meaning(stream) == [(b"a\nb", b"error")]


@pytest.mark.parametrize(
    "rest", [b"event: x", b"event: x\n", b"event: x\ndata: b", b"event: x\ndata: b\n"]
)
def test_a_named_event_that_has_only_begun_waits(rest: bytes) -> None:
    frames, held = decode(b"data: a\n\n" + rest)
    assert ([frame.data for frame in frames], held) == ([b"a"], rest)


def test_only_the_lines_of_one_event_belong_to_it() -> None:
    stream = b"event: x\n\nevent: y\ndata: a\n\nevent: z\nid: 1\ndata: b\n\n"
    assert meaning(stream) == [(None, b"x"), (b"a", b"y"), (b"b", b"z")]


def test_comment_is_a_frame_without_data() -> None:
    assert meaning(b": OPENROUTER PROCESSING\n\ndata: {}\n\n") == [(None, None), (b"{}", None)]


def test_empty_data_is_not_absent_data() -> None:
    assert meaning(b"data:\n\ndata\n\nid: 7\n\n") == [(b"", None), (b"", None), (None, None)]


def test_only_one_leading_space_is_removed() -> None:
    assert meaning(b"data:  x \n\n") == [(b" x ", None)]


def test_byte_order_mark_is_skipped_only_at_the_start() -> None:
    stream = b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n"
    assert meaning(stream) == [(b"a", None), (None, None)]


def test_carriage_return_waits_for_the_next_byte() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: a\r\n\r") == []
    assert decoder.feed(b"\n") == [Frame(b"data: a\r\n\r\n", b"a", None)]


def test_unfinished_frame_stays_in_the_rest() -> None:
    frames, rest = decode(b"data: a\n\ndata: [DO")
    assert (len(frames), rest) == (1, b"data: [DO")


@pytest.mark.parametrize("piece", [1000, 10])
def test_overlong_frame_is_refused_in_small_and_large_pieces(piece: int) -> None:
    decoder = SSEDecoder(max_frame_bytes=500)
    stream = b"data: " + b"x" * 994 + b"\n\n"
    pieces = (stream[start : start + piece] for start in range(0, len(stream), piece))
    with pytest.raises(UpstreamProtocolError, match="500 bytes"):
        any(decoder.feed(each) for each in pieces)


@pytest.mark.parametrize("line", [b"x" * 16, b"data: x\n" * 2], ids=["one line", "many lines"])
def test_long_frame_in_small_pieces_is_read_in_linear_time(line: bytes) -> None:
    # Copying what is held at every piece would move 500 GB here.
    decoder = SSEDecoder()
    pieces = 2**19 - 1
    assert not any(decoder.feed(line) for _ in range(pieces))
    frame = decoder.feed(b"\n\n")[0]
    assert frame.raw.startswith(line * pieces)


# --- whole sentences -------------------------------------------------------------------------


def chunk(text: bytes) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text


async def paced(*pieces: bytes) -> list[bytes]:
    """Return what a client that asked for sentences gets."""
    sent: list[bytes] = []

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))

    pace = SentencePace(send, OPENAI_CHAT)
    headers = [(b"content-type", b"text/event-stream")]
    await pace({"type": "http.response.start", "status": 200, "headers": headers})
    for piece in pieces:
        await pace({"type": "http.response.body", "body": piece, "more_body": True})
    await pace({"type": "http.response.body", "body": b""})
    return sent


HALVES = chunk(b"\\ud83d") + chunk(b"\\ude00")
BEFORE, CUT, AFTER = chunk(b"Hello. Wor"), [chunk(b"Hello."), chunk(b" Wor")], chunk(b"ld. Bye.")


@pytest.mark.anyio
@pytest.mark.parametrize("size", [7, 60, 100, 1000])
async def test_half_a_character_passes_between_sentences_and_nothing_is_doubled(size: int) -> None:
    whole = BEFORE + HALVES + AFTER
    came = b"".join(await paced(*(whole[at : at + size] for at in range(0, len(whole), size))))
    assert came == b"".join([*CUT, HALVES, chunk(b"ld."), chunk(b" Bye.")])


@pytest.mark.anyio
@pytest.mark.parametrize("size", [2**20, 5 * 2**20, 2**24])
async def test_an_event_too_long_to_be_read_passes_with_all_after_it(size: int) -> None:
    long = b": " + b"x" * (9 * 2**20) + b"\n\n"
    whole = BEFORE + long + AFTER
    came = b"".join(await paced(*(whole[at : at + size] for at in range(0, len(whole), size))))
    assert came == b"".join([*CUT, long, AFTER])
