"""The preparation of a request for the cache: route rules, the named question, the memo."""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from headstart.dialects.gemini_generate import GEMINI_GENERATE
from headstart.dialects.openai_chat import OPENAI_CHAT
from headstart.errors import RequestError
from headstart.middleware.endpoints import Endpoint, EndpointTable, MatchedEndpoint
from headstart.middleware.identity import AcceptedCredentials, SharingOptions
from headstart.middleware.observers import Observers
from headstart.middleware.prepare import MEMO_BODY_BYTES, MEMO_HEADS, Prepared, Preparer
from headstart.policies.admission import Admission
from headstart.policies.freshness import Lifetimes, QuestionClass
from headstart.policies.route_rules import RouteRule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headstart.types import Scope

CHAT = "/v1/chat/completions"
PATTERN = re.compile(r"(?s).*Question: (?P<query>.+?)\s*$")
TEMPLATE = "Document: {}\nQuestion: {}"


class Caller:
    """A preparer and the requests that a test sends through it."""

    def __init__(
        self,
        *endpoints: Endpoint,
        wrapped: bool = False,
        sharing: SharingOptions | None = None,
        **options: Any,
    ) -> None:
        self.endpoints = EndpointTable((OPENAI_CHAT,), endpoints)
        self.preparer = Preparer(
            sharing or SharingOptions(wrapped=wrapped),
            Admission(),
            AcceptedCredentials(lambda: 0.0),
            secret=b"secret",
            observer=Observers(),
            **{"upstreams": lambda *_: ("up", frozenset(("up",))), **options},
        )

    def ask(
        self,
        text: str,
        headers: Mapping[str, str | bytes] | None = None,
        *,
        key: str = "k",
        **fields: Any,
    ) -> Prepared:
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
        return self.post(CHAT, body, {"authorization": key, **(headers or {})})

    def post(
        self,
        path: str,
        body: object,
        headers: Mapping[str, str | bytes],
        method: str = "POST",
        query: bytes = b"",
        peer: str = "192.0.2.1",
    ) -> Prepared:
        scope = request_scope(path, headers, method, query, peer)
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.preparer.prepare(self.endpoint(method, path), scope, sent)

    def endpoint(self, method: str, path: str) -> MatchedEndpoint:
        endpoint = self.endpoints.match(method, path.encode())
        assert endpoint is not None
        return endpoint


def request_scope(
    path: str,
    headers: Mapping[str, str | bytes],
    method: str = "POST",
    query: bytes = b"",
    peer: str = "192.0.2.1",
) -> dict[str, Any]:
    pairs = [
        (name.encode(), value if isinstance(value, bytes) else value.encode())
        for name, value in headers.items()
    ]
    return {
        "method": method,
        "path": path,
        "query_string": query,
        "headers": pairs,
        "client": (peer, 50_000),
    }


def partition(prepared: Prepared) -> str:
    assert prepared.key is not None
    return prepared.key.partition


def exact(prepared: Prepared) -> str:
    assert prepared.key is not None
    return prepared.key.exact


def test_terms_hold_the_stricter_target_of_setting_and_caller() -> None:
    caller = Caller(max_error=0.02)
    assert caller.ask("a").match_context.max_error == 0.02
    assert caller.ask("a", {"x-headstart-max-error": "1%"}).match_context.max_error == 0.01
    assert caller.ask("a", {"x-headstart-max-error": "0.5"}).match_context.max_error == 0.02


@pytest.mark.anyio
async def test_a_body_is_read_in_a_thread_and_its_caller_on_the_loop() -> None:
    threads = []

    def name_caller(_: Scope) -> str:
        threads.append(threading.get_ident())
        return "red"

    def upstreams(*_: str) -> tuple[str, frozenset[str]]:
        threads.append(threading.get_ident())
        return "up", frozenset(("up",))

    caller = Caller(sharing=SharingOptions(resolve=name_caller), upstreams=upstreams)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}]}).encode()
    endpoint, scope = caller.endpoint("POST", CHAT), request_scope(CHAT, {"authorization": "k"})
    prepared = await caller.preparer.prepare_in_thread(endpoint, scope, body)
    of_scope_function, of_reading = threads
    assert of_scope_function == threading.get_ident() != of_reading
    assert prepared.key is not None
    assert prepared.key == caller.preparer.prepare(endpoint, scope, body).key


