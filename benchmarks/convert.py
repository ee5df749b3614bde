"""Turn public labelled sets into the formats of ``headstart evaluate``.

    python benchmarks/convert.py banking77 train.csv --sample 6000 --seed 1 > banking77.jsonl
    python benchmarks/convert.py clinc150 data_full.json --sample 6000 --seed 1 > clinc150.jsonl
    python benchmarks/convert.py text2sql geography.json scholar.json > questions.jsonl
    python benchmarks/convert.py paws train.tsv --part 1/4 > reordered.jsonl

Streams are ``{"prompt", "class"}``. Exact repeats of a prompt are left out, except in Banking77
and CLINC150, so that earlier samples of these can be made again.

    aiabde     NLP-CISUC/AIA-BDE, ``AIA-BDE_v2.1.txt`` (no licence is named): questions to an office
               for companies in Portuguese, each in the words of several people; the class is the
               question
    asdiv      chaochun/nlu-asdiv-dataset, ``dataset/ASDiv.xml`` (CC BY-NC 4.0): short problems;
               each is a class of its own
    banking77  PolyAI-LDN/task-specific-datasets, ``banking_data/*.csv``: the class is the intent
    bbh        suzgunmirac/BIG-Bench-Hard, ``bbh/*.json`` (MIT): tasks; each is a class of its own
    boolqcs    allenai/contrast-sets, ``BoolQ/boolq_perturbed.json``: passages with yes-or-no
               questions and small edits of these; the class is the passage with the answer
    clinc150   clinc/oos-eval, ``data/data_full.json``: the class is the intent
    conala     yuxiang2/CoNaLa, ``corpus/*.json`` (CoNaLa, CC BY-SA 4.0): wishes for a line of
               Python; the class is the line
    condaqa    AbhilashaRavichander/CondaQA, ``data/condaqa_dev.json`` (Apache 2.0): a passage in
               four wordings, of which some say something else, each with the same questions; the
               class is the question with its answer
    convq      endrikacupaj/Verbal-ConvQuestions, ``dataset/test/*.json`` (CC BY 4.0): later turns
               of conversations in four wordings; the class is the entity and the answer
    covidq     JerryWeiAI/COVID-Q, ``final_master_dataset.csv`` (GPL 3): the class is the question
               of the catalogue
    disfl      google-research-datasets/Disfl-QA, ``*.json`` (CC BY 4.0): questions of SQuAD, as
               they are and with a slip of the tongue that is corrected; the class is the question
    gsm        apple/ml-gsm-symbolic, ``generated_data/GSM_p2.jsonl`` (CC BY-NC-ND 4.0): problems
               with exchanged names and numbers; each is a class of its own
    gsmplus    qtli/GSM-Plus, ``dataset/gsmplus_testmini.jsonl``: problems of GSM8K and their
               variants; the class is the problem with the number
    hint3      hellohaptik/HINT3, ``dataset/v2/*/*.csv`` (ODbL): customers of three shops; the class
               is the intent
    homeassist home-assistant/intents, ``tests/*/*_*.yaml`` (CC BY 4.0): wishes to a smart home in
               60 languages; the class is the language with the intent, the slots and the answer
    hwu64      xliuhw/NLU-Evaluation-Data, ``CrossValidation/autoGene*/**/testset/csv/*.csv``
               (CC BY 4.0): the class is the intent with its slots
    ifeval     josejg/instruction_following_eval, ``*/data/input_data.jsonl`` (IFEval, Apache 2.0):
               instructions with constraints; each is a class of its own
    lcquad     AskNowQA/LC-QuAD, ``*-data.json`` (GPL 3): questions to DBpedia, each as a template
               says it and reworded by a person; the class is the query
    leyzer     cartesinus/leyzer, ``corpora/0.1.0/leyzer-*-??-??-0.1.0.tsv`` (CC BY-NC-ND 4.0): a
               voice assistant in English, Spanish and Polish; the class is the language with the
               intent and the slots
    mbpp       mbpp.jsonl of MBPP (CC BY 4.0): wishes for a Python function; each is a class of
               its own
    mctaco     allenai/contrast-sets, ``MCTACO/*.tsv``: questions about time with an answer to
               judge; each is a class of its own
    medquad    abachaa/MedQuAD, ``*/*.xml`` (CC BY 4.0): medical questions; the class is the disease
               with the kind of question
    naturalqa  wangcunxiang/QA-Eval, ``NQ.json``: natural questions; each is a class of its own
    nl2bash    TellinaTool/nl2bash, ``data/bash/all.nl`` with ``all.cm`` (MIT): wishes for a
               command; the class is the command
    nlupp      PolyAI-LDN/task-specific-datasets, ``nlupp/data/*/fold*.json``: intents and slots
    onecell    wenhuchen/Table-Fact-Checking, ``data/all_csv/*.csv`` (MIT): tables with two wishes
               for a summary, as they are, with one cell of another row and with two cells
               exchanged; the class is the table
    overnight  rhythmcao/unsup-two-stage-semantic-parsing, ``data/overnight/*_train.tsv`` and
               ``*_test.tsv``: the class is the logical form
    pararel    yanaiela/pararel, ``data/pattern_data/graphs_json/*.jsonl`` with ``trex_lms_vocab``
               (MIT): facts about 30 things of each relation, each in several wordings with a gap;
               the class is the relation and the thing
    quixbugs   jkoppel/QuixBugs, ``*python_programs/*.py`` and ``*java_programs/*.java`` (MIT):
               functions with a bug and without it; each is a class of its own
    recode     amazon-science/recode, ``dataset-release/nominal/HumanEval.jsonl`` and
               ``dataset-release/perturbed_finalized/humaneval/full/nlaugmenter/*_s0.jsonl``
               (Apache 2.0): functions to complete, with reworded comments; the class is the task
    ropes      allenai/contrast-sets, ``ropes/data/*.json``: situations with questions, and small
               edits of both; the class is the situation with the answer
    rqe        abachaa/RQE_Data_AMIA2016, ``*.xml``: medical questions; the class is all that entail
               each other
    sgd        google-research-datasets/dstc8-schema-guided-dialogue, ``*/dialogues_*.json``: the
               opening turn of each dialogue; the class is the intent with its slots and values
    simdial    google-research-datasets/simulated-dialogue, ``sim-*/*.json``: all turns of bookings;
               the class is the state with the acts
    simpleq    askplatypus/wikidata-simplequestions, ``annotated_wd_data_*_answerable.txt``
               (CC BY 3.0): the class is the subject with its property
    situated   mikejqzhang/SituatedQA, ``data/qa_data/*.jsonl``: questions as of a date or in a
               place; the class is the question with the answers
    snips      sonos/nlu-benchmark, ``2017-06-custom-intent-engines/*/*_*[!l].json`` (CC0): the
               class is the intent with its slots
    spidersyn  ygan/Spider-Syn, ``Spider-Syn/*.json`` (MIT): questions to databases, each in two
               wordings; the class is the SQL query, and the system prompt names the database
    stackfaq   ML-Recipes/BERT-FAQ, ``data/StackFAQ/stackExchange-FAQ.json`` (Stack Exchange, CC
               BY-SA): questions about web pages in ten wordings; the class is the question
    svamp      arkilpatel/SVAMP, ``SVAMP.json`` (MIT): short problems; each is a class of its own
    t0         yizhongw/self-instruct, ``data/finetuning/t0_train_50k/data_per_template/*.jsonl``
               (Apache 2.0): tasks of 239 kinds, each in the frame of its kind, of 20 to 900
               characters; each is a class of its own
    text2sql   jkkummerfeld/text2sql-data, ``data/*.json``: the class is the SQL query with its
               values filled in, as they are in the question
    timeqa     wenhuchen/Time-Sensitive-QA, ``dataset/human_annotated_*.json`` (BSD 3-Clause): what
               was true of somebody in which years; the class is the person with the answer
    toolformer gururise/AlpacaDataCleaned, ``dataset_extensions/GPTeacher/Toolformer/
               toolformer-dedupe-only-dataset.json`` (MIT): instructions with a frame in common;
               each is a class of its own
    torque     qiangning/TORQUE-dataset, ``data/dev.json`` (Apache 2.0): news with questions about
               what happened before, after and while; the class is the passage with the answers
    webq       brmson/dataset-factoid-webquestions, ``main/*.json`` (CC BY 4.0): the class is the
               set of answers
    wino       vid-koci/bert-commonsense, ``data/*.txt`` (WSC, WinoGender and the like): who a
               pronoun refers to; the class is the two persons with the answer
    xsid       mainlp/xsid, ``data/*/*.test.conll`` and ``*.valid.conll`` without ``no.*`` (CC BY-SA
               4.0): the same requests in 18 languages and dialects; the class is the language with
               the intent and slots of the English text

Pairs are ``{"a", "b", "same_answer"}``. Pairs of equal texts are left out.

    mqp        curai/medical-question-pair-dataset, ``mqp.csv``: questions of patients
    paws       google-research-datasets/paws names the files (``id sentence1 sentence2 label``, with
               tabs): the same words, often in another order. The tokens are joined again.
    qqp        Quora question pairs as anikl9705/NLP-Project-Paws has them, ``data_qqp/*.tsv``
    squadpara  nusnlp/paraphrasing-squad, ``datasets/*_orig.json`` with ``*_para.json`` (SQuAD, CC
               BY-SA 4.0): questions with their rewordings; all pairs are the same
    sick       kkalouli/SICK-processing, ``SICK.txt``: entailment in both directions is the same

Questions about a text are ``{"context", "question"}``, for ``benchmarks.live``.

    hotpot     noahshinn/reflexion, ``hotpot100.json`` (HotpotQA, CC BY-SA 4.0)

The sample is drawn and shuffled with the seed, so it can be made again. ``--part K/N`` keeps one of
N equal parts; pairs that share a text are in one part, so another part was never seen.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import random
import re
import sys
from hashlib import sha256
from html import unescape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

Message = dict[str, str]
Prompt = str | list[Message]
TextRow = tuple[str, str]
Row = tuple[Prompt, str]
Pair = tuple[str, str, bool]

_SPACED = re.compile(r" (?=[?!.,;:%)]|n't\b|'(?:s|m|re|ve|ll|d)\b)|(?<=[($]) ")
_QUOTED = re.compile(r'(``|") (.*?) (\'\'|")')


def _json(path: Path) -> Any:
    """Read a file of JSON."""
    return json.loads(path.read_text(encoding="utf-8"))


def _rows(path: Path) -> Iterator[Any]:
    """Read lines of JSON."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return (json.loads(line) for line in lines if line.strip())


