"""A fault of one provider does not reach the caller when another provider is healthy."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

import openai
import pytest

from benchmarks.faults import bench
from benchmarks.faults_cases import CATALOGUE, MORE, Case
from headstart.attempts import AttemptOutcome, AttemptRole
from headstart.lab.simulator import Oracle
from headstart.lab.simulator.faults import Cut, NoDone, Spell, Stall, Status
from headstart.lab.simulator.profiles import ProviderProfile
from support.patience import PATIENCE_S, until
from support.proxied import CHAT, Reply
from support.sdks import CLIENTS, Ask
from support.sidecar import PROMPT, Provider, headers_of, sidecar
from support.simulated import chat, simulated

if TYPE_CHECKING:
    from headstart.observe import Served

EXACT = {"mode": "exact-only"}
ENDED = {
    "openai": "stop",
    "responses": "completed",
    "anthropic": "end_turn",
    "gemini": "STOP",
}
ANSWER = Oracle().truth(PROMPT).text
FRESH = {"cache-control": "no-store"}
HURRY = 5.0
"""The catalogue's times are divided by it, so that its long waits take some seconds."""
QUICK = {case.name: case for case in (*CATALOGUE, *MORE) if case.name != "15"}


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    """Run the bench: all cases at once, through ``headstart serve``."""
    return {row["case"]: row for row in asyncio.run(bench(tuple(QUICK.values()), HURRY))}


@pytest.mark.parametrize("case", QUICK.values(), ids=lambda case: f"{case.name}: {case.what}")
def test_a_caller_gets_an_answer_in_spite_of_each_fault(
    case: Case, rows: dict[str, dict[str, Any]]
) -> None:
    row = rows[case.name]
    assert (row["verdict"], row["reason"]) == ("pass", ""), row


def two(strategy: str = "fallback", **fields: Any) -> tuple[dict[str, Any], ...]:
    """Return a route over both upstreams, for all requests."""
    route = {"name": "all", "strategy": strategy, "upstreams": ["sim", "spare"]}
    return ({**route, "equal_models": "assume", **fields},)


def content_of(reply: Reply) -> str:
    content: str = json.loads(reply.body)["choices"][0]["message"]["content"]
    return content


def paths_of(row: Served) -> list[tuple[str, AttemptRole, AttemptOutcome]]:
    return [(each.upstream, each.role, each.outcome) for each in row.attempts]


@pytest.mark.anyio
async def test_a_provider_that_recovers_is_asked_again() -> None:
    down = Spell(to_s=4.0, fault=Status(status=503))
    async with simulated(Provider()) as spare:
        others = ({"name": "spare", "base_url": spare},)
        async with sidecar(
            Provider(weather=(down,)), others=others, routes=two(), cache=EXACT
        ) as gateway:
            served_by: set[str] = set()
            async with asyncio.timeout(PATIENCE_S):
                while "sim" not in served_by:
                    reply = await gateway.ask(headers=FRESH)
                    assert reply.status == 200
                    served_by.add(reply.headers["x-headstart-upstream"])
                    await asyncio.sleep(0.05)
            assert served_by == {"sim", "spare"}


@pytest.mark.anyio
async def test_answers_that_are_not_streamed_teach_which_provider_is_faster() -> None:
    slow = ProviderProfile(model="m", ttft_ms=300)
    quick = ProviderProfile(model="m", ttft_ms=20)
    async with simulated(Provider(profile=quick)) as spare:
        others = ({"name": "spare", "base_url": spare},)
        async with sidecar(
            Provider(profile=slow), others=others, routes=two("fastest"), cache=EXACT
        ) as gateway:
            replies = [await gateway.ask(f"question {i}", headers=FRESH) for i in range(80)]
            served = [reply.headers["x-headstart-upstream"] for reply in replies]
            # Of the last 60, one in ten may measure an upstream whose samples have aged.
            assert served[20:].count("spare") >= 45, served


