"""``headstart batch --tier batch``: what the cache cannot answer goes to the provider's batches."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import anyio
import msgspec

from headstart.errors import HeadstartError, UpstreamError, UpstreamRefused
from headstart.middleware.batches.journal import Submission
from headstart.middleware.upstreams.batched import endpoint_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from headstart.middleware.batches.journal import BatchJournal
    from headstart.middleware.upstreams.batched import BatchDesk, BatchedCall, BatchEndpoint

PRICE = 0.5
"""What OpenAI and Anthropic ask for a call of a batch, as a share of the price (November 2026)."""
FIRST_LOOK_S, SLOWER, LONGEST_LOOK_S = 1.0, 1.5, 60.0
"""The time between two looks at the batches: it grows while nothing changes."""
MOST_FAILURES = 10
"""So many failures of the endpoint in a row end the run."""
_PASSING = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))


class _Running(NamedTuple):
    """A batch at a provider."""

    submission: Submission
    endpoint: BatchEndpoint


class BatchTier:
    """Submits calls to batch endpoints, waits for the answers, and gives them to the ``desk``.

    The journal has a line for each submission before it is made. So a run that was killed finds its
    batches again, and submits nothing twice.
    """

    def __init__(self, desk: BatchDesk, journal: BatchJournal) -> None:
        self._desk = desk
        self._journal = journal
        self._calls: dict[str, list[BatchedCall]] = defaultdict(list)
        """The calls that wait, by their digests."""
        self.submitted = 0
        self.done = 0
        """Of the requests in batches: those that the provider has answered."""
        self.batches = 0
        self._taken: list[Submission] = []
        """The batches whose answers the desk has."""

    def defers(self, request: str, *, again: bool) -> str | None:
        """Return the digest of a request's call if that has no answer.

        The call is submitted with the next batch, but not ``again``.
        """
        call = self._desk.waiting.pop(request, None)
        if call is None:
            return None
        if not again:
            self._calls[call.digest].append(call)
        return call.digest

    def error(self, digest: str) -> tuple[int, bytes] | None:
        """Return status and body of the error that the provider gave to a call."""
        return self._desk.error(digest)

    async def settle(self, rest: Callable[[float], Awaitable[bool]]) -> bool:
        """Submit all calls that wait, and take the answers; return False if the run was stopped.

        ``rest`` waits for some seconds, and returns False if it is. Raises HeadstartError.
        """
        self.submitted = sum(map(len, self._calls.values()))
        self.done = 0
        running = await self._found()
        for calls in self._groups():
            running.append(await self._submit(calls))
        self.batches += len(running)
        ended = await self._wait(running, rest)
        if ended:
            for each in running:
                await self._fetch(each)
        self._taken = [each.submission for each in running] if ended else []
        return ended

    async def close_round(self) -> None:
        """Note that the answers are in the journal: what failed may be submitted again."""
        for each in self._taken:
            done = msgspec.structs.replace(each, over=True)
            await asyncio.to_thread(self._journal.submit, done)
        self._taken = []

    # --- submissions -------------------------------------------------------------------------

    async def _found(self) -> list[_Running]:
        """Return the batches of earlier runs that have calls which wait, and take these calls."""
        running: list[_Running] = []
        for submission in tuple(self._journal.submissions.values()):
            wanted = Counter(submission.digests)
            calls = [each for digest in wanted for each in self._calls.get(digest, ())]
            if submission.over or not calls:
                continue
            endpoint = endpoint_of(calls[0])
            known = submission
            if known.batch is None:
                id = await self._find(endpoint, submission)
                if id is None:
                    continue  # it was never made: its calls are submitted anew
                known = await self._note(msgspec.structs.replace(submission, batch=id))
            running.append(_Running(known, endpoint))
            for digest, count in wanted.items():
                del self._calls[digest][:count]
        return running

    def _groups(self) -> Iterator[list[BatchedCall]]:
        """Yield the calls that go into one batch each, and forget them."""
        groups: dict[tuple[str, str, str], list[BatchedCall]] = defaultdict(list)
        for calls in self._calls.values():
            for call in calls:
                groups[call.upstream.name, call.path, call.model].append(call)
        self._calls.clear()
        for calls in groups.values():
            endpoint = endpoint_of(calls[0])
            chunk: list[BatchedCall] = []
            size = 0
            for call in calls:
                if chunk and (
                    len(chunk) == endpoint.most or size + len(call.body) > endpoint.most_bytes
                ):
                    yield chunk
                    chunk, size = [], 0
                chunk.append(call)
                size += len(call.body)
            yield chunk

    async def _submit(self, calls: list[BatchedCall]) -> _Running:
        """Make a batch. A failure may hide that it was made, so it is looked for first."""
        endpoint, token = endpoint_of(calls[0]), secrets.token_hex(6)
        now = time.time()  # noqa: TID251 - the provider's times are Unix seconds, too
        submission = Submission(
            token=token,
            upstream=calls[0].upstream.name,
            path=calls[0].path,
            digests=tuple(call.digest for call in calls),
            at=now,
        )
        await self._note(submission)
        named = dict(_named(token, calls))
        pause_s = FIRST_LOOK_S
        while True:
            try:
                id = await endpoint.submit(token, named)
                break
            except UpstreamError as error:
                if not _passes(error) or pause_s > LONGEST_LOOK_S:
                    raise
            await anyio.sleep(pause_s)
            pause_s *= 2
            found = await self._find(endpoint, submission)
            if found is not None:
                id = found
                break
        return _Running(await self._note(msgspec.structs.replace(submission, batch=id)), endpoint)

    async def _note(self, submission: Submission) -> Submission:
        try:
            await asyncio.to_thread(self._journal.submit, submission)
        except OSError as error:
            raise HeadstartError(f"the journal cannot be written: {error}") from error
        return submission

    async def _find(self, endpoint: BatchEndpoint, submission: Submission) -> str | None:
        count = len(submission.digests)
        return await endpoint.find(submission.token, submission.at, count)

    # --- answers -----------------------------------------------------------------------------

    async def _wait(
        self, running: Iterable[_Running], rest: Callable[[float], Awaitable[bool]]
    ) -> bool:
        """Look at the batches until all have ended; return False if the run was stopped."""
        left, done = list(running), dict[str, int]()
        look_s, failures = FIRST_LOOK_S, 0
        while True:
            before = self.done
            for each in tuple(left):
                token = each.submission.token
                try:
                    state = await each.endpoint.state(each.submission.batch or "")
                except UpstreamError as error:
                    failures += 1
                    if not _passes(error) or failures >= MOST_FAILURES:
                        raise
                    continue
                failures = 0
                done[token] = state.done
                if state.ended:
                    left.remove(each)
                    done[token] = len(each.submission.digests)
            self.done = sum(done.values())
            if not left:
                return True
            look_s = FIRST_LOOK_S if self.done > before else min(look_s * SLOWER, LONGEST_LOOK_S)
            if not await rest(look_s):
                return False

    async def _fetch(self, each: _Running) -> None:
        pause_s = FIRST_LOOK_S
        while True:
            try:
                found = [row async for row in each.endpoint.results(each.submission.batch or "")]
                break
            except UpstreamError as error:
                if not _passes(error) or pause_s > LONGEST_LOOK_S:
                    raise
            await anyio.sleep(pause_s)
            pause_s *= 2
        for name, answer in found:
            self._desk.answered(name.split("-")[1], answer)


def _named(token: str, calls: Iterable[BatchedCall]) -> Iterator[tuple[str, BatchedCall]]:
    """Yield each call with its name in the batch; equal calls get a number."""
    seen = Counter[str]()
    for call in calls:
        seen[call.digest] += 1
        number = "" if seen[call.digest] == 1 else f"-{seen[call.digest]}"
        yield f"{token}-{call.digest}{number}", call


def _passes(error: UpstreamError) -> bool:
    return not isinstance(error, UpstreamRefused) or error.status in _PASSING
