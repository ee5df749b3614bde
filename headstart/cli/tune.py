"""``headstart tune``: what a log says about error targets, and what it teaches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from headstart.cli import lab
from headstart.cli.lab_input import play_all, query_option, read_material
from headstart.cli.tune_cascade import tune_cascade
from headstart.errors import ConfigError

if TYPE_CHECKING:
    import re

    from headstart.cli.lab_input import Material
    from headstart.lab.contenders import Setup
    from headstart.lab.stream import Step
    from headstart.lab.tuning import Static, Target, Tuning

EPILOG = """\b
Examples:
  headstart tune log.jsonl
  headstart tune headstart-record-*.jsonl
  headstart tune log.jsonl --max-error 2% --out headstart-state.bin --html tune.html
  headstart tune log.jsonl --write headstart.toml
  headstart tune log.jsonl --max-error 1% --fail-over 1% --json
  headstart tune --cascade outcomes.csv
  headstart tune --cascade outcomes/ --cheap small-model --strong large-model --json

\b
Lines of a log:  {"at": 1767225600, "scope": "…", "request": {…}, "response": {…}}
                 {"messages": […, {"role": "assistant", "content": "…"}]}

Pairs and streams as for headstart evaluate are read too. docs/tuning.md has the details.

\b
Outcomes of two models, as CSV or JSON lines:
  prompt,cheap,strong          (outcomes: true, false, or 0 to 1)
  prompt,cheap_answer,strong_answer          (texts that are compared)

