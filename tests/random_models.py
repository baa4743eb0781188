"""Random models, groups and texts: every part and option of `CoBertConfig`, and every kind of odd input."""

import copy
import random
from dataclasses import dataclass, field
from pathlib import Path

import ranked_alike
import tiny
import torch

from modeling_cobert import CoBertForGroupwiseRanking
from modeling_cobert.passages_cobert import PairTokenizer

LENGTHS = (16, 32, 64)
WIDTH = 20  # of the bi-encoder's vectors
ODD = [
    *("", " ", "\n\t", "\x00\u200b", "🐝", "\ud83d", "中文", "e\u0301", "\u202ebees", "İ", "ﬁsh", "\u00a0", "\u2028"),
    *("[SEP]", "[CLS] [PAD]", "[MASK]", "##s", "a" * 200, "!?.,", "\ufeff", "ſee", "𝔟𝔢𝔢𝔰", "-1e400", "ß", "\r"),
]


@dataclass
class Case:
    """A model, texts for it, and what chooses."""

    number: int
    choose: random.Random
    sandbox: "Sandbox"
    fields: dict = field(default_factory=dict)

    def __post_init__(self):
        self.fields = draw_fields(self.choose, self.sandbox)

    def model(self) -> CoBertForGroupwiseRanking:
        """The case's model, anew: equal weights each time, and nothing ranked with it."""
        made = tiny.model(seed=self.number, **self.fields)
        for name, parameter in made.named_parameters():
            if name == "classifier.weight" or name.split(".")[0] in ("start", "feedback", "neighbours"):
                parameter.data.add_(0.4 * torch.randn(parameter.shape))  # of a model with a start the context is 0
                if name == "start.weight":
                    parameter.data.mul_(torch.tensor(made.start.counted))
        made.tokenizer = self.sandbox.tokenizer
        made.text_side.selectors.update(self.sandbox.selectors)
        return made

    def question(self, most: int = 25) -> tuple[str, list]:
        """A query that fits, and its documents."""
        pairs = PairTokenizer(self.sandbox.tokenizer, self.fields["max_length"])
        documents = draw_documents(self.choose, most)
        while True:
            query = draw_text(self.choose, 6)
            try:
                pairs.query(query)
            except ValueError:
                continue
            if query.strip():
                return query, documents


