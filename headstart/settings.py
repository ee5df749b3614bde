"""Every setting, with its name, type, default, bounds and help text, in a frozen value per table.

The text below a field is its help. It is Markdown: ``docs/configuration.md`` prints it in its
tables, with links that are relative to that page, and the command line prints it without links.
The tables are plain values: building one checks nothing. ``config.checks.checked`` does, and
``config.loading.load_settings`` calls it. A ``repr`` never shows a key, a header's value or a
password.

A component takes the table that it needs, never ``Settings``.
"""

from __future__ import annotations

import re
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Optional,
    TypeAlias,
    dataclass_transform,
    get_args,
)

import msgspec

from headstart.canonical_request import Quirks
from headstart.sockets import is_loopback_host

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from headstart.interfaces import DraftJudge

MASK = "***"
_URLS = frozenset({"store", "base_url", "proxy", "endpoint"})
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_USER_OR_QUERY = re.compile(r"(?<=//).*(?=@)|(?<=\?).*")

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
CountOrZero: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, le=1.0, extra={"percent": True})]
"""A number from 0 to 1. A text such as ``"2%"`` means the same."""
Percent: TypeAlias = Annotated[float, msgspec.Meta(extra={"percent": True})]
"""A share with other bounds, which ``config.checks`` checks."""
Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0.0)]
Seconds: TypeAlias = Positive
SecondsOrZero: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0)]
Dollars: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0)]

AuditMode: TypeAlias = Literal["background", "sync", "off"]
CacheMode: TypeAlias = Literal["serve", "shadow", "exact-only"]
ColdStart: TypeAlias = Literal["strict", "optimistic"]
CompressionMode: TypeAlias = Literal["off", "safe", "recoverable", "balanced", "aggressive"]
COMPRESSION_MODES: tuple[CompressionMode, ...] = get_args(CompressionMode)
"""The modes of compression, the strictest first."""
AuthName: TypeAlias = Literal["key", "aws", "google"]
DialectName: TypeAlias = Literal[
    "openai", "responses", "anthropic", "gemini", "cohere", "bedrock", "completions"
]
AccessLogFormat: TypeAlias = Literal["off", "text", "json"]
EditMode: TypeAlias = Literal["off", "blocks", "prediction"]
EqualModels: TypeAlias = Literal["check", "assume"]
ErrorOf: TypeAlias = Literal["hits", "requests"]
GuardName: TypeAlias = Literal[
    "language", "number", "unit", "date", "name", "sign", "spelling", "question", "connective",
    "quantifier", "comparative", "negation", "role-swap", "scope", "antonym", "crossing",
    "substitution",
]  # fmt: skip
Judge: TypeAlias = Literal["format", "refusal", "logprob", "prompt", "agreement"]
Level: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=3)]
MatchName: TypeAlias = Literal["verified", "static"]
MaxOutput: TypeAlias = Literal["off", "guard", "tight"] | Count
OnCorrupt: TypeAlias = Literal["fail", "fresh"]
JoinStreams: TypeAlias = Literal["sooner", "always", "never"]
OnRepeat: TypeAlias = Literal["hit", "fresh"]
Rescue: TypeAlias = Literal["restart", "prefill", "off"]
UnknownCost: TypeAlias = Literal["refuse", "allow"]
PromptCacheMode: TypeAlias = Literal["off", "auto"]
StrategyName: TypeAlias = Literal[
    "single", "fallback", "race", "hedge", "fastest", "cheapest", "cascade"
]
LiveStage: TypeAlias = Literal["lookup", "warm", "answer", "infer"]
Use: TypeAlias = Literal["autocomplete", "voice", "chat", "agent", "batch", "regulated"]

GUARDS: tuple[GuardName, ...] = get_args(GuardName)
DRAIN_S = 5.0
"""Default of ``drain_s``. A load balancer usually needs less to see that a server is not ready."""
GUARDED_THRESHOLD = 0.90
"""Default threshold of static matching with all guards."""
BARE_THRESHOLD = 0.95
"""Default threshold of static matching with fewer guards."""


# Type checkers do not see that msgspec's subclasses inherit ``frozen`` and ``kw_only``.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all tables."""

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in masked(self).items())
        return f"{type(self).__name__}({fields})"


class ConversationSettings(Section):
    """``[server.conversations]``: answers that later calls name by their ids."""

    enabled: bool = True
    """Keep answers of Responses for calls that name them. With `false` such calls only pass."""
    ttl_s: Seconds = 30 * 86400.0
    """Lifetime of an answer in seconds."""
    max_answers: Count = 10_000
    """Highest number of answers in memory; one caller has at most a quarter."""
    max_bytes: Count = 64 * 1024 * 1024
    """Highest number of their bytes; one caller has at most a quarter."""


class ClientLimits(Section):
    """``[server.client_limits.NAME]``: limits of the callers with one key."""

    usd_per_day: Dollars | None = None
    """Dollars for upstream calls on a day (UTC)."""
    usd_per_month: Dollars | None = None
    """Dollars for upstream calls in a month (UTC)."""
    tokens_per_day: CountOrZero | None = None
    """Tokens of prompts and answers of upstream calls on a day (UTC)."""
    tokens_per_month: CountOrZero | None = None
    """Tokens of prompts and answers of upstream calls in a month (UTC)."""
    tokens_per_minute: Count | None = None
    """Tokens of prompts and answers of upstream calls in a minute of the clock."""
    requests_per_minute: Count | None = None
    """Requests in a minute of the clock. Hits count, too."""
    models: tuple[str, ...] = ("*",)
    """Patterns of the models that these callers may ask for, with `*`, `?` and `[abc]`. For others
    the answer is 403."""
    output_reserve: Count = 4096
    """Tokens that a call reserves for its answer, if it sets no limit such as `max_tokens`."""
    unknown_cost: UnknownCost = "refuse"
    """Calls whose cost or model is not known: `"refuse"` answers 403, `"allow"` lets them pass and
    counts only the known part."""


