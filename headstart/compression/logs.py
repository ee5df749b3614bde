"""Logs: repeated lines of one form are left out, counted and described; informative lines stay.

A log of sixty lines with an error in the 31st becomes, for example::

    10:00:00 INFO heartbeat 0
    10:00:01 INFO heartbeat 1
    [… 25 lines omitted …]
    (the three lines before the error)
    10:00:30 ERROR worker 3 timed out
    (the two lines after it)
    [… 26 lines omitted …]
    10:00:59 INFO heartbeat 59
    [… 59 lines like: 10:00:00 to 10:00:59 INFO heartbeat 0..59 …]

``is_log`` tells whether a text is a log. ``collapse_log`` then takes three steps:

1. ``_read`` sorts the lines by their forms. The form of a line is the line with a mask for each
   value that holds a digit.
2. ``_kept`` finds the lines that stay, verbatim and in order:

   - the first and the last line of each form, and all lines of a rare form;
   - each line that reports an error, with the lines below it that are indented or have no time (a
     stack), the lines around it, and the lines that have the same id;
   - each line with a value that differs from nearly all others of its form, is the smallest or the
     largest, is an outlier, comes twice while nearly all others come once, or interrupts a count;
   - both sides of the longest pause of the log, and of a pause in regular lines;
   - the lines with an id from the question, and the first and last ones with another word of it;
     the lines around them, if there are few.

   In case of doubt a line stays: it costs tokens, while a missing line may spoil the answer.
3. ``_descriptions`` describes each form with omitted lines once, with the ranges of its values.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from datetime import date
from functools import lru_cache
from itertools import accumulate, groupby, pairwise
from statistics import median
from string import ascii_letters
from typing import TYPE_CHECKING, NamedTuple

from headstart.compression.passages import like_these, omission_mark
from headstart.compression.selection import STOPWORDS, occurrences
from headstart.types import lower_case, read_vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


# --- the steps ------------------------------------------------------------------------------------

_MIN_RUN = 2
"""The fewest adjacent lines that a mark replaces."""
_RARE = 3
"""A form, or a value, is rare if it has no more lines than this."""
_LONGEST_EVENT = 50
"""The most lines without a time that belong to the error before them, such as a stack trace."""
_BETWEEN = r"\s=:,;|/()\[\]\"'<>\u2192"
_VALUE = re.compile(rf"(?<![^{_BETWEEN}])([^{_BETWEEN}0-9]*[0-9](?:[^{_BETWEEN}]*[^{_BETWEEN}-])?)")
"""Matches a value that holds a digit. A hyphen at its end is no part of it, as in ``20M->5M``."""


def collapse_log(text: str, query: str) -> str:
    """Return the log without repeated lines of one form. ``query`` is the question about it."""
    lines = text.split("\n")
    forms = _read(lines)
    keep = _kept(lines, forms, text, query)
    out: list[str] = []
    gone = [False] * len(lines)
    for kept, group in groupby(range(len(lines)), key=keep.__getitem__):
        run = list(group)
        if kept or len(run) < _MIN_RUN:
            out += (lines[number] for number in run)
        else:
            out.append(omission_mark(len(run), "line"))
            gone[run[0] : run[-1] + 1] = [True] * len(run)
    return "\n".join([*out, *_descriptions(lines, forms, gone)])


class _Form(NamedTuple):
    """The lines of one form: their numbers, and their values.

    Each line has the same number of values.
    """

    mask: tuple[str, ...]
    """The texts around the values."""
    numbers: list[int]
    rows: list[list[str]]


def _read(lines: Sequence[str]) -> list[_Form]:
    """Return the forms of all lines, in the order of their first lines."""
    forms: dict[str, _Form] = {}
    for number, line in enumerate(lines):
        parts = _VALUE.split(line) if line else [""]  # texts and values take turns
        key = "#".join(parts[::2])
        form = forms.get(key)
        if form is None:
            form = forms[key] = _Form(tuple(parts[::2]), [], [])
        form.numbers.append(number)
        form.rows.append(parts[1::2])
    return list(forms.values())


def _kept(lines: Sequence[str], forms: Sequence[_Form], text: str, query: str) -> list[bool]:
    """Tell for each line whether it stays."""
    reports = {line: _report_of(line) for line in set(lines)}
    trouble = [reports[line] > 0 for line in lines]
    times = _times(lines)
    last = len(lines) - 1
    while last and not lines[last].strip():
        last -= 1
    stays = {*_named(text, lines, query), *_pauses(range(len(lines)), times, regular=False), last}
    for form in forms:
        if len(form.numbers) <= _RARE:
            stays.update(form.numbers)
            continue
        unusual = set(_lines_with_unusual_values(form, lines[form.numbers[0]]))
        stays.update(unusual, (form.numbers[0], form.numbers[-1]))
        stays.update(_pauses(form.numbers, times, regular=True))
        harmless = _without_trouble(form, [reports[lines[number]] for number in form.numbers])
        for number in set(harmless) - unusual:
            trouble[number] = False
    stays.update(_around(forms, trouble, lines))
    return _whole_events(lines, trouble, stays)


def _whole_events(lines: Sequence[str], trouble: Sequence[bool], stays: set[int]) -> list[bool]:
    """Tell for each line whether it stays: lines of one event stay together.

    An event is a line with a time and the lines below it without one, such as a stack. An error
    (``trouble``) stays with the lines below it. Another line without a time stays with the first
    line of its event, and indented lines with the line above them.
    """
    keep = [False] * len(lines)
    first = -_LONGEST_EVENT  # the first line of the event
    below = 0  # the number of lines that may still belong to the last error
    for number, line in enumerate(lines):
        stamped = _is_stamped(line)
        if stamped:
            first = number
        below = _LONGEST_EVENT if trouble[number] else 0 if stamped else below - 1
        keep[number] = trouble[number] or number in stays or below > 0
        if keep[number] and line.strip() and not stamped and number - first < _LONGEST_EVENT:
            keep[first] = True
    for number, line in enumerate(lines[1:], 1):
        keep[number] |= line[:1].isspace() and keep[number - 1]
    return keep


# --- which texts are logs -------------------------------------------------------------------------

_PREFIX = (
    r"(?:[\w.-]{1,60} +\| +"  # docker compose
    r"|\[[\w./-]{3,120}(?:\] +(?=\d)| (?=\d{4}-\d\d-\d\dT))"  # kubectl, CI services
    r"|[DIWEF], (?=\[\d)"  # Ruby
    r"|[^\t\n]{1,80}\t[^\t\n]{1,120}\t\W?(?=\d)"  # the command line of a CI service
    r"|\S{1,80} \S{1,40} \S{1,40} \["  # access logs
    r"|[\w.-]{1,60}\.log\S{0,60} "  # files that were put together
    r"|(?:[\w.]{1,40}=\S{1,80} ){1,3}(?=(?:time|ts|level|lvl)=))?"  # logfmt
)
_STAMP = re.compile(
    _PREFIX + r"(?:<\d{1,3}>)?\W{0,2}(?:"  # a priority of syslog, and a sign such as "["
    # 2024-06-14 15:16. A date alone begins the rows of a statement or a diary.
    r"\d{4}[-/.]\d\d[-/.]\d\d(?=\D{1,4}\d\d\D?\d\d|\W{1,4}[A-Z]{4}|[^\n]{1,40}\d:\d\d)"
    r"|\d{6} \d{6}|[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d"  # 240614 151601; Jun 14 15:16
    r"|[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d\d:"  # Fri Jun 14 15:16
    r"|\d\d:\d\d:\d\d|\d{10,13}\b"  # 15:16:01; 1718378161, in seconds or milliseconds
    r"|\d\d([-/.])\d\d\1(?:\d\d){1,2}[ T]\d\d:\d\d|\d\d[-.]\d\d \d\d:\d\d:"  # 14.06.24 15:16
    r"|\d\d/[A-Z][a-z]{2}/\d{4}:"  # 14/Jun/2024:15:16 of access logs
    r"|(?:19|20)\d\d[01]\d[0-3]\d(?:[-T_ ]\d\d:\d\d|T\d{6})"  # 20240614-15:16; 20240614T151601
    r"|[IWEFC]\d{4} \d\d:\d\d:|\d{1,3}>1? ?(?:\d{4}-|[A-Z][a-z]{2} )"  # I0614 15:16:01; <34>Jun 14
    r"|\W{0,8}\d+\.\d{6}(?: /[^\]\n]{1,30})?\]|\d+[.,]\d{3}s\]"  # [   12.345678]; [0.123s]
    r"|(?:time|ts|level|lvl)=\S"
    r"|(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL)\b)"
)
"""Matches the time or the level at the beginning of a line."""
_COMPOSED = re.compile(r"[a-z][\w.-]{1,60}[-_]\d+ +\| ")  # docker compose, maybe without a time
_BY_PROGRAM = re.compile(
    # "main.py: ", "[12]: "; "[worker-3]", but not a time in brackets; "[ 12.345678]"
    r"(?:[\d\])>_]|\w[./]\w{1,40}): |\[(?![\d:., /-]*\])[^\[\]\n]{1,80}\]|\[ *\d+\.\d{6}\]"
    r"|(?<!\S)[\w.-]{1,40}=\S|\b[A-Z]{3,7} /|[a-z]:\d{2,5}\b"  # user=7; GET /; localhost:8080
    r"|\b(?i:trace|debug|info|notice|warn(?:ing)?|error|fatal|critical|severe)\b"
    # "16:13 D " and "E/Tag" of Android; "I0614 ", "<34>", "{", "web_1 | " at the beginning
    r"|\d [DIWEFV] |\b[DIWEFV]/\w|^(?:[IWEFD]\d{4} |<\d{1,3}>|\{|[\w.-]{1,60} +\| )"
    r"|^[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d [\w.-]+ [\w./-]+: "  # Jun 14 15:16:01 host cron:
    r"|\dT\d\d:?\d\d|\d\d:\d\d:\d\d[.,:]\d{3}(?:\d{3})?(?!\d)"  # 2024-06-14T15:16; 15:16:01.250
)
"""Matches what programs write in or near a time: a ``T``, milliseconds, a level, a source that is
not a plain word, ``key=value``, a port or a request. Timetables, statements and chats have none of
these."""
_MIN_LINES = 20  # of a log
_MIN_WRITTEN = 0.3
"""The least share of the lines with a time that must match ``_BY_PROGRAM``, too."""
_MOST_SEARCHED = 100
"""The most lines that are searched for it, from all parts of the text."""
_LETTERS = re.compile(r"[^\W\d_]{3,}")


def is_log(text: str) -> bool:
    """Tell whether most lines begin with a time or a level, as programs write them.

    In case of doubt a text is no log: each row of a table or a timetable is a fact.
    """
    lines = [line for line in text.split("\n") if line and not line[0].isspace()]
    if len(lines) < _MIN_LINES:
        return False
    stamped = [line for line in lines if _is_stamped(line)]
    if len(stamped) < 0.7 * len(lines) or _is_table(lines):
        return False
    some = stamped[:: len(stamped) // _MOST_SEARCHED + 1]
    written = sum(_BY_PROGRAM.search(line, 0, _TIME_WITHIN) is not None for line in some)
    return written >= _MIN_WRITTEN * len(some)


def _is_stamped(line: str) -> bool:
    return _STAMP.match(line) is not None or _COMPOSED.match(line) is not None


def _is_table(lines: Sequence[str]) -> bool:
    """Tell whether the lines are rows of a table: few words, and equally many separators.

    A series of measurements is a table, too: each value is a fact.
    """
    words = sum(len(_LETTERS.findall(line)) for line in lines[1:])
    if words < len(lines):
        return True
    for sign in ",;\t":
        count = lines[0].count(sign)
        if count and sum(line.count(sign) == count for line in lines) >= 0.95 * len(lines):
            # One separator may also be the comma before the milliseconds of a log.
            most = 2 * len(lines) if count >= 2 else 0
            if not any(map(str.isdigit, lines[0])) or words <= most:
                return True
    return False


# --- lines that report a problem ------------------------------------------------------------------


def _by_letter(words: Iterable[str]) -> str:
    """Return one pattern for all words, grouped by their first letters.

    So a search tries only few words at each place. It is ten times as fast as a search that ignores
    case. The signs "=" and "!" before words are those of ``vocabulary.toml``. After a word with "!"
    the pattern has an empty group: if a match has a group, its word reports no problem.
    """
    rests: dict[str, list[str]] = {}
    # Words with "!" are tried first, because they hold others.
    for word in sorted(words, key=lambda word: not word.startswith("!")):
        begins = word.startswith("=")
        for each in _alternatives(word.lstrip("=!") + "()" * word.startswith("!")):
            boundary = rf"(?<=\b{each[0]})" if begins else ""
            rests.setdefault(each[0], []).append(boundary + each[1:])
    return "|".join(f"{letter}(?:{'|'.join(after)})" for letter, after in sorted(rests.items()))


def _alternatives(pattern: str) -> list[str]:
    """Return a pattern that begins with ``(?:…|…)`` or ``[…]`` as several, each with one letter."""
    if pattern.startswith("(?:"):
        choices, _, after = pattern[3:].partition(")")
        return [choice + after for choice in choices.split("|")]
    if pattern.startswith("["):
        letters, _, after = pattern[1:].partition("]")
        return [letter + after for letter in letters]
    return [pattern]


_PROBLEM_WORD = re.compile(
    _by_letter(read_vocabulary(__name__)["problem_words"].split())
    # An HTTP status on its own
    + r"|[45](?<=[\s\"|\]].)\d\d(?![^\s\",;|\]])(?! ?[mnuµ]?s\b)"
)
_FIELD = r"[\w.-]{0,60}[\"']?\s?"
"""The end of the name of a field, after a problem word in it."""
_EMPTY = r"(?:(?:0x)?0+(?:\.0+)?%?|null|<nil>|false|-|\[\])"
_NO_WORD = r"(?:none|nil|no)"
_QUOTED = "|".join(f"{sign}(?:{_EMPTY}|{_NO_WORD})?{sign}" for sign in "\"'")
_ENDS = r"(?=[,;|)\]}]|\s*$)"
_ENDS_OR_FIELD = r"(?=[,;|)\]}]|\s*$|\s+[\w.-]{1,60}\s?[=:])"
_NO_PROBLEM = re.compile(
    rf"{_FIELD}(?:=\s?(?:(?:{_EMPTY}|{_QUOTED})(?![^\s,;|)\]}}])|{_NO_WORD}{_ENDS_OR_FIELD})"
    # After a colon a sentence may follow, as in "error: no such file".
    rf"|:\s?(?:(?:{_EMPTY}|none|nil|{_QUOTED}){_ENDS_OR_FIELD}|no{_ENDS}))"
)
"""Matches after a problem word in the name of a field that is zero or empty: ``errors: 0``."""
_RAISED = re.compile(
    r"\b(?:(?:[A-Z][\w.]{0,80})?(?:Error|Exception): |(?:ERROR|WARN|WARNING|FATAL|SEVERE): [^\d\s])"
)
"""Matches an exception or a level, whose message may be empty: ``KeyError: 0``, ``ERROR: null``."""
_NONE_OF = re.compile(
    r"(?:(?<=[,;(|]0 )|(?<=[,;(|] 0 )|(?<=\s0 )(?=(?:errors|warnings|failures|exceptions)\b))"
    r"(?![\w.-]{1,60}[\"']?\s?[=:])"
)
"""Matches at a problem word that is counted as zero: ``9 passed, 0 failed``. The zero in
``CPU 0 errors: 5`` counts nothing."""
_MEASURE = re.compile(
    rf"(?![\w.-]{{0,60}}(?:code|errno|status)){_FIELD}[=:]\s?[\"']?[-+]?\d[\d.,]{{0,30}}[a-z%µ]{{0,3}}(?![\w.-])"
)
"""Matches after a problem word in the name of a field with a number, as in ``fraud_score=0.01``."""
_CODE = re.compile(r"(?<![\w.-])(?:err(?:or|no)?[\"']?\s?=|(?!timeout)[a-z]{0,30}[a-rt-z]\s?:)")
"""Matches names whose numbers are codes, as in ``error=5`` and ``connect failed: 111``."""
_STATUS = re.compile(r"[1-5]\d\d")
_MOST_STATUSES = 40  # different ones in a log
_LETTER = re.compile(r"[EWFC](?:(?<=^.)\d{4} |(?<![\w.'-].)(?![\w.'-]|:[\\/]))")
"""A level of one letter: ``[E]``, ``E/Tag``, or ``E1121 16:00`` as in glog."""
_PRIORITY = re.compile(r"<(\d{1,3})>")
"""The priority of syslog: eight times the facility plus the severity, where 4 is a warning."""
_OTHER_SCRIPT = re.compile(r"[\u0370-\u1dff\u26a0\u2716-\u2718\u274c\u2e80-\U0010ffff]")
"""Matches another script than Latin, or an emoji. A line with it cannot be understood here, so it
counts as an error."""
_BY_STATUS, _BY_MEASURE, _BY_WORD = 1, 2, 3
"""How a line reports a problem: by a number that may be an HTTP status; by a field with a number,
such as ``errors=3``; by any other word, level or code."""


def reports_problem(line: str) -> bool:
    """Return whether a line names an error, a warning or a refusal, by level, word or code."""
    return _report_of(line) > 0


def _report_of(line: str) -> int:
    """Return how a line reports a problem: 0 for not at all, or the highest ``_BY_…``.

    A field with nothing in it, such as ``errors: 0``, reports none.
    """
    if (
        _LETTER.search(line) is not None
        or any(int(found[1]) % 8 <= 4 for found in _PRIORITY.finditer(line))
        or (not line.isascii() and _OTHER_SCRIPT.search(line) is not None)
    ):
        return _BY_WORD
    report, nothing, lower = 0, False, line.lower()
    for found in _PROBLEM_WORD.finditer(lower):
        begin, end = found.span()
        if found.lastindex:  # a word with "!", see ``_by_letter``
            continue
        if found[0].isdigit():
            report = max(report, _BY_STATUS)
        elif found[0][-1].isdigit():  # the value is in the match, as in "exit code 1"
            return _BY_WORD
        elif _NO_PROBLEM.match(lower, end):
            nothing = True
        elif _NONE_OF.match(lower, begin):
            continue
        elif _MEASURE.match(lower, end) and not _CODE.match(lower, begin):
            report = _BY_MEASURE
        else:
            return _BY_WORD
    return _BY_WORD if nothing and _RAISED.search(line) else report


def _without_trouble(form: _Form, reports: Sequence[int]) -> Iterator[int]:
    """Yield the numbers of lines that seemed to report a problem and do not, seen with their form.

    A field such as ``fraud_score=0.01`` in each line reports no problem, except at the places of
    ``_telling_places``. A number is no HTTP status if its column has many different values, and
    some of them cannot be a status.
    """
    highest = max(reports)
    if highest == _BY_MEASURE and 2 * reports.count(highest) > len(reports):
        telling = set(_telling_places(form))
        yield from (number for place, number in enumerate(form.numbers) if place not in telling)
    elif _BY_STATUS in reports:
        columns = zip(*form.rows, strict=True)
        values = [set(column) for column in columns]
        may_be_statuses = [
            len(each) <= _MOST_STATUSES or all(map(_STATUS.fullmatch, each)) for each in values
        ]
        for number, report, row in zip(form.numbers, reports, form.rows, strict=True):
            if report == _BY_STATUS and not any(
                may_be and value[0] in "45"
                for may_be, value in zip(may_be_statuses, row, strict=True)
            ):
                yield number


def _telling_places(form: _Form) -> Iterator[int]:
    """Yield the places of the lines in which a field with a problem word has a telling number.

    If the number is mostly zero, each other number tells something. If it seldom changes, the first
    number after each change does.
    """
    for mask, column in zip(form.mask, zip(*form.rows, strict=True), strict=False):
        name = _NAME.search(mask[-_LONGEST_NAME:].lower())
        if name is None or all(found.lastindex for found in _PROBLEM_WORD.finditer(name[0])):
            continue
        others = [place for place, value in enumerate(column) if not _ZERO.fullmatch(value)]
        changes = [at for at, (old, new) in enumerate(pairwise(column), 1) if old != new]
        if 2 * len(others) < len(column):
            yield from others
        elif len(changes) <= _FEW:
            yield from changes


_LONGEST_NAME = 80
"""The most characters before a value that are searched for the name of its field."""
_NAME = re.compile(r"[\w.-]+[\"']?\s?[=:]\s?[\"']?$")
_ZERO = re.compile(r"0+(?:\.0+)?[a-z%\xb5]{0,3}")


# --- values that tell something -------------------------------------------------------------------

_NEARLY_ALL = 0.9
"""The share from which a value, or a step between values, counts as usual."""
_FEW = 12
"""The most different values of a column in which a rare value is informative."""
_OUTSIDE = 3.0
"""An outlier is this many interquartile ranges outside the quartiles."""
_LISTED = 8
"""The largest number of values that the description of a form lists, and of outliers on a side."""
_NUMBER = re.compile(r"([^\d.+-]{0,12}[-+]?)(\d+(?:\.\d+)?(?:[eE][-+]\d{1,3})?)([^\d.]{0,12})")
_DURATION = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6}(?:\.\d+)?)s)?")


def _lines_with_unusual_values(form: _Form, first: str) -> Iterator[int]:
    """Yield the numbers of the lines whose values are unusual for their form."""
    skipped = _time_columns(first)
    columns = list(zip(*form.rows, strict=True))
    for place, column in enumerate(columns):
        counts = Counter(column)
        if len(counts) == 1 or place in skipped:
            continue
        odd = {*_odd_values(column, counts), *_odd_forms(counts)}
        if odd:
            yield from (form.numbers[at] for at, value in enumerate(column) if value in odd)
        after = columns[place + 1 : place + 3]
        yield from (form.numbers[at] for at in _extremes(column, counts, after))


def _odd_values(column: Sequence[str], counts: Counter[str]) -> Iterator[str]:
    """Yield rare values among frequent ones, and values that alone occur twice."""
    size = len(column)
    ((_, most),) = counts.most_common(1)
    if most >= _NEARLY_ALL * size:
        yield from (value for value, count in counts.items() if count < most)
    elif len(counts) <= _FEW:
        yield from (value for value, count in counts.items() if count <= min(_RARE, size / 10))
    elif len(counts) >= _NEARLY_ALL * size:
        again = [value for value, count in counts.items() if count > 1]
        yield from again if len(again) <= _FEW / 2 else ()


def _odd_forms(counts: Counter[str]) -> Iterator[str]:
    """Yield the values of a rare form, such as ``2m41s`` or ``3GB`` among ``20ms`` and ``5MB``.

    Values have the same form if they differ only in digits: first with any number of digits, then
    with the same number. In a column with many forms, no form is rare.
    """
    fixed = {value: value.translate(_DIGITS) for value in counts}
    loose = {form: _ZEROS.sub("0", form) for form in set(fixed.values())}
    for form_of in ({value: loose[form] for value, form in fixed.items()}, fixed):
        forms: Counter[str] = Counter()
        for value, count in counts.items():
            forms[form_of[value]] += count
        if len(forms) <= _FEW:
            yield from (value for value in counts if forms[form_of[value]] <= _RARE)


_DIGITS = str.maketrans("123456789", "000000000")
_ZEROS = re.compile("0+")


def _extremes(
    column: Sequence[str], counts: Counter[str], after: Sequence[Sequence[str]]
) -> Iterator[int]:
    """Yield the places of breaks in a count, of the least and the greatest number, and of outliers.

    Only numbers of the same unit are compared. Of equal numbers the columns ``after`` decide: these
    may be parts of one value, as in 1:02:03.
    """

    def rest_of_value(place: int) -> list[float]:
        return [_number(each[place]) for each in after]

    for values in _numbers(counts).values():
        at = [place for place, value in enumerate(column) if value in values]
        series = [values[column[place]] for place in at]
        if len(series) <= _RARE:
            continue
        yield from (at[number] for number in _breaks(series))
        order = sorted(range(len(series)), key=series.__getitem__)
        least = [at[n] for n in order if series[n] == series[order[0]]]
        greatest = [at[n] for n in reversed(order) if series[n] == series[order[-1]]]
        yield min(least, key=rest_of_value)
        yield max(greatest, key=rest_of_value)
        yield from (at[number] for number in _outliers(series, order))


def _breaks(series: Sequence[float]) -> Iterator[int]:
    """Yield both sides of the first steps that differ from nearly all others, as in 1 2 3 7 8."""
    steps = [after - before for before, after in pairwise(series)]
    ((usual, often),) = Counter(steps).most_common(1)
    if usual and often >= _NEARLY_ALL * len(steps):
        breaks = [number for number, step in enumerate(steps) if step != usual]
        for number in breaks[:_FEW]:
            yield from (number, number + 1)


def _outliers(series: Sequence[float], order: Sequence[int]) -> Iterator[int]:
    """Yield the farthest outliers. ``order`` has the places from the least to the greatest."""
    low, high = series[order[len(order) // 4]], series[order[3 * len(order) // 4]]
    reach = _OUTSIDE * (high - low)
    yield from (place for place in order[:_LISTED] if series[place] < low - reach)
    yield from (place for place in order[-_LISTED:] if series[place] > high + reach)


def _number(value: str) -> float:
    found = _NUMBER.fullmatch(value)
    return float(found[2]) if found else 0.0


def _numbers(values: Iterable[str]) -> dict[tuple[str, str], dict[str, float]]:
    """Return the numbers among values, by the texts around them; none if the texts are many."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for value in values:
        number = _NUMBER.fullmatch(value)
        if number is not None:
            before, digits, unit = number.groups()
            sign = -1 if before == "-" else 1
            found.setdefault((before.rstrip("-+"), unit), {})[value] = sign * float(digits)
        elif (parts := _DURATION.fullmatch(value)) is not None:
            units = zip(parts.groups("0"), (86400, 3600, 60, 1), strict=True)
            seconds = sum(float(part) * unit for part, unit in units)
            found.setdefault(("", "duration"), {})[value] = seconds
    return found if len(found) <= _FEW else {}


