"""``headstart prices``: imports the current prices of models.

It reads public lists of prices, and writes the file that ``prices.file`` names.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
from msgspec.structs import asdict, replace

from headstart.cli.options import FILE, OLD_FILE, argument, command, flag, option
from headstart.config.providers import TablePrice, model_table, providers
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


PER_MILLION = 1e6
_TEXT_MODES = frozenset({"chat", "responses", "completion", "embedding"})
"""The modes of LiteLLM for models that are billed by text tokens."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")


class ImportedPrices(NamedTuple):
    """The prices that were read from a list."""

    form: str
    """The name of the list's form."""
    prices: Mapping[str, Mapping[str, TablePrice]]
    """Prices by preset and model."""
    skipped: Counter[str]
    """The number of entries that were left out, by reason."""


def read_prices(document: object, *, today: str) -> ImportedPrices:
    """Read LiteLLM's price map, OpenRouter's list of models, genai-prices, or a table of our own.

    ``today`` (``2026-11-22``) tells which models are retired, and which prices have begun. Raises
    ConfigError for anything else.
    """
    match document:
        case [{"id": str(), "models": list()}, *_]:
            return _collect_prices("the data of genai-prices", _genai_prices(document, today))
        case {"data": list(models)} if all(isinstance(each, dict) for each in models):
            return _collect_prices("OpenRouter's list of models", _openrouter(models))
        case {} if not document:
            raise ConfigError("the file is empty")
        case dict() if any(
            isinstance(each, dict) and "litellm_provider" in each for each in document.values()
        ):
            return _collect_prices("LiteLLM's price map", _litellm(document, today))
        case dict():
            return _collect_prices("Headstart's own form", _own(document))
    raise ConfigError(
        "the file is not a list of prices: give LiteLLM's model_prices_and_context_window.json, "
        "OpenRouter's answer at /api/v1/models, prices/data.json of genai-prices, or a table by "
        "provider and model"
    )


class _Entry(NamedTuple):
    """An entry of a list. ``reason`` says why it is left out, if it has no price."""

    provider: str = ""
    model: str = ""
    price: TablePrice | None = None
    reason: str = ""


def _collect_prices(form: str, entries: Iterable[_Entry]) -> ImportedPrices:
    prices: dict[str, dict[str, TablePrice]] = {}
    skipped: Counter[str] = Counter()
    for entry in entries:
        if entry.price is None:
            skipped[entry.reason] += 1
        else:
            prices.setdefault(entry.provider, {}).setdefault(entry.model, entry.price)
    return ImportedPrices(form, prices, skipped)


def _litellm(document: Mapping[str, Any], today: str) -> Iterator[_Entry]:
    presets = {name: each.name for each in providers().values() for name in each.litellm}
    for key, entry in document.items():
        if key == "sample_spec" or not isinstance(entry, dict):
            continue
        theirs = str(entry.get("litellm_provider"))
        retired = entry.get("deprecation_date")
        if theirs not in presets:
            yield _Entry(reason="a provider without a preset")
        elif entry.get("mode") not in _TEXT_MODES:
            yield _Entry(reason="not billed by tokens of text")
        elif isinstance(retired, str) and retired <= today:
            yield _Entry(reason="retired")
        else:
            name, price = _bare(key, theirs), _litellm_price(entry)
            yield _Entry(presets[theirs], name, price, reason="no price by tokens")


def _bare(key: str, provider: str) -> str:
    """Return the model's own name: the map's keys begin with the provider's."""
    for prefix in (provider, provider.partition("-")[0]):
        if key.startswith(f"{prefix}/"):
            return key.removeprefix(f"{prefix}/")
    return key


def _litellm_price(entry: Mapping[str, Any]) -> TablePrice | None:
    tiers = entry.get("tiered_pricing")
    first = tiers[0] if isinstance(tiers, list) and tiers and isinstance(tiers[0], dict) else {}
    entry = {**first, **entry}
    per_request = _number(entry.get("input_cost_per_request")) or 0.0
    return _price(
        entry.get("input_cost_per_token"),
        entry.get("output_cost_per_token", 0.0),
        entry.get("cache_read_input_token_cost"),
        entry.get("cache_creation_input_token_cost"),
        per_request=per_request,
        context=entry.get("max_input_tokens"),
    )


def _openrouter(models: Iterable[Mapping[str, Any]]) -> Iterator[_Entry]:
    for model in models:
        id, asked = model.get("id"), model.get("pricing")
        if not isinstance(id, str) or not isinstance(asked, dict):
            yield _Entry(reason="no id or no price")
            continue
        price = _price(
            asked.get("prompt"),
            asked.get("completion"),
            asked.get("input_cache_read"),
            asked.get("input_cache_write"),
            per_request=_number(asked.get("request")) or 0.0,
            context=model.get("context_length"),
        )
        yield _Entry("openrouter", id, price, reason="free, or no fixed price")


_GENAI_NAMES = {"google": "gemini", "x-ai": "xai", "moonshotai": "moonshot"}
"""Providers that have other names in genai-prices than our presets."""
_HUGGING_FACE = "huggingface_"
"""genai-prices has a provider for each company to which Hugging Face's router sends calls."""


