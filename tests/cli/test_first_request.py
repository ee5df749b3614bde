"""A new process has loaded everything for its first requests before it accepts them."""

from __future__ import annotations

import subprocess
import sys

import msgspec

SCRIPT = """
import asyncio, json, sys, threading
from headstart.compression.tokens import is_loaded
from headstart.config.checks import checked
from headstart.settings import CacheSettings, Settings, UpstreamSettings
from headstart.sidecar import build_sidecar

EVENT = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
DELTA, END = {"content": "Hi"}, {"index": 0, "delta": {}, "finish_reason": "stop"}
USAGE = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
CHUNKS = [
    {**EVENT, "choices": [{"index": 0, "delta": DELTA}]},
    {**EVENT, "choices": [END], "usage": USAGE},
]
STREAM = "".join(f"data: {json.dumps(each)}\\n\\n" for each in CHUNKS) + "data: [DONE]\\n\\n"
ANSWER = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
WHOLE = json.dumps({**EVENT, "object": "chat.completion", "choices": [ANSWER], "usage": USAGE})

async def provide(reader, writer):
    head = await reader.readuntil(b"\\r\\n\\r\\n")
    length = head.lower().split(b"content-length:")[1].split(b"\\r\\n")[0]
    request = json.loads(await reader.readexactly(int(length)))
    kind, body = ("text/event-stream", STREAM) if request.get("stream") else (
        "application/json", WHOLE)
    head = f"content-type: {kind}\\r\\ncontent-length: {len(body)}\\r\\nconnection: close"
    writer.write(f"HTTP/1.1 200 OK\\r\\n{head}\\r\\n\\r\\n{body}".encode())
    writer.close()

async def ask(app, path, body):
    sent, messages = [], [{"type": "http.request", "body": json.dumps(body).encode()}]
    async def receive():
        return messages.pop() if messages else await asyncio.Event().wait()
    async def send(message):
        sent.append(message)
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
             "query_string": b"",
             "headers": [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer k")]}
    await app(scope, receive, send)
    assert sent[0]["status"] == 200, sent

def chat(number, **fields):
    text = f"What is the {number}th prime?"
    return {"model": "gpt-4o", "messages": [{"role": "user", "content": text}], **fields}

async def main():
    provider = await asyncio.start_server(provide, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{provider.sockets[0].getsockname()[1]}/v1"
    cache = CacheSettings(store="memory:")
    upstream = UpstreamSettings(name="up", base_url=url)
    app = build_sidecar(checked(Settings(upstream=(upstream,), cache=cache)))
    await app.running()
    known = set(sys.modules)
    tokenizers = [each.name for each in threading.enumerate() if each.name == "headstart-tokens"]
    rows = json.dumps([{"id": number, "state": "open"} for number in range(400)], indent=2)
    await ask(app, "/v1/chat/completions", chat(1))
    await ask(app, "/v1/chat/completions", chat(2, stream=True))
    await ask(app, "/v1/messages", chat(3, max_tokens=9))
    await ask(app, "/v1/chat/completions", chat(rows))
    print(json.dumps({
        "imported": sorted(set(sys.modules) - known),
        "tokenizers": tokenizers + [name for name in ["gpt-4o", "gpt-4"] if is_loaded(name)],
    }))
    await app.aclose()
    provider.close()

asyncio.run(main())
"""


def test_nothing_is_left_to_import_and_no_tokenizer_is_loaded_meanwhile() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    said = msgspec.json.decode(ended.stdout)
    assert said["imported"] == []
    assert said["tokenizers"] == []
