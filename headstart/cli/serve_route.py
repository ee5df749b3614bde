"""A route from the command line: ``serve --race groq,together --model llama-3.3-70b``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click
import msgspec

from headstart.cli.config_report import billing_note
from headstart.config import (
    RouteMatch,
    RouteSettings,
    UpstreamSettings,
    model_table,
    preset,
    providers,
)

if TYPE_CHECKING:
    from headstart.config import Settings

Kind = Literal["race", "hedge", "fallback"]


def with_route(settings: Settings, kind: Kind, names: str, model: str | None) -> Settings:
    """Return the settings with a first route over the named upstreams.

    A name is an ``[[upstream]]`` of the file, else a preset. Whoever names providers to race has
    chosen to pay them all, also one that bills cancelled calls. Raises click.BadParameter.
    """
    members = [name.strip() for name in names.split(",") if name.strip()]
    known = {upstream.name: upstream for upstream in settings.upstream}
    for name in members:
        if name not in known:
            known[name] = _from_preset(kind, name)
        if model is not None:
            known[name] = _with_model(kind, known[name], model)
    route = RouteSettings(
        name=kind,
        match=RouteMatch(model=model or "*"),
        strategy=kind,
        upstreams=tuple(members),
        race_billed=True,
    )
    return msgspec.structs.replace(
        settings, upstream=tuple(known.values()), route=(route, *settings.route)
    )


def billed_notes(settings: Settings) -> list[str]:
    """Return a line on each member of the first route that may bill what is cancelled."""
    members = set(settings.route[0].upstreams)
    notes = [billing_note(each) for each in settings.upstream if each.name in members]
    return [f"note: {note}" for note in notes if note is not None]


def _from_preset(kind: Kind, name: str) -> UpstreamSettings:
    if preset(name) is None:
        raise click.BadParameter(
            f"{name!r} is neither an [[upstream]] nor a preset: {', '.join(providers())}",
            param_hint=f"--{kind}",
        )
    return UpstreamSettings(preset=name, name=name)


def _with_model(kind: Kind, upstream: UpstreamSettings, model: str) -> UpstreamSettings:
    """Let the upstream know the model by the name that clients will use."""
    table = model_table()
    if upstream.preset is None or model in upstream.models or table.weights(model) is None:
        return upstream
    real = table.real_name(model, upstream.preset)
    if real is None:
        raise click.BadParameter(
            f"{upstream.preset} is not known to serve {model!r}; these are: "
            f"{', '.join(table.providers_of(model))}",
            param_hint=f"--{kind}",
        )
    return msgspec.structs.replace(upstream, models={**upstream.models, model: real})
