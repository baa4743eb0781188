"""The paper's tables at toy size: every cell filled, shared work done once, interrupted anywhere, never invented."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import datasets
import ir_measures
import pytest
import tiny
from scipy.stats import ttest_rel

from modeling_cobert import cli
from modeling_cobert.collections.demo import demo_collection
from modeling_cobert.collections.folds import Fold, make_folds, write_folds
from modeling_cobert.collections.options import SplitOptions
from modeling_cobert.collections.trec import read_run
from modeling_cobert.collections.view import expanded_view, open_view, queries_under_test
from modeling_cobert.commands import reproduce as command_module
from modeling_cobert.data.rows import load_rows
from modeling_cobert.reproduction import work as work_module
from modeling_cobert.reproduction.estimate import Estimator
from modeling_cobert.reproduction.tables import NOT_RUN
from modeling_cobert.reproduction.work import Reproduction
from modeling_cobert.steps.folders import SETTINGS
from modeling_cobert.training.trainer import GroupTrainer

ROOT = Path(__file__).resolve().parents[1]
QUERIES = 9
TRAINED = [
    "filtered-google-questions",
    "bert-base-maxp",
    "bert-base",
    "calibrator",
    "scorer",
    "cobert",
    "no-residual",
    "initial-order",
    "reversed-order",
    "batch-6",
    "m-1",
    "o-0",
]
ROWS = ["bm25+rm3", "dph+kl", *TRAINED[:3], "bert-qe", *TRAINED[3:]]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Checkpoints, folds and expanded queries, all tiny."""
    folder, demo = tmp_path_factory.mktemp("toy"), demo_collection()
    words = Counter(word for query in demo.queries().values() for word in re.findall("[a-z]+", query.lower()))
    vocabulary = [*tiny.VOCAB, *sorted(set(words) - set(tiny.VOCAB))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "VOCAB", vocabulary)
        tiny.bert_checkpoint(folder / "encoder", layers=2, labels=2)
        tiny.bert_checkpoint(folder / "bert", layers=1)
    queries = list(demo.queries().items())[:QUERIES]
    write_folds(folder / "folds.json", make_folds([query_id for query_id, _ in queries], "round-robin", num_folds=3))
    (folder / "expanded.tsv").write_text("".join(f"{query_id}\t{text} and how\n" for query_id, text in queries))
    return folder


@pytest.fixture(scope="module")
def command(toy):
    """A function of the output folder and more options: the words of the command."""

    def words(output, *more, collection="demo", folds="folds.json"):
        options = {
            "collection": collection,
            "output": output,
            "encoder": toy / "encoder",
            "bert": toy / "bert",
            "calibrator": "encoder",
            "scorer": "encoder",
            "calibrator_layers": 1,
            "scorer_layers": 1,
            "max_length": 32,
            "qe_max_length": 48,
            "k": 12,
            "passage_words": 600,
            "passage_overlap": 100,
            "qe_passage_words": 500,
            "expanded_queries": toy / "expanded.tsv",
            "max_queries": QUERIES,
            "batch_size": 8,
            "num_prototypes": 2,
            "group_overlap": 1,
            "paper": "robust04",
            "use_cpu": "True",
            "max_steps": 2,
            "learning_rate": 1e-3,
            "disable_tqdm": "True",
        }
        if folds:
            options["folds"] = toy / folds
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        studied = "--study_batches 6 8 --study_prototypes 1 2 --study_overlaps 0 1".split()
        return [*words, *studied, *map(str, more)]

    return words


@pytest.fixture(scope="module")
def reproduce(command):
    def run(*more, **options):
        return command_module.main(*cli.parse("reproduce", command_module, command(*more, **options)))

    return run


@pytest.fixture(scope="module")
def opened(command):
    def open_work(*more, **options):
        return Reproduction(*cli.parse("reproduce", command_module, command(*more, **options)))

    return open_work


def note_trainings(patch) -> list[str]:
    """A list that fills with `row/fold` as folds are trained."""
    trained, original = [], GroupTrainer.train

    def train(self, **arguments):
        fold = Path(self.args.output_dir)
        trained.append(f"{fold.parents[1].name}/{fold.name}")
        return original(self, **arguments)

    patch.setattr(GroupTrainer, "train", train)
    return trained