def _csv(path: Path, errors: str = "strict", **form: Any) -> Iterator[dict[str, str]]:
    """Read the rows of a table in the ``form`` of ``csv.DictReader``."""
    with path.open(encoding="utf-8", errors=errors, newline="") as file:
        yield from csv.DictReader(file, **form)


def aiabde(path: Path) -> Iterator[Row]:
    """Yield (question, number of the question), without wordings of machines."""
    number = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        kind, _, text = line.partition(":")
        number += kind == "P"
        if kind in {"P", "VUC", "VIN", "VMT"} and text.strip():
            yield " ".join(text.split()), str(number)


def asdiv(path: Path) -> Iterator[Row]:
    """Read short problems."""
    found = re.findall(r"<Body>(.*?)</Body>\s*<Question>(.*?)</Question>", path.read_text("utf-8"))
    for body, question in found:
        text = unescape(f"{body.strip()} {question.strip()}")
        yield text, text


def banking77(path: Path) -> Iterator[TextRow]:
    """Yield (text, intent)."""
    for row in _csv(path):
        yield row["text"], row["category"]


def bbh(path: Path) -> Iterator[Row]:
    """Read a task of BIG-Bench Hard."""
    for row in _json(path)["examples"]:
        yield row["input"], row["input"]


def boolqcs(path: Path) -> Iterator[Row]:
    """Yield (passage and question, passage and answer)."""
    for row in _json(path)["data"][1:]:
        edits = [(edit["perturbed_q"], edit["answer"]) for edit in row["perturbed_questions"]]
        for question, answer in [(row["question"], row["answer"]), *edits]:
            text = f"{row['paragraph']}\n\nQuestion: {question.strip().rstrip('?')}?"
            yield text, f"{row['paragraph']} {answer}"