class ServerSettings(Section):
    """``[server]``: the sidecar's socket, its callers, and its limits."""

    host: str = "127.0.0.1"
    """Address to bind."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8080
    """Port to bind; with 0 the system chooses a free port."""
    profile: Literal["default", "serverless", "edge"] = "default"
    """Other defaults for [small places](deployment.md#small-places): `serverless` writes nothing to
    the disk and loads the encoder late, `edge` needs at most 100 MB."""
    workers: Count | Literal["auto"] = 1
    """[Processes that serve](workers.md); `"auto"`: one for each core that the process may use."""
    admin_token_env: str | None = None
    """Variable with the bearer token of `/_headstart/`. Without a token, the admin API is open on
    loopback and closed elsewhere."""
    client_keys: tuple[str, ...] | dict[str, str] = ()
    """Keys that callers must send: literals, or `"env:NAME"` for the value of a variable. With
    names, such as `{ team-a = "env:KEY_A", team-b = "env:KEY_B" }`, reports and logs show each
    caller by name. Without keys, every caller who reaches the port may call."""
    client_limits: dict[str, ClientLimits] = msgspec.field(default_factory=dict)
    """[Budgets and limits](budgets.md) of keys, by their names; `"*"`: of each key that has no
    table of its own."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies. Headstart believes their scope header (`cache.scope`)."""
    allowed_hosts: tuple[str, ...] = ()
    """More names under which callers may reach the server, such as `host.docker.internal`; `"*"`
    allows all ([web pages](#web-pages))."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages and apps that may call the server from a browser, such as
    `http://localhost:3000` or `vscode-webview://*`."""
    relay_paths: tuple[str, ...] = ("*",)
    """Paths of calls that are not chats, such as `["/v1/models", "GET /v1/models/*", "POST
    /v1/embeddings"]`. A path may begin with a method; without one it allows all methods. `*` stands
    for any characters. On other paths the answer is 403. With the operator's key, all callers share
    its files, batches and fine-tuning jobs, unless this list leaves out their paths."""
    max_body_bytes: Count = 32 * 1024 * 1024
    """On larger requests the answer is 413, before the body is read if `Content-Length` says how
    long it is. It also limits messages on WebSockets, both ways."""
    max_body_values: Count = 100_000
    """A request that Headstart reads (cached paths, counts of tokens, live drafts) gets 413 if it
    has more JSON values: numbers, strings, lists, objects. Decoding blocks the event loop, and its
    memory grows with the number of values. A text of any length is one value. A number of more than
    1,000 characters gets 413, too. A wrapped app gets such a request unchanged."""
    body_timeout_s: Seconds | None = 30.0
    """Longest wait for a body that stalls, which means less than 1,024 bytes a second; then the
    answer is 408. `none` sets no limit. A long upload over a slow line does not stall."""
    head_timeout_s: Seconds | None = 30.0
    """Longest wait for the head of a request; then Headstart closes the connection. `none` sets no
    limit."""
    max_connections: Count | None = None
    """Connections at the same time; on more of them the answer is 503, but health checks are
    answered. None: half of the files that the process may open."""
    max_concurrency: Count = 512
    """Upstream calls at the same time."""
    max_relays: Count = 128
    """[Relayed](headers.md#relayed-paths) requests at the same time. They have their own places, so
    slow ones take no place from chat."""
    max_websockets: Count = 128
    """[WebSockets](headers.md#websockets) at the same time; on more of them the answer is 429."""
    websocket_idle_s: Seconds | None = 600.0
    """Longest time without a message on a WebSocket, or `none`; then Headstart closes it."""
    websocket_deadline_s: Seconds | None = 3600.0
    """Longest time that a WebSocket may be open, or `none`."""
    max_queue: CountOrZero = 1024
    """Calls of both kinds that may wait for a place; on more of them the answer is 429."""
    deadline_s: Seconds | None = 600.0
    """Longest time that a request may take, counted from the last byte of its body, or `none`."""
    conversations: ConversationSettings = ConversationSettings()
    access_log: AccessLogFormat = "off"
    """`text` or `json`: one line for each request on standard output, with verdict, route,
    upstream, status, times and cost. It holds no text and no key
    ([fields](report.md#access-log))."""
    drain_s: SecondsOrZero | None = None
    """Time after SIGTERM in which the server still accepts connections while `/_headstart/ready`
    answers 503, so that a load balancer can send requests to other servers. None: 5 s, or 0 on a
    loopback address. Ctrl-C, or a second signal, skips it."""
    shutdown_s: SecondsOrZero = 10.0
    """Time that running answers have after the listener has closed."""

    @property
    def named_client_keys(self) -> tuple[tuple[str, str], ...]:
        """The keys of callers, each with its name; "" for a key without one."""
        keys = self.client_keys
        return tuple(keys.items()) if isinstance(keys, dict) else tuple(("", key) for key in keys)

    @property
    def limits_by_client(self) -> dict[str, ClientLimits]:
        """The limits of each named key with limits."""
        limits, others = self.client_limits, self.client_limits.get("*")
        names = [name for name, _ in self.named_client_keys if name]
        found = {name: limits.get(name, others) for name in names}
        return {name: each for name, each in found.items() if each is not None}

    @property
    def effective_drain_s(self) -> float:
        """``drain_s``, or its default: only a server that other machines can reach drains."""
        if self.drain_s is not None:
            return self.drain_s
        return 0.0 if self.is_loopback else DRAIN_S

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can connect."""
        return is_loopback_host(self.host)


class AuditSettings(Section):
    """``[cache.audit]``: hits that are asked upstream as well, to learn whether they are wrong."""

    mode: AuditMode = "background"
    """`background`, `sync` or `off`."""
    rate: Share = 0.02
    """Share of the semantic hits that Headstart always audits; while a learning domain has few
    audits, the share is up to 0.10."""
    null_rate: Share = 0.005
    """Share of the exact hits for which Headstart asks upstream again. A different answer shows the
    judge's noise or an old answer. Once matching by meaning has begun, the share is 5 % until a
    hundred such audits are known. `0` switches it off."""
    ask_twice: bool = False
    """Ask upstream twice about some misses that are near a stored question, at most 200 for a
    learning domain. So Headstart measures the judge's noise also without exact hits. Try it if your
    answers vary much and nearly all semantic hits are refused as `unqualified`. It needs a
    `max_error` of 2 % or more."""
    max_calls_per_hour: Count | None = None
    """Highest number of audits per hour."""
    max_usd_per_day: Dollars | None = None
    """Highest cost of audits per day; needs the `price` of every upstream."""


class JudgeSettings(Section):
    """``[cache.judge]``: a model that compares two answers when the built-in judge is in doubt."""

    upstream: str
    """Name of an `[[upstream]]` that has its own key or is on this machine."""
    model: str
    """The model that judges, under the name that the upstream uses."""
    max_calls_per_hour: Count | None = 60
    """Highest number of its calls per hour, or `none`."""
    max_usd_per_day: Dollars | None = None
    """Highest cost of its calls per day; needs the upstream's `price`."""


class TtlByClass(Section):
    """``[cache.ttl_by_class]``: lifetimes of answers that age."""

    live: Seconds = 300.0
    """Lifetime of `live` answers in seconds, if it is shorter than the lifetime of the entry."""
    dated: Seconds = 21_600.0
    """Lifetime of `dated` answers in seconds, if it is shorter than the lifetime of the entry."""


class CacheSettings(Section):
    """``[cache]``: which answers are served from the cache, to whom, and where they are stored."""

    enabled: bool = True
    """`false` switches the cache off: no lookup and no storing."""
    mode: CacheMode = "serve"
    """`serve`; `shadow`: Headstart serves only exact repeats, learns, and reports the hits that it
    would have served; or `exact-only`: no encoder, only exact repeats."""
    match: MatchName | None = None
    """The rule for reworded questions: `verified` learns to keep `max_error`, `static` compares the
    similarity with `threshold`. None: `static` if a threshold is set, else `verified`."""
    max_error: Percent | None = None
    """Share of wrong answers that you accept, `0.01` or `"1%"`. None: 0.02. Below 0.005 Headstart
    serves nothing by meaning before it has learned enough; to serve only exact repeats, set
    `mode`."""
    error_of: ErrorOf = "hits"
    """The whole of which `max_error` is a share: the semantic `hits` that were served, or all
    `requests`."""
    confidence: Percent | None = None
    """One-sided confidence that the error is at most `max_error`: `0.69`, `0.84` or `0.95`. None:
    0.84."""
    cold_start: ColdStart = "strict"
    """`strict`: a rewording needs similarity 0.98 until 15 near misses of its learning domain were
    compared. `optimistic`: the [cold-start threshold](safe-hits.md#cold-start) applies at once."""
    shadow_first: CountOrZero = 0
    """Number of requests from which each learning domain only learns, before it serves its first
    hit."""
    state: str | None = None
    """File that `headstart tune` learned from a log. Every learning domain starts from it."""
    threshold: Share | None = None
    """For `static` matching: the lowest similarity of a neighbour that may answer. None: 0.90 with
    all guards, 0.95 with fewer."""
    guards: tuple[GuardName, ...] = GUARDS
    """Guards that may veto a neighbour: `language`, `number`, `unit`, `date`, `name`, `sign`,
    `spelling`, `question`, `connective`, `quantifier`, `comparative`, `negation`, `role-swap`,
    `scope`, `antonym`, `crossing`, `substitution` ([how a hit is
    decided](how-a-hit-is-decided.md))."""
    scope: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^(credential|shared|header:[A-Za-z0-9!#$%&'*+.^_`|~-]+)$",
            description='"credential", "shared" or "header:NAME"',
        ),
    ] = "credential"
    """The callers that share answers: callers with the same `credential`, all callers (`shared`),
    or callers to whom a trusted proxy gives the same `header:NAME`."""
    share_users: bool = False
    """Share answers between different `user` fields."""
    sampled: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^(always|deterministic|variants:[1-9][0-9]{0,2})$",
            description='"always", "deterministic" or "variants:N", N from 1 to 999',
        ),
    ] = "always"
    """Requests for random answers: Headstart caches them `always`, only if they are
    `deterministic`, or keeps several answers of each (`variants:3`)."""
    cached_tools: str | tuple[str, ...] = ()
    """Names of tools, with `*` and `?`, whose calls may be replayed: then Headstart stores answers
    that call only these tools, and serves them to exact repeats ([tool
    calls](cache-key.md#answers-that-call-tools)). `"*"`: all tools."""
    never_stored: str | tuple[str, ...] = ()
    """Regular expressions over the texts of requests and answers. A request with such a text
    bypasses the cache, and an answer with such a text is not stored ([what is not
    stored](cache-key.md#texts-that-are-never-stored))."""
    holdout: Share = 0.0
    """Share of the hits for which Headstart asks upstream nevertheless, to measure the savings of
    hits ([report](report.md))."""
    store: str = "sqlite:///headstart.db"
    """`sqlite:///relative/path`, `sqlite:////absolute/path`, `memory:`, `redis://host:6379/0`, or
    [a store of your own](#a-store-of-your-own)."""
    encryption_key_env: str | tuple[str, ...] | None = None
    """Variable with the key that encrypts entries in SQLite or Redis: 32 random bytes, as
    `openssl rand -hex 32` prints them. Of several variables, the first key encrypts and all decrypt
    ([encryption](security.md#encryption-at-rest)). Needs `headstart[encryption]`."""
    encryption_key_command: str | None = None
    """Command that prints the key, or several keys, one a line. It runs at the start, without a
    shell."""
    join_processes: bool = True
    """Join equal calls of all [workers](workers.md) of a machine, and of all nodes that share a
    Redis: one process asks the provider, and the others get its answer while it comes. `false`:
    Headstart joins only the calls of one process."""
    join_streams: JoinStreams = "sooner"
    """When a stream waits for an equal whole answer that is in flight, instead of a call of its own
    ([joined calls](workers.md#joined-calls)). `sooner`: if the whole answer should be there before
    the first token of its own call would; `always`; `never`."""
    on_corrupt: OnCorrupt = "fail"
    """If a SQLite file is damaged: `fail` stops the start; `fresh` moves the file aside and begins
    a new one. The start looks for damage for 5 s at most, which is enough for some gigabytes on a
    fast disk."""
    ttl_s: Seconds | None = 7 * 86400.0
    """Lifetime of an entry in seconds, or `none`."""
    ttl_by_class: TtlByClass = TtlByClass()
    max_entries: Count | None = 100_000
    """Highest number of entries, or `none`. Above it, Headstart drops the least recently used
    entries."""
    max_bytes: Count | None = 1024 * 1024 * 1024
    """Highest number of bytes of all entries, or `none`. Above it, Headstart drops the least
    recently used entries."""
    hot_bytes: CountOrZero = 64 * 1024 * 1024
    """Memory for recently used entries in front of the store."""
    outage_ttl_s: SecondsOrZero = 30.0
    """If the store does not answer, Headstart does not know which entries were deleted. For this
    time it still serves exact repeats from memory, and then none. A new answer may be served for
    this time after its creation."""
    templates: bool = True
    """Find the [template](how-a-hit-is-decided.md#templates) that many prompts share, and compare
    only the question in it by meaning."""
    key_headers: tuple[str, ...] = ()
    """Request headers that change the answer. They become part of the cache key."""
    ignore_headers: tuple[str, ...] = ()
    """Request headers that do not identify the caller. Requests that differ only in these headers
    [share answers](#how-callers-are-told-apart)."""
    audit: AuditSettings = AuditSettings()
    judge: JudgeSettings | None = None

    @property
    def effective_match(self) -> MatchName:
        """``match``, or its default: a threshold asks for static matching."""
        if self.match is not None:
            return self.match
        return "verified" if self.threshold is None else "static"

    @property
    def effective_threshold(self) -> float:
        """``threshold`` of static matching, or its default."""
        return static_threshold(self.guards) if self.threshold is None else self.threshold


