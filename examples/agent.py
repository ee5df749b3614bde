"""An agent with a tool, through the sidecar.

When a task is done again, the agent repeats its calls. ``cache.cached_tools`` lets these be hits:

    headstart simulate --port 9090 &
    HEADSTART_CACHE__CACHED_TOOLS=get_weather \\
        headstart serve --upstream http://127.0.0.1:9090/v1 &
    python examples/agent.py http://127.0.0.1:8080/v1

Only exact repeats of a conversation get a stored call of a tool, and the agent runs the tool itself
each time. Name tools that only read.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, cast

from openai import OpenAI

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
MOST_TURNS = 5


def get_weather(city: str) -> str:
    """Return the weather: ask a service here."""
    return json.dumps({"city": city, "temperature_c": 18})


def run(base_url: str, task: str) -> tuple[str, list[str]]:
    """Return the agent's answer, and how each of its calls was served."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": task}]
    verdicts: list[str] = []
    with OpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        for _ in range(MOST_TURNS):
            raw = client.chat.completions.with_raw_response.create(
                model="gpt-4o-mini", messages=messages, tools=[TOOL]
            )
            verdicts.append(raw.headers["cache-status"])
            message = raw.parse().choices[0].message
            if not message.tool_calls:
                return message.content or "", verdicts
            said = message.model_dump(exclude_none=True)
            messages.append(cast("ChatCompletionMessageParam", said))
            for call in message.tool_calls:
                assert call.type == "function"
                result = get_weather(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return "", verdicts


if __name__ == "__main__":
    for _ in range(2):
        answer, verdicts = run(sys.argv[1], "What is the weather in Paris?")
        print("\n".join(verdicts), f"\n  {answer[:60]}…")