def clinc150(path: Path) -> Iterator[TextRow]:
    """Yield (text, intent). Out-of-scope texts share no answer, so each is a class of its own."""
    splits = _json(path)
    for split, rows in splits.items():
        for place, (text, intent) in enumerate(rows):
            yield text, f"{split}-{place}" if intent == "oos" else intent


def conala(path: Path) -> Iterator[Row]:
    """Yield (wish, line of Python)."""
    for row in _json(path):
        yield row["intent"].strip(), " ".join(row["code"].split())


def condaqa(path: Path) -> Iterator[Row]:
    """Yield (passage and question, question and answer)."""
    for row in _rows(path):
        about = f"{row['PassageID']} {row['QuestionID']} {row['label'].strip()}"
        yield f"{row['sentence1'].strip()}\n\n{row['sentence2'].strip()}", about


def convq(path: Path) -> Iterator[Row]:
    """Yield (conversation, entity and answer); its opening names the entity.

    The four wordings: as asked, only the last question reworded, and all questions and answers
    reworded in two ways.
    """
    for talk in _json(path):
        entity = _decoded(talk["seed_entity_text"])
        turns = talk["questions"]
        for last, turn in enumerate(turns[1:], 1):
            label = f"{talk['seed_entity']} {turn['answer'].lower()}"
            for before, now in ((0, 0), (0, 1), (1, 1), (2, 2)):
                messages: list[Message] = []
                for place, earlier in enumerate(turns[:last]):
                    about = "" if place else f"I have questions about {entity}. "
                    asked = _wording(earlier, "question", before)
                    told = _wording(earlier, "answer", before)
                    messages.append({"role": "user", "content": about + asked})
                    messages.append({"role": "assistant", "content": told})
                asked = _wording(turn, "question", now)
                yield [*messages, {"role": "user", "content": asked}], label


