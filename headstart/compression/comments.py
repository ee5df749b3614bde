"""Python without its comments, line for line the same code."""

from __future__ import annotations

import io
import re
import tokenize

_KEPT = re.compile(r"#!|#.*coding[:=]|#\s*type:")
"""Comments that change what the code means."""
_LAYOUT = frozenset((tokenize.COMMENT, tokenize.NL))


def strip_comments(text: str) -> str:
    """Return Python source without comments; ``text`` itself where it is anything else.

    Lines keep their numbers: where a comment stood alone its line is empty. The tokens that are
    left are compared with those of ``text``, so the code is the same, docstrings included.
    """
    try:
        tokens = list(_tokens(text))
    except (tokenize.TokenError, SyntaxError):
        return text
    lines = io.StringIO(text).readlines()
    for token in tokens:
        if token.type == tokenize.COMMENT and not _KEPT.match(token.string):
            row, column = token.start
            line = lines[row - 1]
            ending = line[len(line.rstrip("\r\n")) :]
            lines[row - 1] = line[:column].rstrip() + ending
    stripped = "".join(lines)
    return stripped if stripped == text or _says_the_same(stripped, tokens) else text


def _says_the_same(stripped: str, tokens: list[tokenize.TokenInfo]) -> bool:
    try:
        left = _code(list(_tokens(stripped)))
    except (tokenize.TokenError, SyntaxError):
        return False
    return left == _code(tokens)


def _code(tokens: list[tokenize.TokenInfo]) -> list[tuple[int, str]]:
    return [(token.type, token.string) for token in tokens if token.type not in _LAYOUT]


def _tokens(text: str) -> list[tokenize.TokenInfo]:
    found = list(tokenize.generate_tokens(io.StringIO(text).readline))
    if any(token.type == tokenize.ERRORTOKEN for token in found):
        raise SyntaxError("not Python")
    return found
