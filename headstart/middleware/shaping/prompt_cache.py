"""Marks prompts for a provider's prompt cache, where later reads should pay for the write.

For example, an agent sends the same tools and a growing conversation with each call. With a mark at
the end of a prompt, Claude's providers keep the prompt up to it, for 1.25 times the price of input.
The next call reads it for 0.1 times the price.

1. ``_prefixes`` names the two beginnings of a prompt that may come again: the conversation, and the
   tools with the system text, which other conversations share.
2. ``PrefixReuse`` has counted how often such beginnings came again, and ``choose_marks`` decides
   which marks pay.
3. ``_send`` makes the call. The writer of the upstream puts the marks into the body.
4. ``_book`` books what the reported reads have saved.

Other providers cache without marks. Those that take it get a key (``prompt_cache_key``), which
leads the calls of one conversation to the same cache.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, ClassVar

import msgspec

from headstart.attempts import PROMPT_CACHE, AttemptRole, ShapingEffect, Tokens
from headstart.dialects.registry import DIALECTS, FORMS
from headstart.dialects.request_form import KEY_SIGNS, MARKED, SIGNS
from headstart.errors import UpstreamRefused
from headstart.middleware.identity import credential_of
from headstart.middleware.shaping.steps import RestOfSteps, Send, StepContext, when_read
from headstart.policies.routing.prompt_cache import (
    LATER,
    OPENING,
    OPENING_WITH_TOOLS,
    SHARED,
    PrefixUse,
    SeenPrefix,
    choose_marks,
    prefix_prices,
)
from headstart.types import CacheMarks, Call, ChatRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headstart.policies.cost import Price
    from headstart.policies.routing.prompt_cache import PrefixReuse
    from headstart.reply import Reply, Transcript
    from headstart.settings import CompressionSettings

_PRIMARY = (AttemptRole.FIRST, AttemptRole.RETRY, AttemptRole.FALLBACK, AttemptRole.RETRIEVE)
"""The roles of calls whose answer is likely to be read. Others may be cancelled at any time."""
_MARKED_MODELS = "claude"
"""A part of the names of models whose providers cache only marked prefixes."""
MOST_REFUSING_MODELS = 256
"""Number of models that are remembered for refusing marks."""


@dataclass(frozen=True)
class PromptCacheTarget:
    """One key of an upstream. Each key has its own prompt cache."""

    name: str
    own_key: bool
    """It has its own key, and never gets callers' keys."""
    models: Mapping[str, str]
    """Its own names of models, by the names that callers may use."""
    price: Callable[[str], Price | None]
    """Returns the price of a model by its own name."""
    takes_marks: bool
    """Its dialect has marks, and its settings do not leave them out."""
    takes_key: bool
    """The provider accepts ``prompt_cache_key``."""


