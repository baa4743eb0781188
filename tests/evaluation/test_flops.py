"""Cost: the paper's published figures, and torch's own counter on real models."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForSequenceClassification, BertModel

from modeling_cobert import CoBertConfig, CoBertForGroupwiseRanking
from modeling_cobert.collections.collection import open_collection
from modeling_cobert.collections.trec import write_run
from modeling_cobert.commands.flops import FlopsArguments, main
from modeling_cobert.cost.macs import (
    TERA,
    VARIANTS,
    BertShape,
    CoBertShape,
    Workload,
    bert_macs,
    context_macs,
    convention_costs,
    own_costs,
    passage_macs,
)
from modeling_cobert.cost.paper import paper_costs, paper_remarks
from modeling_cobert.data.groups import GroupOptions
from modeling_cobert.data.rows import build_rows
from modeling_cobert.data.selection import SelectionOptions, select_passages
from modeling_cobert.reranking_cobert import EncodedList, score_list

ROOT = Path(__file__).resolve().parents[2]


def macs_by_torch(run) -> float:
    """
    FlopCounterMode counts two operations for each multiply-accumulate of a matrix product. It does not know the fused
    attention of CPUs, so the models that it looks at use the eager one.
    """
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run()
    return counter.get_total_flops() / 2


@pytest.mark.parametrize(
    ("collection", "base", "second", "per_query", "ratio"),
    [
        ("robust04", "59,356.224", "6,301.095", "263.684", "1.106"),
        ("gov2", "160,364.645", "3,780.657", "1,094.302", "1.024"),
    ],
)
def test_the_published_figures_to_the_last_digit(collection, base, second, per_query, ratio):
    rows = {row.system: row for row in paper_costs(collection)}
    full = rows["Co-BERT"]
    assert f"{rows['BERT-Base'].first_pass / TERA:,.3f}" == base
    assert f"{full.second_pass / TERA:,.3f}" == second
    assert f"{full.per_query / TERA:,.3f}" == per_query
    assert f"{full.ratio:.3f}" == ratio
    assert full.sequences == {"robust04": 288_000, "gov2": 172_800}[collection]
    for row in rows.values():
        if row.system.startswith("Co-BERT") or row.system == "BERT-Base":
            for name, value in row.published.items():
                ours = getattr(row, name) if name == "ratio" else getattr(row, name) / TERA
                assert round(ours, 3) == value, (row.system, name)


def test_it_says_where_the_paper_disagrees_with_itself():
    rows = {row.system: row for row in paper_costs("robust04")}
    assert "two operations" in rows["BERT-QE-BBB"].note and "2.008" in rows["BERT-QE-BBB"].note
    # 7.389x of the published first pass, at the published 65.5 G a sequence
    assert rows["BERT-QE-BBB"].ratio == pytest.approx(7.389 / 2.0081, rel=1e-3)
    assert rows["BERT-QE-BBB"].first_pass == 3_904_616 * passage_macs(BertShape(), 384)
    assert "calibrator's cost" in rows["Co-BERT, scorer only"].note
    assert rows["Co-BERT, scorer only"].second_pass < rows["Co-BERT, calibrator only"].second_pass
    assert len(paper_remarks("robust04")) == 2 and len(paper_remarks("gov2")) == 1
    with pytest.raises(ValueError, match="robust04 and gov2"):
        paper_costs("clueweb")


# all sizes different from each other; 7 tokens of 3 sequences
SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "vocab_size": 99,
}


def test_equals_torchs_counter_on_a_small_bert():
    config = BertConfig(**SMALL, attn_implementation="eager", num_labels=2)
    ids = torch.ones(3, 7, dtype=torch.long)
    counted = macs_by_torch(lambda: BertForSequenceClassification(config).eval()(ids))
    assert counted == bert_macs(config, 7, sequences=3, pooled=3, logits=6, attention=True)
    linear = bert_macs(config, 7, sequences=3, pooled=3, logits=6)
    assert counted - linear == 3 * 3 * 2 * 7 * 7 * 24


def test_equals_torchs_counter_on_bert_base_without_its_weights():
    config = BertConfig(attn_implementation="eager")
    with torch.device("meta"):
        model = BertModel(config).eval()
        counted = macs_by_torch(lambda: model(torch.ones(2, 256, dtype=torch.long)))
    assert counted == bert_macs(config, 256, sequences=2, pooled=2, attention=True)
    assert bert_macs(config, 256, pooled=1, logits=2) == 21_743_863_296


@pytest.mark.parametrize("documents", [2, 3, 5, 23])
def test_our_way_equals_torchs_counter_on_a_real_cobert(documents):
    parts = {name: SMALL | {"num_hidden_layers": layers} for name, layers in (("calibrator", 2), ("scorer", 4))}
    config = CoBertConfig(
        encoder_config=SMALL,
        calibrator_config=parts["calibrator"],
        scorer_config=parts["scorer"],
        num_prototypes=3,
        group_size=5,
        group_overlap=2,
        attn_implementation="eager",
    )
    model = CoBertForGroupwiseRanking(config).eval()
    vectors = torch.randn(documents, 24)
    relevance = torch.randn(documents).tolist()
    encoded = EncodedList(vectors=vectors, selector_scores=relevance)
    counted = macs_by_torch(lambda: score_list(model, encoded))
    assert counted == context_macs(documents, CoBertShape.from_config(config), attention=True)


def test_a_group_that_fills_the_batch_costs_what_the_paper_counts():
    """k = n: one group of m + n sequences; the variants differ by their parts alone."""
    shape = CoBertShape(BertShape(3, 8, 20), BertShape(1, 8, 20), BertShape(2, 8, 20), 2, 5, 1, 10)
    work = Workload(queries=7, documents=5, passages=70)
    layer = 4 * 8 * 8 + 2 * 8 * 20  # per token
    encode = 3 * 10 * layer + 64 + 16
    rows = {row.system: row for row in convention_costs(work, shape)}
    calibrate = 10 * (1 * 2 * layer + 64 + 16)
    score = 2 * 5 * layer + 64 + 5 * 16
    assert rows["BERT-Base"].first_pass == 70 * encode
    assert rows["Co-BERT"].second_pass == 7 * (7 * encode + calibrate + score)
    assert rows["Co-BERT, calibrator only"].second_pass == 7 * (7 * encode + calibrate + 5 * 16)
    assert rows["Co-BERT, scorer only"].second_pass == 7 * (5 * encode + score)
    qe = 3 * 384 * layer + 64 + 16
    assert rows["BERT-QE-BBB"].first_pass == 105 * qe
    assert rows["BERT-QE-BBB"].second_pass == 7 * (1200 + 50) * qe
    assert [rows[name].sequences for name in VARIANTS] == [49, 35, 49]


def test_our_way_is_cheaper_and_real_lengths_count():
    work = Workload(queries=10, documents=1000, passages=30_000)
    full = {row.system: row for row in convention_costs(work)}["Co-BERT"]
    by_name = {row.system.split(", ")[2]: row for row in own_costs(work)}
    assert by_name["cross-encoder selection"].per_query < full.per_query
    assert by_name["self selection"].per_query < by_name["cross-encoder selection"].per_query
    assert by_name["bi-encoder selection"].per_query < by_name["self selection"].per_query
    assert by_name["lexical selection"].first_pass == 0
    half = {row.system.split(", ")[2]: row for row in own_costs(work, mean_tokens=128)}
    assert half["self selection"].first_pass == pytest.approx(by_name["self selection"].first_pass / 2, rel=1e-4)
    # the encoder's layers for every candidate once, and nothing else depends on the number of groups it stands in
    encoded = by_name["lexical selection"].second_pass - 10 * context_macs(1000)
    assert encoded == 10 * 1000 * bert_macs(BertShape(), 256)


def test_impossible_counts_are_errors():
    with pytest.raises(ValueError, match="fewer than"):
        Workload(queries=10, documents=10, passages=99)
    with pytest.raises(ValueError, match="at least 1"):
        Workload(queries=0, documents=10, passages=99)
    work = Workload(queries=1, documents=10, passages=10)
    with pytest.raises(ValueError, match="mean_tokens"):
        own_costs(work, mean_tokens=300)
    with pytest.raises(ValueError, match="unknown selection"):
        own_costs(work, selections=["oracle"])


def test_script_prints_the_papers_figures_and_json(tmp_path, capsys):
    main(FlopsArguments(paper="robust04"), GroupOptions())
    printed = capsys.readouterr().out
    for figure in ("59,356.224", "6,301.095", "263.684", "1.106x", "255,739.021", "7.389x", "1,024 sequences"):
        assert figure in printed
    CoBertConfig(encoder_config=SMALL, max_length=32).save_pretrained(tmp_path)
    main(FlopsArguments(format="json", model=str(tmp_path), num_queries=3, k=8, num_passages=30), GroupOptions())
    rows = json.loads(capsys.readouterr().out)["convention"]
    assert rows[0]["first_pass"] == 30 * passage_macs(BertConfig(**SMALL), 32)
    assert [row["system"] for row in rows] == [row.system for row in paper_costs("gov2")]


def test_script_takes_the_counts_of_a_prepared_folder(tmp_path, capsys):
    collection = open_collection("demo")
    documents = [document.doc_id for document in collection.documents()][:7]
    write_run(tmp_path / "run.trec", {q: dict.fromkeys(documents, 1.0) for q in collection.queries()}, "all")
    options = SelectionOptions("first-stage", passage_words=20, passage_overlap=10)
    selected = select_passages(collection, tmp_path / "run.trec", tmp_path / "selected", options, progress=False)
    build_rows(tmp_path / "selected", tmp_path / "rows", collection)
    sizes = GroupOptions(2, group_size=5, group_overlap=1)
    main(FlopsArguments(format="json", rows=str(tmp_path / "rows")), sizes)
    result = json.loads(capsys.readouterr().out)
    queries = len(collection.queries())
    assert result["workload"]["queries"] == queries and result["workload"]["documents"] == 7
    assert result["workload"]["passages"] == selected["counts"]["pair_passages"] > 7 * queries
    full = {row["system"]: row for row in result["convention"]}["Co-BERT"]
    assert full["sequences"] == queries * (2 + 5 + 2 + 3)  # documents 1-5 and 5-7, two prototypes each
    with pytest.raises(ValueError, match="not of 'rows'"):
        main(FlopsArguments(rows=str(tmp_path / "selected")), sizes)


def test_script_says_what_is_wrong():
    command = [sys.executable, "data_scripts/flops.py", "--num_queries", "3", "--k", "8", "--num_passages", "3"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1 and result.stderr.endswith("at least one for each document\n")
    assert "error: passages (3) are fewer than" in result.stderr
