"""The result of compression: the messages to send, and each span that was shortened."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from headstart.compression.json_text import Layout, expand
from headstart.compression.listing import Padding, pad
from headstart.compression.messages import text_at, texts, with_text
from headstart.compression.recoverable import id_of, retrieve
from headstart.compression.tokens import TokenCount, count_tokens
from headstart.types import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Transform: TypeAlias = Literal[
    "json", "padding", "minify", "html", "progress", "log", "space", "comments", "duplicate",
    "selection", "history", "reread",
]  # fmt: skip


class Span(Frozen):
    """A part of a text that was shortened. Offsets are characters."""

    start: int
    end: int
    """The end in the text that is sent."""
    source_start: int
    source_end: int
    """The end in the caller's text."""
    transforms: tuple[Transform, ...]
    """The transforms, in the order in which they were applied."""
    message: int = 0
    part: int | None = None
    """The index in a list of content parts; None if the content is one text."""
    layout: Layout | Padding | None = None
    """The layout with which ``restored`` gives back the source; None if something was left out."""

    @property
    def lossless(self) -> bool:
        return self.layout is not None


@dataclass(frozen=True)
class Compression:
    """The result of ``compress``. Unchanged messages are the caller's own dicts.

    ``compress`` sends nothing, so the result can also serve as a dry run.
    """

    messages: list[dict[str, Any]]
    spans: tuple[Span, ...]
    version: str
    """The version of the code and its configuration: equal versions make equal bytes."""
    source: Sequence[Mapping[str, Any]]
    """The messages as the caller gave them, as dicts."""
    model: str

    @cached_property
    def before(self) -> TokenCount:
        """The tokens of the source's texts, as ``model`` counts them."""
        return count_messages(self.source, self.model)

    @cached_property
    def after(self) -> TokenCount:
        """The tokens of the texts to send."""
        return count_messages(self.messages, self.model) if self.spans else self.before

    @property
    def tokens_before(self) -> int:
        return self.before.tokens

    @property
    def tokens_after(self) -> int:
        return self.after.tokens

    @property
    def lossless(self) -> bool:
        """Whether ``restore`` gives back the source byte for byte."""
        return all(span.lossless for span in self.spans)

    @cached_property
    def cut_texts(self) -> dict[str, str]:
        """The whole texts of which something was left out, by the ids in their marks."""
        spans = [span for span in self.spans if not span.lossless]
        texts = [
            text_at(self.source[span.message], span.part)[span.source_start : span.source_end]
            for span in spans
        ]
        return {id_of(text): text for text in texts}

    def retrieve(self, arguments: str) -> str:
        """Return the result of a call of ``headstart_retrieve`` with these JSON arguments.

        The mode ``recoverable`` writes the ids into the messages.
        """
        return retrieve(self.cut_texts, arguments)

    def restore(self) -> list[dict[str, Any]]:
        """Undo all lossless spans, with the sent messages and the layouts of the spans."""
        messages = list(self.messages)
        for span in reversed(self.spans):
            if span.layout is not None:
                text = text_at(messages[span.message], span.part)
                original = restored(text[span.start : span.end], span.layout)
                messages[span.message] = with_text(
                    messages[span.message],
                    span.part,
                    text[: span.start] + original + text[span.end :],
                )
        return messages


def restored(text: str, layout: Layout | Padding) -> str:
    """Return the source of a text that was written without loss."""
    return pad(text, layout) if isinstance(layout, Padding) else expand(text, layout)


def count_messages(
    messages: Sequence[Mapping[str, Any]],
    model: str,
    count: Callable[[str, str], TokenCount] = count_tokens,
) -> TokenCount:
    """Count the tokens that a model reads of messages. Providers add a few for each message.

    ``count`` counts one text as ``model`` would.
    """
    counts = [count(text, model) for message in messages for text in texts(message)]
    return TokenCount(sum(each.tokens for each in counts), any(each.estimated for each in counts))