# --- times ----------------------------------------------------------------------------------------

_TIME = re.compile(
    r"(?:\d{1,4}[-/.](?:\d\d|[A-Z][a-z]{2})[-/.]\d{1,4}[T :_]?|[A-Z][a-z]{2} +\d{1,2} "
    r"|[IWEFC]\d{4} )?"
    r"(?:(\d\d):(\d\d):(\d\d(?:[.,]\d+)?)(?:Z|[+-]\d\d:?\d\d)?"
    r"|(?<=\[)[ ]*(\d+[.,]\d{3}(?:\d{3}|(?=s)))s?(?=\]))"
)
_TIME_WITHIN = 160
"""The number of characters in which the time of a line is searched."""
_PAUSE = 4.0
"""Regular lines pause where the time to the next line is longer by this factor than usual."""


def _time_columns(line: str) -> range:
    """Return the places of the values that are the line's time."""
    time = _TIME.search(line, 0, _TIME_WITHIN)
    if time is None:
        return range(0)
    begins = [found.start(1) for found in _VALUE.finditer(line)]
    ends = [found.end(1) for found in _VALUE.finditer(line)]
    first = bisect_right(ends, time.start())
    return range(first, max(first, sum(begin < time.end() for begin in begins)))


def _times(lines: Sequence[str]) -> list[float | None]:
    """Return the seconds of each line, increasing past midnight; None for a line without time.

    The dates tell how many days have passed. If two dates cannot be compared, a day has passed
    where the clock goes back by more than half a day.
    """
    out: list[float | None] = []
    before = midnight = 0.0  # the time of the line before, and of the midnight before it
    day, midnights = "", 0  # the last date, and how often midnight has passed since it
    for line in lines:
        time = _TIME.search(line, 0, _TIME_WITHIN) if line else None
        if time is None:
            out.append(None)
            continue
        if time[4]:  # seconds since the start of the system
            at = float(time[4].replace(",", "."))
        else:
            seconds = float(time[3].replace(",", "."))
            clock = int(time[1]) * 3600 + int(time[2]) * 60 + seconds
            own_day = line[time.start() : time.start(1)]
            days = _days_between(day, own_day)
            goes_back = clock + midnight < before - _DAY_S / 2
            passed = int(goes_back) if days is None else days - midnights
            midnight += _DAY_S * passed
            day, midnights = (own_day, 0) if own_day else (day, midnights + passed)
            at = clock + midnight
        before = at
        out.append(at)
    return out


