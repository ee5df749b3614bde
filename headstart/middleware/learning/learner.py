"""Compares fresh answers with cached ones, and turns each comparison into a label.

1. ``HitDecider`` draws which requests are compared. For each one it makes a ``FeedbackSample``: the
   question, and the neighbour in the cache.
2. When the fresh answer has come, it is queued with its sample (``Learner.submit``). No client
   waits for the rest.
3. A worker asks the ``AnswerJudge`` whether the fresh and the cached answer mean the same. The
   judge looks at the words, then at the sketches, then at the encodings, and stops as soon as it is
   sure. If it is still unsure at the end, it may ask a language model (``ModelJudge``).
4. The result is written to the store as a ``Label``. ``Domains`` reads the labels of all processes
   back and learns from them.

For example, "how can I open an account" is a miss, and its neighbour is "how do I open an account".
Their answers say the same, so the label has ``same=True``, and the features of the pair.

People give labels, too: ``Learner.feedback`` for the answer to a request, and ``Learner.review``
for a pair. **Audits** are hits whose question is sent to the provider all the same, to measure how
many hits are wrong. They and the calls of ``ModelJudge`` cost money, so each has a ``CallBudget``.
The CPU time of comparisons has a ``ComparisonBudget``.
"""

from __future__ import annotations

import random
import time
from collections import OrderedDict, deque
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import anyio
import msgspec
from anyio import to_thread

from headstart.decisions import Label, LabelSource, Outcome, UnlabelledPair
from headstart.errors import EncoderError, HeadstartError, StoreError, UpstreamProtocolError
from headstart.observe import Encoded, Labelled, Observation, Observer, Served, StageFailed, logger
from headstart.policies.agreement.judge import (
    Agreement,
    AnswerPair,
    answer_text,
    judge_request,
    read_verdict,
)
from headstart.policies.match import Veto
from headstart.reply import Transcript
from headstart.types import Answer, CacheKey, Call, Entry, Latest, RawResponse, T, ulid_time

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from headstart.dialects.dialect import Dialect
    from headstart.embeddings.entry_encoder import PromptEncoder
    from headstart.interfaces import Store, Upstream
    from headstart.middleware.learning.domains import Domains
    from headstart.policies.cost import Price
    from headstart.settings import AuditSettings


MOST_WAITING = 256
"""The most comparisons that may wait: some 4 s of work. Further ones are dropped, with their
labels."""
MOST_WAITING_CHARS = 32 * 1024 * 1024
"""Characters of the fresh answers that may wait."""
AT_ONCE = 8
"""The number of comparisons at the same time. A model that is asked for its opinion takes
seconds."""
MOST_RECENT = 10_000
"""Number of requests that feedback and ``explain`` can refer to."""
CLOCKS_APART_S = 60.0
"""The time in the books may be this many seconds before the time in the request's id."""
NO_KEY = CacheKey(scope="", partition="", exact="")
NO_ANSWER = RawResponse(headers=(), body=b"")


class FeedbackSample(NamedTuple):
    """A question and its neighbour, for which the fresh answer will give a label.

    ``id`` names the request that gets the fresh answer.
    """

    id: str
    pair: UnlabelledPair
    source: LabelSource
    question: str
    principal: str
    served: bool = False
    draw_probability: float = 1.0
    """The probability that such a request gives a label."""
    question_hash: str = ""
    """The hash under which feedback is kept."""
    twice: bool = False
    """Whether to ask the provider again after it has answered this miss: a null audit."""
    stores: bool = True
    """Whether to store and record the fresh answer, instead of an older one to the same request."""


class PendingComparison(NamedTuple):
    """A sample and its fresh answer.

    ``stored``: the answer is in the store, under the sample's id.
    """

    sample: FeedbackSample
    fresh: Answer
    stored: bool


