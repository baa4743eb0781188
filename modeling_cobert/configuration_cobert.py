# Copyright 2026 The Co-BERT authors.
# SPDX-License-Identifier: Apache-2.0
"""Co-BERT's configuration: three BertConfigs and how documents are cut, grouped and scored."""

import copy
from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers import BertConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

# No list has so many documents that feedback could learn from.
MOST_PROTOTYPES = 10_000
_FLOAT32_MAX = (2 - 2.0**-23) * 2.0**127


@strict
class CoBertConfig(PreTrainedConfig):
    r"""
    Configuration of a [`CoBertForGroupwiseRanking`]. The defaults are the paper's; an ablation is a field.

    Args:
        encoder_config (`BertConfig` or `dict`, *optional*):
            The cross-encoder that reads `[CLS] query [SEP] passage [SEP]`; BERT-Base by default.
        calibrator_config (`BertConfig` or `dict`, *optional*):
            The BERT that reads (prototype, candidate) pairs of vectors. By default as wide as the encoder, 2 layers.
        scorer_config (`BertConfig` or `dict`, *optional*):
            The BERT that reads the vectors of a group. By default as wide as the encoder, 4 layers. Neither of the
            two reads words: their vocabulary, position and token type tables are cut down to the rows in use.
        num_prototypes (`int`, *optional*, defaults to 4):
            m, the number of feedback documents that calibrate every candidate.
        group_size (`int`, *optional*, defaults to 60):
            n, the number of candidates that are scored jointly.
        group_overlap (`int`, *optional*, defaults to 4):
            o, the number of documents that neighbouring groups share.
        max_length (`int`, *optional*, defaults to 256):
            The most tokens of a query-passage pair. Only the passage is ever truncated.
        passage_words (`int`, *optional*, defaults to 150):
            The words of a passage.
        passage_overlap (`int`, *optional*, defaults to 75):
            The words that neighbouring passages share.
        passage_title (`bool`, *optional*, defaults to `False`):
            Whether a document's title stands before every passage, not only before the first one.
        use_calibrator (`bool`, *optional*, defaults to `True`):
            `False` leaves out prototypes and calibrator: candidates are scored as the encoder left them.
        use_scorer (`bool`, *optional*, defaults to `True`):
            `False` puts the head on each (calibrated) vector alone. Without both parts this is BERT-Base.
        use_residual (`bool`, *optional*, defaults to `True`):
            Whether a candidate's vector is averaged with its calibrated one.
        encoder_pooling (`str`, *optional*, defaults to `"cls"`):
            What stands for a pair: the raw `[CLS]` vector (`"cls"`, the paper) or BERT's pooler over it (`"pooler"`,
            the authors' release, and what the head of a BERT cross-encoder was trained on).
        scorer_positions (`bool`, *optional*, defaults to `False`):
            Whether the scorer sees where in its group a document stands, as in the authors' release.
        mark_overlap (`bool`, *optional*, defaults to `False`):
            Whether the first `group_overlap` documents of a group carry token type 1, as in the authors' release.
        overlap_merge (`str`, *optional*, defaults to `"max"`):
            The score of a document in two groups: `"max"`, `"mean"`, `"first"` or `"last"`.
        selector (`str`, *optional*, defaults to `"lexical"`):
            What picks the passage that stands for a document, and the prototypes: `"self"` (the model's own encoder
            and W_t), `"lexical"` (BM25 on passages), `"first-stage"` (first passage, given order), or the Hub id or
            folder of a cross-encoder (the paper's way) or bi-encoder.
        loss (`str`, *optional*, defaults to `"pointwise"`):
            `"pointwise"` (the paper), `"listwise"`, `"ranknet"`, `"lambda"` or `"approx_ndcg"`.
        starting_weights (`list[float]`, *optional*):
            Start from what is known: the logit is the mixture of three scores, the encoder's own relevance, the
            selector's and the first stage's, each standardised over the query's list, with these weights, and what
            calibrator and scorer add to it, which is nothing before they are trained. With `[1, 0, 0]` an untrained
            model ranks as its encoder does. By default (the paper) the head on the last part gives the whole logit.
            A score with weight 0 is left out, also while training; with 0 for the own relevance and neither calibrator
            nor scorer, no pair is read at all.
        learn_starting_weights (`bool`, *optional*, defaults to `True`):
            Whether training changes the starting weights, `feedback_weight` and `neighbour_weight` among them.
        feedback_weight (`float`, *optional*, defaults to 0.0):
            With starting weights: how much a document gains by words that it shares with the `num_prototypes`
            documents of the list that start best (pseudo relevance feedback, Rocchio 1971), over whole documents.
        content_size (`int`, *optional*, defaults to 0):
            Content beside interaction: the width of the vectors of a bi-encoder, which must be the `selector`. Its
            unit vectors of the chosen passages, which do not depend on the query, go with the interaction vectors
            into calibrator and scorer, so that these can tell what a document is about. 0 (the paper) is without.
        neighbour_weight (`float`, *optional*, defaults to 0.0):
            With starting weights: how much a document's logit is drawn to what the documents of its group start from
            that are like it (score regularisation, Diaz 2005).
        neighbour_likeness (`str`, *optional*):
            What they are alike in: `"content"`, which needs `content_size`; the `"words"` of whole documents; or
            `"both"`, the mean of the two. By default content where the model has `content_size`, else words.
        neighbour_voters (`str`, *optional*, defaults to `"all"`):
            Whose starts count: those of `"all"` documents of the group, or of the `"promising"` ones alone, which
            start better than the group's mean.

    Example:

    ```python
    >>> from modeling_cobert import CoBertConfig

    >>> config = CoBertConfig(group_size=28)
    >>> config.encoder_config.num_hidden_layers, config.calibrator_config.num_hidden_layers, config.num_prototypes
    (12, 2, 4)
    ```"""

    model_type = "cobert"
    sub_configs_defaults = {
        "encoder_config": SubConfigSpec(BertConfig),
        "calibrator_config": SubConfigSpec(BertConfig, init_kwargs={"num_hidden_layers": 2}),
        "scorer_config": SubConfigSpec(BertConfig, init_kwargs={"num_hidden_layers": 4}),
    }

    encoder_config: dict | PreTrainedConfig | None = None
    calibrator_config: dict | PreTrainedConfig | None = None
    scorer_config: dict | PreTrainedConfig | None = None
    num_prototypes: int = 4
    group_size: int = 60
    group_overlap: int = 4
    max_length: int = 256
    passage_words: int = 150
    passage_overlap: int = 75
    passage_title: bool = False
    use_calibrator: bool = True
    use_scorer: bool = True
    use_residual: bool = True
    encoder_pooling: Literal["cls", "pooler"] = "cls"
    scorer_positions: bool = False
    mark_overlap: bool = False
    overlap_merge: Literal["max", "mean", "first", "last"] = "max"
    selector: str = "lexical"
    loss: Literal["pointwise", "listwise", "ranknet", "lambda", "approx_ndcg"] = "pointwise"
    starting_weights: list[float | int] | None = None
    learn_starting_weights: bool = True
    feedback_weight: float | int = 0.0
    content_size: int = 0
    neighbour_weight: float | int = 0.0
    neighbour_likeness: Literal["content", "words", "both"] | None = None
    neighbour_voters: Literal["all", "promising"] = "all"
    pad_token_id: int | None = 0
    custom_pipelines: dict | None = None

    def __post_init__(self, **kwargs):
        # A model mutates the configs that it is built from, so none of them is shared with the caller.
        for name in self.sub_configs_defaults:
            setattr(self, name, copy.deepcopy(getattr(self, name)))
        given = {name: getattr(self, name) is not None for name in self.sub_configs_defaults}
        super().__post_init__(**kwargs)
        if not given["calibrator_config"]:
            self.calibrator_config = context_config(self.encoder_config, num_hidden_layers=2)
        if not given["scorer_config"]:
            self.scorer_config = context_config(self.encoder_config, num_hidden_layers=4)
        # Both read vectors: a table row that no input reaches would be a dead weight in every checkpoint.
        _keep_rows(self.calibrator_config, positions=2, token_types=1)
        _keep_rows(
            self.scorer_config,
            positions=self.group_size if self.scorer_positions else 1,
            token_types=2 if self.mark_overlap else 1,
        )
        # Lets pipeline("text-ranking", model=..., trust_remote_code=True) find its code beside the weights.
        self.custom_pipelines = {
            "text-ranking": {"impl": "pipeline_cobert.CoBertTextRankingPipeline", "pt": ["AutoModel"], "type": "text"}
        }

    @property
    def hidden_size(self) -> int:
        return self.get_text_config().hidden_size

    @hidden_size.setter
    def hidden_size(self, value: int) -> None:
        # Not an AttributeError, of which transformers makes a hundred lines.
        raise ValueError(
            f"`hidden_size={value}` is a field of `encoder_config`, as all of a BERT's are: set it there. A BERT's "
            "own checkpoint becomes a Co-BERT by CoBertForGroupwiseRanking.from_bert_pretrained."
        )

    def get_text_config(self, *args, **kwargs) -> BertConfig:
        # Only the encoder has a vocabulary: without this, resized embeddings would not load again.
        # transformers has a sub-config annotated with all that may be given; `__post_init__` leaves a BertConfig.
        return self.encoder_config  # type: ignore[return-value]

    @property
    def has_context(self) -> bool:
        """Whether anything but the pair itself has a say; without it this is BERT-Base."""
        return self.use_calibrator or self.use_scorer

    @property
    def reads_pairs(self) -> bool:
        """Whether what the encoder makes of query-passage pairs has a say; if not, no pair need be encoded."""
        return self.has_context or self.starting_weights is None or self.starting_weights[0] != 0

    @property
    def reads_words(self) -> bool:
        """Whether the words of whole documents have a say: in feedback, or in who is whose neighbour."""
        return bool(self.feedback_weight or "words" in self.neighbours_by)

    @property
    def neighbours_by(self) -> tuple[str, ...]:
        """What neighbours are alike in: `content`, `words`, both, or nothing in a model where none are told."""
        if self.starting_weights is None or not (self.content_size or self.neighbour_weight):
            return ()
        if self.neighbour_likeness == "both":
            return ("content", "words")
        return (self.neighbour_likeness or ("content" if self.content_size else "words"),)

    @property
    def has_relevance_head(self) -> bool:
        """Whether single passages have a head of their own (W_t, b_t), beside the one on the last part."""
        return self.use_calibrator or (self.use_scorer and self.starting_weights is not None)

    def validate_parts(self):
        """The three BERTs fit each other."""
        parts = {"encoder_config": self.encoder_config}
        if self.use_calibrator:
            parts["calibrator_config"] = self.calibrator_config
        if self.use_scorer:
            parts["scorer_config"] = self.scorer_config
        for name, part in parts.items():
            if part.model_type != "bert":
                raise ValueError(f"`{name}` must be a BertConfig (model_type 'bert'), found {part.model_type!r}.")
            if part.is_decoder or part.add_cross_attention:
                raise ValueError(f"`{name}` is a decoder: set its `is_decoder` and `add_cross_attention` to False.")
            if part.num_hidden_layers < 1:
                raise ValueError(f"`{name}.num_hidden_layers` must be at least 1; to leave a part out use `use_*`.")
            if part.hidden_size != self.encoder_config.hidden_size:
                raise ValueError(
                    f"hidden sizes must agree: `{name}.hidden_size` is {part.hidden_size}, but "
                    f"`encoder_config.hidden_size` is {self.encoder_config.hidden_size}. Set them to the same value, "
                    f"or leave `{name}` out to get one as wide as the encoder."
                )

    def validate_groups(self):
        """Group and feedback sizes make sense."""
        if self.group_size < 1:
            raise ValueError(f"`group_size` must be at least 1, got {self.group_size}.")
        if not 0 <= self.group_overlap < self.group_size:
            raise ValueError(
                f"`group_overlap` must be at least 0 and below `group_size`: got an overlap of {self.group_overlap} "
                f"with groups of {self.group_size}. Lower `group_overlap` or raise `group_size`."
            )
        if not 0 <= self.num_prototypes <= MOST_PROTOTYPES:
            raise ValueError(
                f"`num_prototypes` must be from 0 to {MOST_PROTOTYPES}, got {self.num_prototypes}: every group has a "
                "place for each."
            )
        positions = self.scorer_config.max_position_embeddings
        if self.use_scorer and self.scorer_positions and positions != self.group_size:
            raise ValueError(
                f"the scorer has positions for groups of {positions}, got `group_size={self.group_size}`: leave it as "
                "it was trained, or set `scorer_positions=False`."
            )
        if self.use_calibrator and self.num_prototypes < 1:
            raise ValueError(
                f"the calibrator needs at least one prototype, got `num_prototypes={self.num_prototypes}`. Raise it, "
                "or set `use_calibrator=False`."
            )

    def validate_lengths(self):
        """Passages advance, and pairs fit the encoder."""
        if self.passage_words < 1 or not 0 <= self.passage_overlap < self.passage_words:
            raise ValueError(
                f"`passage_overlap` must be at least 0 and below `passage_words`: got an overlap of "
                f"{self.passage_overlap} with passages of {self.passage_words} words."
            )
        longest = self.encoder_config.max_position_embeddings
        if not 5 <= self.max_length <= longest:
            raise ValueError(
                f"`max_length` must be between 5 (three special tokens, one of the query, one of the passage) and the "
                f"encoder's {longest} positions, got {self.max_length}. Lower `max_length`, or raise "
                "`encoder_config.max_position_embeddings`."
            )

    def validate_start(self):
        """The weights of the starting scores are three numbers."""
        weights = self.starting_weights
        if weights is None:
            return
        if len(weights) != 3 or not all(map(_is_float32, weights)) or not any(weights):
            raise ValueError(
                "`starting_weights` are three finite numbers, not all 0, for the encoder's own relevance, the "
                f"selector's score and the first stage's, such as [1, 0.5, 0.5]; got {weights}."
            )

    def validate_feedback(self):
        """Feedback has something to start from, and documents to learn from."""
        if not _is_float32(self.feedback_weight):
            raise ValueError(f"`feedback_weight` must be a finite number of float32, got {self.feedback_weight}.")
        if self.feedback_weight and (self.starting_weights is None or not self.num_prototypes):
            raise ValueError(
                "`feedback_weight` needs `starting_weights`, which tell the best documents, and `num_prototypes` of "
                "at least 1: set them, or leave it 0."
            )

    def validate_content(self):
        """Content has a width, something to be compared with, and a bi-encoder that it comes from."""
        if self.content_size < 0:
            raise ValueError(f"`content_size` must not be negative, got {self.content_size}.")
        if self.content_size and self.selector in ("self", "lexical", "first-stage"):
            raise ValueError(
                f"`content_size={self.content_size}` needs the Hub id or folder of a bi-encoder as `selector`, whose "
                f"vectors they are, not {self.selector!r}."
            )
        if not _is_float32(self.neighbour_weight):
            raise ValueError(f"`neighbour_weight` must be a finite number of float32, got {self.neighbour_weight}.")
        if self.neighbour_weight and self.starting_weights is None:
            raise ValueError("`neighbour_weight` needs `starting_weights`: set them, or leave it 0.")
        if not self.neighbour_weight and (self.neighbour_likeness is not None or self.neighbour_voters != "all"):
            raise ValueError("`neighbour_likeness` and `neighbour_voters` need a `neighbour_weight` other than 0.")
        if self.neighbour_likeness in ("content", "both") and not self.content_size:
            raise ValueError(
                f"`neighbour_likeness={self.neighbour_likeness!r}` needs `content_size`, the width of the vectors "
                "that are compared: set it, or compare 'words'."
            )

    def validate_selector(self):
        """The named selector can work in this variant."""
        if not self.selector.strip():
            raise ValueError("`selector` is empty: use 'self', 'lexical', 'first-stage', a Hub id or a folder.")
        if self.selector == "self" and self.has_context and not self.has_relevance_head:
            raise ValueError(
                "`selector='self'` needs a relevance head on single passages, and the variant with a scorer but no "
                "calibrator has none. Use 'lexical', 'first-stage' or a cross-encoder, or set `use_calibrator=True`."
            )


def _is_float32(weight: float) -> bool:
    """Whether a weight is a finite number also where models keep it."""
    return abs(weight) <= _FLOAT32_MAX


def context_config(encoder_config: PreTrainedConfig, **fields) -> BertConfig:
    """The config of a calibrator or scorer that is as wide as the encoder, but for the fields given."""
    shared = (
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "hidden_act",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "initializer_range",
        "layer_norm_eps",
    )
    shape = {name: getattr(encoder_config, name) for name in shared}
    return BertConfig(**{**shape, "attn_implementation": encoder_config._attn_implementation, **fields})


def _keep_rows(config: PreTrainedConfig, positions: int, token_types: int) -> None:
    config.vocab_size = 1
    config.pad_token_id = 0
    config.max_position_embeddings = positions
    config.type_vocab_size = token_types


# What is saved brings this file along, and names it as AutoConfig's.
CoBertConfig.register_for_auto_class()

__all__ = ["CoBertConfig"]
