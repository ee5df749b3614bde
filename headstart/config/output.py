"""``[output]``: limits on answers, and wishes for shorter ones (``docs/output.md``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import msgspec

from headstart.config.section import Count, Section, Share

if TYPE_CHECKING:
    from headstart.config.routes import RouteSettings

MaxOutput: TypeAlias = Literal["off", "guard", "tight"] | Count
EditMode: TypeAlias = Literal["off", "blocks", "prediction"]
Level: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=3)]


class OutputSettings(Section):
    """What is done to answers where their route does not say otherwise."""

    max_tokens: MaxOutput = "off"
    """Limit of answers to requests that name none; what it cuts is continued. ``guard`` stops
    runaways, ``tight`` cuts one answer in twenty; a number is a limit of your own."""
    concise: Level = 0
    """How briefly the model is asked to answer; 0: it is not asked."""
    concise_examples: bool = False
    """Also show it two short answers."""
    holdout: Share = 0.1
    """Share of the conversations that ``tight`` and ``concise`` leave alone, to measure both."""
    edits: EditMode = "off"
    """Where a long document is to be changed: ``blocks`` asks for the changes alone, and applies
    them; ``prediction`` hands the document to providers that take a predicted output."""
    quotes: bool = False
    """Let the model quote retrieved documents by number."""
    predictions: bool = False
    """Hand the answer to a similar prompt to providers that take a predicted output."""

    def at(self, route: RouteSettings | None) -> OutputSettings:
        """Return the values in force on a route; None: on none."""
        if route is None:
            return self
        chosen = {
            "max_tokens": route.max_output,
            "concise": route.concise,
            "edits": route.edits,
            "quotes": route.quotes,
            "predictions": route.predictions,
        }
        stated = {name: value for name, value in chosen.items() if value is not None}
        return msgspec.structs.replace(self, **stated)
