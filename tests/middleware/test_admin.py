"""The admin API of a real sidecar: access, what it shows, what it deletes."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio
import pytest
from prometheus_client import CollectorRegistry
from yarl import URL

from headstart.config.loading import load_settings
from headstart.embeddings.stores.memory import MemoryStore
from headstart.errors import ConfigError, StoreError
from headstart.middleware.admin import admin_app
from headstart.middleware.admin_front import AdminState, EngineParts
from headstart.middleware.concurrency import ConcurrencyLimit
from headstart.middleware.flights import Flights
from headstart.middleware.metrics import PrometheusObserver
from headstart.middleware.observers import Observers, RecentRequests
from headstart.policies.callers import OriginRules
from headstart.sidecar import build_sidecar
from headstart.types import Charge, Charged, StoreStats
from support.entries import put
from support.proxied import CHAT, Reply, reply_of
from support.raw_upstream import ask_raw
from support.scripted import ScriptedUpstream
from support.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headstart.interfaces import Store

pytestmark = pytest.mark.anyio

TOKEN = "secret-token"
BEARER = {"authorization": f"Bearer {TOKEN}"}
PROTECTED = ("metrics", "stats", "cache", "cache/x", "explain/x", "config", "openapi")
PARTITION = 64


@dataclass
class Sidecar:
    """A running sidecar and a client of it."""

    url: str
    session: aiohttp.ClientSession

    async def get(self, path: str, **options: Any) -> Reply:
        return await self.call("GET", f"/_headstart/{path}", **options)

    async def call(self, method: str, path: str, **options: Any) -> Reply:
        url = URL(self.url + path, encoded=True)
        async with self.session.request(method, url, **options) as response:
            return await reply_of(response)

    async def json(self, path: str) -> Any:
        reply = await self.get(path)
        assert reply.status == 200, reply.body
        return decode(reply)

    async def ask(self, text: str, **headers: str) -> Reply:
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        headers = {"authorization": "Bearer key", **headers}
        return await self.call("POST", CHAT, json=body, headers=headers)


def decode(reply: Reply) -> Any:
    assert reply.headers["content-type"].startswith("application/"), reply.headers
    return json.loads(reply.body)


@contextlib.asynccontextmanager
async def sidecar(store: str = "memory:", **settings: Any) -> AsyncIterator[Sidecar]:
    """Run a sidecar before a scripted upstream. ``settings`` are those of ``[server]``."""
    async with serving(ScriptedUpstream()) as upstream, aiohttp.ClientSession() as session:
        dotted = {f"server.{name}": value for name, value in settings.items()}
        cache = {"cache.store": store, "cache.mode": "exact-only"}
        provider = {"name": "sim", "base_url": upstream + "/v1", "headers": {"x-key": "hush"}}
        loaded = load_settings(None, {}, {**cache, **dotted, "upstream": [provider]})
        async with serving(build_sidecar(loaded)) as url:
            yield Sidecar(url, session)


@pytest.fixture
async def local() -> AsyncIterator[Sidecar]:
    async with sidecar() as running:
        yield running


@pytest.fixture
async def guarded(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sidecar]:
    monkeypatch.setenv("ADMIN_TOKEN", TOKEN)
    async with sidecar(admin_token_env="ADMIN_TOKEN") as running:
        yield running


# --- who may use it --------------------------------------------------------------------------


@pytest.mark.parametrize("path", PROTECTED)
async def test_every_path_but_health_and_ready_asks_for_the_token(
    guarded: Sidecar, path: str
) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}):
        reply = await guarded.get(path, headers=headers)
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == "Bearer"
        assert decode(reply)["error"]["code"] == "unauthorized"
    assert (await guarded.get(path, headers=BEARER)).status in {200, 404}


@pytest.mark.parametrize("path", [*PROTECTED, "health", "ready", "nothing"])
async def test_no_answer_may_be_kept_or_taken_for_a_page(guarded: Sidecar, path: str) -> None:
    for headers in ({}, BEARER):
        reply = await guarded.get(path, headers=headers)
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["x-content-type-options"] == "nosniff"


async def test_deleting_asks_for_the_token(guarded: Sidecar) -> None:
    assert (await guarded.call("DELETE", "/_headstart/cache?tag=a")).status == 401
    assert (await guarded.call("DELETE", "/_headstart/cache/x")).status == 401


async def test_a_bearer_that_is_not_ascii_is_refused(guarded: Sidecar) -> None:
    reply = await guarded.get("stats", headers={"authorization": "Bearer \u00fc"})
    assert reply.status == 401


@pytest.mark.parametrize("path", ["health", "ready"])
async def test_health_and_ready_need_no_token(guarded: Sidecar, path: str) -> None:
    assert (await guarded.get(path)).status == 200


async def test_a_server_that_others_reach_names_the_setting_of_the_token() -> None:
    async with sidecar(host="0.0.0.0") as running:
        for path in PROTECTED:
            reply = await running.get(path)
            assert reply.status == 403
            assert "server.admin_token_env" in decode(reply)["error"]["message"]
        assert (await running.get("ready")).status == 200


async def test_without_a_token_a_foreign_host_name_is_refused(local: Sidecar) -> None:
    for host, status in (("evil.example", 403), ("localhost:80", 200), ("[::1]:80", 200)):
        assert (await local.get("stats", headers={"host": host})).status == status


@pytest.mark.parametrize(
    "header",
    ["x-forwarded-for", "x-forwarded-proto", "forwarded", "via", "x-real-ip", "cf-connecting-ip"],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "cache?texts=1"), ("DELETE", "cache?tag=x")])
async def test_without_a_token_a_proxy_on_this_machine_is_refused(
    local: Sidecar, header: str, method: str, path: str
) -> None:
    reply = await local.call(method, f"/_headstart/{path}", headers={header: "203.0.113.9"})
    assert reply.status == 403
    message = decode(reply)["error"]["message"]
    assert "server.admin_token_env" in message
    assert header.title() in message
    assert (await local.get("ready", headers={header: "203.0.113.9"})).status == 200


async def test_with_the_token_a_proxy_passes(guarded: Sidecar) -> None:
    headers = {**BEARER, "x-forwarded-for": "203.0.113.9", "host": "llm.example"}
    assert (await guarded.get("stats", headers=headers)).status == 200


async def test_without_a_token_the_version_that_nginx_speaks_is_refused(local: Sidecar) -> None:
    answer = await ask_raw(local.url, b"GET /_headstart/stats HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"HTTP/1.0" in answer


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_without_a_token_a_page_of_another_site_is_refused(local: Sidecar, site: str) -> None:
    assert (await local.get("stats", headers={"sec-fetch-site": site})).status == 403
    assert (await local.get("stats", headers={"sec-fetch-site": "same-origin"})).status == 200


@pytest.mark.parametrize(
    "path",
    ["/%5fheadstart/stats", "//_headstart/stats", "/x/../_headstart/stats", "/_HEADSTART/stats",
     "/_headstart%2fstats", "/_headstart", "/_headstart/nothing", "/_headstart/../config"],
)  # fmt: skip
async def test_no_other_spelling_leads_to_it(local: Sidecar, path: str) -> None:
    reply = await local.call("GET", path)
    assert reply.status == 404
    assert decode(reply)["error"]["code"] == "not_found"


async def test_a_missing_token_variable_is_an_error_at_start() -> None:
    settings = load_settings(None, {}, {"server.admin_token_env": "HEADSTART_NO_SUCH_VARIABLE"})
    with pytest.raises(ConfigError, match=r"server\.admin_token_env.*HEADSTART_NO_SUCH_VARIABLE"):
        build_sidecar(settings)


# --- what it shows ---------------------------------------------------------------------------


async def test_stats_count_requests_and_entries(local: Sidecar) -> None:
    await local.ask("one")
    await local.ask("one")
    await local.ask("two", **{"cache-control": "no-store"})
    stats = await local.json("stats")
    assert stats["requests"] == 3
    assert stats["hits"] == {"exact": 1, "semantic": 0}
    assert (stats["misses"], stats["joined"], stats["bypasses"]) == (1, 0, 1)
    assert stats["relayed"] == 0
    assert stats["now"]["entries"] == 1
    assert stats["now"]["bytes"] > 0
    assert stats["now"]["in_flight"] == stats["now"]["encoder_queue"] == 0
    assert stats["uptime_s"] > 0


async def test_the_uptime_does_not_follow_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()  # noqa: TID251 - a stand-in
    monkeypatch.setattr(time, "time", lambda: now)
    async with sidecar() as running:
        now -= 7200
        assert 0 < (await running.json("stats"))["uptime_s"] < 3600


async def test_metrics_are_prometheus_text(local: Sidecar) -> None:
    await local.ask("one")
    await local.ask("one")
    reply = await local.get("metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=")
    lines = reply.body.decode().splitlines()
    assert 'headstart_hits_total{kind="exact"} 1.0' in lines
    assert "headstart_entries 1.0" in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


async def test_explain_says_how_a_request_was_answered(local: Sidecar) -> None:
    miss = await local.ask("one")
    hit = await local.ask("one")
    asked = (await local.json("cache"))["entries"][0]["id"]
    first = await local.json(f"explain/{miss.headers['x-headstart-request-id']}")
    second = await local.json(f"explain/{hit.headers['x-headstart-request-id']}")
    assert (first["outcome"], first["reason"], first["stored"]) == ("miss", "exact-only", True)
    assert (second["outcome"], second["entry"], second["veto"]) == ("exact", asked, None)
    assert second["total_s"] >= second["ttft_s"] > 0


async def test_an_unknown_request_is_not_explained(local: Sidecar) -> None:
    assert (await local.get("explain/unknown")).status == 404


async def test_config_masks_secrets(local: Sidecar) -> None:
    reply = await local.get("config")
    assert b"hush" not in reply.body
    assert decode(reply)["upstream"][0]["headers"] == {"x-key": "***"}


async def test_openapi_describes_every_path(local: Sidecar) -> None:
    schema = await local.json("openapi")
    assert {
        f"/_headstart/{path}" for path in ("health", "cache", "cache/{id}", "explain/{id}")
    } <= {*schema["paths"]}


# --- the cache's contents --------------------------------------------------------------------


async def test_entries_are_listed_without_texts_unless_asked_for(local: Sidecar) -> None:
    await local.ask("A private question?", **{"x-headstart-tags": "a,b"})
    plain = await local.get("cache")
    assert b"private" not in plain.body
    assert b"Hello" not in plain.body
    (entry,) = decode(plain)["entries"]
    assert (entry["model"], entry["upstream"], entry["tags"]) == ("m-real", "sim", ["a", "b"])
    assert entry["bytes"] > 0
    assert entry["age_s"] >= 0
    shown = await local.json(f"cache/{entry['id']}?texts=1")
    assert (shown["question"], shown["answer"]) == ("A private question?", "Hello from upstream")


async def test_a_list_is_cut_at_its_limit_and_filtered_by_tag(local: Sidecar) -> None:
    for text in "abc":
        await local.ask(text, **{"x-headstart-tags": text})
    first = await local.json("cache?limit=2")
    assert (len(first["entries"]), first["more"]) == (2, True)
    tagged = await local.json("cache?tag=b")
    assert ([entry["tags"] for entry in tagged["entries"]], tagged["more"]) == ([["b"]], False)


async def test_a_deleted_entry_is_asked_for_again(local: Sidecar) -> None:
    await local.ask("one")
    id = (await local.json("cache"))["entries"][0]["id"]
    reply = await local.call("DELETE", f"/_headstart/cache/{id}")
    assert (reply.status, decode(reply)) == (200, {"deleted": 1})
    assert (await local.get(f"cache/{id}")).status == 404
    assert (await local.call("DELETE", f"/_headstart/cache/{id}")).status == 404
    assert "fwd=miss" in (await local.ask("one")).verdict


async def test_entries_are_deleted_by_tag(local: Sidecar) -> None:
    await local.ask("one", **{"x-headstart-tags": "old,x"})
    await local.ask("two", **{"x-headstart-tags": "new"})
    assert decode(await local.call("DELETE", "/_headstart/cache?tag=old")) == {"deleted": 1}
    assert [entry["tags"] for entry in (await local.json("cache"))["entries"]] == [["new"]]


async def test_entries_are_deleted_by_the_start_of_their_question_and_by_model(
    local: Sidecar,
) -> None:
    for text in ("What is old?", "What is new?", "Who is new?"):
        await local.ask(text)
    model = (await local.json("cache"))["entries"][0]["model"]
    for query, count in ((f"?prefix=What&model={model}x", 0), (f"?prefix=What&model={model}", 2)):
        assert len((await local.json(f"cache{query}"))["entries"]) == count
        assert decode(await local.call("DELETE", f"/_headstart/cache{query}")) == {"deleted": count}
    (left,) = (await local.json("cache?texts=1"))["entries"]
    assert left["question"] == "Who is new?"


async def test_entries_are_deleted_by_their_age() -> None:
    now = time.time()  # noqa: TID251 - the server's
    store = MemoryStore(clock=lambda: now)
    await store.append([put(str(age), created=now - age) for age in (10, 1000, 10_000)])
    async with administered(parts_of(store)) as running:
        reply = await running.call("DELETE", "/_headstart/cache?older_s=900")
        assert decode(reply) == {"deleted": 2}
    assert [entry and entry.id for entry in await store.load(["10", "1000"])] == ["10", None]


async def test_entries_are_deleted_by_the_start_of_their_partition(local: Sidecar) -> None:
    await local.ask("one")
    await local.ask("two", authorization="Bearer other")
    partition = (await local.json("cache"))["entries"][0]["partition"]
    assert len(partition) == PARTITION
    path = f"/_headstart/cache?partition={partition[:12]}"
    assert decode(await local.call("DELETE", path)) == {"deleted": 1}
    assert "hit" in (await local.ask("two", authorization="Bearer other")).verdict
    assert "fwd=miss" in (await local.ask("one")).verdict


async def test_the_entries_of_one_caller_are_listed_and_deleted_by_scope(
    local: Sidecar,
) -> None:
    mine = await local.ask("one")
    await local.ask("two", authorization="Bearer other")
    request = mine.headers["x-headstart-request-id"]
    scope = (await local.json(f"explain/{request}"))["scope"]
    (entry,) = (await local.json(f"cache?scope={scope[:8]}"))["entries"]
    assert (entry["id"], entry["scope"]) == (request, scope)
    reply = await local.call("DELETE", f"/_headstart/cache?scope={scope}")
    assert decode(reply) == {"deleted": 1}
    assert "fwd=miss" in (await local.ask("one")).verdict
    assert "hit" in (await local.ask("two", authorization="Bearer other")).verdict


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?partition=",
        "?partition=ab",
        "?partition=%25",
        "?tag=",
        "?scope=",
        "?scope=zzzzzzzz",
        "?model=",
        "?prefix=",
        "?older_s=-1",
        "?older_s=x",
        "?older=9",
    ],
)
async def test_a_deletion_that_names_nothing_is_refused(local: Sidecar, query: str) -> None:
    await local.ask("one")
    reply = await local.call("DELETE", f"/_headstart/cache{query}")
    assert reply.status == 422
    assert decode(reply)["error"]["code"] == "unprocessable_entity"
    assert len((await local.json("cache"))["entries"]) == 1


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "texts=maybe"])
async def test_a_wrong_parameter_is_named(local: Sidecar, query: str) -> None:
    reply = await local.get(f"cache?{query}")
    assert reply.status == 422
    assert query.partition("=")[0] in decode(reply)["error"]["message"]


@pytest.mark.parametrize("path", ["feedback", "review"])
async def test_a_body_that_is_nested_too_deeply_is_refused(local: Sidecar, path: str) -> None:
    body = b"[" * 100_000 + b"]" * 100_000
    reply = await local.call("POST", f"/_headstart/{path}", data=body)
    assert reply.status == 400
    assert "nested too deeply" in decode(reply)["error"]["message"]


# --- parts that are absent or fail -----------------------------------------------------------


def parts_of(store: Store) -> EngineParts:
    """Return the parts of an engine whose cache is off."""
    return EngineParts(
        store=store,
        cache=None,
        encoder=None,
        hit_decider=None,
        flights=Flights(),
        concurrency=ConcurrencyLimit(1, 1),
        relays=ConcurrencyLimit(1, 1),
        sockets=ConcurrencyLimit(1, 1),
        ledger=None,
        states=None,
        machines={},
    )


class SilentStore(MemoryStore):
    """A store that does not answer."""

    async def stats(self) -> StoreStats:
        raise StoreError("no answer")

    async def load(self, ids: Any) -> Any:
        raise StoreError("no answer")


class HangingStore(MemoryStore):
    """A store that keeps its callers waiting for ever."""

    async def stats(self) -> StoreStats:
        await anyio.sleep_forever()
        raise AssertionError


@contextlib.asynccontextmanager
async def administered(engine: EngineParts | None) -> AsyncIterator[Sidecar]:
    """Run the admin app alone."""
    state = AdminState(
        engine=lambda: engine,
        metrics=PrometheusObserver(CollectorRegistry()),
        recent=RecentRequests(),
        observers=Observers(),
        config={},
        clock=time.time,  # noqa: TID251 - read, not compared
        started=0.0,
    )
    app = admin_app(state, token=None, rules=OriginRules())
    async with serving(app) as url, aiohttp.ClientSession() as session:
        yield Sidecar(url, session)


async def test_before_the_engine_has_started_it_lives_but_is_not_ready() -> None:
    async with administered(None) as running:
        assert (await running.get("health")).status == 200
        reply = await running.get("ready")
        assert (reply.status, len(decode(reply)["reasons"])) == (503, 1)
        assert (await running.get("stats")).status == 503
        assert decode(await running.get("cache"))["error"]["code"] == "service_unavailable"


async def test_with_a_store_that_fails_it_serves_degraded_and_metrics_go_on() -> None:
    async with administered(parts_of(SilentStore())) as running:
        reply = await running.get("ready")
        assert (reply.status, decode(reply)["status"]) == (200, "degraded")
        assert len(decode(reply)["reasons"]) == 1
        assert b"headstart_entries NaN" in (await running.get("metrics")).body
        assert (await running.json("stats"))["now"]["entries"] is None
        assert (await running.get("cache/x")).status == 503


@pytest.mark.parametrize("entries", [True, False])
async def test_readiness_tells_a_store_that_cannot_be_written(*, entries: bool) -> None:
    class FullStore(MemoryStore):
        full = True

        async def _append(self, records: Any) -> str:
            if self.full and entries:
                raise StoreError("the store cannot write: database or disk is full")
            return await super()._append(records)

        async def _charge(self, charges: Any) -> Charged:
            if self.full and not entries:
                raise StoreError("the store cannot write: database or disk is full")
            return await super()._charge(charges)

    store = FullStore(clock=lambda: 0.0)
    charge = Charge("counter", 1, expires=1.0)
    async with administered(parts_of(store)) as running:
        for full, status in ((True, "degraded"), (False, "ready")):
            store.full = full
            for write in (store.append([put("one")]), store.charge([charge])):
                with contextlib.suppress(StoreError):
                    await write
            reply = await running.get("ready")
            assert (reply.status, decode(reply)["status"]) == (200, status)
            assert ["disk is full" in why for why in decode(reply)["reasons"]] == [True] * full


async def test_readiness_does_not_wait_for_a_store_that_hangs() -> None:
    async with administered(parts_of(HangingStore(clock=lambda: 0.0))) as running:
        reply = await running.get("ready")
        assert (reply.status, decode(reply)["status"]) == (200, "degraded")


async def test_entries_can_be_deleted_while_the_cache_is_off() -> None:
    store = MemoryStore(clock=lambda: 0.0)
    await store.append([put("one"), put("two", tags=("t",))])
    async with administered(parts_of(store)) as running:
        reply = await running.call("DELETE", "/_headstart/cache?tag=t")
        assert decode(reply) == {"deleted": 1}
    assert await store.load(["two"]) == [None]