_DAY_S = 86400
_DATES = (
    re.compile(r"(?P<year>\d{4})[-/.](?P<month>\d\d)[-/.](?P<day>\d\d)"),
    re.compile(r"(?P<day>\d{1,2})[-/.](?P<month>[A-Z][a-z]{2})[-/.](?P<year>\d{4})"),
    re.compile(r"(?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2})"),
    re.compile(r"[IWEFC](?P<month>\d\d)(?P<day>\d\d)"),
)
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_LEAP_YEAR = 2000
"""The year of a date that names none, so that February 29 is a day."""


def _days_between(one: str, other: str) -> int | None:
    """Return the number of days from one date to the next; None: the dates cannot be compared.

    Dates in different forms cannot be compared, because the logs of two programs may be mixed. A
    date in a form that is not known, such as 02.03.25, counts as the next day.
    """
    if not one or not other:
        return None
    if one == other:
        return 0
    (form, first), (other_form, second) = _day(one), _day(other)
    if form != other_form:
        return None
    if first is None or second is None:
        return 1
    return second - first if second > first else None


@lru_cache(maxsize=256)
def _day(text: str) -> tuple[str | int, int | None]:
    """Return the form of a date, and the number of its day; None: the form is not known."""
    for form, pattern in enumerate(_DATES):
        found = pattern.match(text)
        if found is not None:
            named = found.groupdict()
            year, month, day = named.get("year", _LEAP_YEAR), named["month"], named["day"]
            number = int(month) if month.isdigit() else _MONTHS.find(month) // 3 + 1
            try:
                return form, date(int(year), number, int(day)).toordinal()
            except ValueError:
                return form, None
    return text.translate(_DIGITS), None


