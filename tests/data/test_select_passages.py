"""Selection: the right passages by slow code written here, the same bytes after kills and on two processes."""

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import small_collection as small
import tiny
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from modeling_cobert.collections.collection import open_collection
from modeling_cobert.data import stored_passages
from modeling_cobert.data.selection import SCHEMA, SelectionOptions, read_selected, select_passages
from modeling_cobert.steps.folders import read_settings

ROOT = Path(__file__).resolve().parents[2]
K = 11


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("selection")
    small.write_collection(folder / "collection")
    small.write_run(folder / "run.trec")
    tiny.bert_checkpoint(folder / "one-label", layers=1, labels=1)
    tiny.bert_checkpoint(folder / "two-labels", layers=2, labels=2)
    tiny.bert_checkpoint(folder / "bi-encoder", layers=3)
    return folder


def options(folder, selector, **changes):
    if selector not in ("lexical", "first-stage"):
        selector = str(folder / selector)
    window = dict(zip(("passage_words", "passage_overlap"), small.WINDOW, strict=True))
    fields = {"k": K, "max_length": small.MAX_LENGTH, "batch_tokens": 150, "shard_queries": 3, **window, **changes}
    return SelectionOptions(selector, **fields)


def select(folder, output, selector, skip_missing=False, **changes):
    collection = open_collection(folder / "collection", skip_missing=skip_missing)
    return select_passages(
        collection, folder / "run.trec", output, options(folder, selector, **changes), progress=False
    )


# A list of each of these is in a query's row; one document's part has them under a singular name.
LISTS = {
    "doc_ids": "doc_id",
    "ranks": "rank",
    "first_stage_scores": "first_stage_score",
    "selector_scores": "score",
    "passages": "passage",
    "passage_numbers": "window",
    "passage_counts": "windows",
    "truncated": "truncated",
}


def documents_of(output):
    """Every document of every query, read without the package."""
    found = []
    for path in sorted((output / "shards").iterdir()):
        table = pq.read_table(path)
        assert table.column_names == ["query_id", "query", *LISTS] == SCHEMA.names
        for row in table.to_pylist():
            lists = {LISTS[name]: row[name] for name in LISTS if row[name] is not None}
            assert {len(values) for values in lists.values()} == {len(row["doc_ids"])}
            common = {"query_id": row["query_id"], "query": row["query"], "truncated": None}
            found += [common | {k: v[i] for k, v in lists.items()} for i in range(len(row["doc_ids"]))]
    return found


class SlowSelector:
    """One passage at a time through the model, its text tokenised anew."""

    def __init__(self, path):
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        kind = AutoModel if path.name == "bi-encoder" else AutoModelForSequenceClassification
        self.model = kind.from_pretrained(path).eval()
        self.bi = path.name == "bi-encoder"

    def encode(self, *texts, truncation):
        # In lists: for a lone empty passage the tokenizer would leave out the last [SEP].
        return self.tokenizer(
            *([text] for text in texts),
            split_special_tokens=True,
            truncation=truncation,
            max_length=small.MAX_LENGTH,
            return_tensors="pt",
        )

    @torch.no_grad()
    def embed(self, text):
        hidden = self.model(**self.encode(text, truncation=True)).last_hidden_state[0]
        return torch.nn.functional.normalize(hidden.mean(dim=0), dim=0)

    @torch.no_grad()
    def __call__(self, query, passage):
        if self.bi:
            return float(self.embed(query) @ self.embed(passage))
        logits = self.model(**self.encode(query, passage, truncation="only_second")).logits[0]
        return float(logits[-1] - logits[0]) if len(logits) == 2 else float(logits[0])

    def too_long(self, query, passage):
        texts = (passage,) if self.bi else (query, passage)
        return len(self.encode(*texts, truncation=False)["input_ids"][0]) > small.MAX_LENGTH


