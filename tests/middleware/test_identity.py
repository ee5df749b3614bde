"""Identity: what counts as a credential, and who may come in."""

from __future__ import annotations

import pytest

from headstart.errors import Unauthorized
from headstart.middleware.identity import (
    ACCEPTED_FOR_S,
    AcceptedCredentials,
    Callers,
    SharingOptions,
    check_client_key,
    credential_of,
)


def test_each_key_header_and_the_query_key_identify() -> None:
    seen = {
        credential_of(headers, query, cookies=False)
        for headers, query in [
            (((b"authorization", b"Bearer a"),), b""),
            (((b"x-api-key", b"a"),), b""),
            (((b"api-key", b"a"),), b""),
            (((b"x-goog-api-key", b"a"),), b""),
            ((), b"alt=sse&key=a"),
        ]
    }
    assert None not in seen
    assert len(seen) == 5


def test_cookies_count_only_when_asked_for() -> None:
    headers = ((b"cookie", b"session=1"),)
    assert credential_of(headers, b"", cookies=False) is None
    assert credential_of(headers, b"", cookies=True) is not None


def test_header_order_does_not_matter_and_values_do() -> None:
    one = ((b"authorization", b"x"), (b"x-api-key", b"y"))
    assert credential_of(one, b"", cookies=False) == credential_of(one[::-1], b"", cookies=False)
    other = ((b"authorization", b"x"), (b"x-api-key", b"z"))
    assert credential_of(one, b"", cookies=False) != credential_of(other, b"", cookies=False)


@pytest.mark.parametrize(
    "headers",
    [(), ((b"authorization", b"Bearer wrong"),), ((b"x-api-key", b""),), ((b"cookie", b"key"),)],
)
def test_a_missing_or_wrong_client_key_is_refused(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    with pytest.raises(Unauthorized):
        check_client_key(headers, b"", [b"key"])


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        (((b"authorization", b"Bearer second"),), b""),
        (((b"authorization", b"BEARER  second"),), b""),
        (((b"x-api-key", b"second"),), b""),
        (((b"api-key", b"second"),), b""),
        (((b"x-goog-api-key", b"second"),), b""),
        ((), b"alt=sse&key=second"),
    ],
)
def test_a_client_key_is_accepted_wherever_clients_send_theirs(
    headers: tuple[tuple[bytes, bytes], ...], query: bytes
) -> None:
    check_client_key(headers, query, [b"first", b"second"])
    with pytest.raises(Unauthorized):
        check_client_key(headers, query, [b"first"])


def test_without_client_keys_everyone_may_come_in() -> None:
    check_client_key((), b"", [])


@pytest.mark.parametrize(
    ("sharing", "words"),
    [
        (SharingOptions(), ["without a credential", "send a key header"]),
        (SharingOptions(scope="header:X-Team"), ["X-Team", "server.trusted_proxies (nobody)"]),
        (SharingOptions(resolve=lambda _: None), ["scope="]),
    ],
)
def test_why_a_request_is_nobodys_is_told_once(
    sharing: SharingOptions, words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    callers = Callers(sharing, AcceptedCredentials(lambda: 0.0), b"secret")
    for _ in range(2):
        assert callers.identify({"client": ("10.0.0.1", 1)}, (), None) is None
    [said] = caplog.messages
    assert all(word in said for word in words), said


def test_accepted_credentials_expire_and_can_be_rejected() -> None:
    now = 0.0
    accepted = AcceptedCredentials(lambda: now, capacity=2)
    accepted.accept("a")
    assert "a" in accepted
    now = ACCEPTED_FOR_S
    assert "a" not in accepted
    accepted.accept("a")
    accepted.reject("a")
    assert "a" not in accepted
    for scope in "bcd":
        accepted.accept(scope)
    assert [scope in accepted for scope in "bcd"] == [False, True, True]
