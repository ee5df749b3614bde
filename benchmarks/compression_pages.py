"""Seeded web pages as sites write them, with questions whose answers are known."""

# ruff: noqa: E501, S608 - markup reads best in one line; a "select" of a form is no SQL

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

Asked = tuple[str, tuple[str, ...], tuple[str, ...], str]
"""The words, what the answer needs, what would be a wrong fact, and the topic of a question."""

_SCRIPT = "<script>window.dataLayer=window.dataLayer||[];function gtag(){dataLayer.push(arguments)}</script>"
_STYLE = "<style>.a{color:#123}.card{display:flex;padding:4px}.x>li{margin:0}</style>"
_TEXT = (
    "The workshop opens at nine and closes at six. Visitors may bring their own tools.",
    "Every order is packed by hand and leaves the house within two working days.",
    "Members of the association meet in the old town hall, where coffee is served.",
    "The report was written by a group of engineers from four different countries.",
)


def page(rng: Random) -> tuple[str, list[Asked]]:
    """Return a page of any kind, and the questions about it."""
    return rng.choice((_shop, _news, _science, _search, _checkout, _plan, _docs))(rng)


def _near(*parts: object) -> str:
    """Return a pattern of these literals near one another, in order, also on the next lines."""
    return "(?s)" + r".{0,160}?".join(rf"(?<!\w){re.escape(str(part))}(?!\w)" for part in parts)


def _frame(rng: Random, title: str, head: str, body: str) -> str:
    nav = "".join(
        f'<li class="nav-item"><a class="nav-link" href="/{name.lower()}">{name}</a></li>'
        for name in ("Home", "Products", "Blog", "About")
    )
    filler = "".join(
        f'<div class="card card-{n}" data-track="t{n}"><p class="a">{rng.choice(_TEXT)}</p></div>\n'
        for n in range(rng.randint(4, 14))
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width">{head}{_STYLE}{_SCRIPT}</head>\n'
        f'<body class="page"><header><nav aria-label="Main"><ul class="x">{nav}</ul></nav></header>\n'
        f"<main>{body}</main>\n<aside>{filler}</aside>\n"
        f'<footer><p>&copy; 2025</p><a href="/imprint">Imprint</a></footer>{_SCRIPT}</body></html>'
    )


