"""Makes entries of answers that another tool has logged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headstart.attempts import Tokens
from headstart.errors import RequestError
from headstart.middleware.endpoints import Route
from headstart.transcript import Transcript, storable
from headstart.types import Completion, Entry, Origin

if TYPE_CHECKING:
    from collections.abc import Callable

    from headstart.dialects.dialect import Dialect
    from headstart.embeddings.cache import SemanticCache
    from headstart.interfaces import AdmissionPolicy
    from headstart.middleware.prepare import Prepared, Preparer
    from headstart.types import Headers

IMPORTED = "imported"
"""The tag of these entries, by which they can be deleted."""


class LoggedAnswer(NamedTuple):
    """One call of a log: the bodies of the request and of its answer, and when it came."""

    dialect: Dialect
    path: str
    headers: Headers
    """Those that the callers of the server send."""
    request: bytes
    response: bytes
    at: float
    """Unix seconds."""


@dataclass(frozen=True)
class AnswerLog:
    """Keeps logged answers under the keys, and by the rules, of answers that come from upstream."""

    preparer: Preparer
    admission: AdmissionPolicy
    cache: SemanticCache
    clock: Callable[[], float]
    new_id: Callable[[], str]

    async def keep(self, logged: LoggedAnswer) -> str | None:
        """Store an answer; return why not, or None. A newer answer under its key stays.

        Its life counts from the time when it came.
        """
        scope = {
            "type": "http",
            "method": "POST",
            "path": logged.path,
            "headers": logged.headers,
            "query_string": b"",
        }
        route = Route(logged.path, logged.dialect)
        try:
            prepared = self.preparer.prepare(route, scope, logged.request)
        except RequestError:
            return "invalid-request"
        entry = self._entry(prepared, logged)
        if isinstance(entry, str):
            return entry
        known = await self.cache.find_exact(entry.key, lambda _: None)
        if known is not None and known.created >= entry.created:
            return "known"
        calls_tools = isinstance(entry.answer, Completion) and entry.answer.called_tools
        by_meaning = prepared.semantic_refusal is None and not calls_tools
        text, tenant = entry.key.query if by_meaning else None, prepared.match_context.tenant
        return None if await self.cache.put(entry, text, tenant=tenant) else "store-failed"

    def _entry(self, prepared: Prepared, logged: LoggedAnswer) -> Entry | str:
        """Return the entry of an answer, or why it may not be stored."""
        if prepared.key is None or prepared.request is None:
            return prepared.bypass or "no-key"
        dialect, transcript = logged.dialect, Transcript()
        transcript.feed(dialect.decode_body(200, logged.response))
        completion = transcript.completion(logged.at)
        answer = None if completion is None else storable(completion)
        if answer is None:
            return "no-whole-answer"
        refusal = self.admission.refuse_store(prepared.request, answer, prepared.cached_tools)
        if refusal is not None:
            return refusal
        life_s = prepared.lifetime.seconds
        expires = None if life_s is None else logged.at + life_s
        if expires is not None and expires <= self.clock():
            return "expired"
        tokens = transcript.tokens(dialect.tokens) or Tokens()
        return Entry(
            id=self.new_id(),
            key=prepared.key,
            answer=answer,
            origin=Origin(
                model=answer.model,
                upstream=min(prepared.answerers, default=""),
                ttft_s=0.0,
                total_s=0.0,
                prompt_tokens=tokens.prompt,
                completion_tokens=tokens.completion,
            ),
            created=logged.at,
            expires=expires,
            tags=(IMPORTED,),
            dialect=dialect.name,
        )