@pytest.mark.anyio
async def test_a_rescued_answer_is_not_stored_and_both_calls_are_booked() -> None:
    async with simulated(Provider()) as spare:
        others = ({"name": "spare", "base_url": spare},)
        async with sidecar(
            Provider(fault=Cut(after=5, times=1)), others=others, routes=two(), cache=EXACT
        ) as gateway:
            await gateway.ask(stream=True)
            await gateway.finished(1)
            assert paths_of(gateway.served[0]) == [
                ("sim", AttemptRole.FIRST, AttemptOutcome.BROKEN),
                ("spare", AttemptRole.RESCUE, AttemptOutcome.WON),
            ]
            assert not gateway.served[0].stored
            assert (await gateway.ask(stream=True)).headers["x-cache"] == "MISS"
            assert (await gateway.ask(stream=True)).headers["x-cache"] == "HIT"


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
@pytest.mark.parametrize("fault", [None, NoDone()], ids=["healthy", "no-done"])
@pytest.mark.parametrize("dialect", CLIENTS)
async def test_a_rescued_stream_ends_as_its_dialect_does(dialect: str, fault: Any) -> None:
    async with simulated(Provider(fault=fault)) as spare:
        others = ({"name": "spare", "base_url": spare, "dialect": dialect},)
        async with sidecar(
            Provider(fault=Cut(after=5)),
            upstream={"dialect": dialect},
            others=others,
            routes=two(),
            cache=EXACT,
        ) as gateway:
            ask = Ask("m", PROMPT, stream=True)
            if fault is not None and dialect == "responses":
                # Its last event alone says how an answer ended: without it nobody knows.
                with pytest.raises(openai.APIError, match="broke off"):
                    await CLIENTS[dialect](gateway.url, ask)
                return
            said = await CLIENTS[dialect](gateway.url, ask)
            assert (said.text, said.ended) == (ANSWER, ENDED[dialect])
            assert min(said.tokens) > 0


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_names_the_upstream_that_gave_it(stream: bool) -> None:
    fault = Status(status=503, message="the first is down")
    second = Provider(fault=Status(status=500, message="so is the second"))
    async with (
        simulated(second) as spare,
        sidecar(
            Provider(fault=fault),
            others=({"name": "spare", "base_url": spare},),
            routes=two(),
            cache=EXACT,
        ) as gateway,
    ):
        reply = await gateway.ask(stream=stream)
        await gateway.finished(1)
    assert b"the first is down" in reply.body
    assert reply.headers["x-headstart-upstream"] == "sim"
    assert [row.upstream for row in gateway.served] == ["sim"]


@pytest.mark.anyio
async def test_one_callers_refused_key_is_not_anothers() -> None:
    async with sidecar(Provider(api_keys=["sk-good"]), cache=EXACT) as gateway:
        for _ in range(2):  # each time in the provider's own words
            reply = await gateway.ask(headers={"authorization": "Bearer sk-bad"})
            assert reply.status == 401
            assert "x-should-retry" not in reply.headers
        reply = await gateway.ask(headers={"authorization": "Bearer sk-good"})
        assert reply.status == 200


@pytest.mark.anyio
async def test_one_callers_rate_limit_is_not_anothers() -> None:
    limited = Status(status=429, headers={"retry-after": "3000"}, times=1)
    async with sidecar(cache=EXACT) as gateway:
        assert (await gateway.ask(fault=limited)).status == 429
        assert (await gateway.ask()).status == 429
        other = await gateway.ask(headers={"authorization": "Bearer sk-other"})
        assert other.status == 200
        assert gateway.provider.calls == 2


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_a_rate_limited_lone_provider_is_answered_for_with_429(stream: bool) -> None:
    limited = Status(status=429, headers={"retry-after": "3000"}, times=1)
    async with sidecar(cache=EXACT) as gateway:
        first = await gateway.ask(fault=limited, stream=stream)
        assert (first.status, first.headers["retry-after"]) == (429, "3000")
        second = await gateway.ask("Another question", stream=stream)
        assert second.status == 429
        assert json.loads(second.body)["error"]["code"] == "rate_limit_exceeded"
        assert int(second.headers["retry-after"]) in range(2990, 3001)
        assert "x-should-retry" not in second.headers
        assert gateway.provider.calls == 1


@pytest.mark.anyio
async def test_a_client_of_a_single_upstream_may_retry_although_we_have() -> None:
    async with sidecar(cache=EXACT) as gateway:
        reply = await gateway.ask(fault=Status(status=500))
        assert (reply.status, "x-should-retry" in reply.headers) == (500, False)
        assert gateway.provider.calls == 2
        own = Status(status=400, headers={"x-should-retry": "false", "x-mark": "theirs"})
        reply = await gateway.ask(fault=own)
        assert (reply.headers["x-should-retry"], reply.headers["x-mark"]) == ("false", "theirs")
        assert "x-should-retry" not in (await gateway.ask(fault=Status(status=400))).headers
        for cut in (Cut(), Cut(after=5)):  # no answer, and half of one
            reply = await gateway.ask(fault=cut)
            assert (reply.status, "x-should-retry" in reply.headers) == (502, False)


@pytest.mark.anyio
async def test_a_long_whole_answer_is_not_held_to_the_first_tokens_limit() -> None:
    slow = Provider(profile=ProviderProfile(model="m", ttft_ms=600))
    async with sidecar(slow, upstream={"first_token_s": 0.2}, cache=EXACT) as gateway:
        reply = await gateway.ask()
        assert (reply.status, content_of(reply)) == (200, ANSWER)
        assert gateway.provider.calls == 1