def test_the_peer_is_checked_again_for_equal_requests() -> None:
    sharing = SharingOptions(scope="header:x-team", trusted_proxies=("10.0.0.1",))
    caller = Caller(sharing=sharing)
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    headers = {"x-team": "red"}
    for _ in range(3):
        assert caller.post(CHAT, body, headers, peer="10.0.0.1").key is not None
        assert caller.post(CHAT, body, headers, peer="10.0.0.2").bypass == "no-identity"


@pytest.mark.parametrize("listed", ["10.0.0.1", "10.0.0.0/24", "::ffff:10.0.0.1"])
def test_a_trusted_proxy_is_known_by_its_address_in_the_form_for_ipv6_too(listed: str) -> None:
    sharing = SharingOptions(scope="header:x-team", trusted_proxies=(listed,))
    caller, body = Caller(sharing=sharing), {"model": "m", "messages": []}
    found = [
        caller.post(CHAT, body, {"x-team": "red"}, peer=peer).bypass
        for peer in ("::ffff:10.0.0.1", "::ffff:10.0.1.1", "::1")
    ]
    assert found == [None, "no-identity", "no-identity"]


def test_the_users_function_is_asked_again_for_equal_requests() -> None:
    teams = {"10.0.0.1": "red"}
    caller = Caller(sharing=SharingOptions(resolve=lambda scope: teams.get(scope["client"][0])))
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    for _ in range(3):
        assert caller.post(CHAT, body, {}, peer="10.0.0.1").key is not None
        assert caller.post(CHAT, body, {}, peer="10.0.0.2").bypass == "no-identity"


def test_a_bad_target_is_refused_whatever_else_is_asked() -> None:
    with pytest.raises(RequestError, match="x-headstart-max-error"):
        Caller().ask("a", {"x-headstart-max-error": "x", "cache-control": "no-store"})


def test_a_route_sets_a_target_of_its_own_and_learns_apart() -> None:
    rules = (RouteRule("faq", headers=((b"x-app", "faq"),), max_error=0.05),)
    sharing = SharingOptions(ignore_headers=(b"x-app",))
    caller = Caller(rules=rules, max_error=0.01, learning="e1", sharing=sharing)
    other, faq = caller.ask("a"), caller.ask("a", {"x-app": "faq"})
    assert (other.match_context.max_error, faq.match_context.max_error) == (0.01, 0.05)
    assert other.match_context.domain != faq.match_context.domain
    assert exact(other) == exact(faq)
    assert other.match_context.domain != caller.ask("a", key="l").match_context.domain
    assert (
        other.match_context.domain
        != Caller(rules=rules, learning="e2").ask("a").match_context.domain
    )


def test_a_tenant_is_one_however_it_divides_its_requests() -> None:
    caller = Caller()
    tenants = {
        caller.ask("a", headers, user=user).match_context.tenant
        for headers in ({}, {"x-headstart-scope": "1"}, {"x-headstart-scope": "2"})
        for user in (None, "ann", "bob")
    }
    assert len(tenants) == 1
    assert caller.ask("a", key="l").match_context.tenant not in tenants


def test_callers_of_one_scope_are_tenants_by_their_credentials() -> None:
    caller = Caller(sharing=SharingOptions(scope="shared", anonymous=True))
    assert caller.ask("a").scope == caller.ask("a", key="l").scope
    assert caller.ask("a").match_context.tenant != caller.ask("a", key="l").match_context.tenant


def test_another_secret_names_every_scope_anew() -> None:
    caller = Caller()
    caller.ask("a")
    before = caller.ask("a")
    assert not caller.preparer.renew(b"secret")
    assert caller.ask("a") is before
    assert caller.preparer.renew(b"another")
    after = caller.ask("a")
    assert after.scope != before.scope
    assert (exact(after), partition(after)) != (exact(before), partition(before))
    assert after.match_context.tenant != before.match_context.tenant
    assert caller.preparer.renew(b"secret")
    assert caller.ask("a").key == before.key


