"""The share of the evidence that selection keeps, on NQ with twenty passages and on HotpotQA.

Quality is the share of kept sentences that contain the answer; no model is asked. NQ-20 is built as
in "Lost in the Middle" (Liu et al., 2023), but from the data of this benchmark: the gold passage
among nineteen others that a TF-IDF search over all gold passages finds first, without passages that
contain the answer, too.
"""

from __future__ import annotations

import gzip
import json
import math
import random
import re
import time
from collections import Counter, defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headstart import compress
from headstart.compression.passages import sentences
from headstart.compression.selection import parse_query, rank
from headstart.compression.tokens import count_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

RATIOS = (2, 3, 5, 10)
MODEL = "gpt-4o"
INSTRUCTION = "Use only these search results to answer the question; some may be irrelevant."


class Passage(NamedTuple):
    title: str
    text: str


class Case(NamedTuple):
    """A question, its retrieved passages, and the sentences that answer it."""

    question: str
    passages: list[Passage]
    evidence: list[str]


class Laid(NamedTuple):
    """A case as one text: spans of its sentences, their documents, and which are evidence."""

    text: str
    spans: list[tuple[int, int]]
    document_of: list[int]
    evidence: set[int]


def nq20(folder: Path) -> Iterator[Case]:
    """Yield questions whose gold passage has a sentence with the answer."""
    path = folder / "nq_oracle" / "nq-open-oracle.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows: list[dict[str, Any]] = [json.loads(line) for line in file]
    golds = [Passage(row["ctxs"][0]["title"], row["ctxs"][0]["text"]) for row in rows]
    search = _tf_idf([f"{gold.title} {gold.text}" for gold in golds])
    rng = random.Random(7)
    for number in rng.sample(range(len(rows)), 199):
        gold = golds[number]
        answers = [answer.lower() for answer in rows[number]["answers"]]
        pieces = [gold.text[start:end] for start, end in sentences(gold.text)]
        evidence = [piece for piece in pieces if any(a in piece.lower() for a in answers)]
        others: dict[str, Passage] = {}
        for found in search(rows[number]["question"]):
            passage = golds[found]
            if not any(a in passage.text.lower() for a in answers):
                others.setdefault(passage.text, passage)
            if len(others) == 19:
                break
        passages = [gold, *others.values()]
        rng.shuffle(passages)
        if evidence:
            yield Case(rows[number]["question"], passages, evidence)


def _tf_idf(texts: Sequence[str]) -> Callable[[str], Iterator[int]]:
    """Return a search: numbers of texts, most similar first."""
    words = [Counter(re.findall(r"[a-z0-9]+", text.lower())) for text in texts]
    spread = Counter(word for counts in words for word in counts)
    rarity = {word: math.log(len(texts) / count) for word, count in spread.items()}
    index: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for number, counts in enumerate(words):
        weights = {word: (1 + math.log(n)) * rarity[word] for word, n in counts.items()}
        length = math.sqrt(sum(weight**2 for weight in weights.values()))
        for word, weight in weights.items():
            index[word].append((number, weight / length))

    def search(query: str) -> Iterator[int]:
        scores = np.zeros(len(texts))
        for word in set(re.findall(r"[a-z0-9]+", query.lower())):
            for number, weight in index[word]:
                scores[number] += weight * rarity[word]
        return iter(np.argsort(-scores, kind="stable").tolist())

    return search


def hotpot(folder: Path) -> Iterator[Case]:
    """Yield multi-hop questions with their supporting facts."""
    for row in json.loads((folder / "hotpot100" / "hotpot100.json").read_text("utf-8")):
        bodies = dict(zip(row["context"]["title"], row["context"]["sentences"], strict=True))
        facts = zip(
            row["supporting_facts"]["title"], row["supporting_facts"]["sent_id"], strict=True
        )
        evidence = [bodies[title][n] for title, n in facts if n < len(bodies[title])]
        passages = [Passage(title, "".join(body)) for title, body in bodies.items()]
        yield Case(row["question"], passages, evidence)


