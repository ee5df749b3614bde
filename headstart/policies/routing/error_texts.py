"""What providers write into their errors. All patterns are for lower-case text."""

from __future__ import annotations

import re
from typing import Any

import msgspec

CONTEXT = re.compile(
    r"context[ _](?:length|window|size|limit)"
    r"|maximum (?:prompt|input|model|sequence) length"
    r"|(?:prompt|input|request|conversation) (?:is |was )?too long"
    r"|too many (?:input |prompt )?tokens"
    r"|token count\b.{0,80}\bexceeds"
    r"|input tokens exceed"
    r"|tokens \+ .?max_new_tokens.? must be"
    r"|reduce the length of (?:the|your) (?:messages|prompt|input)"
)
POLICY = re.compile(
    r"content (?:management |usage )?polic|content[ _-]filter|safety system|usage polic"
    r"|responsible ?ai|content exists risk|(?:was|been|input) flagged|requires moderation"
    r"|inappropriate content|violat\w+ .{0,60}(?:polic|guidelines|terms)"
)
MODEL = re.compile(
    r"\bmodels?[ /:]\S{1,200} (?:does not exist|(?:is |was )?not found|has been decommissioned)"
    r"|\b(?:invalid|unknown) model\b|\bnot a valid model\b"
    r"|do(?:es)? not have access to (?:the )?model|unable to access (?:model|non-serverless)"
)
KEY = re.compile(
    r"(?:invalid|incorrect|expired|disabled) api[ -]?key|api[ -]?key (?:is )?(?:not valid|invalid|"
    r"expired)|location is not supported"
)
PLAN = re.compile(
    r"\bplan (?:does not|doesn't|lacks)|not (?:available|included|supported) (?:on|in|for|with|by)"
    r" (?:your|the) (?:current |free )?(?:plan|tier|subscription)|\blimit: 0(?![\d.])"
)
QUOTA = re.compile(
    r"credit balance|insufficient (?:balance|credit|quota|fund)|exceeded your current quota"
    r"|out of credits|spend(?:ing)? limit|more credits|monthly (?:limit|quota)"
)
OVERLOAD = re.compile(r"overloaded|at capacity|capacity exceeded|over capacity")
TOO_LARGE = re.compile(r"request too large for model|request too large for \S+ .{0,80}tokens per")


def read_error(body: bytes) -> tuple[tuple[str, ...], str]:
    """Return the codes and the message of an error document in any dialect."""
    try:
        document: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return (), ""
    if isinstance(document, list) and document:
        document = document[0]
    error = document.get("error", document) if isinstance(document, dict) else document
    if not isinstance(error, dict):
        return (), error if isinstance(error, str) else ""
    codes = tuple(
        str(error[name])
        for name in ("code", "type", "status")
        if isinstance(error.get(name), str | int)
    )
    message = error.get("message", error.get("detail"))
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        # Gemini's ErrorInfo.
        if isinstance(detail, dict) and isinstance(detail.get("reason"), str):
            codes = (*codes, detail["reason"])
    return codes, message if isinstance(message, str) else ""
