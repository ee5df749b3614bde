"""How long a request and its call may take, by what the operator, the caller and its SDK say."""

from __future__ import annotations

import pytest

from headstart.middleware.deadlines import RETRY_GRACE_S, Deadlines, deadlines

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
        ([(SDK, b"20")], None, (20.0, 40.0 + RETRY_GRACE_S)),
        ([(SDK, b"20"), (RETRIES, b"1")], 600.0, (20.0, 40.0 + RETRY_GRACE_S)),
        ([(SDK, b"20"), (RETRIES, b"2")], 600.0, (20.0, 20.0)),
        ([(SDK, b"20")], 30.0, (20.0, 30.0)),
        ([(SDK, b"20"), (OWN, b"5000")], 600.0, (5.0, 5.0)),
    ],
)
def test_a_call_may_take_longer_than_its_caller_waits_where_an_sdk_comes_again(
    headers: list[tuple[bytes, bytes]],
    configured: float | None,
    expected: tuple[float | None, float | None],
) -> None:
    assert deadlines(headers, configured) == Deadlines(*expected)