def test_a_repeat_is_known_by_who_asks_and_what() -> None:
    caller = Caller(rules=(RouteRule("chat", model="m", repeat_window_s=9.0),))
    repeat = caller.ask("a").repeat
    assert repeat is not None
    assert repeat.window_s == 9.0
    assert caller.ask("a", {"cache-control": "max-age=5"}).repeat == repeat
    others = (
        caller.ask("b"),
        caller.ask("a", key="l"),
        caller.ask("a", user="ann"),
        caller.ask("a", {"x-headstart-scope": "1"}),
        caller.ask("a", temperature=0.5),
    )
    assert repeat not in [other.repeat for other in others]
    assert caller.ask("a", model="n").repeat is None


def test_a_route_may_leave_exact_repeats_alone_to_answer() -> None:
    caller = Caller(rules=(RouteRule("code", model="m*", semantic=False),))
    assert caller.ask("a").semantic_refusal == "exact-only"
    assert caller.ask("a", model="n").semantic_refusal is None


def test_the_headers_question_is_compared_and_the_rest_must_be_equal() -> None:
    caller = Caller()
    asked = [
        caller.ask(TEMPLATE.format(document, question), {"x-headstart-query": question})
        for document, question in [
            ("A", "any fees?"),
            ("A", "any fees at all?"),
            ("B", "any fees?"),
        ]
    ]
    assert partition(asked[0]) == partition(asked[1]) != partition(asked[2])
    assert [prepared.semantic_refusal for prepared in asked] == [None, None, None]
    assert asked[1].key is not None
    assert asked[1].key.query == "any fees at all?"


@pytest.mark.parametrize(
    "header",
    [
        "caf\u00e9 5% off?".encode(),
        "caf\u00e9 5% off?".encode("latin-1"),
        b"  caf%C3%A9%205%25%20off%3F ",
    ],
)
def test_a_header_spells_the_question_plainly_or_percent_encoded(header: bytes) -> None:
    named = Caller().ask("Question: caf\u00e9 5% off?", {"x-headstart-query": header})
    assert named.key is not None
    assert named.key.query == "caf\u00e9 5% off?"


SHARED = "You answer the customers of a shop.\n\nMessage: {}\n\nReply in one sentence."
ASKED = [f"{verb} the {thing}?" for verb in ("Where is", "Can I keep") for thing in "ABCDEFGHIJ"]


def test_a_template_that_prompts_share_is_found_and_learns_by_itself() -> None:
    caller, plain = Caller(), Caller(templates=False)
    asked = [caller.ask(SHARED.format(text)) for text in ASKED]
    whole = [plain.ask(SHARED.format(text)) for text in ASKED]
    assert [partition(each) for each in asked[:7]] == [partition(each) for each in whole[:7]]
    assert partition(asked[-1]) == partition(asked[-2]) != partition(whole[-1])
    assert asked[-1].key is not None
    assert asked[-1].key.query == ASKED[-1]
    assert asked[-1].match_context.domain != asked[0].match_context.domain
    # An exact repeat is found, whatever is known about its template.
    assert [exact(each) for each in asked] == [exact(each) for each in whole]


def test_a_question_in_the_middle_of_a_long_template_is_read_for_its_lifetime() -> None:
    """Of a long prompt only the two ends are read; a template shows where the question is."""
    caller = Caller()
    long = "Answer in one sentence, without any greeting or apology." + " Be polite." * 40
    for text in ASKED:
        assert caller.ask(f"{long}\n{text}\n{long}").semantic_refusal is None
    asked = caller.ask(f"{long}\nWhat is the weather in Rome right now?\n{long}")
    assert asked.semantic_refusal == "live"


def test_no_template_is_sought_where_the_question_is_named_or_nothing_is_compared() -> None:
    semantic, exact_only = Caller(), Caller(semantic=False)
    for text in ASKED:
        prompt = SHARED.format(text)
        named = semantic.ask(prompt, {"x-headstart-query": text})
        whole = exact_only.ask(prompt)
        assert named.key is not None
        assert whole.key is not None
        assert (named.key.query, named.key.task) == (text, "")
        assert whole.key.query == prompt


def test_a_question_that_is_not_in_the_text_leaves_exact_repeats() -> None:
    caller = Caller(rules=(RouteRule("rag", path="/v1/*", query=PATTERN),))
    text = TEMPLATE.format("A", "any fees?")
    astray = caller.ask(text, {"x-headstart-query": "opening hours?"})
    assert astray.semantic_refusal == "query-not-found"
    assert exact(astray) == exact(caller.ask(text, {"x-headstart-query": "gone?"}))
    assert caller.ask("free text").semantic_refusal == "query-not-found"
    assert caller.ask(text).semantic_refusal is None