@pytest.fixture(scope="module")
def made(reproduce, tmp_path_factory):
    """Everything, broken off once in the middle of a row: output, tables, and which folds each part trained."""
    output = tmp_path_factory.mktemp("made") / "out"
    parts = []
    original = work_module.train

    def breaks(model, data, groups, args):
        if "scorer" in args.output_dir and data.fold == "2":
            raise RuntimeError("the power went")
        return original(model, data, groups, args)

    with pytest.MonkeyPatch.context() as patch:
        parts.append(note_trainings(patch))
        patch.setattr(work_module, "train", breaks)
        with pytest.raises(RuntimeError, match="the power went"):
            reproduce(output)
    with pytest.MonkeyPatch.context() as patch:
        parts.append(note_trainings(patch))
        tables = reproduce(output)
    return output, tables, parts


def test_every_cell_of_every_table(made):
    output, tables, _ = made
    titles = [table.title for table in tables]
    assert titles == [
        "Effectiveness on demo",
        "Hyper-parameters of Co-BERT",
        "Cost on demo, the paper's way",
        "Cost on demo, every pair encoded once",
        "The paper's cost table, Robust04",
    ]
    assert [len(table.rows) for table in tables] == [12, 6, 5, 4, 5]
    markdown = (output / "tables.md").read_text()
    for table in tables[:4]:
        for row in table.cells():
            assert all(cell.text for cell in row) and NOT_RUN not in [cell.text for cell in row]
    assert NOT_RUN not in markdown
    main = {row[0].text: [cell.text for cell in row[1:]] for row in tables[0].cells()}
    assert main["Co-BERT"][3:] == ["0.4629", "0.5213", "0.3631"]
    assert main["DPH+KL"][3:] == ["0.3924", "0.4397", "0.3046"]
    costs = {row[0].text: [cell.text for cell in row] for row in tables[4].cells()}
    assert costs["Co-BERT"][2:] == ["6,301.095", "263.684", "1.106x", "–", "6,301.095", "263.684", "1.106x"]
    page = (output / "report.html").read_text()
    assert page.count("<section") > 20 and "Co-BERT, fed in reversed order against BERT-Base (MS Marco)" in page


def test_figures_are_those_of_the_runs(made):
    output, tables, _ = made
    qrels = dict(list(demo_collection().qrels().items())[:QUERIES])
    measures = [ir_measures.parse_measure(name) for name in ("P@20", "nDCG@20", "AP@1000")]
    results = json.loads((output / "results.json").read_text())["rows"]
    shown = {row[0].text: row[1:4] for row in tables[0].cells()}
    assert list(results) == ROWS
    per_query = {}
    for name, row in results.items():
        run = read_run(output / "rows" / name / "run.trec")
        assert set(run) == set(qrels) and all(len(scores) <= 12 for scores in run.values())
        expected = ir_measures.calc_aggregate(measures, qrels, run)
        assert row["measures"] == pytest.approx({str(m): value for m, value in expected.items()})
        per_query[name] = {(v.query_id, str(v.measure)): v.value for v in ir_measures.iter_calc(measures, qrels, run)}
        if row["label"] in shown:
            texts = [cell.text for cell in shown[row["label"]]]
            assert texts == [f"{row['measures'][str(m)]:.4f}" for m in measures]
    # Daggers, by another implementation of the test.
    for name, row in results.items():
        for baseline, dagger in (("bert-base", "†"), ("dph+kl", "‡")):
            if name in ("bert-base", "dph+kl") or row["label"] not in shown:
                continue
            for cell, measure in zip(shown[row["label"]], measures, strict=True):
                ours, theirs = ([per_query[n][q, str(measure)] for q in qrels] for n in (name, baseline))
                significant = ours != theirs and ttest_rel(ours, theirs).pvalue < 0.05
                assert (dagger in cell.marks) == significant
                assert (dagger in cell.better) == (significant and sum(ours) > sum(theirs))


def test_the_initial_ranking_is_what_is_re_ranked(made):
    output, _, _ = made
    first = read_run(output / "rows" / "dph+kl" / "run.trec")
    for name in ("cobert", "bert-qe", "bert-base-maxp", "filtered-google-questions"):
        run = read_run(output / "rows" / name / "run.trec")
        assert {query_id: set(scores) for query_id, scores in run.items()} == {
            query_id: set(s) for query_id, s in first.items()
        }
    texts = {row["query"] for row in load_rows(output / "shared" / "maxp-expanded" / "train").dataset()}
    assert texts and all(text.endswith(" and how") for text in texts)


