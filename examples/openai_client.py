"""The official OpenAI client through the sidecar: only ``base_url`` changes.

headstart simulate --port 9090 &
HEADSTART_CACHE__COLD_START=optimistic headstart serve --upstream http://127.0.0.1:9090/v1 &
python examples/openai_client.py http://127.0.0.1:8080/v1
"""

from __future__ import annotations

import sys

from openai import OpenAI


def ask(base_url: str, question: str) -> tuple[str, str]:
    """Return the answer and how it was served."""
    with OpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(
            model="gpt-4o-mini", messages=[{"role": "user", "content": question}]
        )
    completion = raw.parse()
    return completion.choices[0].message.content or "", raw.headers["cache-status"]


if __name__ == "__main__":
    for question in (
        "How can I sign up for ChatGPT?",
        "How can I sign up for ChatGPT?",
        "I want to sign up for ChatGPT",
    ):
        answer, verdict = ask(sys.argv[1], question)
        print(f"{verdict}\n  {question}\n  {answer[:60]}…")
