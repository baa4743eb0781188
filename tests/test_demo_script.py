"""The demo goes the whole way, here with tiny encoders and a few steps."""

import json

import pytest
import tiny

from modeling_cobert.collections.options import CollectionOptions, SplitOptions
from modeling_cobert.commands import gains as gains_command
from modeling_cobert.commands.demo import DemoOptions, main
from modeling_cobert.evaluation.measures import Evaluation
from modeling_cobert.reproduction.gains import SYSTEMS, GainsOptions, average


@pytest.fixture(scope="module")
def encoders(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("encoders")
    sizes = {"max_position_embeddings": 128}
    return {
        "encoder": str(tiny.bert_checkpoint(folder / "encoder", layers=4, **sizes)),
        "bi_encoder": str(tiny.bert_checkpoint(folder / "bi", layers=2, hidden_size=20, **sizes)),
    }


def test_the_whole_way(encoders, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    table = main(DemoOptions(**encoders, max_steps=2))
    assert [row[0] for row in table.rows] == [
        "First stage",
        "Bi-encoder",
        "First stage + bi-encoder, tuned",
        "Start: what is known, weights learned",
        "Start + promising neighbours by words",
    ]
    assert all(0 <= float(value) <= 1 for row in table.rows for value in row[1:])
    printed = capsys.readouterr().out
    for expected in ("recall@100", "nDCG@20", "against its start", "Where context gained most", "Lambdas"):
        assert expected in printed
    assert (tmp_path / "outputs/demo/start-promising/seed-42/fold-5/model.safetensors").exists()


def test_every_row_of_the_gains(encoders, tmp_path, caplog):
    options = GainsOptions(output=str(tmp_path), **encoders, k=6, max_length=64, max_steps=1, use_cpu=True)
    gains = gains_command.main(CollectionOptions("demo"), SplitOptions(), options)
    labels = [system.label for system in SYSTEMS]
    assert [label for label in gains.evaluations if label in labels] == labels
    assert len(gains.evaluations) == len(labels) + 5  # first stage, bi-encoder and three mixtures
    assert {evaluation.queries for evaluation in gains.evaluations.values()} == {50}
    twins = ["Start: what is known, weights learned", "Pointwise (BERT-Base)"]
    assert list(dict.fromkeys(comparison.baseline for comparison in gains.comparisons)) == twins
    assert f"row {len(SYSTEMS)} of {len(SYSTEMS)}, seed 42: {labels[-1]}" in caplog.text
    assert not list(tmp_path.rglob("checkpoint-*"))
    written = json.loads((tmp_path / "results.json").read_text())["validation"]
    mixture = "First stage + bi-encoder, tuned"
    assert list(gains.validation) == list(written) == [mixture, *labels]
    mixed = [fold["validation"] for fold in json.loads((tmp_path / "mixture" / "results.json").read_text())["folds"]]
    assert gains.validation[mixture] == pytest.approx(sum(mixed) / 5)
    folds = [tmp_path / "start" / "seed-42" / f"fold-{number}" for number in range(1, 6)]
    found = [json.loads((fold / "results.json").read_text())["validation"]["nDCG@20"] for fold in folds]
    assert gains.validation["Start: what is known, weights learned"] == pytest.approx(sum(found) / 5)
    chosen = {row[0]: row[2] for row in gains.tables()[-1].rows}
    assert chosen == {mixture: "mixture"} | {system.label: system.name for system in SYSTEMS}
    assert all((tmp_path / name).is_dir() for name in chosen.values())


def test_seeds_are_averaged_query_by_query():
    def result(one: float, two: float) -> Evaluation:
        means = dict.fromkeys(("P@20", "nDCG@20", "AP@1000"), (one + two) / 2)
        return Evaluation(means, {name: {"1": one, "2": two} for name in means}, 2, [], [], 0.0)

    both = average([result(0.2, 0.4), result(0.6, 1.0)])
    assert both.per_query["nDCG@20"] == pytest.approx({"1": 0.4, "2": 0.7}) and both.means["P@20"] == pytest.approx(
        0.55
    )


def test_an_encoder_without_a_say_is_not_trained(tmp_path):
    with pytest.raises(ValueError, match="--train_encoder: with --starting_weights 0 .. the start reads nothing"):
        GainsOptions(str(tmp_path), encoder="e", bi_encoder="b", train_encoder=True, starting_weights=[0, 1, 0.5])


def test_an_unknown_row_is_refused(tmp_path):
    with pytest.raises(ValueError, match="--only nonsense: there is no such row; the rows are pointwise, "):
        GainsOptions(output=str(tmp_path), encoder="e", bi_encoder="b", only=["nonsense"])