def test_each_fold_is_trained_once_and_shared_work_is_shared(made):
    output, _, (before, after) = made
    everything = {f"{row}/fold-{fold}" for row in TRAINED for fold in (1, 2, 3)}
    assert len(before) + len(after) == len(everything) and {*before, *after} == everything
    assert before[-1] == "scorer/fold-1" and after[0] == "scorer/fold-2"
    assert not list(output.rglob("checkpoint-*")) and not list(output.rglob("*.tmp"))
    assert len(list(output.glob("rows/*/training/fold-*/model.safetensors"))) == len(everything)


def test_the_study_writes_no_text_again(made, opened):
    """Groups are a view: whatever their sizes, all trainings on best passages read one folder of rows."""
    output, _, _ = made
    below = {path.relative_to(output).parts[:2] for path in output.rglob("*.parquet")}
    shared = {("shared", name) for name in ("selected", "rows", "maxp", "maxp-expanded")}
    assert below == shared | {("rows", "bert-qe")}  # BERT-QE has passages and models of its own
    rows = load_rows(output / "shared" / "rows")
    work, sizes = opened(output, "--dry_run"), set()
    for name in TRAINED:
        row = work.rows[name]
        if row.kind != "groups":
            continue
        for fold in (1, 2, 3):
            settings = json.loads((output / "rows" / name / "training" / f"fold-{fold}" / SETTINGS).read_text())
            assert settings["rows"] == rows.fingerprint and "train_rows" not in settings
            groups = settings["groups"]
            sizes.add(tuple(groups[key] for key in ("group_size", "num_prototypes", "group_overlap")))
    assert sizes == {(6, 2, 1), (8, 0, 0), (4, 2, 1), (7, 1, 1), (6, 2, 0)}


def test_what_is_lost_is_done_again_and_nothing_else(made, reproduce, monkeypatch, tmp_path):
    output = tmp_path / "out"
    shutil.copytree(made[0], output)
    shutil.rmtree(output / "rows" / "cobert")
    (output / "rows" / "calibrator" / "run.trec").unlink()  # its trainings are there
    shutil.rmtree(output / "rows" / "scorer" / "training" / "fold-2")
    manifest = output / "rows" / "scorer" / SETTINGS
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"counts": None}))
    for name in ("tables.md", "results.json", "report.html"):
        (output / name).unlink()
    trained = note_trainings(monkeypatch)
    reproduce(output)
    assert trained == ["scorer/fold-2", "cobert/fold-1", "cobert/fold-2", "cobert/fold-3"]
    for name in ("tables.md", "results.json", "report.html"):
        assert (output / name).read_bytes() == (made[0] / name).read_bytes()


def test_an_edited_run_is_refused(made, reproduce, tmp_path):
    output = tmp_path / "out"
    shutil.copytree(made[0], output)
    edited = output / "rows" / "dph+kl" / "run.trec"
    edited.write_bytes(edited.read_bytes().replace(b" 1 ", b" 2 "))
    with pytest.raises(ValueError, match=r"dph\+kl/run.trec: not as it was written"):
        reproduce(output)


