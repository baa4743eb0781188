"""cobert eval: files and measures, one process and two, killed and resumed, and what it refuses."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ir_measures
import pytest
import tiny
import tiny_collection
import torch

from modeling_cobert import cli
from modeling_cobert.baselines.maxp import MaxPOptions, build_maxp
from modeling_cobert.baselines.mixture import MixtureOptions, mix_sources
from modeling_cobert.collections.collection import open_collection
from modeling_cobert.collections.options import SplitOptions
from modeling_cobert.collections.trec import read_run
from modeling_cobert.commands import eval as eval_command
from modeling_cobert.commands import explain, stability
from modeling_cobert.data.rows import load_rows
from modeling_cobert.ranking.options import InputOptions

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As in the processes that are compared with this one: another number of threads may change the last digit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.checkpoint(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_collection.make(tmp_path_factory.mktemp("words"))


def options(model, folder, output, *more: str) -> list[str]:
    run = str(folder / "run.trec")
    return ["--model", model, "--collection", str(folder), "--run", run, "--output", str(output), "--use_cpu", *more]


def run_command(arguments: list[str], module=eval_command):
    name = module.__name__.rpartition(".")[2]
    return module.main(*cli.parse(name, module, arguments))


@pytest.fixture(scope="module")
def evaluated(model, folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("evaluated") / "out"
    return output, run_command(options(model, folder, output))


def qrels_of(folder) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels" / "test.tsv").read_text().splitlines():
        query_id, doc_id, grade = line.split("\t")
        qrels.setdefault(query_id, {})[doc_id] = int(grade)
    return qrels


def test_measures_are_those_of_ir_measures(evaluated, folder, capsys):
    output, results = evaluated
    qrels, run, first = qrels_of(folder), read_run(output / "run.trec"), read_run(folder / "run.trec")
    told = json.loads((output / "measures.json").read_text())
    measures = [ir_measures.parse_measure(name) for name in ("P@20", "nDCG@20", "AP@1000")]
    for name, ranking in (("measures", run), ("first_stage", first)):
        # ir_measures leaves queries without results out of the mean; they count here, as zero.
        sums = {str(m): 0.0 for m in measures}
        for metric in ir_measures.iter_calc(measures, qrels, ranking):
            sums[str(metric.measure)] += metric.value
        assert told[name] == pytest.approx({m: total / len(qrels) for m, total in sums.items()})
    assert told["queries"] == 7 and told["queries_without_results"] == [tiny_collection.UNFOUND]
    recall = [
        sum(grade > 0 and doc_id in first.get(query_id, {}) for doc_id, grade in grades.items())
        / sum(grade > 0 for grade in grades.values())
        for query_id, grades in qrels.items()
    ]
    assert told["recall_ceiling"] == {"R@1000": pytest.approx(sum(recall) / 7)}
    tops = [(query_id, doc_id) for query_id, scores in run.items() for doc_id in list(scores)[:20]]
    unjudged = sum(doc_id not in qrels[query_id] for query_id, doc_id in tops) / len(tops)
    assert told["unjudged@20"]["reranked"] == pytest.approx(unjudged)
    table = "\n".join(results.table().notes)
    assert "recall ceiling: R@1000" in table and "1 queries without results count as zero" in table
    assert [row[0] for row in results.table().rows] == ["words (first stage)", "co-bert"]
    per_query = json.loads((output / "per_query.json").read_text())
    assert per_query[tiny_collection.UNFOUND]["reranked"] == {"P@20": 0, "nDCG@20": 0, "AP@1000": 0}
    lines = [line.split("\t") for line in (output / "per_query.tsv").read_text().splitlines()]
    assert lines[0] == [
        "query", "P@20 first stage", "P@20", "nDCG@20 first stage", "nDCG@20", "AP@1000 first stage", "AP@1000"
    ]  # fmt: skip
    assert {line[0]: float(line[4]) for line in lines[1:]} == {
        query_id: values["reranked"]["nDCG@20"] for query_id, values in per_query.items()
    }


def test_other_measures_need_no_new_ranking(model, folder, evaluated, monkeypatch, capsys):
    output, _ = evaluated
    before = (output / "run.trec").read_bytes()
    monkeypatch.setattr("modeling_cobert.reranking_cobert.map_rows", None)
    results = run_command(options(model, folder, output, "--measures", "RR@10", "P@20", "nDCG@20", "AP@1000"))
    assert list(results.reranked.means) == ["RR@10", "P@20", "nDCG@20", "AP@1000"]
    assert (output / "run.trec").read_bytes() == before
    printed = capsys.readouterr().out
    assert "words (first stage)" in printed and "unjudged@20" in printed and "recall ceiling" in printed
    run_command(options(model, folder, output))


WITNESSED = f"""
import os, pathlib, runpy

