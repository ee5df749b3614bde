"""The admin API of learning: domains, certificates, feedback, explanations and the review page."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import Response, get, post
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, JSONBody, QueryParameter

from headstart.middleware.admin_state import Admin, Engine, answer_text
from headstart.middleware.learning.certificates import AuditReport, audit_report
from headstart.middleware.learning.oversight import most_doubtful
from headstart.middleware.worker_figures import EXPLAIN, gathered
from headstart.policies.ratchet.domain import DomainStatus  # noqa: TC001 - msgspec reads it
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.middleware.admin_front import AdminState, EngineParts
    from headstart.middleware.learning.oversight import DoubtfulPair, Oversight
    from headstart.types import Entry


@get("/review/page", opt={"public": True}, include_in_schema=False, sync_to_thread=True)
def review_page() -> Response[str]:
    """Return the page."""
    return page_response("review.html")


def page_response(name: str) -> Response[str]:
    """Return a page that may run its own script, and load nothing from other hosts."""
    page = page_text(name)
    return Response(
        page,
        media_type="text/html",
        headers={
            "content-security-policy": _policy(page),
            "cache-control": "no-cache",
            # Not no-referrer: browsers would then send "Origin: null" with each label.
            "referrer-policy": "same-origin",
            "x-content-type-options": "nosniff",
        },
    )


@cache
def page_text(name: str) -> str:
    """Return a file of the pages."""
    return files("headstart.middleware.pages").joinpath(name).read_text(encoding="utf-8")


def _policy(page: str) -> str:
    """Allow the page's own style and script, by hash, and requests to this server; nothing else."""
    return (
        f"default-src 'none'; style-src {_hash(page, 'style')}; script-src {_hash(page, 'script')};"
        " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    )


def _hash(page: str, element: str) -> str:
    found = re.search(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
    assert found is not None
    return f"'sha256-{b64encode(sha256(found[1].encode()).digest()).decode()}'"


Since = Annotated[float, QueryParameter(description="Unix seconds.", ge=0)]
Limit = Annotated[int, QueryParameter(ge=1, le=200)]

LOADED_AT_ONCE = 20
"""The number of pairs whose texts are read together."""


class Feedback(Frozen, forbid_unknown_fields=True):
    """A user's feedback on an answer: ``id`` is the request's ``x-headstart-request-id``.

    After "wrong", the entry of the hit answers no rewordings, and no other entry answers the
    question, until feedback on the same request is "correct". With ``pair_only`` only this entry
    does not answer this question.
    """

    id: str
    correct: bool
    pair_only: bool = False


class Reviewed(Frozen, forbid_unknown_fields=True):
    """A person's judgement on a pair: whether one answer is right for both questions."""

    id: str
    entry: str
    same: bool


class LabelWritten(Frozen, omit_defaults=False):
    """A label was written."""

    labelled: bool = True


class Side(Frozen, omit_defaults=False):
    """One question and its answer."""

    question: str
    answer: str


class ReviewPair(Frozen, omit_defaults=False):
    """Two questions side by side: ``asked`` came later, ``stored`` was, or might have been, used.

    ``judged`` is the judgement of the agreement judge, null if it was unsure; ``score`` is the
    present score.
    """

    id: str
    entry: str
    similarity: float
    score: float
    veto: str | None
    served: bool
    judged: bool | None
    asked: Side
    stored: Side


class DomainView(Frozen, omit_defaults=False):
    """A learning domain in memory."""

    domain: str
    max_error: float
    error_of: str
    confidence: float
    audit_rate: float
    status: DomainStatus


@get("/learning")
async def learning(engine: Engine) -> list[DomainView]:
    """Show the learning domains in memory: rule, threshold, alarm, labels, audits."""
    oversight = _oversight(engine)
    domains = oversight.learner.domains
    views = []
    for name in domains.names():
        domain = domains.get(name)
        views.append(
            DomainView(
                domain=name,
                max_error=domain.promise.max_error,
                error_of=domain.promise.error_of,
                confidence=domain.promise.confidence,
                audit_rate=oversight.audits.rate(domain.audit_rate(oversight.audits.settings.rate)),
                status=domain.status(),
            )
        )
    return views


@get("/learning/{domain:str}/state", media_type="application/octet-stream")
async def state(domain: FromPath[str], engine: Engine) -> Response[bytes]:
    """Export what a domain in memory has learned: a file for ``cache.state``."""
    found = _oversight(engine).learner.domains.find(domain)
    if found is None:
        raise NotFoundException("no learning domain in memory has this name: see GET learning")
    return Response(found.snapshot(), media_type="application/octet-stream")


@get("/audit")
async def audit(engine: Engine, since: Since = 0.0) -> AuditReport:
    """Show the bounds that audits prove, by domain and week, and the wrong hits that they found."""
    promise = _oversight(engine).promise
    return await audit_report(engine.store, promise, since=since)


@post("/feedback", status_code=200)
async def feedback(data: JSONBody[Feedback], engine: Engine) -> LabelWritten:
    """Take feedback on a recent semantic hit or near miss; "wrong" vetoes a hit at once."""
    learner = _oversight(engine).learner
    if not await learner.feedback(data.id, same=data.correct, pair_only=data.pair_only):
        raise NotFoundException("no recent request with this id was compared with a neighbour")
    return LabelWritten()


@get("/review")
async def review_pairs(admin: Admin, engine: Engine, limit: Limit = 20) -> list[ReviewPair]:
    """List the borderline pairs, the most doubtful first, with their texts."""
    oversight = _oversight(engine)
    await admin.reviews.follow(engine.store)
    doubts = await most_doubtful(admin.reviews.open(), oversight)
    pairs: list[ReviewPair] = []
    for start in range(0, len(doubts), LOADED_AT_ONCE):
        pairs += await _with_texts(admin, engine, doubts[start : start + LOADED_AT_ONCE])
        if len(pairs) >= limit:
            break
    return pairs[:limit]


@post("/review", status_code=200)
async def review(data: JSONBody[Reviewed], admin: Admin, engine: Engine) -> LabelWritten:
    """Take a person's judgement on a pair that ``GET`` listed."""
    oversight = _oversight(engine)
    await admin.reviews.follow(engine.store)
    label = admin.reviews.find(data.id, data.entry)
    if label is None:
        raise NotFoundException("this pair is not among the recent labels")
    await oversight.learner.review(label, same=data.same)
    return LabelWritten()


@get("/explain/{id:str}")
async def explain(id: FromPath[str], admin: Admin, engine: Engine) -> dict[str, Any]:
    """Explain the answer to a recent request: ids, reasons and features, no texts."""
    found = await gathered(admin, engine, f"{EXPLAIN}{id}")
    for explained in filter(None, found.live):
        return msgspec.json.decode(explained, type=dict[str, Any])
    raise NotFoundException(
        f"no request with this id is among the last {admin.recent.maxlen} of this process"
    )


LEARNING_HANDLERS: tuple[Any, ...] = (
    learning, state, audit, feedback, review_pairs, review, review_page, explain,
)  # fmt: skip


def _oversight(engine: EngineParts) -> Oversight:
    if engine.oversight is None:
        raise NotFoundException(
            'nothing is learned here: cache.match is "static", or nothing is matched by meaning'
        )
    return engine.oversight


async def _with_texts(
    admin: AdminState, engine: EngineParts, doubts: Sequence[DoubtfulPair]
) -> list[ReviewPair]:
    """Return the pairs whose answers are both stored. Other pairs are dropped."""
    ids = [id for doubt in doubts for id in (doubt.label.id, doubt.label.entry)]
    entries = await engine.store.load(ids)
    pairs = []
    for doubt, asked, stored in zip(doubts, entries[::2], entries[1::2], strict=True):
        if asked is None or stored is None:
            admin.reviews.drop(doubt.label)
        else:
            pairs.append(_pair(doubt, asked, stored))
    return pairs


def _pair(doubt: DoubtfulPair, asked: Entry, stored: Entry) -> ReviewPair:
    label = doubt.label
    return ReviewPair(
        id=label.id,
        entry=label.entry,
        similarity=label.similarity,
        score=doubt.score,
        veto=label.veto,
        served=label.served,
        judged=label.same,
        asked=_side(asked),
        stored=_side(stored),
    )


def _side(entry: Entry) -> Side:
    return Side(question=entry.key.query or "", answer=answer_text(entry))
