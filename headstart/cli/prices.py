"""``headstart prices``: bring today's prices of models."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from headstart.cli.options import FILE, OLD_FILE, argument, command, flag, option
from headstart.config.price_import import read_prices, write_prices
from headstart.config.providers import model_table, providers
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headstart.config.price_import import ImportedPrices

MARK = "# Prices of models in dollars per million tokens, written by: headstart prices import"
"""The first line of a file that may be overwritten."""


@click.group(epilog="\b\nExample:\n  headstart prices import model_prices_and_context_window.json")
def prices() -> None:
    """Import the prices of models from a public list."""


@dataclass(frozen=True)
class ImportOptions:
    """The options of ``headstart prices import``."""

    file: Path = argument("FILE", OLD_FILE)
    output: Path = option(Path("prices.toml"), "File to write.", FILE)
    provider: tuple[str, ...] = option(
        (), "Only the prices of this preset; may be given again.", metavar="NAME", multiple=True
    )
    dry_run: bool = flag("Show the summary, and write nothing.")


@command(ImportOptions, short_help="Write a list of prices as a file of settings.")
def import_(options: ImportOptions) -> None:
    """Read a list of prices, and write the prices of providers that have a preset.

    FILE is LiteLLM's price map (model_prices_and_context_window.json in its repository),
    OpenRouter's list of models (the answer of https://openrouter.ai/api/v1/models), the data of
    genai-prices (prices/data.json in its repository), or a table of your own in JSON or TOML:
    {"groq": {"MODEL": {"input_per_million": 1, "output_per_million": 2}}}. Retired models are left
    out. Nothing is downloaded.

    Examples:
      headstart prices import model_prices_and_context_window.json --dry-run
      headstart prices import models.json --provider openrouter --output prices.toml

    Then set `file = "prices.toml"` under [prices] in headstart.toml.
    """
    today = datetime.now(UTC).date().isoformat()
    found = _chosen(_read(options.file, today), options.provider)
    for line in _summary(found):
        click.echo(line)
    if not found.prices:
        raise ConfigError(f"{options.file}: no price of a provider that has a preset")
    if options.dry_run:
        click.echo("dry run: nothing was written")
        return
    head = (MARK, f"# from {found.form}, {options.file.name}", f'as_of = "{today}"')
    _write(options.output, write_prices(found.prices, head))
    click.echo(f'wrote {options.output}; set file = "{options.output}" under [prices]')


prices.add_command(import_, "import")


def _read(file: Path, today: str) -> ImportedPrices:
    """Read the list. Raises ConfigError that names the file and the problem."""
    try:
        data = file.read_bytes()
        document = tomllib.loads(data.decode()) if file.suffix == ".toml" else _decoded(data)
        return read_prices(document, today=today)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.DecodeError) as error:
        raise ConfigError(f"{file}: neither JSON nor TOML: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def _decoded(data: bytes) -> object:
    return msgspec.json.decode(data)


def _chosen(found: ImportedPrices, names: tuple[str, ...]) -> ImportedPrices:
    for name in names:
        if name not in providers():
            known = ", ".join(providers())
            raise click.BadParameter(f"{name!r} is no preset: {known}", param_hint="--provider")
    order = [
        each for each in providers() if each in found.prices and each in (names or providers())
    ]
    return found._replace(prices={name: found.prices[name] for name in order})


def _summary(found: ImportedPrices) -> Iterator[str]:
    total = sum(map(len, found.prices.values()))
    yield f"{found.form}: {total:,} prices of {len(found.prices)} providers"
    for provider, models in found.prices.items():
        known = {model: model_table().price(provider, model) for model in models}
        new = sum(price is None for price in known.values())
        other = sum(
            (old.input_per_million, old.output_per_million)
            != (models[model].input_per_million, models[model].output_per_million)
            for model, old in known.items()
            if old is not None
        )
        yield f"  {provider}: {len(models):,}, of which {new:,} are new and {other:,} have changed"
    for reason, count in found.skipped.most_common():
        yield f"left out: {count:,}, {reason}"


def _write(path: Path, text: str) -> None:
    """Write the file whole. Raises ConfigError, also for a file that is not ours to replace."""
    try:
        if path.exists() and not path.read_text("utf-8", "replace").startswith(MARK):
            raise ConfigError(f"{path} exists, and was not written by this command: name another")
        part = path.with_name(f"{path.name}.part")
        part.write_text(text, "utf-8")
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