replace = os.replace

def replace_and_tell(source, target):
    with open("written_by_" + os.environ["RANK"], "a") as file:
        file.write(pathlib.Path(target).name + chr(10))
    replace(source, target)

os.replace = replace_and_tell
runpy.run_path({str(ROOT / "eval_cobert.py")!r}, run_name="__main__")
"""


def test_two_processes_write_the_same_bytes(model, folder, evaluated, tmp_path):
    (tmp_path / "witnessed.py").write_text(WITNESSED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--"]
    command += [str(tmp_path / "witnessed.py"), *options(model, folder, tmp_path / "two")]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("words (first stage)  ") == 1
    for name in eval_command.FILES:
        assert (tmp_path / "two" / name).read_bytes() == (evaluated[0] / name).read_bytes()
    # Each process had three of the six queries, and only the first one wrote the results.
    written = [(tmp_path / f"written_by_{rank}").read_text().split() for rank in (0, 1)]
    assert [name for name in written[0] if name.endswith("parquet")] == [f"0000{i}.parquet" for i in (0, 2, 4)]
    assert written[1] == [f"0000{i}.parquet" for i in (1, 3, 5)]


KILLED = """
import os, signal
from modeling_cobert.cli import run

replace = os.replace

def replace_or_die(source, target):
    if str(target).endswith("00003.parquet"):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)

