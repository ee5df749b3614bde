"""Prompts made shorter before they go up, where ``headstart.compression`` says that it pays."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from headstart.compression.compress import compress
from headstart.compression.gate import Profile
from headstart.compression.memo import Memo
from headstart.compression.result import count_messages
from headstart.compression.tokens import count_tokens, estimate_tokens, is_loaded
from headstart.middleware.shaping.prompts import read_prompt
from headstart.middleware.shaping.shaper import Shaper, plain, with_document
from headstart.middleware.tokenizers import load_soon
from headstart.observe import DRY_RUN, Shaped, StageFailed
from headstart.policies.directives import asked_compression, compressed, stricter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from typing import TypeVar

    from headstart.compression.result import Compression, Mode
    from headstart.compression.tokens import TokenCount
    from headstart.interfaces import Candidate, Observer, UpstreamReply
    from headstart.middleware.upstreams.ledger import Ledger
    from headstart.types import Call

    T = TypeVar("T")

INLINE_BYTES: dict[Mode, int] = {"safe": 64_000, "balanced": 32_000, "aggressive": 12_000}
"""Of a body. A shorter one is compressed on the loop, most in the 5 ms that a thread may keep the
loop from going on anyway, a log in 8; the worst found, a log of empty lines, takes 75 ms."""


@dataclass(frozen=True)
class CompressingOptions:
    """What is done to prompts; ``docs/compression.md`` describes the modes."""

    mode: Mode = "safe"
    """The most; a caller's ``x-headstart-compress`` may ask for less."""
    profile: Profile = field(default_factory=Profile)
    clear_history: bool = False
    strip_comments: bool = False
    dry_run: bool = False
    """Book what would have been saved, and send the prompt as it came."""


class Workbench:
    """Where prompts are compressed and counted: the loop, and one thread for what is long.

    Each keeps a memo of its own, since neither may use the other's. One instance serves all
    routes of a process; ``close`` ends the thread.
    """

    def __init__(self) -> None:
        self._inline = Memo()
        self._memo = Memo()
        self._thread = ThreadPoolExecutor(1, "headstart-compress")

    def close(self) -> None:
        """Stop after the work under way. What waits is dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def here(self, work: Callable[[Memo], T]) -> T:
        """Return ``work(memo)``, done on the loop."""
        return work(self._inline)

    def count(self, done: Compression) -> asyncio.Future[Counts]:
        """Count on the thread what a compression was made from and what it made."""
        return self.on_thread(partial(self._count, done))

    def on_thread(self, work: Callable[[Memo], T]) -> asyncio.Future[T]:
        """Begin ``work(memo)`` on the thread."""
        return asyncio.get_running_loop().run_in_executor(self._thread, work, self._memo)

    def _count(self, done: Compression, memo: Memo) -> Counts:
        def count(text: str, model: str) -> TokenCount:
            if is_loaded(model):
                return memo.call(count_tokens, text, model)
            return estimate_tokens(text, model)

        before = count_messages(done.source, done.model, count)
        after = count_messages(done.messages, done.model, count)
        return Counts(before.tokens, after.tokens, before.estimated)


class Counts(NamedTuple):
    """Tokens of a prompt's texts."""

    before: int
    after: int
    estimated: bool


class Compressing(Shaper):
    """Sends calls on with shorter prompts. Its answers bear the transform ``compressed:MODE``.

    The cache's key is that of the request as it came; ``policies.directives`` keeps callers who
    asked for less from the answers to what was compressed more. When compression fails, the
    prompt goes up as it came. ``options`` are by route; those of "" hold for all others.
    """

    def __init__(
        self,
        inner: Candidate,
        options: Mapping[str, CompressingOptions],
        bench: Workbench,
        *,
        ledger: Ledger,
        observer: Observer,
    ) -> None:
        super().__init__(inner)
        self._options = options
        self._bench = bench
        self._ledger = ledger
        self._observer = observer

    def stream(self, call: Call) -> AbstractAsyncContextManager[UpstreamReply]:
        """Send the call. Raises UpstreamError."""
        options = self._options.get(call.route) or self._options[""]
        mode = stricter(options.mode, asked_compression(call.headers))
        if mode == "off" or not plain(call):
            return self._inner.stream(call)
        work = partial(_shorten, call, options, mode)
        if len(call.body) > INLINE_BYTES[mode]:
            return self._compress_on_thread(call, work, dry_run=options.dry_run)
        began = time.perf_counter()
        try:
            shorter = self._bench.here(work)
        except Exception as error:  # noqa: BLE001 - whatever it is, the prompt goes up as it came
            self._note(error)
            shorter = None
        if shorter is None:
            return self._inner.stream(call)
        return self._send(call, shorter, time.perf_counter() - began, dry_run=options.dry_run)

    @asynccontextmanager
    async def _compress_on_thread(
        self, call: Call, work: Callable[[Memo], _Shorter | None], *, dry_run: bool
    ) -> AsyncIterator[UpstreamReply]:
        began = time.perf_counter()
        try:
            shorter = await self._bench.on_thread(work)
        except Exception as error:  # noqa: BLE001 - whatever it is, the prompt goes up as it came
            self._note(error)
            shorter = None
        sending = self._inner.stream(call)
        if shorter is not None:
            sending = self._send(call, shorter, time.perf_counter() - began, dry_run=dry_run)
        async with sending as reply:
            yield reply

    @asynccontextmanager
    async def _send(
        self, call: Call, shorter: _Shorter, own_s: float, *, dry_run: bool
    ) -> AsyncIterator[UpstreamReply]:
        counting = self._bench.count(shorter.done)
        if dry_run:
            sending, kind = self._inner.stream(call), "compress" + DRY_RUN
        else:
            sending, kind = self.pass_on(shorter.call, compressed(shorter.mode)), "compress"
        async with sending as reply:
            await self._book(call.id, kind, counting, own_s)
            yield reply
        load_soon(shorter.done.model)

    async def _book(
        self, call_id: str, kind: str, counting: asyncio.Future[Counts], own_s: float
    ) -> None:
        """Book what was saved. By an answer's first content the counting is long done."""
        try:
            counts = await counting
        except Exception as error:  # noqa: BLE001 - an uncounted saving is saved all the same
            self._note(error)
            return
        row = Shaped(
            kind=kind,
            tokens_before=counts.before,
            tokens_after=counts.after,
            own_s=own_s,
            estimated=counts.estimated,
        )
        self._ledger.shape(call_id, row)

    def _note(self, error: Exception) -> None:
        # The error's text may hold a piece of the prompt: its type alone is told.
        self._observer.notify(StageFailed(stage="compression", error=type(error).__name__))


class _Shorter(NamedTuple):
    call: Call
    done: Compression
    mode: Mode


def _shorten(call: Call, options: CompressingOptions, mode: Mode, memo: Memo) -> _Shorter | None:
    assert call.request is not None
    prompt = read_prompt(call.dialect, call.request.document)
    if prompt is None:
        return None
    done = compress(
        prompt.messages,
        model=call.request.model,
        mode=mode,
        profile=options.profile,
        clear_history=options.clear_history,
        strip_comments=options.strip_comments,
        memo=memo,
    )
    if not done.spans:
        return None
    return _Shorter(with_document(call, prompt.with_messages(done.messages)), done, mode)
