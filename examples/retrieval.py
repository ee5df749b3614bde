"""Retrieval: the prompt holds documents, and ``X-Headstart-Query`` names the question in it.

Headstart compares only the question by meaning; the documents around it must be equal.

headstart simulate --port 9090 &
HEADSTART_CACHE__COLD_START=optimistic headstart serve --upstream http://127.0.0.1:9090/v1 &
python examples/retrieval.py http://127.0.0.1:8080/v1
"""

from __future__ import annotations

import sys
from urllib.parse import quote

from openai import OpenAI

DOCUMENTS = {
    "returns": "You may return goods within 30 days. The refund takes five days.",
    "delivery": "We deliver from Monday to Friday. A delivery takes two days.",
}
TEMPLATE = (
    "Answer from the document.\n\n<document>\n{document}\n</document>\n\nQuestion: {question}"
)


def retrieve(question: str) -> str:
    """Return the document for a question: search your index here."""
    return DOCUMENTS["returns" if "return" in question else "delivery"]


def ask(base_url: str, question: str) -> tuple[str, str]:
    """Return the answer and how it was served."""
    prompt = TEMPLATE.format(document=retrieve(question), question=question)
    with OpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(
            model="gpt-4o-mini",
            messages=[{"role": "user", "content": prompt}],
            extra_headers={"X-Headstart-Query": quote(question)},
        )
    completion = raw.parse()
    return completion.choices[0].message.content or "", raw.headers["cache-status"]


if __name__ == "__main__":
    for question in (
        "How many days do I have to return something?",
        "How many days do I have to return anything?",
        "How many days does a delivery take?",
    ):
        answer, verdict = ask(sys.argv[1], question)
        print(f"{verdict}\n  {question}\n  {answer[:60]}…")
