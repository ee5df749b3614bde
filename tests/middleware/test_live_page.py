"""The live page in a real browser, before a real sidecar."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser, Page, expect
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from headstart import AdminApp, Endpoint, HeadstartMiddleware
from headstart.config.loading import load_settings
from headstart.lab.simulator import Simulator
from headstart.lab.simulator.faults import Status
from headstart.sidecar import build_sidecar
from support.administered import CHATGPT, NEGATED
from support.browser import CHROMIUM, PATIENCE_MS, chromium
from support.remote import remote
from support.serving import serving_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from starlette.requests import Request as StarletteRequest

TOKEN = "secret-token"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page on which an error, or a request to another host, is a failure."""
    opened = browser.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda line: errors.append(line.text))
    yield opened
    opened.close()
    # The browser itself reports each 401.
    assert not [each for each in errors if "401 (Unauthorized)" not in each]


def see(page: Page, selector: str, text: str) -> None:
    expect(page.locator(selector)).to_have_text(text, timeout=PATIENCE_MS)


def test_the_page_follows_the_traffic_filters_and_explains(page: Page) -> None:
    with remote(match="verified") as sidecar:
        sidecar.ask_first(CHATGPT)
        page.goto(sidecar.url + "/")  # leads to the page
        see(page, "#hits", "0.0 %")
        expect(page.locator("#tag option")).to_have_text(["all"])
        vetoed = sidecar.ask(NEGATED)
        sidecar.ask(CHATGPT, tags="billing,other")
        see(page, "#hits", "33.3 %")
        rows = page.locator("#requests tbody tr")
        expect(rows).to_have_count(3)
        expect(rows.nth(0)).to_contain_text("exact hit")
        expect(rows.nth(1)).to_contain_text("negation")
        page.locator(f'button[data-id="{vetoed}"]').click()
        expect(page.locator("#details")).to_contain_text("negation", timeout=PATIENCE_MS)
        page.keyboard.press("Escape")
        expect(page.locator("#details")).to_be_hidden()
        for name, value, count in (
            ("model", "m", 3),
            ("endpoint", "/v1/chat/completions", 3),
            ("tag", "billing", 1),
        ):
            page.select_option(f"#{name}", value)
            expect(rows).to_have_count(count, timeout=PATIENCE_MS)
        see(page, "#hits", "100.0 %")
        assert CHATGPT not in page.content()
        page.goto("about:blank")


def test_a_view_has_an_address_and_is_readable_on_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    with remote() as sidecar:
        page.goto(sidecar.url + "/_headstart/#config")
        body = page.locator("#details-body")
        expect(body).to_contain_text('"max_body_bytes": ', timeout=PATIENCE_MS)
        assert page.evaluate("document.querySelector('#details').scrollWidth") <= 390
        page.click("#close")
        # A closed view leaves the address.
        expect(page).to_have_url(sidecar.url + "/_headstart/", timeout=PATIENCE_MS)
        see(page, "#hits-note", "no request")
        see(page, "#no-requests", "No request since the server started.")
        page.click("text=What was learned")
        expect(body).to_have_text("Nothing yet.", timeout=PATIENCE_MS)
        page.go_back()
        expect(page.locator("#details")).to_be_hidden(timeout=PATIENCE_MS)
        id = sidecar.ask(CHATGPT, tags="billing,other")
        page.locator(f'button[data-id="{id}"]').click()
        expect(body).to_contain_text("billing, other", timeout=PATIENCE_MS)
        page.click("#close")
        sidecar.ask(CHATGPT)
        page.click("text=What was learned")
        expect(body).to_contain_text(
            "share of wrong hits that is accepted2.0 %", timeout=PATIENCE_MS
        )
        page.goto("about:blank")


def test_an_audit_of_an_exact_hit_is_a_null_audit(page: Page) -> None:
    # Nothing is missing there, as the bare word "null" would say.
    always: Any = {"audit.mode": "background", "audit.null_rate": 1.0}
    with remote(**always) as sidecar:
        sidecar.ask_first(CHATGPT)
        sidecar.ask(CHATGPT)
        page.goto(f"{sidecar.url}/")
        audit = page.locator("#requests tbody tr", has_text="audit")
        expect(audit).to_have_count(1, timeout=PATIENCE_MS)
        expect(audit.locator("td").nth(2)).to_have_text("null audit")
        page.goto("about:blank")


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_the_page_says_of_which_zone_its_times_are(browser: Browser, zone: str) -> None:
    with (
        browser.new_context(timezone_id=zone, locale="en-GB") as context,
        remote(match="verified") as sidecar,
    ):
        page = context.new_page()
        sidecar.ask_first(CHATGPT)
        page.goto(f"{sidecar.url}/")
        expect(page.locator("#axis")).to_contain_text(f"times of {zone}", timeout=PATIENCE_MS)


