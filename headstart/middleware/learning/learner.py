"""Turns fresh answers and users' words into labels. Everything here is off a request's path."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import anyio
import msgspec

from headstart.decisions import Label, LabelSource, Outcome
from headstart.errors import StoreError
from headstart.identifiers import ulid_time
from headstart.middleware.learning.judging import answer_size
from headstart.observe import Labelled, StageFailed, logger
from headstart.policies.vetoes import Veto
from headstart.types import CacheKey, RawResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.decisions import Trial
    from headstart.interfaces import Observer, Store
    from headstart.middleware.learning.domains import Domains
    from headstart.middleware.learning.judging import AnswerJudge
    from headstart.types import Completion

MOST_WAITING = 256
"""Comparisons that wait, some 4 s of work: past it a label is lost, which costs knowledge alone; a
longer queue would slow down what comes after a burst."""
MOST_WAITING_CHARS = 32 * 1024 * 1024
"""Of the fresh answers that wait."""
AT_ONCE = 8
"""Comparisons made at once: a model that is asked for its opinion takes seconds."""
MOST_RECENT = 10_000
"""Requests that feedback and ``explain`` can still refer to."""
CLOCKS_APART_S = 60.0
"""How much earlier than its id a request may be booked."""
NO_KEY = CacheKey(scope="", partition="", exact="")
NO_ANSWER = RawResponse(headers=(), body=b"")


class Lesson(NamedTuple):
    """What a fresh answer is going to teach. ``id`` is the request that asked for it."""

    id: str
    trial: Trial
    source: LabelSource
    question: str
    principal: str
    served: bool = False
    drawn: float = 1.0
    """The probability with which such a request teaches at all."""
    asked: str = ""
    """Hash of what was asked, as people's words remember it."""


class Comparison(NamedTuple):
    """A lesson and its fresh answer; ``stored`` when that is an entry under the lesson's id."""

    lesson: Lesson
    fresh: Completion | RawResponse
    stored: bool