def _lay(case: Case) -> Laid:
    laid = Laid("".join(f"{p.text}\n" for p in case.passages), [], [], set())
    at = 0
    wanted = {piece.strip() for piece in case.evidence}
    for document, passage in enumerate(case.passages):
        for start, end in sentences(f"{passage.text}\n"):
            if laid.text[at + start : at + end].strip() in wanted:
                laid.evidence.add(len(laid.spans))
            laid.spans.append((at + start, at + end))
            laid.document_of.append(document)
        at += len(passage.text) + 1
    return laid


def _multi_scale(case: Case, laid: Laid) -> Any:
    titles = [passage.title for passage in case.passages]
    query = parse_query(case.question)
    return rank(laid.text, laid.spans, laid.document_of, titles, query).scores


def _sentence_bm25(case: Case, laid: Laid) -> Any:
    """Plain BM25: each sentence a document of its own, words as they are."""
    words = [re.findall(r"\w+", laid.text[start:end].lower()) for start, end in laid.spans]
    spread = Counter(word for piece in words for word in set(piece))
    mean = sum(map(len, words)) / len(words)
    scores = np.zeros(len(words))
    for word in set(re.findall(r"\w+", case.question.lower())):
        rarity = math.log1p((len(words) - spread[word] + 0.5) / (spread[word] + 0.5))
        for number, piece in enumerate(words):
            count = piece.count(word)
            scores[number] += rarity * 2.2 * count / (count + 0.3 + 0.9 * len(piece) / mean)
    return scores


METHODS: dict[str, Callable[[Case, Laid], Any]] = {
    "head truncation": lambda _, laid: -np.arange(len(laid.spans)),
    "BM25 of sentences": _sentence_bm25,
    "multi-scale BM25": _multi_scale,
}


def survival(cases: Sequence[Case], method: str) -> tuple[dict[int, float], float]:
    """Return the share of evidence kept at each ratio, and CPU milliseconds a thousand tokens."""
    kept: dict[int, list[float]] = {ratio: [] for ratio in RATIOS}
    seconds = 0.0
    tokens = 0
    for case in cases:
        laid = _lay(case)
        if not laid.evidence:
            continue
        tokens += count_tokens(laid.text, MODEL).tokens
        began = time.process_time()
        scores = METHODS[method](case, laid)
        seconds += time.process_time() - began
        for ratio in RATIOS:
            chosen = _fill(np.argsort(-scores, kind="stable").tolist(), laid, ratio)
            kept[ratio].append(len(chosen & laid.evidence) / len(laid.evidence))
    means = {ratio: float(np.mean(shares)) for ratio, shares in kept.items()}
    return means, seconds * 1e6 / tokens


def _fill(order: Sequence[int], laid: Laid, ratio: int) -> set[int]:
    """Take each sentence that still fits, in this order. Return the numbers of the sentences."""
    room = len(laid.text) / ratio
    chosen = set()
    for number in order:
        start, end = laid.spans[number]
        if end - start <= room:
            chosen.add(number)
            room -= end - start
    return chosen


def prompt_of(case: Case) -> str:
    """Return the case as a prompt, in the form that applications use."""
    documents = "\n".join(
        f"Document [{number}](Title: {passage.title}) {passage.text}"
        for number, passage in enumerate(case.passages, 1)
    )
    return f"{INSTRUCTION}\n\n{documents}\n\nQuestion: {case.question}\nAnswer:"


def as_shipped(cases: Sequence[Case]) -> dict[str, float]:
    """Return the figures of mode ``aggressive`` on prompts of applications, with its defaults."""
    before = after = gated = 0
    seconds = 0.0
    kept = []
    for case in cases:
        prompt = prompt_of(case)
        began = time.process_time()
        done = compress([{"role": "user", "content": prompt}], model=MODEL, mode="aggressive")
        seconds += time.process_time() - began
        before += done.tokens_before
        after += done.tokens_after
        gated += not done.spans
        text = done.messages[0]["content"]
        kept.append(_evidence_in(case, text))
    return {
        "ratio": before / after,
        "evidence": float(np.mean(kept)),
        "left alone": gated / len(cases),
        "ms per 1k": seconds * 1e6 / before,
    }


