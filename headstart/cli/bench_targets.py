"""Whom a bench measures: configured or discovered providers, or simulated ones."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

import anyio
import msgspec

from headstart.bench.figures import Subject
from headstart.cli.bench_calls import Target
from headstart.cli.live import model_for
from headstart.config import (
    PriceSettings,
    Settings,
    UpstreamSettings,
    aliases,
    checked,
    discover_local,
    discover_upstreams,
    load_settings,
    model_at,
    model_table,
    preset,
)
from headstart.config.upstreams import DialectName  # noqa: TC001 - it types a value
from headstart.errors import ConfigError
from headstart.simulator import Simulator, find_profile, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

_DIALECTS: dict[str, DialectName] = {
    "anthropic": "anthropic",
    "google": "gemini",
    "cohere": "cohere",
}
"""Of simulated providers; the others speak OpenAI's."""

_PRESETS = {"google": "gemini"}
"""Presets of providers whose profile has another name."""


class Source(Protocol):
    """Opens what is to be measured. ``notes`` tell what was found, once it is open."""

    notes: list[str]

    def open(self) -> AbstractAsyncContextManager[tuple[Settings, tuple[Target, ...]]]:
        """Yield the settings and the targets. Raises ConfigError."""
        ...


class Configured:
    """The upstreams of a file, or those whose keys are found; ``names`` and ``models`` choose.

    A model is asked for wherever it is known, under the name that it has there, or everywhere if
    it is known nowhere. Without one, each upstream is asked for a route's model, its first alias
    or its cheapest.
    """

    def __init__(self, path: Path | None, names: tuple[str, ...], models: tuple[str, ...]) -> None:
        self.notes: list[str] = []
        self._path = path
        self._names = names
        self._models = models

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[Settings, tuple[Target, ...]]]:
        """Yield them; nothing is opened yet."""
        yield await anyio.to_thread.run_sync(self._choose)

    def _choose(self) -> tuple[Settings, tuple[Target, ...]]:
        settings = self._settings()
        known = [upstream.name for upstream in settings.upstream]
        for name in self._names:
            if name not in known:
                raise ConfigError(f"no upstream is named {name!r}; known: {', '.join(known)}")
        chosen = [each for each in settings.upstream if not self._names or each.name in self._names]
        targets = tuple(target for each in chosen for target in self._targets(each, settings))
        if not targets:
            raise ConfigError("nothing to measure: no upstream knows a model; pass --model")
        return settings, targets

    def _settings(self) -> Settings:
        settings = load_settings(self._path, os.environ)
        if settings.upstream:
            return settings
        found, notes = discover_upstreams(os.environ)
        if not found:
            found, notes = discover_local()
        if not found:
            raise ConfigError(
                "no provider: add an [[upstream]], set a key such as OPENAI_API_KEY, or try "
                "--simulate groq,together"
            )
        self.notes += notes
        return checked(msgspec.structs.replace(settings, upstream=found))

    def _targets(self, upstream: UpstreamSettings, settings: Settings) -> list[Target]:
        wanted: tuple[str | None, ...] = self._models or (model_for(upstream, settings),)
        models = [model for model in wanted if model and self._serves(upstream, model, settings)]
        if not models:
            self.notes.append(f"{upstream.name} is not asked: it knows none of these models")
        return [_target(upstream, model) for model in models]

    def _serves(self, upstream: UpstreamSettings, model: str, settings: Settings) -> bool:
        knows = model in aliases(upstream)
        return knows or not any(model in aliases(each) for each in settings.upstream)


def _target(upstream: UpstreamSettings, model: str) -> Target:
    real = model_at(upstream, model)
    weights = model_table().weights(real, upstream.preset or "")
    subject = Subject(
        upstream=upstream.name,
        model=model,
        weights=real if weights is None else weights.name,
        cancels_billing=upstream.cancels_billing is True,
    )
    return Target(subject, upstream, real)


class Simulated:
    """Simulated providers on loopback, by the names of their profiles."""

    def __init__(self, names: tuple[str, ...], seed: int, speed: float) -> None:
        self.notes: list[str] = []
        self._names = names
        self._seed = seed
        self._speed = speed

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[Settings, tuple[Target, ...]]]:
        """Serve them for the length of the block."""
        if not self._names:
            raise ConfigError("--simulate: name one profile or more; headstart simulate --list")
        await anyio.to_thread.run_sync(model_table)  # it reads files, once
        async with AsyncExitStack() as stack:
            upstreams = []
            for number, profile in enumerate(self._names):
                simulator = Simulator(profile, seed=self._seed + number, speed=self._speed)
                url = await stack.enter_async_context(serve(simulator))
                again = self._names[:number].count(profile)
                name = f"{profile}-{again + 1}" if again else profile
                upstreams.append(_simulated(name, profile, url))
            settings = checked(Settings(upstream=tuple(upstreams)))
            pairs = zip(settings.upstream, self._names, strict=True)
            yield settings, tuple(_simulated_target(*pair) for pair in pairs)


def _simulated(name: str, profile: str, url: str) -> UpstreamSettings:
    price = find_profile(profile).usd_per_million
    book = {}
    if price is not None:
        each = PriceSettings(input_per_million=price.input, output_per_million=price.output)
        book["default"] = each
    dialect = _DIALECTS.get(profile, "openai")
    known = preset(_PRESETS.get(profile, profile))
    return UpstreamSettings(
        name=name,
        base_url=url,
        dialect=dialect,
        headers={"anthropic-version": "2023-06-01"} if dialect == "anthropic" else {},
        price=book,
        api_key_env=(),
        cancels_billing=None if known is None else known.cancels_billing,
    )


def _simulated_target(upstream: UpstreamSettings, profile: str) -> Target:
    """Return it as if it were the provider whose name the profile has."""
    real = find_profile(profile).model
    weights = model_table().weights(real, profile)
    name = real if weights is None else weights.name
    subject = Subject(upstream.name, name, name, upstream.cancels_billing is True)
    return Target(subject, upstream, real)