def static_threshold(guards: Collection[str]) -> float:
    """Return the default threshold of static matching: the lower one needs all guards."""
    return GUARDED_THRESHOLD if set(guards) == set(GUARDS) else BARE_THRESHOLD


class EncoderSettings(Section):
    """``[encoder]``: the sentence encoder."""

    model: str = "default"
    """The built-in encoder, or a folder that [`headstart encoder export`](encoder.md) has
    written."""
    threads: Annotated[int, msgspec.Meta(ge=1, le=256)] | None = None
    """Threads that encode, each one prompt at a time. None: one for each core, at most four."""
    max_tokens: Count | None = None
    """Longest prompt that Headstart compares by meaning. None: the model's limit."""
    lazy: bool = False
    """Load the model when the first question is compared by meaning, not at the start. This saves a
    tenth of a second and 50 MB until then. The question that loads it is usually no hit."""
    max_wait_ms: SecondsOrZero | None = None
    """Longest wait of a prompt for the encoder; then the prompt goes upstream, as a miss. It waits
    until it is encoded itself, and if no entry is a hit, until the newest entries are encoded, too.
    None: Headstart sets the limits. For its own encoding the prompt waits as long as a hit is
    expected to save: the usual time until an answer of its route and model begins, times the share
    of hits among such questions. This is 20 to 250 ms, or 100 ms while nothing is known. For the
    newest entries it waits 20 ms."""


