"""Teachers: trainings that learn from the scores of a run, beside judgments or without any."""

import json
import logging
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny
import torch
from safetensors.torch import load_file
from scipy.stats import kendalltau
from tiny_rows import GROUPS, make_rows

from modeling_cobert.collections.trec import read_run, write_run
from modeling_cobert.commands import train as train_command
from modeling_cobert.data.rows import SCHEMA, load_rows
from modeling_cobert.ranking.inputs import RowsInputs
from modeling_cobert.ranking.ranker import Ranker, rank_query
from modeling_cobert.steps.hashing import file_sha256
from modeling_cobert.training.arguments import TeacherOptions
from modeling_cobert.training.trainer import GroupTrainer

UNSELECTED = {"eval_strategy": "no", "load_best_model_at_end": False}
LAYERS = {"calibrator_layers": None, "scorer_layers": None}
TRAIN = ["q0", "q1", "q2", "q3"]


def scores_of(rows, seed=1):
    """Random scores of all candidates, and of a document that is none."""
    draw = random.Random(seed)
    return {
        row["query_id"]: {doc_id: draw.gauss(0, 2) for doc_id in [*row["doc_ids"], "elsewhere"]}
        for row in load_rows(rows).dataset()
    }


@pytest.fixture
def teacher(rows, tmp_path):
    """A function that writes a run, by default of random scores, and gives the options that name it."""

    def make(run=None, name="teacher.trec", **options):
        write_run(tmp_path / name, scores_of(rows) if run is None else run, "drawn")
        return TeacherOptions(str(tmp_path / name), **options)

    return make


@pytest.fixture
def run(arguments, tmp_path):
    """A function that trains into the folder of a name, and gives the weights."""

    def make(name, teacher=None, model=None, data=None, **training):
        options = {"num_train_epochs": 1, "output_dir": str(tmp_path / name), **training}
        train_command.main(*arguments(model, data, **options), teacher)
        return weights(tmp_path / name)

    return make


def weights(folder):
    return load_file(Path(folder) / "model.safetensors")


def same(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(value, other[name]) for name, value in one.items())


def agreement(folder, rows, run):
    """Kendall's tau of a model's ranking with a run, over the training queries."""
    ranker, inputs = Ranker.load(str(folder)), RowsInputs(load_rows(rows), TRAIN, None, GROUPS)
    found = []
    for query_id in TRAIN:
        scores = rank_query(ranker, inputs, query_id)
        found.append(kendalltau(list(scores.values()), [run[query_id][doc_id] for doc_id in scores]).statistic)
    return sum(found) / len(found)


@pytest.mark.parametrize("loss", ["kl", "margin_mse"])
def test_a_student_ranks_as_its_teacher(run, rows, teacher, tmp_path, loss):
    """Of a teacher that gives every word of a passage its own weight, whatever the query."""
    draw = random.Random(5)
    weight_of = {word: draw.gauss(0, 1) for word in tiny.WORDS}
    taught = {
        row["query_id"]: {
            doc_id: sum(map(weight_of.get, passage.split()))
            for doc_id, passage in zip(row["doc_ids"], row["passages"], strict=True)
        }
        for row in load_rows(rows).dataset()
    }
    options = teacher(taught, teacher_weight=1.0, teacher_loss=loss)
    encoder = tiny.bert_checkpoint(tmp_path / "one-layer", layers=1, hidden_dropout_prob=0.0)
    common = {"model": {"encoder": str(encoder), "variant": "neither", **LAYERS}, "learning_rate": 3e-3, **UNSELECTED}
    run("before", options, max_steps=1, **common)
    run("after", options, **common | {"num_train_epochs": 15})
    before, after = (agreement(tmp_path / name, rows, taught) for name in ("before", "after"))
    assert after > max(before, 0) + 0.3


def test_a_weight_of_0_is_no_teacher_and_one_of_1_no_judgments(run, rows, teacher, tmp_path):
    other = tmp_path / "other-grades"
    shutil.copytree(rows, other)
    for path in other.glob("data/*.parquet"):
        content = [row | {"grades": [2 - grade for grade in row["grades"]]} for row in pq.read_table(path).to_pylist()]
        pq.write_table(pa.Table.from_pylist(content, schema=SCHEMA), path)
    found = {}
    for weight in (None, 0.0, 0.5, 1.0):
        options = None if weight is None else teacher(teacher_weight=weight)
        for name, folder in (("own", rows), ("other", other)):
            found[weight, name] = run(f"{weight}-{name}", options, data={"rows": str(folder)}, **UNSELECTED)
    for name in ("own", "other"):
        assert same(found[None, name], found[0.0, name])
        assert not same(found[0.0, name], found[0.5, name]) and not same(found[0.5, name], found[1.0, name])
    assert same(found[1.0, "own"], found[1.0, "other"])
    assert not same(found[0.5, "own"], found[0.5, "other"])
    assert same(run("default", teacher(), **UNSELECTED), found[0.5, "own"])


