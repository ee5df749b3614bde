"""Request Cache-Control."""

from __future__ import annotations

import pytest

from headstart.policies.directives import Directives, parse_directives


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"no-store", Directives(no_store=True)),
        (b"No-Cache", Directives(no_cache=True)),
        (b"only-if-cached, max-age=60", Directives(only_if_cached=True, max_age_s=60)),
        (b'max-age="5" ,no-transform', Directives(max_age_s=5)),
        (b"max-age=soon", Directives(max_age_s=0)),
        (b"max-age", Directives(max_age_s=0)),
        (b"max-age=-1", Directives(max_age_s=0)),
        (b"private, , x=1", Directives()),
    ],
)
def test_directives_are_read(value: bytes, expected: Directives) -> None:
    assert parse_directives(((b"cache-control", value),)) == expected


def test_no_header_allows_everything() -> None:
    assert parse_directives(((b"accept", b"*/*"),)) == Directives()


def test_repeated_headers_add_up() -> None:
    headers = ((b"cache-control", b"no-cache"), (b"cache-control", b"no-store"))
    assert parse_directives(headers) == Directives(no_cache=True, no_store=True)