class LearningSettings(Section):
    """``[learning]``: limits on the cost of learning from misses."""

    cpu_share: Share = 0.03
    """Share of one CPU core, in each worker, for comparing the answers of misses with the answers
    of their neighbours, on average over half a minute. If it does not suffice, Headstart compares a
    part of the misses, most of all those near the boundary between hit and miss. `0`: only audits
    and feedback teach."""


class RecordSettings(Section):
    """``[record]``: requests and answers, in the clear, for ``headstart tune``."""

    enabled: bool = False
    """Write the record; needs `cache.enabled`."""
    path: Annotated[str, msgspec.Meta(min_length=1)] = "headstart-record.jsonl"
    """Each day (UTC) has its own file, with the date before the suffix:
    `headstart-record-2026-11-21.jsonl`, mode 0600."""
    retention_days: Annotated[int, msgspec.Meta(ge=1, le=3650)] = 30
    """Days that Headstart keeps, today included. It deletes older files at start, and every hour
    while the server runs with the record on."""


class CompressionSettings(Section):
    """``[compression]``: changes of prompts on their way to a provider."""

    mode: CompressionMode = "safe"
    """`off`; `safe`: only changes that can be undone byte for byte; `balanced` (lossy): also
    removes repeated passages, usual lines of logs and HTML markup; `aggressive` (lossy): also
    removes text that has nothing to do with the question; `recoverable`: as `aggressive`, but the
    model gets a tool with which it can read the texts that were cut
    ([recoverable](compression.md#recoverable-compression))."""
    retrievals: CountOrZero = 3
    """With `recoverable`: how often the model may ask for cut text within one request. After that
    the request is sent without cuts."""
    dry_run: bool = False
    """Count the possible savings, and send every prompt unchanged."""
    clear_history: bool = False
    """Also remove old tool results, many at a time, if this saves more than it costs in the
    provider's prefix cache."""
    strip_comments: bool = False
    """Beyond `safe`, also remove comments from Python code, but never from a file that the model
    has read."""
    repeated_reads: bool = False
    """When an agent reads a file again, also replace long unchanged stretches by references to the
    lines above ([repeated reads](compression.md#repeated-reads))."""
    prefill_tokens_per_s: Positive = 33_000.0
    """Speed at which providers read prompts. The slower the provider, the more time compression
    saves."""
    cached_share: Share = 0.1
    """Price of a token from the provider's prefix cache, as a share of the full price."""
    prompt_cache: PromptCacheMode = "off"
    """`"auto"`: mark prompts for the provider's prompt cache where later reads should pay for the
    write ([prompt cache](compression.md#the-providers-prompt-cache)), and keep a conversation at
    one upstream. For Claude at Anthropic and Bedrock; OpenAI gets a `prompt_cache_key`."""
    cache_minimum: CountOrZero = 1024
    """Shortest prompt, in tokens, that a provider caches. 0: the provider caches all prompts or
    none."""


