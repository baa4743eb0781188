"""One model, one ranking: training's own test, `cobert eval` both ways and `model.rerank` agree, ties included."""

import json

import pytest
import tiny
import tiny_collection

from modeling_cobert.collections.collection import open_collection
from modeling_cobert.collections.options import SplitOptions
from modeling_cobert.collections.trec import read_run
from modeling_cobert.commands import eval as eval_command
from modeling_cobert.commands import train as train_command
from modeling_cobert.data.groups import GroupOptions
from modeling_cobert.data.rows import build_rows, load_rows
from modeling_cobert.data.selection import SelectionOptions, select_passages
from modeling_cobert.evaluation.measures import measure_run
from modeling_cobert.ranking.loading import load_cobert
from modeling_cobert.ranking.options import InputOptions, RankerOptions
from modeling_cobert.training.arguments import CoBertTrainingArguments, DataOptions, ModelOptions

GROUPS = GroupOptions(num_prototypes=2, group_size=7, group_overlap=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A collection of a few texts under many ids, so that scores must tie."""
    made = tiny_collection.make(tmp_path_factory.mktemp("words"))
    lines = [json.loads(line) for line in (made / "corpus.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines):
        line |= {name: lines[number // 8 * 8][name] for name in ("title", "text")}
    (made / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return made


@pytest.fixture(scope="module", params=["paper", "start, words and content"])
def trained(request, folder, tmp_path_factory):
    """A model of one fold, the rows that it was trained on, and where it lies."""
    output = tmp_path_factory.mktemp("trained")
    collection = open_collection(folder, skip_missing=True)
    selector, fields = "lexical", {}
    if request.param != "paper":
        selector = str(tiny.bert_checkpoint(output / "bi-encoder", layers=2, hidden_size=20))
        fields = {"starting_weights": [0.5, 1.0, 0.7], "content": True, "neighbour_weight": 0.4}
        fields |= {"feedback_weight": 0.8, "loss": "approx_ndcg"}
    selection = SelectionOptions(selector, passage_words=10, passage_overlap=4, max_length=32, keep_texts=bool(fields))
    select_passages(collection, folder / "run.trec", output / "selected", selection, progress=False)
    build_rows(output / "selected", output / "rows", collection, SplitOptions(folds="random"))
    encoder = tiny.bert_checkpoint(output / "encoder", layers=4)
    args = CoBertTrainingArguments(
        output_dir=str(output / "out"), use_cpu=True, disable_tqdm=True, num_train_epochs=1, learning_rate=1e-3
    )
    model = ModelOptions(encoder=str(encoder), calibrator_layers=1, scorer_layers=2, max_length=32, **fields)
    train_command.main(model, DataOptions(rows=str(output / "rows"), fold="2"), GROUPS, args)
    return output / "out" / "fold-2", load_rows(output / "rows")


def evaluate(model, output, **inputs):
    options = InputOptions(**inputs)
    results = eval_command.main(
        RankerOptions(model=str(model), use_cpu=True),
        options,
        GroupOptions(),
        eval_command.EvalOptions(output=str(output)),
        eval_command.SeenOptions(),
    )
    return read_run(output / "run.trec"), results.reranked.means


def test_all_ways_to_rank_agree(folder, trained, tmp_path):
    model, rows = trained
    query_ids = list(rows.folds[1].test)
    run = read_run(model / "test.trec")
    results = json.loads((model / "results.json").read_text())
    assert sorted(run) == sorted(query_ids)

    by_rows, measures = evaluate(model, tmp_path / "rows", rows=str(rows.folder), fold=2)
    assert {query_id: list(scores) for query_id, scores in by_rows.items()} == {q: list(run[q]) for q in by_rows}
    assert measures == pytest.approx(results["test"], abs=1e-12)

    where = {"collection": str(folder), "run": str(folder / "run.trec"), "skip_missing": True}
    by_collection, measures = evaluate(model, tmp_path / "collection", query_ids=query_ids, **where)
    assert {q: list(scores) for q, scores in by_collection.items()} == {q: list(run[q]) for q in by_collection}
    assert measures == pytest.approx(results["test"], abs=1e-12)

    loaded, ties = load_cobert(model), 0
    documents = {document.doc_id: document.to_dict() for document in open_collection(folder).documents()}
    reranked = {}
    for query_id in query_ids:
        doc_ids = list(rows.run[query_id])
        found = [{**documents[doc_id], "score": score} for doc_id, score in rows.run[query_id].items()]
        ranking = loaded.rerank(rows.row(query_id)["query"], found)
        assert [doc_ids[item["corpus_id"]] for item in ranking] == list(run[query_id])
        scores = [item["score"] for item in ranking]
        ties += len(scores) - len(set(scores))
        reranked[query_id] = run[query_id]
    # (One that starts from first-stage scores, which differ, has no ties.)
    assert ties > 3 or loaded.start is not None, "nothing tied, so nothing was tested"
    assert measure_run(rows.qrels, reranked) == pytest.approx(results["test"], abs=1e-12)
    # By document ids, as trec_eval would break them, the ties would stand in another order.
    by_ids = {q: dict(sorted(scores.items(), reverse=True)) for q, scores in run.items()}
    assert any(list(by_ids[q]) != list(run[q]) for q in run)