def _pauses(
    numbers: Sequence[int], times: Sequence[float | None], *, regular: bool
) -> Iterator[int]:
    """Yield both lines around the longest pause; with ``regular``, only if it is exceptional."""
    timed = [(number, at) for number in numbers if (at := times[number]) is not None]
    if len(timed) <= 2 * _RARE:
        return
    gaps = [after - before for (_, before), (_, after) in pairwise(timed)]
    longest = max(range(len(gaps)), key=gaps.__getitem__)
    if gaps[longest] <= 0:
        return
    if regular:
        usual = median(gaps)
        is_exceptional = 0 < usual <= gaps[longest] / _PAUSE
        if not is_exceptional or sum(g > 2 * usual for g in gaps) > len(gaps) / 10:
            return
    yield from (timed[longest][0], timed[longest + 1][0])


# --- lines around trouble, and lines that the question names --------------------------------------

_BEFORE, _AFTER = 3, 2
"""The lines that stay before and after a line that reports an error or that the question names."""
_RELATED = 8
"""The most lines with the id of one event. An id in more lines does not belong to one event."""
_SHORTEST_ID = 4
"""The fewest characters of a value that may be the id of an event."""
_MOST_NAMED = 10
"""If at most this number of lines have a word of the question, all of these lines stay."""
_SHORTEST_WORD = 3
"""The fewest characters of a word, and of a number on its own, that the question can name."""
_WORD = re.compile(r"[\w.:/@-]+")
_IN_ID = re.compile(r"[._:/@-]")