class OutputSettings(Section):
    """``[output]``: limits on answers, and requests for shorter ones."""

    max_tokens: MaxOutput = "off"
    """Limit of answers to requests without a limit of their own; Headstart continues an answer that
    this limit cut. `"guard"` stops runaway answers, at 1.5 times the route's p99; `"tight"` is the
    route's p95; a number is your own limit."""
    concise: Level = 0
    """1 to 3: ask the model for a short answer; a higher level asks for a shorter one."""
    concise_examples: bool = False
    """Also show the model two short answers."""
    holdout: Share = 0.1
    """Share of the conversations without `tight` and `concise`, to measure the savings of both."""
    edits: EditMode = "off"
    """For requests to change a long document ([edits](output-edits.md)): `"blocks"` asks the model
    only for the changes and applies them; `"prediction"` gives the document to providers that
    accept a predicted output."""
    quotes: bool = False
    """Let the model quote retrieved documents by number ([quotes](output-edits.md#quotes))."""
    predictions: bool = False
    """Give the answer of a similar prompt to providers that accept a predicted output
    ([predictions](output-edits.md#predicted-outputs))."""

    def at(self, route: RouteSettings | None) -> OutputSettings:
        """Return the effective values on a route, or outside of all routes (None)."""
        if route is None:
            return self
        chosen = {
            "max_tokens": route.max_output,
            "concise": route.concise,
            "edits": route.edits,
            "quotes": route.quotes,
            "predictions": route.predictions,
        }
        stated = {name: value for name, value in chosen.items() if value is not None}
        return msgspec.structs.replace(self, **stated)


class PriceSettings(Section):
    """Dollars per million tokens of one model, and per call."""

    input_per_million: Dollars
    """Prompt tokens."""
    output_per_million: Dollars
    """Answer tokens."""
    cached_per_million: Dollars | None = None
    """Prompt tokens that were read from the provider's prefix cache. None: the price of input."""
    cache_write_per_million: Dollars | None = None
    """Prompt tokens that were written to the provider's prefix cache. None: the price of input."""
    per_request: Dollars = 0.0
    """Dollars for each call."""


class PricesSettings(Section):
    """``[prices]``: prices of models beside those that are shipped."""

    file: str | None = None
    """File that [`headstart prices import`](providers.md#prices) has written. Its prices come
    before the shipped ones, and after `upstream.price`."""


class OtelSettings(Section):
    """``[otel]``: traces and metrics for an OpenTelemetry collector; needs the extra `otel`."""

    enabled: bool | None = None
    """Send traces and metrics. None: if a variable such as `OTEL_EXPORTER_OTLP_ENDPOINT` asks for
    it."""
    endpoint: str | None = None
    """Base URL of a collector that speaks OTLP over HTTP, such as `http://localhost:4318`. None:
    `OTEL_EXPORTER_OTLP_ENDPOINT`, else `http://localhost:4318`."""
    service_name: str = "headstart"
    """Name of the service in traces, if `OTEL_SERVICE_NAME` is not set."""
    sample: Share | None = None
    """Share of the traces to send, if the caller's trace does not decide. None:
    `OTEL_TRACES_SAMPLER`, else all."""


