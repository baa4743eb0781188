"""Mixtures by hand, against plain numpy, invariant where they should be, tuned on validation queries alone."""

import json
import logging
import math
import shutil
from pathlib import Path

import ir_measures
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import nDCG
from tiny_rows import make_rows

from modeling_cobert import cli
from modeling_cobert.baselines.mixture import MixtureOptions, ScoredList, choose_weights, mix_sources, share_grid
from modeling_cobert.collections.trec import read_qrels, read_run, write_qrels, write_run
from modeling_cobert.commands import mix as mix_command
from modeling_cobert.data.rows import SCHEMA, load_rows
from modeling_cobert.evaluation.measures import measure_run
from modeling_cobert.grouping_cobert import best_first
from modeling_cobert.steps.folders import write_settings

OWN = ["first-stage", "selector"]
# Sixteenths are exact, and far enough apart that standardising keeps them apart.
SCORES = st.lists(st.tuples(st.integers(-99, 99), st.integers(-5, 5)), min_size=1, max_size=12)


def scored(pairs) -> ScoredList:
    columns = [[value / 16 for value in column] for column in zip(*pairs, strict=True)]
    return ScoredList([f"d{i}" for i in range(len(pairs))], columns)


def mix(rows, output, sources=OWN, **options) -> dict:
    return mix_sources(load_rows(rows), output, MixtureOptions(list(map(str, sources)), **options), progress=False)


@pytest.fixture(scope="module")
def folded(tmp_path_factory) -> Path:
    """Twelve queries in three folds."""
    return make_rows(tmp_path_factory.mktemp("folded"), queries=12, folds=3)


@pytest.fixture(scope="module")
def split(tmp_path_factory) -> Path:
    """Eight training queries, two to validate and two to test."""
    return make_rows(tmp_path_factory.mktemp("split"), queries=12)


def model_scores(rows, query_ids, seed: int) -> dict[str, dict[str, float]]:
    """What a model that knows a little of the judgments would give."""
    generator = np.random.default_rng(seed)
    return {
        query_id: {
            doc_id: float(np.float32(generator.normal() + grade))
            for doc_id, grade in zip(row["doc_ids"], row["grades"], strict=True)
        }
        for query_id, row in ((query_id, rows.row(query_id)) for query_id in query_ids)
    }


def training(folder: Path, fold: int | None, validation: dict, test: dict, counts: dict | None = None) -> Path:
    """What a training leaves behind, as far as mixtures read it."""
    write_settings(folder, {"step": "training", "fold": fold}, {} if counts is None else counts)
    write_run(folder / "validation.trec", validation, "model")
    write_run(folder / "test.trec", test, "model")
    return folder


@pytest.fixture(scope="module")
def trained(folded, tmp_path_factory) -> Path:
    """A training of every fold, each with scores of its own."""
    rows, folder = load_rows(folded), tmp_path_factory.mktemp("trained") / "model"
    for number, fold in enumerate(rows.folds, start=1):
        parts = (model_scores(rows, ids, 10 * number + i) for i, ids in enumerate((fold.validation, fold.test)))
        training(folder / f"fold-{number}", number, *parts)
    return folder


# --- one list


def test_by_hand():
    """Deviations are sqrt(2/3) and sqrt(2), so the standard scores are 3/sqrt(6) and 1/sqrt(2) times whole numbers."""
    one = ScoredList(["a", "b", "c"], [[3.0, 2.0, 1.0], [0.0, 0.0, 3.0]])
    six, two = 3 / math.sqrt(6), 1 / math.sqrt(2)
    assert one.standardized == [pytest.approx([six, 0, -six]), pytest.approx([-two, -two, 2 * two])]
    assert one.mix([0.5, 0.5]) == pytest.approx(
        {"a": (six - two) / 2, "c": (2 * two - six) / 2, "b": -two / 2}, abs=1e-7
    )
    assert list(one.mix([0.5, 0.5])) == ["a", "c", "b"]
    assert list(one.mix([0.4, 0.6])) == ["c", "a", "b"]
    # a source that finds all documents equal says nothing
    assert ScoredList(["a", "b"], [[5.0, 5.0], [1.0, 2.0]]).standardized[0] == [0.0, 0.0]


