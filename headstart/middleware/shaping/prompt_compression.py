"""Shortens prompts before they are sent, where ``headstart.compression`` finds that it pays.

1. ``CompressPrompts`` chooses the mode: that of the route, or a weaker one that the caller wants.
2. ``_shorten`` compresses the prompt: on the event loop, or on a thread if the body is long
   (``_work``). In the mode ``recoverable``, ``recoverable.py`` cuts the prompt.
3. The shorter call is sent. Meanwhile ``TextWorker.count`` counts the tokens that were saved, and
   ``_book_saving`` books them.

A tokenizer is loaded when no answer has to wait for it. Many processes never need a tokenizer: it
is not loaded for models of other families, or before a prompt was shortened. If a provider reports
no tokens, an estimate by length is booked.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

import msgspec

from headstart.attempts import ShapingEffect
from headstart.compression.compress import MIN_TEXT_CHARS, CompressOptions, Profile, compress
from headstart.compression.result import Compression, count_messages
from headstart.compression.tokens import TokenCount, count_tokens, estimate_tokens, is_loaded, load
from headstart.dialects.registry import DIALECTS
from headstart.errors import UpstreamRefused
from headstart.middleware.shaping.steps import RestOfSteps, Send, StepContext, with_document
from headstart.observe import DRY_RUN
from headstart.policies.freshness import compressed_transform, requested_compression, stricter
from headstart.types import Call, ChatRequest, Memo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headstart.middleware.shaping.recoverable import RecoverableCalls
    from headstart.reply import Reply
    from headstart.settings import CompressionMode, CompressionSettings

    T = TypeVar("T")


LOAD_AFTER_S = 1.0
"""Time from an answer's end to the load of its tokenizer, which stops the loop for 0.1 s."""

_at_work = threading.Lock()
"""Held while a tokenizer is loaded: one at a time."""


def load_soon(model: str) -> None:
    """Load the model's tokenizer in the background, after the present answer is delivered."""
    if not is_loaded(model):
        asyncio.get_running_loop().call_later(LOAD_AFTER_S, _start, model)


def _start(model: str) -> None:
    if not is_loaded(model) and _at_work.acquire(blocking=False):
        # A daemon thread, so that a process which stops does not wait for it.
        threading.Thread(target=_load, args=(model,), name="headstart-tokens", daemon=True).start()


def _load(model: str) -> None:
    try:
        load(model)
    finally:
        _at_work.release()


INLINE_BYTES: dict[CompressionMode, int] = {
    "safe": 64_000,
    "recoverable": 12_000,
    "balanced": 16_000,
    "aggressive": 12_000,
}
"""For each mode, the longest body that is compressed in the event loop. Most of these take at most
5 ms, for which a thread would block the loop, too. A log takes 7 ms; the worst body that was found,
JSON Lines, takes 13 ms."""
INLINE_LINES = 500
"""The most lines of a body that is compressed in the event loop: a line may take 25 us."""


class TextWorker:
    """Works on prompts: on the loop, or on one thread if a text is long.

    Each has its own memo, which the other must not use. One instance serves all routes of a
    process; ``close`` ends the thread.
    """

    def __init__(self) -> None:
        self._inline = Memo()
        self._memo = Memo()
        self._thread = ThreadPoolExecutor(1, "headstart-compress")

    def close(self) -> None:
        """Stop after the present work. Waiting work is dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def on_loop(self, work: Callable[[Memo], T]) -> T:
        """Do ``work(memo)`` on the loop and return its result."""
        return work(self._inline)

    def count(self, done: Compression) -> asyncio.Future[TokensBeforeAfter]:
        """Count on the thread the tokens before and after a compression."""
        return self.on_thread(partial(self._count, done))

    def on_thread(self, work: Callable[[Memo], T]) -> asyncio.Future[T]:
        """Begin ``work(memo)`` on the thread."""
        return asyncio.get_running_loop().run_in_executor(self._thread, work, self._memo)

    def _count(self, done: Compression, memo: Memo) -> TokensBeforeAfter:
        def count(text: str, model: str) -> TokenCount:
            if is_loaded(model):
                return memo.call(count_tokens, text, model)
            return estimate_tokens(text, model)

        before = count_messages(done.source, done.model, count)
        after = count_messages(done.messages, done.model, count)
        return TokensBeforeAfter(before.tokens, after.tokens, before.estimated)


class TokensBeforeAfter(NamedTuple):
    """Tokens of a prompt's texts."""

    before: int
    after: int
    estimated: bool


