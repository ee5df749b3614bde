"""Python without its comments, line for line the same code."""

from __future__ import annotations

import re
import tokenize

_KEPT = re.compile(r"#!|#.*coding[:=]|#\s*type:")
"""Comments that change what the code means."""
_NOT_PYTHON = (tokenize.TokenError, SyntaxError, UnicodeError)
_LAYOUT = frozenset((tokenize.COMMENT, tokenize.NL))


def strip_comments(text: str) -> str:
    """Return Python source without comments; ``text`` itself where it is anything else.

    Lines keep their numbers: where a comment stood alone its line is empty. The tokens that are
    left are compared with those of ``text``, so the code is the same, docstrings included.
    """
    try:
        tokens = _tokens(text)
    except _NOT_PYTHON:
        return text
    lines = text.split("\n")
    for token in tokens:
        if token.type == tokenize.COMMENT and not _KEPT.match(token.string):
            row, column = token.start
            ending = "\r" if lines[row - 1].endswith("\r") else ""
            lines[row - 1] = lines[row - 1][:column].rstrip() + ending
    stripped = "\n".join(lines)
    return stripped if stripped == text or _says_the_same(stripped, tokens) else text


def _says_the_same(stripped: str, tokens: list[tokenize.TokenInfo]) -> bool:
    try:
        left = _code(_tokens(stripped))
    except _NOT_PYTHON:
        return False
    return left == _code(tokens)


def _code(tokens: list[tokenize.TokenInfo]) -> list[tuple[int, str]]:
    return [(token.type, token.string) for token in tokens if token.type not in _LAYOUT]


def _tokens(text: str) -> list[tokenize.TokenInfo]:
    *lines, last = text.split("\n")
    found = []
    for token in tokenize.generate_tokens(iter([*(f"{line}\n" for line in lines), last]).__next__):
        if token.type == tokenize.ERRORTOKEN:  # at once: each string that never ends costs a scan
            raise SyntaxError("not Python")
        found.append(token)
    return found
