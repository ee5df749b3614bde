"""LangChain through the sidecar: ``base_url`` alone changes.

headstart simulate --port 9090 &
HEADSTART_CACHE__COLD_START=optimistic headstart serve --upstream http://127.0.0.1:9090/v1 &
python examples/langchain_chat.py http://127.0.0.1:8080/v1
"""

from __future__ import annotations

import sys

import httpx
from langchain_openai import ChatOpenAI
from pydantic import SecretStr


def ask(base_url: str, question: str) -> tuple[str, str]:
    """Return the answer and how it was served."""
    with (
        httpx.Client() as http_client
    ):  # to close the connection; LangChain's own client stays open
        model = ChatOpenAI(
            model="gpt-4o-mini",
            base_url=base_url,
            api_key=SecretStr("any"),
            http_client=http_client,
            include_response_headers=True,
        )
        answer = model.invoke(question)
    return str(answer.content), answer.response_metadata["headers"]["cache-status"]


if __name__ == "__main__":
    for question in ("How can I sign up for ChatGPT?", "I want to sign up for ChatGPT"):
        text, verdict = ask(sys.argv[1], question)
        print(f"{verdict}\n  {question}\n  {text[:60]}…")