def _genai_prices(document: Iterable[Any], today: str) -> Iterator[_Entry]:
    routed: dict[str, list[TablePrice]] = {}
    for provider in document:
        theirs = provider["id"]
        company = theirs.removeprefix(_HUGGING_FACE) if theirs.startswith(_HUGGING_FACE) else ""
        name = "huggingface" if company else _GENAI_NAMES.get(theirs, theirs)
        for model in provider["models"]:
            if name not in providers():
                yield _Entry(reason="a provider without a preset")
                continue
            price = _genai_price(model, today)
            own = f"{model['id']}:{company}" if company else model["id"]
            yield _Entry(name, own, price, reason="free, or no price by tokens")
            if company and price is not None:
                routed.setdefault(model["id"], []).append(price)
    for id, prices in routed.items():
        # Without a company in its name, the router chooses one: the price in the middle is likely.
        prices.sort(key=lambda each: (each.input_per_million, each.output_per_million))
        yield _Entry("huggingface", id, replace(prices[len(prices) // 2], assumed=True))


def _genai_price(model: Mapping[str, Any], today: str) -> TablePrice | None:
    prices = model["prices"]
    if isinstance(prices, list):  # prices by date: the last one that has begun counts
        begun = [each for each in prices if (_begins(each) or "") <= today]
        prices = begun[-1]["prices"] if begun else {}
    names = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
    numbers = [_number(_base(prices.get(name))) for name in names]
    tokens = [None if each is None else each / PER_MILLION for each in numbers]
    return _price(*tokens, per_request=0.0, context=model.get("context_window"))


def _begins(price: Mapping[str, Any]) -> str | None:
    begins = (price.get("constraint") or {}).get("start_date")
    return begins if isinstance(begins, str) else None


def _base(price: object) -> object:
    """Return the price of short prompts, if long prompts cost more."""
    return price.get("base") if isinstance(price, dict) else price


def _own(document: Mapping[str, Any]) -> Iterator[_Entry]:
    """Read our own form. Raises ConfigError that names the entry at fault."""
    for provider, models in document.items():
        if not isinstance(models, dict):  # not a provider: a date, or the name of a source
            continue
        if provider not in providers():
            known = ", ".join(providers())
            raise ConfigError(f"{provider}: no preset has this name; known: {known}")
        for model, fields in models.items():
            try:
                yield _Entry(provider, model, msgspec.convert(fields, TablePrice))
            except msgspec.ValidationError as error:
                raise ConfigError(f"{provider}.{model}: {error}") from error


def _price(
    input: object,
    output: object,
    cached: object,
    written: object,
    *,
    per_request: float,
    context: object,
) -> TablePrice | None:
    """Return dollars per million tokens from dollars per token; None if unknown or 0."""
    prompt, answer = _number(input), _number(output)
    if prompt is None or answer is None or not (prompt or answer or per_request):
        return None
    read, write = _number(cached), _number(written)
    return TablePrice(
        input_per_million=_million(prompt),
        output_per_million=_million(answer),
        cached_per_million=_million(read) if read else None,
        cache_write_per_million=_million(write) if write else None,
        per_request=per_request,
        context_tokens=context if type(context) is int and context > 0 else None,
    )


def _number(value: object) -> float | None:
    """Return a price of 0 or more; OpenRouter writes texts, and -1 for a price that varies."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _million(per_token: float) -> float:
    return float(f"{per_token * PER_MILLION:.6g}")


def write_prices(prices: Mapping[str, Mapping[str, TablePrice]], head: Iterable[str]) -> str:
    """Return prices as TOML, below ``head``, which are lines of comments and the date."""
    lines = [*head]
    for provider, models in prices.items():
        lines += ["", f"[{provider}]"]
        lines += [f"{_quoted(model)} = {_inline(price)}" for model, price in models.items()]
    return "\n".join(lines) + "\n"


def _quoted(key: str) -> str:
    return key if _BARE.fullmatch(key) else msgspec.json.encode(key).decode()


def _inline(price: TablePrice) -> str:
    known = {n: v for n, v in asdict(price).items() if v is not None and v is not False}
    if not price.per_request:
        known.pop("per_request")
    pairs = (f"{name} = {msgspec.json.encode(value).decode()}" for name, value in known.items())
    return f"{{ {', '.join(pairs)} }}"


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
    found = _choose_providers(_read(options.file, today), options.provider)
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
        is_toml = file.suffix == ".toml"
        document: object = tomllib.loads(data.decode()) if is_toml else msgspec.json.decode(data)
        return read_prices(document, today=today)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.DecodeError) as error:
        raise ConfigError(f"{file}: neither JSON nor TOML: {error}") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{file}: a field of an entry is missing or not valid: {error}"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def _choose_providers(found: ImportedPrices, names: tuple[str, ...]) -> ImportedPrices:
    for name in names:
        if name not in providers():
            known = ", ".join(providers())
            raise click.BadParameter(f"{name!r} is not a preset: {known}", param_hint="--provider")
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