class Learner:
    """Judges comparisons and writes labels; ``run`` it in the background.

    ``version`` is the match policy's: labels of another one are never learned from.
    """

    def __init__(
        self,
        store: Store,
        domains: Domains,
        judge: AnswerJudge,
        *,
        version: str,
        clock: Callable[[], float],
        observer: Observer,
    ) -> None:
        self.domains = domains
        self._store = store
        self._judge = judge
        self._version = version
        self._clock = clock
        self._observer = observer
        self._recent: OrderedDict[str, Lesson] = OrderedDict()
        self._rated: dict[str, tuple[bool, bool]] = {}
        """The last word on each request: was it right, and was it of the pair alone?"""
        self._waiting_chars = 0
        self._send, self._receive = anyio.create_memory_object_stream[Comparison](MOST_WAITING)

    async def run(self) -> None:
        """Follow the labels and make new ones, until cancelled."""
        async with self._receive, anyio.create_task_group() as tasks:
            tasks.start_soon(self.domains.run)
            for _ in range(AT_ONCE):
                tasks.start_soon(self._work)

    async def aclose(self) -> None:
        """Save what was learned. Cancel ``run`` first."""
        self._send.close()
        await self.domains.aclose()

    # --- requests --------------------------------------------------------------------------------

    def remember(self, lesson: Lesson) -> None:
        """Keep what a request was decided on, for feedback and ``explain``."""
        entry = msgspec.structs.replace(
            lesson.trial.entry, key=NO_KEY, answer=NO_ANSWER, evidence=b""
        )
        trial = msgspec.structs.replace(lesson.trial, entry=entry)
        self._recent[lesson.id] = lesson._replace(trial=trial, question="")
        if len(self._recent) > MOST_RECENT:
            oldest, _ = self._recent.popitem(last=False)
            self._rated.pop(oldest, None)

    def recall(self, id: str) -> Lesson | None:
        """Return what a recent request was decided on, without the texts of it."""
        return self._recent.get(id)

    def submit(self, comparison: Comparison) -> None:
        """Have a fresh answer compared, soon."""
        size = answer_size(comparison.fresh)
        if self._waiting_chars and self._waiting_chars + size > MOST_WAITING_CHARS:
            return self._report(anyio.WouldBlock())
        try:
            self._send.send_nowait(comparison)
        except (anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            return self._report(error)
        self._waiting_chars += size

    def withheld(self, id: str) -> None:
        """Note that a request's hit was not served after all: words on it are of a fresh answer."""
        lesson = self._recent.get(id)
        if lesson is not None:
            self._recent[id] = lesson._replace(served=False)

    async def feedback(self, id: str, *, same: bool, pair_only: bool = False) -> bool:
        """Take a user's word on a recent request; False when it is not known. Raises StoreError.

        It holds here on return, and wherever the store is shared once its labels are read. Only
        the first word on a request teaches: nobody teaches more by saying it again. A later one
        that differs may veto, or lift a veto, all the same.
        """
        lesson = self._recent.get(id)
        if lesson is None:
            return await self._late_feedback(id, same=same, pair_only=pair_only)
        word = same, pair_only
        if self._rated.get(id) == word:
            return True
        label = self._label(lesson, LabelSource.FEEDBACK, same=same)
        label = msgspec.structs.replace(label, pair_only=pair_only)
        if id in self._rated:
            label = msgspec.structs.replace(label, version="", features=b"")
        await self._write(label)
        self._rated[id] = word
        await self.domains.follow()
        return True

    async def _late_feedback(self, id: str, *, same: bool, pair_only: bool) -> bool:
        """Take a word on a hit of which only the books tell: it vetoes, or lifts, and teaches not.

        Before a restart, or by another process. Which question it was is not in the books.
        """
        await self.domains.follow()
        veto = self.domains.vetoes.find(id)
        if veto is None:
            entry = await self._booked_entry(id)
            if entry is None or pair_only:
                return False
            veto = Veto(entry, "")
            if same:
                return True
        label = Label(
            id=id,
            entry=veto.entry,
            domain="",
            source=LabelSource.FEEDBACK,
            same=same,
            at=self._clock(),
            similarity=0.0,
            served=True,
            question=veto.question,
            pair_only=pair_only,
        )
        await self._write(label)
        await self.domains.follow()
        return True

    async def _booked_entry(self, id: str) -> str | None:
        """Return the entry that answered a request by meaning, by the books."""
        at = ulid_time(id)
        if at is None:
            return None
        async for row in self._store.books(at - CLOCKS_APART_S):
            if row.id == id:
                return row.entry if row.outcome is Outcome.SEMANTIC else None
        return None

    async def review(self, label: Label, *, same: bool) -> None:
        """Label an earlier label's pair anew, by a person's eyes. Raises StoreError."""
        await self._write(
            msgspec.structs.replace(label, source=LabelSource.REVIEW, same=same, at=self._clock())
        )
        await self.domains.follow()

    # --- labels ----------------------------------------------------------------------------------

    async def _work(self) -> None:
        async for comparison in self._receive:
            self._waiting_chars -= answer_size(comparison.fresh)
            try:
                await self._compare(comparison)
            except StoreError as error:
                self._report(error)
            except Exception as error:  # noqa: BLE001 - logged; see below
                # Answers are anybody's text: one that breaks the judge must not end learning.
                logger.exception("a comparison failed and teaches nothing")
                self._report(error)

    async def _compare(self, comparison: Comparison) -> None:
        lesson = comparison.lesson
        agreement = await self._judge.compare(lesson.trial.entry, lesson.question, comparison.fresh)
        await self._write(
            self._label(lesson, lesson.source, same=agreement.same, stored=comparison.stored)
        )

    def _label(
        self, lesson: Lesson, source: LabelSource, *, same: bool | None, stored: bool = False
    ) -> Label:
        verdict = lesson.trial.verdict
        return Label(
            id=lesson.id,
            entry=lesson.trial.entry.id,
            domain=lesson.trial.domain,
            source=source,
            same=same,
            at=self._clock(),
            similarity=verdict.similarity,
            version=self._version,
            features=verdict.features,
            veto=verdict.veto,
            served=lesson.served,
            stored=stored,
            principal=lesson.principal,
            drawn=lesson.drawn,
            question=lesson.asked,
        )

    def _report(self, error: Exception) -> None:
        cause = error.__cause__ or error
        busy = isinstance(cause, anyio.WouldBlock)
        detail = "answers come faster than they are compared: some teach nothing" if busy else ""
        self._observer.notify(
            StageFailed(stage="learner", error=type(cause).__name__, detail=detail)
        )

    async def _write(self, label: Label) -> None:
        await self._store.label([label])
        self.domains.wake()
        self._observer.notify(Labelled(source=label.source, same=label.same))
