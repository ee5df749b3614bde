"""The review page in a real browser, before a real sidecar."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from support.administered import CHATGPT, NEGATED
from support.browser import CHROMIUM, PATIENCE_MS, chromium
from support.remote import Remote, remote

if TYPE_CHECKING:
    from collections.abc import Iterator


TOKEN = "secret-token"
MARKUP = '<img src="x" onerror="document.title = \'owned\'"><b>Tea &amp; toast</b>'
VETOED = (NEGATED, "How can I sign up for 3 ChatGPT accounts?")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


class Site:
    """A sidecar, and a browser's page of it that keeps what went wrong."""

    def __init__(self, sidecar: Remote, page: Page) -> None:
        self.sidecar = sidecar
        self.page = page
        self.errors: list[str] = []
        self.posted: list[Any] = []
        self.requested: set[str] = set()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda line: self.errors.append(line.text))
        page.on("request", self._note)

    def _note(self, request: Request) -> None:
        self.requested.add(request.url)
        if request.method == "POST":
            self.posted.append(request.post_data_json)

    def open(self, token: str = TOKEN) -> None:
        self.page.goto(self.sidecar.url + "/_headstart/review/page")
        self.enter(token)

    def enter(self, token: str) -> None:
        self.page.fill("#token", token)
        self.page.press("#token", "Enter")

    def see(self, selector: str, text: str | re.Pattern[str]) -> None:
        """Wait until an element says so."""
        expect(self.page.locator(selector)).to_have_text(text, timeout=PATIENCE_MS)

    def question(self) -> str:
        """Return the question that was asked, of the pair shown."""
        shown = self.page.locator("#asked .question")
        expect(shown).to_be_visible(timeout=PATIENCE_MS)
        return shown.inner_text()


@contextlib.contextmanager
def opened(browser: Browser, *, match: str = "verified", dark: bool = False) -> Iterator[Site]:
    """Run a sidecar whose provider answers everything with markup."""
    with remote(MARKUP, token_env="ADMIN_TOKEN", token=TOKEN, match=match) as sidecar:
        page = browser.new_page(color_scheme="dark" if dark else "light")
        try:
            yield Site(sidecar, page)
        finally:
            page.close()


@pytest.fixture
def site(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A sidecar with two pairs to review: guards kept a stored answer from both questions."""
    monkeypatch.setenv("ADMIN_TOKEN", TOKEN)
    with opened(browser) as site:
        site.sidecar.ask_first(CHATGPT)
        for prompt in VETOED:
            site.sidecar.ask(prompt)
        site.sidecar.until(lambda: len(site.sidecar.admin("review")) == len(VETOED))
        yield site


def test_the_token_is_asked_for_once(site: Site) -> None:
    site.open("wrong")
    site.see("#message", "This token is not accepted.")
    expect(site.page.locator("#pair")).to_be_hidden()
    site.enter(TOKEN)
    first = site.question()
    site.page.reload()
    assert site.question() == first
    expect(site.page.locator("#login")).to_be_hidden()
    assert not any(TOKEN in url for url in site.requested)


def test_each_key_labels_a_pair_and_shows_the_next(site: Site) -> None:
    site.open()
    first = site.question()
    site.page.keyboard.press("d")
    site.see("#count", "1")
    second = site.question()
    site.page.keyboard.press("s")
    site.see("#count", "2")
    site.see("#message", re.compile("^Nothing is left to review"))
    expect(site.page.locator("#pair")).to_be_hidden()
    assert {first, second} == set(VETOED)
    assert [label["same"] for label in site.posted] == [False, True]
    assert site.sidecar.admin("review") == []


def test_the_buttons_do_as_the_keys(site: Site) -> None:
    site.open()
    site.question()
    site.page.click("#same")
    site.see("#count", "1")
    site.page.click("#different")
    site.see("#count", "2")
    assert [label["same"] for label in site.posted] == [True, False]


def test_skipped_pairs_are_not_labelled(site: Site) -> None:
    site.open()
    first = site.question()
    site.page.keyboard.press("u")
    expect(site.page.locator("#asked .question")).not_to_have_text(first)
    site.page.keyboard.press("ArrowRight")
    site.see("#message", re.compile("2 skipped"))
    assert site.posted == []
    assert len(site.sidecar.admin("review")) == 2


def test_a_browsers_own_shortcut_labels_nothing(site: Site) -> None:
    site.open()
    first = site.question()
    site.page.keyboard.press("Control+d")
    site.page.keyboard.press("Alt+s")
    site.page.keyboard.press("u")
    expect(site.page.locator("#asked .question")).not_to_have_text(first)
    assert site.posted == []


def test_a_label_that_is_refused_leaves_the_pair(site: Site) -> None:
    site.open()
    first = site.question()
    site.page.route("**/review", lambda route: route.abort())
    site.page.keyboard.press("s")
    site.see("#message", "The server does not answer. Try again.")
    assert site.question() == first
    site.see("#count", "0")


def test_a_pair_shows_what_is_known_of_it(site: Site) -> None:
    site.open()
    asked = site.question()
    (pair,) = (pair for pair in site.sidecar.admin("review") if pair["asked"]["question"] == asked)
    site.see("#stored .question", pair["stored"]["question"])
    site.see("#similarity", f"{pair['similarity']:.3f}")
    site.see("#score", f"{pair['score']:.2f}")
    site.see("#veto", pair["veto"])
    site.see("#judged", {True: "same", False: "different", None: "unsure"}[pair["judged"]])


def test_words_that_differ_are_marked(site: Site) -> None:
    site.open()
    while site.question() != VETOED[0]:
        site.page.keyboard.press("u")
    expect(site.page.locator("#asked .question mark")).to_have_text(["not"])
    expect(site.page.locator("#stored .question mark")).to_have_count(0)
    expect(site.page.locator(".answer mark")).to_have_count(0)


def test_markup_in_an_answer_is_shown_as_text(site: Site) -> None:
    site.open()
    site.see("#asked .answer", MARKUP)
    site.see("#stored .answer", MARKUP)
    expect(site.page.locator("main img, main b")).to_have_count(0)
    expect(site.page).to_have_title("Headstart review")


def test_the_page_asks_no_other_site_and_breaks_no_rule_of_its_own(site: Site) -> None:
    site.open()
    site.question()
    assert all(url.startswith((site.sidecar.url, "data:,")) for url in site.requested)
    assert [line for line in site.errors if "401" not in line] == []


@pytest.mark.parametrize(
    ("dark", "paper"), [(False, "rgb(249, 249, 247)"), (True, "rgb(13, 13, 13)")]
)
def test_the_page_follows_the_readers_colours(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, dark: bool, paper: str
) -> None:
    monkeypatch.setenv("ADMIN_TOKEN", TOKEN)
    with opened(browser, match="static", dark=dark) as site:
        site.open()
        site.see("#message", re.compile("nothing is learned here"))
        expect(site.page.locator("body")).to_have_css("background-color", paper)
