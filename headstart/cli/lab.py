"""What the commands of the lab share: progress, encoded prompts, shares and the gate for CI."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, TypeVar

import click

from headstart.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.table import Table

    from headstart.lab.rates import Rates
    from headstart.lab.stream import Prepared
    from headstart.policies.guards.parse import Parse

T = TypeVar("T")


if TYPE_CHECKING:
    _ShareType = click.ParamType[float]
else:
    _ShareType = click.ParamType


class Share(_ShareType):
    """A share such as 0.01 or 1%."""

    name = "share"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the share. Raises BadParameter."""
        from headstart.lab.contenders import parse_share

        try:
            share = parse_share(str(value), "share")
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        if not 0 <= share <= 1:
            self.fail(f"{value} is not between 0 and 1", param, ctx)
        return share


def tracked(rows: Sequence[T], what: str) -> Iterable[T]:
    """Show progress on a terminal's error stream, so that output stays clean for pipes."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(rows, what, console=console, transient=True, disable=not console.is_terminal)


def encoded(texts: Iterable[str | None]) -> Callable[[str], Prepared[Parse]]:
    """Encode and parse each text once, with the encoder that ships; others when asked for."""
    from headstart.embeddings.encoder import OnnxEncoder
    from headstart.lab.stream import Prepared
    from headstart.policies.guards.parse import parse_prompt

    encoder = OnnxEncoder()

    @cache
    def prepare(text: str) -> Prepared[Parse]:
        encoding = encoder.encode(text)
        return Prepared(encoding.sentence, parse_prompt(text, encoding), encoding.complete)

    for text in tracked([text for text in dict.fromkeys(texts) if text is not None], "Encoding"):
        prepare(text)
    return prepare


def fail_over(rates: Rates, most: float | None) -> None:
    """Exit with 1 when more than ``most`` of the hits were wrong, beyond chance."""
    least = rates.wrong_per_hit_at_least
    if most is not None and least > most:
        raise click.ClickException(
            f"at least {least:.2%} of the hits were wrong (one-sided 95 %), "
            f"over --fail-over {most:.2%}"
        )


def share_with_interval(rates: Rates, name: str) -> str:
    """Return a rate in words."""
    interval = rates.intervals[name]
    if interval is None:
        return "none: nothing was served"
    return f"{getattr(rates, name):.2%} (95 %: {interval.low:.2%} to {interval.high:.2%})"


def comparison(first: str, rows: Iterable[tuple[str, Sequence[str], Rates]], *more: str) -> Table:
    """Return a table of rates: each row's name, cells of its own under ``more``, and its rates."""
    from rich.table import Table

    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    for name in (*more, "hits", "wrong/hit (95 %)", "wrong/request (95 %)"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, cells, rates in rows:
        errors = (_brief(rates, key) for key in ("wrong_per_hit", "wrong_per_request"))
        table.add_row(name, *cells, percent(rates.hit_rate), *errors)
    return table


def percent(share: float | None) -> str:
    """Return a share for a table."""
    return "none" if share is None else f"{share:.2%}"


def _brief(rates: Rates, name: str) -> str:
    interval = rates.intervals[name]
    if interval is None:
        return "none"
    return f"{getattr(rates, name):.2%} ({interval.low:.2%} to {interval.high:.2%})"
