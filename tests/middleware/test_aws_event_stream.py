"""The framing of AWS's event streams: messages, checksums, and any split of the bytes."""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.dialects.bedrock_converse import MessageCutter
from headstart.dialects.dialect import Frame
from headstart.errors import UpstreamProtocolError
from support.aws_events import encode_message

# Vectors of the specification, as the SDKs of AWS test them.
EMPTY = bytes.fromhex("000000100000000005c248eb7d98c8ff")
PAYLOAD = bytes.fromhex("0000001d00000000fd528c5a7b27666f6f273a27626172277dc3653936")
HEADER = bytes.fromhex(
    "0000003d0000002007fd83960c636f6e74656e742d747970650700106170706c69636174696f6e2f6a736f6e"
    "7b27666f6f273a27626172277d8d9c08b1"
)
MESSAGES = [
    encode_message({":message-type": "event", ":event-type": "one"}, b'{"a":1}'),
    encode_message({":message-type": "event", ":event-type": "two"}, b""),
    encode_message({":message-type": "exception", ":exception-type": "bad"}, b"{}" * 300),
]


def frames_in(*pieces: bytes) -> list[Frame]:
    cutter = MessageCutter()
    found: list[Frame] = []
    for piece in pieces:
        block = cutter.receive(piece)
        at = 0
        while at < len(block) and (frame := cutter.cut(block, at)) is not None:
            found.append(frame)
            at += len(frame.raw)
    return found


@pytest.mark.parametrize(
    ("raw", "payload"), [(EMPTY, b""), (PAYLOAD, b"{'foo':'bar'}"), (HEADER, b"{'foo':'bar'}")]
)
def test_vectors_of_the_specification_are_read(raw: bytes, payload: bytes) -> None:
    (frame,) = frames_in(raw)
    assert frame == Frame(raw, payload, None)


def test_vectors_of_the_specification_are_written() -> None:
    assert encode_message({}, b"") == EMPTY
    assert encode_message({}, b"{'foo':'bar'}") == PAYLOAD
    assert encode_message({"content-type": "application/json"}, b"{'foo':'bar'}") == HEADER


@given(st.lists(st.integers(0, sum(map(len, MESSAGES))), max_size=8))
def test_frames_do_not_depend_on_how_the_bytes_arrive(cuts: list[int]) -> None:
    whole = b"".join(MESSAGES)
    places = [0, *sorted(cuts), len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(places) if b > a]
    found = frames_in(*pieces)
    assert [frame.event for frame in found] == [b"one", b"two", b"bad"]
    assert b"".join(frame.raw for frame in found) == whole


def test_single_bytes_give_the_same_frames() -> None:
    whole = b"".join(MESSAGES)
    assert frames_in(*(whole[n : n + 1] for n in range(len(whole)))) == frames_in(whole)


@pytest.mark.parametrize("place", range(len(MESSAGES[0])))
def test_no_damaged_message_is_read(place: int) -> None:
    damaged = bytearray(MESSAGES[0])
    damaged[place] ^= 1
    with pytest.raises(UpstreamProtocolError):
        frames_in(bytes(damaged) + MESSAGES[1])


def test_values_that_are_not_texts_are_skipped() -> None:
    headers = (
        b"\x01a\x00" + b"\x01b\x04" + bytes(4) + b"\x01c\x06\x00\x02hi" + b"\x01d\x09" + bytes(16)
    )
    headers += b"\x0b:event-type\x07\x00\x01x"
    prelude = struct.pack(">II", 16 + len(headers), len(headers))
    head = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers
    (frame,) = frames_in(head + struct.pack(">I", zlib.crc32(head)))
    assert frame.event == b"x"


def test_an_error_without_a_payload_is_told_in_its_headers() -> None:
    headers = {":message-type": "error", ":error-code": "Broken", ":error-message": "why"}
    (frame,) = frames_in(encode_message(headers, b""))
    assert (frame.event, frame.data) == (b"Broken", b"why")


def test_an_unfinished_message_is_the_rest() -> None:
    cutter = MessageCutter()
    assert cutter.cut(cutter.receive(EMPTY[:-1]), 0) is None
    assert cutter.rest() == EMPTY[:-1]


def test_a_message_without_end_is_refused() -> None:
    prelude = struct.pack(">II", 2**31, 0)
    with pytest.raises(UpstreamProtocolError, match="claims"):
        frames_in(prelude + struct.pack(">I", zlib.crc32(prelude)) + b"abcdef")