def _shop(rng: Random) -> tuple[str, list[Asked]]:
    was, now = rng.randint(60, 199), rng.randint(20, 59)
    sku, rating, stock = (
        f"SKU-{rng.randint(1000, 9999)}",
        rng.randint(31, 49) / 10,
        rng.randint(2, 9),
    )
    phone = f"+49 30 {rng.randint(100000, 999999)}"
    manual = f"/files/manual-{rng.randint(100, 999)}.pdf"
    brand = rng.choice(("Nordwand", "Kestrel", "Aurum"))
    data = {
        "@context": "https://schema.org",
        "@type": "Product",
        "name": "Trail Boot",
        "sku": sku,
        "brand": {"@type": "Brand", "name": brand},
        "offers": {"@type": "Offer", "price": str(now), "priceCurrency": "USD"},
    }
    chosen = rng.choice(("40", "41", "42", "43"))
    sizes = "".join(
        f'<option value="{n}"{" selected" if n == chosen else ""}>{n}</option>'
        for n in ("40", "41", "42", "43")
    )
    old = rng.choice(("del", "s"))
    body = (
        f'<h1>Trail Boot</h1><div class="price"><{old}>${was}</{old}><ins>${now}</ins></div>'
        f'<span class="stars" role="img" aria-label="{rating} out of 5"></span>'
        f'<form action="/cart/add" method="post"><input type="hidden" name="sku" value="{sku}">'
        f'<label>Size <select name="size">{sizes}</select></label>'
        f'<label>Pieces <input type="number" name="qty" value="{stock}" max="{stock}"></label>'
        f'<button type="submit">Add to cart</button></form>'
        f'<p>Questions? <a href="tel:{phone.replace(" ", "")}">Call us</a> or <a href="mailto:help@boots.example">write</a>.</p>'
        f'<p><a href="{manual}">Manual</a></p><img src="/b.jpg" alt="A brown boot from the side">'
    )
    head = (
        f'<meta name="description" content="Waterproof boot with a sole of {brand} rubber.">'
        f'<script type="application/ld+json">{json.dumps(data)}</script>'
    )
    return _frame(rng, "Trail Boot", head, body), [
        ("What does it cost now?", (rf"\${now}(?!\d)",), (rf"\${was}\${now}",), "price"),
        (
            "What did it cost before?",
            (rf"\${was}(?!\d)",),
            (rf"(?<!was: )(?<!<del>)(?<!<s>)\${was}\s*\${now}",),
            "deletion",
        ),
        ("How do buyers rate it?", (_near(f"{rating} out of 5"),), (), "attribute"),
        (
            "Which size is chosen?",
            (
                rf'(?i)(?:\*\s*{chosen}|{chosen}\W{{0,3}}(?:selected|\*|✓|\(x\))|selected\W{{0,3}}{chosen}|\[x\]\s*{chosen}|"{chosen}" selected)',
            ),
            (),
            "form state",
        ),
        ("Where is the order sent to?", (_near("/cart/add"),), (), "form state"),
        ("How many pieces are filled in?", (rf"qty\b[^\n]{{0,40}}\b{stock}\b",), (), "form state"),
        ("How do I reach support by phone?", (re.escape(phone.replace(" ", "")),), (), "link"),
        ("How can I send them a message?", (r"help@boots\.example",), (), "link"),
        ("Where do I find the manual?", (_near(manual.strip("/")),), (), "link"),
        ("What is the article number?", (_near(sku),), (), "structured data"),
        ("Which brand is it?", (_near(brand),), (), "structured data"),
    ]


def _news(rng: Random) -> tuple[str, list[Asked]]:
    day, hour = f"2025-11-{rng.randint(10, 28)}", f"{rng.randint(10, 19)}:30"
    author = rng.choice(("Ada Hale", "Ben Okoro", "Clara Wu"))
    items = [
        (f"/news/{rng.randint(1000, 9999)}-{n}", f"Headline number {n}")
        for n in range(rng.randint(4, 9))
    ]
    votes = rng.randint(100, 900)
    data = {
        "@type": "NewsArticle",
        "headline": "Bridge opens",
        "datePublished": f"{day}T{hour}:00+01:00",
        "author": {"name": author},
    }
    body = (
        f'<article><h1>Bridge opens</h1><time datetime="{day}T{hour}:00+01:00">last week</time>'
        f'<p>{rng.choice(_TEXT)}</p><p>The council voted with {votes}<sup><a href="#f2">2</a></sup> in favour.</p>'
        f"<p>{rng.choice(_TEXT)}</p><blockquote>Nobody believed in it.</blockquote>"
        f'<ol class="notes"><li id="f1">Minutes of the council.</li><li id="f2">Two members were absent.</li></ol></article>'
        "<section><h2>More news</h2><ul>"
        + "".join(f'<li><a href="{href}"><span>{text}</span></a></li>' for href, text in items)
        + "</ul></section>"
        '<div class="cats"><a href="/c/0">Cat 0</a><a href="/c/1">Cat 1</a></div>'
        "<noscript><p>Without scripts, read the print edition of page 7.</p></noscript>"
    )
    head = f'<script type="application/ld+json">{json.dumps(data)}</script><meta property="og:description" content="After {rng.randint(3, 9)} years of work the bridge is open.">'
    first, last = items[0], items[-1]
    return _frame(rng, "Bridge opens", head, body), [
        ("On which day was it published?", (re.escape(day),), (), "date"),
        ("Who wrote it?", (_near(author),), (), "structured data"),
        (
            "How many voted in favour?",
            (rf"(?<!\d){votes}(?!\d)",),
            (rf"(?<!\d){votes}2(?!\d)",),
            "footnote",
        ),
        ("Open the first news item.", (_near(first[0].strip("/")), _near(first[1])), (), "link"),
        ("Open the last news item.", (_near(last[0].strip("/")), _near(last[1])), (), "link"),
        ("What are the categories?", (r"Cat 0\b", r"Cat 1\b"), (r"Cat 0Cat 1",), "link"),
        ("What should people without scripts do?", (r"page 7\b",), (), "noscript"),
    ]


