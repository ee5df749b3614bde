"""Which requests a web page may have sent, and which of them come in."""

from __future__ import annotations

import pytest

from headstart.policies.callers import OriginRules, proxy_sign

LOCAL = OriginRules()
HOST = (b"host", b"127.0.0.1:8080")
NATIVE = [
    ((b"content-type", b"application/x-www-form-urlencoded"), (b"user-agent", b"curl/8.5.0")),
    ((b"content-type", b"application/json"), (b"user-agent", b"OpenAI/Python 2.0")),
    ((b"content-type", b"text/plain"),),
    ((b"content-type", b"multipart/form-data; boundary=x"),),
    ((b"sec-fetch-mode", b"cors"), (b"user-agent", b"node")),
    (),
]
"""What other clients send; Node's ``fetch`` names a mode, but neither site nor origin."""


@pytest.mark.parametrize("headers", NATIVE)
@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8080", "LOCALHOST:1", "127.0.0.1", "127.8.9.1:80", "[::1]:8080",
     "localhost.", "[::1]", "127.0.0.1.", "127.0.0.1.:80", "LocalHost.:80", "[::ffff:127.0.0.1]:80",
     "[::FFFF:7f00:1]"],
)  # fmt: skip
def test_clients_other_than_browsers_come_in_under_any_local_name(
    host: str, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    assert LOCAL.refusal(((b"host", host.encode()), *headers)) is None


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.nip.io", "10.0.0.1",
     "127.0.0.1@evil.example", "evil@127.0.0.1", "headstart", "host.docker.internal", "0.0.0.0",
     "", "[::1", "[fe80::1]", "local host", "::1", "\xe9",
     ".", "localhost..", "[::ffff:10.0.0.1]", "[::1].", "10.0.0.1."],
)  # fmt: skip
def test_another_name_is_refused_and_told_the_setting(host: str) -> None:
    why = LOCAL.refusal(((b"host", host.encode("latin-1")),))
    assert why is not None
    assert "server.allowed_hosts" in why
    assert "server.client_keys" in why
    assert why.isascii()


def test_a_request_without_a_host_comes_in_unless_a_browser_sent_it() -> None:
    assert LOCAL.refusal(()) is None
    assert LOCAL.refusal(((b"user-agent", b"check/1.0"),)) is None
    assert LOCAL.refusal(((b"origin", b"http://evil.example"),)) is not None
    assert LOCAL.refusal(((b"origin", b""),)) is not None
    assert LOCAL.refusal(((b"sec-fetch-site", b"cross-site"),)) is not None


def test_the_worse_of_two_hosts_decides() -> None:
    assert LOCAL.refusal((HOST, (b"host", b"evil.example"))) is not None


def test_named_hosts_come_in_and_no_other() -> None:
    rules = OriginRules(
        frozenset(("host.docker.internal", "headstart", "10.0.0.1", "dot.example."))
    )
    for host in (
        b"host.docker.internal:8080",
        b"Headstart",
        b"10.0.0.1:80",
        b"localhost",
        b"headstart.",
        b"Headstart.:80",
        b"dot.example",
        b"dot.example.:1",
    ):
        assert rules.refusal(((b"host", host),)) is None
    for host in (b"x.headstart", b"headstart..", b".", b""):
        assert rules.refusal(((b"host", host),)) is not None
    assert OriginRules(None).refusal(((b"host", b"any.example"),)) is None


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "http://evil.example:8080", "null", "http://localhost:3000",
     "http://127.0.0.1:8081", "http://localhost:8080", "chrome-extension://abc", "file://",
     "vscode-webview://0f", "app://obsidian.md", "", "http://127.0.0.1:8080.evil.example"],
)  # fmt: skip
@pytest.mark.parametrize("site", [None, b"cross-site", b"same-site", b"none", b"same-origin"])
def test_pages_of_other_origins_are_refused_whatever_else_they_say(
    origin: str, site: bytes | None
) -> None:
    headers = [HOST, (b"origin", origin.encode()), (b"content-type", b"text/plain")]
    headers += [] if site is None else [(b"sec-fetch-site", site)]
    why = LOCAL.refusal(tuple(headers))
    assert why is not None
    assert "server.allowed_origins" in why


@pytest.mark.parametrize(
    ("site", "comes_in"),
    [(b"cross-site", False), (b"same-site", False), (b"same-origin", True), (b"none", True)],
)
def test_without_an_origin_the_site_decides(site: bytes, comes_in: bool) -> None:
    assert (LOCAL.refusal((HOST, (b"sec-fetch-site", site))) is None) is comes_in


def test_the_servers_own_pages_come_in() -> None:
    own = (HOST, (b"origin", b"http://127.0.0.1:8080"), (b"sec-fetch-site", b"same-origin"))
    assert LOCAL.refusal(own) is None


@pytest.mark.parametrize(
    ("pattern", "origin", "comes_in"),
    [
        ("http://localhost:3000", "http://localhost:3000", True),
        ("http://localhost:3000", "http://localhost:3001", False),
        ("http://localhost:*", "http://localhost:3001", True),
        ("http://localhost:*", "https://localhost:3001", False),
        ("vscode-webview://*", "vscode-webview://0f3a", True),
        ("https://*.corp.example", "https://a.corp.example", True),
        ("https://*.corp.example", "https://corp.example.evil.example", False),
        ("http://[::1]:3000", "http://[::1]:3000", True),
        ("http://[::1]:*", "http://[::1]:99", True),
        ("http://[::1]:*", "http://1:99", False),
        ("http://[::1]:*", "http://::99", False),
        ("http://[!a]:*", "http://b:99", False),
        ("http://[*]:80", "http://[fe80::1]:80", True),
        ("HTTPS://App.example", "https://app.example", True),
    ],
)
def test_only_listed_origins_are_accepted(pattern: str, origin: str, comes_in: bool) -> None:
    rules = OriginRules(origins=(pattern,))
    headers = (HOST, (b"origin", origin.encode()), (b"sec-fetch-site", b"cross-site"))
    assert (rules.refusal(headers) is None) is comes_in
    assert rules.refusal((*headers, (b"origin", b"https://evil.example"))) is not None


@pytest.mark.parametrize(
    "name",
    ["x-forwarded-for", "x-forwarded-host", "x-forwarded-anything", "forwarded", "via", "x-real-ip",
     "x-original-uri", "x-envoy-external-address", "fly-client-ip", "x-azure-clientip",
     "x-azure-socketip", "cf-ray", "cf-connecting-ip", "cdn-loop", "x-forwarded", "client-ip",
     "x-appengine-user-ip", "true-client-ip", "fastly-client-ip", "x-client-ip",
     "x-cluster-client-ip"],
)  # fmt: skip
def test_a_proxy_is_known_by_its_headers(name: str) -> None:
    assert proxy_sign((HOST, (name.encode(), b"1")), "1.1") == name.title()


def test_a_proxy_is_known_by_its_version() -> None:
    assert proxy_sign((HOST,), "1.0") == "HTTP/1.0"
    assert proxy_sign((HOST, (b"x-request-id", b"1"), (b"user-agent", b"x")), "1.1") is None
