"""The guard against seen queries: notes beside weights in folders and on the Hub, for evaluation and for training."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import tiny_collection
from hub_server import LoopbackHub

from modeling_cobert.collections.trec import read_run
from modeling_cobert.commands.eval import SeenOptions
from modeling_cobert.data.rows import load_rows
from modeling_cobert.ranking.options import RankerOptions
from modeling_cobert.ranking.seen import add_seen, refuse_seen, seen_queries

ROOT = Path(__file__).resolve().parents[2]


def test_what_a_note_says(tmp_path):
    assert seen_queries(None) == seen_queries(tmp_path) == {}
    (tmp_path / "complete.json").write_text('{"seen": {"words": ["q4"]}}')
    assert seen_queries(tmp_path) == {"words": ["q4"]}
    # The final model's note comes first, but only where it says anything.
    for foreign in ("{}", "[]", '{"other": ["q1"]}'):
        (tmp_path / "settings.json").write_text(foreign)
        assert seen_queries(str(tmp_path)) == {"words": ["q4"]}
    (tmp_path / "settings.json").write_text('{"seen": {"words": ["q1", "q2"], "other": ["q5"]}}')
    assert seen_queries(tmp_path) == {"words": ["q1", "q2"], "other": ["q5"]}
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(ValueError, match="settings.json: not JSON"):
        seen_queries(tmp_path)


def test_a_selector_that_has_seen_the_queries_is_as_a_model_that_has(tmp_path):
    (tmp_path / "settings.json").write_text('{"seen": {"words": ["q1"]}}')
    model = str(tiny.checkpoint(tmp_path / "model"))
    with pytest.raises(ValueError, match=rf"{tmp_path}: the model has seen 1 of the queries .* \(q1\)"):
        SeenOptions().check(RankerOptions(model, selector=str(tmp_path)), "words", ["q1", "q2"])
    for selector in (None, "lexical", str(tmp_path)):
        SeenOptions().check(RankerOptions(model, selector=selector), "words", ["q2"])
    SeenOptions(allow_seen=True).check(RankerOptions(model, selector=str(tmp_path)), "words", ["q1"])


def test_a_model_that_is_not_there_is_told_as_everywhere():
    with pytest.raises(OSError, match="outputs/no/such: there is no such folder here, nor could it be had"):
        seen_queries("outputs/no/such")


@pytest.mark.parametrize("name", ["settings.json", "complete.json"])
@pytest.mark.parametrize("seen", [None, 5, "q0", ["q1"], {"tiny": None}, {"tiny": 5}, {"tiny": "q0"}, {"tiny": [1]}])
def test_a_damaged_note_is_no_permission(tmp_path, name, seen):
    (tmp_path / name).write_text(json.dumps({"seen": seen}))
    with pytest.raises(ValueError, match=f"{name}: damaged, 'seen' must be the query ids of each collection"):
        seen_queries(tmp_path)


def test_queries_that_the_model_has_seen():
    refuse_seen({}, "words", ["q1"], "here", "Do not.")
    seen = {"words": ["q1", "q2"], "other": ["q3"]}
    refuse_seen(seen, "words", ["q0", "q3"], "here", "Do not.")
    refuse_seen(seen, "third", ["q1"], "here", "Do not.")
    message = r"^here: the model has seen 2 of the queries that it is to be tested on \(q1, q2\). Do not.$"
    with pytest.raises(ValueError, match=message):
        refuse_seen(seen, "words", ["q2", "q0", "q1"], "here", "Do not.")
    with pytest.raises(ValueError, match=r"seen 6 .*\(a, b, c, d, e, ...\)"):
        refuse_seen({"words": list("abcdef")}, "words", list("fedcba"), "here", "Do not.")
    assert add_seen(seen, "words", ["q0", "q1"]) == {"words": ["q0", "q1", "q2"], "other": ["q3"]}
    assert add_seen(seen, "third", ["q1"]) == {**seen, "third": ["q1"]}
    assert seen == {"words": ["q1", "q2"], "other": ["q3"]}


# Many commands in one process: each import of torch takes longer than all of them.
COMMANDS = """
import contextlib, io, json, sys
from modeling_cobert.cli import run