def _science(rng: Random) -> tuple[str, list[Asked]]:
    power, low, note = rng.randint(4, 9), rng.randint(2, 8), rng.randint(2, 9)
    mass = rng.randint(11, 99)
    words = rng.choice(("cells", "stars", "grains"))
    people = rng.randint(1000, 9000)
    body = (
        f"<h1>Methods</h1><p>The sample holds 10<sup>{power}</sup> {words}.</p>"
        f"<p>The rate is 10<sup>&minus;{low}</sup> per second at {mass} m<sup>2</sup>.</p>"
        f'<p>{rng.choice(_TEXT)}</p><p>{people}<sup><a href="#cite_note-{note}">[{note}]</a></sup> people took part.</p>'
        f"<p>CO<sub>2</sub> and H<sub>2</sub>O were measured; x<sup>n+1</sup> is the next value of x<sub>i</sub>.</p>"
        f'<p>The <abbr title="limit of detection {low}.5 ng">LOD</abbr> was kept.</p>'
        f"<dl><dt>Threshold</dt><dd>0.{mass}</dd><dt>Runs</dt><dd>{note * 7}</dd></dl>"
        f"<p>In the first version: <del>{people + 7}</del> <ins>{people}</ins> people.</p>"
        f'<ol start="{note + 3}"><li>Heat the sample.</li><li>Cool the sample.</li></ol>'
    )
    sign = r"(?:-|\u2212)"
    return _frame(rng, "Methods", "", body), [
        (
            f"How many {words} are in the sample?",
            (rf"10(?:\^|<sup>|\*\*)\W?{power}(?!\d)",),
            (rf"(?<![\d.])10\s?{power} {words}",),
            "superscript",
        ),
        (
            "What is the rate?",
            (rf"10(?:\^|<sup>|\*\*)\W?(?:{sign}|&minus;){low}(?!\d)",),
            (rf"(?<![\d.])10{sign}{low}",),
            "superscript",
        ),
        (
            "How large is the area?",
            (rf"{mass} m(?:\^|<sup>|\*\*|²)",),
            (rf"{mass} m2",),
            "superscript",
        ),
        (
            "How many people took part?",
            (rf"(?<!\d){people}(?!\d)",),
            (rf"(?<!\d){people}{note}(?!\d)",),
            "footnote",
        ),
        ("Which gases were measured?", (r"CO(?:_|<sub>|₂)", r"H(?:_|<sub>|₂)"), (), "superscript"),
        ("How is the next value written?", (r"x(?:\^|<sup>)\W?n\+1",), (r"xn\+1",), "superscript"),
        ("What is the LOD?", (rf"{low}\.5 ng",), (), "attribute"),
        ("What is the threshold?", (_near("Threshold", f"0.{mass}"),), (), "definition"),
        (
            "Which number of people was struck out?",
            (rf"(?i)(?:was|del|old|struck|~~)\W{{0,4}}{people + 7}",),
            (rf"(?<!was: )(?<!<del>)(?<!~~){people + 7}\s*{people}",),
            "deletion",
        ),
        (
            "Which number has the step of cooling?",
            (rf"{note + 4}[.)] *Cool|start=\W?{note + 3}",),
            (r"(?<!\d)2[.)] *Cool",),
            "list",
        ),
    ]


