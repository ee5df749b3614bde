"""Learning through the whole engine, on real sockets: labels of misses, audits and users."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headstart.decisions import Label, LabelSource, Outcome, Rule
from headstart.embeddings.stores.memory import MemoryStore
from headstart.errors import StoreError
from headstart.lab.simulator.faults import Status
from headstart.middleware.concurrency import Supervisor
from headstart.policies.learned_rule.domain import Domain
from support.learned import make_label
from support.patience import PATIENCE_S, until
from support.sidecar import PROMPT, REWORDED, Provider, Sidecar, sidecar

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.anyio

NEGATED = "How can I not sign up for ChatGPT?"


async def learned(running: Sidecar, count: int) -> None:
    """Wait until the one domain has learned from so many labels."""
    hit_decider = running.parts[0].hit_decider
    assert hit_decider is not None
    domains = hit_decider.learner.domains
    await until(lambda: domains.get(*domains.names()).labels >= count)


def always(mode: str = "background") -> dict[str, Any]:
    return {"audit.mode": mode, "audit.rate": 1.0, "audit.null_rate": 0.0}


def never() -> dict[str, Any]:
    return {"audit.mode": "off"}


async def test_a_miss_is_a_free_label_of_its_nearest_neighbour() -> None:
    async with sidecar(cache=never()) as running:
        first = await running.ask(PROMPT)
        await running.indexed(1)
        second = await running.ask(NEGATED)
        (label,) = await running.labels(1)
    assert second.verdict.startswith("headstart; fwd=miss; detail=veto")
    assert label.id == second.headers["x-headstart-request-id"]
    assert label.entry == first.headers["x-headstart-request-id"]
    assert (label.source, label.veto, label.served) == (LabelSource.MISS, "negation", False)
    assert label.same is False
    assert label.features


async def test_a_hit_is_served_at_once_and_audited_in_the_background() -> None:
    provider = Provider()
    async with sidecar(provider, cache=always()) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        hit = await running.ask(REWORDED)
        (label,) = await running.labels(1)
        await running.finished(3)
        # The audit's answer is kept: the same words are now an exact hit.
        again = await running.ask(REWORDED)
    assert "detail=semantic" in hit.verdict
    assert "detail=exact" in again.verdict
    assert provider.calls == 2
    assert (label.source, label.served, label.same) == (LabelSource.AUDIT, True, True)
    audit = next(row for row in running.served if row.outcome is Outcome.AUDIT)
    assert audit.audit_of == hit.headers["x-headstart-request-id"]
    assert audit.completion_tokens > 0
    semantic = next(row for row in running.served if row.outcome is Outcome.SEMANTIC)
    assert semantic.rule is Rule.COLD_START


class AskedAfresh(Provider):
    """A provider that notes which calls ask for a fresh answer."""

    def __init__(self) -> None:
        super().__init__()
        self.fresh: list[bool] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.fresh.append((b"cache-control", b"no-cache") in scope["headers"])
        await super().__call__(scope, receive, send)


@pytest.mark.parametrize("mode", ["background", "sync"])
async def test_an_audit_asks_other_caches_for_a_fresh_answer(mode: str) -> None:
    provider = AskedAfresh()
    async with sidecar(provider, cache=always(mode)) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        await running.ask(REWORDED)
        await running.labels(1)
    assert provider.fresh == [False, True]


async def test_a_synchronous_audit_gives_the_caller_the_fresh_answer() -> None:
    async with sidecar(cache=always("sync")) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        asked = await running.ask(REWORDED)
        (label,) = await running.labels(1)
        assert running.provider.calls == 2
    assert asked.verdict == "headstart; fwd=miss; detail=audit; stored"
    assert (label.source, label.served) == (LabelSource.AUDIT, True)


async def test_shadow_mode_never_serves_and_learns_what_it_would_have_done() -> None:
    async with sidecar(cache={"mode": "shadow", **never()}) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        asked = await running.ask(REWORDED)
        exact = await running.ask(PROMPT)
        (label,) = await running.labels(1)
    assert asked.verdict == "headstart; fwd=miss; detail=shadow; stored"
    assert float(asked.headers["x-headstart-similarity"]) > 0.9
    assert "detail=exact" in exact.verdict
    assert (label.source, label.same) == (LabelSource.AUDIT, True)


async def test_a_pair_that_is_always_labelled_counts_once_even_if_held_out() -> None:
    async with sidecar(cache={"mode": "shadow", "holdout": 0.999, **never()}) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        await running.ask(REWORDED)
        (label,) = await running.labels(1)
    assert label.draw_probability == 1.0


async def test_shadow_first_warms_a_domain_up() -> None:
    async with sidecar(cache={"shadow_first": 1, **never()}) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        withheld = await running.ask(REWORDED)
        await running.labels(1)
        await learned(running, 1)
        served = await running.ask("I'd like to sign up for ChatGPT")
    assert "detail=shadow" in withheld.verdict
    assert "detail=semantic" in served.verdict


async def test_labels_reach_the_domain_also_with_guards_switched_off() -> None:
    async with sidecar(cache={"guards": ["number", "negation"], **never()}) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        await running.ask(NEGATED)
        await learned(running, 1)


async def test_a_stricter_request_is_not_served_what_others_are() -> None:
    async with sidecar(cache=never()) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        strict = await running.ask(REWORDED, headers={"x-headstart-max-error": "0.0001"})
        lax = await running.ask(
            "I want to sign up to ChatGPT", headers={"x-headstart-max-error": "90%"}
        )
    assert "fwd=miss" in strict.verdict
    assert "detail=semantic" in lax.verdict


async def test_an_exact_hit_is_asked_again_now_and_then() -> None:
    cache = {"audit.mode": "background", "audit.null_rate": 1.0}
    async with sidecar(cache=cache) as running:
        await running.ask(PROMPT)
        hit = await running.ask(PROMPT)
        (label,) = await running.labels(1)
    assert "detail=exact" in hit.verdict
    assert (label.source, label.same) == (LabelSource.NULL, True)


def lines_in(folder: Path) -> int:
    """Return the number of lines of the only file in a folder."""
    (file,) = folder.iterdir()
    return len(file.read_bytes().splitlines())


async def test_a_near_miss_is_asked_twice_while_the_judge_is_not_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Domain, "repeat_rate", lambda *_: 1.0)
    provider = AskedAfresh()
    audits = {"mode": "background", "rate": 0.0, "null_rate": 0.0, "ask_twice": True}
    cache = {f"audit.{name}": value for name, value in audits.items()}
    record = {"enabled": True, "path": str(tmp_path / "record.jsonl")}
    async with sidecar(provider, cache=cache, record=record) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        miss = await running.ask(NEGATED)
        by_source = {label.source: label for label in await running.labels(2)}
        await running.finished(3)
        await running.ask(NEGATED)
        await running.finished(4)
    assert "fwd=miss" in miss.verdict
    assert provider.fresh == [False, False, True]
    assert by_source.keys() == {LabelSource.MISS, LabelSource.NULL}
    null = by_source[LabelSource.NULL]
    assert null.same is True
    assert null.entry == miss.headers["x-headstart-request-id"]
    assert running.served[-1].entry == null.entry  # the first answer stays in the cache
    (audit,) = (row for row in running.served if row.outcome is Outcome.AUDIT)
    assert (audit.audit_of, audit.reason) == (miss.headers["x-headstart-request-id"], "null")
    assert not audit.stored
    (booked,) = (row for row in running.served if row.id == audit.audit_of)
    assert booked.outcome is Outcome.MISS
    assert lines_in(tmp_path) == 2  # nobody sent the second request


@pytest.mark.parametrize(
    "cache",
    [
        {"audit.mode": "off"},
        {"audit.mode": "sync"},
        {"audit.mode": "background", "audit.ask_twice": False},
    ],
    ids=str,
)
async def test_no_miss_is_asked_twice_if_the_settings_forbid_it(
    monkeypatch: pytest.MonkeyPatch, cache: dict[str, Any]
) -> None:
    monkeypatch.setattr(Domain, "repeat_rate", lambda *_: 1.0)
    async with sidecar(cache=cache) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        await running.ask(NEGATED)
        await running.labels(1)
        assert running.provider.calls == 2


async def test_a_miss_whose_client_left_is_not_asked_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Domain, "repeat_rate", lambda *_: 1.0)
    async with sidecar(cache={"audit.mode": "background", "audit.ask_twice": True}) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        running.provider.open.clear()
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(running.ask(NEGATED))
            await running.in_flight(1)
            asked.cancel()
        await running.finished(2)
        running.provider.open.set()
        await running.ask("What is a tort?")
    assert Outcome.AUDIT not in running.outcomes


async def test_misses_that_are_asked_twice_count_where_the_store_takes_no_label(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: object) -> None:
        raise StoreError("disk is full")

    monkeypatch.setattr(Domain, "repeat_rate", lambda *_: 1.0)
    monkeypatch.setattr(MemoryStore, "add_labels", refuse)
    async with sidecar(cache={"audit.mode": "background", "audit.ask_twice": True}) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        await running.ask(NEGATED)
        await running.finished(3)
        hit_decider = running.parts[0].hit_decider
        assert hit_decider is not None
        domains = hit_decider.learner.domains
        assert domains.get(*domains.names()).asked_twice == 1


async def test_no_miss_is_asked_twice_while_the_server_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Domain, "repeat_rate", lambda *_: 1.0)
    made: list[Supervisor] = []  # the last one runs the calls

    def make() -> Supervisor:
        made.append(Supervisor())
        return made[-1]

    monkeypatch.setattr("headstart.factory.Supervisor", make)
    cache = {"audit.mode": "background", "audit.ask_twice": True}
    async with sidecar(cache=cache) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        running.provider.open.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(running.ask(NEGATED))
            await running.in_flight(1)
            tasks.create_task(made[-1].drain(PATIENCE_S))
            await asyncio.sleep(0)
            running.provider.open.set()
    assert running.outcomes == [Outcome.MISS, Outcome.MISS]


async def test_a_clock_that_is_put_forward_pays_for_no_audit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = time.time()  # noqa: TID251 - a stand-in
    monkeypatch.setattr("headstart.factory.caching.clock", lambda: now)
    cache = {"audit.mode": "background", "audit.null_rate": 1.0, "audit.max_calls_per_hour": 1}
    async with sidecar(cache=cache) as running:
        await running.ask(PROMPT)
        await running.ask(PROMPT)
        await running.labels(1)
        now += 7200
        hit_decider = running.parts[0].hit_decider
        assert hit_decider is not None
        audits = hit_decider.audits
        assert not audits.draw(audits.null_rate(0.0))


async def test_only_if_cached_is_answered_from_the_cache_even_when_drawn_for_an_audit() -> None:
    async with sidecar(cache=always("sync")) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        hit = await running.ask(REWORDED, headers={"cache-control": "only-if-cached"})
        assert running.provider.calls == 1
    assert "detail=semantic" in hit.verdict


async def test_an_audit_whose_provider_fails_costs_the_caller_nothing() -> None:
    async with sidecar(cache=always()) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        hit = await running.ask(REWORDED, fault=Status(status=500))
        await running.finished(3)
        audit = next(row for row in running.served if row.outcome is Outcome.AUDIT)
        assert await running.parts[0].store.read_labels() == []
    assert hit.status == 200
    assert "detail=semantic" in hit.verdict
    assert (audit.status, audit.stored) == (500, False)


async def test_answers_to_questions_that_age_are_kept_less_long() -> None:
    cache = {"ttl_s": 1000.0, "ttl_by_class.live": 60.0, **never()}
    async with sidecar(cache=cache) as running:
        for prompt in (PROMPT, "What is the weather in Oslo right now?"):
            await running.ask(prompt)
        lasting = await running.ask(PROMPT)
        live = await running.ask("What is the weather in Oslo right now?")
    assert "hit; ttl=99" in lasting.verdict
    assert "hit; ttl=5" in live.verdict or "hit; ttl=60" in live.verdict


def near_misses(domain: str, number: int, *, wrong: int) -> list[Label]:
    """Return labels of misses whose neighbours were nearly similar enough."""
    like = make_label(0, domain=domain, closeness=0.0)
    return [
        msgspec.structs.replace(like, id=f"near-{place}", similarity=0.85, same=place >= wrong)
        for place in range(number)
    ]


@pytest.mark.parametrize(("wrong", "then"), [(0, "detail=semantic"), (10, "detail=veto")])
async def test_a_cold_start_is_strict_until_near_misses_tell_traps_from_easy_traffic(
    wrong: int, then: str
) -> None:
    async with sidecar(cache={"cold_start": "strict", **never()}) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        strict = await running.ask(REWORDED)
        (label,) = await running.labels(1)
        await learned(running, 1)
        hit_decider = running.parts[0].hit_decider
        assert hit_decider is not None
        domain = hit_decider.learner.domains.get(label.domain)
        assert domain.status().near_misses == 1  # the strict start's own miss is one of them
        await running.parts[0].store.add_labels(near_misses(label.domain, 15, wrong=wrong))
        await learned(running, 16)
        asked = await running.ask("I want to sign up to ChatGPT")
        explained = hit_decider.explain(asked.headers["x-headstart-request-id"])
    assert 0.9 < label.similarity < 0.98
    assert strict.headers["x-headstart-veto"] == "threshold"
    assert then in asked.verdict
    assert asked.headers.get("x-headstart-veto") == ("unlearned" if wrong else None)
    assert explained is not None
    assert explained.domain.trust == ("none" if wrong else "full")


async def test_a_caller_who_accepts_no_error_gets_exact_repeats_alone() -> None:
    none = {"x-headstart-max-error": "0"}
    async with sidecar(cache=never()) as running:
        await running.ask(PROMPT)
        await running.indexed(1)
        reworded = await running.ask(REWORDED, headers=none)
        exact = await running.ask(REWORDED, headers=none)
        await running.indexed(2)
        other = await running.ask("I want to sign up to ChatGPT")
    assert "fwd=miss; detail=exact-only" in reworded.verdict
    assert "detail=exact" in exact.verdict
    assert "detail=semantic" in other.verdict  # its own answer is there for others