def recovered(cases: Sequence[Case]) -> dict[str, float]:
    """Return the figures of mode ``recoverable`` for a model that asks for the missing evidence.

    For each cut text, the model asks with the question as its query, and then without a query.
    """
    before = after = 0
    kept, found, calls = [], [], 0
    for case in cases:
        messages = [{"role": "user", "content": prompt_of(case)}]
        done = compress(messages, model=MODEL, mode="recoverable")
        before += done.tokens_before
        after += done.tokens_after
        read = done.messages[0]["content"]
        kept.append(_evidence_in(case, read))
        for id in done.cut_texts:
            for asked in ({"id": id, "query": case.question}, {"id": id}):
                if _evidence_in(case, read) < 1:
                    result = done.retrieve(json.dumps(asked))
                    after += count_tokens(result, MODEL).tokens
                    read += result
                    calls += 1
        found.append(_evidence_in(case, read))
    return {
        "evidence": float(np.mean(kept)),
        "with retrievals": float(np.mean(found)),
        "calls": calls / len(cases),
        "ratio": before / after,
    }


def _evidence_in(case: Case, text: str) -> float:
    return float(np.mean([piece.strip() in text for piece in case.evidence]))


def meetings(folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield transcripts of QMSum with a specific question, and the sentences that answer it."""
    for line in (folder / "qmsum" / "test.jsonl").read_text("utf-8").splitlines():
        meeting = json.loads(line)
        turns = [f"{turn['speaker']}: {turn['content']}" for turn in meeting["meeting_transcripts"]]
        for asked in meeting["specific_query_list"]:
            spans = [range(int(a), int(b) + 1) for a, b in asked["relevant_text_span"]]
            told = [turns[at] for at in sorted({*chain(*spans)}) if at < len(turns)]
            pieces = [turn[a:b].strip() for turn in told for a, b in sentences(turn)]
            yield asked["query"], "\n".join(turns), [each for each in pieces if len(each) >= 20]


def of_meetings(folder: Path) -> dict[str, float]:
    """Return what mode ``aggressive`` keeps of long transcripts, where it touches them."""
    kept, ratios, count = [], [], 0
    for question, text, evidence in meetings(folder):
        count += 1
        prompt = f"Context:\n{text}\n\nQuestion: {question}"
        done = compress([{"role": "user", "content": prompt}], mode="aggressive")
        sent = done.messages[0]["content"]
        if done.spans and evidence:
            total = sum(map(len, evidence))
            kept.append(sum(len(each) for each in evidence if each in sent) / total)
            ratios.append(len(prompt) / len(sent))
    return {
        "questions": count,
        "touched": len(kept) / count,
        "evidence": float(np.mean(kept)),
        "ratio, median": float(np.median(ratios)),
        "ratio, largest": max(ratios),
    }


def articles(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield questions of COVID-QA, with the whole article, the answer and its sentences."""
    document = json.loads(next((folder / "covidqa").glob("*.json")).read_text("utf-8"))
    for paragraph in (each for article in document["data"] for each in article["paragraphs"]):
        text = paragraph["context"]
        pieces = sentences(text)
        for asked in paragraph["qas"]:
            for answer in asked["answers"][:1]:
                first, last = answer["answer_start"], answer["answer_start"] + len(answer["text"])
                around = [text[a:b] for a, b in pieces if a < last and b > first]
                yield asked["question"], text, answer["text"], "".join(around).strip()


def of_articles(folder: Path) -> dict[str, float]:
    """Return what mode ``aggressive`` keeps of whole articles in tool results."""
    answers, evidence, ratios, count = [], [], [], 0
    call = {"id": "1", "type": "function", "function": {"name": "search_papers", "arguments": "{}"}}
    for question, text, answer, around in articles(folder):
        count += 1
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": question},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": text},
        ]
        done = compress(messages, mode="aggressive")
        sent = done.messages[-1]["content"]
        if done.spans:
            answers.append(answer in sent)
            evidence.append(around in sent)
            ratios.append(len(text) / len(sent))
    return {
        "questions": count,
        "touched": len(ratios) / count,
        "answers": float(np.mean(answers)),
        "evidence": float(np.mean(evidence)),
        "ratio, median": float(np.median(ratios)),
    }
