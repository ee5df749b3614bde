"""The learned state, over the admin API of a real gateway."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from headstart.decisions import LabelSource
from headstart.policies.learned_rule.domain import Domain
from headstart.policies.learned_rule.error_limit import ErrorLimit
from support.administered import (
    CHATGPT,
    ELSEWISE,
    NEGATED,
    REWORDED,
    administered,
    decode,
    message,
)
from support.learned import make_label
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.administered import Administered

pytestmark = pytest.mark.anyio

TOKEN = "secret-token"
BEARER = {"authorization": f"Bearer {TOKEN}"}
READS = ("learning", "audit", "review", "explain/x")
WRITES: dict[str, dict[str, Any]] = {
    "feedback": {"id": "x", "correct": False},
    "review": {"id": "x", "entry": "y", "same": True},
}


@pytest.fixture
async def running() -> AsyncIterator[Administered]:
    async with administered() as found:
        yield found


# --- who may use it --------------------------------------------------------------------------


async def test_every_path_but_the_empty_page_asks_for_the_token() -> None:
    async with administered(TOKEN.encode()) as running:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            for path in READS:
                assert message(await running.call("GET", path, headers=headers), 401)
            for path, body in WRITES.items():
                assert message(await running.post(path, body, headers=headers), 401)
        assert await running.get("review", headers=BEARER) == []
        assert (await running.call("GET", "review/page")).status == 200


async def test_another_sites_page_may_send_no_label(running: Administered) -> None:
    id = await running.ask_first()
    for origin in ("http://evil.example", "http://127.0.0.1:1", "null"):
        form = {"origin": origin, "content-type": "text/plain"}
        reply = await running.post("feedback", {"id": id, "correct": True}, headers=form)
        assert message(reply, 403)
    own = {"origin": running.gateway.url}
    assert (await running.post("feedback", WRITES["feedback"], headers=own)).status == 404


async def test_a_static_match_says_that_nothing_is_learned() -> None:
    async with administered(match="static") as running:
        id = await running.ask_first()
        for path in READS[:3]:
            assert 'cache.match is "static"' in message(await running.call("GET", path), 404)
        for path, body in WRITES.items():
            assert 'cache.match is "static"' in message(await running.post(path, body), 404)
        assert "verdict" not in await running.get(f"explain/{id}")


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize("path", WRITES)
async def test_an_unknown_request_cannot_be_labelled(running: Administered, path: str) -> None:
    await running.ask_first()
    assert message(await running.post(path, WRITES[path]), 404)
    assert await running.store.read_labels() == []


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("feedback", b"{", 400),
        ("feedback", b"", 422),
        ("feedback", b'{"id": "x"}', 422),
        ("feedback", b'{"id": 1, "correct": true}', 422),
        ("feedback", b'{"id": "x", "correct": "yes"}', 422),
        ("feedback", b'{"id": "x", "correct": true, "texts": 1}', 422),
        ("review", b'{"id": "x", "entry": "y", "same": null}', 422),
        ("review", b"[]", 422),
    ],
)
async def test_a_body_that_says_something_else_is_refused(
    running: Administered, path: str, body: bytes, status: int
) -> None:
    assert message(await running.call("POST", path, data=body), status)


@pytest.mark.parametrize(
    "query", ["audit?since=-1", "audit?since=nan", "review?limit=0", "review?limit=201"]
)
async def test_a_value_out_of_range_is_refused(running: Administered, query: str) -> None:
    assert message(await running.call("GET", query), 422)


# --- learning and feedback -------------------------------------------------------------------


async def test_the_state_of_a_domain_can_be_exported(running: Administered) -> None:
    await running.ask_first()
    await running.gateway.ask(REWORDED)
    (domain,) = await running.get("learning")
    reply = await running.call("GET", f"learning/{domain['domain']}/state")
    assert reply.status == 200
    version = domain["status"]["version"]
    assert Domain(ErrorLimit(), reply.body, version=version).version == version
    assert message(await running.call("GET", "learning/unknown/state"), 404)


async def test_learning_lists_the_domains_and_how_they_stand(running: Administered) -> None:
    assert await running.get("learning") == []
    await running.ask_first()
    await running.ask(NEGATED)
    (label,) = await running.labels(1)
    await running.hit_decider.learner.domains.load(label.domain)
    (domain,) = await running.get("learning")
    assert (domain["domain"], domain["status"]["rule"]) == (label.domain, "cold-start")
    assert domain["max_error"] == running.hit_decider.error_limit.max_error
    assert domain["status"]["audits"] == 0


@pytest.mark.parametrize("correct", [True, False])
async def test_feedback_on_a_hit_is_a_label(running: Administered, correct: bool) -> None:
    stored = await running.ask_first()
    hit = await running.ask(REWORDED)
    taken = await running.post("feedback", {"id": hit, "correct": correct})
    assert decode(taken, 200) == {"labelled": True}
    (label,) = await running.labels(1)
    assert (label.id, label.entry, label.source) == (hit, stored, LabelSource.FEEDBACK)
    assert (label.same, label.served) == (correct, True)


@pytest.mark.parametrize("pair_only", [False, True])
async def test_an_answer_that_a_person_called_wrong_is_not_served_again(
    running: Administered, pair_only: bool
) -> None:
    stored = await running.ask_first()
    hit = await running.ask(REWORDED)
    word = {"id": hit, "correct": False, "pair_only": pair_only}
    assert (await running.post("feedback", word)).status == 200
    other = await running.gateway.ask(ELSEWISE)
    again = await running.gateway.ask(REWORDED)
    exact = await running.gateway.ask(CHATGPT)
    assert ("detail=semantic" in other.verdict) == pair_only
    assert other.headers.get("x-headstart-veto") == (None if pair_only else "feedback")
    assert "fwd=miss; detail=veto" in again.verdict
    assert again.headers["x-headstart-veto"] == "feedback"
    assert "detail=exact" in exact.verdict
    assert exact.headers["x-headstart-request-id"] != stored


async def test_calling_it_right_again_serves_it_again(running: Administered) -> None:
    await running.ask_first()
    hit = await running.ask(REWORDED)
    for correct in (False, True, True):
        assert (await running.post("feedback", {"id": hit, "correct": correct})).status == 200
    again = await running.gateway.ask(REWORDED)
    assert "detail=semantic" in again.verdict
    labels = await running.labels(2)
    # The first word teaches; the second only lifts the veto; the third says nothing new.
    assert [bool(label.features) for label in labels] == [True, False]


async def test_a_word_on_an_old_hit_is_taken_by_the_books(running: Administered) -> None:
    await running.ask_first()
    hit = await running.ask(REWORDED)
    await running.booked(2)
    running.hit_decider.learner._recent.clear()  # as after a restart, or in another process
    alone = {"id": hit, "correct": False, "pair_only": True}
    assert message(await running.post("feedback", alone), 404)
    assert (await running.post("feedback", {"id": hit, "correct": False})).status == 200
    refused = await running.gateway.ask(ELSEWISE)
    assert refused.headers["x-headstart-veto"] == "feedback"
    assert (await running.post("feedback", {"id": hit, "correct": True})).status == 200
    assert "detail=semantic" in (await running.gateway.ask(REWORDED)).verdict
    assert [(each.same, each.features) for each in await running.labels(2)] == [
        (False, b""),
        (True, b""),
    ]


async def test_a_word_on_a_fresh_answer_vetoes_nobody(running: Administered) -> None:
    await running.ask_first()
    miss = await running.ask(NEGATED)
    assert (await running.post("feedback", {"id": miss, "correct": False})).status == 200
    assert "detail=semantic" in (await running.gateway.ask(REWORDED)).verdict


# --- explain ---------------------------------------------------------------------------------


async def test_a_miss_without_a_neighbour_has_no_verdict(running: Administered) -> None:
    found = await running.get(f"explain/{await running.ask_first()}")
    assert (found["outcome"], found["reason"], found["verdict"]) == (
        "miss",
        "empty-partition",
        None,
    )


async def test_a_hit_is_explained_by_its_neighbour_and_features(running: Administered) -> None:
    stored = await running.ask_first()
    found = await running.get(f"explain/{await running.ask(REWORDED)}")
    verdict = found["verdict"]
    assert (found["outcome"], verdict["qualified"], verdict["veto"]) == ("semantic", True, None)
    assert (verdict["neighbor"], verdict["rule"]) == (stored, "cold-start")
    assert verdict["similarity"] >= verdict["threshold"]
    assert verdict["short_by"] == 0
    assert verdict["flips"].startswith("a threshold above")
    assert CHATGPT not in str(found)
    shares = list(verdict["contributions"].values())
    assert shares == sorted(shares, key=abs, reverse=True)
    assert sum(shares) == pytest.approx(verdict["score_now"])
    # Nothing was learned since, so the score is still that of the request.
    assert verdict["score_now"] == pytest.approx(verdict["score"])


async def test_a_veto_is_explained_by_its_guard(running: Administered) -> None:
    await running.ask_first()
    verdict = (await running.get(f"explain/{await running.ask(NEGATED)}"))["verdict"]
    assert (verdict["qualified"], verdict["veto"]) == (False, "negation")
    assert "'negation' switched off" in verdict["flips"]
    assert verdict["contributions"]["negation"] < 0


async def test_a_withheld_hit_was_qualified_all_the_same() -> None:
    async with administered(mode="shadow") as running:
        await running.ask_first()
        found = await running.get(f"explain/{await running.ask(REWORDED)}")
    assert (found["outcome"], found["reason"]) == ("miss", "shadow")
    assert found["verdict"]["qualified"]


async def test_an_audit_leads_to_the_hit_it_checked() -> None:
    always: dict[str, Any] = {"audit.mode": "background", "audit.rate": 1.0}
    async with administered(**always) as running:
        await running.ask_first()
        hit = await running.ask(REWORDED)
        await running.gateway.finished(3)
        audit = next(row for row in running.gateway.served if row.audit_of)
        found = await running.get(f"explain/{audit.id}")
        assert (found["outcome"], found["audit_of"]) == ("audit", hit)
        (label,) = await running.labels(1)
        assert label.source is LabelSource.AUDIT
        async with asyncio.timeout(PATIENCE_S):
            # The books are written a moment later.
            while not (week := (await running.get("audit"))["certificates"][0])["hits"]:
                await asyncio.sleep(0.05)
    assert (week["requests"], week["audits"], week["wrong"]) == (2, 1, 0)


async def test_a_request_is_explained_though_its_domain_left_memory(running: Administered) -> None:
    await running.ask_first()
    hit = await running.ask(REWORDED)
    for number in range(300):
        await running.hit_decider.learner.domains.load(f"other-{number}")
    assert (await running.get(f"explain/{hit}"))["verdict"]["qualified"]


async def test_an_unknown_request_cannot_be_explained(running: Administered) -> None:
    assert "last 1000" in message(await running.call("GET", "explain/x"), 404)


# --- audit -----------------------------------------------------------------------------------


async def test_audit_shows_the_certificate_and_the_wrong_hits(running: Administered) -> None:
    audits = [make_label(n, source=LabelSource.AUDIT, same=n != 3) for n in range(10)]
    await running.store.add_labels(audits)
    found = await running.get("audit?since=999.5")
    (row,) = found["certificates"]
    assert (row["domain"], row["week"], row["audits"], row["wrong"]) == ("d", "1970-W01", 10, 1)
    assert [wrong["request"] for wrong in found["wrong_hits"]] == ["q3"]
    assert found["max_error"] == running.hit_decider.error_limit.max_error
    assert (await running.get("audit?since=1000.5"))["certificates"] == []


# --- review ----------------------------------------------------------------------------------


async def test_a_reviewed_pair_is_a_label_and_is_not_asked_again(running: Administered) -> None:
    stored = await running.ask_first()
    asked = await running.ask(NEGATED)
    (judged,) = await running.labels(1)
    (pair,) = await running.get("review")
    assert (pair["id"], pair["entry"], pair["veto"]) == (asked, stored, "negation")
    assert (pair["asked"]["question"], pair["stored"]["question"]) == (NEGATED, CHATGPT)
    assert pair["asked"]["answer"]
    assert (pair["judged"], pair["served"]) == (judged.same, False)
    word = {"id": asked, "entry": stored, "same": False}
    assert decode(await running.post("review", word), 200) == {"labelled": True}
    _, label = await running.labels(2)
    assert (label.source, label.same, label.features) == (
        LabelSource.REVIEW, False, judged.features,
    )  # fmt: skip
    assert await running.get("review") == []


async def test_a_person_may_think_again(running: Administered) -> None:
    stored = await running.ask_first()
    asked = await running.ask(NEGATED)
    await running.labels(1)
    for same in (True, False):
        word = {"id": asked, "entry": stored, "same": same}
        assert (await running.post("review", word)).status == 200
    assert [label.same for label in (await running.labels(3))[1:]] == [True, False]


async def test_a_pair_whose_answer_has_left_is_not_asked(running: Administered) -> None:
    stored = await running.ask_first()
    await running.ask(NEGATED)
    await running.labels(1)
    assert (await running.call("DELETE", f"cache/{stored}")).status == 200
    assert await running.get("review") == []
