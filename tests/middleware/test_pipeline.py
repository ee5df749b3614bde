"""The path of a request, on real sockets: hits, joins, leaving, storing, relaying."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from yarl import URL

from headstart.decisions import Outcome
from headstart.middleware.asgi import Gateway
from support.patience import PATIENCE_S, until
from support.proxied import CHAT, Proxied, proxied, reply_of
from support.scripted import USAGE, ScriptedUpstream
from support.simulated import in_flight

pytestmark = pytest.mark.anyio

BODY = {"model": "m", "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
KEY = {"authorization": "Bearer k"}


def text_of(stream: bytes) -> str:
    chunks = [json.loads(line[6:]) for line in stream.split(b"\n") if line.startswith(b"data: {")]
    return "".join(
        choice["delta"].get("content") or ""
        for chunk in chunks
        for choice in chunk.get("choices", ())
    )


async def test_the_second_equal_request_is_an_exact_hit_in_either_mode() -> None:
    async with proxied() as proxy:
        first = await proxy.ask()
        assert first.verdict == "headstart; fwd=miss; detail=exact-only; stored"
        second = await proxy.ask()
        streamed = await proxy.ask(stream=True)
        assert len(proxy.upstream.calls) == 1
    for hit in (second, streamed):
        assert hit.verdict.startswith("headstart; hit; ttl=")
        assert hit.verdict.endswith("detail=exact")
        assert hit.headers["x-cache"] == "HIT"
        assert hit.headers["age"] == "0"
    assert json.loads(second.body)["choices"][0]["message"]["content"] == "Hello from upstream"
    assert json.loads(second.body)["usage"] == USAGE
    assert second.headers["x-headstart-tokens-saved"] == "50"
    assert json.loads(second.body)["id"] != json.loads(first.body)["id"]
    assert text_of(streamed.body) == "Hello from upstream"
    assert streamed.body.endswith(b"data: [DONE]\n\n")


async def test_a_stored_stream_serves_json_with_the_usage_that_was_asked_upstream_only() -> None:
    async with proxied() as proxy:
        miss = await proxy.ask(stream=True)
        assert proxy.upstream.calls[0].json["stream_options"] == {"include_usage": True}
        assert miss.headers["x-headstart-transforms"] == "include-usage"
        assert b'"usage"' not in miss.body
        await proxy.stored(1)
        hit = await proxy.ask()
        assert json.loads(hit.body)["usage"] == USAGE
        again = await proxy.ask(stream=True, stream_options={"include_usage": True})
        assert b'"usage":{"prompt_tokens":30' in again.body
        assert len(proxy.upstream.calls) == 1


async def test_a_stored_stream_whose_upstream_does_not_count_serves_json_with_an_estimate() -> None:
    async with proxied(provider={"include_usage": False}) as proxy:
        miss = await proxy.ask(stream=True)
        assert b'"usage"' not in miss.body
        await proxy.stored(1)
        usage = json.loads((await proxy.ask()).body)["usage"]
        assert usage["prompt_tokens"] > 0
        assert usage["completion_tokens"] > 0


@pytest.mark.parametrize("hot_bytes", [0, 1 << 20])
async def test_an_answer_with_absurd_numbers_is_stored_as_its_header_says(hot_bytes: int) -> None:
    absurd = {"prompt_tokens": 2**64, "completion_tokens": 10**30, "total_tokens": -(2**70)}
    upstream = ScriptedUpstream()
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "Hi"},
        "finish_reason": "stop",
    }
    document = {"id": "a", "created": 2**80, "model": "m", "choices": [choice], "usage": absurd}
    upstream.body = json.dumps({**document, "unknown": [2**99]}).encode()
    async with proxied(upstream, cache={"hot_bytes": hot_bytes}) as proxy:
        first = await proxy.ask()
        assert first.body == upstream.body
        assert first.verdict.endswith("; stored")
        await proxy.stored(1)
        hit = await proxy.ask()
        assert len(upstream.calls) == 1
    assert "detail=exact" in hit.verdict
    assert json.loads(hit.body)["choices"][0]["message"]["content"] == "Hi"
    assert [0 < row.prompt_tokens < 100 for row in proxy.served] == [True, True]  # estimates


async def test_a_miss_passes_the_clients_own_bytes_and_the_upstreams_own_bytes() -> None:
    async with proxied(provider={"include_usage": False}) as proxy:
        raw = b'{ "model":"m",\t"messages":[{"content":"h\\u00e9","role":"user"}], "zz": 1.50 }'
        async with proxy.session.post(
            URL(f"{proxy.url}{CHAT}?a=%2Fb", encoded=True),
            data=raw,
            headers={**KEY, "x-headstart-tags": "t", "x-custom": "kept", "user-agent": "mine"},
        ) as response:
            reply = await reply_of(response)
        call = proxy.upstream.calls[0]
        assert call.body == raw
        assert call.query == b"a=%2Fb"
        assert call.header(b"x-custom") == b"kept"
        assert call.header(b"user-agent") == b"mine"
        assert call.header(b"authorization") == b"Bearer k"
        assert call.header(b"x-headstart-tags") is None
        assert json.loads(reply.body)["id"] == "up-1"


async def test_identical_calls_in_flight_share_one_upstream_call() -> None:
    upstream = ScriptedUpstream()
    upstream.hold = asyncio.Semaphore(0)
    async with proxied(upstream) as proxy:
        async with proxy.session.post(
            proxy.url + CHAT, json={**BODY, "stream": True}, headers=KEY
        ) as first:
            seen = await first.content.readany()
            assert text_of(seen) == "Hello"
            async with proxy.session.post(
                proxy.url + CHAT, json={**BODY, "stream": True}, headers=KEY
            ) as late:
                assert late.headers["cache-status"] == (
                    "headstart; fwd=miss; collapsed; detail=joined"
                )
                assert text_of(await late.content.readany()) == "Hello"
                upstream.hold.release()
                upstream.hold.release()
                rest = await late.read()
            seen += await first.read()
        assert text_of(rest) == " from upstream"
        assert text_of(seen) == "Hello from upstream"
        assert len(upstream.calls) == 1
        outcomes = sorted(row.outcome for row in proxy.served)
        assert outcomes == [Outcome.JOINED, Outcome.MISS]
        joined = next(row for row in proxy.served if row.outcome is Outcome.JOINED)
        assert (joined.cost_usd, joined.saved_tokens) == (0.0, 50)


async def test_a_client_may_leave_without_breaking_the_others() -> None:
    upstream = ScriptedUpstream()
    upstream.hold = asyncio.Semaphore(0)
    async with proxied(upstream) as proxy:
        body = {**BODY, "stream": True}
        first = await proxy.session.post(proxy.url + CHAT, json=body, headers=KEY)
        await first.content.readany()
        async with proxy.session.post(proxy.url + CHAT, json=body, headers=KEY) as second:
            await second.content.readany()
            first.close()
            await _gone(proxy, 1)
            upstream.hold.release()
            upstream.hold.release()
            assert text_of(await second.read()) == " from upstream"
        await proxy.stored(1)
        assert len(upstream.calls) == 1


async def test_the_last_client_to_leave_cancels_the_upstream_and_nothing_is_stored() -> None:
    upstream = ScriptedUpstream()
    upstream.hold = asyncio.Semaphore(0)
    async with proxied(upstream) as proxy:
        response = await proxy.session.post(
            proxy.url + CHAT, json={**BODY, "stream": True}, headers=KEY
        )
        await response.content.readany()
        response.close()
        async with asyncio.timeout(PATIENCE_S):
            await upstream.calls[0].left.wait()
        upstream.hold = None
        assert "hit" not in (await proxy.ask()).verdict


async def test_a_client_that_leaves_before_the_answer_began_cancels_the_call() -> None:
    upstream = ScriptedUpstream()
    upstream.head_hold = asyncio.Event()
    async with proxied(upstream) as proxy:
        async with asyncio.TaskGroup() as group:
            leaves = group.create_task(proxy.ask())
            await until(lambda: len(upstream.calls) == 1)
            leaves.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await upstream.calls[0].left.wait()


async def _gone(proxy: Proxied, count: int) -> None:
    await until(lambda: sum(row.error == "client-gone" for row in proxy.served) >= count)


async def test_two_credentials_never_share_an_answer() -> None:
    async with proxied() as proxy:
        await proxy.ask()
        other = await proxy.ask(headers={"authorization": "Bearer other"})
        assert other.headers["x-cache"] == "MISS"
        assert len(proxy.upstream.calls) == 2


async def test_a_subdivided_scope_is_its_own() -> None:
    async with proxied() as proxy:
        await proxy.ask()
        assert (await proxy.ask(headers={"x-headstart-scope": "b"})).headers["x-cache"] == "MISS"
        assert (await proxy.ask(headers={"x-headstart-scope": "b"})).headers["x-cache"] == "HIT"


@pytest.mark.parametrize(
    ("finish", "words", "calls"),
    [
        ("length", ["cut"], 1),
        ("content_filter", ["no"], 1),
        ("stop", [""], 2),  # nothing was said: it is asked once more
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_answers_that_did_not_end_well_are_not_stored(
    finish: str, words: list[str], calls: int, stream: bool
) -> None:
    upstream = ScriptedUpstream()
    upstream.finish, upstream.words = finish, words
    async with proxied(upstream) as proxy:
        for _ in range(2):
            reply = await proxy.ask(stream=stream)
            assert reply.status == 200
            assert "hit" not in reply.verdict
        assert len(upstream.calls) == 2 * calls


async def test_a_truncated_stream_ends_in_an_error_and_is_not_stored() -> None:
    upstream = ScriptedUpstream()
    upstream.terminal = False
    async with proxied(upstream) as proxy:
        reply = await proxy.ask(stream=True)
        assert text_of(reply.body) == "Hello from upstream"
        last = reply.body.strip().split(b"\n\n")[-1]
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == (
            "upstream_protocol_error"
        )
        assert b"[DONE]" not in reply.body
        upstream.terminal = True
        assert "hit" not in (await proxy.ask(stream=True)).verdict


async def test_the_answer_of_another_cache_is_not_stored() -> None:
    upstream = ScriptedUpstream()
    upstream.headers = [(b"cache-status", b"other; hit; detail=semantic")]
    async with proxied(upstream) as proxy:
        for _ in range(2):
            assert "not-stored:other-cache" in (await proxy.ask()).verdict
        upstream.headers = [(b"cache-status", b"other; fwd=miss")]
        assert (await proxy.ask()).headers["x-cache"] == "MISS"
        assert (await proxy.ask()).headers["x-cache"] == "HIT"


async def test_an_upstream_error_is_relayed_with_its_headers_and_not_stored() -> None:
    upstream = ScriptedUpstream()
    upstream.status = 429
    upstream.body = b'{"error":{"message":"slow down","type":"rate_limit"}}'
    upstream.headers = [(b"retry-after", b"1"), (b"x-ratelimit-remaining-requests", b"0")]
    async with proxied(upstream) as proxy:
        reply = await proxy.ask()
        assert (reply.status, reply.body) == (429, upstream.body)
        assert reply.headers["retry-after"] == "1"
        assert reply.headers["x-ratelimit-remaining-requests"] == "0"
        asked = len(upstream.calls)
        await proxy.ask()
        assert len(upstream.calls) > asked


@pytest.mark.parametrize(
    ("directive", "verdicts", "calls"),
    [
        ("no-store", ["bypass; detail=no-store", "bypass; detail=no-store"], 2),
        ("no-cache", ["miss; detail=no-cache", "miss; detail=no-cache"], 2),
        ("max-age=0", ["miss", "stale"], 2),
        ("max-age=60", ["miss", "hit"], 1),
    ],
)
async def test_request_cache_control_is_obeyed(
    directive: str, verdicts: list[str], calls: int
) -> None:
    async with proxied() as proxy:
        for verdict in verdicts:
            reply = await proxy.ask(headers={"cache-control": directive})
            assert verdict in reply.verdict
            await asyncio.sleep(0.01)
        assert len(proxy.upstream.calls) == calls


async def test_only_if_cached_never_calls_upstream() -> None:
    async with proxied() as proxy:
        headers = {"cache-control": "only-if-cached"}
        refused = await proxy.ask(headers=headers)
        assert (refused.status, json.loads(refused.body)["error"]["code"]) == (504, "not_cached")
        assert not proxy.upstream.calls
        await proxy.ask()
        assert (await proxy.ask(headers=headers)).status == 200


async def test_a_holdout_goes_upstream_and_is_marked() -> None:
    async with proxied(cache={"holdout": 0.999999}) as proxy:
        await proxy.ask()
        held = await proxy.ask()
        assert held.verdict.startswith("headstart; fwd=miss; detail=holdout")
        asked = [dict(call.headers).get(b"cache-control") for call in proxy.upstream.calls]
        assert asked == [None, b"no-cache"], "no other cache may answer"
        first, row = proxy.served
    assert row.holdout
    assert row.entry == first.id
    assert row.lookup_s > 0.0, "its lookup is booked like any other"


async def test_limits_of_the_request_are_checked_against_the_stored_answer() -> None:
    async with proxied() as proxy:
        await proxy.ask()
        assert (await proxy.ask(max_tokens=20)).headers["x-cache"] == "HIT"
        shorter = await proxy.ask(max_tokens=19)
        assert "detail=longer-than-limit" in shorter.verdict
        assert len(proxy.upstream.calls) == 2


@pytest.mark.parametrize(
    "texts", [["No"], ["Rayleigh scattering. " * 9], ["Rayleigh scattering. " * 9, "No"]]
)
async def test_an_answer_without_usage_fits_the_limit_of_its_own_request(texts: list[str]) -> None:
    """Its estimated length would be 0, or more than the limit within which it came to its end."""
    upstream = ScriptedUpstream()
    said = [{"message": {"role": "assistant", "content": text}} for text in texts]
    choices = [{"index": n, "finish_reason": "stop", **each} for n, each in enumerate(said)]
    upstream.body = json.dumps({"model": "m", "choices": choices}).encode()
    async with proxied(upstream) as proxy:
        asked = [await proxy.ask(max_tokens=30, n=len(texts)) for _ in range(2)]
    assert [reply.headers["x-cache"] for reply in asked] == ["MISS", "HIT"], asked[-1].verdict


async def test_an_answer_that_fills_its_limit_is_not_stored_although_it_calls_itself_complete() -> (
    None
):
    async with proxied() as proxy:
        cut = await proxy.ask(max_tokens=20)
        assert "not-stored:length" in cut.verdict
        assert (await proxy.ask()).headers["x-cache"] == "MISS"
        assert (await proxy.ask(max_tokens=20)).headers["x-cache"] == "HIT"


async def test_other_paths_are_relayed_byte_for_byte_and_streamed_up() -> None:
    async with proxied() as proxy:
        proxy.upstream.body = b"\x00audio\xff"
        proxy.upstream.headers = [(b"content-type", b"audio/mpeg"), (b"x-up", b"1")]

        async def upload() -> Any:
            yield b"part one,"
            yield b"part two"

        async with proxy.session.post(
            URL(f"{proxy.url}/v1/audio/a%2Fb?x=1&x=2", encoded=True), data=upload(), headers=KEY
        ) as response:
            reply = await reply_of(response)
        assert reply.body == b"\x00audio\xff"
        assert reply.headers["x-up"] == "1"
        assert reply.verdict == "headstart; fwd=bypass; detail=relayed"
        call = proxy.upstream.calls[0]
        assert (call.path, call.query) == ("/v1/audio/a%2Fb", b"x=1&x=2")
        assert call.body == b"part one,part two"


async def test_client_keys_are_required_replaced_upstream_and_never_sent_on() -> None:
    async with proxied(server={"client_keys": ["let-me-in"]}) as proxy:
        refused = await proxy.ask()
        assert (refused.status, json.loads(refused.body)["error"]["code"]) == (
            401,
            "invalid_api_key",
        )
        async with proxy.session.get(f"{proxy.url}/v1/models") as response:
            assert response.status == 401
        assert not proxy.upstream.calls
        assert (await proxy.ask(headers={"authorization": "Bearer let-me-in"})).status == 200
        assert proxy.upstream.calls[0].header(b"authorization") is None


async def test_the_cost_of_a_call_is_told_once_however_many_requests_share_it() -> None:
    upstream = ScriptedUpstream()
    upstream.hold = asyncio.Semaphore(0)
    price = {"default": {"input_per_million": 1.0, "output_per_million": 2.0}}
    async with proxied(upstream, provider={"price": price}) as proxy:
        assert isinstance(proxy.app, Gateway)
        assert proxy.app._engines
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(proxy.ask()) for _ in range(3)]
            await in_flight(proxy.app._engines[asyncio.get_running_loop()].engine.flights, 3)
            upstream.hold.release()
            upstream.hold.release()
        costs = [each.result().headers.get("x-headstart-cost") for each in asked]
        assert sum(row.outcome is Outcome.JOINED for row in proxy.served) == 2
    assert sorted(costs, key=str) == ["0.00007000", None, None]


async def test_a_row_is_booked_for_each_request_with_its_savings() -> None:
    price = {"default": {"input_per_million": 1.0, "output_per_million": 2.0}}
    async with proxied(provider={"price": price}) as proxy:
        miss = await proxy.ask()
        await proxy.ask()
        assert miss.headers["x-headstart-cost"] == "0.00007000"
        paid, hit = proxy.served
    assert paid.cost_usd == pytest.approx(70e-6)
    assert (paid.prompt_tokens, paid.completion_tokens, paid.stored) == (30, 20, True)
    assert hit.outcome is Outcome.EXACT
    assert hit.cost_usd == 0.0
    assert hit.saved_usd == pytest.approx(70e-6)
    assert hit.saved_tokens == 50
    assert hit.saved_total_s == pytest.approx(paid.total_s - hit.total_s, abs=0.05)


async def test_an_unreachable_upstream_is_one_clear_502() -> None:
    async with proxied(provider={"base_url": "http://127.0.0.1:9"}) as proxy:
        reply = await proxy.ask()
        error = json.loads(reply.body)["error"]
    assert (reply.status, error["code"]) == (502, "upstream_unreachable")
    assert "refused" in error["message"].lower()
    assert "ssl" not in error["message"]