@given(SCORES)
def test_one_source_keeps_its_own_order_ties_included(pairs):
    one = scored(pairs)
    for place, weights in enumerate(((1.0, 0.0), (0.0, 1.0))):
        order = [one.doc_ids[i] for i in best_first(one.scores[place])]
        assert list(one.mix(weights)) == list(one.alone(place)) == order


@given(SCORES, st.sampled_from([0.125, 3.0, 1e6]), st.sampled_from([-7.0, 0.0, 1000.0]), st.integers(0, 10))
def test_a_source_may_be_measured_in_other_units(pairs, factor, shift, tenths):
    one = scored(pairs)
    other = ScoredList(one.doc_ids, [[factor * score + shift for score in one.scores[0]], one.scores[1]])
    weights = (tenths / 10, 1 - tenths / 10)
    assert other.mix(weights) == pytest.approx(one.mix(weights), abs=1e-5)


@given(SCORES, st.integers(0, 10))
def test_the_order_of_the_sources_does_not_matter(pairs, tenths):
    one, weights = scored(pairs), (tenths / 10, 1 - tenths / 10)
    assert ScoredList(one.doc_ids, one.scores[::-1]).mix(weights[::-1]) == one.mix(weights)


# --- the grid


@pytest.mark.parametrize(("sources", "step"), [(2, 0.1), (3, 0.1), (3, 0.25), (4, 0.2), (2, 1.0), (3, 0.05)])
def test_the_grid_is_every_way_to_deal(sources, step):
    grid = MixtureOptions([f"s{i}" for i in range(sources)], step=step).grid()
    parts = round(1 / step)
    assert len(grid) == len(set(grid)) == math.comb(parts + sources - 1, sources - 1)
    for weights in grid:
        assert len(weights) == sources and math.fsum(weights) == pytest.approx(1, abs=1e-12)
        assert all(weight >= 0 and weight * parts == pytest.approx(round(weight * parts)) for weight in weights)
    assert grid == share_grid(sources, parts)


def test_of_equally_good_weights_those_nearest_to_equal_shares():
    agree = {"q": ScoredList(["a", "b"], [[2.0, 1.0], [2.0, 1.0]])}
    assert choose_weights(agree, {"q": {"a": 1}}, share_grid(2, 10), "nDCG@20") == ((0.5, 0.5), 1.0)
    assert choose_weights(agree, {"q": {"a": 1}}, share_grid(2, 3), "nDCG@20")[0] == (2 / 3, 1 / 3)
    # they disagree: at 0.5 the documents tie and keep the first stage's order
    differ = {"q": ScoredList(["a", "b"], [[2.0, 1.0], [1.0, 2.0]])}
    assert choose_weights(differ, {"q": {"a": 1}}, share_grid(2, 10), "nDCG@20") == ((0.5, 0.5), 1.0)
    assert choose_weights(differ, {"q": {"b": 1}}, share_grid(2, 10), "RR") == ((0.4, 0.6), 1.0)
    assert choose_weights(differ, {"q": {"b": 1}}, [(1.0, 0.0), (0.5, 0.5)], "RR") == ((0.5, 0.5), 0.5)


def test_options():
    assert MixtureOptions(OWN, weights=[1, 3]).grid() == [(0.25, 0.75)]
    for sources, options, message in (
        (["selector"], {}, "two sources or more, got selector"),
        (["selector", "selector"], {}, "named twice"),
        (OWN, {"weights": [1.0]}, "2 sources, but 1 weights"),
        (OWN, {"weights": [0.0, 0.0]}, "weights are from 0 to"),
        (OWN, {"weights": [2.0, -1.0]}, "weights are from 0 to"),
        (OWN, {"weights": [1.0, math.nan]}, "weights are from 0 to"),
        (OWN, {"step": 0.3}, "step must divide 1"),
        (OWN, {"step": 0.1, "weights": [1.0, 1.0]}, "--weights are fixed, and nothing is tuned: leave out --step"),
        (OWN, {"step": 0.0}, "step must divide 1"),
        (OWN, {"measure": "nDCG20"}, "unknown measure"),
    ):
        with pytest.raises(ValueError, match=message):
            MixtureOptions(sources, **options)