def test_killed_and_resumed(made, command, reproduce, tmp_path, monkeypatch):
    output = tmp_path / "out"
    shutil.copytree(made[0] / "shared", output / "shared")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = command(output, "--only", "cobert")
    process = subprocess.Popen(
        [sys.executable, ROOT / "data_scripts" / "reproduce_paper.py", *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    training = output / "rows" / "cobert" / "training"
    try:
        while not (training / "fold-2" / SETTINGS).exists():
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (training / "run.trec").exists()
    trained = note_trainings(monkeypatch)
    tables = reproduce(output, "--only", "cobert")
    assert trained == ["cobert/fold-2", "cobert/fold-3"]
    runs = [folder / "rows" / "cobert" / "run.trec" for folder in (output, made[0])]
    assert runs[0].read_bytes() == runs[1].read_bytes()
    # The other rows were not run, and their cells say so.
    cells = {row[0].text: [cell.text for cell in row[1:4]] for row in tables[0].cells()}
    assert all((NOT_RUN in texts) == (name != "Co-BERT") for name, texts in cells.items())
    assert cells["BERT-QE-BBB"] == [NOT_RUN] * 3
    studied = [[cell.text for cell in row] for row in tables[1].cells()]
    assert [NOT_RUN in row for row in studied] == ["*" not in row[1] for row in studied]


def snapshot(folder: Path) -> dict:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def test_dry_run_touches_nothing(made, reproduce, tmp_path, capsys):
    reproduce(tmp_path / "none", "--dry_run")
    assert not (tmp_path / "none").exists()
    out = capsys.readouterr().out
    assert "12 rows are trained, each in 3 folds: 36 models in all" in out and "Hours" not in out
    before = snapshot(made[0])
    (table,) = reproduce(made[0], "--dry_run", "--speed", "2")
    assert snapshot(made[0]) == before
    states = {row[0]: row[1] for row in table.rows}
    assert {states[name] for name in ROWS} == {"done"} and table.rows[-1][2:5] == ["0", "0", "0"]
    assert "passages: counted by selection" in table.notes
    (table,) = reproduce(made[0], "--dry_run", "--learning_rate", "2e-3")
    states = {row[0]: row[1] for row in table.rows}
    assert states["cobert"] == "begun with other settings" and states["dph+kl"] == "done"


def test_estimates_by_hand(opened, tmp_path):
    work = opened(tmp_path / "none", "--max_steps", "-1", "--num_train_epochs", "5", "--dry_run")
    estimator = Estimator(work)
    # 12 candidates in groups of 6 that share 1: 6 + 6 + 2, with 2 prototypes each; 3 queries train, validate and
    # test in each of 3 folds.
    assert estimator.of("cobert").models == 3
    assert estimator.of("cobert").trained == 3 * 5 * 3 * 20
    assert estimator.of("cobert").encoded == 3 * (5 * 3 + 3) * 20
    assert estimator.of("scorer").trained == 3 * 5 * 3 * 12
    assert estimator.of("dph+kl").macs == 0 and estimator.of("bert-qe").models == 0
    # A layer of 24 x 24 and 24 x 40 over 32 tokens, twice, the pooler and two logits: forward once, backward twice.
    passage = 2 * 32 * (4 * 24**2 + 2 * 24 * 40) + 24**2 + 2 * 24
    head = 2 * 24
    expected = (3 * estimator.of("bert-base").trained + estimator.of("bert-base").encoded) * (passage + head)
    assert estimator.of("bert-base").macs == pytest.approx(expected)
    capped = Estimator(opened(tmp_path / "none", "--dry_run")).of("scorer")
    assert capped.trained == pytest.approx(3 * 2 * 12 / 2)  # 2 steps of one of a query's 2 groups, on average 6


@pytest.mark.parametrize(
    "more, message",
    [
        (
            ["--only", "cobert", "co-bert"],
            r"--only co-bert: there is no such row; .*bm25\+rm3, .*o-0, cost",
        ),
        (["--freeze_encoder", "True"], "--freeze_encoder does not apply here"),
        (["--output_dir", "elsewhere"], "--output_dir does not apply here"),
        (["--max_length", "16"], r"expanded.tsv: query '4': the query has 13 tokens, .* has room for 12"),
        (["--scorer_layers", "3"], "the scorer wants the encoder's first 3 layers, but it has 2"),
        (["--calibrator", "somewhere"], "--calibrator_layers is for layers of the encoder"),
        (["--batch_size", "2"], "row calibrator: --group_size must be at least 1, got 0; correct --batch_size"),
        (["--qe_passage_words", "30"], "--qe_passage_overlap must be below --qe_passage_words, got 50 and 30"),
        (["--study_overlaps", "1", "6"], "row o-6: .* got size 6 and overlap 6; correct .* the --study_ options"),
    ],
)
def test_refused_at_the_door(reproduce, tmp_path, more, message):
    with pytest.raises(ValueError, match=message):
        reproduce(tmp_path / "out", *more)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["results.json", "corpus.jsonl", "rows/settings.json"])
def test_a_folder_of_something_else_is_refused(name, reproduce, tmp_path):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text('{"step": "rows", "counts": {}}\n')
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match=f"--output {tmp_path / 'out'}: not .*of this command .* give another folder"):
        reproduce(tmp_path / "out", "--only", "dph+kl")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(("option", "row"), [("run", "dph+kl"), ("run", "cobert"), ("bm25_run", "bm25+rm3")])
def test_a_run_of_another_collection_is_refused(option, row, reproduce, tmp_path):
    (tmp_path / "other.trec").write_text("q1 Q0 d1 1 2.5 other\n")
    with pytest.raises(ValueError, match=f"--{option} {tmp_path / 'other.trec'}: has no documents for any of the 9 "):
        reproduce(tmp_path / "out", f"--{option}", tmp_path / "other.trec", "--only", row)
    assert not (tmp_path / "out").exists()