class Sandbox:
    """Files and models that all cases share."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.tokenizer = tiny.tokenizer(folder / "tokenizer")
        wide = {"hidden_size": WIDTH, "num_attention_heads": 5}
        self.bi_encoder = str(tiny.bert_checkpoint(folder / "bi-encoder", layers=2, **wide))
        self.cross_encoder = str(tiny.bert_checkpoint(folder / "cross-encoder", layers=3, labels=1))
        side = tiny.model().text_side
        self.selectors: dict = {}
        for name in (self.bi_encoder, self.cross_encoder):
            for length in LENGTHS:
                side.find_selector(name, length, "cpu")
        self.selectors.update(side.selectors)
        self.collection = ranked_alike.Folders(folder / "collection", [self.bi_encoder, self.cross_encoder])


def draw_fields(choose: random.Random, sandbox: Sandbox) -> dict:
    """A configuration that is allowed."""
    size, words = choose.randint(1, 9), choose.randint(2, 12)
    fields = {
        "encoder_config": tiny.bert_config(choose.randint(1, 3), 4, 40),
        "calibrator_config": tiny.bert_config(choose.randint(1, 2), 3, 28),
        "scorer_config": tiny.bert_config(choose.randint(1, 2), 2, 36),
        "num_prototypes": choose.randint(1, 4),
        "group_size": size,
        "group_overlap": choose.randint(0, size - 1),
        "max_length": choose.choice(LENGTHS),
        "passage_words": words,
        "passage_overlap": choose.randint(0, words - 1),
        "passage_title": choose.random() < 0.3,
        "use_calibrator": choose.random() < 0.6,
        "use_scorer": choose.random() < 0.6,
        "use_residual": choose.random() < 0.7,
        "encoder_pooling": choose.choice(["cls", "pooler"]),
        "scorer_positions": choose.random() < 0.25,
        "mark_overlap": choose.random() < 0.25,
        "overlap_merge": choose.choice(["max", "mean", "first", "last"]),
    }
    selectors = ["lexical", "first-stage", sandbox.bi_encoder, sandbox.cross_encoder]
    started = choose.random() < 0.6
    if fields["use_calibrator"] or not fields["use_scorer"] or started:
        selectors.append("self")
    fields["selector"] = choose.choice(selectors)
    return fields | (draw_start(choose, fields["selector"] == sandbox.bi_encoder) if started else {})


def draw_start(choose: random.Random, content: bool) -> dict:
    """What a ranking starts from, with feedback and neighbours or without."""
    weights = [choose.choice([0.0, 0.4, 1.0, -0.7]) for _ in range(3)]
    fields: dict = {"starting_weights": weights if any(weights) else [0.3, 1.0, 0.6]}
    if choose.random() < 0.5:
        fields["feedback_weight"] = 0.8
    if content and choose.random() < 0.7:
        fields["content_size"] = WIDTH
    if choose.random() < 0.6:
        kinds = [None, "words"] + (["content", "both"] if "content_size" in fields else [])
        fields |= {"neighbour_weight": 0.6, "neighbour_likeness": choose.choice(kinds)}
        fields["neighbour_voters"] = choose.choice(["all", "promising"])
    return fields


def draw_text(choose: random.Random, most: int) -> str:
    """Words, odd ones among them, sometimes nothing but odd ones."""
    kind = choose.random()
    words = ODD if kind < 0.1 else tiny.WORDS + ODD if kind < 0.5 else tiny.WORDS
    text = choose.choice([" ", " ", "", "\u3000"] if kind < 0.1 else [" "]).join(choose.choices(words, k=most))
    if kind > 0.97:
        text += "".join(chr(choose.randrange(0x110000)) for _ in range(5))
    return text


def draw_documents(choose: random.Random, most: int) -> list:
    """Empty, equal, long ones among them; with first-stage scores, or without."""
    documents: list = []
    for _ in range(choose.randint(1, most)):
        if documents and choose.random() < 0.15:
            documents.append(copy.deepcopy(choose.choice(documents)))
            continue
        text = draw_text(choose, choose.choice([0, 1, 3, 8, 20, 20, 90]))
        documents.append({"title": draw_text(choose, 2), "text": text} if choose.random() < 0.3 else text)
    if choose.random() < 0.5:
        scores = [round(choose.gauss(0, 5), choose.choice([0, 6])) for _ in documents]
        documents = [
            {**(d if isinstance(d, dict) else {"text": d}), "score": score}
            for d, score in zip(documents, sorted(scores, reverse=True), strict=True)
        ]
    return documents


def draw_batch(case: Case, model: CoBertForGroupwiseRanking) -> dict[str, torch.Tensor]:
    """Groups as the collator makes them: padding at the ends of prototypes, candidates and tokens."""
    config, choose, m = model.config, case.choose, model.num_prototypes
    n, groups = choose.randint(1, config.group_size), choose.randint(1, 4)
    inputs = tiny.batch(m=m, n=n, groups=groups, tokens=choose.randint(4, 11), seed=case.number)
    generator = torch.Generator().manual_seed(case.number + 1)
    for group in range(groups):
        inputs["document_mask"][group] = 1
        inputs["document_mask"][group, choose.randint(min(1, m), m) : m] = 0
        inputs["document_mask"][group, m + choose.randint(1, n) :] = 0
    inputs["labels"] = torch.randint(0, 3, (groups, n), generator=generator)
    inputs["labels"].masked_fill_(inputs["document_mask"][:, m:] == 0, -100)
    if model.start is not None:
        inputs["starting_scores"] = torch.randn(groups, n, 2, generator=generator)
    if config.content_size:
        vectors = torch.randn(groups, m + n, config.content_size, generator=generator)
        inputs["content"] = torch.nn.functional.normalize(vectors, dim=-1)
    if config.reads_words:
        words = torch.nn.functional.normalize(torch.rand(groups, n, 6, generator=generator), dim=-1)
        inputs["likeness"] = words @ words.transpose(1, 2)
    return inputs
