"""Does a draft's own arithmetic hold? Equations between numbers are the one claim that is checked.

A judge that needs no second model: on real drafts for GSM8K, most of those with a wrong equation
have a wrong answer (``docs/cascade.md``).
"""

from __future__ import annotations

import re

_READ = 8000
"""Characters of a draft that are searched."""
_MOST_EQUATIONS = 50
_SIGNS = str.maketrans(
    {"\N{MULTIPLICATION SIGN}": "*", "\N{DIVISION SIGN}": "/", "\N{MINUS SIGN}": "-"}
)
_NUMBER = r"\$?\d{1,15}(?:,\d{3})*(?:\.\d{1,10})?"
_OPERATOR = "[-+*/x]"
_EQUATION = re.compile(
    rf"""
    (?<![\w.)%^=+*/-])(?<![=+*/x-]\s)
    (?P<left>{_NUMBER}(?:\s?{_OPERATOR}\s?{_NUMBER}){{1,8}})
    \s?=\s?
    (?P<right>-?{_NUMBER})
    (?![\w%/]|[.,]\d|\s?[-+*/x(^])
    """,
    re.VERBOSE,
)
_TERM = re.compile(rf"({_OPERATOR})?\s?\$?([\d,]+(?:\.\d+)?)")
_RELATIVE_TOLERANCE = 0.006
"""Answers round their intermediate results."""


def has_wrong_equation(text: str) -> bool:
    """Tell whether ``text`` holds an equation of numbers such as ``16 - 3 = 12`` that is wrong.

    Sums, differences, products and quotients without brackets; rounded results pass. Quick, as no
    more than the beginning of a long text is read.
    """
    found = _EQUATION.finditer(text[:_READ].translate(_SIGNS))
    return any(_is_wrong(match) for match, _ in zip(found, range(_MOST_EQUATIONS), strict=False))


def _is_wrong(equation: re.Match[str]) -> bool:
    value = _evaluate(equation["left"])
    if value is None:
        return False
    right = equation["right"].replace("$", "").replace(",", "")
    decimals = len(right.partition(".")[2])
    tolerance = max(0.51 * 10.0**-decimals, _RELATIVE_TOLERANCE * abs(value))
    return abs(value - float(right)) > tolerance


def _evaluate(text: str) -> float | None:
    """Return the value of a chain of operations, or None for a division by zero."""
    terms = [0.0]
    for operator, digits in _TERM.findall(text):
        number = float(digits.replace(",", ""))
        if operator in ("*", "x"):
            terms[-1] *= number
        elif operator == "/":
            if number == 0:
                return None
            terms[-1] /= number
        else:
            terms.append(-number if operator == "-" else number)
    return sum(terms)
