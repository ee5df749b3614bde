"""Trace single requests through a gateway, and count the code of the package that each one crosses.

    python -m scripts.house_path

The gateway runs in this process and is called as an ASGI app. The provider behind it is a small
server in the same event loop. It sends the next piece of a stream when the client has received the
piece before, so that every run sees the same pieces. Prints JSON. ``scripts.house`` runs this
module in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, is_dataclass
from dis import opmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from types import CodeType, FrameType

PACKAGE = Path(__file__).resolve().parents[1] / "headstart"
RESUME = opmap["RESUME"]
CHAT = "/v1/chat/completions"
WORDS = ("Three", " short", " words")
HEAD = {"id": "chatcmpl-1", "created": 1, "model": "m"}
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
PIECE_S = 0.25
"""The provider waits no longer than this for the client to receive a piece."""
SETTLE_S = 0.6
"""Work that outlives an answer is done after this time, the periodic flush of the books too."""
ULID_S = 1.024
"""Identifiers have the same first characters for so long."""
WARM_UPS = 2
"""Requests before the traced one. They open the connections and fill the caches."""
CONSTRUCTORS = ("__init__", "__post_init__", "__new__", "<lambda>")
"""Names of the code that makes an instance; a NamedTuple has a lambda as its ``__new__``."""

in_request: ContextVar[bool] = ContextVar("in_request", default=False)
"""True in the traced request and in all tasks that it starts."""


@dataclass(frozen=True)
class PathCounters:
    """The code of the package that one request crosses."""

    files: int
    functions: int
    calls: int
    """Calls of functions and coroutines. A coroutine that continues is not a new call."""
    switches: int
    """Calls whose file is not the file of the call before, in the same thread."""
    objects: int
    """New instances of classes that have a constructor in the package's source."""
    instances: int
    """The same, and new structs, dataclasses and named tuples."""