@pytest.mark.anyio
@pytest.mark.parametrize("strategy", ["race", "hedge", "fallback"])
async def test_a_client_that_leaves_ends_all_calls_and_they_are_booked(strategy: str) -> None:
    silent = Provider(fault=Stall(after=0, seconds=60))
    async with simulated(silent) as spare:
        others = ({"name": "spare", "base_url": spare},)
        async with sidecar(
            Provider(fault=Stall(after=0, seconds=60)),
            others=others,
            routes=two(strategy, race_billed=True),
            cache=EXACT,
        ) as gateway:
            first = gateway.provider.stats
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(gateway.ask(stream=True))
                await until(lambda: first.snapshot().in_flight == 1)
                if strategy == "race":
                    await until(lambda: silent.stats.snapshot().in_flight == 1)
                asking.cancel()
            await gateway.finished(1)
            await until(lambda: first.snapshot().in_flight + silent.stats.snapshot().in_flight == 0)
            booked = {each.upstream: each.outcome for each in gateway.served[0].attempts}
            names = ("sim", "spare") if strategy == "race" else ("sim",)
            assert booked == dict.fromkeys(names, AttemptOutcome.ABANDONED)
            assert gateway.served[0].error == "client-gone"


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_holds_across_all_tries(stream: bool) -> None:
    async with simulated(Provider(fault=Stall())) as spare:
        others = ({"name": "spare", "base_url": spare, "first_token_s": 0.3},)
        async with sidecar(
            Provider(fault=Status(status=503)), others=others, routes=two(retries=5), cache=EXACT
        ) as gateway:
            loop = asyncio.get_running_loop()
            began = loop.time()
            reply = await gateway.ask(stream=stream, headers={"x-headstart-deadline-ms": "900"})
            assert reply.status in (503, 504)
            assert loop.time() - began < 5.0
            await gateway.finished(1)
            assert all(each.total_s < 2.0 for each in gateway.served[0].attempts)


@pytest.mark.anyio
async def test_a_caller_who_joins_is_not_held_to_the_others_deadline() -> None:
    async with sidecar(
        Provider(profile=ProviderProfile(model="m", ttft_ms=700)), cache=EXACT
    ) as gateway:
        async with asyncio.TaskGroup() as group:
            hasty = group.create_task(gateway.ask(headers={"x-headstart-deadline-ms": "300"}))
            await gateway.in_flight(1)
            patient = await gateway.ask()
        assert hasty.result().status == 504
        assert (patient.status, content_of(patient)) == (200, ANSWER)


@pytest.mark.anyio
@pytest.mark.parametrize("strategy", ["race", "hedge"])
async def test_a_whole_answer_that_was_raced_for_is_a_document_like_any(strategy: str) -> None:
    async with simulated(Provider()) as spare:
        others = ({"name": "spare", "base_url": spare},)
        async with sidecar(
            others=others, routes=two(strategy, race_billed=True), cache=EXACT
        ) as gateway:
            direct = await gateway.session.post(
                gateway.provider_url + CHAT, json=chat(PROMPT), headers=headers_of()
            )
            theirs = await direct.json()
            reply = await gateway.ask()
            assert reply.headers["content-type"].startswith("application/json")
            assert int(reply.headers["content-length"]) == len(reply.body)
            ours = json.loads(reply.body)
            assert content_of(reply) == theirs["choices"][0]["message"]["content"]
            assert ours["choices"][0]["finish_reason"] == "stop"
            for name in ("usage", "object", "model"):
                assert ours[name] == theirs[name]
            assert (await gateway.ask()).headers["x-cache"] == "HIT"


@pytest.mark.anyio
async def test_relayed_paths_pass_byte_for_byte_whatever_the_route() -> None:
    async with simulated(Provider()) as spare:
        others = ({"name": "spare", "base_url": spare},)
        async with sidecar(others=others, routes=two("race"), cache=EXACT) as gateway:
            raw = bytes(range(256)) * 40
            target = "/v1/echo/files?purpose=a%20b&x=%7B"
            async with gateway.session.post(gateway.url + target, data=raw) as response:
                echoed = await response.json()
            assert echoed["body"].encode("latin-1") == raw
            assert (echoed["path"], echoed["query"]) == ("/v1/echo/files", "purpose=a%20b&x=%7B")
            bodies = []
            for url in (gateway.url, gateway.provider_url):
                async with gateway.session.get(url + "/v1/models") as response:
                    bodies.append(json.loads(await response.read())["data"][0]["id"])
            assert bodies[0] == bodies[1]


@pytest.mark.anyio
async def test_neither_logs_nor_our_errors_hold_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret, prompt = "sk-a-very-secret-key", "my private diagnosis"
    headers = {"authorization": f"Bearer {secret}"}
    faults = (Cut(), Cut(after=3), Stall(after=0), Status(status=503), Status(status=401))
    async with sidecar(upstream={"first_token_s": 0.2}, cache=EXACT) as gateway:
        for fault in faults:
            for stream in (False, True):
                more = {**headers, "x-headstart-deadline-ms": "500"}
                reply = await gateway.ask(prompt, fault=fault, stream=stream, headers=more)
                assert secret.encode() not in reply.body
                assert prompt.encode() not in reply.body
    ours = [row for row in caplog.records if row.name.startswith("headstart")]
    for text in (row.getMessage() + str(row.exc_info) for row in ours):
        assert secret not in text
        assert prompt not in text


@pytest.mark.anyio
async def test_a_caller_that_names_many_models_costs_no_memory() -> None:
    async with sidecar(cache=EXACT) as gateway:
        states = gateway.parts[0].states
        assert states is not None
        for number in range(10_000):
            states.of("sim", f"model-{number}", "key")
        assert len(states.items()) <= 1024
