from __future__ import annotations

import pytest

from headstart.compression.html_text import html_to_text, is_html

PAGE = """<!DOCTYPE html>
<html><head><title>A &amp; B</title><style>p { color: red }</style></head>
<body><!-- <p>hidden</p> --><script>if (a < b) { "</p>" }</script>
<h2>Prices</h2><p>One   <b>bold</b>
word &lt;3.</p><ul><li>first</li><li>second</li></ul>
<table><tr><td>a</td><td>b</td></tr></table><img src="x.png" alt="a chart"><img src="y.png">
<pre>  keep
    this</pre><svg><path d="M0"/></svg></body></html>"""


def test_a_page_becomes_what_its_reader_sees() -> None:
    text = html_to_text(PAGE)
    assert text is not None
    assert text.split("\n") == [
        "[HTML as text]",
        "A & B",
        "## Prices",
        "One bold word <3.",
        "- first",
        "- second",
        " | a | b",
        "[image: a chart]",
        "  keep",
        "    this",
    ]


@pytest.mark.parametrize(
    "text",
    [
        PAGE,
        "<html><body>x",
        '<?xml version="1.0"?>\n<!doctype html>',
        "<div><p>a</p></div>" * 5,
        "<div class='c'><a href=/x data-id=\"3\">a</a><br/></div>" * 9,
    ],
)
def test_pages_and_parts_of_pages_are_html(text: str) -> None:
    assert is_html(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Use <p> for a paragraph.",
        "<p>one</p>",
        "<order><line>1</line></order>" * 20,
        '<?xml version="1.0"?>' + "<section><p>a</p></section>" * 9,
        '<table name="t" engine="InnoDB"><section from="1" to="6"/></table>' * 9,
        "<a:p><a:r>text</a:r></a:p>" * 9,
    ],
)
def test_mentions_of_tags_and_other_markup_are_not(text: str) -> None:
    assert not is_html(text)


@pytest.mark.parametrize(
    "text", ["<html><!-- open", "<html><script>open", "<html>" + "<a " * 100, "<html><![<p>"]
)
def test_broken_markup_is_left_alone(text: str) -> None:
    assert html_to_text(text) is None


def test_a_page_without_a_title_has_none() -> None:
    assert html_to_text("<html><p>x</pre></html>") == "[HTML as text]\nx"
