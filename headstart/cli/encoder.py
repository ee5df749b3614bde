"""``headstart encoder``: bring your own embedding model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from headstart.errors import HeadstartError

if TYPE_CHECKING:
    from headstart.embeddings.model_card import ModelCard, Pooling, Precision

EXPORT_EPILOG = """\b
Examples:
  headstart encoder export sentence-transformers/all-MiniLM-L12-v2
  headstart encoder export intfloat/multilingual-e5-small --prefix "query: " --output e5

Then set `model = "e5"` under [encoder] in headstart.toml.
"""
INFO_EPILOG = """\b
Examples:
  headstart encoder info
  headstart encoder info e5 --json
"""


@click.group(epilog="\b\nExample:\n  headstart encoder info")
def encoder() -> None:
    """Export an embedding model to Headstart's format, or describe one."""


@encoder.command(epilog=EXPORT_EPILOG)
@click.argument("model")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to write.  [default: the model's name and precision]",
)
@click.option(
    "--precision",
    type=click.Choice(["int8", "high", "fp32"]),
    default="int8",
    show_default=True,
    help="high: 8-bit weights alone, for models that int8 ruins.",
)
@click.option("--prefix", metavar="TEXT", help="Text before every prompt.  [default: the model's]")
@click.option("--pooling", type=click.Choice(["mean", "cls"]), help="[default: the model's]")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def export(
    model: str,
    output: Path | None,
    precision: Precision,
    prefix: str | None,
    pooling: Pooling | None,
    as_json: bool,
) -> None:
    """Turn MODEL, a sentence-transformers hub id or folder, into an encoder folder.

    Needs the extra `export`. Refuses a result under .99 mean cosine to the original.
    """
    from headstart.embeddings.export import export_model

    target = output or Path(f"{Path(model).name}-{precision}")
    click.echo(f"Exporting {model} to {target}; a minute or two …", err=True)
    try:
        exported = export_model(model, target, precision=precision, prefix=prefix, pooling=pooling)
    except HeadstartError as error:
        raise click.ClickException(str(error)) from error
    report = describe(exported.folder, exported.card)
    report["cosine_mean"] = round(exported.fidelity.mean, 4)
    report["cosine_minimum"] = round(exported.fidelity.minimum, 4)
    print_report(report, as_json=as_json)


@encoder.command(epilog=INFO_EPILOG)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), required=False)
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def info(folder: Path | None, as_json: bool) -> None:
    """Describe the encoder in FOLDER, by default the one that ships with Headstart."""
    from headstart.embeddings.model_card import DEFAULT_MODEL, read_card

    chosen = folder or DEFAULT_MODEL
    try:
        card = read_card(chosen)
    except HeadstartError as error:
        raise click.ClickException(str(error)) from error
    print_report(describe(chosen, card), as_json=as_json)


def describe(folder: Path, card: ModelCard) -> dict[str, Any]:
    """Return the card's fields with the folder, its namespace and its size in bytes."""
    size = sum(path.stat().st_size for path in folder.iterdir())
    fields: dict[str, Any] = msgspec.to_builtins(card)
    return {"folder": str(folder), "namespace": card.namespace, "bytes": size, **fields}


def print_report(report: dict[str, Any], *, as_json: bool) -> None:
    """Print one field a line, or one JSON object."""
    if as_json:
        click.echo(msgspec.json.encode(report))
        return
    width = max(map(len, report))
    for name, value in report.items():
        click.echo(f"{name:<{width}}  {value}")