# --- whole folders


def by_numpy(row, model, weights) -> dict[str, float]:
    columns = [row["first_stage_scores"], row["selector_scores"], [model[doc_id] for doc_id in row["doc_ids"]]]
    spread = [np.array(column) - np.mean(column) for column in columns]
    spread = [column / column.std() if column.std() else column for column in spread]
    mixed = sum(weight * column for weight, column in zip(weights, spread, strict=True))
    return dict(zip(row["doc_ids"], mixed.tolist(), strict=True))


def test_the_whole_result_equals_plain_numpy(folded, trained, tmp_path):
    """Each fold's weights from its own model's validation scores, its test from its own model's test scores."""
    rows = load_rows(folded)
    results = mix(folded, tmp_path / "out", [*OWN, trained], step=0.25)
    runs = [read_run(tmp_path / "out" / name) for name in ("run.trec", *(f"source-{i}.trec" for i in (1, 2, 3)))]
    assert [run.keys() for run in runs] == [rows.run.keys()] * 4
    assert results["queries"] == 12 and len(results["folds"]) == 3
    for number, (fold, found) in enumerate(zip(rows.folds, results["folds"], strict=True), start=1):
        model = {part: read_run(trained / f"fold-{number}" / f"{part}.trec") for part in ("validation", "test")}
        qrels = {query_id: rows.qrels[query_id] for query_id in fold.validation}
        means = {}
        for weights in share_grid(3, 4):
            mixed = {q: by_numpy(rows.row(q), model["validation"][q], weights) for q in fold.validation}
            means[weights] = ir_measures.calc_aggregate([nDCG @ 20], qrels, mixed)[nDCG @ 20]
        chosen = tuple(found["weights"].values())
        assert found["fold"] == number and list(found["weights"]) == [*OWN, str(trained)]
        assert found["validation"] == pytest.approx(max(means.values())) == pytest.approx(means[chosen])
        for query_id in fold.test:
            expected = by_numpy(rows.row(query_id), model["test"][query_id], chosen)
            assert runs[0][query_id] == pytest.approx(expected, abs=1e-5)
            assert list(runs[3][query_id]) == list(model["test"][query_id])
    for name, run in zip(("mixture", *results["sources"]), runs, strict=True):
        values = results["mixture"] if name == "mixture" else results["sources"][name]
        assert values == pytest.approx(measure_run(rows.qrels, run))
    assert results["sources"]["first-stage"] == pytest.approx(measure_run(rows.qrels, rows.run))
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == results


def judged_otherwise(rows: Path, folder: Path, query_ids) -> Path:
    """The same rows, but of these queries only the last document is relevant."""
    shutil.copytree(rows, folder)
    qrels = read_qrels(folder / "qrels.trec")
    for query_id in query_ids:
        qrels[query_id] = dict.fromkeys(qrels[query_id], 0) | {list(qrels[query_id])[-1]: 1}
    write_qrels(folder / "qrels.trec", qrels)
    return folder


def test_weights_depend_on_validation_judgments_alone(folded, trained, tmp_path):
    rows, sources = load_rows(folded), [*OWN, trained]
    before = mix(folded, tmp_path / "before", sources, step=0.25)["folds"]
    everything, moved = set(rows.qrels), 0
    for place, fold in enumerate(rows.folds):
        others = judged_otherwise(folded, tmp_path / f"others-{place}", everything - set(fold.validation))
        assert mix(others, tmp_path / f"a{place}", sources, step=0.25)["folds"][place] == before[place]
        own = judged_otherwise(folded, tmp_path / f"own-{place}", fold.validation)
        moved += mix(own, tmp_path / f"b{place}", sources, step=0.25)["folds"][place] != before[place]
    assert moved == 3