def _search(rng: Random) -> tuple[str, list[Asked]]:
    rows = [
        (f"https://site{n}.example/p?id={rng.randint(100, 999)}", f"Result {n} about boots")
        for n in range(rng.randint(6, 15))
    ]
    hits = rng.randint(1000, 90000)
    body = (
        f'<form action="/find" role="search"><input type="search" name="q" value="red boots" placeholder="Search"><button>Go</button></form>'
        f"<p>About {hits} results</p>"
        + "".join(
            f'<div class="r"><a href="{href}"><h3>{text}</h3></a><cite>{href.split("?")[0]}</cite><p>{rng.choice(_TEXT)}</p></div>'
            for href, text in rows
        )
        + '<nav><a href="/find?q=red+boots&amp;page=2" aria-label="Next page">&raquo;</a></nav>'
    )
    third = rows[2]
    return _frame(rng, "Search", "", body), [
        ("Open the third result.", (_near(third[0].split("//")[1]), _near(third[1])), (), "link"),
        (
            "Open the last result.",
            (_near(rows[-1][0].split("//")[1]), _near(rows[-1][1])),
            (),
            "link",
        ),
        (
            "How do I get to the next page?",
            (r"/find\?q=red\+boots&(?:amp;)?page=2", "Next page"),
            (),
            "link",
        ),
        ("What was searched for?", (r"red boots",), (), "form state"),
        ("How many results are there?", (rf"\b{hits}\b",), (), "value"),
    ]


def _checkout(rng: Random) -> tuple[str, list[Asked]]:
    ways = ("Standard", "Express", "Pickup")
    way = rng.choice(ways)
    news = rng.random() < 0.5
    token, street = f"{rng.getrandbits(64):016x}", f"Lindenweg {rng.randint(1, 99)}"
    total, cents = rng.randint(20, 300), rng.randint(10, 99)
    radios = "".join(
        f'<label><input type="radio" name="ship" value="{each.lower()}"{" checked" if each == way else ""}> {each}</label>'
        for each in ways
    )
    body = (
        f'<form id="pay" action="/checkout/confirm" method="POST"><input type="hidden" name="csrf" value="{token}">'
        f'<p><label for="street">Street</label><input id="street" name="street" value="{street}"></p>'
        f'<p><label for="mail">E-mail</label><input id="mail" type="email" name="mail" placeholder="you@example.org" required></p>'
        f"<fieldset><legend>Shipping</legend>{radios}</fieldset>"
        f'<label><input type="checkbox" name="news"{" checked" if news else ""}> Send me news</label>'
        f'<textarea name="note" rows="3">Ring twice</textarea>'
        f'<p>Total: <span class="sym">€</span><span class="whole">{total}</span><sup>{cents}</sup></p>'
        f'<button type="submit" disabled title="Fill in the e-mail first">Pay</button></form>'
        f'<progress value="3" max="4"></progress>'
    )
    mark = r"(?:\[x\]|\(x\)|\*|checked|✓)"
    is_on = rf"(?i)(?:{mark}[^\n]{{0,40}}Send me news|news\W{{0,4}}[^\n]{{0,12}}checked)"
    is_off = r"(?i)(?:\[ \][^\n]{0,40}Send me news|name=.?news.?>)"
    return _frame(rng, "Checkout", "", body), [
        (
            "Which shipping is chosen?",
            (rf"(?i)(?:{mark}[^\n]{{0,40}}{way}|value=.{way}.{{0,2}} checked)",),
            (),
            "form state",
        ),
        ("Will they send me news?", ((is_on if news else is_off),), (), "form state"),
        ("Which street is filled in?", (_near(street),), (), "form state"),
        ("Where does the order go?", (r"/checkout/confirm",), (), "form state"),
        ("Which token goes with the order?", (token,), (), "form state"),
        ("Why can I not pay yet?", (r"Fill in the e-mail first|required",), (), "attribute"),
        ("Can the order be sent now?", (r"(?i)disabled",), (), "form state"),
        ("What is the note to the driver?", (r"Ring twice",), (), "form state"),
        (
            "What is the total?",
            (rf"€\W?(?:</?span[^<>]*>)*{total}(?!\d)",),
            (rf"€{total}{cents}",),
            "price",
        ),
    ]


