"""What an app's answer says about being stored."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.policies.freshness import StorageVerdict, judge_response

NOW = 1_700_000_000.0
EVENTS = "text/event-stream"


def judged(status: int = 200, *, custom: bool = True, **headers: Any) -> StorageVerdict:
    pairs = tuple(
        (name.replace("_", "-").encode(), value if isinstance(value, bytes) else value.encode())
        for name, value in headers.items()
    )
    return judge_response(
        status,
        pairs,
        keyed=lambda name: name not in (b"cookie", b"accept-language", b"accept-encoding"),
        custom=custom,
        now=NOW,
    )


def date(seconds: float) -> str:
    return formatdate(NOW + seconds, usegmt=True)


@pytest.mark.parametrize(
    ("status", "plain", "fresh"),
    [
        (200, None, None),
        (201, None, None),
        (203, None, None),
        (202, "status", None),
        (207, "status", None),
        (299, "status", None),
        (204, "no-content", "no-content"),
        (205, "no-content", "no-content"),
        (206, "status", "status"),
        (226, "status", "status"),
        (199, "status", "status"),
        (300, "status", "status"),
        (304, "status", "status"),
        (404, "status", "status"),
        (500, "status", "status"),
    ],
)
def test_a_complete_success_is_stored_and_an_unusual_one_if_it_says_how_long(
    status: int, plain: str | None, fresh: str | None
) -> None:
    assert judged(status).refusal == plain
    assert judged(status, cache_control="max-age=60").refusal == fresh
    assert judged(status, cache_control="public").refusal == fresh
    assert judged(status, expires=date(60)).refusal == fresh
    assert judged(status, custom=False).refusal == (None if status == 200 else "status")


@pytest.mark.parametrize(
    ("headers", "refusal"),
    [
        ({"cache_control": "no-store"}, "cache-control"),
        ({"cache_control": "No-Cache"}, "cache-control"),
        ({"cache_control": "private, max-age=60"}, "cache-control"),
        ({"cache_control": 'private="x-user, y"'}, "cache-control"),
        ({"cache_control": 'no-cache="set-cookie"'}, "cache-control"),
        ({"cache_control": "max-age=60,, no-store ;x"}, "cache-control"),
        ({"cache_control": "no-cache", "content_type": "Text/Event-Stream; charset=x"}, None),
        ({"cache_control": "no-cache, no-transform", "content_type": EVENTS}, None),
        ({"cache_control": "no-cache, no-store", "content_type": EVENTS}, "cache-control"),
        ({"cache_control": "private, no-cache", "content_type": EVENTS}, "cache-control"),
        ({"cache_control": 'no-cache="x-user"', "content_type": EVENTS}, "cache-control"),
        ({"cache_control": 'x="no-store"'}, None),
        ({"cache_control": "must-revalidate, proxy-revalidate"}, None),
        ({"cache_control": "must-understand"}, None),
        ({"cache_control": "no-transform, immutable, stale-while-revalidate=9"}, None),
        ({"pragma": "No-Cache"}, "cache-control"),
        ({"pragma": "x-other"}, None),
        ({"pragma": "no-cache", "cache_control": "max-age=60"}, None),
        ({"set_cookie": "a=b"}, "set-cookie"),
        ({"vary": "*"}, "vary"),
        ({"vary": "Accept-Language"}, "vary"),
        ({"vary": "Accept-Encoding, Origin,"}, None),
        ({"vary": "authorization, X-Tenant"}, None),
        ({"vary": "Cookie"}, "vary"),
        ({"content_encoding": "gzip"}, "content-encoding"),
        ({"content_encoding": " Identity "}, None),
        ({"cache_control": "max-age=0"}, "expired"),
        ({"cache_control": "s-maxage=0, max-age=60"}, "expired"),
        ({"cache_control": "max-age=soon"}, "expired"),
        ({"cache_control": "max-age"}, "expired"),
        ({"expires": "0"}, "expired"),
        ({"expires": date(-1)}, "expired"),
        ({"cache_control": "max-age=60", "age": "60"}, "expired"),
    ],
)
def test_headers_refuse_to_be_stored(headers: dict[str, Any], refusal: str | None) -> None:
    assert judged(**headers).refusal == refusal


def test_a_status_that_must_be_understood_and_is_not_is_not_stored() -> None:
    assert judged(299, cache_control="max-age=60, must-understand").refusal == "cache-control"


@pytest.mark.parametrize(
    ("headers", "fresh_s"),
    [
        ({}, None),
        ({"cache_control": "public"}, None),
        ({"cache_control": "max-age=60"}, 60.0),
        ({"cache_control": 'max-age="60"'}, 60.0),
        ({"cache_control": "max-age=60, s-maxage=30"}, 30.0),
        ({"cache_control": "max-age=60, max-age=20"}, 20.0),
        ({"cache_control": "max-age=" + "9" * 5000}, 2.0**31),
        ({"cache_control": "max-age=60", "expires": "0"}, 60.0),
        ({"cache_control": "max-age=60", "age": "20"}, 40.0),
        ({"cache_control": "max-age=60", "date": date(-15)}, 45.0),
        ({"cache_control": "max-age=60", "date": date(15)}, 60.0),
        ({"cache_control": "max-age=60", "date": "yesterday"}, 60.0),
        ({"expires": date(90)}, 90.0),
        ({"expires": date(90), "date": date(-30)}, 90.0),
        ({"expires": date(90), "date": date(30)}, 60.0),
    ],
)
def test_an_answer_says_how_long_it_is_fresh(
    headers: dict[str, Any], fresh_s: float | None
) -> None:
    assert judged(**headers) == StorageVerdict(None, fresh_s)


@given(
    st.integers(100, 599),
    st.dictionaries(
        st.sampled_from(
            ["cache_control", "expires", "date", "age", "vary", "pragma", "content_encoding"]
        ),
        st.binary(max_size=40) | st.sampled_from([b"max-age=1", b"9" * 5000, b'a="', b"\xff="]),
    ),
)
def test_any_headers_are_judged(status: int, headers: dict[str, Any]) -> None:
    storing = judged(status, **headers)
    assert storing.refusal is None or storing.fresh_s is None