def test_a_document_has_its_best_passages_score(folded, tmp_path):
    """Rows with a second passage of each document: worse by the selector, so that nothing changes."""
    shutil.copytree(folded, tmp_path / "rows")
    for path in (tmp_path / "rows").rglob("*.parquet"):
        rows = pq.read_table(path).to_pylist()
        for row in rows:
            for name in SCHEMA.names[2:]:
                lower = 9.0 if name == "selector_scores" else None
                row[name] = [v if i == 0 or lower is None else v - lower for v in row[name] for i in (0, 1)]
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
    settings = json.loads((tmp_path / "rows" / "settings.json").read_text())
    (tmp_path / "rows" / "settings.json").write_text(json.dumps(settings | {"chosen_by": "nothing"}))  # as of MaxP
    assert len(load_rows(tmp_path / "rows").row("q0")["doc_ids"]) == 18
    assert mix(tmp_path / "rows", tmp_path / "two") == mix(folded, tmp_path / "one")
    for name in ("run.trec", "source-1.trec", "source-2.trec"):
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_fixed_weights_test_all_queries(folded, split, trained, tmp_path):
    for place, rows in enumerate((folded, split)):
        results = mix(rows, tmp_path / f"all-{place}", weights=[1.0, 1.0])
        assert results["folds"] == [{"fold": None, "weights": dict.fromkeys(OWN, 0.5), "validation": None}]
        assert results["queries"] == 12 and len(read_run(tmp_path / f"all-{place}" / "run.trec")) == 12
    alone = mix(folded, tmp_path / "alone", weights=[0.0, 2.0])
    assert alone["mixture"] == alone["sources"]["selector"] != alone["sources"]["first-stage"]
    # with a model's folder, each query by the fold that tests it; validation runs are not needed
    shutil.copytree(trained, tmp_path / "model")
    for path in (tmp_path / "model").rglob("validation.trec"):
        path.unlink()
    results = mix(folded, tmp_path / "model-alone", ["selector", tmp_path / "model"], weights=[0.0, 1.0])
    tested = {}
    for path in (tmp_path / "model").rglob("test.trec"):
        tested |= read_run(path)
    run = read_run(tmp_path / "model-alone" / "run.trec")
    assert {query_id: list(scores) for query_id, scores in run.items()} == {q: list(tested[q]) for q in run}
    assert results["queries"] == 12 and [fold["validation"] for fold in results["folds"]] == [None] * 3


def test_splits_and_single_folds(folded, split, trained, tmp_path):
    rows = load_rows(split)
    parts = (model_scores(rows, rows.splits[part], i) for i, part in enumerate(("validation", "test")))
    folder = training(tmp_path / "model", None, *parts)
    results = mix(split, tmp_path / "splits", ["first-stage", folder])
    assert [fold["fold"] for fold in results["folds"]] == [None] and results["queries"] == 2
    assert read_run(tmp_path / "splits" / "run.trec").keys() == set(rows.splits["test"])
    # one fold's own folder: that fold alone, as it is among all of them
    alone = mix(folded, tmp_path / "second", ["selector", trained / "fold-2"])
    together = mix(folded, tmp_path / "every", ["selector", trained])
    assert list(alone["folds"][0]["weights"].values()) == list(together["folds"][1]["weights"].values())
    assert [fold["fold"] for fold in alone["folds"]] == [2] and alone["queries"] == 4
    for message, where, sources in (
        ("of different folds", folded, [trained / "fold-1", trained / "fold-2"]),
        ("model: trained on the splits, which .* does not have", folded, ["selector", folder]),
        ("fold-1: trained on fold 1, which .* does not have", split, ["selector", trained / "fold-1"]),
        ("neither a training's settings.json nor a folder for each fold", split, ["selector", trained]),
        ("this is the folder of 'rows', not of 'training'", split, ["selector", folded]),
    ):
        with pytest.raises(ValueError, match=message):
            mix(where, tmp_path / "wrong", sources)
    assert not (tmp_path / "wrong").exists()


