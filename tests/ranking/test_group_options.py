"""Groups at evaluation: options against `forward` on groups cut by hand, the model's own by default, never mixed."""

import json

import pytest
import tiny
import tiny_collection
import torch
from transformers import AutoTokenizer

from modeling_cobert import CoBertForGroupwiseRanking, cli
from modeling_cobert.collections.trec import read_run
from modeling_cobert.commands import eval as eval_command
from modeling_cobert.data.groups import GroupOptions
from modeling_cobert.data.rows import load_rows
from modeling_cobert.ranking.inputs import rows_inputs
from modeling_cobert.ranking.ranker import Ranker

# As the tiny model's config has them.
OWN = {"group_size": tiny.N, "group_overlap": 2, "num_prototypes": tiny.M, "prototypes": "selector", "first_edge": 0}
CHANGES = {
    "smaller": {"group_size": 4},
    "larger": {"group_size": 12, "group_overlap": 5},
    "apart": {"group_overlap": 0},
    "one_prototype": {"num_prototypes": 1},
    "more_prototypes": {"num_prototypes": 5},
    "no_prototypes": {"num_prototypes": 0},
    "first_stage": {"prototypes": "first-stage"},
    "none": {"prototypes": "none"},
    "edge": {"first_edge": 3},
    "all": {"group_size": 9, "group_overlap": 3, "num_prototypes": 2, "prototypes": "first-stage", "first_edge": 5},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.checkpoint(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_collection.make(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def rows(folder, tmp_path_factory):
    return tiny_collection.rows(folder, tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def sources(folder, rows):
    """The same passages, chosen before and chosen by the model's own selector."""
    run = str(folder / "run.trec")
    return {"rows": ["--rows", str(rows)], "collection": ["--collection", str(folder), "--run", run]}


def evaluate(model, source, output, **options) -> dict[str, dict[str, float]]:
    argv = ["--model", model, *source, "--output", str(output), "--use_cpu"]
    argv += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    eval_command.main(*cli.parse("eval", eval_command, argv))
    return read_run(output / "run.trec")


def cut(length: int, size: int, overlap: int, edge: int) -> list[range]:
    """Each group begins `overlap` before the last one's end; the first is shorter by `edge`."""
    groups = [range(0, min(size - edge, length))]
    end = size - edge
    while end < length:
        groups.append(range(end - overlap, min(end - overlap + size, length)))
        end += size - overlap
    return groups


@torch.no_grad()
def by_forward(path, rows, group_size, group_overlap, num_prototypes, prototypes, first_edge):
    """Rows of text, prototypes first, through `forward`, group by group; of two logits the larger."""
    model = CoBertForGroupwiseRanking.from_pretrained(path).eval()
    tokenizer = AutoTokenizer.from_pretrained(path, config=model.config.encoder_config)
    model.config.num_prototypes = num_prototypes or 1
    expected = {}
    for row in load_rows(rows).dataset():
        scores, places = row["selector_scores"], range(len(row["doc_ids"]))
        order = sorted(places, key=lambda i: -scores[i]) if prototypes == "selector" else places
        chosen = list(order[: num_prototypes or 1])
        best = expected.setdefault(row["query_id"], {})
        for group in cut(len(places), group_size, group_overlap, first_edge):
            texts = [row["passages"][i] for i in [*chosen, *group]]
            batch = tokenizer(
                [row["query"]] * len(texts),
                texts,
                truncation="only_second",
                max_length=model.config.max_length,
                padding=True,
                return_tensors="pt",
            )
            mask = torch.ones(1, len(texts), dtype=torch.long)
            if prototypes == "none" or not num_prototypes:
                mask[0, : len(chosen)] = 0
            batch = {name: value.unsqueeze(0) for name, value in batch.items()}
            for i, logit in zip(group, model(**batch, document_mask=mask).logits[0].tolist(), strict=True):
                best[row["doc_ids"][i]] = max(best.get(row["doc_ids"][i], logit), logit)
    return expected


@pytest.fixture(scope="module")
def by_default(model, sources, tmp_path_factory):
    output = tmp_path_factory.mktemp("default")
    return {name: evaluate(model, source, output / name) for name, source in sources.items()}, output


def assert_close(run, expected):
    assert run.keys() == expected.keys()
    for query_id, scores in expected.items():
        assert run[query_id] == pytest.approx(scores, abs=1e-5)
        assert list(run[query_id]) == sorted(run[query_id], key=lambda d: -run[query_id][d])


@pytest.mark.parametrize("change", CHANGES)
def test_an_option_changes_the_ranking_as_forward_says(change, model, sources, rows, by_default, tmp_path):
    options = CHANGES[change]
    expected = by_forward(model, rows, **OWN | options)
    for name, source in sources.items():
        run = evaluate(model, source, tmp_path / name, **options)
        assert_close(run, expected)
        before = by_default[0][name]
        assert any(abs(run[q][d] - before[q][d]) > 1e-3 for q in run for d in run[q])
        grouping = json.loads((tmp_path / name / ".parts" / "settings.json").read_text())["grouping"]
        assert grouping == OWN | options


def test_the_models_own_are_the_default(model, sources, rows, by_default, tmp_path):
    runs, output = by_default
    expected = by_forward(model, rows, **OWN)
    for name, source in sources.items():
        assert_close(runs[name], expected)
        assert evaluate(model, source, tmp_path / name, **OWN) == runs[name]
        # Said or left out, it is the same step: the same folder goes on.
        assert evaluate(model, source, output / name, **OWN) == runs[name]
    other = tiny.checkpoint(tmp_path / "other", group_size=9, group_overlap=3, num_prototypes=2)
    ranker = Ranker.load(str(other))
    found = ranker.group_options(GroupOptions())
    assert (found.group_size, found.group_overlap, found.num_prototypes) == (9, 3, 2)
    own = {"group_size": 9, "group_overlap": 3, "num_prototypes": 2}
    for name, source in sources.items():
        assert_close(evaluate(str(other), source, tmp_path / f"other-{name}"), by_forward(model, rows, **OWN | own))


@pytest.mark.parametrize("change", CHANGES)
def test_another_grouping_is_never_mixed_in(change, model, sources, by_default):
    runs, output = by_default
    for name, source in sources.items():
        before = {path: path.read_bytes() for path in sorted((output / name).rglob("*")) if path.is_file()}
        with pytest.raises(ValueError, match="with other settings: grouping[.].* is .*, now .*another output folder"):
            evaluate(model, source, output / name, **CHANGES[change])
        assert {path: path.read_bytes() for path in sorted((output / name).rglob("*")) if path.is_file()} == before


def test_a_model_without_a_calibrator_has_no_prototypes(tmp_path, rows):
    path = str(tiny.checkpoint(tmp_path / "model", use_calibrator=False))
    ranker = Ranker.load(path)
    options = GroupOptions(num_prototypes=5)
    assert ranker.group_options(options).num_prototypes == 0
    assert rows_inputs(rows, options=options).encode(ranker, "q1").prototypes == []
    plain = evaluate(path, ["--rows", str(rows)], tmp_path / "out")
    assert evaluate(path, ["--rows", str(rows)], tmp_path / "out", num_prototypes=5) == plain


def test_groups_that_cannot_be(model, sources, tmp_path):
    # Each is judged with what the model has where nothing is given: groups of 7 that share 2.
    for options, message in (
        ({"group_overlap": 7}, "size 7 and overlap 7"),
        ({"group_size": 2}, "size 2 and overlap 2"),
        ({"group_size": 0}, "--group_size must be at least 1, got 0"),
        ({"first_edge": 5}, "an offset must be from 0 to 4, got 5"),
        ({"first_edge": -1}, "an offset must be from 0 to 4, got -1"),
        ({"num_prototypes": -1}, "--num_prototypes must be at least 0"),
    ):
        for source in sources.values():
            with pytest.raises(ValueError, match=message):
                evaluate(model, source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_calibrator_without_prototypes_is_told(model, sources, tmp_path, caplog):
    for name, source in sources.items():
        caplog.clear()
        with caplog.at_level("WARNING"):
            evaluate(model, source, tmp_path / name, prototypes="none")
        assert "no prototypes, so the model's calibrator has nothing to work with" in caplog.text


def test_prototypes_of_a_selector_that_keeps_the_order_are_the_first(model, folder, tmp_path):
    """Whoever shuffles such a list must choose others, in rows as in a collection."""
    kept = tiny_collection.rows(folder, tmp_path, selector="first-stage")
    ranker = Ranker.load(model)
    encoded = rows_inputs(kept).encode(ranker, "q1")
    assert encoded.prototypes == [0, 1, 2] and encoded.grouping.prototypes == "first-stage"
