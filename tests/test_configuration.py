"""CoBertConfig: the paper's defaults, what is derived, what is refused, and that files give back what was saved."""

import json

import pytest
import tiny
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, BertConfig

from modeling_cobert import CoBertConfig, CoBertForGroupwiseRanking


def test_defaults_are_the_papers():
    config = CoBertConfig()
    layers = [
        part.num_hidden_layers for part in (config.encoder_config, config.calibrator_config, config.scorer_config)
    ]
    assert layers == [12, 2, 4] and config.hidden_size == 768
    assert (config.num_prototypes, config.group_size, config.group_overlap) == (4, 60, 4)
    assert (config.max_length, config.passage_words, config.passage_overlap) == (256, 150, 75)
    assert config.use_calibrator and config.use_scorer and config.use_residual
    assert (config.encoder_pooling, config.scorer_positions, config.mark_overlap) == ("cls", False, False)
    assert (config.overlap_merge, config.selector, config.loss) == ("max", "lexical", "pointwise")


def test_parts_without_a_config_are_as_wide_as_the_encoder():
    config = CoBertConfig(encoder_config={"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 28})
    for part, layers in ((config.calibrator_config, 2), (config.scorer_config, 4)):
        shape = (part.hidden_size, part.num_attention_heads, part.intermediate_size, part.num_hidden_layers)
        assert shape == (24, 3, 28, layers)


def test_context_parts_keep_only_the_rows_in_use():
    def rows(config):
        return config.vocab_size, config.max_position_embeddings, config.type_vocab_size

    config = tiny.config()
    assert rows(config.calibrator_config) == (1, 2, 1) and rows(config.scorer_config) == (1, 1, 1)
    config = tiny.config(scorer_positions=True, mark_overlap=True)
    assert rows(config.calibrator_config) == (1, 2, 1) and rows(config.scorer_config) == (1, tiny.N, 2)


def test_the_callers_configs_stay_as_they_were():
    scorer = tiny.bert_config(2, 2, 36)
    config = tiny.config(scorer_config=scorer)
    assert scorer.vocab_size == len(tiny.VOCAB) and config.scorer_config is not scorer


@pytest.mark.parametrize("fields", [{}, *tiny.VARIANTS.values(), {"selector": "org/cross-encoder", "loss": "lambda"}])
def test_round_trip(fields, tmp_path):
    config = tiny.config(**fields)
    config.save_pretrained(tmp_path)
    loaded = CoBertConfig.from_pretrained(tmp_path)
    config.transformers_version = loaded.transformers_version
    assert loaded.to_dict() == config.to_dict()
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["group_size"] == tiny.N and saved["model_type"] == "cobert"
    assert isinstance(AutoConfig.from_pretrained(tmp_path), CoBertConfig)
    # Values that happen to be BertConfig's own defaults must survive beside an encoder that has others.
    assert loaded.scorer_config.intermediate_size == 36 and loaded.calibrator_config.num_attention_heads == 3


def test_default_sized_part_beside_another_encoder(tmp_path):
    encoder = {"hidden_size": 768, "num_attention_heads": 6, "intermediate_size": 1024, "num_hidden_layers": 1}
    CoBertConfig(encoder_config=encoder, scorer_config=BertConfig(num_hidden_layers=1)).save_pretrained(tmp_path)
    loaded = CoBertConfig.from_pretrained(tmp_path)
    assert loaded.scorer_config.intermediate_size == 3072 and loaded.scorer_config.num_attention_heads == 12
    assert loaded.calibrator_config.intermediate_size == 1024


WIDER = {"hidden_size": 32, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"calibrator_config": WIDER}, "hidden sizes must agree.*calibrator_config.hidden_size. is 32.*same value"),
        ({"scorer_config": WIDER}, "hidden sizes must agree.*scorer_config.hidden_size. is 32"),
        ({"group_overlap": 7}, "overlap of 7 with groups of 7. Lower `group_overlap` or raise `group_size`"),
        ({"group_overlap": -1}, "group_overlap. must be at least 0"),
        ({"group_size": 0}, "group_size. must be at least 1"),
        ({"num_prototypes": 0}, "at least one prototype.*set `use_calibrator=False`"),
        ({"num_prototypes": -1, "use_calibrator": False}, "num_prototypes. must be from 0 to 10000, got -1"),
        ({"starting_weights": [0, 1, 0], "feedback_weight": 1e39}, "finite number of float32, got 1e[+]39"),
        ({"starting_weights": [0, 1e39, 0]}, "three finite numbers"),
        ({"starting_weights": [0, 1, 0], "neighbour_weight": float("nan")}, "neighbour_weight. must be a finite"),
        ({"passage_overlap": 10}, "overlap of 10 with passages of 10 words"),
        ({"passage_words": 0}, "passages of 0 words"),
        ({"max_length": 65}, "encoder's 64 positions, got 65. Lower `max_length`"),
        ({"max_length": 4}, "between 5"),
        ({"selector": "self", "use_calibrator": False}, "relevance head on single passages.*use_calibrator=True"),
        ({"selector": " "}, "selector. is empty"),
        ({"encoder_config": {"is_decoder": True}}, "encoder_config. is a decoder"),
        ({"encoder_config": {"num_hidden_layers": 0}}, "num_hidden_layers. must be at least 1"),
        ({"encoder_pooling": "mean"}, "encoder_pooling"),
        ({"overlap_merge": "min"}, "overlap_merge"),
        ({"loss": "hinge"}, "loss"),
        ({"group_size": "60"}, "group_size.*expected int"),
    ],
)
def test_what_is_refused(fields, message):
    if "encoder_config" in fields:
        fields = {**fields, "encoder_config": {**tiny.bert_config(5, 4, 40).to_dict(), **fields["encoder_config"]}}
    with pytest.raises(StrictDataclassError, match=f"(?s){message}"):
        tiny.config(**fields)


def test_a_berts_own_fields_and_checkpoints_are_told_apart(tmp_path):
    """A ValueError with the cure, where transformers would make an AttributeError and a page of log of it."""
    for ask in (
        lambda: tiny.config(hidden_size=384),
        lambda: CoBertConfig.from_pretrained(tiny.bert_checkpoint(tmp_path / "bert")),
        lambda: CoBertForGroupwiseRanking.from_pretrained(tiny.bert_checkpoint(tmp_path / "bert")),
    ):
        with pytest.raises(ValueError, match="hidden_size=.* is a field of `encoder_config`.*from_bert_pretrained"):
            ask()


def test_what_a_variant_does_not_use_is_not_checked():
    assert tiny.config(use_calibrator=False, num_prototypes=0, calibrator_config=WIDER).num_prototypes == 0
    assert tiny.config(use_scorer=False, scorer_config=WIDER, selector="self").selector == "self"


def test_whole_numbers_are_numbers():
    config = tiny.config(starting_weights=[1, 0, 0], feedback_weight=1, neighbour_weight=1)
    assert type(config).from_dict(config.to_dict()).starting_weights == [1, 0, 0]
    assert tiny.model(starting_weights=[1, 0, 0]).start.weight.tolist() == [1.0, 0.0, 0.0]