@pytest.mark.parametrize("title", [False, True])
@pytest.mark.parametrize("selector", ["one-label", "two-labels", "bi-encoder"])
def test_each_document_keeps_its_best_passage(folder, tmp_path, selector, title):
    select(folder, tmp_path / "out", selector, passage_title=title)
    slow, documents = SlowSelector(folder / selector), small.make_documents()
    found = iter(documents_of(tmp_path / "out"))
    truncated = passages = 0
    for query_id, query in small.QUERIES.items():
        for rank, (doc_id, first_stage) in enumerate(small.ranking(folder / "run.trec", query_id, K), start=1):
            row = next(found)
            texts = small.windows(*documents[doc_id], *small.WINDOW, with_title=title)
            scores = [slow(query, text) for text in texts]
            assert (row["query_id"], row["query"], row["doc_id"], row["rank"]) == (query_id, query, doc_id, rank)
            assert row["first_stage_score"] == first_stage and row["windows"] == len(texts)
            assert row["passage"] == texts[row["window"]]
            assert row["score"] == pytest.approx(max(scores), abs=1e-4)
            assert scores[row["window"]] == pytest.approx(max(scores), abs=1e-4)
            assert row["truncated"] == sum(slow.too_long(query, text) for text in texts)
            truncated, passages = truncated + row["truncated"], passages + len(texts)
    assert next(found, None) is None
    counts = read_settings(tmp_path / "out")["counts"]
    assert truncated > 0 and (counts["truncated"], counts["pair_passages"]) == (truncated, passages)
    assert not (tmp_path / "out" / "vectors").exists()


def slow_bm25(query, passages, k1=0.9, b=0.4):
    split = [re.findall(r"\w+", passage.lower()) for passage in passages]
    mean = sum(map(len, split)) / len(split)
    scores = []
    for words in split:
        score = 0.0
        for term in set(re.findall(r"\w+", query.lower())):
            holders = sum(term in other for other in split)
            frequency = words.count(term)
            if frequency:
                idf = math.log(1 + (len(split) - holders + 0.5) / (holders + 0.5))
                score += idf * frequency / (frequency + k1 * (1 - b + b * len(words) / mean))
        scores.append(score)
    return scores


@pytest.mark.parametrize("title", [False, True])
def test_lexical_is_bm25_among_the_passages_of_a_querys_candidates(folder, tmp_path, title):
    settings = select(folder, tmp_path / "out", "lexical", passage_title=title)
    documents = small.make_documents()
    found = iter(documents_of(tmp_path / "out"))
    for query_id, query in small.QUERIES.items():
        ranked = small.ranking(folder / "run.trec", query_id, K)
        texts = [small.windows(*documents[doc_id], *small.WINDOW, with_title=title) for doc_id, _ in ranked]
        scores = iter(slow_bm25(query, [text for document in texts for text in document]))
        for (doc_id, _), document in zip(ranked, texts, strict=True):
            row, own = next(found), [next(scores) for _ in document]
            best = own.index(max(own))
            assert (row["doc_id"], row["passage"]) == (doc_id, document[row["window"]])
            assert row["score"] == pytest.approx(own[best]) and own[row["window"]] == pytest.approx(own[best])
            assert row["truncated"] is None
    assert settings["counts"]["truncated"] is None


def test_first_stage_takes_first_passages_in_the_order_of_the_run(folder, tmp_path):
    select(folder, tmp_path / "out", "first-stage")
    for row in documents_of(tmp_path / "out"):
        assert (row["window"], row["score"]) == (0, 1.0 - row["rank"])


def test_a_tokenizer_counts_what_a_selector_without_one_would_let_be_truncated(folder, tmp_path):
    lexical = select(folder, tmp_path / "lexical", "lexical", tokenizer=str(folder / "one-label"))["counts"]
    cross = select(folder, tmp_path / "cross", "one-label")["counts"]
    assert lexical["truncated"] == cross["truncated"] > 0
    with pytest.raises(ValueError, match="brings its own tokenizer"):
        select(folder, tmp_path / "other", "one-label", tokenizer=str(folder / "one-label"))