def test_the_limits_of_callers_are_shown(page: Page, tmp_path: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    limits = {"team-a": {"usd_per_day": 0.5, "tokens_per_month": 1000}}
    with serving_in_thread(Simulator(), lifespan="off") as provider:
        price = {"default": {"input_per_million": 1.0, "output_per_million": 1000.0}}
        settings = load_settings(
            None,
            {},
            {
                "server.client_keys": {"team-a": "key-of-a"},
                "server.client_limits": limits,
                "cache.mode": "exact-only",
                "cache.store": f"sqlite:///{tmp_path / 'store.db'}",
                "upstream": [{"name": "sim", "base_url": f"{provider}/v1", "price": price}],
            },
        )
        with serving_in_thread(build_sidecar(settings)) as url:
            body = {
                "model": "m",
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 450,
            }
            headers = {"authorization": "Bearer key-of-a", "content-type": "application/json"}
            asked = Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
            with urlopen(asked) as answer:
                assert answer.status == 200
            page.goto(url + "/")
            rows = page.locator("#limits tbody tr")
            expect(rows).to_have_count(2, timeout=PATIENCE_MS)
            expect(rows.nth(0)).to_contain_text("team-ausd_per_day$")
            expect(rows.nth(0)).to_contain_text("$0.5")
            expect(rows.nth(1)).to_contain_text("tokens_per_month")
            assert page.evaluate("document.documentElement.scrollWidth") == 390
            page.goto("about:blank")


def test_a_provider_whose_calls_all_fail_is_not_called_ready(page: Page) -> None:
    """Its circuit breaker lets a call pass from time to time; it is "ready" then."""
    with (
        serving_in_thread(Simulator(fault=Status(status=500)), lifespan="off") as broken,
        serving_in_thread(Simulator(), lifespan="off") as sound,
    ):
        price = {"default": {"input_per_million": 1.0, "output_per_million": 1000.0}}
        settings = load_settings(
            None,
            {},
            {
                "cache.mode": "exact-only",
                "cache.store": "memory:",
                "upstream": [
                    {"name": "broken", "base_url": f"{broken}/v1"},
                    {"name": "sound", "base_url": f"{sound}/v1", "price": price},
                ],
                "route": [
                    {"name": "all", "strategy": "fallback", "upstreams": ["broken", "sound"]}
                ],
            },
        )
        with serving_in_thread(build_sidecar(settings)) as url:
            body = {"model": "m" + "-long" * 40, "messages": [{"role": "user", "content": "hi"}]}
            for key in ("sk-first", "sk-other"):
                headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
                asked = Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
                with urlopen(asked) as answer:
                    assert answer.status == 200
            page.goto(url + "/")
            rows = page.locator("#upstreams tbody tr")  # keys in the same state share a row
            expect(rows).to_have_count(2, timeout=PATIENCE_MS)
            expect(rows.nth(0)).to_contain_text("broken m")
            expect(rows.nth(0)).not_to_contain_text("ready")
            expect(rows.nth(0).locator(".bad")).to_have_count(1)
            expect(rows.nth(1)).to_contain_text("ready")
            expect(rows.nth(1)).to_contain_text("(2 keys)")
            expect(rows.nth(1)).to_contain_text("$0.")
            assert page.locator("#upstreams thead").inner_text().count("cost a call") == 1
            for name in ("#upstreams", "#requests"):  # a long name pushes no column out of view
                fits = "each => each.scrollWidth <= each.clientWidth"
                assert page.locator(f".scroll:has({name})").evaluate(fits)
            expect(page.locator("#key")).to_contain_text(re.compile("highest bar [12] in"))
            page.goto("about:blank")


def test_the_token_is_asked_for_and_the_width_of_a_phone_is_enough(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMIN_TOKEN", TOKEN)
    page.set_viewport_size({"width": 390, "height": 800})
    with remote(token_env="ADMIN_TOKEN", token=TOKEN) as sidecar:
        sidecar.ask(CHATGPT)
        page.goto(sidecar.url + "/_headstart/")
        see(page, "#message", "This server asks for its admin token.")
        page.fill("#token", TOKEN)
        page.press("#token", "Enter")
        see(page, "#hits", "0.0 %")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.goto("about:blank")


def test_the_page_works_under_any_path_of_an_app(page: Page) -> None:
    async def answer(request: StarletteRequest) -> JSONResponse:
        return JSONResponse({"answer": (await request.json())["question"]})

    admin = AdminApp()
    mounted = Mount("/in/headstart", app=admin)
    app = Starlette(routes=[Route("/ask", answer, methods=["POST"]), mounted])
    endpoints = [Endpoint("/ask", prompt="question")]
    app.add_middleware(HeadstartMiddleware, endpoints=endpoints, admin=admin)
    with serving_in_thread(app) as url:

        def ask() -> str:
            body, headers = b'{"question": "How are you?"}', {"authorization": "Bearer me"}
            with urlopen(Request(f"{url}/ask", body, headers)) as reply:
                return str(reply.headers["x-headstart-request-id"])

        id = ask()
        page.goto(f"{url}/in/headstart/")
        page.locator(f'button[data-id="{id}"]').click()
        expect(page.locator("#details")).to_contain_text("miss", timeout=PATIENCE_MS)
        page.keyboard.press("Escape")
        ask()
        see(page, "#hits", "50.0 %")
        see(page, "#money-note", "an app has no price")
        see(page, "#no-upstreams", "The wrapped app answers. Headstart calls no provider.")
        page.click("text=Review doubtful pairs")
        expect(page).to_have_title("Headstart review", timeout=PATIENCE_MS)
        page.goto("about:blank")
