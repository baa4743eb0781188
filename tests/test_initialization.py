"""from_bert_pretrained: which weight comes from where, what starts fresh, and what is refused."""

import logging

import pytest
import tiny
import torch
from torch.testing import assert_close
from transformers import BertForSequenceClassification, BertModel, RobertaConfig

from modeling_cobert import CoBertForGroupwiseRanking

SMALL = {"max_length": 32, "calibrator_config": {"num_hidden_layers": 1}, "scorer_config": {"num_hidden_layers": 2}}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return tiny.bert_checkpoint(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module", params=[1, 2])
def cross(request, tmp_path_factory):
    return tiny.bert_checkpoint(tmp_path_factory.mktemp("cross"), labels=request.param)


def build(caplog, *args, **fields) -> tuple[CoBertForGroupwiseRanking, set[str]]:
    """The model, and the weights that one log line calls fresh."""
    transformers_logger = logging.getLogger("transformers")
    transformers_logger.addHandler(caplog.handler)
    our_logger = logging.getLogger("modeling_cobert.initialization_cobert")
    our_logger.addHandler(caplog.handler)
    try:
        caplog.clear()
        model = CoBertForGroupwiseRanking.from_bert_pretrained(*args, **fields)
    finally:
        transformers_logger.removeHandler(caplog.handler)
        our_logger.removeHandler(caplog.handler)
    lines = {record.getMessage() for record in caplog.records if "Starting fresh" in record.getMessage()}
    (line,) = lines
    names = line.removeprefix("Starting fresh, to be trained: ").removesuffix(".")
    return model, set(names.split(", ")) if names != "nothing" else set()


def equal(ours: torch.nn.Module, theirs: torch.nn.Module) -> bool:
    other = theirs.state_dict()
    return all(torch.equal(value, other[name][: len(value)]) for name, value in ours.state_dict().items())


def test_plain_bert(plain, caplog):
    model, fresh = build(caplog, plain, **SMALL)
    source = BertModel.from_pretrained(plain)
    assert fresh == {"prototype_weight.weight", "prototype_weight.bias", "classifier.weight", "classifier.bias"}
    assert equal(model.encoder, source) and model.encoder.pooler is None
    # The first layers, and the rows of position and type that are in use, of the encoder itself.
    assert len(model.calibrator.encoder.layer) == 1 and equal(model.calibrator, source)
    assert len(model.scorer.encoder.layer) == 2 and equal(model.scorer, source)
    assert model.config.selector == "lexical" and model.config.encoder_pooling == "cls"
    assert not model.training and model.dtype == torch.float32


def test_paper_sizes_by_default(plain, caplog):
    model, _ = build(caplog, plain, max_length=32)
    assert len(model.calibrator.encoder.layer) == 2 and len(model.scorer.encoder.layer) == 4


def test_cross_encoder(cross, caplog):
    model, fresh = build(caplog, cross, **SMALL)
    source = BertForSequenceClassification.from_pretrained(cross)
    assert fresh == {"classifier.weight", "classifier.bias"}
    assert model.config.encoder_pooling == "pooler" and model.config.selector == "self"
    assert equal(model.encoder, source.bert) and model.encoder.pooler is not None
    weight, bias = source.classifier.weight, source.classifier.bias
    row = weight[-1:] - weight[:1] if len(weight) == 2 else weight
    constant = bias[-1:] - bias[:1] if len(bias) == 2 else bias
    assert_close(model.prototype_weight.weight, row, check_stride=False)
    assert_close(model.prototype_weight.bias, constant)
    assert model.config.encoder_config._name_or_path == ""  # a folder of this machine is nobody else's business


def test_cross_encoder_without_context_is_the_cross_encoder_itself(cross, caplog):
    model, fresh = build(caplog, cross, max_length=32, use_calibrator=False, use_scorer=False)
    assert fresh == set() and model.config.selector == "self"
    source = BertForSequenceClassification.from_pretrained(cross)
    ranking = model.rerank("bees see colour", ["red car", "blue flower", "", "the sky of bees"])
    for result in ranking:
        text = ["red car", "blue flower", "", "the sky of bees"][result["corpus_id"]]
        inputs = model.find_tokenizer()(["bees see colour"], [text], return_tensors="pt")
        with torch.no_grad():
            logits = source(**inputs).logits[0]
        expected = logits[0] if len(logits) == 1 else logits[1] - logits[0]
        assert result["score"] == pytest.approx(float(expected), abs=1e-5)
        if len(logits) == 2:
            assert result["probability"] == pytest.approx(float(logits.softmax(0)[1]), abs=1e-5)


@pytest.mark.parametrize(
    ("fields", "fresh", "selector"),
    [
        ({"use_scorer": False}, set(), "self"),
        ({"use_calibrator": False}, {"classifier.weight", "classifier.bias"}, "lexical"),
        (
            {"encoder_pooling": "cls"},
            {"prototype_weight.weight", "prototype_weight.bias", "classifier.weight", "classifier.bias"},
            "lexical",
        ),
        ({"selector": "first-stage"}, {"classifier.weight", "classifier.bias"}, "first-stage"),
    ],
)
def test_where_the_relevance_row_goes(cross, caplog, fields, fresh, selector):
    model, found = build(caplog, cross, **SMALL, **fields)
    assert found == fresh and model.config.selector == selector


def test_own_checkpoints_for_the_parts(plain, tmp_path, caplog):
    calibrator = tiny.bert_checkpoint(tmp_path / "two", layers=2, intermediate_size=28)
    scorer = tiny.bert_checkpoint(tmp_path / "four", layers=4)
    model, fresh = build(
        caplog, plain, calibrator, scorer, max_length=32, scorer_positions=True, mark_overlap=True, group_size=9
    )
    assert equal(model.calibrator, BertModel.from_pretrained(calibrator))
    assert equal(model.scorer, BertModel.from_pretrained(scorer))
    assert model.scorer.embeddings.position_embeddings.weight.shape[0] == 9
    assert model.config.calibrator_config.intermediate_size == 28 and "scorer" not in " ".join(fresh)


def test_a_checkpoint_without_pooler_names_it_fresh(tmp_path, caplog):
    torch.manual_seed(0)
    BertModel(tiny.bert_config(5, 4, 40), add_pooling_layer=False).save_pretrained(tmp_path)
    tiny.tokenizer(tmp_path)
    _, fresh = build(caplog, tmp_path, **SMALL, encoder_pooling="pooler")
    assert {"encoder.pooler.dense.weight", "encoder.pooler.dense.bias"} <= fresh


def test_what_is_refused(plain, tmp_path):
    from_bert = CoBertForGroupwiseRanking.from_bert_pretrained
    wide = tiny.bert_checkpoint(tmp_path / "wide", hidden_size=32)
    with pytest.raises(ValueError, match="scorer .*wide.* has hidden size 32, but the encoder has 24"):
        from_bert(plain, scorer=wide, max_length=32)
    with pytest.raises(ValueError, match="calibrator .*wide.* has hidden size 32"):
        from_bert(plain, calibrator=wide, max_length=32)
    RobertaConfig().save_pretrained(tmp_path / "roberta")
    with pytest.raises(ValueError, match="encoder .*roberta.* is not a BERT checkpoint: its model_type is 'roberta'"):
        from_bert(tmp_path / "roberta")
    with pytest.raises(ValueError, match="scorer .*roberta.* is not a BERT"):
        from_bert(plain, scorer=tmp_path / "roberta", max_length=32)
    with pytest.raises(ValueError, match="5 labels: a cross-encoder has 1 or 2"):
        from_bert(tiny.bert_checkpoint(tmp_path / "five", labels=5))
    with pytest.raises(ValueError, match="scorer wants the encoder's first 4 layers, but it has 3"):
        from_bert(tiny.bert_checkpoint(tmp_path / "three", layers=3), max_length=32)
    with pytest.raises(ValueError, match="encoder_config. comes from"):
        from_bert(plain, encoder_config={})
    for wrong in ({"use_calibratr": False}, {"dtype": "bfloat16"}, {"device_map": "meta"}):
        with pytest.raises(TypeError, match=f"CoBertConfig has no field {next(iter(wrong))}: correct the name"):
            from_bert(plain, max_length=32, **wrong)
    with pytest.raises(ValueError, match="pass one of the two"):
        from_bert(plain, scorer=plain, scorer_config={"num_hidden_layers": 1}, max_length=32)
    with pytest.raises(OSError):
        from_bert(tmp_path / "absent")


def test_a_pickle_is_not_loaded(tmp_path):
    torch.manual_seed(0)
    model = BertModel(tiny.bert_config(5, 4, 40))
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        CoBertForGroupwiseRanking.from_bert_pretrained(tmp_path, max_length=32)
