"""The options of a first stage: its model's parameters, and how text becomes terms."""

from dataclasses import asdict, dataclass, field, fields

from ..steps.limits import check_numbers
from .analysis import ANALYZERS, OWN_STOPWORDS, STEMMERS, Analyzer

MODELS = ("bm25", "bm25+rm3", "dph", "dph+kl")
IDFS = ("lucene", "robertson")
# What only models read that have this in their name.
READ_BY = {
    "bm25": ("k1", "b", "k3", "idf"),
    "+": ("feedback_docs", "feedback_terms"),
    "rm3": ("original_weight",),
    "kl": ("beta",),
}


@dataclass
class RetrievalOptions:
    """
    A first-stage model with its parameters, by default those of the system that it comes from: Terrier's for DPH,
    Anserini's for BM25. `None` stands for a default that depends on the model; see [`~RetrievalOptions.resolved`].

    Example:

    ```python
    >>> RetrievalOptions("bm25", k1=1.2, b=0.75).resolved().analyzer
    'anserini'
    ```
    """

    first_stage: str = field(
        default="dph+kl",
        metadata={
            "help": "The first stage's model, with or without expansion; the paper's by default.",
            "choices": MODELS,
        },
    )
    k1: float = field(default=0.9, metadata={"help": "BM25: saturation of term frequency."})
    b: float = field(default=0.4, metadata={"help": "BM25: share of length normalisation."})
    k3: float | None = field(
        default=None, metadata={"help": "BM25: saturation of query term frequency, Terrier's is 8; by default none."}
    )
    idf: str = field(
        default="lucene",
        metadata={"help": "BM25: the weight of a rare term; robertson, Terrier's, may be negative.", "choices": IDFS},
    )
    feedback_docs: int | None = field(
        default=None, metadata={"help": "Expansion: documents that it looks at; by default 10 for RM3, 3 for KL."}
    )
    feedback_terms: int = field(default=10, metadata={"help": "Expansion: terms that it keeps."})
    original_weight: float = field(default=0.5, metadata={"help": "RM3: the original query's share."})
    beta: float | None = field(
        default=None, metadata={"help": "KL: Rocchio's beta; by default Terrier's parameter-free form."}
    )
    analyzer: str | None = field(
        default=None,
        metadata={
            "help": "Tokeniser and stop list; by default terrier for DPH, anserini for BM25.",
            "choices": ANALYZERS,
        },
    )
    stemmer: str = field(default="porter", metadata={"help": "english is Porter 2.", "choices": STEMMERS})
    stopwords: str | None = field(
        default=None, metadata={"help": "terrier, lucene, none, or a file of words; by default the analyzer's own."}
    )
    index_stopwords: bool = field(default=False, metadata={"help": "Drop stop words from queries only, as PISA does."})

    def __post_init__(self):
        for name, value, known in (("first_stage", self.first_stage, MODELS), ("idf", self.idf, IDFS)):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        check_numbers(self, 0, "k1", "k3", "beta")
        check_numbers(self, 0, "b", "original_weight", most=1)
        check_numbers(self, 1, "feedback_docs", "feedback_terms")

    def check_read(self) -> None:
        """Options that are not as by default, and that the model does not read, are an error."""
        given = {f.name for f in fields(self) if getattr(self, f.name) != f.default}
        unread = {name for part, names in READ_BY.items() if part not in self.first_stage for name in names}
        wrong = [f"--{f.name}" for f in fields(self) if f.name in given & unread]
        if wrong:
            raise ValueError(f"--first_stage {self.first_stage} does not read {', '.join(wrong)}: leave it out")

    def resolved(self) -> "ResolvedOptions":
        """The same options with the defaults that depend on the model filled in."""
        analyzer = self.analyzer or ("terrier" if self.first_stage.startswith("dph") else "anserini")
        feedback_docs = self.feedback_docs or (3 if self.first_stage == "dph+kl" else 10)
        stopwords = self.stopwords or OWN_STOPWORDS[analyzer]
        filled = {"analyzer": analyzer, "feedback_docs": feedback_docs, "stopwords": stopwords}
        return ResolvedOptions(**{**asdict(self), **filled})

    def make_analyzer(self) -> Analyzer:
        """What turns text into terms."""
        options = self.resolved()
        return Analyzer(options.analyzer, options.stemmer, options.stopwords, options.index_stopwords)


class ResolvedOptions(RetrievalOptions):
    """Options without a default that depends on the model."""

    analyzer: str
    feedback_docs: int
    stopwords: str