for name, *options in json.loads(sys.stdin.read()):
    told = io.StringIO()
    code = 0
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(sys.stderr):
        try:
            run(name, options)
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, told.getvalue()]))
"""


def run_commands(hub: LoopbackHub, home: Path, commands: list[list[str]]) -> list[tuple[int, str]]:
    """Exit code and error output of each."""
    env = hub.env(home, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
    child = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        env=env,
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert child.returncode == 0, child.stderr
    return [tuple(json.loads(line)) for line in child.stdout.splitlines()]


def test_a_model_on_the_hub(hub, tmp_path):
    """Trained on a fold and pushed, it is known elsewhere, by its id alone, by what it has learned from."""
    start = tiny.checkpoint(tmp_path / "start")
    rows = tiny_collection.rows(tiny_collection.make(tmp_path / "words"), tmp_path / "made", folds="random")
    opened = load_rows(rows)
    first, other = opened.folds[0], opened.folds[1]
    assert not set(first.test) & set(other.test)
    (start / "settings.json").write_text(json.dumps({"seen": {"elsewhere": ["7"]}}))
    training = ["train", "--rows", str(rows), "--max_steps", "1", "--use_cpu", "--report_to", "none"]
    training += ["--eval_strategy", "no", "--save_strategy", "no", "--load_best_model_at_end", "False"]
    push = ["--push_to_hub", "--hub_model_id", "org/seen", "--output_dir", str(tmp_path / "pushed")]
    pushing = [*training, "--fold", "1", "--checkpoint", str(start), *push]
    ((code, told),) = run_commands(hub, tmp_path / "pusher", [pushing])
    assert code == 0, told
    known = sorted(first.train + first.validation)
    note = json.loads(hub.files("org/seen-fold-1")["settings.json"])
    assert note["seen"] == {"elsewhere": ["7"], opened.name: known}

    model = ["--model", "org/seen-fold-1", "--rows", str(rows), "--use_cpu"]
    out = {name: tmp_path / name for name in ("all", "one", "unseen", "encoder", "checkpoint", "every", "again")}
    commands = {
        "all": ["eval", *model, "--output", str(out["all"])],
        "one": ["eval", *model, "--output", str(out["one"]), "--query_ids", first.test[0], known[0]],
        "unseen": ["eval", *model, "--output", str(out["unseen"]), "--fold", "1"],
        "encoder": [*training, "--fold", "2", "--encoder", "org/seen-fold-1", "--output_dir", str(out["encoder"])],
        "checkpoint": [
            *training, "--fold", "2", "--checkpoint", "org/seen-fold-1", "--output_dir", str(out["checkpoint"])
        ],
        "every": [*training, "--fold", "all", "--encoder", "org/seen-fold-1", "--output_dir", str(out["every"])],
        "again": [*training, "--fold", "1", "--checkpoint", "org/seen-fold-1", "--output_dir", str(out["again"])],
    }  # fmt: skip
    told = dict(zip(commands, run_commands(hub, tmp_path / "reader", list(commands.values())), strict=True))
    for name, count in {"all": len(known), "one": 1}.items():
        assert told[name][0] == 1
        assert f"error: org/seen-fold-1: the model has seen {count} of the queries" in told[name][1]
        assert "--allow_seen" in told[name][1] and not out[name].exists()
    assert f"({known[0]})" in told["one"][1]
    for name in ("encoder", "checkpoint", "every"):
        assert told[name][0] == 1
        assert f"the model has seen {len(other.test)} of the queries that it is to be tested on" in told[name][1]
        assert "{fold}" in told[name][1] and not list(out[name].rglob("*.safetensors"))
    assert told["unseen"][0] == 0, told["unseen"][1]
    assert sorted(read_run(out["unseen"] / "run.trec")) == sorted(first.test)
    assert told["again"][0] == 0, told["again"][1]
    assert json.loads((out["again"] / "fold-1" / "settings.json").read_text())["seen"] == note["seen"]
