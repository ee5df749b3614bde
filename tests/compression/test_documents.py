from __future__ import annotations

import pytest

from headstart.compression.selection import find_documents


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ("Read this.\n<document>\nbody\n</document>\nWhy?", ["body"]),
        ('<context source="a">\nbody\n</context>', ["body"]),
        (
            "<documents>\n<document>\na\n</document>\n<document>\nb\n</document>\n</documents>\nWhy?",
            ["<document>\na\n</document>\n<document>\nb\n</document>"],
        ),
        ("<doc>\na\n</doc>\nand\n<doc>\nb\n</doc>", ["a", "b"]),
        ("<doc>\na <doc>\n<doc>\nb\n</doc>\n</doc>", ["a <doc>\n<doc>\nb\n</doc>"]),
        (
            "Answer.\n\nDocument [1](Title: A) a.\nDocument [2](Title: B) b.\n\nQuestion: why?",
            ["Document [1](Title: A) a.\nDocument [2](Title: B) b."],
        ),
        ("[… 9 sentences omitted …]\nDocument [7] a", ["Document [7] a"]),
        ("Document [1] a\nDocument [2] b", ["Document [1] a\nDocument [2] b"]),
        ("Context:\na\n\nb\n\nQuestion: why?", ["a\n\nb"]),
        ("## Search results:\na\nContext:\nb\nUser question: why?", ["a\nContext:\nb"]),
        (
            "Context:\nDocument [1] a\nDocument [2] b\nQuestion: why?",
            ["Document [1] a\nDocument [2] b"],
        ),
    ],
)
def test_documents_are_found_where_their_border_is_explicit(
    text: str, documents: list[str]
) -> None:
    assert [text[place.start : place.end] for place in find_documents(text)] == documents


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Here is my letter:\n\nDear Ada, ...",
        "Context:\nno question follows",
        "<document>\nnever closed",
        "</document>\nnever opened",
        "Say <document>a</document> within a line",
        "Document [1] alone",
        "Question: why?",
        "<mine>\nbody\n</mine>",
    ],
)
def test_all_else_is_the_users_own(text: str) -> None:
    assert find_documents(text) == []
