"""Re-ranking of query sets: against `model.rerank`, what is done once and never mixed, and what may go wrong."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny
import tiny_collection
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from modeling_cobert import cli
from modeling_cobert.collections.collection import open_collection
from modeling_cobert.collections.trec import trec_order
from modeling_cobert.data.groups import GroupOptions
from modeling_cobert.grouping_cobert import best_first
from modeling_cobert.ranking.inputs import collection_inputs, rows_inputs
from modeling_cobert.ranking.ranker import SCHEMA, Ranker, rerank_queries
from modeling_cobert.ranking.ties import strict_scores


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tiny.tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_collection.make(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def rows(folder, tmp_path_factory):
    return tiny_collection.rows(folder, tmp_path_factory.mktemp("rows"))


def ranker(tokenizer, selector=None, batch_tokens=16384, **fields) -> Ranker:
    model = tiny.model(**fields)
    model.tokenizer = tokenizer
    return Ranker.wrap(model, selector, batch_tokens)


def reranked_one_by_one(model, folder, selector=None) -> dict[str, dict[str, float]]:
    """`model.rerank` with the texts, as a user would call it."""
    documents = {d.doc_id: {"title": d.title, "text": d.text} for d in open_collection(folder).documents()}
    run = collection_inputs(open_collection(folder), folder / "run.trec", progress=False).run
    result = {}
    for query_id, scores in run.items():
        ids = list(scores)
        ranking = model.rerank(tiny_collection.QUERIES[query_id], [documents[i] for i in ids], selector=selector)
        result[query_id] = {ids[r["corpus_id"]]: r["score"] for r in ranking}
    return result


def assert_same_run(run, expected):
    assert run.keys() == expected.keys()
    for query_id, scores in expected.items():
        assert list(run[query_id]) == list(scores)
        assert list(run[query_id].values()) == pytest.approx(list(scores.values()), abs=1e-5)


@pytest.mark.parametrize(
    ("selector", "variant"),
    [("lexical", name) for name in tiny.VARIANTS]
    + [("self", "full"), ("self", "neither"), ("first-stage", "release")],
)
def test_a_collection_is_ranked_as_rerank_ranks(selector, variant, tokenizer, folder, tmp_path):
    made = ranker(tokenizer, selector, batch_tokens=300, **tiny.VARIANTS[variant])
    inputs = collection_inputs(open_collection(folder), folder / "run.trec", progress=False)
    run = rerank_queries(made, inputs, tmp_path, progress=False)
    assert_same_run(run, reranked_one_by_one(made.model, folder, selector))


@pytest.mark.parametrize("variant", ["full", "calibrator", "scorer", "release"])
def test_rows_of_the_same_passages_give_the_same(variant, tokenizer, folder, rows, tmp_path):
    made = ranker(tokenizer, **tiny.VARIANTS[variant])
    run = rerank_queries(made, rows_inputs(rows), tmp_path, progress=False)
    assert_same_run(run, reranked_one_by_one(made.model, folder, "lexical"))


def test_each_distinct_pair_is_encoded_once(tokenizer, rows, tmp_path, monkeypatch):
    made = ranker(tokenizer)
    pairs, encode = [], made.model.encode

    def counted(input_ids, **inputs):
        pairs.extend(tuple(x for x in row if x) for row in input_ids.tolist())
        return encode(input_ids, **inputs)

    monkeypatch.setattr(made.model, "encode", counted)
    inputs = rows_inputs(rows)
    rerank_queries(made, inputs, tmp_path, progress=False)
    assert len(pairs) == len(set(pairs)) <= sum(len(scores) for scores in inputs.run.values())


@given(
    st.lists(st.sampled_from([0.0, 1e-40, -1e-40, 1.0, 1.0 + 1e-9, -2.5, 16777216.0, 16777217.0, 1e30]), min_size=1)
)
def test_trec_eval_ranks_the_written_scores_as_the_model_did(scores):
    ids = [f"d{i:03d}" for i in range(len(scores))]
    strict = strict_scores(ids, scores)
    assert trec_order(strict) == [ids[i] for i in best_first(scores)] == list(strict)
    assert all(strict[i] == pytest.approx(score, rel=1e-4, abs=1e-30) for i, score in zip(ids, scores, strict=True))


def test_scores_without_ties_are_written_as_they_are():
    scores = torch.randn(50, generator=torch.Generator().manual_seed(0)).tolist()
    ids = [str(i) for i in range(50)]
    assert strict_scores(ids, scores) == dict(zip(ids, scores, strict=True))
    for bad in (float("inf"), 1e39):
        with pytest.raises(ValueError, match="document '1' has the score"):
            strict_scores(["0", "1"], [0.0, bad])
    with pytest.raises(ValueError, match="document '0' has the score nan"):
        strict_scores(["0"], [float("nan")])


def test_a_document_has_the_score_of_its_best_passage():
    strict = strict_scores(["a", "b", "a", "c", "b"], [1.0, 2.0, 3.0, 2.0, 0.5])
    assert list(strict) == ["a", "b", "c"] and (strict["a"], strict["b"]) == (3.0, 2.0)
    assert strict["c"] < 2.0 and strict["c"] == pytest.approx(2.0)


def test_what_is_done_is_not_done_again_and_never_mixed(tokenizer, folder, tmp_path, monkeypatch):
    made = ranker(tokenizer)
    inputs = collection_inputs(open_collection(folder), folder / "run.trec", progress=False)
    run = rerank_queries(made, inputs, tmp_path, progress=False)
    parts = sorted((tmp_path / ".parts").glob("0*.parquet"))
    assert len(parts) == len(run)
    parts[2].unlink()
    encoded = []
    encode = made.model.encode
    monkeypatch.setattr(
        made.model, "encode", lambda **batch: encoded.append(len(batch["input_ids"])) or encode(**batch)
    )
    assert rerank_queries(made, inputs, tmp_path, progress=False) == run
    assert 0 < sum(encoded) <= len(inputs.run["q2"])
    with pytest.raises(ValueError, match="begun with other settings: model.weights is"):
        rerank_queries(ranker(tokenizer, seed=1), inputs, tmp_path, progress=False)
    with pytest.raises(ValueError, match="begun with other settings: selector is"):
        rerank_queries(ranker(tokenizer, "self"), inputs, tmp_path, progress=False)
    fewer = collection_inputs(open_collection(folder), folder / "run.trec", k=5, progress=False)
    with pytest.raises(ValueError, match="begun with other settings: k is 1000, now 5"):
        rerank_queries(made, fewer, tmp_path, progress=False)
    whole = parts[3].read_bytes()
    parts[3].write_bytes(whole[:-7])
    with pytest.raises(ValueError, match="00003.parquet: damaged"):
        rerank_queries(made, inputs, tmp_path, progress=False)
    pq.write_table(pa.table({"query_id": ["q3"]}), parts[3])
    with pytest.raises(ValueError, match="00003.parquet: damaged .not these columns: query_id, doc_ids, scores"):
        rerank_queries(made, inputs, tmp_path, progress=False)
    parts[3].write_bytes(parts[1].read_bytes())
    with pytest.raises(ValueError, match="00003.parquet: has other queries than 'q3'"):
        rerank_queries(made, inputs, tmp_path, progress=False)
    strange = [{"query_id": "q3", "doc_ids": ["d0"], "scores": [1.0]}]
    pq.write_table(pa.Table.from_pylist(strange, schema=SCHEMA), parts[3])
    with pytest.raises(ValueError, match="the part of query 'q3' has other documents"):
        rerank_queries(made, inputs, tmp_path, progress=False)
    parts[3].write_bytes(whole)
    assert rerank_queries(made, inputs, tmp_path, progress=False) == run


def test_the_queries_that_are_asked_for(folder, rows, tmp_path):
    collection = open_collection(folder)
    some = collection_inputs(collection, folder / "run.trec", query_ids=["q3", "q1"], progress=False)
    assert list(some.queries) == list(some.run) == list(some.qrels) == ["q1", "q3"]
    everything = collection_inputs(collection, folder / "run.trec", progress=False)
    assert tiny_collection.UNFOUND in everything.qrels and tiny_collection.UNFOUND not in everything.run
    assert everything.skipped == {"queries_without_documents": 1}
    assert list(rows_inputs(rows, split="test", query_ids=["q2"]).queries.items()) == [("q2", "the road to the sky")]
    with pytest.raises(ValueError, match="no split 'train'; there are test"):
        rows_inputs(rows, split="train")
    with pytest.raises(ValueError, match="1 queries asked for are not there, such as 'q7'"):
        rows_inputs(rows, query_ids=["q1", "q7"])
    with pytest.raises(ValueError, match="has no folds, so there is no fold 1"):
        rows_inputs(rows, fold=1)
    folded = tiny_collection.rows(folder, tmp_path, folds="random")
    tests = [set(rows_inputs(folded, fold=fold).queries) for fold in range(1, 6)]
    assert set().union(*tests) == set(tiny_collection.QUERIES) and sum(map(len, tests)) == 6
    with pytest.raises(ValueError, match="has folds 1 to 5, so there is no fold 6"):
        rows_inputs(folded, fold=6)
    # Judgments given beside the rows bring back the queries that have none.
    judged = rows_inputs(rows, qrels=collection.qrels())
    assert tiny_collection.UNFOUND in judged.qrels and tiny_collection.UNFOUND not in judged.queries
    assert list(rows_inputs(rows, query_ids=["q1"], qrels=collection.qrels()).qrels) == ["q1"]


def test_documents_that_are_not_there(folder, tmp_path):
    run = tmp_path / "run.trec"
    run.write_text("q0 Q0 d1 1 3.0 x\nq0 Q0 gone 2 2.0 x\nq1 Q0 lost 1 1.0 x\n")
    with pytest.raises(ValueError, match=r"2 documents \(2 lines\) are not in .*, such as 'gone'.*--skip_missing"):
        collection_inputs(open_collection(folder), run, progress=False)
    inputs = collection_inputs(open_collection(folder, skip_missing=True), run, progress=False)
    assert inputs.run == {"q0": {"d1": 3.0}} and inputs.skipped["documents_missing"] == 2
    assert "q1" in inputs.qrels
    run.write_text("other Q0 d1 1 3.0 x\n")
    with pytest.raises(ValueError, match="not one of its 1 queries is in"):
        collection_inputs(open_collection(folder), run, progress=False)


def test_models_that_do_not_fit(tokenizer, folder, rows, tmp_path, caplog):
    inputs = collection_inputs(open_collection(folder), folder / "run.trec", progress=False)
    with pytest.raises(ValueError, match="scorer but no calibrator has none"):
        rerank_queries(ranker(tokenizer, "self", use_calibrator=False), inputs, tmp_path / "a", progress=False)
    made, larger = ranker(tokenizer, group_size=5, **tiny.VARIANTS["release"]), GroupOptions(group_size=7)
    of_collection = collection_inputs(open_collection(folder), folder / "run.trec", options=larger, progress=False)
    for inputs_of_7 in (rows_inputs(rows, options=larger), of_collection):
        with pytest.raises(ValueError, match="groups of 7, but the model's scorer has positions for 5"):
            rerank_queries(made, inputs_of_7, tmp_path / "b", progress=False)
    with pytest.raises(ValueError, match="query 'q0': the query has 7 tokens, but a row of 7 has room for 3"):
        rerank_queries(ranker(tokenizer, max_length=7), inputs, tmp_path / "c", progress=False)
    assert not any((tmp_path / name).exists() for name in "abc")
    broken = ranker(tokenizer)
    torch.nn.init.constant_(broken.model.classifier.bias, float("nan"))
    with pytest.raises(ValueError, match="query 'q0': document .* has the score nan"):
        rerank_queries(broken, inputs, tmp_path / "d", progress=False)
    with caplog.at_level("WARNING"):
        rerank_queries(ranker(tokenizer, passage_words=9), rows_inputs(rows), tmp_path / "e", progress=False)
    assert "passage_words is 10 here, the model's is 9" in caplog.text and "passage_overlap" not in caplog.text
    tiny.bert_checkpoint(tmp_path / "bert")
    with pytest.raises(ValueError, match="a Co-BERT is needed, this is a 'bert'"):
        Ranker.load(str(tmp_path / "bert"))


def test_a_checkpoint_without_all_its_weights_is_refused(tmp_path):
    tiny.checkpoint(tmp_path / "model", use_scorer=False)
    path = tmp_path / "model" / "config.json"
    path.write_text(path.read_text().replace('"use_scorer": false', '"use_scorer": true'))
    with pytest.raises(ValueError, match="not those of its config: .* missing, such as scorer"):
        Ranker.load(str(tmp_path / "model"))


def damage(folder, what):
    weights, path = folder / "model.safetensors", folder / "config.json"
    config, content = json.loads(path.read_text()), weights.read_bytes()
    if what in ("empty", "header", "half"):
        weights.write_bytes(content[: {"empty": 0, "header": 1000, "half": len(content) // 2}[what]])
    elif what == "shape":
        save_file({**load_file(weights), "classifier.weight": torch.zeros(2, tiny.HIDDEN)}, weights, {"format": "pt"})
    elif what == "tokenizer":
        (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    elif what == "no JSON":
        path.write_text("{")
    else:
        part, name, value = what
        (config if part is None else config[part])[name] = value
        path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "empty",
            "model: it cannot be loaded, so its weights or .*no safetensors: it is empty",
        ),
        ("header", "model: it cannot be loaded, so its weights or .*header would be longer than the file"),
        ("half", "model: it cannot be loaded, so its weights or .*not fully covered"),
        ("shape", r"1 of another shape, such as classifier.weight \(2, 24\) for \(1, 24\). Load a whole"),
        ("tokenizer", "model: its tokenizer cannot be read"),
        ("no JSON", "model/config.json' is not a valid JSON file"),
        (
            (None, "encoder_pooling", "max"),
            "its config.json cannot be used .*'encoder_pooling' expected one of",
        ),
        ((None, "group_overlap", 99), "model: its config.json cannot be used .*`group_overlap` must be"),
        ((None, "dtype", "float99"), "model: its config.json cannot be used .*float99"),
        (("encoder_config", "hidden_act", "nothing"), "model: it cannot be loaded, so its .*'nothing'"),
        (("encoder_config", "num_attention_heads", 0), "model: it cannot be loaded, so its .*ZeroDivisionError"),
        (("encoder_config", "num_hidden_layers", 3), "32 too many, such as encoder.encoder.layer.3"),
        (("encoder_config", "vocab_size", 20), r"such as encoder.embeddings.word_embeddings.weight \(85, 24\)"),
    ],
)
def test_damaged_folders_are_told(what, message, folder, tmp_path, capsys):
    damage(tiny.checkpoint(tmp_path / "model"), what)
    options = ["--model", str(tmp_path / "model"), "--collection", str(folder), "--run", str(folder / "run.trec")]
    with pytest.raises(SystemExit) as ended:
        cli.run("eval", [*options, "--output", str(tmp_path / "out"), "--use_cpu"])
    assert ended.value.code == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and re.search(message, error)
    assert not (tmp_path / "out").exists()