os.replace = replace_or_die
run("eval")
"""


def test_killed_it_goes_on(model, folder, evaluated, tmp_path):
    """Killed with a part written but not yet under its name."""
    output = tmp_path / "out"
    command = [sys.executable, "-c", KILLED, *options(model, folder, output)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    parts = {path: path.stat().st_mtime_ns for path in (output / ".parts").glob("0*.parquet")}
    assert sorted(path.name for path in parts) == ["00000.parquet", "00001.parquet", "00002.parquet"]
    assert len(list((output / ".parts").glob(".*.tmp"))) == 1 and not (output / "run.trec").exists()
    run_command(options(model, folder, output))
    assert {path: path.stat().st_mtime_ns for path in parts} == parts
    assert not list((output / ".parts").glob(".*.tmp"))
    for name in eval_command.FILES:
        assert (output / name).read_bytes() == (evaluated[0] / name).read_bytes()


def test_queries_of_the_training_are_refused(folder, tmp_path):
    model = tiny.checkpoint(tmp_path / "model")
    note = model / "settings.json"
    note.write_text(json.dumps({"seen": {folder.name: ["q1", "q4"]}}))
    for seen in ("q1", "q4"):
        with pytest.raises(ValueError, match=f"the model has seen 1 of the queries .*[(]{seen}[)].*--allow_seen"):
            run_command(options(str(model), folder, tmp_path / "out", "--query_ids", "q0", seen))
        with pytest.raises(ValueError, match=f"the model has seen 1 of the queries .*[(]{seen}[)].*--allow_seen"):
            run_command(options(str(model), folder, tmp_path / "out", "--query_ids", "q0", seen), stability)
    assert not (tmp_path / "out").exists()
    run_command(options(str(model), folder, tmp_path / "some", "--query_ids", "q0", "q2"))
    assert list(read_run(tmp_path / "some" / "run.trec")) == ["q0", "q2"]
    results = run_command(options(str(model), folder, tmp_path / "out", "--allow_seen"))
    assert results.reranked.queries == 7
    # "q1" is a query of many collections.
    note.write_text(json.dumps({"seen": {"other": ["q1", "q4"]}}))
    run_command(options(str(model), folder, tmp_path / "another", "--query_ids", "q1"))


def test_rows_and_no_judgments(model, folder, tmp_path, capsys):
    rows = tiny_collection.rows(folder, tmp_path / "made")
    ids = tmp_path / "ids.txt"
    ids.write_text("q5\nq3\n")
    arguments = ["--model", model, "--rows", str(rows), "--output", str(tmp_path / "out"), "--use_cpu"]
    results = run_command([*arguments, "--query_ids", str(ids), "--tag", "mine"])
    assert list(read_run(tmp_path / "out" / "run.trec")) == ["q3", "q5"] == list(results.inputs.qrels)
    assert "left out: queries without documents: 1" in capsys.readouterr().out
    (tmp_path / "bare").mkdir()
    for name in ("queries.jsonl", "corpus.jsonl", "run.trec"):
        (tmp_path / "bare" / name).write_bytes((folder / name).read_bytes())
    assert run_command(options(model, tmp_path / "bare", tmp_path / "unmeasured")) is None
    assert "nothing is measured" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "unmeasured").iterdir()) == [".parts", "run.trec"]


def test_measures_of_judgments_that_are_gone_do_not_pass_for_new_ones(model, folder, tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(folder, mine)
    run_command(options(model, mine, tmp_path / "out", "--query_ids", "q1", "q2"))
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()}
    shutil.rmtree(mine / "qrels")
    with pytest.raises(
        ValueError, match="out: has a measures.json, measured when there were judgments; now there are"
    ):
        run_command(options(model, mine, tmp_path / "out", "--query_ids", "q1", "q2"))
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()} == before
    assert run_command(options(model, mine, tmp_path / "new", "--query_ids", "q1", "q2")) is None
    assert run_command(options(model, mine, tmp_path / "new", "--query_ids", "q1", "q2")) is None


def test_rows_to_train_on_are_not_tested_on(model, folder, tmp_path):
    """Which passages MaxP trains on depends on the judgments."""
    options = MaxPOptions(passage_words=10, passage_overlap=4)
    collection = open_collection(folder, skip_missing=True)
    build_maxp(collection, folder / "run.trec", tmp_path / "maxp", options, SplitOptions("none"), progress=False)
    common = ["--model", model, "--use_cpu", "--query_ids", "q1", "q2", "--output", str(tmp_path / "out")]
    for command in (eval_command, explain, stability):
        with pytest.raises(
            ValueError, match="maxp/train: its passages were chosen by the judgments.*the folder beside"
        ):
            run_command([*common, "--rows", str(tmp_path / "maxp" / "train")], command)
    with pytest.raises(ValueError, match="maxp/train: its passages were chosen by the judgments"):
        mix_sources(
            load_rows(tmp_path / "maxp" / "train"), tmp_path / "out", MixtureOptions(["first-stage", "selector"])
        )
    assert not (tmp_path / "out").exists()
    assert run_command([*common, "--rows", str(tmp_path / "maxp" / "test")]).reranked.queries == 2


def test_options_that_no_query_fits(model, folder, tmp_path):
    rows = tiny_collection.rows(folder, tmp_path, folds="round-robin")
    common = ["--model", model, "--use_cpu", "--output", str(tmp_path / "out"), "--rows", str(rows)]
    for command in (eval_command, stability):
        with pytest.raises(ValueError, match="rows: no query is left: what --split, --fold and --query_ids ask for"):
            run_command([*common, "--split", "fold_2", "--fold", "1"], command)
    assert not (tmp_path / "out").exists()


def test_a_query_is_not_taken_for_a_file_of_its_name(model, folder, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    rows = tiny_collection.rows(folder, tmp_path / "made")
    for name in ("q2", "ids"):
        (tmp_path / name).write_text("q3\n")
    of_rows = InputOptions(rows=str(rows), query_ids=["q2"])
    of_collection = InputOptions(collection=str(folder), run=str(folder / "run.trec"), query_ids=["q2"])
    for inputs in (of_rows, of_collection):
        caplog.clear()
        assert list(inputs.open_inputs(progress=False).queries) == ["q2"]
        assert "--query_ids q2: the query, not the file of the same name, which would be ./q2" in caplog.text
        for file in ("./q2", "ids", str(tmp_path / "q2")):
            assert list(replace(inputs, query_ids=[file]).open_inputs(progress=False).queries) == ["q3"]


def test_what_does_not_go_together(model, folder, tmp_path):
    out = ["--model", model, "--output", str(tmp_path / "out"), "--use_cpu"]
    with pytest.raises(ValueError, match="give either --rows, or --collection and --run"):
        run_command(out)
    with pytest.raises(ValueError, match="--collection needs --run"):
        run_command([*out, "--collection", str(folder)])
    rows = ["--rows", str(tiny_collection.rows(folder, tmp_path / "made"))]
    with pytest.raises(ValueError, match="give either --rows, or --collection and --run"):
        run_command([*out, *rows, "--collection", str(folder)])
    with pytest.raises(ValueError, match="--selector goes with --collection"):
        run_command([*out, *rows, "--selector", "self"])
    for name in ("run", "queries", "documents"):
        with pytest.raises(ValueError, match=f"--{name} goes with --collection: rows hold their own"):
            run_command([*out, *rows, f"--{name}", "x"])
    with pytest.raises(ValueError, match="--skip_missing goes with --collection: rows hold their own"):
        run_command([*out, *rows, "--skip_missing"])
    (tmp_path / "no_ids").write_text("\n")
    with pytest.raises(ValueError, match="no_ids:1: no query ids in the file"):
        run_command([*out, *rows, "--query_ids", str(tmp_path / "no_ids")])
    with pytest.raises(FileNotFoundError, match="nowhere.txt: no such file of judgments"):
        run_command(options(model, folder, tmp_path / "out", "--qrels", "nowhere.txt"))
    with pytest.raises(ValueError, match="unknown measure 'nDGC@20'; did you mean nDCG@20"):
        run_command(options(model, folder, tmp_path / "out", "--measures", "nDGC@20"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.trec").write_text("precious")
    with pytest.raises(ValueError, match="has a run.trec that this command has not made"):
        run_command(options(model, folder, tmp_path / "other"))
    assert (tmp_path / "other" / "run.trec").read_text() == "precious"
    assert not (tmp_path / "out").exists()


def test_the_commands_beside_it(model, folder, tmp_path, capsys):
    more = ["--query_ids", "q1", "q2"]
    explanations = run_command(options(model, folder, tmp_path / "why", *more), explain)
    told = json.loads((tmp_path / "why" / "explanation.json").read_text())
    assert [e["query_id"] for e in told] == ["q1", "q2"] == [e.query_id for e in explanations]
    assert "Query q2" in (tmp_path / "why" / "explanation.html").read_text()
    with pytest.raises(ValueError, match="name the queries to explain"):
        run_command(options(model, folder, tmp_path / "why"), explain)
    report = run_command(options(model, folder, tmp_path / "how", *more, "--seeds", "2"), stability)
    told = json.loads((tmp_path / "how" / "stability.json").read_text())
    assert told["conditions"] == report["conditions"] and set(told["per_query"]) == {"q1", "q2"}
    printed = capsys.readouterr().out
    assert "group off" in printed and "Stability on" in printed
