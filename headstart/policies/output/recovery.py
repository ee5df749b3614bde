"""When a request may be compressed recoverably, and when that does not pay. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headstart.canonical_request import ForeignTool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headstart.attempts import Tokens
    from headstart.canonical_request import CanonicalRequest

READ_AGAIN_CHARS = 8_000
"""A provider may read this much again when the tool joins a conversation: some 2,000 tokens."""
_OTHER_FORMS = frozenset({"functions", "context_management"})
"""Fields with which tools have another form, or the provider removes messages itself."""
_LEARNED_FROM = 20
"""Requests with cuts before the mode may be left."""
_REST = 200
"""Requests for which the mode is left; then it is tried again."""
_OUTPUT_PRICE = 4.0
"""The usual price of an output token, in input tokens."""


def may_recover(asked: CanonicalRequest, tool: str) -> bool:
    """Tell whether a request may get our tool of this name.

    The model must be free to call it, and it must stand beside the client's own tools.
    """
    choice = asked.tool_choice
    if choice is not None and (choice.mode != "auto" or choice.names):
        return False
    if asked.choices != 1 or asked.logprobs or not _OTHER_FORMS.isdisjoint(asked.extra):
        return False
    if not asked.tools:
        # Some providers take no tools beside a response format.
        return asked.wants_text
    return not any(isinstance(each, ForeignTool) or each.name == tool for each in asked.tools)


def offers_tool(*, has_tools: bool, opening: int, before_cut: int | None) -> bool:
    """Tell whether a request gets the tool.

    The answer must be the same for all later requests of the conversation, or the provider's prefix
    cache is lost: tools stand before all messages. So the tool is there from the first request on,
    where the conversation has tools of its own and a long beginning (``opening``, characters up to
    the first message of the user). Otherwise it joins with the first cut, if little stands before
    it (``before_cut``, characters; None: nothing was cut).
    """
    if has_tools and opening >= READ_AGAIN_CHARS:
        return True
    return before_cut is not None and before_cut <= READ_AGAIN_CHARS


@dataclass(slots=True)
class RecoveryBalance:
    """What cuts saved on a route and model, and what the model's retrievals cost: input tokens."""

    saved: float = 0.0
    spent: float = 0.0
    requests: int = 0
    rest: int = 0
    """Requests that the mode is left for; 0: it is in use."""

    def add(self, saved: float, rounds: Sequence[Tokens], cached_share: float) -> None:
        """Add a request: the tokens that were cut from it, and the calls for its retrievals."""
        self.requests += 1
        self.saved += saved
        for used in rounds:
            fresh = max(0, used.prompt - used.cached)
            self.spent += fresh + cached_share * used.cached + _OUTPUT_PRICE * used.completion
        if self.requests >= _LEARNED_FROM and self.spent > self.saved:
            self.rest = _REST

    def is_resting(self) -> bool:
        """Tell whether a new conversation is sent without cuts. Counts the request."""
        if not self.rest:
            return False
        self.rest -= 1
        if not self.rest:
            self.saved = self.spent = 0.0
            self.requests = 0
        return True