class UpstreamSettings(Section):
    """``[[upstream]]``: one provider. ``checked`` fills in the facts of its preset."""

    preset: str | None = None
    """A provider's name in [the table of presets](providers.md#presets)."""
    base_url: str = ""
    """The address in the form that the provider's SDK uses: `https://api.openai.com/v1`,
    `https://api.anthropic.com`. Required without a preset."""
    name: Annotated[
        str, msgspec.Meta(pattern=r"^[!-~]*$", description="ASCII letters and signs, no space")
    ] = ""
    """Name of the upstream in routes, logs, headers and metrics. Empty: the preset's name, else the
    host of the URL."""
    dialect: DialectName | None = None
    """The wire format: `"openai"`, `"responses"`, `"anthropic"`, `"gemini"`, `"cohere"`,
    `"bedrock"`, or `"completions"` for a server that has [legacy
    completions](other-calls.md#completions) alone. None: the preset's dialect; without a preset,
    `"openai"`. Requests in another one are translated into it."""
    also_speaks: tuple[DialectName, ...] | None = None
    """Further dialects that the provider understands at the same address: requests in them pass
    untranslated. None: the preset's; without a preset, none."""
    api_key_env: str | tuple[str, ...] | None = None
    """Variable with the key to send, or a list of such variables; if the provider refuses a key or
    its limit is used up, Headstart uses another. None: the preset's variable; without a preset
    Headstart passes on the caller's own key, as with `[]`."""
    api_version: (
        Annotated[str, msgspec.Meta(pattern=r"^[!-~]+$", description='a text such as "2024-10-21"')]
        | None
    ) = None
    """Version of Azure's API in calls to `/openai/deployments/MODEL/...`. None: Azure's newer paths
    below `/openai/v1`, which need no version."""
    auth: AuthName | None = None
    """How Headstart authenticates to the provider: with a `"key"`, or with credentials of
    [`"aws"`](providers.md#aws-bedrock) or [`"google"`](providers.md#google-vertex-ai). None: as the
    preset says, else with a key."""
    region: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]+$")] | None = None
    """Region of a cloud provider, such as `us-east-1`. None: the provider's usual variable."""
    project: str | None = None
    """Project in Google Cloud. None: the project of the credentials, or `GOOGLE_CLOUD_PROJECT`."""
    credentials_file: str | None = None
    """File with the key of a Google service account. None: `GOOGLE_APPLICATION_CREDENTIALS`."""
    models: dict[str, str] = msgspec.field(default_factory=dict)
    """Aliases: `{ fast = "llama-3.3-70b-versatile" }`. A preset adds the [common
    names](providers.md#equal-models) of its models."""
    price: dict[str, PriceSettings] = msgspec.field(default_factory=dict)
    """Dollars per million tokens, by the model name that is sent, or `default`: `{
    input_per_million = 0.15, output_per_million = 0.60 }`, and if they differ `cached_per_million`,
    `cache_write_per_million` and `per_request`. Without it Headstart uses [the price
    book](providers.md#prices)."""
    price_file: str | None = None
    """File of prices for this upstream. None: `prices.file`."""
    price_multiplier: Positive = 1.0
    """Factor on every price: a speed tier, a discount, a mark-up."""
    tier: Literal["flex", "priority", "fast"] | None = None
    """Tier of the provider: its requests name the tier, and have [its price](providers.md#tiers). A
    route may name a tier of an upstream without a table of its own: `"openai:flex"`."""
    price_per_hour: Dollars | None = None
    """Dollars an hour of your own machine, busy or not. Its calls then cost nothing more, and
    `headstart report` uses `price` only to show [how busy the machine is and its
    break-even](report.md#machines-by-the-hour)."""
    cancels_billing: bool | None = None
    """Whether a cancelled call stops costing money. None: the preset decides; for your own server
    or a free one it is true; if it is [not known](providers.md#presets), it counts as false."""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    """Headers to send; each takes the place of the caller's header of this name, but
    `anthropic-beta` and `openai-beta` add to the caller's. Headstart never shows their values."""
    fields: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields to add to every request body, such as `{ service_tier = "flex" }`."""
    drops: tuple[str, ...] = ()
    """Request fields that the upstream rejects, in addition to the preset's list, and types of
    tools to leave out of translated requests; `x-headstart-transforms` names what was dropped."""
    unsupported: Literal["drop", "refuse"] = "drop"
    """Treatment of a field that the upstream does not accept: `"drop"`, named in the header, or
    `"refuse"` with 400."""
    quirks: Quirks = Quirks()
    """Other [deviations](providers.md#quirks) from its dialect."""
    include_usage: bool = True
    """Ask for token counts in streams, and remove them for callers who did not ask for them."""
    connect_s: Seconds = 10.0
    """Longest time to connect, from the search for the address on."""
    first_token_s: Seconds | None = None
    """Longest wait for the first content. None: the larger of 30 s and four times the learned p99,
    if another upstream could be asked."""
    stall_s: Seconds | None = None
    """Longest gap within an answer. None: the larger of 5 s and ten times the learned p99; at least
    30 s while the p99 is unknown or the model may call tools; four times as long while only pings
    arrive."""
    read_s: Seconds = 120.0
    """Longest silence on the connection once the answer has begun."""
    warm: bool = False
    """When Headstart cancels a call and its connection closes, open a new one at once with a `HEAD`
    request ([strategies.md](strategies.md#connections))."""
    proxy: str | None = None
    """URL of an HTTP proxy. The variables `HTTP_PROXY` and `HTTPS_PROXY` are not used."""
    ca_file: str | None = None
    """PEM file of certificate authorities that replaces the system's."""
    client_cert_file: str | None = None
    """PEM file with a certificate and its key, for a provider that asks for one (mutual TLS)."""

    @property
    def speaks(self) -> DialectName:
        """``dialect``, or its default."""
        return self.dialect or "openai"

    @property
    def further(self) -> tuple[DialectName, ...]:
        """``also_speaks``, or its default."""
        return self.also_speaks or ()

    @property
    def key_variables(self) -> tuple[str, ...]:
        """The variables of its own keys; without any, the caller's key passes."""
        named = self.api_key_env or ()
        return (named,) if isinstance(named, str) else named

    @property
    def has_own_key(self) -> bool:
        """Whether calls have the upstream's own key or signature, and never a caller's key."""
        return bool(self.key_variables) or self.auth not in (None, "key")


class JudgeInCode:
    """A function that judges drafts. No file can name it: see ``strategies.cascade``."""

    def __init__(self, ask: DraftJudge) -> None:
        self.ask = ask

    def __repr__(self) -> str:
        return repr(self.ask)


class Strategy(Section):
    """How upstreams answer together, with all effective values: see ``strategies.strategy_of``."""

    strategy: StrategyName = "single"
    """[How the upstreams work together](#strategies)."""
    upstreams: tuple[str | Strategy, ...] = ()
    """Names of upstreams, or [tables](#strategies-inside-strategies). None on a route: the model
    decides, as without a route."""
    extra_calls: Share = 0.05
    """Hedges and other extra calls, as a share of all requests."""
    extra_cost: Share = 0.05
    """Cost of extra calls, as a share of the cost of the route."""
    hedge_floor_s: Seconds = 0.05
    """Shortest wait before a hedge; above it Headstart learns the wait."""
    retries: Annotated[int, msgspec.Meta(ge=0, le=10)] = 1
    """Number of retries on the same upstream."""
    within_s: Seconds | None = None
    """`cheapest`: only among upstreams whose expected time is at most this."""
    max_usd: Dollars | None = None
    """`fastest`: only among upstreams whose expected cost per call is at most this."""
    race_billed: bool = False
    """Allow races and hedges with providers that may bill a cancelled call in full; with `false`
    Headstart refuses them."""
    equal_models: EqualModels = "check"
    """`"check"`: only [equal models](providers.md#equal-models) may race and hedge; `"assume"`: you
    know that the models are equal."""
    first_complete: bool = False
    """`false`: the first token wins; `true`: the first complete answer wins, and you pay for all
    answers."""
    judge: tuple[Judge, ...] = ("refusal", "format")
    """`cascade`: checks that a draft must pass; also `"logprob"`, `"prompt"` (difficulty of the
    prompt alone) and `"agreement"` (of two cheap answers)."""
    judges: tuple[JudgeInCode, ...] = ()
    """`cascade`: [your own functions](cascade.md#judges-of-your-own) that also judge drafts; only
    in code."""
    min_confidence: Share = 0.5
    """`cascade`: lowest confidence in a draft that Headstart serves."""
    escalate_early: bool = False
    """`cascade`: start the slow model at once if the draft is likely to fail."""
    deadline_s: Seconds | None = None
    """Longest time to the end of an answer. None: `server.deadline_s`."""
    early_200_s: Seconds | None = None
    """Time without content after which Headstart answers 200 with a comment (OpenAI's dialect).
    Later failures are then errors inside the stream. None: never."""
    rescue: Rescue = "restart"
    """When an answer breaks off: `"restart"` asks for a new answer and goes on where the two agree;
    `"prefill"` lets providers continue the answer if they can; `"off"` gives the caller an
    error."""
    sticky: bool = False
    """Keep a conversation at the provider that has its prefix cached, even if another upstream
    comes first."""

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the upstreams, nested ones included, in order."""
        return tuple(
            name
            for each in self.upstreams
            for name in ((each,) if isinstance(each, str) else each.members)
        )

    @property
    def composition(self) -> str:
        """The strategy as code writes it: ``fallback(hedge(a, b), c)``."""
        parts = (each if isinstance(each, str) else each.composition for each in self.upstreams)
        return f"{self.strategy}({', '.join(parts)})"

    @property
    def nested(self) -> bool:
        """Whether a member is a strategy itself."""
        return any(isinstance(each, Strategy) for each in self.upstreams)


_OF_A_ROUTE = ("deadline_s", "early_200_s", "rescue")
"""Settings of ``Strategy`` that only a route has, not a strategy inside it."""
_OF_A_USE = ("sticky",)
"""Settings of ``Strategy`` that only the data of a ``use`` can have."""


def _optional(names: Iterable[str]) -> list[tuple[str, Any, None]]:
    """Return fields of ``Strategy`` as a user may leave them out: None until they are written."""
    fields = {field.name: field.type for field in msgspec.structs.fields(Strategy)}
    return [(name, Optional[fields[name]], None) for name in names]  # noqa: UP045 - a value


if TYPE_CHECKING:

    class StrategySettings(Strategy):
        """A strategy as the user wrote it: each setting that was not written is None.

        It is a route, or a table in place of one of its upstreams. The route's ``use`` decides for
        a setting that was not written, then the table around this one, then the default.
        """

        upstreams: tuple[str | StrategySettings, ...] = ()

    class _RouteStrategy(StrategySettings):
        pass

else:
    StrategySettings = msgspec.defstruct(
        "StrategySettings",
        [
            ("upstreams", "tuple[str | StrategySettings, ...]", ()),
            *_optional(
                name
                for name in Strategy.__struct_fields__
                if name not in ("upstreams", *_OF_A_ROUTE, *_OF_A_USE)
            ),
        ],
        bases=(Section,),
        module=__name__,
        kw_only=True,
    )
    _RouteStrategy = msgspec.defstruct(
        "_RouteStrategy",
        _optional(_OF_A_ROUTE),
        bases=(StrategySettings,),
        module=__name__,
        kw_only=True,
    )


class RouteMatch(Section):
    """The requests that a ``[[route]]`` is for: all its patterns have to fit."""

    model: str = "*"
    """Pattern of the model's name, with `*`, `?` and `[abc]`."""
    path: str = "*"
    """Pattern of the path."""
    header: dict[str, str] = msgspec.field(default_factory=dict)
    """Patterns by header name; an absent header fits no pattern."""


class RouteSettings(_RouteStrategy, kw_only=True):
    """``[[route]]``: other rules for some requests; the first route that fits is taken."""

    name: Annotated[
        str, msgspec.Meta(pattern=r"^[!-~]+$", description="ASCII letters and signs, no space")
    ]
    """Name of the route in reports. Headstart keeps its learning domain under this name."""
    match: RouteMatch = RouteMatch()
    """Patterns of `model`, `path` and `header` values with `*`, `?` and `[abc]`. All must match,
    and case matters. Empty: every request."""
    use: Use | None = None
    """[Defaults](#defaults-by-use) for a kind of traffic."""
    compression: CompressionMode | None = None
    """The route's own `compression.mode`."""
    max_output: MaxOutput | None = None
    """The route's own `output.max_tokens`."""
    concise: Level | None = None
    """The route's own `output.concise`."""
    edits: EditMode | None = None
    """The route's own `output.edits`."""
    quotes: bool | None = None
    """The route's own `output.quotes`."""
    predictions: bool | None = None
    """The route's own `output.predictions`."""
    max_error: Percent | None = None
    """The route's own target. It must be stricter than `cache.max_error`; a less strict one has no
    effect."""
    query: str | None = None
    """Regular expression over the last user text. Its group `query`, without spaces around it, is
    the question: Headstart compares the question by meaning, and all the rest must be equal. The
    expression reads texts of users: one that ends in `.+?\\s*$` takes seconds on 30,000 spaces."""
    semantic: bool = True
    """`false`: serve only exact repeats."""
    cached_tools: str | tuple[str, ...] | None = None
    """The route's own `cache.cached_tools`; `[]` for none."""
    never_stored: str | tuple[str, ...] | None = None
    """The route's own `cache.never_stored`; `[]` for none."""
    ttl_s: Seconds | None = None
    """Lifetime of the route's entries in seconds. None: `cache.ttl_s`."""
    on_repeat: OnRepeat = "hit"
    """`"fresh"`: if a caller soon sends the same request again, it gets [another
    answer](#another-answer-to-the-same-request)."""
    repeat_window_s: Seconds | None = None
    """For `fresh`: the longest time in seconds between an answer and its repeat. None: 120."""


class LiveSettings(Section):
    """`[live]`: [live drafts](live-drafts.md), whose answers begin while prompts are written."""

    enabled: bool = False
    """Take live drafts at `/v1/live`. They need an `[[upstream]]` and one worker."""
    stages: tuple[LiveStage, ...] = ("lookup",)
    """The work that Headstart may do while a prompt is written: `"lookup"` asks the cache, `"warm"`
    fills the provider's prompt cache, `"answer"` makes the whole call, `"infer"` works out parts of
    long prompts ([more](live-drafts.md#inferences)). The last three send drafts to providers and
    cost money."""
    warm_usd: Dollars = 0.01
    """Most dollars that a draft may spend on its prompt cache."""
    answer_usd: Dollars = 0.05
    """Most dollars that a draft may spend on answers."""
    infer_usd: Dollars = 0.01
    """Most dollars that a draft may spend on inferences."""
    max_extra_cost: Share = 0.1
    """Highest cost of calls that nobody used, as a share of the cost of final calls, by caller."""
    pause_s: Seconds = 0.6
    """Seconds without a change after which a text counts as finished. At the end of a sentence it
    counts as finished at once."""
    max_calls: Count = 8
    """Most calls for one draft."""
    max_drafts: Count = 1000
    """Most drafts at a time."""
    ttl_s: Annotated[float, msgspec.Meta(gt=0.0, le=120.0)] = 120.0
    """Number of seconds after its last revision at which a draft ends."""


class BatchSettings(Section):
    """`[batches]`: [batches of clients](batch.md#batches-of-clients), which Headstart runs."""

    dir: str | None = None
    """Folder for the files of batches. None: `/v1/files` and `/v1/batches` are relayed to the
    provider. It holds prompts and answers; only the user of the server may read it."""
    concurrency: Count = 64
    """Most calls of one batch at the same time. Their number follows the provider's limit."""
    max_running: Count = 4
    """Batches that run at the same time; the others wait. One place is never taken by a caller who
    has the others, unless there is only one."""
    max_file_bytes: Count = 100 * 1024 * 1024
    """The largest input file; on a larger one the answer is 413."""
    max_bytes: Count = 4 * 1024 * 1024 * 1024
    """Bytes of all files in the folder; if they are reached, the answer to an upload, or to a new
    batch, is 413. While files arrive, their sizes count."""
    keep_days: Count = 30
    """Number of days after which files and batches are deleted."""


class Settings(Section):
    """The whole configuration."""

    server: ServerSettings = ServerSettings()
    cache: CacheSettings = CacheSettings()
    encoder: EncoderSettings = EncoderSettings()
    learning: LearningSettings = LearningSettings()
    upstream: tuple[UpstreamSettings, ...] = ()
    route: tuple[RouteSettings, ...] = ()
    record: RecordSettings = RecordSettings()
    compression: CompressionSettings = CompressionSettings()
    output: OutputSettings = OutputSettings()
    prices: PricesSettings = PricesSettings()
    otel: OtelSettings = OtelSettings()
    live: LiveSettings = LiveSettings()
    batches: BatchSettings = BatchSettings()


def masked_url(url: str) -> str:
    """Return the URL with user, password and query masked."""
    return _USER_OR_QUERY.sub(MASK, url)


def masked_variable(name: str) -> str:
    """Return a variable's name, masked unless in capitals, because it may be a key."""
    return name if _VARIABLE.fullmatch(name) else MASK


def masked(section: msgspec.Struct) -> dict[str, Any]:
    """Return settings as plain data, with keys, header values and passwords masked."""
    return {name: _masked(name, getattr(section, name)) for name in section.__struct_fields__}


def _masked(name: str, value: object) -> object:
    if name == "client_keys" and isinstance(value, dict):
        value = dict.fromkeys(value, MASK)
    elif name == "client_keys" and isinstance(value, tuple):
        value = [MASK] * len(value)
    elif name.endswith("_env") and isinstance(value, tuple):
        value = [masked_variable(each) for each in value]
    elif name.endswith("_env") and isinstance(value, str):
        value = masked_variable(value)
    elif name == "headers" and isinstance(value, dict):
        value = dict.fromkeys(value, MASK)
    elif name in _URLS and isinstance(value, str):
        value = masked_url(value)
    elif isinstance(value, msgspec.Struct):
        value = masked(value)
    elif isinstance(value, dict):
        value = {key: _masked("", inner) for key, inner in value.items()}
    elif isinstance(value, tuple):
        value = [_masked("", inner) for inner in value]
    return value
