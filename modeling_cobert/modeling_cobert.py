# Copyright 2026 The Co-BERT authors.
# SPDX-License-Identifier: Apache-2.0
"""The Co-BERT model: encode -> calibrate -> score, and the head over them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import BertModel
from transformers import initialization as init
from transformers.utils import can_return_tuple

from .configuration_cobert import CoBertConfig
from .initialization_cobert import bert_weights
from .loss_cobert import ranking_loss
from .outputs_cobert import CoBertRankingOutput, CoBertRecorder

# Not used here: transformers ships a model's code by following its relative imports; this brings the pipeline along.
from .pipeline_cobert import CoBertTextRankingPipeline  # noqa: F401
from .pretrained_cobert import CoBertPreTrainedModel
from .reranking_cobert import rerank
from .start_cobert import PROTOTYPE_SHARPNESS, SHARPNESS, CoBertFeedback, CoBertNeighbours, CoBertStart, cosines


class CoBertContextModel(BertModel):
    """A BertModel whose input is vectors already: it has no word table, and no pooler."""

    def __init__(self, config):
        super().__init__(config, add_pooling_layer=False)
        self.embeddings.word_embeddings = nn.Identity()


class CoBertForGroupwiseRanking(CoBertPreTrainedModel):
    r"""
    Re-ranks documents: a BERT encoder reads each query-passage pair, a 2-layer BERT calibrates each pair with the
    query's feedback documents (prototypes), a 4-layer BERT scores the documents of a group jointly.

    Example:

    ```python
    >>> from modeling_cobert import CoBertForGroupwiseRanking

    >>> model = CoBertForGroupwiseRanking.from_pretrained("models/cobert")
    >>> model.rerank("how do bees see colour", ["Bees see ultraviolet light.", "Bees make honey."], top_k=1)
    [{'corpus_id': ..., 'score': ..., 'probability': ...}]
    ```
    """

    def __init__(self, config: CoBertConfig):
        config.validate()  # again: fields may have been set since it was made, as from_pretrained(.., field=..) does
        super().__init__(config)
        hidden = config.hidden_size
        self.encoder = BertModel(config.encoder_config, add_pooling_layer=config.encoder_pooling == "pooler")
        self.calibrator = CoBertContextModel(config.calibrator_config) if config.use_calibrator else None
        self.prototype_weight = nn.Linear(hidden, 1) if config.has_relevance_head else None  # W_t, b_t
        self.scorer = CoBertContextModel(config.scorer_config) if config.use_scorer else None
        self.classifier = nn.Linear(hidden, 1)
        reads_content = config.content_size > 0 and config.has_context
        self.content = nn.Linear(config.content_size, hidden, bias=False) if reads_content else None
        known, learned = config.starting_weights, config.learn_starting_weights
        self.start = None if known is None else CoBertStart(known, learned)
        self.feedback = CoBertFeedback(config.num_prototypes, learned) if config.feedback_weight else None
        promising = config.neighbour_voters == "promising"
        self.neighbours = CoBertNeighbours(learned, promising) if config.neighbours_by else None
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, CoBertStart):
            init.copy_(module.weight, torch.tensor(self.config.starting_weights))
        if isinstance(module, CoBertFeedback):
            init.constant_(module.weight, self.config.feedback_weight)
            init.constant_(module.sharpness, math.log(PROTOTYPE_SHARPNESS))
        if isinstance(module, CoBertNeighbours):
            init.constant_(module.weight, self.config.neighbour_weight)
            init.constant_(module.sharpness, math.log(SHARPNESS))
        if module is getattr(self, "content", None):
            init.normal_(module.weight)  # of a unit vector this makes numbers around 1, as those of a pair's vector
        # The context adds nothing to the start until it has learned what to add.
        if module is getattr(self, "classifier", None) and self.start is not None and self.config.has_context:
            init.zeros_(module.weight)

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        """Two groups of the prototypes and two candidates, five tokens each."""
        shape = (2, self.num_prototypes + 2, 5)
        ids = torch.arange(torch.Size(shape).numel()).reshape(shape)
        return {"input_ids": ids % self.config.get_text_config().vocab_size}

    @property
    def num_prototypes(self) -> int:
        """m as this variant feeds it: 0 without a calibrator."""
        return self.config.num_prototypes if self.config.use_calibrator else 0

    def encode(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        recorder: CoBertRecorder | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """
        One interaction vector for each query-passage pair.

        Args:
            input_ids, attention_mask, token_type_ids (`torch.Tensor` of shape `(pairs, tokens)`): as BERT takes them.
            recorder ([`CoBertRecorder`], *optional*): keeps hidden states and attentions.
            inputs_embeds (`torch.Tensor` of shape `(pairs, tokens, hidden)`, *optional*): in place of `input_ids`.

        Returns:
            `torch.Tensor` of shape `(pairs, hidden)`.
        """
        pooled = self.config.encoder_pooling == "pooler"
        vectors = (recorder or CoBertRecorder()).run(
            "encoder",
            self.encoder,
            pooled,
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
        )
        return vectors if pooled else vectors[:, 0]

    def calibrate(
        self,
        prototypes: Tensor,
        candidates: Tensor,
        prototype_mask: Tensor | None = None,
        recorder: CoBertRecorder | None = None,
        relevance: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """
        Candidates seen through the query's prototypes.

        Args:
            prototypes (`torch.Tensor` of shape `(batch, m, hidden)`): the vectors t_i.
            candidates (`torch.Tensor` of shape `(batch, n, hidden)`): the vectors r_j.
            prototype_mask (`torch.Tensor` of shape `(batch, m)`, *optional*): 1 for real prototypes; all by default.
            recorder ([`CoBertRecorder`], *optional*): keeps hidden states and attentions.
            relevance (`torch.Tensor` of shape `(batch, m)`, *optional*): the prototypes' own relevance, which weighs
                them, where their vectors were joined with content; by default it is read off the vectors.

        Returns:
            The calibrated vectors `(batch, n, hidden)` and the prototypes' weights `(batch, m)`. A query without any
            prototype gets its candidates back as they were, and weights of 0.
        """
        if self.calibrator is None:
            raise ValueError(
                "this model has no calibrator (use_calibrator=False): score the candidates' vectors directly"
            )
        batch, m, hidden = prototypes.shape
        n = candidates.shape[1]
        shape = (batch, m, n, hidden)
        pairs = torch.stack((prototypes.unsqueeze(2).expand(shape), candidates.unsqueeze(1).expand(shape)), dim=3)
        states = (recorder or CoBertRecorder()).run(
            "calibrator", self.calibrator, inputs_embeds=pairs.reshape(batch * m * n, 2, hidden)
        )
        seen = states[:, 1].reshape(shape)  # rt_ij: the output at the candidate's place
        logits = self.own_relevance(prototypes) if relevance is None else relevance  # (batch, m)
        real = torch.ones_like(logits, dtype=torch.bool) if prototype_mask is None else prototype_mask.bool()
        weights = logits.masked_fill(~real, torch.finfo(logits.dtype).min).softmax(dim=-1) * real
        calibrated = torch.einsum("bm,bmnh->bnh", weights.to(seen.dtype), seen)
        if self.config.use_residual:
            calibrated = (candidates + calibrated) / 2
        return torch.where(real.any(dim=-1)[:, None, None], calibrated, candidates), weights

    def join_content(self, vectors: Tensor, content: Tensor | None) -> Tensor:
        """Interaction vectors `(.., hidden)` with what their passages are about `(.., content_size)` in them."""
        if not self.config.content_size:
            return vectors
        if content is None:
            raise ValueError(
                "this model reads content beside interaction (content_size): pass content, the unit vectors that its "
                "bi-encoder gives for the passages"
            )
        # A model without context parts looks at content only to tell neighbours by.
        return vectors if self.content is None else vectors + self.content(content.to(self.content.weight.dtype))

    def own_relevance(self, vectors: Tensor) -> Tensor:
        """The encoder's own relevance logit of single passages, `(.., hidden)` -> `(..)`: W_t, or BERT-Base's head."""
        if self.prototype_weight is not None:
            return self.prototype_weight(vectors).squeeze(-1)
        if self.scorer is None:
            return self.classifier(vectors).squeeze(-1)
        raise ValueError(
            "selector 'self' needs a relevance head on single passages, and a model with a scorer but no calibrator "
            "has none: use 'lexical', 'first-stage' or a cross-encoder"
        )

    def start_from(self, vectors: Tensor, starting_scores: Tensor | None, mask: Tensor | None = None) -> Tensor | None:
        """
        The logits that a list starts from, or `None` in a model without `starting_weights`.

        Args:
            vectors (`torch.Tensor` of shape `(batch, n, hidden)`): what [`encode`] gave for the candidates.
            starting_scores (`torch.Tensor` of shape `(batch, n, 2)`): the selector's and the first stage's score,
                standardised over the query's list.
            mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 1 for real candidates; all by default. The own
                relevance is standardised over these.

        Returns:
            `torch.Tensor` of shape `(batch, n)`, to which [`score`] adds what the context says.
        """
        if self.start is None:
            return None
        if starting_scores is None:
            raise ValueError(
                "this model starts from known scores (starting_weights): pass starting_scores, the selector's and the "
                "first stage's score of every candidate, each standardised over the query's list"
            )
        relevance = self.own_relevance(vectors)
        return self.start(relevance, starting_scores, torch.ones_like(relevance) if mask is None else mask)

    def feed_back(self, start: Tensor | None, likeness: Tensor | None, mask: Tensor) -> Tensor | None:
        """
        What the words of the documents that start best make of a start; in a model without `feedback_weight` nothing.

        Args:
            start (`torch.Tensor` of shape `(batch, n)`, *optional*): what [`start_from`] gave.
            likeness (`torch.Tensor` of shape `(batch, n, n)`): how alike the documents' words are.
            mask (`torch.Tensor` of shape `(batch, n)`): 1 for real candidates.
        """
        if start is None or not self.config.reads_words:
            return start
        if likeness is None:
            raise ValueError(
                "this model compares the words of documents (feedback_weight, or neighbours by words): "
                "pass likeness, the cosines of the candidates' word vectors"
            )
        return start if self.feedback is None else self.feedback(start, likeness, mask)

    def score(
        self,
        vectors: Tensor,
        mask: Tensor | None = None,
        recorder: CoBertRecorder | None = None,
        start: Tensor | None = None,
        content: Tensor | None = None,
        likeness: Tensor | None = None,
    ) -> Tensor:
        """
        One relevance logit for each document of a group.

        Args:
            vectors (`torch.Tensor` of shape `(batch, n, hidden)`): the (calibrated) vectors of each group.
            mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 1 for real documents; all by default.
            recorder ([`CoBertRecorder`], *optional*): keeps hidden states and attentions.
            start (`torch.Tensor` of shape `(batch, n)`, *optional*): what [`start_from`] gave; in a model with
                `starting_weights` the context is added to it.
            content (`torch.Tensor` of shape `(batch, n, content_size)`, *optional*): what the documents are about, in
                a model with `starting_weights` and `content_size`.
            likeness (`torch.Tensor` of shape `(batch, n, n)`, *optional*): how alike the documents' words are, in one
                whose neighbours are told by words.

        Returns:
            `torch.Tensor` of shape `(batch, n)`.
        """
        if self.neighbours is not None and start is not None:
            alike = self.compare(content, likeness)
            if alike is not None:
                start = self.neighbours(start, alike, torch.ones_like(start) if mask is None else mask)
        if start is not None and not self.config.has_context:
            return start
        if self.scorer is not None:
            batch, n = vectors.shape[:2]
            places = torch.arange(n, device=vectors.device).unsqueeze(0)  # (1, n)
            if self.config.scorer_positions and n > self.config.group_size:
                raise ValueError(
                    f"the scorer has positions for {self.config.group_size} documents, got a group of {n}"
                )
            # One and the same position for all: the scorer cannot tell where in its group a document stands.
            positions = places if self.config.scorer_positions else torch.zeros_like(places)
            types = (
                (places < self.config.group_overlap).long() if self.config.mark_overlap else torch.zeros_like(places)
            )
            vectors = (recorder or CoBertRecorder()).run(
                "scorer",
                self.scorer,
                inputs_embeds=vectors,
                attention_mask=mask,
                position_ids=positions,
                token_type_ids=types.expand(batch, n),
            )
        logits = self.classifier(vectors).squeeze(-1)
        return logits if start is None else start + logits

    def compare(self, content: Tensor | None, likeness: Tensor | None) -> Tensor | None:
        """How alike documents are `(.., n, n)`, in what neighbours are told by; `None` where some of it is missing."""
        compared = []
        for kind in self.config.neighbours_by:
            if kind == "content" and content is not None:
                compared.append(cosines(content))
            elif kind == "words" and likeness is not None:
                compared.append(likeness)
            else:
                return None
        return torch.stack(compared).mean(dim=0) if compared else None

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        document_mask: Tensor | None = None,
        labels: Tensor | None = None,
        vectors: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        starting_scores: Tensor | None = None,
        content: Tensor | None = None,
        likeness: Tensor | None = None,
    ) -> CoBertRankingOutput:
        r"""
        Scores whole groups, each with its prototypes.

        Args:
            input_ids, attention_mask, token_type_ids (`torch.Tensor` of shape `(batch, m + n, tokens)`):
                Query-passage pairs; the first m rows of a group are its prototypes (m = 0 without a calibrator).
            document_mask (`torch.Tensor` of shape `(batch, m + n)`, *optional*):
                1 for real rows, 0 for padding; all real by default.
            labels (`torch.Tensor` of shape `(batch, n)`, *optional*):
                Grades of the candidates, -100 for none. Any grade above 0 is relevant to the pointwise loss.
            vectors (`torch.Tensor` of shape `(batch, m + n, hidden)`, *optional*):
                What [`encode`] gave for the pairs, in place of `input_ids`, `attention_mask` and `token_type_ids`.
            inputs_embeds (`torch.Tensor` of shape `(batch, m + n, tokens, hidden)`, *optional*):
                Word embeddings, in place of `input_ids`.
            output_hidden_states, output_attentions (`bool`, *optional*):
                Whether to return those of encoder, calibrator and scorer; attentions want
                `attn_implementation="eager"`.
            starting_scores (`torch.Tensor` of shape `(batch, n, 2)`, *optional*):
                In a model with `starting_weights`: the selector's and the first stage's score of each candidate,
                standardised over the query's whole list. The own relevance is standardised over the group.
            content (`torch.Tensor` of shape `(batch, m + n, content_size)`, *optional*):
                In a model with `content_size`: the bi-encoder's unit vector of each passage.
            likeness (`torch.Tensor` of shape `(batch, n, n)`, *optional*):
                In a model with `feedback_weight`, or whose neighbours are told by words: how alike the words of the
                candidates' documents are.
            return_dict (`bool`, *optional*):
                Whether to return a [`CoBertRankingOutput`] (the default) or a tuple.
        """
        config, m = self.config, self.num_prototypes
        _check_inputs(config.hidden_size, input_ids, inputs_embeds, vectors)
        shape = next(x for x in (input_ids, inputs_embeds, vectors) if x is not None).shape
        batch, documents = shape[:2]
        if documents <= m:
            raise ValueError(f"a group has {documents} rows: {m} prototypes leave no candidate among them")
        _check_shape("document_mask", document_mask, "(batch, m + n)", (batch, documents))
        _check_shape("labels", labels, "(batch, n)", (batch, documents - m))
        _check_shape("starting_scores", starting_scores, "(batch, n, 2)", (batch, documents - m, 2))
        _check_shape("likeness", likeness, "(batch, n, n)", (batch, documents - m, documents - m))
        if config.content_size:
            _check_shape("content", content, "(batch, m + n, content_size)", (batch, documents, config.content_size))
        recorder = CoBertRecorder(
            hidden_states=bool(config.output_hidden_states if output_hidden_states is None else output_hidden_states),
            attentions=config.output_attentions if output_attentions is None else output_attentions,
        )
        if vectors is None:
            _check_shape("attention_mask", attention_mask, "(batch, m + n, tokens)", shape[:3])
            _check_shape("token_type_ids", token_type_ids, "(batch, m + n, tokens)", shape[:3])
            inputs = {
                "input_ids": input_ids,
                "inputs_embeds": inputs_embeds,
                "attention_mask": attention_mask,
                "token_type_ids": token_type_ids,
            }
            pairs = {name: x.flatten(0, 1) for name, x in inputs.items() if x is not None}  # (batch * (m + n), ...)
            if config.reads_pairs:
                vectors = self.encode(**pairs, recorder=recorder).view(batch, documents, -1)  # (batch, m + n, hidden)
            else:
                vectors = self.classifier.weight.new_zeros(batch, documents, config.hidden_size)
        if document_mask is None:
            document_mask = torch.ones(batch, documents, dtype=torch.long, device=vectors.device)

        mask, prototype_weights = document_mask[:, m:], None
        start = self.feed_back(self.start_from(vectors[:, m:], starting_scores, mask), likeness, mask)
        joined = self.join_content(vectors, content)
        candidates = joined[:, m:]
        if self.calibrator is not None:
            relevance = self.own_relevance(vectors[:, :m])
            candidates, prototype_weights = self.calibrate(
                joined[:, :m], candidates, document_mask[:, :m], recorder, relevance
            )
        about = None if content is None else content[:, m:]
        logits = self.score(candidates, mask, recorder, start, about, likeness)  # (batch, n)
        return CoBertRankingOutput(
            loss=None if labels is None else ranking_loss(config.loss, logits, labels, mask),
            logits=logits,
            prototype_weights=prototype_weights,
            hidden_states=recorder.kept.get("encoder_hidden_states"),
            attentions=recorder.kept.get("encoder_attentions"),
            **recorder.kept,
        )

    def rerank(self, query: str, documents, top_k: int | None = None, **options) -> list[dict]:
        """Text in, ranking out: see [`~reranking_cobert.rerank`] for the options."""
        return rerank(self, query, documents, top_k=top_k, **options)

    @classmethod
    def from_bert_pretrained(cls, encoder, calibrator=None, scorer=None, **config) -> "CoBertForGroupwiseRanking":
        r"""
        Builds a Co-BERT from BERT checkpoints; a log line names every weight that starts fresh.

        Args:
            encoder (`str` or `os.PathLike`):
                Hub id or folder of a BERT. A cross-encoder (`BertForSequenceClassification` with 1 or 2 labels) also
                gives its pooler, and its relevance row to W_t, b_t and, without a scorer, to the head. So does a
                Co-BERT's folder, such as a pointwise one that is to get its context parts.
            calibrator, scorer (`str` or `os.PathLike`, *optional*):
                Hub ids or folders of BERTs of the encoder's hidden size; all their layers are taken. By default the
                encoder's own first layers, as many as the config says (2 and 4).
            config:
                Fields of [`CoBertConfig`]. For a cross-encoder `encoder_pooling` defaults to `"pooler"`, which is what
                its relevance row was trained on, and `selector` to `"self"`.

        Example:

        ```python
        >>> model = CoBertForGroupwiseRanking.from_bert_pretrained("models/cross-encoder", group_size=28)
        >>> model.config.encoder_pooling, model.config.selector
        ('pooler', 'self')
        ```
        """
        return bert_weights(cls, encoder, calibrator, scorer, config)


def _check_inputs(hidden: int, input_ids: Tensor | None, inputs_embeds: Tensor | None, vectors: Tensor | None) -> None:
    """There is one kind of input, and it has the axes that a group has."""
    if sum(x is not None for x in (input_ids, inputs_embeds, vectors)) != 1:
        raise ValueError("pass either input_ids or vectors or inputs_embeds, and only one of them")
    _check_shape("input_ids", input_ids, "(batch, m + n, tokens)", (None, None, None))
    _check_shape("inputs_embeds", inputs_embeds, "(batch, m + n, tokens, hidden)", (None, None, None, hidden))
    _check_shape("vectors", vectors, "(batch, m + n, hidden)", (None, None, hidden))


def _check_shape(name: str, tensor: Tensor | None, axes: str, shape: Sequence[int | None]) -> None:
    """Raises where a tensor has another shape; `None` stands for any size. Sizes only, so that graphs stay whole."""
    if tensor is None:
        return
    fits = len(shape) == tensor.dim()
    if not fits or any(size is not None and size != found for size, found in zip(shape, tensor.shape, strict=True)):
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"`{name}` must have the shape {axes} = ({sizes}), found {tuple(tensor.shape)}")


# What is saved brings this file along, and names it as AutoModel's.
CoBertForGroupwiseRanking.register_for_auto_class("AutoModel")

__all__ = ["CoBertForGroupwiseRanking", "CoBertRankingOutput", "CoBertRecorder"]