def covidq(path: Path) -> Iterator[Row]:
    """Yield (question, number of the question in the catalogue)."""
    for row in _csv(path, errors="replace"):
        yield row["Question"], row["Question ID"]


def disfl(path: Path) -> Iterator[Row]:
    """Yield (question, question), and (question with a corrected slip, question)."""
    for row in _json(path).values():
        yield row["original"], row["original"]
        yield row["disfluent"], row["original"]


def gsm(path: Path) -> Iterator[Row]:
    """Read problems of GSM-Symbolic."""
    yield from ((row["question"], row["question"]) for row in _rows(path))


def gsmplus(path: Path) -> Iterator[Row]:
    """Yield (problem, problem of GSM8K and number)."""
    for row in _rows(path):
        seed = row["seed_question"].strip()
        yield seed, f"{seed} {_number(row['seed_answer'])}"
        found = _number(row["answer"])
        text = row["question"].strip()
        yield text, text if found in {"", "None"} else f"{seed} {found}"


def hint3(path: Path) -> Iterator[Row]:
    """Yield (text, shop and intent). What fits no intent has no answer in common."""
    shop = path.name.partition("_")[0]
    for row in _csv(path):
        text, intent = row["sentence"].strip(), row["label"]
        yield text, f"{shop} {text if intent == 'NO_NODES_DETECTED' else intent}"


def homeassist(path: Path) -> Iterator[Row]:
    """Yield (sentence, language, intent, slots and answer)."""
    import yaml  # of the development environment

    for test in yaml.safe_load(path.read_text(encoding="utf-8")).get("tests") or ():
        intent = test.get("intent") or {}
        facts = [intent.get("slots"), intent.get("context"), str(test.get("response") or "")]
        if intent:
            language = path.parent.name.partition("-")[0]
            label = json.dumps([language, intent["name"], *facts], sort_keys=True)
            yield from ((" ".join(str(text).split()), label) for text in test["sentences"])


def hwu64(path: Path) -> Iterator[Row]:
    """Yield (text, intent and slots). Without a slot, sums and facts have no answer in common."""
    for row in _csv(path, delimiter=";"):
        text, intent = row["answer_from_user"], f"{row['scenario']} {row['intent']}"
        slots = sorted(re.findall(r"\[(.*?)\]", row["answer_annotation"].lower()))
        alone = not slots and intent in {"qa maths", "qa factoid", "general quirky"}
        yield text, text if alone else " ".join([intent, *slots])


def ifeval(path: Path) -> Iterator[Row]:
    """Read instructions with constraints."""
    for row in _rows(path):
        text = row["prompt"].strip()
        yield text, text


def lcquad(path: Path) -> Iterator[Row]:
    """Yield (question, query), in the words of a person and in those of a template."""
    for row in _json(path):
        query = " ".join(row["sparql_query"].split())
        yield row["corrected_question"].strip(), query
        yield re.sub("[<>]", "", row["intermediary_question"]).strip(), query


def leyzer(path: Path) -> Iterator[Row]:
    """Yield (text, language, intent and slots)."""
    language = re.search("-(..)-..-", path.name)
    for row in _csv(path, delimiter="\t", quoting=csv.QUOTE_NONE):
        slots = sorted(_slots(row["utterance"].split(), row["bio"].split()))
        request = [row["domain"], row["intent"], *slots]
        yield row["utterance"], " ".join([language[1] if language else "", *request]).lower()


def mbpp(path: Path) -> Iterator[Row]:
    """Read wishes for a function."""
    yield from ((row["text"], row["text"]) for row in _rows(path))


def mctaco(path: Path) -> Iterator[Row]:
    """Read questions with an answer to judge."""
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        _, question, answer, label = line.split("\t")[:4]
        yield f"{question} Is this answer right: {answer}?", f"{question} {answer} {label}"


