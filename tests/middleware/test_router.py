"""Which upstream answers a request, and what of this choice is in the cache key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from headstart.dialects.registry import claiming
from headstart.errors import NoUpstream
from headstart.middleware.router import (
    LONGEST_NAME,
    MEMO_MODELS,
    BuiltRoute,
    Provider,
    Router,
    conversation,
)
from headstart.types import Call, ChatRequest

if TYPE_CHECKING:
    from headstart.interfaces import Candidate

CHAT, MESSAGES, GEMINI = "openai-chat", "anthropic-messages", "gemini-generate"
RESPONSES = "openai-responses"


class Named:
    """A candidate that is only looked at."""

    def __init__(self, *names: str) -> None:
        self.name = names[0]
        self.identity = "+".join(names)
        self.names = frozenset(names)


def request(model: str, **document: Any) -> ChatRequest:
    return ChatRequest(model=model, stream=False, document=document, query=None)


def provider(name: str, dialect: str = CHAT, **fields: Any) -> Provider:
    values = {
        "base_url": f"https://{name}.test",
        "models": {},
        "named": frozenset(fields.get("models", ())),
        "known": frozenset(),
        "candidates": {"": cast("Candidate", Named(name))},
        "relay": cast("Candidate", Named(name)),
        **fields,
    }
    return Provider(name=name, dialect=dialect, **values)


def picked(router: Router, dialect: str, model: str | None, rule: str = "") -> str:
    return router.pick(dialect, model, rule).name


def test_the_key_binds_provider_address_and_the_model_behind_an_alias() -> None:
    one = provider("a", models={"fast": "small-1"})
    moved = provider("a", base_url="https://b.test", models={"fast": "small-1"})
    other = provider("a", models={"fast": "small-2"})
    found = {Router([each], {}).upstreams(CHAT, "fast", "")[0] for each in (one, moved, other)}
    assert len(found) == 3


def test_a_route_binds_all_who_may_answer() -> None:
    providers = [provider("a", models={"m": "m-a"}), provider("b", models={"m": "m-b"})]
    race = BuiltRoute(cast("Candidate", Named("a", "b")))
    router = Router(providers, {"race": race})
    identity = router.upstreams(CHAT, "m", "race")[0]
    assert identity == "a+b\na https://a.test m-a\nb https://b.test m-b"
    assert identity != router.upstreams(CHAT, "m", "")[0]


def test_the_key_binds_what_a_strategy_lets_pass() -> None:
    def route(terms: str) -> BuiltRoute:
        named = Named("a")
        named.identity = f"cascade(a,{terms})"
        return BuiltRoute(cast("Candidate", named))

    router = Router([provider("a")], {"lax": route("0.5"), "strict": route("0.9")})
    assert router.upstreams(CHAT, "m", "lax")[0] != router.upstreams(CHAT, "m", "strict")[0]


def test_the_answerer_is_remembered_for_each_model_route_and_dialect() -> None:
    providers = [provider("a"), provider("b", MESSAGES, models={"m": "m-b"})]
    router = Router(providers, {"race": BuiltRoute(cast("Candidate", Named("a", "b")))})
    asked = [
        (dialect, model, rule)
        for dialect in (CHAT, MESSAGES)
        for model in ("m", "n", "n" * 2 * LONGEST_NAME)
        for rule in ("", "race")
    ]
    for dialect, model, rule in asked * 2:
        chosen = router.choose(dialect, model, rule)
        assert chosen.candidate is router.pick(dialect, model, rule)
        assert model in chosen.identity or chosen.identity.endswith("m-b")
        assert chosen.several is (rule == "race")


def test_any_number_of_models_may_be_asked_for() -> None:
    router = Router([provider("a")], {})
    for number in range(MEMO_MODELS + 2):
        assert router.upstreams(CHAT, f"m{number}", "")[0].endswith(f" m{number}")


def test_settings_decide_before_the_model_table_and_that_before_the_dialect() -> None:
    router = Router(
        [
            provider("first"),
            provider("table", known=frozenset({"llama", "mixtral"})),
            provider("settings", MESSAGES, models={"llama": "llama-3"}),
            provider("claude", MESSAGES),
        ],
        {},
    )
    assert picked(router, CHAT, "llama") == "settings"
    assert picked(router, CHAT, "mixtral") == "table"
    assert picked(router, CHAT, "anything") == "first"
    assert picked(router, MESSAGES, "anything") == "settings"
    assert picked(router, CHAT, "claude/anything") == "claude"


def test_a_foreign_dialect_is_translated_only_where_it_can_be_read() -> None:
    router = Router([provider("claude", MESSAGES)], {})
    assert picked(router, CHAT, "m") == "claude"
    with pytest.raises(NoUpstream, match=r'add an .* dialect = "openai"'):
        picked(router, CHAT, None)


def test_an_unreadable_body_takes_a_route_only_if_all_its_members_speak_its_dialect() -> None:
    providers = [provider("plain"), provider("a"), provider("claude", MESSAGES)]
    mixed = BuiltRoute(cast("Candidate", Named("a", "claude")))
    same = BuiltRoute(cast("Candidate", Named("a")))
    router = Router(providers, {"mixed": mixed, "same": same})
    assert picked(router, CHAT, None, "mixed") == "plain"
    assert picked(router, CHAT, None, "same") == "a"


@pytest.mark.parametrize(
    ("path", "headers", "name"),
    [
        (b"/v1/models", (), "chat"),
        (b"/v1/models", ((b"anthropic-version", b"2023-06-01"),), "claude"),
        (b"/v1/messages/count_tokens", (), "claude"),
        (b"/v1beta/models", (), "gemini"),
        (b"/v1/files", ((b"x-goog-api-key", b"k"),), "gemini"),
    ],
)
def test_a_relayed_request_goes_to_the_first_upstream_of_its_dialect(
    path: bytes, headers: tuple[tuple[bytes, bytes], ...], name: str
) -> None:
    router = Router(
        [provider("chat"), provider("claude", MESSAGES), provider("gemini", GEMINI)], {}
    )
    assert router.relayed(claiming(path, headers).name, "", "").name == name


@pytest.mark.parametrize(
    ("upstreams", "path", "name"),
    [
        ({"chat": CHAT, "resp": RESPONSES}, b"/v1/responses/resp_1", "resp"),
        ({"chat": CHAT, "resp": RESPONSES}, b"/v1/files", "chat"),
        ({"chat": CHAT, "claude": MESSAGES}, b"/v1/responses/compact", "chat"),
        ({"claude": MESSAGES, "resp": RESPONSES}, b"/v1/files", "resp"),
    ],
)
def test_upstreams_of_openais_two_dialects_stand_in_for_each_other(
    upstreams: dict[str, str], path: bytes, name: str
) -> None:
    providers = [provider(each, dialect) for each, dialect in upstreams.items()]
    members = {each.dialect: each.relay for each in providers}
    taken = BuiltRoute(cast("Candidate", Named(*upstreams)), members)
    router = Router(providers, {"all": taken})
    dialect = claiming(path, ()).name
    assert router.relayed(dialect, "", "").name == name
    assert router.relayed(dialect, "", "all").name == name


def test_a_route_binds_what_is_relayed_to_its_upstreams_of_the_dialect() -> None:
    providers = [provider("chat"), provider("claude", MESSAGES), provider("other", MESSAGES)]
    member = cast("Candidate", Named("other"))
    taken = BuiltRoute(cast("Candidate", Named("chat", "other")), {MESSAGES: member})
    router = Router(providers, {"mixed": taken, "modest": BuiltRoute()})
    assert router.relayed(MESSAGES, "m", "mixed").name == "other"
    assert router.relayed(MESSAGES, "m", "modest").name == "claude"
    with pytest.raises(NoUpstream, match=r'route .mixed. .* dialect = "openai"'):
        router.relayed(CHAT, "m", "mixed")


def test_a_model_decides_what_is_relayed_among_the_upstreams_of_the_dialect() -> None:
    claude = provider("claude", MESSAGES, models={"embed": "e"})
    named = provider("named", models={"embed": "e"})
    router = Router([claude, provider("first"), named], {})
    assert router.relayed(CHAT, "embed", "").name == "named"
    assert router.relayed(CHAT, "other", "").name == "first"
    assert router.tells_models_apart(CHAT)
    assert not Router([provider("first"), claude], {}).tells_models_apart(CHAT)


def test_a_conversation_keeps_its_digest_while_it_grows() -> None:
    first = [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}]
    more = [{"role": "assistant", "content": "hi"}, {"role": "user", "content": "next"}]
    digest = conversation("me", request("m", messages=first))
    assert conversation("me", request("m", messages=first + more)) == digest
    assert conversation("you", request("m", messages=first)) != digest
    assert conversation("me", request("m", messages=[*first[:1], *more])) != digest


def test_only_calls_that_have_a_choice_are_given_their_conversation() -> None:
    call = Call(
        id="1", method="POST", path=b"/v1/chat/completions", query_string=b"", headers=(),
        body=b"{}", dialect=CHAT, endpoint="/v1/chat/completions", request=request("m"),
    )  # fmt: skip
    choice = BuiltRoute(cast("Candidate", Named("a", "b")))
    router = Router([provider("a"), provider("b")], {"r": choice})
    assert router.assign(call, "me", "")[1] is call
    assert router.assign(call, "me", "r")[1].affinity
    odd = msgspec.structs.replace(call, request=None)
    assert router.assign(odd, "me", "")[1] is odd


def test_a_route_without_upstreams_shapes_what_its_model_asks_for() -> None:
    shaped = cast("Candidate", Named("a"))
    plain = cast("Candidate", Named("a"))
    router = Router(
        [provider("a", candidates={"": plain, "brief": shaped})],
        {"brief": BuiltRoute()},
    )
    assert router.pick(CHAT, "m", "brief") is shaped
    assert router.pick(CHAT, "m", "") is plain


def test_an_upstream_gets_its_further_dialects_after_those_whose_main_dialect_it_is() -> None:
    both = provider("both", further=frozenset({MESSAGES}))
    router = Router([provider("chat"), both, provider("claude", MESSAGES)], {})
    assert picked(router, MESSAGES, "m") == "claude"
    assert picked(router, CHAT, "m") == "chat"
    assert picked(Router([provider("chat"), both], {}), MESSAGES, "m") == "both"
    assert Router([both], {}).relayed(MESSAGES, "m", "").name == "both"
    assert picked(Router([both], {}), MESSAGES, None) == "both", "a body that nobody can read"
