"""Random models, groups and texts: what must not change a ranking does not change it.

    make invariants CASES=2000      # at full size; `tests/test_invariants.py` has a short version

A case is a number: `python tests/invariants.py --first 4711 --cases 1` repeats it. It draws a configuration (all parts
and options of `CoBertConfig`), weights, texts and one of the checks below. Equal bytes are promised for equal numbers
of threads and equal batches, whatever was ranked before, in which process or beside what; else scores may differ by
rounding, 1e-5 of the largest, or 1e-3 where votes (of feedback, of neighbours) are standardised.
"""

import os

# As in conftest.py, before torch is imported: where in memory a factor lies must not change the last bit.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import argparse  # noqa: E402
import copy  # noqa: E402
import json  # noqa: E402
import logging  # noqa: E402
import random  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import threading  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import Callable  # noqa: E402
from concurrent.futures import ThreadPoolExecutor  # noqa: E402
from pathlib import Path  # noqa: E402

import datasets  # noqa: E402
import ranked_alike  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from random_models import Case, Sandbox, draw_batch  # noqa: E402

from modeling_cobert import CoBertForGroupwiseRanking  # noqa: E402

TOLERANCE = 1e-5
THREADS = 64
OF_CANDIDATES = ("labels", "starting_scores", "likeness")  # inputs that prototypes have no row in


def differ(found: torch.Tensor | list[float], expected: torch.Tensor | list[float], model) -> str:
    """By how much more than by rounding, or nothing."""
    found, expected = torch.as_tensor(found).double(), torch.as_tensor(expected).double()
    if not found.isfinite().all():
        return f"not finite: {found.tolist()}"
    most = (found - expected).abs().max().item() if found.numel() else 0.0
    # Votes may be almost equal, and rounding is a larger part of them than of scores: standardising enlarges it.
    allowed = TOLERANCE if model.neighbours is None and model.feedback is None else 100 * TOLERANCE
    return f"differ by {most:.3g}" if most > allowed * max(1.0, expected.abs().max().item()) else ""