@pytest.mark.parametrize(
    "query", [PATTERN, lambda body: body["messages"][-1]["content"].rpartition(": ")[2]]
)
def test_an_endpoint_names_the_question_of_the_chat_path(query: Any) -> None:
    caller = Caller(Endpoint(CHAT, query=query), wrapped=True)
    one, other = (caller.ask(TEMPLATE.format("A", q)) for q in ("any fees?", "any fees at all?"))
    assert partition(one) == partition(other)
    assert one.request is not None
    assert one.request.query == TEMPLATE.format("A", "any fees?")


def test_the_field_that_repeats_the_question_is_no_difference() -> None:
    caller = Caller(Endpoint(CHAT, query="metadata.question"), wrapped=True)
    asked = [
        caller.ask(TEMPLATE.format("A", q), metadata={"question": q, "lang": lang})
        for q, lang in [("any fees?", "en"), ("any fees at all?", "en"), ("any fees?", "de")]
    ]
    assert partition(asked[0]) == partition(asked[1]) != partition(asked[2])


def test_a_named_field_that_is_not_the_question_stays_in_the_key() -> None:
    caller = Caller(Endpoint("/ask", prompt="text", query="question"))
    headers = {"authorization": "k"}
    asked = [
        caller.post("/ask", {"text": "Question: any fees?", "question": q}, {**headers, **more})
        for q in ("any fees?", "opening hours?")
        for more in ({}, {"x-headstart-query": "any fees?"})
    ]
    assert [each.semantic_refusal for each in asked] == [None, None, "query-not-found", None]
    assert len({exact(each) for each in asked}) == 3
    assert exact(asked[0]) == exact(asked[1])


def test_a_custom_prompt_has_a_question_too() -> None:
    caller = Caller(Endpoint("/ask", prompt="in.text", query="in.question"))
    asked = [
        caller.post(
            "/ask",
            {"in": {"text": TEMPLATE.format(document, q), "question": q}},
            {"authorization": "k"},
        )
        for document, q in [("A", "any fees?"), ("A", "any fees at all?"), ("B", "any fees?")]
    ]
    assert partition(asked[0]) == partition(asked[1]) != partition(asked[2])


def test_the_question_tells_how_long_its_answer_lives_and_whether_another_may_serve() -> None:
    lifetimes = Lifetimes(ttl_s=1000.0, by_class={QuestionClass.LIVE: 5.0})
    rules = (RouteRule("short", model="short", ttl_s=50.0), RouteRule("all", query=PATTERN))
    caller = Caller(rules=rules, lifetimes=lifetimes)
    live = caller.ask(TEMPLATE.format("A", "What is the weather?"))
    assert (live.lifetime.seconds, live.semantic_refusal) == (5.0, "live")
    stable = caller.ask(TEMPLATE.format("the weather today", "What is a cloud?"))
    assert (stable.lifetime.seconds, stable.semantic_refusal) == (1000.0, None)
    assert caller.ask("a", model="short").lifetime.seconds == 50.0


def test_without_semantic_answers_a_conversation_has_the_same_exact_key_and_no_other() -> None:
    talk = [
        {"role": "user", "content": "I need a tent."},
        {"role": "assistant", "content": "For how many?"},
        {"role": "user", "content": "What does it cost?"},
    ]
    semantic, plain = (Caller(semantic=each).ask("", messages=talk) for each in (True, False))
    assert exact(semantic) == exact(plain)
    assert plain.semantic_refusal == "exact-only"
    assert semantic.key is not None
    assert plain.key is not None
    assert (bool(semantic.key.conversation), plain.key.conversation) == (True, None)


def test_callers_beyond_those_remembered_are_told_apart() -> None:
    caller = Caller()
    scopes = {caller.ask("a", key=str(number)).scope for number in range(MEMO_HEADS + 2)}
    assert len(scopes) == MEMO_HEADS + 2


def test_a_model_named_in_the_path_is_prepared_apart_though_no_raw_path_is_given() -> None:
    caller = Caller()
    caller.endpoints = EndpointTable((GEMINI_GENERATE,), ())
    asked = {"contents": [{"role": "user", "parts": [{"text": "a"}]}]}
    paths = [f"/v1beta/models/{model}:generateContent" for model in ("one", "two")]
    one, two = (caller.post(path, asked, {"x-goog-api-key": "k"}) for path in paths)
    assert exact(one) != exact(two)


