"""A provider of Responses that keeps its answers for each key, as the real one does."""

from __future__ import annotations

import json
import secrets
from typing import Any

from support.scripted import lifespan, whole_body

UNKNOWN = "Previous response with id '{}' not found."


class ResponsesProvider:
    """Answers ``said N: LAST TEXT``, where N counts the texts of the conversation.

    It refuses ids that the key does not have, also in items. ``reasons``: answers begin with
    encrypted reasoning, which another provider cannot read. ``calls``: the number of next answers
    that call a tool. ``forgets``: it keeps no answer and says so, and ignores the id of an earlier
    answer, as Ollama does.
    """

    def __init__(self, name: str = "", *, reasons: bool = False, forgets: bool = False) -> None:
        self.name = name or secrets.token_hex(3)
        self.forgets = forgets
        self.reasons = reasons
        self.calls = 0
        self.asked: list[dict[str, Any]] = []
        """The bodies of requests."""
        self.paths: list[tuple[str, str]] = []
        self.kept: dict[tuple[str, str], dict[str, Any]] = {}
        self.status = 200
        self.breaks = 0
        """The number of next streams that break off. Their answers are not kept."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await lifespan(receive, send)
        body = await whole_body(receive)
        self.paths.append((scope["method"], scope["path"]))
        key = dict(scope["headers"]).get(b"authorization", b"").decode()
        if scope["method"] != "POST":
            id = scope["path"].rsplit("/", 1)[-1]
            found = self.kept.get((key, id))
            status, answer = (200, found["response"]) if found else (404, error("no such response"))
            return await _whole(send, status, answer)
        asked = json.loads(body)
        self.asked.append(asked)
        status, answer = self._answer(key, asked)
        if status == 200 and asked.get("stream"):
            if self.breaks:
                self.breaks -= 1
                del self.kept[key, answer["id"]]
                return await _stream(send, answer, most=6)
            await _stream(send, answer)
        else:
            await _whole(send, status, answer)

    def _answer(self, key: str, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.status != 200:
            return self.status, error("down")
        items: list[dict[str, Any]] = []
        previous = None if self.forgets else asked.get("previous_response_id")
        if previous is not None:
            if (key, previous) not in self.kept:
                message = UNKNOWN.format(previous)
                return 400, error(message, "previous_response_id", "previous_response_not_found")
            items += self.kept[key, previous]["context"]
        own = asked["input"]
        own = [{"role": "user", "content": own}] if isinstance(own, str) else own
        known = {
            i["id"]: i
            for (k, _), kept in self.kept.items()
            if k == key
            for i in kept["context"]
            if "id" in i
        }
        for item in own:
            id = item.get("id")
            if item.get("type") == "item_reference" and id in known:
                items.append(known[id])
                continue
            sealed = item.get("type") == "reasoning"
            readable = str(item.get("encrypted_content")).startswith(self.name)
            if (id is not None and id not in known and not sealed) or (sealed and not readable):
                return 404, error(f"Item with id '{id}' not found.", "input")
            items.append(item)
        texts = [_text(item) for item in items if _text(item)]
        output: list[dict[str, Any]] = []
        if self.reasons:
            sealed = f"{self.name}-{secrets.token_hex(8)}"
            output.append(
                {"id": _id("rs"), "type": "reasoning", "summary": [], "encrypted_content": sealed}
            )
        if self.calls:
            self.calls -= 1
            output.append({
                "id": _id("fc"), "type": "function_call", "status": "completed",
                "call_id": "call_" + secrets.token_hex(8), "name": "look", "arguments": "{}",
            })  # fmt: skip
        else:
            part = {
                "type": "output_text",
                "text": f"said {len(texts)}: {texts[-1]}",
                "annotations": [],
            }
            output.append({
                "id": _id("msg"), "type": "message", "status": "completed", "role": "assistant",
                "content": [part],
            })  # fmt: skip
        response = {
            "id": _id("resp"), "object": "response", "created_at": 1760000000,
            "status": "completed", "model": asked["model"], "output": output, "error": None,
            "incomplete_details": None, "instructions": asked.get("instructions"),
            "metadata": {}, "parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "auto",
            "tools": asked.get("tools", []), "top_p": 1.0, "previous_response_id": previous,
            "usage": {
                "input_tokens": 10, "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": 15,
            },
        }  # fmt: skip
        if self.forgets:
            response["store"] = False
        elif asked.get("store", True):
            self.kept[key, response["id"]] = {"response": response, "context": [*items, *output]}
        return 200, response


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(24)}"


def _text(item: dict[str, Any]) -> str:
    content = item.get("content", item.get("output"))
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or ())


def error(message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    said = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return {"error": said}


async def _whole(send: Any, status: int, document: dict[str, Any]) -> None:
    body = json.dumps(document).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _stream(send: Any, response: dict[str, Any], most: int | None = None) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    opening = {**response, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": opening},
        {"type": "response.in_progress", "response": opening},
    ]
    for index, item in enumerate(response["output"]):
        events += _item_events(index, item)
    events.append({"type": "response.completed", "response": response})
    for number, event in enumerate(events[:most]):
        data = json.dumps({**event, "sequence_number": number})
        frame = f"event: {event['type']}\ndata: {data}\n\n".encode()
        await send({"type": "http.response.body", "body": frame, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _item_events(index: int, item: dict[str, Any]) -> list[dict[str, Any]]:
    place = {"output_index": index}
    of = {**place, "item_id": item["id"]}
    begun: dict[str, Any] = {**item}
    told: list[dict[str, Any]] = []
    if item["type"] == "message":
        begun |= {"status": "in_progress", "content": []}
        [part] = item["content"]
        text = part["text"]
        at = {**of, "content_index": 0}
        told = [
            {"type": "response.content_part.added", **at, "part": {**part, "text": ""}},
            {"type": "response.output_text.delta", **at, "delta": text[:4], "logprobs": []},
            {"type": "response.output_text.delta", **at, "delta": text[4:], "logprobs": []},
            {"type": "response.output_text.done", **at, "text": text, "logprobs": []},
            {"type": "response.content_part.done", **at, "part": part},
        ]
    elif item["type"] == "function_call":
        begun |= {"status": "in_progress", "arguments": ""}
        said = item["arguments"]
        told = [
            {"type": "response.function_call_arguments.delta", **of, "delta": said},
            {"type": "response.function_call_arguments.done", **of, "arguments": said},
        ]
    return [
        {"type": "response.output_item.added", **place, "item": begun},
        *told,
        {"type": "response.output_item.done", **place, "item": item},
    ]