def medquad(path: Path) -> Iterator[Row]:
    """Yield (question, disease and kind of question)."""
    text = unescape(path.read_text(encoding="utf-8"))
    focus = re.search("<Focus>(.*?)</Focus>", text, re.DOTALL)
    about = " ".join(focus[1].split()).lower() if focus else path.name
    for kind, asked in re.findall('qtype="([^"]*)">(.*?)</Question>', text, re.DOTALL):
        yield " ".join(asked.split()).replace(" ?", "?"), f"{about} {kind}"


def naturalqa(path: Path) -> Iterator[Row]:
    """Read ``NQ.json`` of QA-Eval."""
    yield from ((row["question"], row["question"]) for row in _json(path))


def nl2bash(path: Path) -> Iterator[Row]:
    """Yield (wish, command)."""
    commands = path.with_suffix(".cm").read_text(encoding="utf-8").split("\n")
    for text, command in zip(path.read_text(encoding="utf-8").split("\n"), commands, strict=True):
        if text.strip():
            yield text.strip(), " ".join(command.split())


def nlupp(path: Path) -> Iterator[Row]:
    """Yield (text, intents and slots), the slots as they were written. A fold is a list."""
    for row in _json(path):
        slots = [f"{name}={slot['text'].lower()}" for name, slot in row.get("slots", {}).items()]
        yield row["text"], " ".join([*sorted(row.get("intents", [])), *sorted(slots)])


def onecell(path: Path) -> Iterator[Row]:
    """Yield (wish and table, table). Wide and ragged tables are left out."""
    rows = [line.split("#") for line in path.read_text(encoding="utf-8").splitlines()[:7]]
    draw = random.Random(path.name)
    size = sum(len(cell) for row in rows for cell in row)
    if len(rows) < 5 or len({len(row) for row in rows}) != 1 or len(rows[0]) < 3 or size > 700:
        return
    column = draw.randrange(1, len(rows[0]))
    one, other = draw.sample(range(1, len(rows)), 2)
    copied, exchanged = ([row[:] for row in rows] for _ in range(2))
    copied[one][column] = rows[other][column]
    exchanged[one][column], exchanged[other][column] = rows[other][column], rows[one][column]
    for table in (rows, copied, exchanged):
        text = "\n".join(",".join(row) for row in table)
        yield f"Summarize this table in one sentence.\n\n{text}", text
        yield f"Give a one-sentence summary of this table.\n\n{text}", text


def overnight(path: Path) -> Iterator[Row]:
    """Yield (text, logical form)."""
    for line in path.read_text(encoding="utf-8").splitlines():
        text, _, form = line.split("\t")
        yield text, form


def pararel(path: Path) -> Iterator[Row]:
    """Yield (sentence with a gap, relation and thing)."""
    things = path.parents[2] / "trex_lms_vocab" / path.name
    names = [row["sub_label"] for row in islice(_rows(things), 30)]
    for row in _rows(path):
        pattern = row["pattern"]
        for name in names:
            text = pattern.replace("[X]", name).replace("[Y]", "___")
            yield f"Complete the sentence: {text.strip()}", f"{path.stem} {name}"


