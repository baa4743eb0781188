"""All folds: each tested by a model that did not see it, resumed fold by fold, averaged and merged."""

import json
import math
import shutil
from pathlib import Path

import pytest

from modeling_cobert.baselines.mixture import MixtureOptions, mix_sources
from modeling_cobert.collections.trec import read_run
from modeling_cobert.commands import train as train_command
from modeling_cobert.data.rows import load_rows
from modeling_cobert.evaluation.measures import evaluate_run
from modeling_cobert.ranking.seen import refuse_seen, seen_queries
from modeling_cobert.training.initial import in_fold
from modeling_cobert.training.train import results_table
from modeling_cobert.training.trainer import GroupTrainer


@pytest.fixture
def folds(arguments, folded, tmp_path):
    def run(name, data, model=None, **training):
        options = {"num_train_epochs": 1, "output_dir": str(tmp_path / name), "save_only_model": True}
        return train_command.main(*arguments(model, {"rows": str(folded)} | data, **options | training))

    return run


def test_all_folds_resumed_averaged_and_merged(folds, folded, tmp_path, monkeypatch, capsys):
    first = folds("out", {"fold": "1"})
    before = (tmp_path / "out" / "fold-1" / "model.safetensors").stat().st_mtime_ns
    trained = []
    train = GroupTrainer.train
    monkeypatch.setattr(
        GroupTrainer, "train", lambda self, **k: trained.append(Path(self.args.output_dir).name) or train(self, **k)
    )
    results = folds("out", {"fold": "all"})
    assert trained == ["fold-2", "fold-3"]
    assert (tmp_path / "out" / "fold-1" / "model.safetensors").stat().st_mtime_ns == before
    assert results["folds"][0] == first

    rows = load_rows(folded)
    merged = read_run(tmp_path / "out" / "run.trec")
    assert sorted(merged) == [f"q{i}" for i in range(6)]
    for number, fold in enumerate(rows.folds, start=1):
        part = read_run(tmp_path / "out" / f"fold-{number}" / "test.trec")
        assert set(part) == set(fold.test) and all(merged[query_id] == part[query_id] for query_id in part)
        assert set(read_run(tmp_path / "out" / f"fold-{number}" / "validation.trec")) == set(fold.validation)
        seen = seen_queries(tmp_path / "out" / f"fold-{number}")
        assert seen == {"tiny": sorted(fold.train + fold.validation)}
    for name in ("P@20", "nDCG@20", "AP@1000"):
        values = [fold["test"][name] for fold in results["folds"]]
        assert results["mean"]["test"][name] == pytest.approx(math.fsum(values) / 3)
    assert results["all_queries"]["test"] == pytest.approx(evaluate_run(rows.qrels, merged).means)
    assert results["all_queries"]["first_stage"] == pytest.approx(evaluate_run(rows.qrels, rows.run).means)
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == results
    assert results_table(results) in capsys.readouterr().out
    assert results_table(results).count("\n") == 7

    # A mixture reads what the folds left behind, and alone each of its sources is what training has measured.
    mixed = mix_sources(
        rows, tmp_path / "mixed", MixtureOptions(["first-stage", str(tmp_path / "out")]), progress=False
    )
    assert list(mixed["sources"].values()) == [
        pytest.approx(results["all_queries"][k]) for k in ("first_stage", "test")
    ]

    # The second stage starts every fold from its own model, and its frozen vectors are made by each of them.
    second = {"encoder": str(tmp_path / "out" / "fold-{fold}")}
    monkeypatch.setattr(GroupTrainer, "train", train)
    folds("second", {"fold": "2"}, second, freeze_encoder=True)
    assert seen_queries(tmp_path / "second" / "fold-2") == seen_queries(tmp_path / "out" / "fold-2")
    monkeypatch.setattr(GroupTrainer, "train", lambda *a, **k: pytest.fail("trained"))
    with pytest.raises(ValueError, match=r"fold-2: the model has seen 2 of the queries .*\{fold\}"):
        folds("cheat", {"fold": "2"}, {"encoder": str(tmp_path / "out" / "fold-1")})
    with pytest.raises(ValueError, match=r"fold-2: the model has seen 2 of the queries"):
        folds("cheat-all", {"fold": "all"}, {"encoder": str(tmp_path / "out" / "fold-1")})
    with pytest.raises(ValueError, match="no fold whose number"):
        in_fold("x/{fold}", None)


def test_a_fold_that_lost_or_changed_files_is_not_merged(folds, tmp_path, monkeypatch, capsys):
    results = folds("out", {"fold": "all"})
    whole = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    damaged = tmp_path / "out" / "fold-2"
    run = (damaged / "test.trec").read_text().splitlines(keepends=True)
    other = (tmp_path / "out" / "fold-1" / "test.trec").read_text()
    for content in ("".join(run[:-3]), other):
        (damaged / "test.trec").write_text(content)
        with pytest.raises(ValueError, match="fold-2/test.trec: not as it was written .*: remove it, and the same"):
            folds("out", {"fold": "all"})
    for name in ("test.trec", "validation.trec", "results.json", "model.safetensors", "config.json", "tokenizer.json"):
        (damaged / name).unlink()
    for checkpoint in damaged.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)  # may be removed, and are not missed where all else is there
    shutil.rmtree(tmp_path / "out" / "fold-1" / "checkpoint-8", ignore_errors=True)
    trained, train = [], GroupTrainer.train
    monkeypatch.setattr(
        GroupTrainer, "train", lambda self, **k: trained.append(Path(self.args.output_dir).name) or train(self, **k)
    )
    assert folds("out", {"fold": "all"}) == results
    assert trained == ["fold-2"]
    for path, content in whole.items():
        if "checkpoint-" not in str(path):
            assert path.read_bytes() == content, path


def test_seen_is_known_per_collection(tmp_path):
    seen = {"cranfield": ["1", "2"]}
    refuse_seen(seen, "cacm", ["1"], "here", "Do not.")
    refuse_seen(seen, "cranfield", ["3"], "here", "Do not.")
    with pytest.raises(ValueError, match=r"here: the model has seen 1 of the queries.*\(2\)\. Do not\."):
        refuse_seen(seen, "cranfield", ["2", "3"], "here", "Do not.")
    assert seen_queries(tmp_path) == {} and seen_queries("org/model") == {} and seen_queries(None) == {}