def test_expanded_queries_are_the_users(command, tmp_path):
    """Without the file the row is not run, and says so; it is no error unless it was asked for."""
    words = command(tmp_path / "out", "--only", "dph+kl")
    options, systems, *others = cli.parse("reproduce", command_module, words)
    systems = replace(systems, expanded_queries=None)
    arguments = (options, systems, *others)
    tables = command_module.main(*arguments)
    assert "filtered-google-questions" not in Reproduction(*arguments).rows
    cells = {row[0].text: [cell.text for cell in row[1:]] for row in tables[0].cells()}
    assert cells["FilteredGoogleQuestions"] == [NOT_RUN] * 3 + ["0.4130", "0.4860", "0.2390"]
    assert "FilteredGoogleQuestions needs --expanded_queries" in tables[0].notes
    assert [cell.text for cell in tables[2].cells()[0]] == ["all"] + [NOT_RUN] * 4  # nothing selected, no cost
    with pytest.raises(ValueError, match="--only filtered-google-questions: this row needs --expanded_queries"):
        command_module.main(replace(options, only=["filtered-google-questions"]), systems, *others)


def test_other_settings_are_refused(made, reproduce):
    before = snapshot(made[0])
    with pytest.raises(ValueError, match="rows/.*begun with other settings: training.learning_rate is .*0.001.*now"):
        reproduce(made[0], "--learning_rate", "2e-3")
    assert snapshot(made[0]) == before


def test_a_collection_with_splits_of_its_own(toy, reproduce, tmp_path):
    demo, folder = demo_collection(), tmp_path / "own"
    (folder / "qrels").mkdir(parents=True)
    queries, qrels = list(demo.queries().items())[:QUERIES], demo.qrels()
    lines = (json.dumps({"_id": d.doc_id, "title": d.title, "text": d.text}) + "\n" for d in demo.documents())
    (folder / "corpus.jsonl").write_text("".join(lines))
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": q, "text": t}) + "\n" for q, t in queries))
    for start, split in enumerate(("train", "dev", "test")):
        judged = [(q, doc, grade) for q, _ in queries[start::3] for doc, grade in qrels[q].items()]
        text = "".join(f"{q}\t{doc}\t{grade}\n" for q, doc, grade in judged)
        (folder / "qrels" / f"{split}.tsv").write_text(text)
    rows = ("--only", "bert-qe", "dph+kl")
    (table,) = reproduce(tmp_path / "out", *rows, "--dry_run", collection=folder, folds=None)
    assert "1 rows are trained, each in 1 folds: 1 models in all" in table.notes and not (tmp_path / "out").exists()
    tables = reproduce(tmp_path / "out", *rows, collection=folder, folds=None)
    run = read_run(tmp_path / "out" / "rows" / "bert-qe" / "run.trec")
    assert set(run) == {query_id for query_id, _ in queries[2::3]}
    filled = [row[0].text for row in tables[0].cells() if row[1].text != NOT_RUN]
    assert filled == ["DPH+KL", "BERT-Base (MS Marco)", "BERT-QE-BBB"]  # the second since the third needs it


def test_the_view(toy, tmp_path):
    demo = demo_collection()
    view = open_view(demo, SplitOptions("random", 42))
    assert view.queries() == demo.queries() and view.qrels() == demo.qrels() and len(view.folds()) == 5
    assert sorted(queries_under_test(view)) == sorted(demo.queries())
    small = open_view(demo, SplitOptions("round-robin"), max_queries=5)
    assert [len(fold.test) for fold in small.folds()] == [1] * 5 and isinstance(small.folds()[0], Fold)
    assert list(small.qrels()) == list(small.queries()) == list(demo.queries())[:5]
    expanded = expanded_view(small, toy / "expanded.tsv")
    assert all(expanded.queries()[query_id] == f"{text} and how" for query_id, text in small.queries().items())
    assert expanded.folds() == small.folds() and expanded.qrels() == small.qrels()
    (tmp_path / "short.tsv").write_text("1\tone\n")
    with pytest.raises(ValueError, match=r"short.tsv: 4 of 5 queries have no expanded text, such as '2'"):
        expanded_view(small, tmp_path / "short.tsv")


def test_rows_of_one_name_are_not_mixed_up(made, tmp_path):
    """`datasets` caches folders that have a card by their name: another folder's rows must never come out."""
    seen = {}
    for name in ("maxp", "maxp-expanded"):
        folder = tmp_path / name / "rows"
        shutil.copytree(made[0] / "shared" / name / "train", folder)
        plain = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
        plain = [row for split in plain.values() for row in split]
        seen[name] = [
            {row["query"].endswith(" and how") for row in rows} for rows in (load_rows(folder).dataset(), plain)
        ]
    assert seen == {"maxp": [{False}, {False}], "maxp-expanded": [{True}, {True}]}