docs/cascade.md has the details.
"""
STATE = Path("headstart-state.bin")


@click.command(epilog=EPILOG)
@click.argument(
    "paths",
    metavar="LOG.jsonl...",
    nargs=-1,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
)
@click.option(
    "--max-error", type=lab.Share(), help="The target to learn for.  [default: the product's]"
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=STATE,
    show_default=True,
    help="Where what was learned goes; cache.state names it for serve.",
)
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Draw it on one page."
)
@click.option(
    "--write",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Set the best static threshold in a headstart.toml instead of writing a state.",
)
@query_option
@click.option(
    "--fail-over", type=lab.Share(), help="Exit with 1 if more hits are wrong for certain."
)
@click.option(
    "--cascade",
    type=click.Path(path_type=Path, exists=True),
    metavar="FILE_OR_DIR",
    help="Outcomes of two models: say what a cascade of both would cost and give.",
)
@click.option(
    "--cheap", default="cheap", show_default=True, help="Column of the cheap model's outcomes."
)
@click.option(
    "--strong", default="strong", show_default=True, help="Column of the strong model's outcomes."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def tune(
    paths: tuple[Path, ...],
    max_error: float | None,
    out: Path,
    html: Path | None,
    write: Path | None,
    pattern: re.Pattern[str] | None,
    fail_over: float | None,
    cascade: Path | None,
    cheap: str,
    strong: str,
    as_json: bool,
) -> None:
    """Replay a log in time order: every logged answer is a label.

    Says how many hits each error target would give, draws it, and writes what was learned for
    serve to start from. With --cascade: says for which prompts a cheap model is good enough.
    """
    if cascade is not None:
        if paths or any(each is not None for each in (max_error, html, write, pattern, fail_over)):
            raise click.UsageError("--cascade goes with --cheap, --strong and --json, and no log")
        tune_cascade(cascade, cheap, strong, as_json=as_json)
        return
    if not paths:
        raise click.UsageError("give a LOG.jsonl, or outcomes with --cascade")
    from headstart.lab.contenders import Setup
    from headstart.policies.ratchet.settings import Promise

    target = Promise().max_error if max_error is None else max_error
    material = read_material(paths, pattern)
    setup = Setup(guards=True, noise=material.noise, max_error=target)
    found = _study(material, setup, target)
    if write is not None:
        found = msgspec.structs.replace(found, static=_static(material, target))
        _write_static(write, found)
    else:
        _save(out, "--out", _learned(material, setup))
    if html is not None:
        from headstart.lab.page import render_tuning

        _save(html, "--html", render_tuning(found).encode())
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        _print(found, write or out, html)
    lab.fail_over(found.chosen, fail_over)


def _study(material: Material, setup: Setup, target: float) -> Tuning:
    from headstart.lab.contenders import contender_of
    from headstart.lab.rates import ordering_report
    from headstart.lab.templates import find_templates
    from headstart.lab.tuning import TARGETS, Tuning, borderline, course, rocs, target_of

    plays: dict[float, list[Step[Any]]] = {}
    for max_error in sorted({*TARGETS, target}):
        contender = contender_of("verified", setup._replace(max_error=max_error))()
        plays[max_error] = play_all(material, contender, f"Target {max_error:.1%}")
    chosen = plays[target]
    return Tuning(
        n=len(chosen),
        skipped=material.skipped,
        max_error=target,
        chosen=ordering_report(chosen, None),
        targets=tuple(target_of(max_error, steps) for max_error, steps in plays.items()),
        roc=rocs(chosen),
        course=course(chosen),
        borderline=borderline(chosen),
        templates=find_templates(material.texts),
    )


def _learned(material: Material, setup: Setup) -> bytes:
    """Return what the log teaches when nothing is served: every answer is then a label."""
    from headstart.lab.contenders import contender_of

    contender = contender_of("verified", setup)()
    play_all(material, contender, "Learning", shadow=True)
    assert contender.domain is not None
    return contender.domain.snapshot()


def _static(material: Material, target: float) -> Static | None:
    from headstart.lab.contenders import Contender
    from headstart.lab.tuning import THRESHOLDS, best_static
    from headstart.policies.match import StaticMatch

    return best_static(
        target,
        (
            (threshold, play_all(material, Contender(StaticMatch(threshold)), f"At {threshold}"))
            for threshold in THRESHOLDS
        ),
    )


def _write_static(path: Path, found: Tuning) -> None:
    from headstart.lab.toml_edit import set_keys

    if found.static is None:
        raise ConfigError(
            f"--write: no static threshold is sure to keep {found.max_error:.2%} wrong hits on "
            "this log: give more of it, or a larger --max-error"
        )
    values = {"match": '"static"', "threshold": f"{found.static.threshold:.2f}"}
    text = path.read_text(encoding="utf-8")
    _save(path, "--write", set_keys(text, "cache", values, remove=("guards",)).encode())


def _save(path: Path, option: str, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{option}: {error}") from error


def _print(found: Tuning, written: Path, html: Path | None) -> None:
    from rich.console import Console

    click.echo(f"{found.n:,} prompts" + _skipped(found.skipped))
    rows = (
        (_name(target, found.max_error), [lab.percent(target.late.hit_rate)], target.rates)
        for target in found.targets
    )
    Console().print(lab.comparison("target", rows, "late hits"))
    for curve in found.roc:
        click.echo(f"{curve.name}: area under the ROC curve {curve.area:.3f}")
    if found.static is not None:
        click.echo(f"static threshold in hindsight: {found.static.threshold:.2f}")
    for template in found.templates:
        click.echo(
            f"{template.prompts:,} prompts share a template of {template.template_chars:,} "
            "characters. Name the question inside, and try it here with --query:\n"
            f'[[route]]\nname = "templated"\nquery = {json.dumps(template.pattern)}'
        )
    click.echo(f"wrote {written}" + ("" if html is None else f" and {html}"))


def _skipped(skipped: dict[str, int]) -> str:
    if not skipped:
        return ""
    reasons = ", ".join(f"{name} {count:,}" for name, count in skipped.items())
    return f"; not kept: {reasons}"


def _name(target: Target, chosen: float) -> str:
    return f"{target.max_error:.1%}" + (" *" if target.max_error == chosen else "")