def test_loss_and_temperature_count_and_other_queries_do_not(run, rows, teacher):
    first = run("first", teacher())
    taught = scores_of(rows)
    others = {q: scores if q in TRAIN else {d: -s for d, s in scores.items()} for q, scores in taught.items()}
    assert same(first, run("others", teacher(others)))
    assert same(first, run("alone", teacher({q: taught[q] for q in TRAIN})))
    assert not same(first, run("learnt", teacher({**taught, "q2": {d: -s for d, s in taught["q2"].items()}})))
    assert not same(first, run("temperature", teacher(teacher_temperature=2.0)))
    assert not same(first, run("margins", teacher(teacher_loss="margin_mse")))


def test_chunks_accumulation_and_larger_steps_are_the_same_training(run, teacher, tmp_path):
    """As without a teacher: all groups are of one size and wholly scored, so that the mean of means is the mean."""
    encoder = tiny.bert_checkpoint(
        tmp_path / "no-dropout", layers=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    ways = {
        "accumulated": {"gradient_accumulation_steps": 2},
        "together": {"per_device_train_batch_size": 2},
        "in chunks": {"gradient_accumulation_steps": 2, "encoder_chunk_size": 3},
    }
    common = {"optim": "sgd", "learning_rate": 1e-2, "model": {"encoder": str(encoder)}}
    found = {name: run(name, teacher(), **common, **options) for name, options in ways.items()}
    untaught = run("untaught", **common, **ways["accumulated"])
    assert max((untaught[name] - value).abs().max() for name, value in found["accumulated"].items()) > 1e-4
    for name in ways:
        for part, value in found["accumulated"].items():
            torch.testing.assert_close(found[name][part], value, atol=1e-5, rtol=0, msg=f"{name}: {part}")


def test_resumed_to_the_bit_and_never_with_another_teacher(run, rows, teacher, tmp_path, monkeypatch):
    whole = run("whole", teacher(), num_train_epochs=2)
    step = GroupTrainer.training_step

    def interrupted(self, *args):
        if self.state.global_step == 11:
            raise KeyboardInterrupt
        return step(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(GroupTrainer, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run("killed", teacher(), num_train_epochs=2)
    other = teacher(scores_of(rows, seed=2), "other.trec")
    wrong = {
        f'.sha256 is ".*, now "{file_sha256(other.teacher)[:8]}': other,
        '.loss is .*, now "margin_mse"': teacher(teacher_loss="margin_mse"),
        ".weight is .*, now 0.25": teacher(teacher_weight=0.25),
        ".temperature is .*, now 3.0": teacher(teacher_temperature=3.0),
        " is {.*, now null": None,
    }
    for told, options in wrong.items():
        with pytest.raises(ValueError, match=f"begun with other settings: teacher{told}"):
            run("killed", options, num_train_epochs=2)
    # The same run at another place is the same teacher.
    assert same(whole, run("killed", teacher(name="moved.trec"), num_train_epochs=2))
    for name in ("settings.json", "README.md"):
        text = (tmp_path / "killed" / name).read_text()
        assert "drawn" in text and str(tmp_path) not in text


def test_every_fold_has_its_own_teacher(arguments, folded, tmp_path, monkeypatch):
    taught, data = scores_of(folded), {"rows": str(folded), "fold": "all"}
    options = TeacherOptions(str(tmp_path / "fold-{fold}.trec"))
    for number in (1, 2):
        write_run(tmp_path / f"fold-{number}.trec", taught, f"teacher-{number}")
    with monkeypatch.context() as patch:
        patch.setattr(GroupTrainer, "train", lambda *a, **k: pytest.fail("trained"))
        with pytest.raises(FileNotFoundError, match=r"--teacher .*fold-3.trec: no such file"):
            train_command.main(*arguments(data=data, num_train_epochs=1), options)
        with pytest.raises(ValueError, match="no fold whose number"):
            train_command.main(*arguments(output_dir=str(tmp_path / "unfolded")), options)
    write_run(tmp_path / "fold-3.trec", taught, "teacher-3")
    results = train_command.main(*arguments(data=data, num_train_epochs=1), options)
    assert len(results["folds"]) == 3 and results["mean"]["test"]
    for number in (1, 2, 3):
        settings = json.loads((tmp_path / "out" / f"fold-{number}" / "settings.json").read_text())
        assert settings["teacher"]["tag"] == f"teacher-{number}" and settings["teacher"]["weight"] == 0.5


# --- without judgments


@pytest.fixture(scope="module")
def unjudged(tmp_path_factory):
    return make_rows(tmp_path_factory.mktemp("unjudged"), judged=False)


def test_rows_without_judgments_are_trained_on_by_a_teacher_alone(run, rows, unjudged, teacher, tmp_path, capsys):
    """The very model that the teacher alone makes of the same rows with judgments; ranked, and nothing measured."""
    options = teacher(teacher_weight=1.0)
    found = run("unjudged", options, data={"rows": str(unjudged)}, **UNSELECTED)
    assert "nothing was measured" in capsys.readouterr().out
    assert same(found, run("judged", options, **UNSELECTED))
    assert (tmp_path / "unjudged" / "test.trec").read_bytes() == (tmp_path / "judged" / "test.trec").read_bytes()
    results, other = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("unjudged", "judged"))
    assert results == {name: other[name] for name in ("variant", "step", "epoch")} and "test" in other
    assert "Not tested yet." in (tmp_path / "unjudged" / "README.md").read_text()


def test_folds_without_judgments(arguments, teacher, tmp_path, capsys):
    rows = make_rows(tmp_path / "rows", folds=3, judged=False)
    args = arguments(data={"rows": str(rows), "fold": "all"}, num_train_epochs=1, **UNSELECTED)
    results = train_command.main(*args, teacher(teacher_weight=1.0))
    assert (len(results["folds"]), results["mean"], results["all_queries"]) == (3, {}, {})
    assert sorted(read_run(tmp_path / "out" / "run.trec")) == [f"q{i}" for i in range(6)]
    assert "nothing was measured" in capsys.readouterr().out


def test_what_cannot_be_done_without_judgments(arguments, unjudged, teacher, monkeypatch):
    monkeypatch.setattr(GroupTrainer, "train", lambda *a, **k: pytest.fail("trained"))
    data = {"rows": str(unjudged)}
    for options in (None, teacher(), teacher(teacher_weight=0.99)):
        with pytest.raises(ValueError, match="rows without judgments: give --teacher and --teacher_weight 1"):
            train_command.main(*arguments(data=data, **UNSELECTED), options)
    for more in ({}, {"metric_for_best_model": "loss"}):
        cure = "none of the validation queries is judged: give --eval_strategy no and --load_best_model_at_end False"
        with pytest.raises(ValueError, match=cure):
            train_command.main(*arguments(data=data, **more), teacher(teacher_weight=1.0))


# --- what is wrong


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"teacher_weight": 0.5}, "--teacher_weight without a teacher: name its run with --teacher"),
        ({"teacher_temperature": 1.0}, "--teacher_temperature without a teacher"),
        ({"teacher_loss": "kl"}, "--teacher_loss without a teacher"),
        ({"teacher": "x", "teacher_weight": 1.01}, "--teacher_weight must be from 0 to 1, got 1.01"),
        ({"teacher": "x", "teacher_weight": -0.5}, "--teacher_weight must be from 0 to 1, got -0.5"),
        ({"teacher": "x", "teacher_weight": float("nan")}, "--teacher_weight must be from 0 to 1, got nan"),
        ({"teacher": "x", "teacher_temperature": 0.0}, "--teacher_temperature must be above 0, got 0"),
        ({"teacher": "x", "teacher_temperature": float("nan")}, "--teacher_temperature must be above 0, got nan"),
        ({"teacher": "x", "teacher_loss": "mse"}, "--teacher_loss must be one of kl, margin_mse, not 'mse'"),
    ],
)
def test_wrong_options(wrong, message):
    with pytest.raises(ValueError, match=message):
        TeacherOptions(**wrong)


