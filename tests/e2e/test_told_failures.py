"""The log and the books report a call that failed, without prompts and keys."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from aiohttp.http_exceptions import TransferEncodingError

from headstart.lab.simulator.faults import Cut, ErrorFrame, Fault, InvalidEvent, Stall, Status
from headstart.middleware.upstreams.accounting import upstream_error
from headstart.settings import UpstreamSettings
from support.raw_upstream import RawUpstream, raw_upstream
from support.scripted import ScriptedUpstream
from support.serving import bind_free_port, serving
from support.sidecar import sidecar

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.anyio

EXACT = {"mode": "exact-only"}
SECRET = "a secret of mine"


async def told(
    caplog: pytest.LogCaptureFixture,
    upstream: dict[str, Any] | None = None,
    fault: Fault | None = None,
    *,
    stream: bool = True,
) -> str:
    """Return the log's line on a call that failed. The books have the same reason."""
    caplog.clear()
    async with sidecar(cache=EXACT, upstream=upstream or {}) as gateway:
        await gateway.ask(SECRET, stream=stream, fault=fault)
        await gateway.finished(1)
        attempts = gateway.served[0].attempts
    assert attempts
    (line,) = caplog.messages
    assert all(each.reason is None or each.reason in line for each in attempts)
    assert SECRET not in caplog.text
    assert "sk-test" not in caplog.text
    return line.removeprefix("upstream sim failed: ")


async def test_no_connection(caplog: pytest.LogCaptureFixture) -> None:
    with bind_free_port() as closed:
        url = "http://{}:{}".format(*closed.getsockname())
        line = await told(caplog, {"base_url": url})
    assert line == "unreachable (no connection: Connection refused)"
    line = await told(caplog, {"base_url": "http://provider.invalid"})
    assert line.startswith("unreachable (its name cannot be resolved: ")
    line = await told(caplog, {"base_url": "http://provider.invalid", "proxy": url})
    assert line == "unreachable (its proxy cannot be reached: Connection refused)"


async def test_a_certificate_that_is_not_accepted(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    authority, ca_file, chain = trustme.CA(), tmp_path / "ca", tmp_path / "chain"
    authority.cert_pem.write_to_path(ca_file)

    async def told_of(certificate: trustme.LeafCert, **trusted: str) -> str:
        certificate.private_key_and_cert_chain_pem.write_to_path(chain)
        async with serving(ScriptedUpstream(), ssl_certfile=str(chain)) as url:
            return await told(caplog, {"base_url": url, **trusted})

    ours = {"ca_file": str(ca_file)}
    past = [dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (2019, 2020)]
    expired = authority.issue_cert("127.0.0.1", not_before=past[0], not_after=past[1])
    refused = "unreachable (certificate not accepted: "
    assert await told_of(authority.issue_cert("127.0.0.1")) == (
        f"{refused}unable to get local issuer certificate; for an authority of your own set "
        "upstream.ca_file)"
    )
    assert await told_of(expired, **ours) == f"{refused}certificate has expired)"
    line = await told_of(authority.issue_cert("other.example"), **ours)
    assert line.startswith(refused)
    assert "127.0.0.1" in line
    assert "ca_file" not in line
    async with serving(ScriptedUpstream()) as plain:
        line = await told(caplog, {"base_url": plain.replace("http:", "https:")})
    assert line == (
        "unreachable (no TLS is spoken there; for plain HTTP, begin upstream.base_url with http:)"
    )


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (Cut(how="close"), "unreachable (closed the connection without an answer)"),
        (Cut(), "unreachable (the connection broke: Connection reset by peer)"),
        (Stall(), "silent (sent no content within upstream.first_token_s)"),
        (Cut(after=1), "cut (status 200: broke off its answer)"),
        (Cut(after=1, how="end"), "cut (status 200: ended before its answer did)"),
        (
            Stall(after=1),
            "stalled (status 200: fell silent in its answer, beyond upstream.stall_s)",
        ),
        (InvalidEvent(), "protocol (status 200: an event of the stream is not JSON)"),
        (ErrorFrame(), "server-error (status 200: its answer contains an error)"),
        (Status(status=500), "server-error (status 500)"),
    ],
)
async def test_a_fault_of_the_answer(
    fault: Fault, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert await told(caplog, {"first_token_s": 0.3, "stall_s": 0.3}, fault) == line


async def test_a_provider_that_sends_the_request_back_does_not_bring_it_into_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with raw_upstream(RawUpstream(f"POST /{SECRET} sk-test\r\n\r\n".encode())) as url:
        line = await told(caplog, {"base_url": url})
    assert line == "protocol (sent no valid HTTP: Bad status line)"


async def test_no_connection_in_time(caplog: pytest.LogCaptureFixture) -> None:
    with bind_free_port() as silent:
        silent.listen()  # the system takes the connection, and nobody speaks TLS on it
        url = "https://{}:{}".format(*silent.getsockname())
        line = await told(caplog, {"base_url": url, "connect_s": 0.1})
    assert line == "timeout (no connection within upstream.connect_s, 0.1 s)"


async def test_each_attempt_has_its_own_reason(caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.ExitStack() as open_sockets:
        closed = open_sockets.enter_context(bind_free_port())
        url = "http://{}:{}".format(*closed.getsockname())
        others = (
            {"name": "refused", "base_url": url},
            {"name": "nameless", "base_url": "http://provider.invalid"},
        )
        route = {
            "name": "race",
            "strategy": "race",
            "upstreams": ["refused", "nameless"],
            "race_billed": True,
        }
        async with sidecar(
            cache=EXACT, others=others, routes=(route,), server={"client_keys": ["sk-test"]}
        ) as gateway:
            await gateway.ask(SECRET)
            await gateway.finished(1)
            reasons = {each.upstream: each.reason for each in gateway.served[0].attempts}
    assert reasons["refused"] == "no connection: Connection refused"
    assert str(reasons["nameless"]).startswith("its name cannot be resolved: ")
    assert {line.split()[1] for line in caplog.messages} == {"refused", "nameless"}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError(SECRET), "closed the connection"),
        (TransferEncodingError(SECRET), "broke off its answer"),  # of aiohttp without its C parts
    ],
)
async def test_an_error_of_the_client_library_quotes_nothing(error: Exception, told: str) -> None:
    failed = upstream_error(UpstreamSettings(name="p", base_url="http://x"), error, 1.0)
    assert str(failed) == f"upstream p {told}"