def test_documents_that_a_run_lacks(folded, tmp_path, caplog):
    """They have the lowest score of the run, and are counted once, although each query is validated and tested."""
    rows = load_rows(folded)
    run = {query_id: dict(list(scores.items())[2:]) for query_id, scores in rows.run.items()}
    run["q0"] = {"elsewhere": 3.0}
    write_run(tmp_path / "part.trec", run, "part")
    with caplog.at_level(logging.WARNING, "modeling_cobert"):
        mix(folded, tmp_path / "out", ["selector", tmp_path / "part.trec"])
    (record,) = [record.getMessage() for record in caplog.records if "lowest" in record.getMessage()]
    assert record.startswith(f"{tmp_path / 'part.trec'}: {11 * 2 + 9} candidates are not in it")
    found = read_run(tmp_path / "out" / "source-2.trec")
    for query_id, scores in rows.run.items():
        first, second, *others = scores
        # the last of the run and the two that it lacks tie, and stand as the first stage had them
        expected = [*others[:-1], first, second, others[-1]] if query_id != "q0" else list(scores)
        assert list(found[query_id]) == expected


def test_a_run_of_other_documents_is_refused(folded, tmp_path):
    run = {q: {f"other-{d}": score for d, score in scores.items()} for q, scores in load_rows(folded).run.items()}
    write_run(tmp_path / "other.trec", run, "other")
    for weights in (None, [1.0, 1.0]):
        with pytest.raises(ValueError, match="other.trec: it has none of the candidates of its queries .of query 'q"):
            mix(folded, tmp_path / "out", ["selector", tmp_path / "other.trec"], weights=weights)
    assert not (tmp_path / "out").exists()


def test_settings_of_a_training_with_no_fold_that_is_one(folded, trained, tmp_path):
    shutil.copytree(trained / "fold-1", tmp_path / "model")
    path = tmp_path / "model" / "settings.json"
    for fold in ([1], True, "1"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"fold": fold}))
        with pytest.raises(ValueError, match="model/settings.json: 'fold' must be the number of a fold or null, not"):
            mix(folded, tmp_path / "out", ["selector", tmp_path / "model"])


def test_what_is_missing_is_named(folded, trained, tmp_path):
    rows = load_rows(folded)
    write_run(tmp_path / "less.trec", {q: scores for q, scores in rows.run.items() if q != "q7"}, "less")
    with pytest.raises(ValueError, match=r"less\.trec: the (validation|test) query 'q7' of fold \d is not in it"):
        mix(folded, tmp_path / "out", ["selector", tmp_path / "less.trec"])
    with pytest.raises(
        FileNotFoundError, match="none.trec: no such run, nor folder of a training, nor first-stage or"
    ):
        mix(folded, tmp_path / "out", ["selector", tmp_path / "none.trec"])
    shutil.copytree(trained, tmp_path / "model")
    (tmp_path / "model" / "fold-2" / "validation.trec").unlink()
    with pytest.raises(FileNotFoundError, match=r"fold-2/validation\.trec: not there, trainings of earlier versions"):
        mix(folded, tmp_path / "out", ["selector", tmp_path / "model"])
    write_settings(tmp_path / "model" / "fold-3", {"step": "training", "fold": 3}, None)
    with pytest.raises(ValueError, match="fold-3.*training is not finished"):
        mix(folded, tmp_path / "out", ["selector", tmp_path / "model"])
    shutil.rmtree(tmp_path / "model" / "fold-3")
    with pytest.raises(FileNotFoundError, match="fold-3.*is no folder of training"):
        mix(folded, tmp_path / "out", ["selector", tmp_path / "model"])
    # scores of one fold's model are not taken for another's
    shutil.copytree(trained / "fold-1", tmp_path / "model" / "fold-3")
    shutil.copy(trained / "fold-2" / "validation.trec", tmp_path / "model" / "fold-2")
    with pytest.raises(
        ValueError, match=r"fold-3/validation\.trec: the validation query '\w+' of fold 3 is not in it"
    ):
        mix(folded, tmp_path / "out", ["selector", tmp_path / "model"])
    assert not (tmp_path / "out").exists()


