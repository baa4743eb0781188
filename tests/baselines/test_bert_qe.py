"""BERT-QE against plain loops over single pairs, its share tuned by hand, resumed, and dealt to processes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import ir_measures
import numpy as np
import pytest
import tiny
import torch
from ir_measures import nDCG
from transformers import AutoTokenizer, BertForSequenceClassification

from modeling_cobert import cli
from modeling_cobert.baselines.bert_qe import (
    FORMAT,
    SCHEMA,
    STEP,
    BertQeOptions,
    read_scored,
    score_expansions,
    select_chunks,
)
from modeling_cobert.baselines.interpolation import (
    ALPHAS,
    TuningOptions,
    best_alpha,
    choose_alphas,
    interpolate,
    run_bert_qe,
)
from modeling_cobert.collections.folds import Fold
from modeling_cobert.collections.options import SplitOptions
from modeling_cobert.collections.trec import read_run
from modeling_cobert.commands import bert_qe
from modeling_cobert.selection_cobert import load_selector
from modeling_cobert.steps.folders import read_settings, write_settings
from modeling_cobert.steps.shards import QueryShards

ROOT = Path(__file__).resolve().parents[2]
LENGTH, PASSAGE, CHUNK, DOCS, CHUNKS = 32, (12, 5), (4, 2), 3, 5
SIZES = {
    "max_length": LENGTH,
    "passage_words": PASSAGE[0],
    "passage_overlap": PASSAGE[1],
    "chunk_words": CHUNK[0],
    "chunk_overlap": CHUNK[1],
    "feedback_docs": DOCS,
    "feedback_chunks": CHUNKS,
}


def options(encoders, **fields) -> BertQeOptions:
    return BertQeOptions(*encoders, **{**SIZES, **fields})


def pieces(text: str, size: int, overlap: int) -> list[str]:
    words, start, found = text.split(), 0, []
    while True:
        found.append(" ".join(words[start : start + size]))
        if start + size >= len(words):
            return found
        start += size - overlap


class Oracle:
    """The three phases as the paper writes them, one forward pass a pair, no batch."""

    def __init__(self, small, encoders):
        self.small = small
        self.tokenizer = AutoTokenizer.from_pretrained(encoders[0])
        self.models = [BertForSequenceClassification.from_pretrained(name).eval() for name in encoders]
        self.known = {}

    def tokens(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def relevance(self, *pair) -> float:
        if pair not in self.known:
            self.known[pair] = self.forward(*pair)
        return self.known[pair]

    @torch.no_grad()
    def forward(self, phase: int, first: str, second: str, limit: int | None = None) -> float:
        head = [self.tokenizer.cls_token_id, *self.tokens(first)[:limit], self.tokenizer.sep_token_id]
        tail = [*self.tokens(second)[: LENGTH - len(head) - 1], self.tokenizer.sep_token_id]
        types = [0] * len(head) + [1] * len(tail)
        logits = self.models[phase](torch.tensor([head + tail]), token_type_ids=torch.tensor([types])).logits[0]
        return (logits[0] if len(logits) == 1 else logits[1] - logits[0]).item()

    def scores(self, query_id: str, alpha: float, probability=False, all_passages=False, from_passage=False):
        query = self.small.queries[query_id]
        texts = {
            d: f"{self.small.documents[d]['title']} {self.small.documents[d]['text']}"
            for d in self.small.run[query_id]
        }
        passages = {d: pieces(text, *PASSAGE) for d, text in texts.items()}
        each = {d: [self.relevance(0, query, passage) for passage in passages[d]] for d in texts}
        best = {d: passages[d][max(range(len(each[d])), key=lambda i, d=d: (each[d][i], -i))] for d in texts}
        order = sorted(texts, key=lambda d: -max(each[d]))[:DOCS]
        chunks = []
        for d in order:
            chunks += [chunk for chunk in pieces(best[d] if from_passage else texts[d], *CHUNK) if chunk]
        scored = [(self.relevance(1, query, chunk), chunk) for chunk in chunks]
        scored = sorted(scored, key=lambda pair: -pair[0])[:CHUNKS]
        rel = (lambda x: torch.tensor(x, dtype=torch.double).sigmoid().item()) if probability else float
        own = {d: rel(max(each[d])) for d in texts}
        if not scored:
            return own
        weights = torch.tensor([rel(score) for score, _ in scored], dtype=torch.double).softmax(0).tolist()
        final = {}
        for d in texts:
            voted = 0.0
            for weight, (_, chunk) in zip(weights, scored, strict=True):
                against = passages[d] if all_passages else [best[d]]
                voted += weight * rel(max(self.relevance(2, chunk, passage, LENGTH // 3) for passage in against))
            final[d] = (1 - alpha) * own[d] + alpha * voted
        return final


@pytest.fixture(scope="module")
def oracle(small, encoders):
    return Oracle(small, encoders)


@pytest.mark.parametrize("batch_tokens", [64, 2048])
def test_equals_the_paper_in_plain_loops(small, encoders, oracle, tmp_path, batch_tokens):
    score_expansions(
        small.open(), small.run_file, tmp_path, options(encoders, batch_tokens=batch_tokens), progress=False
    )
    for query in read_scored(tmp_path).read():
        for alpha, relevance in ((0.0, "logit"), (0.3, "logit"), (1.0, "logit"), (0.6, "probability")):
            expected = oracle.scores(query["query_id"], alpha, probability=relevance == "probability")
            assert interpolate(query, alpha, relevance) == pytest.approx(expected, abs=1e-5), (
                query["query_id"],
                alpha,
            )


@pytest.mark.parametrize("all_passages, from_passage", [(True, False), (False, True)])
def test_options_equal_plain_loops(small, encoders, oracle, tmp_path, all_passages, from_passage):
    chosen = options(
        encoders,
        compared_with="all" if all_passages else "best",
        chunks_from="passage" if from_passage else "document",
        shard_queries=4,
    )
    score_expansions(small.open(), small.run_file, tmp_path, chosen, progress=False)
    differs = False
    for query in read_scored(tmp_path).read():
        expected = oracle.scores(query["query_id"], 0.7, all_passages=all_passages, from_passage=from_passage)
        assert interpolate(query, 0.7) == pytest.approx(expected, abs=1e-5), query["query_id"]
        differs |= expected != pytest.approx(oracle.scores(query["query_id"], 0.7), abs=1e-3)
    assert differs  # or the options were not tried


def test_few_documents_few_chunks_and_empty_ones(small, encoders, tmp_path):
    settings = score_expansions(small.open(), small.run_file, tmp_path, options(encoders), progress=False)
    scored = {query["query_id"]: query for query in read_scored(tmp_path).read()}
    assert list(scored) == list(small.queries)
    for query_id, query in scored.items():
        assert query["doc_ids"] == list(small.run[query_id])
        assert len(query["chunk_votes"]) == len(query["chunks"]) <= CHUNKS
        assert all(len(votes) == len(query["doc_ids"]) for votes in query["chunk_votes"])
        assert all(chunk.strip() for chunk in query["chunks"])
        assert query["chunk_scores"] == sorted(query["chunk_scores"], reverse=True)
        for chunk, doc_id in zip(query["chunks"], query["chunk_doc_ids"], strict=True):
            document = small.documents[doc_id]
            assert chunk in f"{document['title']} {document['text']}"
    # q1 has only empty documents: no feedback, so no share of it can change the ranking of phase 1
    assert scored["q1"]["chunks"] == [] and interpolate(scored["q1"], 1.0) == interpolate(scored["q1"], 0.0)
    assert settings["counts"]["queries_without_chunks"] == 1 and settings["counts"]["queries"] == 6
    encoder = load_selector(encoders[1], LENGTH)
    two = select_chunks(encoder, "bees", {"a": "", "b": "red blue green sky road"}, options(encoders))
    assert sorted(text for _, text, _ in two) == ["green sky road", "red blue green sky"]


def made(query_id, scores, votes, chunk_scores=(0.0, 0.0)) -> dict:
    ids = [f"d{i}" for i in range(len(scores))]
    chunks = [f"c{i}" for i in range(len(votes))]
    columns = (query_id, ids, list(scores), list(scores), chunks, ids[:2], list(chunk_scores), votes)
    return dict(zip(SCHEMA.names, columns, strict=True))


def test_interpolation_by_hand():
    # equal chunk scores: weights 1/2 and 1/2, so rel(C, d0) = (1 + 3) / 2 = 2 and rel(C, d1) = (0 + 8) / 2 = 4
    query = made("q", [5.0, 1.0], [[1.0, 0.0], [3.0, 8.0]])
    assert interpolate(query, 0.25) == pytest.approx({"d0": 0.75 * 5 + 0.25 * 2, "d1": 0.75 * 1 + 0.25 * 4})
    assert interpolate(query, 0.0) == {"d0": 5.0, "d1": 1.0}  # to the bit
    # probabilities: all logits 0 are 1/2, and of equal documents the first one stays before the other
    below = float(np.nextafter(np.float32(0.5), np.float32(0)))
    assert interpolate(made("q", [0.0, 0.0], [[0.0, 0.0]] * 2), 0.5, "probability") == {"d0": 0.5, "d1": below}


def test_alpha_by_hand(tmp_path):
    # (1 - a) * 1 + a * 0 against (1 - a) * 0 + a * 1: the relevant d1 leads from a > 0.5 on; at 0.5 they tie, and
    # keep the first stage's order, d0 first, so 0.6 is the smallest of the best. q2 is the other way round.
    rows = {query_id: made(query_id, [1.0, 0.0], [[0.0, 1.0], [0.0, 1.0]]) for query_id in ("q1", "q2")}
    folder = tmp_path / "expansion"
    QueryShards(folder / "shards", list(rows), SCHEMA, size=2).fill(rows.get)
    write_settings(folder, {"step": STEP, "format": FORMAT, "shard_queries": 2}, {"query_ids": list(rows)})
    qrels = {"q1": {"d1": 1}, "q2": {"d0": 1}}
    folds = [(1, Fold((), ("q1",), ("q2",))), (2, Fold((), ("q2",), ("q1",))), (3, Fold((), ("q1", "q2"), ("x",)))]
    alphas, means = choose_alphas(tmp_path, folds, qrels, TuningOptions())
    assert alphas == {1: 0.6, 2: 0.0, 3: 0.0}
    second = 0.6309297535714575  # 1 / log2(3): the relevant document in the second place
    assert [means[1][a] for a in ALPHAS] == pytest.approx([second] * 6 + [1.0] * 5)
    assert [means[2][a] for a in ALPHAS] == pytest.approx([1.0] * 6 + [second] * 5)
    assert list(means[3].values()) == pytest.approx([(1 + second) / 2] * 11)
    with pytest.raises(ValueError, match="fold 1: none of its 1 validation queries is judged"):
        choose_alphas(tmp_path, folds, {"q2": {"d0": 1}}, TuningOptions())
    assert choose_alphas(tmp_path, folds, {}, TuningOptions(alpha=0.4))[0] == {1: 0.4, 2: 0.4, 3: 0.4}
    values = {0.2: {"a": 0.5, "b": 0.1}, 0.1: {"a": 0.1, "b": 0.5}, 0.3: {"a": 0.2, "b": 0.2}}
    assert best_alpha(values, ["a", "b"])[0] == 0.1
    assert best_alpha(values, ["a"])[0] == 0.2


def test_whole_result(small, encoders, tmp_path):
    results = run_bert_qe(small.open(), small.run_file, tmp_path, options(encoders), progress=False)
    scored = {query["query_id"]: query for query in read_scored(tmp_path / "scores").read()}
    expected, phase1 = {}, {}
    for number, fold in enumerate(small.folds, start=1):
        means = {}
        for alpha in ALPHAS:
            mixed = {query_id: interpolate(scored[query_id], alpha) for query_id in fold.validation}
            part = {query_id: small.qrels[query_id] for query_id in fold.validation}
            means[alpha] = ir_measures.calc_aggregate([nDCG @ 20], part, mixed)[nDCG @ 20]
        best = min(ALPHAS, key=lambda a, means=means: (-round(means[a], 12), a))
        assert results["alphas"][str(number)] == best
        expected |= {query_id: interpolate(scored[query_id], best) for query_id in fold.test}
        phase1 |= {query_id: interpolate(scored[query_id], 0.0) for query_id in fold.test}
    assert read_run(tmp_path / "result" / "run.trec") == expected
    assert read_run(tmp_path / "result" / "phase1.trec") == phase1
    # d9 and d10 are both empty, so no model can tell them apart: they stay as the first stage had them, in every file
    twins = [query_id for query_id in small.queries if {"d9", "d10"} <= small.run[query_id].keys()]
    assert len({small.run[q]["d9"] > small.run[q]["d10"] for q in twins}) == 2
    for query_id in twins:
        for run in (expected, phase1):
            before, after = ((found["d9"] > found["d10"]) for found in (small.run[query_id], run[query_id]))
            assert before == after and run[query_id]["d9"] != run[query_id]["d10"]
    for name, run in (("first_stage", small.run), ("phase1", phase1), ("bert_qe", expected)):
        value = ir_measures.calc_aggregate([nDCG @ 20], small.qrels, run)[nDCG @ 20]
        assert results["measures"][name]["nDCG@20"] == pytest.approx(value)
    # a share of zero is phase 1 to the bit, and scores are not made again for another way to weigh them
    shard = tmp_path / "scores" / "expansion" / "shards" / "00002.parquet"
    before = shard.stat().st_mtime_ns
    with pytest.raises(ValueError, match="begun with other settings: alpha is null, now 0.0"):
        run_bert_qe(
            small.open(), small.run_file, tmp_path, options(encoders), TuningOptions(alpha=0.0), progress=False
        )
    (tmp_path / "result").rename(tmp_path / "tuned")
    run_bert_qe(small.open(), small.run_file, tmp_path, options(encoders), TuningOptions(alpha=0.0), progress=False)
    assert read_run(tmp_path / "result" / "run.trec") == phase1 and shard.stat().st_mtime_ns == before


def test_lost_scores_and_runs_are_made_anew_and_changed_ones_refused(small, encoders, tmp_path):
    def run():
        return run_bert_qe(small.open(), small.run_file, tmp_path, options(encoders), progress=False)

    results = run()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    whole = {path: path.read_bytes() for path in files}
    lost = [tmp_path / "scores" / part / "shards" / "00002.parquet" for part in ("phase1", "expansion")]
    lost += [tmp_path / "result" / name for name in ("run.trec", "phase1.trec", "results.json")]
    for path in lost:
        path.unlink()
    with pytest.raises(FileNotFoundError, match="00002.parquet: not there any more"):
        read_scored(tmp_path / "scores")
    assert run() == results
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == whole
    for path in lost:
        path.write_bytes(whole[path][:-5])
        with pytest.raises(ValueError, match=f"{path.name}: not as it was written"):
            run()
        path.write_bytes(whole[path])


def test_resumes_query_by_query(small, encoders, tmp_path):
    score_expansions(small.open(), small.run_file, tmp_path, options(encoders), progress=False)
    folder = tmp_path / "expansion"
    shards = sorted((folder / "shards").iterdir())
    whole = {path: path.read_bytes() for path in shards}
    assert len(shards) == 6
    # what a kill -9 leaves: some queries missing, half of a file under another name, no counts
    settings = read_settings(folder)
    del settings["counts"]
    write_settings(folder, settings, None)
    for path in shards[3:]:
        path.unlink()
    (folder / "shards" / ".00003.parquet.abc.tmp").write_bytes(whole[shards[3]][:100])
    times = {path: path.stat().st_mtime_ns for path in shards[:3]}
    with pytest.raises(ValueError, match="not finished"):
        read_scored(tmp_path)
    with pytest.raises(ValueError, match="begun with other settings: feedback_chunks is 5, now 4"):
        score_expansions(small.open(), small.run_file, tmp_path, options(encoders, feedback_chunks=4), progress=False)
    score_expansions(small.open(), small.run_file, tmp_path, options(encoders), progress=False)
    assert {path: path.read_bytes() for path in (folder / "shards").iterdir()} == whole
    assert {path: path.stat().st_mtime_ns for path in shards[:3]} == times


def test_no_model_is_tested_on_what_it_has_seen(small, encoders, tmp_path):
    collection, seen = small.open(), sorted(small.folds[0].test)[0]
    known = shutil.copytree(encoders[0], tmp_path / "known")
    (known / "settings.json").write_text(json.dumps({"seen": {collection.name: [seen]}}))
    for phase in range(3):
        chosen = [str(known) if place == phase else name for place, name in enumerate(encoders)]
        with pytest.raises(ValueError, match=rf"known: the model has seen 1 of the queries .* \({seen}\). Name the"):
            run_bert_qe(collection, small.run_file, tmp_path / "out", options(chosen), progress=False)
    assert not (tmp_path / "out").exists()


def test_every_fold_has_its_own_models(small, encoders, tmp_path):
    pattern = encoders[0].replace("fold-1", "fold-{fold}")
    chosen = options([pattern, encoders[1], pattern])
    run_bert_qe(small.open(), small.run_file, tmp_path, chosen, TuningOptions(alpha=0.4), progress=False)
    run = read_run(tmp_path / "result" / "run.trec")
    assert set(run) == set(small.queries)
    for number, fold in enumerate(small.folds, start=1):
        own = encoders[number - 1]
        oracle = Oracle(small, [own, encoders[1], own])
        scored = {query["query_id"] for query in read_scored(tmp_path / f"fold-{number}").read()}
        assert scored == {*fold.test, *fold.validation}
        for query_id in fold.test:
            assert run[query_id] == pytest.approx(oracle.scores(query_id, 0.4), abs=1e-5)


def test_refuses(small, encoders, tmp_path):
    plain = str(tiny.bert_checkpoint(tmp_path / "plain", layers=1))
    with pytest.raises(ValueError, match="plain' is a bi-encoder: BERT-QE needs cross-encoders"):
        score_expansions(small.open(), small.run_file, tmp_path / "a", options([encoders[0], plain, encoders[2]]))
    assert not (tmp_path / "a").exists()
    with pytest.raises(ValueError, match="query 'q0': the query has .* tokens"):
        score_expansions(small.open(), small.run_file, tmp_path / "b", options(encoders, max_length=4))
    for fields, message in (
        ({"chunk_overlap": 4}, "0 <= overlap < size"),
        ({"feedback_docs": 0}, "feedback_docs must be at least 1"),
        ({"chunks_from": "title"}, "chunks_from must be one of document, passage"),
        ({"compared_with": "first"}, "compared_with must be one of best, all"),
    ):
        with pytest.raises(ValueError, match=message):
            options(encoders, **fields)
    with pytest.raises(ValueError, match="alpha is a share"):
        TuningOptions(alpha=1.2)
    with pytest.raises(ValueError, match="no validation and test queries to tune"):
        run_bert_qe(small.open(), small.run_file, tmp_path / "c", options(encoders), splits=SplitOptions(folds="none"))


def test_script_on_two_processes_as_on_one(small, encoders, tmp_path, capsys):
    arguments = ["--collection", str(small.collection_folder), "--run", str(small.run_file)]
    for number, name in enumerate(encoders, start=1):
        arguments += [f"--phase{number}", name]
    arguments += [part for name, value in SIZES.items() for part in (f"--{name}", str(value))]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    # Without "--" torchrun takes --run for a short form of its own --run-path.
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--"]
    command = [*launch, ROOT / "data_scripts" / "run_bert_qe.py", *arguments, "--output", str(tmp_path / "two")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = bert_qe.main(*cli.parse("bert-qe", bert_qe, [*arguments, "--output", str(tmp_path / "one")]))
    printed = capsys.readouterr().out
    assert "6 test queries" in printed and f"{results['measures']['first_stage']['nDCG@20']:.4f}" in printed
    for name in ("run.trec", "phase1.trec", "results.json"):
        one, two = ((tmp_path / folder / "result" / name).read_bytes() for folder in ("one", "two"))
        assert one == two, name
    assert json.loads((tmp_path / "two" / "result" / "results.json").read_text()) == results