def real_logits(model, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The logits of each group's real candidates."""
    with torch.inference_mode():
        output = model(**inputs)
    mask = inputs["document_mask"][:, model.num_prototypes :].bool()
    return [row[real] for row, real in zip(output.logits, mask, strict=True)]


def check_batch(case: Case) -> str:
    """A group alone is what it is among others."""
    model = case.model()
    inputs = draw_batch(case, model)
    together = real_logits(model, inputs)
    for group, expected in enumerate(together):
        (alone,) = real_logits(model, {name: x[group : group + 1] for name, x in inputs.items()})
        if fault := differ(alone, expected, model):
            return fault
    return ""


def check_padding(case: Case) -> str:
    """More padded tokens, candidates and prototypes, whatever stands in them, are nothing."""
    model = case.model()
    inputs, m = draw_batch(case, model), model.num_prototypes
    expected, padded = real_logits(model, inputs), {}
    tokens, rows = case.choose.randint(0, 5), case.choose.randint(0, 4)
    if model.config.scorer_positions:
        rows = min(rows, model.config.group_size - inputs["labels"].shape[1])
    for name, x in inputs.items():
        if name in ("input_ids", "attention_mask", "token_type_ids"):
            x = torch.nn.functional.pad(x, (0, tokens))
        if name in ("document_mask", "labels"):
            x = torch.nn.functional.pad(x, (0, rows), value=0 if name == "document_mask" else -100)
        elif name == "likeness":
            x = torch.nn.functional.pad(x, (0, rows, 0, rows), value=0.5)
        else:
            x = torch.nn.functional.pad(x, (0, 0, 0, rows), value=1)
        padded[name] = x
    found = real_logits(model, padded)
    unread = padded["document_mask"] == 0
    padded["input_ids"] = padded["input_ids"].masked_fill(unread.unsqueeze(-1), 7)
    for logits in (found, real_logits(model, padded)):
        for one, other in zip(logits, expected, strict=True):
            if fault := differ(one, other, model):
                return fault
    with torch.inference_mode():
        return differ(model(**padded).loss.view(1), model(**inputs).loss.view(1), model) if m + rows else ""


def check_order(case: Case) -> str:
    """Candidates in another order get the same logits, where the configuration has no positions."""
    case.fields |= {"scorer_positions": False, "mark_overlap": False}
    model = case.model()
    inputs, m = draw_batch(case, model), model.num_prototypes
    n = inputs["labels"].shape[1]
    inputs["document_mask"][:, m:] = 1
    order = torch.tensor(case.choose.sample(range(n), n))
    rows = torch.cat((torch.arange(m), m + order))
    moved = {name: x[:, order] if name in OF_CANDIDATES else x[:, rows] for name, x in inputs.items()}
    if "likeness" in moved:
        moved["likeness"] = moved["likeness"][:, :, order]
    before, after = real_logits(model, inputs), real_logits(model, moved)
    return next((f for x, y in zip(after, before, strict=True) if (f := differ(x, y[order], model))), "")


def check_equals(case: Case) -> str:
    """Equal candidates of a group get equal logits, where the configuration has no positions."""
    case.fields |= {"scorer_positions": False, "mark_overlap": False}
    model = case.model()
    inputs, m = draw_batch(case, model), model.num_prototypes
    n = inputs["labels"].shape[1]
    inputs["document_mask"][:, m:] = 1
    one, other = case.choose.randrange(n), case.choose.randrange(n)
    for name, x in inputs.items():
        first = 0 if name in OF_CANDIDATES else m
        x[:, first + other] = x[:, first + one]
        if name == "likeness":
            x[:, :, other] = x[:, :, one]
    return next(
        (f for x in real_logits(model, inputs) if (f := differ(x[other : other + 1], x[one : one + 1], model))), ""
    )


def scores_of(ranking: list[dict]) -> list[float]:
    """The scores in first-stage order; every document is there once."""
    found = {result["corpus_id"]: result["score"] for result in ranking}
    assert sorted(found) == list(range(len(ranking)))
    return [found[place] for place in range(len(ranking))]


def check_batch_tokens(case: Case) -> str:
    """The size of batches changes no more than the last digits, and the documents are left as they were."""
    model, (query, documents) = case.model(), case.question()
    kept, expected = copy.deepcopy(documents), scores_of(model.rerank(query, documents))
    for batch_tokens in (1, case.choose.randint(2, 300), 10**6):
        if fault := differ(scores_of(model.rerank(query, documents, batch_tokens=batch_tokens)), expected, model):
            return f"batch_tokens={batch_tokens}: {fault}"
    return "" if documents == kept else "documents were changed"


def check_threads(case: Case) -> str:
    """1, 2 and 4 threads of torch: to the bit."""
    model, (query, documents) = case.model(), case.question()
    before, threads = model.rerank(query, documents), torch.get_num_threads()
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            if model.rerank(query, documents) != before:
                return (
                    f"{count} threads: {differ(scores_of(model.rerank(query, documents)), scores_of(before), model)}"
                )
            if torch.get_num_threads() != count:
                return f"{count} threads: {torch.get_num_threads()} are left"
    finally:
        torch.set_num_threads(threads)
    return ""


def check_used(case: Case) -> str:
    """What a model ranked before, and in which order, is not to be seen."""
    questions = [case.question(12) for _ in range(4)]
    fresh = [case.model().rerank(*question) for question in questions]
    used, places = case.model(), case.choose.sample(range(4), 4)
    if case.choose.random() < 0.5:
        used.train()
    for place in places + places[::-1]:
        if used.rerank(*questions[place], batch_tokens=case.choose.choice([None, 1024])) != fresh[place]:
            return f"query {place} of {places} is ranked in another way by a used model"
    top = case.choose.randint(0, 5)
    return "" if used.rerank(*questions[0], top_k=top) == fresh[0][:top] else f"top_k={top} is not the top"


def check_given_order(case: Case) -> str:
    """One group, and all documents prototypes: in which order they are given says nothing, but for equal scores."""
    case.fields |= {"scorer_positions": False, "mark_overlap": False, "group_size": 20, "num_prototypes": 20}
    if case.fields["selector"] == "first-stage":
        case.fields["selector"] = "lexical"
    model, (query, documents) = case.model(), case.question(20)
    if model.start is not None:
        texts = [{"text": d} if isinstance(d, str) else d for d in documents]
        documents = [{**d, "score": float(-place)} for place, d in enumerate(texts)]
    order = case.choose.sample(range(len(documents)), len(documents))
    expected = scores_of(model.rerank(query, documents))
    found = scores_of(model.rerank(query, [documents[place] for place in order]))
    return differ(found, [expected[place] for place in order], model)


def check_together(case: Case) -> str:
    """Many threads with one model, which has loaded nothing yet and may be in training: each gets its own answer."""
    folder = case.sandbox.folder / "together"
    case.model().save_pretrained(folder)
    alone, shared = (CoBertForGroupwiseRanking.from_pretrained(folder) for _ in range(2))
    shared.train(case.choose.random() < 0.5)
    questions = [case.question(8) for _ in range(THREADS)]
    expected, begin = [alone.rerank(*question) for question in questions], threading.Barrier(THREADS)

    def rank(place: int) -> list[bool]:
        begin.wait()
        return [shared.rerank(*questions[p % THREADS]) == expected[p % THREADS] for p in (place, place + 7)]

    with ThreadPoolExecutor(THREADS) as pool:
        right = [fine for found in pool.map(rank, range(THREADS)) for fine in found]
    shutil.rmtree(folder)
    return "" if all(right) else f"{right.count(False)} of {len(right)} rankings are others than alone"


def check_ranker(case: Case) -> str:
    """Rows, a collection, training's validation and `model.rerank`: one ranking; in one folder or in several."""
    case.fields |= ranked_alike.CUT
    if case.fields["selector"] == "self":
        case.fields["selector"] = "lexical"
    return ranked_alike.compare(case.sandbox.collection, case.model(), case.choose, differ)


def check_process(case: Case) -> str:
    """Leaves the question, with the answer of this process, for another one: see [`other_process`]."""
    folder = case.sandbox.folder / "questions" / str(case.number)
    model, (query, documents) = case.model(), case.question()
    model.save_pretrained(folder)
    loaded = CoBertForGroupwiseRanking.from_pretrained(folder)
    ranking = loaded.rerank(query, documents)
    if ranking != model.rerank(query, documents):
        return "saved and loaded, the model ranks in another way"
    asked = {"query": query, "documents": documents, "ranking": ranking}
    (folder / "question.json").write_text(json.dumps(asked))
    return ""


# Each check, and how many of 100 cases try it.
CHECKS: dict[str, tuple[Callable[[Case], str], int]] = {
    "batch": (check_batch, 12),
    "padding": (check_padding, 12),
    "order": (check_order, 12),
    "equals": (check_equals, 8),
    "batch tokens": (check_batch_tokens, 14),
    "threads": (check_threads, 8),
    "used": (check_used, 12),
    "given order": (check_given_order, 8),
    "ranker": (check_ranker, 6),
    "process": (check_process, 6),
    "together": (check_together, 2),
}


def try_case(number: int, sandbox: Sandbox) -> tuple[str, str]:
    """The check's name, and its fault, if any."""
    choose = random.Random(number)
    (name,) = choose.choices(list(CHECKS), [share for _, share in CHECKS.values()])
    case = Case(number, choose, sandbox)
    try:
        return name, CHECKS[name][0](case)
    except Exception as error:
        return name, f"{type(error).__name__}: {error}"


def other_process(folder: Path) -> list[str]:
    """A line for every case that a new process, which takes them the other way round, answers with other bytes."""
    if not folder.is_dir():
        return []
    command = [sys.executable, str(Path(__file__).resolve()), "--answer", str(folder)]
    answered = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    shutil.rmtree(folder)
    wrong = json.loads(answered.splitlines()[-1])
    return [f"case {number}, process: another process ranks in another way" for number in wrong]


def answer(folder: Path) -> list[str]:
    """The numbers of the cases whose ranking is another one here."""
    wrong = []
    for path in sorted(folder.iterdir(), reverse=True):
        asked = json.loads((path / "question.json").read_text())
        model = CoBertForGroupwiseRanking.from_pretrained(path)
        if model.rerank(asked["query"], asked["documents"]) != asked["ranking"]:
            wrong.append(path.name)
    return wrong


def search(first: int, cases: int) -> tuple[Counter, list[str]]:
    """How many cases each check had, and a line for every fault."""
    folder = Path(tempfile.mkdtemp())
    try:
        sandbox, counts, faults = Sandbox(folder), Counter(), []
        for number in range(first, first + cases):
            name, fault = try_case(number, sandbox)
            counts[name] += 1
            if fault:
                faults.append(f"case {number}, {name}: {fault}")
            if number % 500 == 499:
                faults += other_process(folder / "questions")
        return counts, faults + other_process(folder / "questions")
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=2_000)
    parser.add_argument("--answer", type=Path, help="A folder of questions that another process has answered.")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    logging.disable(logging.WARNING)  # of queries that the collection has no documents for
    if args.answer:
        print(json.dumps(answer(args.answer)))
        return
    counts, faults = search(args.first, args.cases)
    for name in CHECKS:
        found = sum(f", {name}: " in fault for fault in faults)
        print(f"{name:<14}{counts[name]:>7} cases {found:>5} faults")
    print("\n".join(faults))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
