"""What compression did: the messages to send, and every span that differs from its source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from headstart.compression.json_text import Layout, expand
from headstart.compression.messages import text_at, texts, with_text
from headstart.compression.tokens import TokenCount, count_tokens
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Mode: TypeAlias = Literal["off", "safe", "balanced", "aggressive"]
Transform: TypeAlias = Literal[
    "json", "minify", "html", "log", "space", "comments", "duplicate", "selection", "history"
]


class Span(Frozen):
    """A stretch of a text that was shortened. Offsets are characters."""

    start: int
    end: int
    """Of what is sent."""
    source_start: int
    source_end: int
    """Of what the caller wrote."""
    transforms: tuple[Transform, ...]
    """In the order in which they were applied."""
    message: int = 0
    part: int | None = None
    """Index within a list of content parts; None where the content is one text."""
    layout: Layout | None = None
    """With it ``expand`` gives the source back; None where something was left out."""

    @property
    def lossless(self) -> bool:
        return self.layout is not None


@dataclass(frozen=True)
class Compression:
    """The outcome of ``compress``. Messages that nothing was done to are the caller's own dicts.

    Made from values alone, it is its own dry run: nothing is sent by making it.
    """

    messages: list[dict[str, Any]]
    spans: tuple[Span, ...]
    version: str
    """Of the code and all that it was configured with: equal versions make equal bytes."""
    source: Sequence[Mapping[str, Any]]
    """The messages as the caller gave them, as dicts."""
    model: str

    @cached_property
    def before(self) -> TokenCount:
        """Tokens of the source's texts, as ``model`` counts; providers add a few a message."""
        return count_messages(self.source, self.model)

    @cached_property
    def after(self) -> TokenCount:
        """Tokens of the texts to send."""
        return count_messages(self.messages, self.model) if self.spans else self.before

    @property
    def tokens_before(self) -> int:
        return self.before.tokens

    @property
    def tokens_after(self) -> int:
        return self.after.tokens

    @property
    def lossless(self) -> bool:
        """Does ``restore`` give back the source, byte for byte?"""
        return all(span.lossless for span in self.spans)

    def restore(self) -> list[dict[str, Any]]:
        """Undo every lossless span, from what is sent and the span's layout alone."""
        messages = list(self.messages)
        for span in reversed(self.spans):
            if span.layout is not None:
                text = text_at(messages[span.message], span.part)
                original = expand(text[span.start : span.end], span.layout)
                messages[span.message] = with_text(
                    messages[span.message],
                    span.part,
                    text[: span.start] + original + text[span.end :],
                )
        return messages


def count_messages(
    messages: Sequence[Mapping[str, Any]],
    model: str,
    count: Callable[[str, str], TokenCount] = count_tokens,
) -> TokenCount:
    """Count what a model reads of messages: providers add a few tokens a message.

    ``count`` counts one text, as ``model`` would.
    """
    counts = [count(text, model) for message in messages for text in texts(message)]
    return TokenCount(sum(each.tokens for each in counts), any(each.estimated for each in counts))