def test_counts_and_readers_agree_with_the_inputs(folder, tmp_path):
    counts = select(folder, tmp_path / "out", "lexical")["counts"]
    ranked = {query_id: small.ranking(folder / "run.trec", query_id, K) for query_id in small.QUERIES}
    distinct = {doc_id for documents in ranked.values() for doc_id, _ in documents}
    documents = small.make_documents()
    passages = {doc_id: len(small.windows(*documents[doc_id], *small.WINDOW)) for doc_id in distinct}
    assert counts["queries"] == len(small.QUERIES) and counts["pairs"] == K * len(small.QUERIES)
    assert (counts["documents"], counts["passages"]) == (len(distinct), sum(passages.values()))
    assert counts["pair_passages"] == sum(passages[d] for documents in ranked.values() for d, _ in documents)
    assert set(counts["skipped"].values()) == {0}
    selected = read_selected(tmp_path / "out")
    assert counts["query_ids"] == [row["query_id"] for row in selected.read()] == list(small.QUERIES)
    for row in selected.read():
        assert list(zip(row["doc_ids"], row["first_stage_scores"], strict=True)) == ranked[row["query_id"]]
        assert row["ranks"] == list(range(1, K + 1)) and row["query"] == small.QUERIES[row["query_id"]]
        assert selected.row(row["query_id"]) == row


def test_a_query_scores_the_same_whatever_it_shares_a_shard_with(folder, tmp_path):
    together, alone = (rows_of(folder, tmp_path / str(size), size) for size in (7, 1))
    assert [(r["doc_id"], r["window"]) for r in together] == [(r["doc_id"], r["window"]) for r in alone]
    assert [r["score"] for r in together] == pytest.approx([r["score"] for r in alone], abs=1e-5)


def rows_of(folder, output, shard_queries):
    select(folder, output, "two-labels", shard_queries=shard_queries)
    return documents_of(output)


def arguments(folder, selector, output):
    chosen = options(folder, selector)
    return [
        *("--collection", str(folder / "collection"), "--run", str(folder / "run.trec"), "--output", str(output)),
        *("--selector", chosen.selector, "--k", str(chosen.k), "--max_length", str(chosen.max_length)),
        *("--passage_words", str(chosen.passage_words), "--passage_overlap", str(chosen.passage_overlap)),
        *("--batch_tokens", str(chosen.batch_tokens), "--shard_queries", str(chosen.shard_queries)),
    ]


@pytest.fixture(scope="module")
def whole(folder):
    """Each selector's folder, made in one go."""
    for selector in KILLS:
        select(folder, folder / "whole" / selector, selector)
    return folder / "whole"


KILLS = {
    "two-labels": [
        ["before", "settings.json"],
        ["after", "settings.json"],
        ["before", "shards/00000.parquet"],
        ["after", "shards/00001.parquet"],
        ["after", "shards/00002.parquet"],
    ],
    "bi-encoder": [
        ["before", "vectors/00000.safetensors"],
        ["after", "vectors/00000.safetensors"],
        ["before", "shards/00001.parquet"],
    ],
    "lexical": [["before", "shards/00002.parquet"]],
}


def test_killed_and_resumed_is_the_same_to_the_byte(folder, whole, tmp_path):
    script = ROOT / "data_scripts" / "select_passages.py"
    jobs = [(script, arguments(folder, name, tmp_path / name), kills) for name, kills in KILLS.items()]
    codes = small.run_killed(jobs)
    assert codes == [[-9] * len(kills) + [0] for kills in KILLS.values()]
    for selector in KILLS:
        assert small.tree(tmp_path / selector) == small.tree(whole / selector)
        assert len(list((whole / selector / "shards").iterdir())) == 3