def _plan(rng: Random) -> tuple[str, list[Asked]]:
    days = ("Mon", "Tue", "Wed", "Thu")
    rows = [
        [f"{h}:00", *(f"Room {rng.randint(1, 40)}" for _ in days)]
        for h in range(8, 8 + rng.randint(4, 9))
    ]
    inner = f"<table><tr><td>Door code</td><td>{rng.randint(1000, 9999)}</td></tr></table>"
    code = re.findall(r"\d{4}", inner)[0]
    body = (
        "<h1>Plan</h1><table><caption>Rooms</caption><thead><tr><th>Time</th>"
        + "".join(f"<th>{day}</th>" for day in days)
        + "</tr></thead><tbody>"
        + "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
        + f'<tr><td>18:00</td><td></td><td colspan="2">Party</td><td>{inner}</td></tr></tbody></table>'
        f"<ul><li>Parking<ul><li>Level 2: <b>{rng.randint(10, 90)} places</b></li></ul></li></ul>"
    )
    row = rng.choice(rows)
    places = re.findall(r"<b>(\d+) places", body)[0]
    cells = r"\W+".join(map(re.escape, row))
    tags = r"(?:\W|</?t[dr]>)+".join(map(re.escape, row))
    return _frame(rng, "Plan", "", body), [
        (f"Which room is it on Tuesday at {row[0]}?", (rf"{cells}|{tags}",), (), "table"),
        (
            "Which rooms are in use first?",
            (r"(?:\W|</?t[dr]>)+".join(map(re.escape, rows[0])),),
            (),
            "table",
        ),
        ("What is the code of the door?", (_near("Door code", code),), (), "table"),
        ("How many places are on level 2?", (rf"Level 2:\W*(?:<b>)?{places} places",), (), "list"),
    ]


def _docs(rng: Random) -> tuple[str, list[Asked]]:
    version, port, wait = (
        f"{rng.randint(2, 9)}.{rng.randint(0, 20)}",
        rng.randint(2000, 9000),
        rng.randint(5, 90),
    )
    href = f"https://dl.example.org/tool-{version}.tar.gz"
    body = (
        f'<h1>Tool {version}</h1><p>Get it <a href="{href}">here</a>, or see the <a href="../changes.html">changes</a>.</p>'
        f"<pre><code>tool serve --port {port}\n    --wait {wait}s</code></pre>"
        f"<dl><dt><code>--wait</code></dt><dd>Seconds before it gives up. Default: {wait}.</dd>"
        f"<dt><code>--port</code></dt><dd>Where it listens.</dd></dl>"
        f"<p>Press <kbd>Ctrl</kbd>+<kbd>C</kbd> to stop. It needs <var>n</var> &lt; {port} files.</p>"
        f"<details><summary>Known problems</summary><p>On Windows, set <code>TOOL_TMP</code> first.</p></details>"
        f'<p>Last change: <time datetime="2025-0{rng.randint(1, 9)}-15">in spring</time></p>'
    )
    day = re.findall(r'datetime="([\d-]+)"', body)[0]
    return _frame(
        rng, f"Tool {version}", '<link rel="canonical" href="https://docs.example.org/tool/">', body
    ), [
        ("Where can I download it?", (re.escape(href),), (), "link"),
        ("Where is written what is new?", (r"\.\./changes\.html",), (), "link"),
        ("How long does it wait?", (_near("--wait", wait),), (), "definition"),
        ("How do I start it?", (rf"tool serve --port {port}\s+--wait {wait}s",), (), "value"),
        ("When was the page changed?", (re.escape(day),), (), "date"),
        ("What must be set on Windows?", (r"TOOL_TMP",), (), "value"),
        ("What is the limit of files?", (rf"n(?:</var>)? (?:<|&lt;) {port}",), (), "value"),
    ]