@pytest.mark.parametrize(
    ("prompt", "refusal"),
    [
        (None, "no-prompt"),
        ("question", None),
        ("qestion", "prompt-not-found"),
        ("question.text", "prompt-not-found"),
        (lambda body: (body.get("text"), body), "prompt-not-found"),
    ],
)
def test_a_request_without_the_prompt_of_its_endpoint_says_so(
    prompt: Any, refusal: str | None
) -> None:
    caller = Caller(Endpoint("/ask", prompt=prompt))
    asked = caller.post("/ask", {"question": "why?"}, {"authorization": "k"})
    assert asked.semantic_refusal == refusal


def test_methods_of_one_path_are_prepared_apart() -> None:
    caller = Caller(Endpoint("/ask"), Endpoint("/ask", method="PUT"))
    posted = caller.post("/ask", {}, {"authorization": "k"})
    assert exact(posted) != exact(caller.post("/ask", {}, {"authorization": "k"}, "PUT"))


def test_parameters_of_a_path_join_the_key_as_they_were_sent() -> None:
    caller = Caller(Endpoint("/projects/{id}/ask", prompt="text"))
    asked = [
        caller.post(f"/projects/{id}/ask", {"text": "why?"}, {"authorization": "k"})
        for id in ("7", "8", "%37")
    ]
    assert len({partition(each) for each in asked}) == 3
    assert len({each.match_context.domain for each in asked}) == 1


def test_the_whole_query_of_a_custom_path_is_keyed() -> None:
    team = SharingOptions(resolve=lambda _: "team", wrapped=True)
    caller = Caller(Endpoint("/ask", method="GET"), sharing=team)
    asked = [
        caller.post("/ask", {}, {}, "GET", query=query)
        for query in (b"", b"key=1", b"key=2", b"q=a", b"q=%61", b"q=a&key=1")
    ]
    assert len({exact(each) for each in asked}) == 6


def test_a_custom_body_that_repeats_a_key_is_not_cached() -> None:
    caller = Caller(Endpoint("/ask", prompt="text"))
    body = b'{"text": "why?", "text": "how?"}'
    assert caller.post("/ask", body, {"authorization": "k"}).bypass == "duplicate-keys"


@pytest.mark.parametrize(
    "header",
    ["if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range", "range"],
)
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_request_for_a_part_or_on_a_condition_is_not_cached(
    header: str, *, wrapped: bool
) -> None:
    caller = Caller(Endpoint("/ask"), Endpoint("/ask", method="GET"), wrapped=wrapped)
    headers = {"authorization": "k", header: "x"}
    assert caller.ask("why?", headers).bypass == "conditional"
    assert caller.post("/ask", {}, headers).bypass == "conditional"
    # A wrapped app is asked for the whole of what may only be read.
    whole = wrapped and header not in ("if-match", "if-unmodified-since")
    assert caller.post("/ask", {}, headers, "GET").bypass == (None if whole else "conditional")


def test_requests_that_repeat_are_prepared_no_more_and_headers_that_decide_count() -> None:
    caller = Caller(rules=(RouteRule("faq", headers=((b"x-app", "faq"),), semantic=False),))
    once = caller.ask("a")
    again = caller.ask("a")
    assert again.key == once.key
    assert again is not once, "a request that comes once needs no memo"
    assert caller.ask("a", {"x-request-id": "1"}) is again
    assert caller.ask("a", {"x-app": "faq"}).semantic_refusal == "exact-only"
    assert caller.ask("a", {"x-headstart-max-error": "1%"}).match_context.max_error == 0.01
    assert caller.ask("a").match_context.max_error is None


def test_the_memory_of_requests_is_bounded_by_their_whole_size() -> None:
    caller = Caller()
    caller.ask("a")
    first = caller.ask("a")
    assert caller.ask("a") is first
    for number in range(30):
        for _ in range(2):
            caller.ask("a", {"x-headstart-tags": f"{number}-" + "x" * 60_000})
    assert caller.ask("a") is not first
    large = {"x-headstart-tags": "y" * MEMO_BODY_BYTES}
    caller.ask("a", large)
    assert caller.ask("a", large) is not caller.ask("a", large)
