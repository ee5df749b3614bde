"""``headstart tune``: learns from a log, or shows the savings of a cascade of two models."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console

from headstart.cli.options import (
    FILE,
    OLD_FILE,
    Share,
    argument,
    command,
    config_field,
    json_field,
    number_table,
    option,
    print_json,
    write_file,
)
from headstart.errors import ConfigError
from headstart.lab import tuning
from headstart.lab.commands import playing
from headstart.lab.quality import read_rows, study_cascade
from headstart.lab.rates import ordering_report, percent
from headstart.lab.stream import PlayedPrompt, PolicySetup, TestedPolicy, policy_maker
from headstart.policies.learned_rule.error_limit import ErrorLimit
from headstart.policies.match import StaticMatch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from rich.table import Table

    from headstart.lab.quality import CascadePoint, CascadeReport, CascadeTuning
# --- cascades -------------------------------------------------------------------------------------

_STEPS = 10
"""The number of intervals between the shares of strong calls that are printed."""


def _show_cascade(path: Path, cheap: str, strong: str, *, as_json: bool) -> None:
    """Print the results of a cascade on the outcomes in ``path``. Raises ConfigError."""
    found = study_cascade(read_rows(path, cheap, strong))
    if as_json:
        print_json({**msgspec.to_builtins(found), "toml": _snippet(found)})
    else:
        _print_cascade(found)


def _print_cascade(found: CascadeTuning) -> None:
    report = found.report
    click.echo(
        f"{report.n:,} prompts: the cheap model alone {report.cheap:.1%}, the strong one "
        f"{report.strong:.1%}, the better answer of both {report.either:.1%}"
    )
    console = Console()
    console.print(_curve(report))
    console.print(_scores(found))
    point = found.at_min_confidence
    if point is None:
        click.echo("The strong model is not better here, so a cascade gains nothing.")
        return
    click.echo(
        f"If the strong model gets {percent(point.strong_share)} of the calls, the cascade "
        f"keeps {percent(point.recovered)} of the gap: quality {point.quality:.1%}"
        + (f", ${point.cost_usd:.6f} a call" if point.cost_usd else "")
    )
    click.echo(_snippet(found))


def _curve(report: CascadeReport) -> Table:
    """Return quality and cost for every tenth of the calls that the strong model may get."""
    table = number_table("strong calls", "quality", "gap recovered", "$ a call")
    for point in _tenths(report):
        table.add_row(
            percent(point.strong_share),
            percent(point.quality),
            percent(point.recovered),
            f"{point.cost_usd:.6f}" if point.cost_usd else "unknown",
        )
    return table


def _tenths(report: CascadeReport) -> Iterator[CascadePoint]:
    shown = set()
    for step in range(_STEPS + 1):
        point = min(report.curve, key=lambda each: abs(each.strong_share - step / _STEPS))
        if point.strong_share not in shown:
            shown.add(point.strong_share)
            yield point


def _scores(found: CascadeTuning) -> Table:
    """Return a table that compares choosing by the score with simpler choices."""
    table = number_table("chosen by", "APGR", "half of it at", "80 % of it at")
    report = found.report
    rows = [(each.name, each.apgr, each.cpt50, each.cpt80) for each in found.baselines]
    own = "judges of the cascade" if found.judge == "prompt" else "the table's score"
    for name, apgr, *shares in [*rows, (own, report.apgr, report.cpt50, report.cpt80)]:
        known = "none" if apgr is None else f"{apgr:.3f}"
        table.add_row(name, known, *map(percent, shares))
    return table


def _snippet(found: CascadeTuning) -> str | None:
    """Return a route with these settings, or None where a cascade gains nothing."""
    if found.min_confidence is None:
        return None
    return (
        "[[route]]\n"
        'name = "cascade"\n'
        'strategy = "cascade"\n'
        'upstreams = ["cheap", "strong"]  # the names of yours\n'
        f'judge = ["refusal", "format", "{found.judge}"]\n'
        f"min_confidence = {found.min_confidence:g}"
    )


# --- the command ----------------------------------------------------------------------------------

OUT_HELP = "File for the learned state; cache.state names it for serve."
WRITE_HELP = "Set the best static threshold in a headstart.toml instead of writing a state."
CASCADE_HELP = "Outcomes of two models: show the cost and the quality of their cascade."


@dataclass(frozen=True)
class TuneOptions:
    """The options of ``headstart tune``."""

    paths: tuple[Path, ...] = argument("LOG.jsonl...", OLD_FILE, nargs=-1)
    max_error: float | None = option(None, playing.MAX_ERROR_HELP, Share())
    out: Path = option(Path("headstart-state.bin"), OUT_HELP, FILE)
    html: Path | None = option(None, "Draw the result on one HTML page.", FILE)
    write: Path | None = option(None, WRITE_HELP, OLD_FILE)
    query: re.Pattern[str] | None = option(
        None, playing.QUERY_HELP, metavar="REGEX", callback=playing.question_pattern
    )
    fail_over: float | None = option(None, playing.FAIL_OVER_HELP, Share())
    cascade: Path | None = option(
        None, CASCADE_HELP, click.Path(path_type=Path, exists=True), metavar="FILE_OR_DIR"
    )
    cheap: str = option("cheap", "Column of the cheap model's outcomes.")
    strong: str = option("strong", "Column of the strong model's outcomes.")
    config: Path | None = config_field()
    as_json: bool = json_field()


@command(TuneOptions)
def tune(options: TuneOptions) -> None:
    """Replay a log in time order: every logged answer is a label.

    It shows how many hits each error target would give, and writes the learned state with which
    serve starts. With --cascade it shows for which prompts a cheap model is good enough.

    Examples:
      headstart tune log.jsonl
      headstart tune headstart-record-*.jsonl
      headstart tune log.jsonl --max-error 2% --out headstart-state.bin --html tune.html
      headstart tune log.jsonl --write headstart.toml
      headstart tune log.jsonl --max-error 1% --fail-over 1% --json
      headstart tune --cascade outcomes.csv
      headstart tune --cascade outcomes/ --cheap small-model --strong large-model --json

    Lines of a log:  {"at": 1767225600, "scope": "…", "request": {…}, "response": {…}}
                     {"messages": […, {"role": "assistant", "content": "…"}]}

    Pairs and streams as for headstart evaluate are read too, and CSV with the columns prompt and
    answer. docs/tuning.md has the details.

    Outcomes of two models, as CSV or JSON lines:
      prompt,cheap,strong          (outcomes: true, false, or 0 to 1)
      prompt,cheap_answer,strong_answer          (texts that are compared)

    docs/cascade.md has the details.
    """
    if options.cascade is not None:
        of_log = (options.max_error, options.html, options.write, options.query, options.fail_over)
        if options.paths or any(each is not None for each in of_log):
            raise click.UsageError("--cascade goes with --cheap, --strong and --json, and no log")
        _show_cascade(options.cascade, options.cheap, options.strong, as_json=options.as_json)
        return
    if not options.paths:
        raise click.UsageError("give a LOG.jsonl, or outcomes with --cascade")
    _tune_to_log(options)


def _tune_to_log(options: TuneOptions) -> None:
    """Study a log, write what was learned from it, and print the results."""
    target = ErrorLimit().max_error if options.max_error is None else options.max_error
    source = playing.read_replay_input(options.paths, options.query, options.config)
    setup = PolicySetup(guards=True, noise=source.noise, max_error=target)
    found = _study(source, setup, target)
    if options.write is not None:
        plays = (
            (
                threshold,
                playing.play_all(source, TestedPolicy(StaticMatch(threshold)), f"At {threshold}"),
            )
            for threshold in tuning.THRESHOLDS
        )
        found = msgspec.structs.replace(found, static=tuning.best_static(target, plays))
        static = _write_static(options.write, found)
        found = msgspec.structs.replace(found, advice=tuning.advise_static(static))
    else:
        write_file(options.out, _learned(source, setup), "--out")
        advice = tuning.advise(found.targets, target, str(options.out))
        found = msgspec.structs.replace(found, advice=advice)
    if options.html is not None:
        write_file(options.html, tuning.render_tuning(found).encode(), "--html")
    if options.as_json:
        print_json(found)
    else:
        _print(found, options.write or options.out, options.html)
    playing.exit_if_more_wrong(found.chosen, options.fail_over)


def _study(source: playing.ReplayInput, setup: PolicySetup, target: float) -> tuning.Tuning:
    plays: dict[float, list[PlayedPrompt[Any]]] = {}
    targets = sorted({*tuning.TARGETS, target})
    for number, max_error in enumerate(targets, 1):
        tested = policy_maker("verified", setup._replace(max_error=max_error))()
        what = f"Target {max_error:.1%} ({number} of {len(targets)})"
        plays[max_error] = playing.play_all(source, tested, what)
    chosen = plays[target]
    return tuning.Tuning(
        n=len(chosen),
        skipped=source.skipped,
        max_error=target,
        chosen=ordering_report(chosen, None),
        targets=tuple(tuning.target_of(max_error, steps) for max_error, steps in plays.items()),
        roc=tuning.rocs(chosen),
        course=tuning.course(chosen),
        borderline=tuning.borderline(chosen),
        templates=tuning.find_templates(source.texts),
    )


def _learned(source: playing.ReplayInput, setup: PolicySetup) -> bytes:
    """Return the state after a run without hits, in which every answer is a label."""
    tested = policy_maker("verified", setup)()
    playing.play_all(source, tested, "Learning", shadow=True)
    assert tested.domain is not None
    return tested.domain.snapshot()


def _write_static(path: Path, found: tuning.Tuning) -> tuning.Static:
    if found.static is None:
        raise ConfigError(
            f"--write: no static threshold is sure to keep {found.max_error:.2%} wrong hits on "
            "this log: give more of it, or a larger --max-error"
        )
    values = {"match": '"static"', "threshold": f"{found.static.threshold:.2f}"}
    text = path.read_text(encoding="utf-8-sig")
    write_file(path, set_keys(text, "cache", values, remove=("guards",)).encode(), "--write")
    return found.static


def _print(found: tuning.Tuning, written: Path, html: Path | None) -> None:
    click.echo(f"{found.n:,} prompts without exact repeats" + _skipped(found.skipped))
    rows = (
        (_name(target, found.max_error), [percent(target.late.hit_rate)], target.rates)
        for target in found.targets
    )
    Console().print(playing.comparison("target", rows, "late hits"))
    click.echo("late hits: those of the second half, when most was learned; * is your target")
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
    if found.advice is not None:
        click.echo("\n".join(["", *found.advice.words, "", found.advice.toml]))


def _skipped(skipped: dict[str, int]) -> str:
    if not skipped:
        return ""
    reasons = ", ".join(f"{name} {count:,}" for name, count in skipped.items())
    return f"; not kept: {reasons}"


def _name(target: tuning.TargetResult, chosen: float) -> str:
    return f"{target.max_error:.1%}" + (" *" if target.max_error == chosen else "")


# --- settings in a file ---------------------------------------------------------------------------

_VALUE = r"""(?:\[(?:[^]"'#]|"[^"\n]*"|'[^'\n]*'|\#[^\n]*)*\]|"[^"\n]*"|'[^'\n]*'|[^#\n]*?)"""
"""A TOML value: an array, which may have several lines, a string, or a value without ``#``."""


def set_keys(
    text: str, table: str, values: Mapping[str, str], *, remove: Collection[str] = ()
) -> str:
    """Return ``text`` with some keys of ``[table]`` set to TOML ``values`` and others removed.

    Comments, order and everything else stay. Raises ConfigError for a file that is not TOML, and
    for a file whose form this function cannot edit.
    """
    assignments = {name: f"{name} = {value}" for name, value in values.items()}
    try:
        wanted: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the file is not TOML: {error}") from error
    section = {**wanted.get(table, {}), **tomllib.loads("\n".join(assignments.values()))}
    wanted[table] = {name: value for name, value in section.items() if name not in remove}
    parts = re.compile(
        rf"(.*?^[ \t]*\[[ \t]*{re.escape(table)}[ \t]*\][^\n]*\n)(.*?)(^[ \t]*\[.*|\Z)",
        re.MULTILINE | re.DOTALL,
    )
    text = "\n".join([*text.splitlines(), ""])
    found = parts.match(text) or parts.match(f"{text}\n[{table}]\n".lstrip())
    assert found is not None
    head, body, rest = found.groups()
    for name in (*remove, *values):
        body = _with_line(body, name, "" if name in remove else assignments[name])
    edited: str = head + body + rest
    try:
        done = tomllib.loads(edited) == wanted
    except tomllib.TOMLDecodeError:
        done = False
    if not done:
        raise ConfigError(
            f"the file sets [{table}] in a way that cannot be edited; write into it:\n"
            + "\n".join(assignments.values())
        )
    return edited


def _with_line(body: str, name: str, line: str) -> str:
    """Return a table's ``body`` with ``line`` in place of the assignment to ``name``, if any."""
    old = re.search(
        rf"^[ \t]*{re.escape(name)}[ \t]*=[ \t]*{_VALUE}[ \t]*(#[^\n]*)?\n", body, re.MULTILINE
    )
    comment = f"  {old[1]}" if old and old[1] else ""
    new = f"{line}{comment}\n" if line else ""
    return new + body if old is None else body[: old.start()] + new + body[old.end() :]
