"""What is about one person: wording and data that must not be shared by likeness among users."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_DONE = (
    r"made|did|placed|ordered|bought|purchased|paid|sent|received|got|booked|cancell?ed|returned"
    r"|requested|submitted|applied|added|deposited|withdrew|transferred|lost|owed?|earn(?:ed)?"
    r"|signed|registered|subscribed"
)
_WORDING = re.compile(
    r"\b(?:my|mine|our|ours|me|myself|ourselves|us"
    r"|(?:i|we)(?:['\u2019](?:m|ve|d|ll|re)| am| are| have| had| was| were)"
    rf"|(?:i|we) (?:just |already |recently |never |still )?(?:{_DONE})"
    r"|(?:am|are|have|had|was|were|did|do|will) (?:i|we) (?:have|owe|get|earn|been|still|\w+ed))\b",
    re.IGNORECASE,
)
_EMAIL = re.compile(r"[\w.+-]@[\w-]+\.\w")
_PHONE = re.compile(
    r"(?<![\w.+])(?<!\d[ -])"
    r"(?:(?:\+|00)\d(?:[ ().-]{0,2}\d){7,13}"
    r"|\(?\d{3}\)?[ .-]\d{3}[ .-]\d{4}"
    r"|0\d{2,4}[ -]\d{3,4}[ -]?\d{3,4})(?!\w)"
)
_REFERENCE = re.compile(
    r"(?:#|\b(?:order|ticket|case|invoice|booking|reservation|tracking|customer|account|member"
    r"|policy|claim|reference|ref|confirmation)\s*(?:number|no\.?|id|code|#)?\s*[:#]?\s*)"
    r"(?=[a-z0-9-]*\d[a-z0-9-]*\d[a-z0-9-]*\d)[a-z0-9-]{4,}\b"
    r"|\b[A-Z]{2,5}-\d{4,}\b",
    re.IGNORECASE,
)
_CARD = re.compile(r"(?<![\d-])\d(?:[ -]?\d){12,18}(?![\d-])")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}\b", re.IGNORECASE)
_CARD_BASE, _SHORTEST_CARD = 10, 13
_IBAN_BASE, _SHORTEST_IBAN = 97, 15


def is_personal(text: str) -> bool:
    """Does the text speak of its writer, or hold what identifies a person?

    Wide on purpose where users share answers: a miss costs a call, a wrong hit tells one user
    what is another's.
    """
    return _WORDING.search(text) is not None or holds_identity(text)


def holds_identity(text: str) -> bool:
    """Does the text hold an address, phone, card or bank number, or a reference of a case?"""
    if "@" in text and _EMAIL.search(text):
        return True
    if not any(map(str.isdigit, text)):
        return False
    return bool(
        _PHONE.search(text)
        or _REFERENCE.search(text)
        or any(_is_card(digits) for digits in _beginnings(_CARD, text))
        or any(_is_iban(number) for number in _beginnings(_IBAN, text))
    )


def _beginnings(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    """Yield each match, without its last group, and so on: the next word may look like a group."""
    for match in pattern.finditer(text):
        groups = re.split(r"[ -]", match[0])
        yield from ("".join(groups[:count]) for count in range(len(groups), 0, -1))


def _is_card(digits: str) -> bool:
    """Luhn's check (ISO/IEC 7812-1): from the right, every second digit counts double."""
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    total = sum(map(int, digits[-1::-2])) + sum(doubled)
    return len(digits) >= _SHORTEST_CARD and total % _CARD_BASE == 0


def _is_iban(number: str) -> bool:
    """ISO 13616: moved to the end, the first four characters make the remainder by 97 be 1."""
    moved = "".join(str(int(each, 36)) for each in number[4:] + number[:4])
    return len(number) >= _SHORTEST_IBAN and int(moved) % _IBAN_BASE == 1