def _around(forms: Sequence[_Form], trouble: Sequence[bool], lines: Sequence[str]) -> set[int]:
    """Return the lines around errors (``trouble``), and those with the same id as an error.

    If a form of error occurs again and again, only the lines around its first and last ones stay.
    """
    stays: set[int] = set()
    ids: set[str] = set()
    for form in forms:
        places = [place for place, number in enumerate(form.numbers) if trouble[number]]
        skipped = _time_columns(lines[form.numbers[0]]) if places else ()
        for place in {*places[:_RARE], *places[-1:]}:
            stays.update(_near(form.numbers[place], len(lines)))
            values = (value for at, value in enumerate(form.rows[place]) if at not in skipped)
            ids.update(value for value in values if len(value) >= _SHORTEST_ID)
    holders: dict[str, list[int]] = {}
    for form in forms if ids else ():
        for number, row in zip(form.numbers, form.rows, strict=True):
            for value in ids.intersection(row):
                holders.setdefault(value, []).append(number)
    return stays.union(*(found for found in holders.values() if len(found) <= _RELATED))


def _near(number: int, count: int) -> range:
    """Return the numbers of a line and of those around it, in a text of ``count`` lines."""
    return range(max(0, number - _BEFORE), min(count, number + _AFTER + 1))


def _named(text: str, lines: Sequence[str], query: str) -> Iterator[int]:
    """Yield the lines with an id of the question, and the first and last lines with its words.

    If only few lines have a word, the lines around them stay, too: the question may be about what
    was before.
    """
    lower = lower_case(text)
    starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
    ids, words = _asked(query)
    for word in sorted(ids | words):
        found = list(dict.fromkeys(bisect_right(starts, at) - 1 for at in _places(lower, word)))
        if len(found) <= _RARE:
            yield from (near for at in found for near in _near(at, len(lines)))
        elif (word in ids and len(found) <= len(lines) / 2) or len(found) <= _MOST_NAMED:
            yield from found
        elif len(found) <= len(lines) / 2:
            yield from (*found[:_RARE], *found[-_RARE:])