def quixbugs(path: Path) -> Iterator[Row]:
    """Read a function."""
    code = re.sub(r'""".*?"""', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    code = re.sub("^package.*$", "", code, flags=re.MULTILINE).strip()
    yield f"Is there a bug in this function? Fix it.\n\n```\n{code}\n```", code


def recode(path: Path) -> Iterator[Row]:
    """Yield (function to complete, task)."""
    for row in _rows(path):
        code = row["prompt"].rstrip()
        yield f"Complete this function.\n\n```python\n{code}\n```", row["task_id"]


def ropes(path: Path) -> Iterator[Row]:
    """Yield (situation and question, start of the situation and answer)."""
    for part in _json(path)["data"]:
        for row in part["paragraphs"]:
            story = row["situation"]
            for asked in row["qas"]:
                label = f"{story[:40]} {asked['answers'][0]['text']}"
                yield f"{story}\n\n{asked['question']}", label


def rqe(path: Path) -> Iterator[Row]:
    """Yield (question, first of the questions that entail each other)."""
    found = re.findall(
        r'value="(true|false)"[^>]*>\s*<chq>(.*?)</chq>\s*<faq>(.*?)</faq>',
        path.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    pairs = [(" ".join(a.split()), " ".join(b.split()), same == "true") for same, a, b in found]
    group = _groups([pair for pair in pairs if pair[2]])
    for one, other, _ in pairs:
        yield one, group(one)
        yield other, group(other)


def sgd(path: Path) -> Iterator[Row]:
    """Yield (opening turn, intent and slots with their values)."""
    for dialogue in _json(path):
        turn = dialogue["turns"][0]
        acts = [
            f"{act['act']} {act['slot']}={'/'.join(act['canonical_values']).lower()}"
            for frame in turn["frames"]
            for act in frame["actions"]
        ]
        services = [frame["service"].partition("_")[0] for frame in turn["frames"]]
        yield turn["utterance"], " ".join([*services, *sorted(acts)])


def simdial(path: Path) -> Iterator[Row]:
    """Yield (conversation, state and acts of its last turn)."""
    for talk in _json(path):
        messages: list[Message] = []
        for turn in talk["turns"]:
            if "system_utterance" in turn:
                said = turn["system_utterance"]["text"]
                messages.append({"role": "assistant", "content": said})
            messages.append({"role": "user", "content": turn["user_utterance"]["text"]})
            kinds = ("dialogue_state", "user_acts", "system_acts", "user_intents")
            facts = [sorted(json.dumps(fact) for fact in turn.get(kind, ())) for kind in kinds]
            yield [*messages], f"{path.parent.name} {facts}"


def situated(path: Path) -> Iterator[Row]:
    """Yield (question with its date or place, question and answers)."""
    for row in _rows(path):
        yield row["edited_question"], f"{row['question']} {sorted(set(map(str, row['answer'])))}"


def simpleq(path: Path) -> Iterator[Row]:
    """Yield (question, subject and property)."""
    for line in path.read_text(encoding="utf-8").splitlines():
        subject, relation, _, question = line.split("\t")
        yield question, f"{subject} {relation}"


def snips(path: Path) -> Iterator[Row]:
    """Yield (text, intent and slots), the slots as they were written."""
    ((intent, rows),) = json.loads(path.read_text(encoding="utf-8", errors="replace")).items()
    for row in rows:
        parts = row["data"]
        slots = [f"{part['entity']}={part['text'].lower()}" for part in parts if "entity" in part]
        yield "".join(part["text"] for part in parts).strip(), " ".join([intent, *sorted(slots)])


def spidersyn(path: Path) -> Iterator[Row]:
    """Yield (database and question, database and SQL)."""
    for row in _json(path):
        database, query = row["db_id"], " ".join(row["query"].lower().rstrip(" ;").split())
        system = {"role": "system", "content": f"Write a SQL query for the database {database}."}
        for name in ("SpiderQuestion", "SpiderSynQuestion"):
            yield [system, {"role": "user", "content": row[name]}], f"{database} {query}"


def stackfaq(path: Path) -> Iterator[Row]:
    """Yield (question, number of the question)."""
    for number, row in enumerate(_json(path)["root"]["qapair"]):
        wordings = [row["rephr"]] if isinstance(row["rephr"], str) else row["rephr"]
        for text in (row["question"], *wordings):
            if text and text.strip() != "*":
                yield " ".join(text.split()), str(number)


def svamp(path: Path) -> Iterator[Row]:
    """Read short problems."""
    for row in _json(path):
        body = row["Body"].strip()
        text = f"{body}{'' if body.endswith('.') else ','} {row['Question']}".strip()
        yield text, text


def t0(path: Path) -> Iterator[Row]:
    """Read tasks of 20 to 900 characters."""
    for row in _rows(path):
        text = (row["prompt"] or "").strip()
        if 20 < len(text) < 900:
            yield text, text


def text2sql(path: Path) -> Iterator[Row]:
    """Yield (question, SQL), both with the question's values."""
    for query in _json(path):
        defaults = {variable["name"]: variable["example"] for variable in query["variables"]}
        for sentence in query["sentences"]:
            given = {name: value for name, value in sentence["variables"].items() if value}
            values = defaults | given
            yield _joined(_filled(sentence["text"], values)), _filled(query["sql"][0], values)


def timeqa(path: Path) -> Iterator[Row]:
    """Yield (question, person and answer)."""
    for row in _json(path):
        for question, answers in row["questions"]:
            told = sorted({answer["answer"].strip().lower() for answer in answers})
            yield question.strip(), " | ".join([row["index"], *(told if any(told) else [question])])


def toolformer(path: Path) -> Iterator[Row]:
    """Read instructions with their inputs."""
    for row in _json(path):
        text = "\n\n".join(filter(None, (row["instruction"], row["input"])))
        yield text, text


def torque(path: Path) -> Iterator[Row]:
    """Yield (passage and question, passage and answers)."""
    for row in _json(path).values():
        for question, asked in row["question_answer_pairs"].items():
            answers = sorted(asked["answer"]["spans"])
            yield f"{row['passage']}\n\n{question}", f"{row['passage']} {answers}"


def wino(path: Path) -> Iterator[Row]:
    """Yield (sentence and question, persons and answer)."""
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        text, gap, names, answer = (line.strip() for line in block.strip().split("\n")[:4])
        text, gap = (" ".join(part.replace("[MASK]", "___").split()) for part in (text, gap))
        persons = [name.strip() for name in names.split(",")]
        asked = f'{text} What does "{gap}" refer to: {" or ".join(persons)}?'
        yield asked, f"{sorted(persons)} {answer}".lower()


def webq(path: Path) -> Iterator[Row]:
    """Yield (question, answers)."""
    for row in _json(path):
        yield row["qText"], " | ".join(sorted(answer.lower() for answer in row["answers"]))


def xsid(path: Path) -> Iterator[Row]:
    """Yield (text, language and request). Dialects count as their language."""
    language, _, part = path.name.partition(".")
    spoken = "de" if language == "gsw" else language.partition("-")[0]
    english = {text: label for text, _, label in _blocks(path.with_name(f"en.{part}"))}
    for text, translated, label in _blocks(path):
        yield text, f"{spoken} {english.get(translated, label)}"


def mqp(path: Path) -> Iterator[Pair]:
    """Yield pairs of a doctor's: (question, question, same)."""
    with path.open(encoding="utf-8", newline="") as file:
        for _, one, other, label in csv.reader(file):
            yield one, other, label == "1"


def paws(path: Path) -> Iterator[Pair]:
    """Yield (sentence, sentence, paraphrase), joined as people write them."""
    for row in _table(path):
        yield _joined(_text(row["sentence1"])), _joined(_text(row["sentence2"])), _is_one(row)


def qqp(path: Path) -> Iterator[Pair]:
    """Yield (question, question, duplicate)."""
    for row in _table(path, csv.QUOTE_MINIMAL):
        yield row["sentence1"], row["sentence2"], _is_one(row)


def sick(path: Path) -> Iterator[Pair]:
    """Yield (sentence, sentence, each entails the other)."""
    for row in _table(path):
        same = row["entailment_AB"] == "A_entails_B" and row["entailment_BA"] == "B_entails_A"
        yield row["sentence_A"], row["sentence_B"], same


def squadpara(path: Path) -> Iterator[Pair]:
    """Yield (question, its rewording, same). Both files have one order."""
    reworded = _questions(path.with_name(path.name.replace("_orig", "_para")))
    yield from ((one, other, True) for one, other in zip(_questions(path), reworded, strict=True))


READERS = {
    each.__name__: each
    for each in (
        aiabde, asdiv, banking77, bbh, boolqcs, clinc150, conala, condaqa, convq, covidq, disfl,
        gsm, gsmplus, hint3, homeassist, hwu64, ifeval, lcquad, leyzer, mbpp, mctaco, medquad,
        naturalqa, nl2bash, nlupp, onecell, overnight, pararel, quixbugs, recode, ropes, rqe, sgd,
        simdial, simpleq, situated, snips, spidersyn, stackfaq, svamp, t0, text2sql, timeqa,
        toolformer, torque, webq, wino, xsid,
    )
}  # fmt: skip
WITH_REPEATS = frozenset({"banking77", "clinc150"})
PAIRS = {each.__name__: each for each in (mqp, paws, qqp, sick, squadpara)}


def _table(path: Path, quoting: Literal[0, 3] = csv.QUOTE_NONE) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        start = file.readline()
        file.seek(0)
        names = None if "sentence" in start else ("id", "sentence1", "sentence2", "label")
        yield from csv.DictReader(file, names, delimiter="\t", quoting=quoting)


def _number(text: object) -> str:
    """Write a number without separators and empty decimals."""
    return re.sub(r"\.0+$", "", str(text).replace(",", "").strip())


def _wording(turn: dict[str, Any], kind: str, number: int) -> str:
    """Return the question or the answer of a turn, as it was or reworded."""
    first: str = turn["question" if kind == "question" else "verbalized_answer"]
    wordings: list[str] = [first, *turn[f"paraphrased_{kind}"]]
    return re.sub(r"[][]", "", _decoded(wordings[min(number, len(wordings) - 1)])).strip()


def _decoded(text: str) -> str:
    """Undo UTF-8 that was read as Latin-1."""
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text


def _blocks(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (text, English text, intent and slots) of a file in the form of CoNLL."""
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        lines = block.splitlines()
        notes: dict[str, str] = dict(re.findall(r"^# ([\w-]+)(?::| =) (.*)", block, re.MULTILINE))
        words = [line.split("\t") for line in lines if not line.startswith("#")]
        slots = [f"{word[3][2:]}={word[1].lower()}" for word in words if word[3] != "O"]
        label = " ".join([notes["intent"], *sorted(slots)])
        yield notes["text"], notes.get("text-en", notes["text"]), label


def _slots(words: list[str], tags: list[str]) -> Iterator[str]:
    """Yield each slot of a text with its words: ``b-city i-city o``."""
    found: list[str] = []
    for word, tag in zip(words, tags, strict=False):
        if tag.startswith("b-"):
            found.append(f"{tag[2:]}={word}")
        elif tag.startswith("i-") and found:
            found[-1] += f" {word}"
    return iter(found)


def _questions(path: Path) -> list[str]:
    """Read the questions of a file in the form of SQuAD."""
    return [
        asked["question"].strip()
        for article in _json(path)["data"]
        for paragraph in article["paragraphs"]
        for asked in paragraph["qas"]
    ]


def _is_one(row: dict[str, str]) -> bool:
    return row["label"] == "1"


def _text(cell: str) -> str:
    """Read a cell; those that the generator of PAWS writes are Python's bytes."""
    if cell[:2] in {"b'", 'b"'}:
        decoded: str = ast.literal_eval(cell).decode("utf-8", "replace")
        return decoded
    return cell


def _joined(tokens: str) -> str:
    """Join tokens as people write them: "does n't it ?" is "doesn't it?"."""
    return _SPACED.sub("", _QUOTED.sub(r'"\2"', tokens.replace(" - ", "-")))


def _filled(text: str, values: dict[str, str]) -> str:
    names = "|".join(sorted(map(re.escape, values), key=len, reverse=True))
    return re.sub(rf"\b(?:{names})\b", lambda found: values[found[0]], text) if names else text


def hotpot(path: Path) -> Iterator[dict[str, str]]:
    """Yield questions with the paragraphs that they are about."""
    for row in _json(path):
        found = row["context"]
        paragraphs = zip(found["title"], found["sentences"], strict=True)
        context = "\n\n".join(f"{title}\n{''.join(lines)}" for title, lines in paragraphs)
        yield {"context": context, "question": row["question"]}


QUESTIONS = {"hotpot": hotpot}


def _stream_lines(name: str, paths: list[Path]) -> list[dict[str, Any]]:
    rows = [row for path in paths for row in READERS[name](path)]
    if name not in WITH_REPEATS:
        first: dict[str, Row] = {}
        for prompt, label in rows:
            first.setdefault(json.dumps(prompt), (prompt, label))
        rows = list(first.values())
    return [{"prompt": prompt, "class": label} for prompt, label in rows]


def _pair_lines(name: str, paths: list[Path], part: str) -> list[dict[str, Any]]:
    found = (pair for path in paths for pair in PAIRS[name](path))
    pairs = dict.fromkeys((one, other, same) for one, other, same in found if one != other)
    number, _, parts = part.partition("/")
    groups = _groups(list(pairs))
    return [
        {"a": one, "b": other, "same_answer": same}
        for one, other, same in pairs
        if _hashed(groups(one)) % int(parts) == int(number)
    ]


def _groups(pairs: list[Pair]) -> Any:
    """Return the function that names a text's group: texts that pairs join are in one."""
    parent: dict[str, str] = {}

    def find(text: str) -> str:
        while (above := parent.setdefault(text, text)) != text:
            text = parent[text] = parent.setdefault(above, above)
        return text

    for one, other, _ in pairs:
        first, second = sorted((find(one), find(other)))
        parent[second] = first
    return find


def _hashed(text: str) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")


def main() -> None:
    """Write the lines to standard output."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("set", choices=[*READERS, *PAIRS, *QUESTIONS])
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--sample", type=int, help="how many lines; without it, all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="0/1", help="of pairs: K/N, the Kth of N parts, from 0")
    arguments = parser.parse_args()
    if arguments.set in READERS:
        lines = _stream_lines(arguments.set, arguments.paths)
    elif arguments.set in QUESTIONS:
        lines = [row for path in arguments.paths for row in QUESTIONS[arguments.set](path)]
    else:
        lines = _pair_lines(arguments.set, arguments.paths, arguments.part)
    random.Random(arguments.seed).shuffle(lines)
    for line in lines[: arguments.sample]:
        sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
