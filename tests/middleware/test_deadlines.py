"""The deadline of a request and of its call, set by the operator, the caller and its SDK."""

from __future__ import annotations

import pytest

from headstart.errors import InvalidRequest
from headstart.middleware.request_context import Deadlines, deadlines

SDK, RETRIES, OWN = (
    b"x-stainless-read-timeout",
    b"x-stainless-retry-count",
    (b"x-headstart-deadline-ms"),
)


@pytest.mark.parametrize(
    ("headers", "configured", "expected"),
    [
        ([], None, (None, None)),
        ([], 60.0, (60.0, 60.0)),
        ([(OWN, b"1500")], 60.0, (1.5, 1.5)),
        ([(OWN, b"1500")], 1.0, (1.0, 1.0)),
        ([(SDK, b"soon")], 60.0, (60.0, 60.0)),
        ([(SDK, b"600")], 600.0, (600.0, 600.0)),
        ([(SDK, b"20")], None, (20.0, None, True)),
        ([(SDK, b"20"), (RETRIES, b"1")], 600.0, (20.0, 600.0, True)),
        ([(SDK, b"20"), (RETRIES, b"2")], 600.0, (20.0, 600.0)),
        ([(SDK, b"20")], 30.0, (20.0, 30.0, True)),
        ([(SDK, b"20"), (OWN, b"5000")], 600.0, (5.0, 5.0)),
    ],
)
def test_an_sdk_bounds_the_wait_for_the_first_byte_and_others_the_whole_answer(
    headers: list[tuple[bytes, bytes]],
    configured: float | None,
    expected: tuple[float | None, float | None] | tuple[float | None, float | None, bool],
) -> None:
    assert deadlines(headers, configured) == Deadlines(*expected)


@pytest.mark.parametrize("value", [b"", b"soon", b"0", b"-5", b"nan", b"inf"])
def test_an_invalid_deadline_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequest, match="X-Headstart-Deadline-Ms"):
        deadlines([(OWN, value)], 60.0)