@dataclass(eq=False, repr=False)
class Learner:
    """Compares answers and writes labels. ``run`` runs in the background.

    ``version`` is that of the match policy. Nothing is learned from labels of another version.
    """

    store: Store
    domains: Domains
    judge: AnswerJudge
    _: KW_ONLY
    version: str
    clock: Callable[[], float]
    observer: Observer
    _recent: OrderedDict[str, FeedbackSample] = field(default_factory=OrderedDict)
    _rated: dict[str, tuple[bool, bool]] = field(default_factory=dict)
    """The last feedback on each request: whether the answer was right, and ``pair_only``."""
    _waiting_chars: int = 0

    def __post_init__(self) -> None:
        streams = anyio.create_memory_object_stream[PendingComparison](MOST_WAITING)
        self._send, self._receive = streams

    async def run(self) -> None:
        """Follow the labels and make new ones, until cancelled."""
        async with self._receive, anyio.create_task_group() as tasks:
            tasks.start_soon(self.domains.run)
            for _ in range(AT_ONCE):
                tasks.start_soon(self._work)

    async def aclose(self) -> None:
        """Save the learned state. Cancel ``run`` first."""
        self._send.close()
        await self.domains.aclose()

    # --- requests --------------------------------------------------------------------------------

    def remember(self, sample: FeedbackSample) -> None:
        """Keep the sample of a request, for feedback and ``explain``.

        It is kept without the texts of its question and entry, which could take much memory.
        """
        entry = msgspec.structs.replace(
            sample.pair.entry, key=NO_KEY, answer=NO_ANSWER, evidence=b""
        )
        pair = msgspec.structs.replace(sample.pair, entry=entry)
        self._recent[sample.id] = sample._replace(pair=pair, question="")
        if len(self._recent) > MOST_RECENT:
            oldest, _ = self._recent.popitem(last=False)
            self._rated.pop(oldest, None)

    def recall(self, id: str) -> FeedbackSample | None:
        """Return the sample of a recent request, without its texts."""
        return self._recent.get(id)

    def submit(self, comparison: PendingComparison) -> None:
        """Queue a fresh answer for its comparison."""
        size = answer_size(comparison.fresh)
        if self._waiting_chars and self._waiting_chars + size > MOST_WAITING_CHARS:
            return self._report(anyio.WouldBlock())
        try:
            self._send.send_nowait(comparison)
        except (anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            return self._report(error)
        self._waiting_chars += size

    def mark_unserved(self, id: str) -> None:
        """Note that a hit was not served, so feedback on the request is about a fresh answer."""
        sample = self._recent.get(id)
        if sample is not None:
            self._recent[id] = sample._replace(served=False)

    async def feedback(self, id: str, *, same: bool, pair_only: bool = False) -> bool:
        """Take a user's feedback; return False if the request is unknown. Raises StoreError.

        In this process it has an effect as soon as this returns, and in the others when they have
        read the label. The learned rule learns only from the first feedback on a request, so that
        repeated feedback has no weight. A different later one can still veto an entry, or lift the
        veto.
        """
        sample = self._recent.get(id)
        if sample is None:
            return await self._late_feedback(id, same=same, pair_only=pair_only)
        rating = same, pair_only
        if self._rated.get(id) == rating:
            return True
        label = self._label(sample, LabelSource.FEEDBACK, same=same)
        label = msgspec.structs.replace(label, pair_only=pair_only)
        if id in self._rated:  # without features the rule learns nothing
            label = msgspec.structs.replace(label, version="", features=b"")
        await self._write(label)
        self._rated[id] = rating
        await self.domains.follow()
        return True

    async def _late_feedback(self, id: str, *, same: bool, pair_only: bool) -> bool:
        """Take feedback on a hit that is only in the books. It may veto, but nothing is learned.

        Such a hit was before a restart, or in another process. The books do not have its question.
        """
        await self.domains.follow()
        veto = self.domains.vetoes.find(id)
        if veto is None:
            entry = await self._booked_entry(id)
            if entry is None or pair_only:
                return False
            if same:
                return True  # there is no veto to lift
            veto = Veto(entry, "")
        label = Label(
            id=id,
            entry=veto.entry,
            domain="",
            source=LabelSource.FEEDBACK,
            same=same,
            at=self.clock(),
            similarity=0.0,
            served=True,
            question=veto.question,
            pair_only=pair_only,
        )
        await self._write(label)
        await self.domains.follow()
        return True

    async def _booked_entry(self, id: str) -> str | None:
        """Return the entry of a semantic hit, from the books; None if there was no such hit."""
        at = ulid_time(id)
        if at is None:
            return None
        async for row in self.store.read_books(at - CLOCKS_APART_S):
            if row.id == id:
                return row.entry if row.outcome is Outcome.SEMANTIC else None
        return None

    async def review(self, label: Label, *, same: bool) -> None:
        """Write a person's label for a pair that has a label already. Raises StoreError."""
        await self._write(
            msgspec.structs.replace(label, source=LabelSource.REVIEW, same=same, at=self.clock())
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
                # Answers may be any text, and no answer may stop the learning.
                logger.exception("a comparison failed; nothing is learned from it")
                self._report(error)

    async def _compare(self, comparison: PendingComparison) -> None:
        sample = comparison.sample
        agreement = await self.judge.compare(sample.pair.entry, sample.question, comparison.fresh)
        await self._write(
            self._label(sample, sample.source, same=agreement.same, stored=comparison.stored)
        )

    def _label(
        self,
        sample: FeedbackSample,
        source: LabelSource,
        *,
        same: bool | None,
        stored: bool = False,
    ) -> Label:
        verdict = sample.pair.verdict
        return Label(
            id=sample.id,
            entry=sample.pair.entry.id,
            domain=sample.pair.domain,
            source=source,
            same=same,
            at=self.clock(),
            similarity=verdict.similarity,
            version=self.version,
            features=verdict.features,
            sketch=verdict.sketch,
            same_words=verdict.same_words,
            veto=verdict.veto,
            served=sample.served,
            stored=stored,
            principal=sample.principal,
            draw_probability=sample.draw_probability,
            question=sample.question_hash,
        )

    def _report(self, error: Exception) -> None:
        failed = StageFailed.of("learner", error)
        if isinstance(error.__cause__ or error, anyio.WouldBlock):
            detail = "answers come faster than they are compared: nothing is learned from some"
            failed = msgspec.structs.replace(failed, detail=detail)
        self.observer.notify(failed)

    async def _write(self, label: Label) -> None:
        await self.store.add_labels([label])
        self.domains.wake()
        self.observer.notify(Labelled(source=label.source, same=label.same))


# --- comparisons of answers -----------------------------------------------------------------------

CLEARLY_DIFFERENT, CLEARLY_SAME = 0.02, 0.95
"""The answers are encoded only if the probability by words alone is between these two.

An encoding is the most expensive part of a comparison. On pairs judged by people, words alone
decide three of four pairs of unrelated answers and a third of the equal ones; 0.4 % of these
decisions are wrong.
"""
MOST_VECTORS = 2048
"""Number of answers whose vectors are kept: 3 MB."""
OPINION_S = 60.0
"""The longest wait for a second opinion. After that the pair stays unsure."""
LONG = 16_384
"""Answers of more characters together are judged in a thread: a megabyte of JSON takes 150 ms."""


class SecondOpinion(Protocol):
    """Judges pairs about which the built-in judge is unsure."""

    async def same(self, question: str, cached: Answer, fresh: Answer) -> bool | None:
        """Return the judgement, or None if it is unsure or its budget is spent."""


@dataclass(slots=True, eq=False)
class AnswerJudge:
    """Compares answers, and asks ``second`` about unsure pairs. Raises no HeadstartError."""

    encoder: PromptEncoder | None
    observer: Observer
    second: SecondOpinion | None = None
    budget: ComparisonBudget | None = None
    """Gets the CPU time of each comparison, without the time of encodings."""
    sketch: Callable[[str], NDArray[np.float32]] | None = None
    _vectors: Latest[int, NDArray[np.float32]] = field(default_factory=lambda: Latest(MOST_VECTORS))

    async def compare(self, entry: Entry, question: str, fresh: Answer) -> Agreement:
        """Judge a fresh answer to ``question`` against the entry of a similar question."""
        cached = entry.answer
        agreement = await self._judge(cached, fresh, (question, entry.key.query))
        if self.budget is not None:
            self.budget.compared()
        if agreement.same is not None or self.second is None:
            return agreement
        try:
            with anyio.fail_after(OPINION_S):
                same = await self.second.same(question, cached, fresh)
        except (HeadstartError, TimeoutError) as error:
            self.observer.notify(StageFailed(stage="judge", error=type(error).__name__))
            return agreement
        return msgspec.structs.replace(agreement, same=same)

    async def _judge(
        self, cached: Answer, fresh: Answer, questions: tuple[str, str | None]
    ) -> Agreement:
        """Judge by words, then by sketches. Encode the answers only if both are unsure."""
        long = answer_size(cached) + answer_size(fresh) > LONG
        pair, agreement, texts = await self._run(
            _judge_words, cached, fresh, questions, off_loop=long
        )
        if len(texts) != 2:  # the words decide, or there are no two texts to encode
            return agreement
        if self.sketch is not None:
            settled = await self._run(_judge_sketches, pair, self.sketch, texts, off_loop=long)
            if settled is not None:
                return settled
        cosine = await self._cosine(texts)
        return agreement if cosine is None else await self._run(pair.judge, cosine, off_loop=False)

    async def _run(self, function: Callable[..., T], *args: object, off_loop: bool) -> T:
        """Call a function, with ``off_loop`` in a thread, and charge its CPU time to the budget."""

        def timed() -> tuple[T, float]:
            began = time.thread_time()
            result = function(*args)
            return result, time.thread_time() - began

        result, spent_s = await to_thread.run_sync(timed) if off_loop else timed()
        if self.budget is not None:
            self.budget.spend(spent_s)
        return result

    async def _cosine(self, texts: tuple[str, ...]) -> float | None:
        """Return the cosine of two texts; None if there is no encoder, or if it failed."""
        if self.encoder is None:
            return None
        try:
            one, other = [await self._vector(self.encoder, text) for text in texts]
        except EncoderError as error:
            self.observer.notify(StageFailed(stage="encoder", error=type(error).__name__))
            return None
        return float(one @ other)

    async def _vector(self, encoder: PromptEncoder, text: str) -> NDArray[np.float32]:
        """Encode an answer, unless its vector is kept from a comparison with another answer."""
        known = self._vectors.get(hash(text))
        if known is None:
            known = (await encoder.encode(text, background=True, tenant=COMPARED)).sentence
        self._vectors[hash(text)] = known
        return known


def _judge_words(
    cached: Answer,
    fresh: Answer,
    questions: tuple[str, str | None],
) -> tuple[AnswerPair, Agreement, tuple[str, ...]]:
    """Judge two answers by their words; return also the texts to encode, if words do not decide."""
    pair = AnswerPair(cached, fresh, questions)
    agreement = pair.judge(None)
    doubtful = CLEARLY_DIFFERENT < agreement.probability < CLEARLY_SAME
    return pair, agreement, pair.texts_to_encode if doubtful else ()


def _judge_sketches(
    pair: AnswerPair, sketch: Callable[[str], NDArray[np.float32]], texts: tuple[str, ...]
) -> Agreement | None:
    """Judge by the sketches of the texts; None if only their encodings can decide."""
    one, other = map(sketch, texts)
    if not (one.any() and other.any()):  # a sketch is zero if no word of its text is known
        return None
    return pair.judge_by_sketches(float(one @ other))


def answer_size(answer: Answer) -> int:
    """Return the length of an answer in characters, roughly."""
    if isinstance(answer, RawResponse):
        return len(answer.body)
    return sum(choice.size for choice in answer.choices)


# --- a second opinion from a language model -------------------------------------------------------

PATH = b"/v1/chat/completions"
MOST_CHARACTERS = 64 * 1024
"""The most characters of an answer of the model that are read as a verdict."""


@dataclass(slots=True, eq=False)
class ModelJudge:
    """Asks ``model`` of ``upstream`` whether two answers agree. Each call is booked as an audit."""

    upstream: Upstream
    dialect: Dialect
    model: str
    budget: CallBudget
    price: Callable[[str], Price | None]
    clock: Callable[[], float]
    new_id: Callable[[], str]
    observer: Observer

    async def same(self, question: str, cached: Answer, fresh: Answer) -> bool | None:
        """Return the judgement; None if unsure, or if no budget is left. Raises UpstreamError."""
        if not self.budget.take():
            return None
        call = self._call(question, cached, fresh)
        began = time.perf_counter()
        transcript, status = Transcript(), 0
        try:
            async with await self.upstream.send(call) as reply:
                transcript, status = reply.transcript, reply.status
                async for _ in reply.pieces:
                    pass
        finally:
            self._book(call, transcript, status, time.perf_counter() - began)
        verdict = transcript.completion(self.clock())
        if status != 200 or verdict is None or transcript.characters > MOST_CHARACTERS:
            raise UpstreamProtocolError(f"the judge {self.model!r} did not answer")
        return read_verdict(answer_text(verdict))

    def _call(self, question: str, cached: Answer, fresh: Answer) -> Call:
        asked = judge_request(question, answer_text(cached), answer_text(fresh), self.model)
        body = msgspec.json.encode(asked)
        return Call(
            id=self.new_id(),
            method="POST",
            path=PATH,
            query_string=b"",
            headers=((b"content-type", b"application/json"),),
            body=body,
            dialect=self.dialect.name,
            endpoint="judge",
            request=self.dialect.parse_request(body),
        )

    def _book(self, call: Call, transcript: Transcript, status: int, total_s: float) -> None:
        tokens = self.dialect.tokens(transcript.usage or {})
        price = self.price(self.model)
        cost_usd = None if price is None else price.cost_usd(tokens)
        self.budget.pay(cost_usd or 0.0)
        self.observer.notify(
            Served(
                id=call.id,
                at=self.clock() - total_s,
                endpoint=call.endpoint,
                outcome=Outcome.AUDIT,
                status=status,
                stream=False,
                total_s=total_s,
                model=self.model,
                upstream=self.upstream.name,
                reason="judge",
                prompt_tokens=tokens.prompt,
                completion_tokens=tokens.completion,
                cost_usd=cost_usd,
                error=None if status == 200 else "judge-failed",
            )
        )


# --- audits and budgets ---------------------------------------------------------------------------

HOUR_S = 3600.0
DAY_S = 86400.0
MINUTE_S = 60.0
SAVED_UP_S = 30.0
"""Unused CPU time of up to this many seconds is saved up for busy times."""
FIRST_PRICE_S = 0.01
FIRST_PRICES = 5.0
"""The prior of the average price: a new budget assumes this number of comparisons, each of
``FIRST_PRICE_S`` seconds of CPU time."""
PRICE_MEMORY = 0.99
"""Each comparison multiplies the weights of all older ones in the average price by this factor."""
COMPARED = "compared answers"
"""The tenant of answers to compare in the encoder's queue. Other tenants are hashes."""


@dataclass(slots=True, eq=False)
class CallBudget:
    """Limits the calls of the last hour and the dollars of the last day. None: no limit.

    ``clock`` returns seconds of a monotonic clock.
    """

    max_calls_per_hour: int | None
    max_usd_per_day: float | None
    clock: Callable[[], float]
    _calls: deque[float] = field(default_factory=deque)
    _paid: deque[list[float]] = field(default_factory=deque)
    """The minutes in which something was paid, with the sums: at most 1,440 for a day."""

    def take(self) -> bool:
        """Count a call if it may be made; return whether it may."""
        now = self.clock()
        while self._calls and self._calls[0] <= now - HOUR_S:
            self._calls.popleft()
        while self._paid and self._paid[0][0] <= now - DAY_S:
            self._paid.popleft()
        if self.max_calls_per_hour is not None and len(self._calls) >= self.max_calls_per_hour:
            return False
        paid_usd = sum(usd for _, usd in self._paid)
        if self.max_usd_per_day is not None and paid_usd >= self.max_usd_per_day:
            return False
        if self.max_calls_per_hour is not None:
            self._calls.append(now)
        return True

    def pay(self, cost_usd: float) -> None:
        """Note the cost of a call."""
        if self.max_usd_per_day is None:
            return
        now = self.clock()
        if self._paid and now - self._paid[-1][0] < MINUTE_S:
            self._paid[-1][1] += cost_usd
        else:
            self._paid.append([now, cost_usd])


@dataclass(slots=True, eq=False)
class ComparisonBudget:
    """The CPU time for comparisons of answers: a share of one core, saved up for ``SAVED_UP_S``.

    A comparison is drawn before the fresh answer comes, and made after it. It is paid for when it
    is drawn (``take``), at the average price of earlier comparisons. Its real CPU time is noted
    when it is made (``spend``, ``compared``), and changes only the average. As an observer, the
    budget notes the time of encodings for the tenant ``COMPARED``. ``clock`` returns seconds of a
    monotonic clock.
    """

    observes: ClassVar = (Encoded,)

    share: float
    """The share of one core: 0.1 gives 0.1 s of CPU time in each second."""
    clock: Callable[[], float]
    _debt_s: float = 0.0
    """The CPU time that was taken and has not come back yet. Time pays it off, by ``share``."""
    _paid_off_at: float | None = None
    _comparisons: float = FIRST_PRICES
    """The number of comparisons in the average price. Older ones weigh less (``PRICE_MEMORY``)."""
    _spent_s: float = FIRST_PRICES * FIRST_PRICE_S
    """Their CPU time."""

    def left(self) -> float:
        """Return the part of the budget that is left: 1 is all of it, 0 or less is nothing."""
        now, full_s = self.clock(), self.share * SAVED_UP_S
        passed_s = 0.0 if self._paid_off_at is None else now - self._paid_off_at
        self._paid_off_at = now
        self._debt_s = max(0.0, self._debt_s - self.share * passed_s)
        return 1 - self._debt_s / full_s if full_s else 0.0

    def take(self) -> None:
        """Pay for one comparison."""
        self._debt_s += self._spent_s / self._comparisons

    def spend(self, seconds: float) -> None:
        """Note the CPU time of a comparison."""
        self._spent_s += seconds

    def compared(self) -> None:
        """Note that a comparison is done, for the average price."""
        self._comparisons = PRICE_MEMORY * self._comparisons + 1
        self._spent_s *= PRICE_MEMORY

    def notify(self, observation: Observation) -> None:
        """Note the encoding of an answer that is compared."""
        if isinstance(observation, Encoded) and observation.tenant == COMPARED:
            self.spend(observation.encode_s)


class Audits:
    """Draws audits at random, within their budget. Callers cannot predict the random numbers.

    The modes of ``settings``: with ``background``, the hit is served and the provider is asked as
    well; with ``sync``, the caller waits for the provider's answer; with ``off``, there are no
    audits.
    """

    def __init__(self, settings: AuditSettings, clock: Callable[[], float]) -> None:
        self.settings = settings
        self.budget = CallBudget(settings.max_calls_per_hour, settings.max_usd_per_day, clock)
        self._random = random.SystemRandom()

    def rate(self, least: float) -> float:
        """Return the share of semantic hits to audit. Their domain needs at least ``least``."""
        return 0.0 if self.settings.mode == "off" else max(least, self.settings.rate)

    def null_rate(self, least: float) -> float:
        """Return the share of exact hits to audit. Their domain needs at least ``least``.

        Such audits are made only in the background, and only if the setting is above 0.
        """
        rate = self.settings.null_rate
        return max(least, rate) if self.settings.mode == "background" and rate else 0.0

    @property
    def asks_twice(self) -> bool:
        """Whether some misses are asked twice, which happens only in the background."""
        return self.settings.mode == "background" and self.settings.ask_twice

    def draw(self, rate: float) -> bool:
        """Decide whether to make one further call, with the probability ``rate`` and the budget."""
        return self.draw_share(rate) and self.budget.take()

    def draw_share(self, share: float) -> bool:
        """Return True with the probability ``share``, without using the budget."""
        return self._random.random() < share