def test_runs_that_do_not_fit(arguments, rows, teacher, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(GroupTrainer, "train", lambda *a, **k: pytest.fail("trained"))
    taught = scores_of(rows)
    cases = [
        (TeacherOptions(str(tmp_path / "nowhere.trec")), r"--teacher .*nowhere.trec: no such file: name a TREC run"),
        (TeacherOptions(str(tmp_path)), "no such file"),
        (teacher({"q4": taught["q4"], "x": {"d": 1.0}}), "none of the 4 training queries, such as 'q0': give a run"),
        (
            teacher({**taught, "q2": {"elsewhere": 1.0}}, "foreign.trec"),
            "none of the candidates of 1 training queries, such as 'q2': let the teacher score",
        ),
    ]
    (tmp_path / "five.trec").write_text("q0 Q0 d 1 0.5\n")
    cases.append((TeacherOptions(str(tmp_path / "five.trec")), r"five.trec:1: expected 6 columns"))
    for number, (options, message) in enumerate(cases):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            train_command.main(*arguments(output_dir=str(tmp_path / f"out-{number}")), options)
    less = {q: dict(list(scores.items())[:7]) for q, scores in taught.items() if q != "q1"}
    missing = sum(len(scores.keys() - less[q].keys() - {"elsewhere"}) for q, scores in taught.items() if q in less)
    missing -= sum(len(taught[q].keys() - less[q].keys() - {"elsewhere"}) for q in ("q4", "q5"))
    with caplog.at_level(logging.WARNING), pytest.raises(BaseException, match="trained"):
        train_command.main(*arguments(), teacher(less))
    (warning,) = [record.getMessage() for record in caplog.records if "--teacher" in record.getMessage()]
    assert f"1 of 4 training queries, such as 'q1' and {missing} candidates of the others have no score" in warning
