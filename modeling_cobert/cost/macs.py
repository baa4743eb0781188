"""What a system costs: multiply-accumulates from the configs, by the paper's convention and for our way of running."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial

from transformers import BertConfig

from ..grouping_cobert import overlapping_spans

TERA = 10**12
# BERT-QE: every sequence has 384 tokens, and 10 chunks are kept
QE_TOKENS = 384
QE_CHUNKS = 10
VARIANTS = {
    "Co-BERT, calibrator only": {"use_calibrator": True, "use_scorer": False},
    "Co-BERT, scorer only": {"use_calibrator": False, "use_scorer": True},
    "Co-BERT": {"use_calibrator": True, "use_scorer": True},
}
SELECTIONS = ("cross-encoder", "self", "bi-encoder", "lexical")


@dataclass(frozen=True)
class BertShape:
    """The sizes that the cost depends on, where no `BertConfig` is at hand; BERT-Base by default."""

    num_hidden_layers: int = 12
    hidden_size: int = 768
    intermediate_size: int = 3072


BertLike = BertConfig | BertShape
# all-MiniLM-L6-v2, a bi-encoder that can pick passages in place of a cross-encoder
MINILM = BertShape(6, 384, 1536)


@dataclass(frozen=True)
class CoBertShape:
    """
    The sizes of the three parts and of a group; the defaults are the paper's.

    Args:
        encoder, calibrator, scorer (`BertConfig` or `BertShape`): the three parts.
        num_prototypes (`int`, *optional*, defaults to 4): m, the feedback documents of a query.
        group_size (`int`, *optional*, defaults to 60): n, the candidates of a group.
        group_overlap (`int`, *optional*, defaults to 4): o, the candidates that neighbouring groups share.
        max_length (`int`, *optional*, defaults to 256): the tokens that every sequence is counted with.
        pooler (`bool`, *optional*, defaults to `False`): whether our model uses the encoder's pooler. The paper's
            convention counts it in any case.
    """

    encoder: BertLike = BertShape()
    calibrator: BertLike = BertShape(2)
    scorer: BertLike = BertShape(4)
    num_prototypes: int = 4
    group_size: int = 60
    group_overlap: int = 4
    max_length: int = 256
    pooler: bool = False

    @classmethod
    def from_config(cls, config) -> "CoBertShape":
        """Takes the sizes from a `CoBertConfig`."""
        return cls(
            encoder=config.encoder_config,
            calibrator=config.calibrator_config,
            scorer=config.scorer_config,
            num_prototypes=config.num_prototypes,
            group_size=config.group_size,
            group_overlap=config.group_overlap,
            max_length=config.max_length,
            pooler=config.encoder_pooling == "pooler",
        )

    def group_sizes(self, documents: int) -> list[int]:
        """The candidates of each group of one query."""
        return [end - start for start, end in overlapping_spans(documents, self.group_size, self.group_overlap)]


PAPER_SHAPE = CoBertShape()


def bert_macs(
    config: BertLike,
    tokens: float,
    *,
    sequences: float = 1,
    pooled: float = 0,
    logits: float = 0,
    attention: bool = False,
) -> float:
    """
    Multiply-accumulates of a BERT over `sequences` sequences of `tokens` tokens each.

    Each layer has four projections of hidden x hidden and two of hidden x intermediate per token. Embedding look-ups,
    biases, LayerNorm, softmax and activations are not counted.

    Args:
        config (`BertConfig` or `BertShape`): the model's sizes.
        tokens (`float`): tokens of a sequence; may be a mean of real lengths (which, with `attention=True`, gives a
            lower bound, since attention grows with the square of the length).
        sequences (`float`, *optional*, defaults to 1): how many sequences.
        pooled (`float`, *optional*, defaults to 0): how many vectors go through the pooler, in all.
        logits (`float`, *optional*, defaults to 0): how many logits a head computes, in all.
        attention (`bool`, *optional*, defaults to `False`): whether to count the products of queries and keys, and of
            weights and values. The paper does not.

    Example:

    ```python
    >>> bert_macs(BertShape(), 256, pooled=1, logits=2)
    21743863296

    ```
    """
    hidden = config.hidden_size
    per_layer = tokens * (4 * hidden * hidden + 2 * hidden * config.intermediate_size)
    if attention:
        per_layer += 2 * tokens * tokens * hidden
    return sequences * config.num_hidden_layers * per_layer + pooled * hidden * hidden + logits * hidden


def passage_macs(encoder: BertLike, tokens: float, attention: bool = False) -> float:
    """One passage through a BERT classifier as the paper counts it: layers, pooler and two logits."""
    return bert_macs(encoder, tokens, pooled=1, logits=2, attention=attention)


def group_macs(
    shape: CoBertShape, candidates: float, *, use_calibrator: bool, use_scorer: bool, attention: bool = False
) -> float:
    """
    One group as the paper counts it: prototypes and candidates through the encoder, then calibrator and scorer.

    Beside the layers, the encoder's poolers and heads and the calibrator's poolers, the published totals leave 1.06
    million multiply-accumulates a group, give or take 0.11 by their last digit. Two-class heads of the calibrator (one
    per pair) and of the scorer (one per candidate) and a pooler in the scorer are 1.05 million, and are what the
    sequence and token classifiers of that time ran: so they are counted.
    """
    prototypes = shape.num_prototypes if use_calibrator else 0
    total = (prototypes + candidates) * passage_macs(shape.encoder, shape.max_length, attention)
    pairs = prototypes * candidates
    if use_calibrator:
        total += bert_macs(shape.calibrator, 2, sequences=pairs, pooled=pairs, logits=2 * pairs, attention=attention)
    if use_scorer:
        total += bert_macs(shape.scorer, candidates, pooled=1, logits=2 * candidates, attention=attention)
    else:
        total += 2 * candidates * shape.encoder.hidden_size
    return total


# Groups are counted one by one.
MOST_DOCUMENTS = 10**8


@dataclass(frozen=True)
class Workload:
    """
    What is re-ranked, counted over a whole collection.

    Args:
        queries (`int`): how many queries.
        documents (`int`): the candidates of each query.
        passages (`int`): query-passage pairs, over all queries: what a selector must score.
        chunks (`int`, *optional*, defaults to 1200): for BERT-QE, the chunks of a query's ten feedback documents. By
            default those of documents of 600 words, a chunk every 5.
        qe_passages (`int`, *optional*): as `passages`, for BERT-QE's passages of 100 words. Without it, 3/2 of them,
            since these start every 50 words and Co-BERT's every 75.
    """

    queries: int
    documents: int
    passages: int
    chunks: int = 1200
    qe_passages: int | None = None

    def __post_init__(self):
        if self.queries < 1 or self.documents < 1 or self.chunks < 0:
            raise ValueError(
                f"queries and documents must be at least 1, chunks at least 0: got {self.queries}, {self.documents}, "
                f"{self.chunks}"
            )
        if self.documents > MOST_DOCUMENTS:
            raise ValueError(f"a query has at most {MOST_DOCUMENTS} documents, got {self.documents}")
        pairs = self.queries * self.documents
        for name in ("passages", "qe_passages"):
            count = getattr(self, name)
            if count is not None and count < pairs:
                raise ValueError(
                    f"{name} ({count}) are fewer than {self.queries} queries x {self.documents} documents: count "
                    "query-passage pairs over all queries, at least one for each document"
                )


@dataclass(frozen=True)
class Cost:
    """
    One row of a cost table, in multiply-accumulates over all queries.

    Args:
        system (`str`): its name.
        first_pass (`float`): picking passages.
        second_pass (`float`): everything after that.
        sequences (`int`, *optional*): encoder sequences of the second pass.
        per_query (`float`): both passes, divided by the queries.
        ratio (`float`): relative to BERT-Base, which scores every passage at full length.
        published (`dict[str, float]`): the paper's figures under the same names, in 10^12.
        note (`str`): what to know about the row.
    """

    system: str
    first_pass: float
    second_pass: float
    sequences: float
    per_query: float
    ratio: float
    published: dict[str, float]
    note: str

    def to_dict(self) -> dict:
        """Returns what `json.dump` can write."""
        return asdict(self)


def cost_of(
    system: str,
    first_pass: float,
    second_pass: float,
    sequences: float,
    *,
    queries: int,
    base: float,
    published: dict[str, float] | None = None,
    note: str = "",
) -> Cost:
    """Makes a row; `base` is the cost of BERT-Base over all queries."""
    total = first_pass + second_pass
    return Cost(system, first_pass, second_pass, sequences, total / queries, total / base, published or {}, note)


def convention_costs(work: Workload, shape: CoBertShape = PAPER_SHAPE, *, attention: bool = False) -> list[Cost]:
    """
    The paper's way of running, for any counts: a selector over every passage, then every group on its own, all at
    `max_length` tokens.

    Args:
        work (`Workload`): the counts.
        shape (`CoBertShape`, *optional*): sizes; the paper's by default.
        attention (`bool`, *optional*, defaults to `False`): count attention products too.

    Returns:
        `list[Cost]`: BERT-Base, BERT-QE-BBB, and the variants of Co-BERT.
    """
    base = work.passages * passage_macs(shape.encoder, shape.max_length, attention)
    make_row = partial(cost_of, queries=work.queries, base=base)
    rows = [make_row("BERT-Base", base, 0, 0)]

    # Three phases: the query with every passage, the query with every chunk, ten chunks with each best passage.
    passages = work.qe_passages if work.qe_passages is not None else math.ceil(1.5 * work.passages)
    per_passage = passage_macs(shape.encoder, QE_TOKENS, attention)
    sequences = work.queries * (work.chunks + QE_CHUNKS * work.documents)
    rows.append(make_row("BERT-QE-BBB", passages * per_passage, sequences * per_passage, sequences))

    for name, parts in VARIANTS.items():
        sizes = shape.group_sizes(work.documents)
        second = work.queries * sum(group_macs(shape, size, attention=attention, **parts) for size in sizes)
        prototypes = shape.num_prototypes if parts["use_calibrator"] else 0
        sequences = work.queries * (sum(sizes) + prototypes * len(sizes))
        rows.append(make_row(name, base, second, sequences))
    return rows


def own_costs(
    work: Workload,
    shape: CoBertShape = PAPER_SHAPE,
    *,
    mean_tokens: float | None = None,
    selections: Iterable[str] = SELECTIONS,
    bi_encoder: BertLike = MINILM,
    attention: bool = False,
) -> list[Cost]:
    """
    Our way of running Co-BERT: every pair is encoded once at its real length, however many groups it stands in.

    Args:
        work (`Workload`): the counts.
        shape (`CoBertShape`, *optional*): sizes; the paper's by default.
        mean_tokens (`float`, *optional*): mean real length of a sequence; `max_length` by default.
        selections (`Iterable[str]`, *optional*): how a document's passage is picked. `"cross-encoder"`: a selector as
            large as the encoder scores every passage, then the picked ones are encoded (the paper); `"self"`: the
            encoder scores every passage itself and the vectors of the picked ones are kept, so that nothing is encoded
            again; `"bi-encoder"`: a small bi-encoder embeds every passage, then the picked ones are encoded;
            `"lexical"`: BM25 picks them, which takes no matrix product.
        bi_encoder (`BertConfig` or `BertShape`, *optional*): its sizes, all-MiniLM-L6-v2's by default.
        attention (`bool`, *optional*, defaults to `False`): count attention products too.

    Returns:
        `list[Cost]`: one row per selection, relative to the paper's BERT-Base over the same passages.
    """
    tokens = shape.max_length if mean_tokens is None else mean_tokens
    if not 0 < tokens <= shape.max_length:
        raise ValueError(f"mean_tokens must be above 0 and at most max_length ({shape.max_length}), got {tokens}")
    base = work.passages * passage_macs(shape.encoder, shape.max_length, attention)
    per_passage = bert_macs(shape.encoder, tokens, pooled=int(shape.pooler), attention=attention)
    context = work.queries * context_macs(work.documents, shape, attention=attention)
    rows = []
    for selection in selections:
        encoded = 0 if selection == "self" else work.queries * work.documents
        if selection == "cross-encoder":
            first = work.passages * passage_macs(shape.encoder, tokens, attention)
        elif selection == "self":
            # the prototype weight W_t is what the passages are compared by
            first = work.passages * (per_passage + shape.encoder.hidden_size)
        elif selection == "bi-encoder":
            first = bert_macs(bi_encoder, tokens, sequences=work.passages + work.queries, attention=attention)
        elif selection == "lexical":
            first = 0
        else:
            raise ValueError(f"unknown selection {selection!r}; choose from {', '.join(SELECTIONS)}")
        second = encoded * per_passage + context
        rows.append(
            cost_of(f"Co-BERT, ours, {selection} selection", first, second, encoded, queries=work.queries, base=base)
        )
    return rows


def context_macs(documents: int, shape: CoBertShape = PAPER_SHAPE, *, attention: bool = False) -> float:
    """
    Calibrator and scorer for one query, as our model runs them once its candidates are encoded.

    A candidate is calibrated once, whatever groups it is in; for the scorer all groups are as long as the longest, the
    last one padded. The weighted sum over prototypes is a matrix product and is counted too.
    """
    groups = shape.group_sizes(documents)
    rows = len(groups) * max(groups)
    prototypes = min(shape.num_prototypes, documents)
    pairs = documents * prototypes
    total = bert_macs(shape.calibrator, 2, sequences=pairs, attention=attention)
    total += (pairs + prototypes) * shape.encoder.hidden_size
    return total + bert_macs(shape.scorer, max(groups), sequences=len(groups), logits=rows, attention=attention)
