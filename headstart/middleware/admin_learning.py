"""What was learned, over the admin API: domains, certificates, feedback, review, explanations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import get, post
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, JSONBody, QueryParameter

from headstart.decisions import Label, LabelSource
from headstart.middleware.admin_cache import Admin, Engine, answer_text
from headstart.middleware.learning.certificates import AuditReport, all_labels, audit_report
from headstart.policies.ratchet.domain import Status  # noqa: TC001 - msgspec reads it
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headstart.middleware.admin_state import EngineParts
    from headstart.middleware.learning.oversight import Oversight
    from headstart.types import Entry

Since = Annotated[float, QueryParameter(description="Unix seconds.", ge=0)]
Limit = Annotated[int, QueryParameter(ge=1, le=200)]

REVIEWED_LABELS = 20_000
"""The newest labels among which pairs for review are looked for."""


class Feedback(Frozen, forbid_unknown_fields=True):
    """A user's word on an answer: ``id`` is the request's ``x-headstart-request-id``."""

    id: str
    correct: bool


class Reviewed(Frozen, forbid_unknown_fields=True):
    """A person's word on a pair: would one answer do for both questions?"""

    id: str
    entry: str
    same: bool


class Taken(Frozen):
    """A label was written."""

    labelled: bool = True


class Side(Frozen, omit_defaults=False):
    """One question and its answer."""

    question: str
    answer: str


class ReviewPair(Frozen, omit_defaults=False):
    """Two questions side by side: ``asked`` came later, ``stored`` was, or might have been, used.

    ``judged`` is the judge's word, null where it was unsure.
    """

    id: str
    entry: str
    similarity: float
    score: float | None
    veto: str | None
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
    status: Status


@get("/learning")
async def learning(engine: Engine) -> list[DomainView]:
    """Show the learning domains in memory: rule, threshold, alarm, labels, audits."""
    domains = _oversight(engine).learner.domains
    views = []
    for name in domains.names():
        domain = domains.get(name)
        views.append(
            DomainView(
                domain=name,
                max_error=domain.promise.max_error,
                error_of=domain.promise.error_of,
                confidence=domain.promise.confidence,
                audit_rate=domain.audit_rate(),
                status=domain.status(),
            )
        )
    return views


@get("/audit")
async def audit(engine: Engine, since: Since = 0.0) -> AuditReport:
    """Show what audits prove, by domain and week, and the hits they found wrong."""
    promise = _oversight(engine).promise
    return await audit_report(engine.store, promise, since=since)


@post("/feedback", status_code=200)
async def feedback(data: JSONBody[Feedback], engine: Engine) -> Taken:
    """Take a user's word on a recent semantic hit or near miss."""
    if not await _oversight(engine).learner.feedback(data.id, same=data.correct):
        raise NotFoundException("no recent request with this id was compared with a neighbour")
    return Taken()


@get("/review")
async def review_pairs(engine: Engine, limit: Limit = 20) -> list[ReviewPair]:
    """List the borderline pairs, the most doubtful first, with their texts."""
    oversight = _oversight(engine)
    labels = await _recent(engine)
    pairs: list[ReviewPair] = []
    for label in await _doubtful(oversight, labels):
        if len(pairs) == limit:
            break
        asked, stored = await engine.store.load([label.id, label.entry])
        if asked is not None and stored is not None:
            score = await oversight.score(label)
            pairs.append(_pair(label, score, asked, stored))
    return pairs


@post("/review", status_code=200)
async def review(data: JSONBody[Reviewed], engine: Engine) -> Taken:
    """Take a person's word on a pair that ``GET`` listed."""
    oversight = _oversight(engine)
    for label in await _recent(engine):
        if (label.id, label.entry) == (data.id, data.entry):
            await oversight.learner.review(label, same=data.same)
            return Taken()
    raise NotFoundException("this pair is not among the recent labels")


@get("/explain/{id:str}")
async def explain(id: FromPath[str], admin: Admin, engine: Engine) -> dict[str, Any]:
    """Say how a recent request was answered and why: ids, reasons, features; no texts."""
    row = admin.recent.find(id)
    if row is None:
        raise NotFoundException(
            f"no request with this id is among the last {admin.recent.maxlen} of this process"
        )
    found = msgspec.structs.asdict(row)
    if engine.oversight is not None:
        found["verdict"] = engine.oversight.explain(id)
    return found


LEARNING_HANDLERS: tuple[Any, ...] = (learning, audit, feedback, review_pairs, review, explain)


def _oversight(engine: EngineParts) -> Oversight:
    if engine.oversight is None:
        raise NotFoundException(
            'nothing is learned here: cache.match is "static", or nothing is matched by meaning'
        )
    return engine.oversight


async def _recent(engine: EngineParts) -> list[Label]:
    labels = [label async for label in all_labels(engine.store)]
    return labels[-REVIEWED_LABELS:]


async def _doubtful(oversight: Oversight, labels: Iterable[Label]) -> list[Label]:
    """Return pairs that nobody has reviewed, by their distance from a decision."""
    newest: dict[tuple[str, str], Label] = {}
    reviewed = set()
    for label in labels:
        pair = label.id, label.entry
        if label.source is LabelSource.REVIEW:
            reviewed.add(pair)
        elif label.stored and label.features:
            newest[pair] = label
    doubts = []
    for pair, label in newest.items():
        if pair not in reviewed:
            doubts.append((await oversight.doubt(label), label))
    doubts.sort(key=lambda pair: pair[0])
    return [label for _, label in doubts]


def _pair(label: Label, score: float | None, asked: Entry, stored: Entry) -> ReviewPair:
    return ReviewPair(
        id=label.id,
        entry=label.entry,
        similarity=label.similarity,
        score=score,
        veto=label.veto,
        judged=label.same,
        asked=Side(question=asked.key.query or "", answer=answer_text(asked)),
        stored=Side(question=stored.key.query or "", answer=answer_text(stored)),
    )
