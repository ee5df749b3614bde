"""Request Cache-Control."""

from __future__ import annotations

from typing import get_args

import pytest

from headstart.errors import InvalidRequest
from headstart.policies.freshness import (
    Directives,
    compressed_transform,
    parse_directives,
    stricter,
)
from headstart.settings import CompressionMode


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
        (b"max-age=00000000000000000060", Directives(max_age_s=60)),
        (b"max-age=" + b"9" * 4301, Directives(max_age_s=2**31)),
        (b"max-age=\xd9\xa3", Directives(max_age_s=0)),
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


@pytest.mark.parametrize(
    ("values", "mode"),
    [
        ([b"off"], "off"),
        ([b" Balanced"], "balanced"),
        ([b"aggressive", b"safe"], "safe"),
    ],
)
def test_the_strictest_mode_of_compression_asked_for_counts(
    values: list[bytes], mode: CompressionMode
) -> None:
    headers = tuple((b"x-headstart-compress", value) for value in values)
    assert parse_directives(headers) == Directives(compress=mode)
    cached = (*headers, (b"cache-control", b"no-cache"))
    assert parse_directives(cached) == Directives(compress=mode, no_cache=True)


def test_an_unknown_mode_of_compression_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="off, safe, recoverable, balanced, aggressive"):
        parse_directives(((b"x-headstart-compress", b"on"),))


@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        (None, set()),
        ("off", {"safe", "recoverable", "balanced", "aggressive"}),
        ("safe", {"recoverable", "balanced", "aggressive"}),
        ("recoverable", {"balanced", "aggressive"}),
        ("balanced", {"aggressive"}),
        ("aggressive", set()),
    ],
)
def test_answers_to_prompts_compressed_more_than_allowed_are_refused(
    asked: CompressionMode | None, refused: set[str]
) -> None:
    directives = Directives(compress=asked)
    modes = get_args(CompressionMode)
    assert {
        mode for mode in modes if directives.refuses(("model", compressed_transform(mode)))
    } == refused
    assert not directives.refuses(("model", "include-usage"))


def test_an_answer_from_a_mode_of_another_version_is_refused_to_who_asked_for_less() -> None:
    assert Directives(compress="aggressive").refuses(("compressed:newer",))


def test_the_stricter_of_two_modes() -> None:
    assert stricter("balanced", "safe") == stricter("safe", "balanced") == "safe"
    assert stricter("balanced", None) == "balanced"
