"""What a training refuses at the door: rows, folders, options and notes that are not its own."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny
from tiny_rows import make_rows

from modeling_cobert.collections.trec import write_run
from modeling_cobert.commands import train as train_command
from modeling_cobert.data.rows import load_rows
from modeling_cobert.training.arguments import ModelOptions, TeacherOptions
from modeling_cobert.training.checks import check_top
from modeling_cobert.training.train import SplitTraining
from modeling_cobert.training.trainer import GroupTrainer

UNSELECTED = {"eval_strategy": "no", "load_best_model_at_end": False, "save_strategy": "no"}
TRAIN = ["q0", "q1", "q2", "q3"]


@pytest.fixture
def untrained(monkeypatch):
    monkeypatch.setattr(GroupTrainer, "train", lambda *a, **k: pytest.fail("trained"))


def contents(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


# --- rows to train on


def change_settings(folder: Path, **values) -> None:
    settings = json.loads((folder / "settings.json").read_text())
    (folder / "settings.json").write_text(json.dumps(settings | values))


@pytest.mark.parametrize("what", ["collection", "text"])
def test_train_rows_are_of_the_same_queries(arguments, rows, tmp_path, untrained, what):
    """Under the same ids another collection has other queries, and the guard would not know of it."""
    other = tmp_path / "other"
    shutil.copytree(rows, other)
    message = "of the collection 'foreign', but --rows of 'tiny'"
    if what == "collection":
        change_settings(other, collection="foreign")
    else:
        (path,) = other.glob("data/train-*.parquet")
        table = pq.read_table(path)
        found = table.to_pylist()
        found[1]["query"] = "something else"
        pq.write_table(pa.Table.from_pylist(found, schema=table.schema), path)
        message = "1 training queries, such as 'q1', have another text than in --rows"
    with pytest.raises(ValueError, match=f"--train_rows {other}: {message}"):
        train_command.main(*arguments(data={"train_rows": str(other)}))
    assert not (tmp_path / "out").exists()


# --- folders


@pytest.mark.parametrize("there", ["run.trec", "results.json"])
def test_all_folds_replace_no_foreign_file(arguments, folded, tmp_path, untrained, there):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / there).write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=f"--output_dir .*out: not empty and not of this command .*{there}"):
        train_command.main(*arguments(data={"rows": str(folded), "fold": "all"}))
    assert contents(tmp_path) == before


def test_a_log_in_the_folder_of_all_folds_is_no_reason(tmp_path):
    (tmp_path / "train.log").write_text("as the shell has opened it")
    check_top(tmp_path, 3, [])


def test_all_folds_replace_no_teacher_and_no_other_step(arguments, folded, tmp_path, monkeypatch):
    data = {"rows": str(folded), "fold": "all"}
    train_command.main(*arguments(data=data | {"fold": "1"}, max_steps=1, **UNSELECTED))
    out = tmp_path / "out"
    scores = {f"q{i}": {f"q{i}-d{j}": float(j) for j in range(9)} for i in range(6)}
    write_run(out / "run.trec", scores, "mine")
    before = contents(tmp_path)
    monkeypatch.setattr(GroupTrainer, "train", lambda *a, **k: pytest.fail("trained"))
    with pytest.raises(ValueError, match="--output_dir .*out/run.trec: this command reads it, and it would be over"):
        train_command.main(*arguments(data=data, max_steps=1, **UNSELECTED), TeacherOptions(str(out / "run.trec")))
    (out / "settings.json").write_text("{}")
    with pytest.raises(ValueError, match="--output_dir .*out: is the folder of another step"):
        train_command.main(*arguments(data=data, max_steps=1, **UNSELECTED))
    (out / "settings.json").unlink()
    assert contents(tmp_path) == before


# --- a finished training


def test_results_and_code_of_a_finished_training_are_whole(arguments, tmp_path, monkeypatch):
    wanted = arguments(max_steps=1, **UNSELECTED)
    first = train_command.main(*wanted)
    path = tmp_path / "out" / "settings.json"
    whole = path.read_text()
    with monkeypatch.context() as patch:
        patch.setattr(GroupTrainer, "train", lambda *a, **k: pytest.fail("trained"))
        counts = json.loads(whole)["counts"]
        for damaged in ({}, 5, counts | {"step": "1"}, counts | {"test": {}}, counts | {"test": 5}):
            path.write_text(json.dumps(json.loads(whole) | {"counts": damaged}))
            with pytest.raises(ValueError, match="settings.json: damaged, 'counts' must be the training's results"):
                train_command.main(*wanted)
        path.write_text(whole)
        code = tmp_path / "out" / "modeling_cobert.py"
        content = code.read_text()
        code.write_text("import os\n")
        with pytest.raises(ValueError, match="modeling_cobert.py: not as it was written"):
            train_command.main(*wanted)
        # A folder of an earlier version did not list it, and goes on.
        made = {name: known for name, known in json.loads(whole)["made"].items() if not name.endswith(".py")}
        path.write_text(json.dumps(json.loads(whole) | {"made": made}))
        assert train_command.main(*wanted) == first
    path.write_text(whole)
    code.unlink()
    train_command.main(*wanted)
    assert code.read_text() == content


# --- a checkpoint to go on from


@pytest.fixture
def begun(arguments, folded, tmp_path, monkeypatch):
    """The checkpoint of fold 2, whose training was killed after it, and the options of all folds' trainings."""

    def make(fold, name, **training):
        data = {"rows": str(folded), "fold": fold}
        return arguments(data=data, num_train_epochs=1, output_dir=str(tmp_path / name), **training)

    with monkeypatch.context() as patch:
        patch.setattr(SplitTraining, "_test", lambda *a: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            train_command.main(*make("2", "begun"))
    (checkpoint,) = (tmp_path / "begun" / "fold-2").glob("checkpoint-*")
    return checkpoint, make


def forget_settings(checkpoint: Path) -> None:
    note = json.loads((checkpoint / "complete.json").read_text())
    del note["settings"]
    (checkpoint / "complete.json").write_text(json.dumps(note))


@pytest.mark.parametrize("earlier_version", [False, True])
def test_only_a_checkpoint_of_this_very_training_is_gone_on_from(begun, tmp_path, monkeypatch, earlier_version):
    checkpoint, make = begun
    if earlier_version:
        forget_settings(checkpoint)
    with monkeypatch.context() as patch:
        patch.setattr(GroupTrainer, "train", lambda *a, **k: pytest.fail("trained"))
        named = {"resume_from_checkpoint": str(checkpoint)}
        for fold in ("1", "all"):
            with pytest.raises(
                ValueError, match=f"--resume_from_checkpoint {checkpoint}: of another training: fold is"
            ):
                train_command.main(*make(fold, "out", **named))
        for name, value in {"learning_rate": 0.5, "greater_is_better": False}.items():
            with pytest.raises(ValueError, match=f"of another training: training.{name} is .*: leave it out"):
                train_command.main(*make("2", "out", **named | {name: value}))
        assert not (tmp_path / "out").exists()
    train_command.main(*make("2", "out", **named))
    assert (tmp_path / "out" / "fold-2" / "test.trec").exists()


def test_a_command_with_a_checkpoint_can_be_typed_again(begun, tmp_path, monkeypatch):
    """Also when the training has gone on, and removed the checkpoint as it removes older ones."""
    checkpoint, make = begun
    again = make("2", "begun", resume_from_checkpoint=str(checkpoint))
    train_command.main(*again)
    shutil.rmtree(checkpoint)
    monkeypatch.setattr(GroupTrainer, "train", lambda *a, **k: pytest.fail("trained"))
    train_command.main(*again)
    with pytest.raises(ValueError, match="no such folder"):
        train_command.main(*make("2", "other", resume_from_checkpoint=str(checkpoint)))


@pytest.mark.parametrize("part", ["calibrator", "scorer"])
def test_what_the_parts_have_seen_is_seen(arguments, folded, tmp_path, untrained, part):
    source = tiny.bert_checkpoint(tmp_path / "part", layers=1)
    (source / "settings.json").write_text(json.dumps({"seen": {"tiny": ["q0"]}}))
    tested = next(i for i, fold in enumerate(load_rows(folded).folds, start=1) if "q0" in fold.test)
    with pytest.raises(ValueError, match=r"the model has seen 1 of the queries .* \(q0\)"):
        train_command.main(*arguments(data={"rows": str(folded), "fold": str(tested)}, model={part: str(source)}))
    assert not (tmp_path / "out").exists()


def test_what_is_no_checkpoint_of_a_training_is_named(begun, tmp_path, untrained):
    checkpoint, make = begun
    model = tiny.checkpoint(tmp_path / "model")
    for named, message in ((tmp_path / "nope", "no such folder"), (model, "no whole checkpoint of a training")):
        with pytest.raises(ValueError, match=f"--resume_from_checkpoint {named}: {message}.*leave it out, and the"):
            train_command.main(*make("2", "out", resume_from_checkpoint=str(named)))
    forget_settings(checkpoint)
    moved = shutil.copytree(checkpoint, tmp_path / "moved")
    with pytest.raises(ValueError, match="its complete.json does not say of which training it is"):
        train_command.main(*make("2", "out", resume_from_checkpoint=str(moved)))
    (checkpoint / "scheduler.pt").unlink()
    note = json.loads((checkpoint / "complete.json").read_text())
    del note["made"]["scheduler.pt"]
    (checkpoint / "complete.json").write_text(json.dumps(note))
    with pytest.raises(ValueError, match="has no optimizer"):
        train_command.main(*make("2", "out", resume_from_checkpoint=str(checkpoint)))
    assert not (tmp_path / "out").exists()


# --- options that would teach nothing, or change nothing


@pytest.mark.parametrize("loss", ["listwise", "ranknet", "lambda", "approx_ndcg"])
def test_a_loss_that_compares_wants_two_documents(arguments, tmp_path, untrained, loss):
    alone = {"group_size": 1, "group_overlap": 0}
    with pytest.raises(
        ValueError, match=f"--loss {loss} compares .*--group_size 1 has one: raise it, or choose --loss"
    ):
        train_command.main(*arguments(model={"loss": loss}, groups=alone))
    rows = make_rows(tmp_path / "rows", documents=1)
    with pytest.raises(
        ValueError, match=f"--loss {loss} compares documents, but no training query has two candidates"
    ):
        train_command.main(*arguments(model={"loss": loss}, data={"rows": str(rows)}))
    assert not (tmp_path / "out").exists()


def test_a_teacher_wants_two_documents_and_numbers_in_range(arguments, tmp_path, untrained):
    def teacher(name, documents, scale=1.0, **options):
        run = {q: {f"{q}-d{j}": (j + 1) * scale for j in range(documents)} for q in TRAIN}
        write_run(tmp_path / name, run, "drawn")
        return TeacherOptions(str(tmp_path / name), **options)

    alone = {"group_size": 1, "group_overlap": 0}
    cases = [
        ("a teacher compares the documents of a group, and --group_size 1", alone, teacher("whole", 9)),
        ("--teacher .*one: it has one candidate of each training query, such as 'q0'", {}, teacher("one", 1)),
        (
            r"--teacher .*huge: the score 3e\+38 of document 'q0-d2' for query 'q0' is out of range",
            {},
            teacher("huge", 3, 1e38),
        ),
        (
            "divided by --teacher_temperature 1e-12 is out of range",
            {},
            teacher("cold", 3, teacher_temperature=1e-12),
        ),
    ]
    for message, groups, options in cases:
        with pytest.raises(ValueError, match=message):
            train_command.main(*arguments(groups=groups), options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("variant", "part"), [("neither", "calibrator"), ("neither", "scorer"), ("calibrator", "scorer")]
)
def test_layers_of_a_part_that_is_not_there(variant, part):
    with pytest.raises(ValueError, match=f"--variant {variant} has no {part}: leave out --{part}_layers, or choose"):
        ModelOptions(encoder="x", variant=variant, **{f"{part}_layers": 1})


def test_options_of_starting_weights_want_some(arguments, tmp_path, untrained):
    rate, switch = {"start_learning_rate": 0.01}, {"learn_starting_weights": False}
    for model, training, option in (({}, rate, "--start_learning_rate"), (switch, {}, "--learn_starting_weights")):
        with pytest.raises(ValueError, match=f"^{option} without starting weights: give --starting_weights"):
            train_command.main(*arguments(model=model, **training))
    weights = {"starting_weights": [1.0, 0.5, 0.5]}
    with pytest.raises(ValueError, match="--start_learning_rate, but the starting weights are not learned"):
        train_command.main(*arguments(model=weights | switch, **rate))
    for model in (weights, {"encoder": str(tiny.checkpoint(tmp_path / "start", **weights))}):
        with pytest.raises(BaseException, match="trained"):
            train_command.main(*arguments(model=model, output_dir=str(tmp_path / "a"), **rate))
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