@dataclass(frozen=True)
class CompressPrompts:
    """Makes prompts shorter. Answers have the transform ``compressed:MODE``.

    The cache key is made from the original request. ``policies.freshness`` keeps answers to
    strongly compressed prompts from callers who allow less compression.
    """

    stage: ClassVar[str] = "compression"
    settings: CompressionSettings
    """The settings of one route. A caller's ``x-headstart-compress`` may ask for a weaker mode."""
    worker: TextWorker
    recoverable: RecoverableCalls | None = None
    """Sends prompts with cuts that the model can recover; None: the route does not."""

    @cached_property
    def profile(self) -> Profile:
        """The price and speed of tokens at the provider."""
        return msgspec.convert(self.settings, Profile, from_attributes=True)

    def __call__(self, call: Call, request: ChatRequest, context: StepContext) -> Send | None:
        """Return the function that sends a shorter prompt; None if the prompt stays unchanged."""
        # A body that is longer than all of INLINE_BYTES nearly always has a long text.
        is_long = len(call.body) > INLINE_BYTES["safe"]
        if not (is_long or self.settings.clear_history or _has_long_text(call.body)):
            return None
        mode = stricter(self.settings.mode, requested_compression(call.headers))
        if mode == "off":
            return None
        if mode != "recoverable" or self.settings.dry_run:
            return self._send_compressed(call, request, mode, context)
        recoverable = self.recoverable
        if recoverable is None or not recoverable.may_send(call, request, context):
            return self._send_compressed(call, request, "safe", context)
        return self._send_recoverable(call, request, recoverable, context)

    def _send_compressed(
        self, call: Call, request: ChatRequest, mode: CompressionMode, context: StepContext
    ) -> Send | None:
        """Return the function that sends a shorter prompt; None if nothing can be removed."""
        began = time.perf_counter()
        shorter = self._work(call, mode, partial(self._shorten, call, request, mode))
        if shorter is None:
            return None

        async def send(rest: RestOfSteps) -> Reply:
            short = await shorter if isinstance(shorter, asyncio.Future) else shorter
            if short is None:
                return await rest.send(call)
            own_s = time.perf_counter() - began
            if self.settings.dry_run:
                sending = rest.send(call)
            else:
                sending = rest.send(short.call, compressed_transform(mode))
            return await self._book_saving(call, short.compression, own_s, context, sending)

        return send

    def _send_recoverable(
        self,
        call: Call,
        request: ChatRequest,
        recoverable: RecoverableCalls,
        context: StepContext,
    ) -> Send | None:
        """Return the function that sends the prompt with cuts and the tool, or in mode ``safe``."""
        began = time.perf_counter()
        work = partial(recoverable.prepare, call, request, self._options(request))
        prepared = self._work(call, "recoverable", work)
        if prepared is None:
            return self._send_compressed(call, request, "safe", context)

        async def send(rest: RestOfSteps) -> Reply:
            prompt = await prepared if isinstance(prepared, asyncio.Future) else prepared
            if prompt is None:
                return await self._send_safely(call, request, context, rest)
            own_s = time.perf_counter() - began
            sending = recoverable.send(prompt, rest, context, call)
            try:
                return await self._book_saving(call, prompt.compression, own_s, context, sending)
            except UpstreamRefused as error:
                if not recoverable.may_refuse_tools(request, call, error.status):
                    raise
                reply = await self._send_safely(call, request, context, rest)
                # It is noted only after a success: if the plain request is refused, too, the tool
                # is not the reason.
                recoverable.note_refusal(request.model)
                return reply

        return send

    async def _send_safely(
        self, call: Call, request: ChatRequest, context: StepContext, rest: RestOfSteps
    ) -> Reply:
        """Send the prompt in the mode ``safe``, without the tool."""
        send = self._send_compressed(call, request, "safe", context)
        return await (rest.send(call) if send is None else send(rest))

    def _work(
        self, call: Call, mode: CompressionMode, work: Callable[[Memo], T | None]
    ) -> T | asyncio.Future[T | None] | None:
        """Return the result of the work, done on the loop; for a long body, begin it on the thread.

        Only a result from the loop can say at once (None) that the step does not apply.
        """
        body = call.body
        if len(body) > INLINE_BYTES[mode] or body.count(b"\\n") > INLINE_LINES:
            return self.worker.on_thread(work)
        return self.worker.on_loop(work)

    async def _book_saving(
        self,
        call: Call,
        compression: Compression,
        own_s: float,
        context: StepContext,
        sending: Awaitable[Reply],
    ) -> Reply:
        """Return the answer, and book the tokens that were removed from its prompt."""
        if not compression.spans:
            return await sending
        counting = self.worker.count(compression)
        reply = await sending
        reply.on_close(partial(load_soon, compression.model))
        try:
            # The counting ends long before the first content of an answer.
            counts = await counting
        except Exception as error:  # noqa: BLE001 - the saving is real even if it is not counted
            context.note_failure(self.stage, error)
            return reply
        row = ShapingEffect(
            kind="compress" + DRY_RUN * self.settings.dry_run,
            tokens_before=counts.before,
            tokens_after=counts.after,
            own_s=own_s,
            estimated=counts.estimated,
        )
        call.log.shaped.append(row)
        return reply

    def _shorten(
        self, call: Call, request: ChatRequest, mode: CompressionMode, memo: Memo
    ) -> _Shorter | None:
        prompt = DIALECTS[call.dialect].form.read(request.document)
        if prompt is None:
            return None
        options = self._options(request)
        compression = compress(prompt.messages, mode=mode, memo=memo, **options)
        if not compression.spans:
            return None
        shorter = with_document(call, prompt.with_messages(compression.messages))
        return _Shorter(shorter, compression)

    def _options(self, request: ChatRequest) -> CompressOptions:
        return {
            "model": request.model,
            "profile": self.profile,
            "clear_history": self.settings.clear_history,
            "strip_comments": self.settings.strip_comments,
            # The provider removes old messages itself, and might remove the target of a pointer.
            "pointers": not request.document.get("context_management"),
            "repeated_reads": self.settings.repeated_reads,
        }


def _has_long_text(body: bytes) -> bool:
    """Tell whether a text of a JSON body may be long enough to be shortened. Most have none.

    A quote after a backslash does not end a text. If the backslash itself is escaped, this is
    wrong, and two texts count as one. Then the prompt is read for nothing.
    """
    plain, start, last = body.replace(b'\\"', b"  "), 0, len(body) - MIN_TEXT_CHARS
    while start <= last:
        quote = plain.rfind(b'"', start, start + MIN_TEXT_CHARS)
        if quote < 0:
            return True
        start = quote + 1
    return False


class _Shorter(NamedTuple):
    call: Call
    compression: Compression