@dataclass
class Trace:
    """A profile function that counts calls of code in ``package``."""

    package: Path
    _files: set[str] = field(default_factory=set)
    _functions: set[CodeType] = field(default_factory=set)
    _calls: int = 0
    _switches: int = 0
    _objects: int = 0
    _instances: int = 0
    _last_files: dict[int, str] = field(default_factory=dict)

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Take one event of ``sys.setprofile``."""
        if event != "call" or not _begins(frame):
            return
        code = frame.f_code
        is_ours = code.co_filename.startswith(f"{self.package}/")
        if code.co_name in CONSTRUCTORS:
            self._count_instance(frame, is_ours=is_ours)
        # Before Python 3.12 a comprehension is a function of its own.
        if not is_ours or code.co_name.endswith("comp>"):
            return
        self._files.add(code.co_filename)
        self._functions.add(code)
        self._calls += 1
        thread = threading.get_ident()
        self._switches += self._last_files.get(thread, code.co_filename) != code.co_filename
        self._last_files[thread] = code.co_filename

    def _count_instance(self, frame: FrameType, *, is_ours: bool) -> None:
        code = frame.f_code
        if not code.co_argcount:
            return
        made = frame.f_locals[code.co_varnames[0]]
        if code.co_name == "__post_init__" and is_dataclass(made):
            return  # its ``__init__`` was counted
        if code.co_varnames[0] == "_cls":  # ``__new__`` of a NamedTuple
            made_class = made
        else:
            made_class = type(made)
            constructor = getattr(made_class, code.co_name, None)
            if getattr(constructor, "__code__", None) is not code:
                return  # the constructor of a base class
        if made_class.__module__.split(".")[0] == self.package.name:
            self._instances += 1
            self._objects += is_ours and code.co_name == "__init__"

    @property
    def counters(self) -> PathCounters:
        """The sums so far."""
        return PathCounters(
            files=len(self._files),
            functions=len(self._functions),
            calls=self._calls,
            switches=self._switches,
            objects=self._objects,
            instances=self._instances,
        )


def _begins(frame: FrameType) -> bool:
    """Return whether a function begins, not a generator that continues or gets an exception.

    A function begins at the opcode RESUME, with 0 in its lowest bits.
    """
    opcode, argument = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 2]
    return opcode == RESUME and argument & 3 == 0


class CountedStruct(msgspec.Struct):
    """Takes the place of ``msgspec.Struct``, so that the profile function sees new structs."""

    def __post_init__(self) -> None:
        """Do nothing: the call is the news."""


class Provider:
    """An OpenAI provider that answers every prompt with ``WORDS``.

    An upstream whose path begins with ``/slow`` never answers. While ``racers`` is 2, the other
    one waits until both have been asked.
    """

    def __init__(self) -> None:
        self.received = asyncio.Event()
        """The client has received a piece."""
        self.racers = 1
        self._asked = asyncio.Semaphore(0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until the gateway closes it."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:-2])
                body = json.loads(await reader.readexactly(int(fields["content-length"])))
                self._asked.release()
                if " /slow" in head:
                    await reader.read()
                    return
                for _ in range(self.racers):
                    await self._asked.acquire()
                if body.get("stream"):
                    options = body.get("stream_options") or {}
                    await self._stream(writer, with_usage=bool(options.get("include_usage")))
                else:
                    await self._answer(writer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        message = {"role": "assistant", "content": "".join(WORDS)}
        body = _completion("chat.completion", usage=USAGE, message=message, finish_reason="stop")
        head = f"content-type: application/json\r\ncontent-length: {len(body)}"
        writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode() + body)

    async def _stream(self, writer: asyncio.StreamWriter, *, with_usage: bool) -> None:
        first, *more = ({"content": word} for word in WORDS)
        chunks = [_chunk({"role": "assistant", "content": ""}) + _chunk(first)]
        chunks += map(_chunk, more)
        end = _chunk({}, "stop")
        if with_usage:
            document = {**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": USAGE}
            end += b"data: " + json.dumps(document).encode() + b"\n\n"
        chunks += [end + b"data: [DONE]\n\n"]
        head = "content-type: text/event-stream\r\ntransfer-encoding: chunked"
        writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode())
        for chunk in chunks[:-1]:
            self.received.clear()
            writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            async with asyncio.timeout(PIECE_S):
                await self.received.wait()
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(chunks[-1]), chunks[-1]))


def _chunk(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    data = _completion("chat.completion.chunk", delta=delta, finish_reason=finish_reason)
    return b"data: " + data + b"\n\n"


def _completion(kind: str, usage: object = None, **choice: object) -> bytes:
    counted = {} if usage is None else {"usage": usage}
    choices = [{"index": 0, **choice}]
    return json.dumps({**HEAD, "object": kind, "choices": choices, **counted}).encode()


class Bench:
    """Sends requests to gateways in front of one provider, and traces some of them."""

    def __init__(self, port: int, provider: Provider) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._provider = provider
        self._trace: Trace | None = None
        # The encoder's thread starts with the first gateway, so this has to come before.
        threading.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        """Pass on the events of the traced request.

        They are those of its own tasks and those of other threads. Tasks of the gateway's own,
        such as the store's periodic flush, run at times that no request decides.
        """
        trace = self._trace
        if trace is not None and (
            in_request.get() or threading.current_thread() is not threading.main_thread()
        ):
            trace(frame, event, argument)

    async def measure(
        self,
        mode: str,
        *,
        stream: bool = True,
        repeats: bool = False,
        race: bool = False,
    ) -> PathCounters:
        """Return the counters of one request behind a fresh gateway, after some others."""
        from headstart.config.loading import load_settings
        from headstart.mount import gateway
        from headstart.types import new_ulid

        self._provider.racers = 2 if race else 1
        paths = ("", "/slow") if race else ("",)
        names = [f"provider{path.replace('/', '-')}" for path in paths]
        settings: dict[str, Any] = {
            "cache.store": "memory:",
            "cache.mode": mode,
            "cache.audit.mode": "off",
            "encoder.max_wait_ms": 10_000.0,
            "upstream": [
                {"name": name, "base_url": f"{self._url}{path}/v1"}
                for name, path in zip(names, paths, strict=True)
            ],
        }
        if race:
            rules = {"strategy": "race", "race_billed": True, "equal_models": "assume"}
            settings["route"] = [{"name": "race", "upstreams": names, **rules}]
        app = gateway(load_settings(None, {}, settings))
        try:
            for number in range(WARM_UPS):
                await self._ask(app, f"Name the {number + 1}. planet", stream=stream)
            prompt = "Describe how a bridge carries its load"
            for _ in range(WARM_UPS if repeats else 0):
                await self._ask(app, prompt, stream=stream)
            await asyncio.sleep(SETTLE_S)
            # Identifiers of one such interval share a part that is made once, here.
            now = time.time()  # noqa: TID251 - the clock of the gateway's identifiers
            await asyncio.sleep(ULID_S - now % ULID_S)
            new_ulid(time.time)  # noqa: TID251 - the same
            return await self._traced(app, prompt, stream=stream)
        finally:
            await app.aclose()

    async def _traced(self, app: Any, prompt: str, *, stream: bool) -> PathCounters:
        self._trace = trace = Trace(PACKAGE)
        token = in_request.set(True)
        sys.setprofile(self._profile)
        try:
            await self._ask(app, prompt, stream=stream)
            await asyncio.sleep(SETTLE_S)
        finally:
            sys.setprofile(None)
            in_request.reset(token)
            self._trace = None
        return trace.counters

    async def _ask(self, app: Any, prompt: str, *, stream: bool) -> None:
        """Send one request and take its whole answer."""
        request: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
        body = json.dumps({**request, **({"stream": True} if stream else {})}).encode()
        headers = {
            "host": "localhost",
            "content-type": "application/json",
            "authorization": "Bearer key",
            "content-length": str(len(body)),
        }
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": CHAT,
            "raw_path": CHAT.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        ended = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] != 200:
                raise SystemExit(f"the gateway answered {message['status']}")
            if message.get("body"):
                self._provider.received.set()

        await app(scope, receive, send)
        ended.set()


async def measure_paths() -> dict[str, PathCounters]:
    """Return the counters of each kind of request."""
    provider = Provider()
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    async with server:
        bench = Bench(server.sockets[0].getsockname()[1], provider)
        return {
            "exact_hit": await bench.measure("exact-only", repeats=True),
            "json_miss": await bench.measure("exact-only", stream=False),
            "streamed_miss": await bench.measure("exact-only"),
            "encoded_miss": await bench.measure("serve"),
            "race_of_two": await bench.measure("exact-only", race=True),
        }


def main() -> None:
    """Measure and print. No module of the package may be loaded before this."""
    vars(msgspec)["Struct"] = CountedStruct
    paths = asyncio.run(measure_paths())
    print(json.dumps({name: asdict(counters) for name, counters in paths.items()}))


if __name__ == "__main__":
    main()
