"""``headstart encoder``: bring your own embedding model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from headstart.cli.options import OLD_FILE, argument, command, json_field, option
from headstart.embeddings.encoder import DEFAULT_MODEL, ModelCard, Pooling, Precision, read_card

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group(epilog="\b\nExample:\n  headstart encoder info")
def encoder() -> None:
    """Export an embedding model to Headstart's format, or describe one."""


@dataclass(frozen=True)
class ExportOptions:
    """The options of ``headstart encoder export``."""

    model: str = argument("MODEL", click.STRING)
    output: Path | None = option(
        None, "Folder to write.  [default: the model's name and precision]", FOLDER
    )
    precision: Precision = option(
        "int8",
        "int8: weights and activations in 8 bits; high: only the weights, for models that int8 "
        "makes too inaccurate; fp32: no change.",
        click.Choice(["int8", "high", "fp32"]),
    )
    prefix: str | None = option(
        None, "Text before every prompt.  [default: the model's]", metavar="TEXT"
    )
    pooling: Pooling | None = option(
        None,
        "How token vectors become one vector.  [default: the model's]",
        click.Choice(["mean", "cls"]),
    )
    texts: Path | None = option(
        None,
        "Questions of your users, one per line, 10,000 or more: they make better sketches.",
        OLD_FILE,
    )
    as_json: bool = json_field()


@command(ExportOptions, short_help="Turn a model into an encoder folder.")
def export(options: ExportOptions) -> None:
    """Turn MODEL, a sentence-transformers hub id or folder, into an encoder folder.

    It needs the extra `export`. It refuses a result with a mean cosine to the original below 0.99.

    Examples:
      headstart encoder export sentence-transformers/all-MiniLM-L12-v2
      headstart encoder export intfloat/multilingual-e5-small --prefix "query: " --output e5

    Then set `model = "e5"` under [encoder] in headstart.toml.
    """
    from headstart.embeddings.export import export_model

    model, precision = options.model, options.precision

    target = options.output or Path(f"{Path(model).name}-{precision}")
    click.echo(f"Exporting {model} to {target}; some minutes …", err=True)
    exported = export_model(
        model,
        target,
        precision=precision,
        prefix=options.prefix,
        pooling=options.pooling,
        texts=options.texts.read_text("utf-8-sig").splitlines() if options.texts else (),
        report=partial(click.echo, err=True),
    )
    report = describe(exported.folder, exported.card)
    report["cosine_mean"] = round(exported.fidelity.mean, 4)
    report["cosine_minimum"] = round(exported.fidelity.minimum, 4)
    print_report(report, as_json=options.as_json)


@dataclass(frozen=True)
class InfoOptions:
    """The options of ``headstart encoder info``."""

    folder: Path | None = argument("[FOLDER]", FOLDER, required=False)
    as_json: bool = json_field()


@command(InfoOptions, short_help="Describe an encoder.")
def info(options: InfoOptions) -> None:
    """Describe the encoder in FOLDER, by default the one that ships with Headstart.

    Examples:
      headstart encoder info
      headstart encoder info e5 --json
    """
    chosen = options.folder or DEFAULT_MODEL
    report = describe(chosen, read_card(chosen))
    print_report(report, as_json=options.as_json)


encoder.add_command(export)
encoder.add_command(info)


def describe(folder: Path, card: ModelCard) -> dict[str, Any]:
    """Return the card's fields, the folder with its size in bytes, and the names of its vectors.

    ``sketches`` is None if the folder has no table of sketches.
    """
    from headstart.embeddings.sketch import load_sketcher

    sketcher = load_sketcher(folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    fields: dict[str, Any] = msgspec.to_builtins(card)
    return {
        "folder": str(folder),
        "namespace": card.namespace,
        "sketches": sketcher.namespace if sketcher else None,
        "bytes": size,
        **fields,
    }


def print_report(report: dict[str, Any], *, as_json: bool) -> None:
    """Print one field a line, or one JSON object."""
    if as_json:
        click.echo(msgspec.json.encode(report))
        return
    width = max(map(len, report))
    for name, value in report.items():
        click.echo(f"{name:<{width}}  {value}")