@dataclass(eq=False, repr=False)
class SteerPromptCache:
    """Marks prompts for one target, and books the savings of reported cache reads.

    Requests with their own marks pass unchanged. A model that refuses the marks is called without
    them, and gets no further marks.
    """

    stage: ClassVar[str] = PROMPT_CACHE

    target: PromptCacheTarget
    reuse: PrefixReuse
    settings: CompressionSettings
    _refusing: set[str] = field(default_factory=set)

    def __call__(self, call: Call, request: ChatRequest, _: StepContext) -> Send | None:
        """Return the function that sends the call with marks; None if it gets none."""
        if call.role not in _PRIMARY or call.contested:
            return None
        model = self.target.models.get(request.model, request.model)
        if model in self._refusing:
            return None
        if _MARKED_MODELS in model.lower():
            wants_marks = self.target.takes_marks and not _holds(call.body, SIGNS)
            marks = self._marks(call, request, model) if wants_marks else None
        else:
            wants_key = self.target.takes_key and not _holds(call.body, KEY_SIGNS)
            marks = CacheMarks(key=call.affinity) if wants_key else None
        return None if marks is None else partial(self._send, call, model, marks)

    def _marks(self, call: Call, request: ChatRequest, model: str) -> CacheMarks | None:
        """Return the marks that pay, and note the use of the prompt's beginnings."""
        if call.prompt_tokens < self.settings.cache_minimum:
            return None
        now, place = asyncio.get_running_loop().time(), call.route_or_endpoint
        kind, shared_kind = f"{_kind(request)} {place}", f"{SHARED} {place}"
        conversation, shared = self._prefixes(call, request)
        marks = choose_marks(
            self.reuse.of(conversation, kind, now),
            self.reuse.of(shared, shared_kind, now) if shared else PrefixUse(),
            prefix_prices(self.target.price(model), self.settings.cached_share),
        )
        chosen = marks or CacheMarks()
        turns = chosen.last or chosen.previous
        self.reuse.used(SeenPrefix(conversation, kind, call.id, now, turns))
        if shared:
            self.reuse.used(SeenPrefix(shared, shared_kind, call.id, now, chosen.shared))
        return marks

    def _prefixes(self, call: Call, request: ChatRequest) -> tuple[str, str]:
        """Return digests of the conversation, and of tools and system text ("": there are none)."""
        target = self.target
        key = credential_of(call.headers, call.query_string, include_cookies=False) or b""
        place = f"{target.name}\0{request.model}\0".encode() + (b"" if target.own_key else key)
        *system, _ = FORMS[request.dialect].opening(request.document)
        parts = [part for part in (request.document.get("tools"), *system) if part]
        shared = _digest(place, msgspec.json.encode(parts)) if parts else ""
        return _digest(place, call.affinity.encode()), shared

    async def _send(self, call: Call, model: str, marks: CacheMarks, rest: RestOfSteps) -> Reply:
        try:
            reply = await rest.send(msgspec.structs.replace(call, cache_marks=marks))
        except UpstreamRefused as error:
            if error.status != 400 or b"cach" not in (error.body or b"").lower():
                raise
            reply = await rest.send(msgspec.structs.replace(call, role=AttemptRole.RETRY))
            if len(self._refusing) < MOST_REFUSING_MODELS:
                self._refusing.add(model)
            return reply
        if MARKED in reply.transforms:
            when_read(reply, partial(self._book, call, model))
        return reply

    def _book(self, call: Call, model: str, transcript: Transcript) -> None:
        """Book the prompt, and its cost in tokens at full price, if the answer reports it."""
        tokens = transcript.tokens(DIALECTS[call.dialect].tokens)
        if tokens is None or not (tokens.cached or tokens.cache_write):
            return
        price = self.target.price(model)
        prices = prefix_prices(price, self.settings.cached_share)
        saved_usd = 0.0
        if price is not None:
            with_cache = Tokens(tokens.prompt, 0, tokens.cached, tokens.cache_write)
            saved_usd = price.cost_usd(Tokens(tokens.prompt)) - price.cost_usd(with_cache)
        plain = tokens.prompt - tokens.cached - tokens.cache_write
        paid = plain + prices.read * tokens.cached + prices.write * tokens.cache_write
        row = ShapingEffect(
            kind=self.stage,
            tokens_before=tokens.prompt,
            tokens_after=round(paid),
            saved_usd=saved_usd,
            estimated=False,
        )
        call.log.shaped.append(row)


def _kind(request: ChatRequest) -> str:
    """Return the kind of a conversation, by which it is learned how often conversations go on."""
    form = FORMS[request.dialect]
    messages = request.document.get(form.field)
    listed = messages if isinstance(messages, list) else ()
    answered = any(isinstance(each, dict) and each.get("role") == form.assistant for each in listed)
    if answered or form.has_tool_results(request.document):
        return LATER
    return OPENING_WITH_TOOLS if form.has_tools(request.document) else OPENING


def _holds(body: bytes, signs: tuple[bytes, ...]) -> bool:
    return any(sign in body for sign in signs)


def _digest(*parts: bytes) -> str:
    return blake2b(b"\0".join(parts), digest_size=16).hexdigest()
