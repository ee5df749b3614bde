"""What observers are told: frozen facts, never prompts, answers or credentials."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeAlias

from headstart.attempts import Attempt  # noqa: TC001 - msgspec reads it
from headstart.decisions import LabelSource, Outcome, Rule  # noqa: TC001 - the same
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.interfaces import Observer

logger = logging.getLogger("headstart")


HELD_OUT = "-holdout"
"""Ends the ``Shaped.kind`` of what an experiment left alone."""
DRY_RUN = "-dry-run"
"""Ends the ``Shaped.kind`` of what was reckoned and not done."""


class Shaped(Frozen):
    """What was done to a prompt or an answer on its way, in tokens.

    What only an experiment can tell has the answer's length on both sides (``concise``, ``tight``).
    """

    kind: str
    """``compress``, ``concise``, ``guard``, ``tight``, ``edits``, ``quotes``, ``prediction``."""
    tokens_before: int
    tokens_after: int
    own_s: float = 0.0
    """Our own time for it."""
    estimated: bool = True


class Served(Frozen, tag="served"):
    """One request, answered or failed. Also a row of the books that ``report`` reads.

    ``ttft_s`` counts from the request's arrival to the first content byte sent to the client,
    ``total_s`` to the last. ``saved_*`` are net of this request's own figures; a hit that was
    slower than the original call has negative savings.
    """

    id: str
    at: float
    endpoint: str
    outcome: Outcome
    status: int
    stream: bool
    total_s: float
    ttft_s: float | None = None
    scope: str = ""
    model: str = ""
    upstream: str = ""
    reason: str | None = None
    similarity: float | None = None
    veto: str | None = None
    entry: str | None = None
    holdout: bool = False
    """A would-be hit that was sent upstream to measure what hits really save."""
    error: str | None = None
    domain: str = ""
    """Where what was learned about such matches lives; "" where nothing is learned."""
    neighbor: str | None = None
    """The entry that was judged, also on a miss."""
    rule: Rule | None = None
    """What the verdict on it rests on."""
    score: float | None = None
    threshold: float | None = None
    audit_of: str | None = None
    """The request whose hit this call audits: nobody waits for it, and its cost is booked."""
    encode_s: float = 0.0
    lookup_s: float = 0.0
    upstream_s: float | None = None
    """Time to the upstream's first content delta."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    estimated: bool = False
    saved_ttft_s: float = 0.0
    saved_total_s: float = 0.0
    saved_tokens: int = 0
    saved_usd: float | None = None
    overhead_s: float = 0.0
    """Our own time: parse, encode, lookup, match."""
    stored: bool = False
    not_stored: str | None = None
    """Why nothing is kept of an answer that was asked for; None where none was to be."""
    route: str = ""
    """The ``[[route]]`` that was taken; "": none fitted."""
    shaped: tuple[Shaped, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    """The upstream calls that it caused, in the order of their ends; ``cost_usd`` is their sum."""


class StageFailed(Frozen, tag="stage_failed"):
    """An optional stage failed and was bypassed. ``error`` is the exception's class name."""

    stage: str
    error: str
    detail: str = ""
    """What is known of it and tells nothing of prompts."""


class UpstreamFailed(Frozen, tag="upstream_failed"):
    """A relayed call failed, or was answered with a 5xx. Others are in ``Served.attempts``."""

    upstream: str
    error: str
    """Our code for it."""
    status: int = 0
    """Of the upstream's answer, if there was one."""


class Committed(Frozen, tag="committed"):
    """The store acknowledged an entry."""

    id: str
    bytes: int


class Encoded(Frozen, tag="encoded"):
    """One prompt went through the encoder thread."""

    encode_s: float
    queue_s: float
    queue_length: int
    tokens: int


class Labelled(Frozen, tag="labelled"):
    """A pair was judged; ``same`` is None where the judge was unsure."""

    source: LabelSource
    same: bool | None


class Learned(Frozen, tag="learned"):
    """A label changed a learning domain's rule or raised its alarm.

    ``serves`` and ``cold_start_serves`` are shares of its recent candidates: what it serves now,
    and what it would serve had it learned nothing.
    """

    domain: str
    rule: Rule
    threshold: float | None
    alarm: bool
    serves: float
    cold_start_serves: float


Observation: TypeAlias = (
    Served | StageFailed | UpstreamFailed | Committed | Encoded | Labelled | Learned
)


class Observers:
    """Fans one observation out. An observer that raises is logged once and dropped."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = list(observers)

    def add(self, observer: Observer) -> None:
        """Also notify ``observer`` from now on."""
        self._observers.append(observer)

    def notify(self, observation: Observation) -> None:
        """Tell every observer, in order of registration."""
        for observer in tuple(self._observers):
            try:
                observer.notify(observation)
            except Exception:
                logger.exception("observer %r failed and is switched off", type(observer).__name__)
                self._observers.remove(observer)