def test_without_validation_queries_weights_must_be_given(split, tmp_path):
    shutil.copytree(split, tmp_path / "rows")
    settings = json.loads((tmp_path / "rows" / "settings.json").read_text())
    counts = settings.pop("counts")
    write_settings(tmp_path / "rows", settings | {"splits": ["test"]}, counts)
    with pytest.raises(ValueError, match="the splits: none of 0 validation queries is judged; give --weights"):
        mix(tmp_path / "rows", tmp_path / "out")
    assert mix(tmp_path / "rows", tmp_path / "out", weights=[1.0, 1.0])["queries"] == 2


def test_done_before_and_other_settings(folded, tmp_path, caplog):
    run = tmp_path / "other.trec"
    write_run(run, load_rows(folded).run, "other")
    sources = ["selector", run]
    results = mix(folded, tmp_path / "out", sources)
    files = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "out").iterdir()}
    with caplog.at_level(logging.WARNING, "modeling_cobert"):
        assert mix(folded, tmp_path / "out", sources) == results
    assert f"{tmp_path / 'out'}: done before" in caplog.text
    for message, options in (
        ("grid_step is 0.1, now 0.5", {"step": 0.5}),
        ("measure is .*, now .AP", {"measure": "AP"}),
        (r"weights is null, now \[1.0, 2.0\]", {"weights": [1.0, 2.0]}),
    ):
        with pytest.raises(ValueError, match=f"begun with other settings: {message}"):
            mix(folded, tmp_path / "out", sources, **options)
    write_run(run, {q: dict.fromkeys(scores, 0.0) for q, scores in load_rows(folded).run.items()}, "other")
    with pytest.raises(ValueError, match="begun with other settings: sha256[.]"):
        mix(folded, tmp_path / "out", sources)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "out").iterdir()} == files


@pytest.mark.parametrize("name", ["run.trec", "source-2.trec", "results.json"])
def test_what_is_lost_is_mixed_again_and_what_is_edited_is_refused(folded, tmp_path, name):
    results = mix(folded, tmp_path / "out")
    files = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    lost = tmp_path / "out" / name
    lost.unlink()
    assert mix(folded, tmp_path / "out") == results
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == files
    lost.write_bytes(files[lost].replace(b"1", b"2"))
    with pytest.raises(ValueError, match=rf"{name}: not as it was written \(damaged, or edited\): remove it"):
        mix(folded, tmp_path / "out")


@pytest.mark.parametrize("kind", ["folded", "split"])
def test_the_command_prints_each_source_beside_the_mixture(kind, request, tmp_path, capsys):
    argv = ["--rows", str(request.getfixturevalue(kind)), "--sources", *OWN, "--measure", "AP@10", "--step", "0.5"]
    results = mix_command.main(*cli.parse("mix", mix_command, [*argv, "--output", str(tmp_path / "out")]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{tmp_path / 'out'}/run.trec" and lines[1] == f"{results['queries']} test queries"
    assert lines[3].split() == ["system", "P@20", "nDCG@20", "AP@1000", "AP@10"]
    expected = [*results["sources"].items(), ("mixture", results["mixture"])]
    assert [line.split() for line in lines[5:8]] == [
        [n, *(f"{v:.4f}" for v in values.values())] for n, values in expected
    ]
    notes = [line for line in lines[8:] if line]
    assert len(notes) == (3 if kind == "folded" else 1) == len(results["folds"])
    for note, fold in zip(notes, results["folds"], strict=True):
        shares = ", ".join(f"{name} {weight:g}" for name, weight in fold["weights"].items())
        label = f"fold {fold['fold']}: " if kind == "folded" else ""
        assert note == f"{label}{shares} (AP@10 {fold['validation']:.4f} in validation)"