@pytest.mark.parametrize("selector", ["two-labels", "bi-encoder"])
def test_two_processes_make_what_one_makes(folder, whole, tmp_path, selector):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone", "--"]
    command = [*launcher, str(ROOT / "data_scripts" / "select_passages.py")]
    command += arguments(folder, selector, tmp_path / "out")
    done = subprocess.run(command, capture_output=True, text=True, env=small.environment(), timeout=300)
    assert done.returncode == 0, done.stderr
    assert small.tree(tmp_path / "out") == small.tree(whole / selector)


@pytest.mark.parametrize("selector", ["two-labels", "bi-encoder"])
def test_the_number_of_threads_changes_no_byte(folder, tmp_path, selector):
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            select(folder, tmp_path / str(threads), selector)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert small.tree(tmp_path / "1") == small.tree(tmp_path / "3")


def test_a_finished_selection_is_not_done_again(folder, tmp_path):
    first = select(folder, tmp_path / "out", "one-label")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert select(folder, tmp_path / "out", "one-label") == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == times


@pytest.mark.parametrize(
    "changes",
    [{"k": 5}, {"passage_title": True}, {"passage_overlap": 3}, {"keep_texts": True}],
)
def test_other_settings_do_not_mix_with_what_is_there(folder, tmp_path, changes):
    select(folder, tmp_path / "out", "lexical")
    before = small.tree(tmp_path / "out")
    with pytest.raises(ValueError, match=rf"settings.json: begun with other settings: .*{next(iter(changes))} is"):
        select(folder, tmp_path / "out", "lexical", **changes)
    assert small.tree(tmp_path / "out") == before


def test_speed_may_change_on_the_way_and_portions_afterwards(folder, tmp_path):
    first = select(folder, tmp_path / "out", "lexical")
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert select(folder, tmp_path / "out", "lexical", batch_tokens=7, shard_queries=1) == first
    (tmp_path / "out" / "settings.json").write_text(json.dumps(settings | {"counts": None}))  # begun, not done
    (tmp_path / "out" / "shards" / "00001.parquet").unlink()
    with pytest.raises(ValueError, match="begun with other settings: shard_queries is 3, now 1. Give"):
        select(folder, tmp_path / "out", "lexical", batch_tokens=7, shard_queries=1)
    assert select(folder, tmp_path / "out", "lexical", batch_tokens=7) == first | {"batch_tokens": 7}