def _asked(query: str) -> tuple[set[str], set[str]]:
    """Return the ids and the other words of a question, in lower case.

    An id has a digit, and also a letter, a sign, or two more digits. A shorter number counts only
    together with the word before it: "order 7" may be written ``order=7``.
    """
    ids: set[str] = set()
    words: set[str] = set()
    before = ""
    for found in _WORD.findall(lower_case(query)):
        word = found.strip(".:/-")
        if word.isdigit() and len(word) < _SHORTEST_WORD:
            ids.update(f"{before}{sign}{word}" for sign in " =-:/#" if before)
        elif any(map(str.isdigit, word)) or (len(word) > _SHORTEST_WORD and _IN_ID.search(word)):
            ids.add(word)
        elif len(word) >= _SHORTEST_WORD and word not in STOPWORDS:
            words.add(word)
        before = word
    return ids, words


def loses_asked(text: str, short: str, query: str) -> bool:
    """Tell whether an id of the question is in a text and not in its shortened form."""
    ids, _ = _asked(query)
    before, after = lower_case(text), lower_case(short)
    return any(id in before and id not in after for id in ids)


def _places(text: str, word: str) -> Iterator[int]:
    """Yield the places of a word in a text, where it is not a part of another word."""
    for at in occurrences(text, word):
        end = at + len(word)
        if not (text[at - 1 : at].isalnum() or text[end : end + 1].isalnum()):
            yield at


# --- descriptions ---------------------------------------------------------------------------------

_DESCRIBED = 40
"""The largest number of forms that are described."""


def _descriptions(
    lines: Sequence[str], forms: Sequence[_Form], gone: Sequence[bool]
) -> Iterator[str]:
    """Yield a mark for each form with many lines left out. It describes all lines of the form."""
    folded = [(sum(gone[number] for number in form.numbers), form) for form in forms]
    folded.sort(key=lambda each: -each[0])
    for count, form in folded[:_DESCRIBED]:
        looks = _look(lines, form) if count > 2 * _RARE else ""
        # A mark in a mark could not be read.
        if looks and "[… " not in looks and " …]" not in looks:
            yield like_these(len(form.numbers), looks)


def _look(lines: Sequence[str], form: _Form) -> str:
    """Describe a form by its line, with the range or the list of values in each place."""
    first, last = lines[form.numbers[0]], lines[form.numbers[-1]]
    skipped = _time_columns(first)
    out = [form.mask[0]]
    for place, column in enumerate(zip(*form.rows, strict=True)):
        out += ("#" if place in skipped else _range(column), form.mask[place + 1])
    begin, end = (_TIME.search(line, 0, _TIME_WITHIN) for line in (first, last))
    if begin is None or end is None or not skipped:
        return "".join(out).strip()
    since, until = begin[0].strip(), end[0].strip()
    # The name of a month has no digit. So it is in the mask, too.
    month = since.removesuffix(since.lstrip(ascii_letters + " "))
    before = "".join(out[: 2 * skipped.start + 1]).removesuffix(month)
    after = "".join(out[2 * skipped.stop :])
    return f"{before}{since} to {until}{after}".strip()


def _range(column: Sequence[str]) -> str:
    """Return the few values of a column, or the range of its numbers, else a mask."""
    counts = Counter(column)
    if len(counts) <= _LISTED:
        return "|".join(counts)
    numbers = _numbers(counts)
    if len(numbers) == 1:
        (values,) = numbers.values()
        if len(values) == len(counts):
            return f"{min(values, key=values.__getitem__)}..{max(values, key=values.__getitem__)}"
    return "#"