def test_changed_documents_weights_and_runs_are_noticed(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    select(copy, tmp_path / "out", "one-label")
    corpus = copy / "collection" / "corpus.jsonl"
    original = corpus.read_text()
    corpus.write_text(original.replace("the road", "the rail"))
    with pytest.raises(ValueError, match="sha256.documents is"):
        select(copy, tmp_path / "out", "one-label")
    corpus.write_text(original)
    select(copy, tmp_path / "out", "one-label")
    tiny.bert_checkpoint(copy / "one-label", layers=1, labels=1, initializer_range=0.2)
    with pytest.raises(ValueError, match="sha256.selector is"):
        select(copy, tmp_path / "out", "one-label")


# Every key of the settings of a selection without whole documents: folders of before `keep_texts` go on.
SETTINGS = {
    *(
        "step",
        "format",
        "collection",
        "skip_missing",
        "first_stage",
        "selector_kind",
        "selector",
        "k",
        "passage_words",
    ),
    *(
        "passage_overlap",
        "passage_title",
        "max_length",
        "batch_tokens",
        "shard_queries",
        "tokenizer",
        "sha256",
        "counts",
    ),
}


@pytest.mark.parametrize("title", [False, True])
@pytest.mark.parametrize("selector", ["one-label", "bi-encoder", "lexical"])
def test_whole_documents_lie_beside_their_passages(folder, tmp_path, selector, title):
    off = select(folder, tmp_path / "off", selector, passage_title=title)
    on = select(folder, tmp_path / "on", selector, passage_title=title, keep_texts=True)
    assert off.keys() == SETTINGS and on == off | {"keep_texts": True}
    assert read_selected(tmp_path / "off").schema == SCHEMA
    assert read_selected(tmp_path / "on").schema.names == [*SCHEMA.names, "texts"]
    documents = small.make_documents()
    for path in sorted((tmp_path / "on" / "shards").iterdir()):
        table = pq.read_table(path)
        assert table.drop_columns(["texts"]).equals(pq.read_table(tmp_path / "off" / "shards" / path.name))
        for row in table.to_pylist():
            found = [documents[doc_id] for doc_id in row["doc_ids"]]
            assert row["texts"] == [f"{name} {text}" if name else text for name, text in found]


def test_a_document_without_a_title_is_its_text(tmp_path):
    small.write_collection(tmp_path / "collection", queries={"q": "red"})
    items = [{"_id": "gone", "text": " red  sky\n"}, {"_id": "null", "title": None, "text": "red"}]
    items += [{"_id": "empty", "title": "", "text": ""}, {"_id": "both", "title": "the red", "text": "blue\tsky "}]
    lines = [json.dumps(item) + "\n" for item in items]
    (tmp_path / "collection" / "corpus.jsonl").write_text("".join(lines))
    (tmp_path / "run.trec").write_text("".join(f"q Q0 {item['_id']} 1 {-i} t\n" for i, item in enumerate(items)))
    select(tmp_path, tmp_path / "out", "lexical", keep_texts=True)
    assert read_selected(tmp_path / "out").row("q")["texts"] == [" red  sky\n", "red", "", "the red blue\tsky "]


def test_whole_documents_after_a_part_was_done(folder, tmp_path):
    settings = select(folder, tmp_path / "whole", "bi-encoder", keep_texts=True)
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    for number in (0, 2):
        (tmp_path / "part" / "shards" / f"{number:05d}.parquet").unlink()
    (tmp_path / "part" / "settings.json").write_text(json.dumps({**settings, "counts": None}))
    with pytest.raises(ValueError, match="begun with other settings: keep_texts is true, now null"):
        select(folder, tmp_path / "part", "bi-encoder")
    select(folder, tmp_path / "part", "bi-encoder", keep_texts=True)
    assert small.tree(tmp_path / "part") == small.tree(tmp_path / "whole")


def test_a_folder_of_something_else_is_left_alone(folder, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".notes.tmp").write_text("precious")
    with pytest.raises(ValueError, match="not empty and not of this step"):
        select(folder, tmp_path / "mine", "lexical")
    assert small.tree(tmp_path / "mine") == {".notes.tmp": b"precious"}


@pytest.fixture
def broken(tmp_path):
    """Documents, queries and a run in which every kind of thing is missing."""
    documents = dict(list(small.make_documents().items())[:9])
    queries = {"q1": "red", "empty": "  ", "lonely": "blue", "q2": "sky"}
    small.write_collection(tmp_path / "collection", documents, queries)
    lines = ["q1 Q0 one 1 3 t", "q1 Q0 gone 2 2 t", "q1 Q0 window 3 1 t", "empty Q0 one 1 1 t", "q2 Q0 gone 1 1 t"]
    (tmp_path / "run.trec").write_text("\n".join([*lines, "stranger Q0 one 1 1 t"]) + "\n")
    return tmp_path


def test_what_is_missing_is_an_error_or_is_counted(broken, tmp_path):
    counts = select(broken, tmp_path / "out", "lexical", skip_missing=True)["counts"]
    assert counts["skipped"] == {
        "run_queries_unknown": 1,
        "queries_empty": 1,
        "queries_without_documents": 2,  # "lonely", and "q2" whose only document is gone
        "documents_missing": 2,
    }
    kept = [(row["query_id"], row["doc_id"], row["rank"]) for row in documents_of(tmp_path / "out")]
    assert kept == [("q1", "one", 1), ("q1", "window", 2)]


@pytest.mark.parametrize(
    ("queries", "run", "message"),
    [
        ({"q1": "red"}, "q1 Q0 one 1 1 t\nq9 Q0 one 1 1 t\n", "1 of its 2 queries are not in the collection.*'q9'"),
        ({"q1": "red", "q2": " "}, "q1 Q0 one 1 1 t\nq2 Q0 one 1 1 t\n", "1 queries .* are empty, such as 'q2'"),
        ({"q1": "red", "q2": "sky"}, "q1 Q0 one 1 1 t\n", "1 of the 2 queries have no documents, such as 'q2'"),
        ({"q1": "red"}, "q1 Q0 one 1 1 t\nq1 Q0 gone 1 1 t\n", r"1 documents \(1 lines\) are not in .*'gone'"),
    ],
)
def test_errors_come_before_any_work(tmp_path, queries, run, message):
    small.write_collection(tmp_path / "collection", queries=queries)
    (tmp_path / "run.trec").write_text(run)
    with pytest.raises(ValueError, match=f"{message}.*--skip_missing"):
        select(tmp_path, tmp_path / "out", "lexical")
    assert not (tmp_path / "out").exists()


def test_a_query_that_fills_the_window_is_named(folder, tmp_path):
    queries = {"q1": "red", "long": "red " * 40}
    small.write_collection(tmp_path / "collection", queries=queries)
    small.write_run(tmp_path / "run.trec", queries=queries)
    shutil.copytree(folder / "one-label", tmp_path / "one-label")
    with pytest.raises(ValueError, match="query 'long': the query has 40 tokens"):
        select(tmp_path, tmp_path / "out", "one-label")
    with pytest.raises(ValueError, match="selector 'self' is the model itself"):
        select_passages(
            open_collection(tmp_path / "collection"), tmp_path / "run.trec", tmp_path / "out", SelectionOptions("self")
        )


def test_an_earlier_layout_is_refused_with_the_command_that_makes_a_new_one(folder, tmp_path):
    settings = select(folder, tmp_path / "out", "first-stage")
    (tmp_path / "out" / "settings.json").write_text(json.dumps({**settings, "format": settings["format"] - 1}))
    with pytest.raises(ValueError, match=r"out: in the layout of an earlier version.*anew with cobert select"):
        read_selected(tmp_path / "out")


def test_vectors_lie_in_several_files_and_each_document_finds_its_own(folder, tmp_path, monkeypatch):
    select(folder, tmp_path / "one-file", "bi-encoder")
    monkeypatch.setattr(stored_passages, "DOCUMENTS_A_FILE", 4)
    made = []
    fill = stored_passages.fill
    monkeypatch.setattr(stored_passages, "fill", lambda paths, *rest: made.extend(paths) or fill(paths, *rest))
    select(folder, tmp_path / "many-files", "bi-encoder")
    assert [path.name for path in made] == [f"{number:05d}.safetensors" for number in range(len(made))]
    assert len(made) == math.ceil(len(small.make_documents()) / 4) > 2
    one, many = documents_of(tmp_path / "one-file"), documents_of(tmp_path / "many-files")
    assert [row.pop("score") for row in many] == pytest.approx([row.pop("score") for row in one], abs=1e-5)
    assert many == one


def test_damaged_vectors_are_not_used(folder, tmp_path, monkeypatch):
    fill = stored_passages.fill

    def fill_and_damage(paths, *rest):
        fill(paths, *rest)
        content = paths[0].read_bytes()
        paths[0].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    monkeypatch.setattr(stored_passages, "fill", fill_and_damage)
    with pytest.raises(ValueError, match="00000.safetensors: damaged.*block .*: remove it and run again"):
        select(folder, tmp_path / "out", "bi-encoder")
    monkeypatch.undo()
    (tmp_path / "out" / "vectors" / "00000.safetensors").unlink()
    select(folder, tmp_path / "out", "bi-encoder")
    select(folder, tmp_path / "whole", "bi-encoder")
    assert documents_of(tmp_path / "out") == documents_of(tmp_path / "whole")
