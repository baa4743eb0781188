"""Text in, ranking out: against the model's own stages, and every kind of odd input."""

import copy
import json
import math
import random

import numpy
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import BertTokenizer, pipeline

from modeling_cobert import CoBertForGroupwiseRanking, CoBertTextRankingPipeline
from modeling_cobert.grouping_cobert import best_first, overlapping_spans
from modeling_cobert.passages_cobert import PairTokenizer, count_terms
from modeling_cobert.reranking_cobert import encode_list
from modeling_cobert.selection_cobert import counted_scores, load_selector

QUERY = "how do bees see colour"


def texts(count: int, longest: int = 35, seed: int = 0) -> list[str]:
    choose = random.Random(seed)
    return [" ".join(choose.choices(tiny.WORDS, k=choose.randint(1, longest))) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tiny.tokenizer(tmp_path_factory.mktemp("tokenizer"))


def make(tokenizer, **fields):
    model = tiny.model(**fields)
    model.tokenizer = tokenizer
    return model


@torch.no_grad()
def by_hand(model, documents: list[str], choose, relevance_of) -> list[float]:
    """The procedure once more, document by document: passages, selection, prototypes, groups, maximum."""
    config, tokenizer = model.config, model.tokenizer

    def vector(passage: str) -> torch.Tensor:
        inputs = tokenizer(
            [QUERY], [passage], truncation="only_second", max_length=config.max_length, return_tensors="pt"
        )
        return model.encode(**inputs)[0]

    chosen, relevance = [], []
    for document in documents:
        words = document.split()
        spans = overlapping_spans(len(words), config.passage_words, config.passage_overlap) or [(0, 0)]
        passages = [" ".join(words[start:end]) for start, end in spans]
        scores = choose(passages, vector)
        best = max(range(len(passages)), key=lambda i: (scores[i], -i))
        chosen.append(vector(passages[best]))
        relevance.append(relevance_of(scores[best], len(relevance)))
    prototypes = torch.stack([chosen[i] for i in best_first(relevance, config.num_prototypes)]).unsqueeze(0)
    result = [-math.inf] * len(documents)
    for start, end in overlapping_spans(len(documents), config.group_size, config.group_overlap):
        candidates = torch.stack(chosen[start:end]).unsqueeze(0)
        if config.use_calibrator:
            candidates, _ = model.calibrate(prototypes, candidates)
        for position, score in zip(range(start, end), model.score(candidates)[0].tolist(), strict=True):
            result[position] = max(result[position], score)
    return result


def selector_by_hand(selector, model, documents):
    if selector == "self":
        head = model.prototype_weight or model.classifier
        return lambda passages, vector: [float(head(vector(p))) for p in passages], lambda score, rank: score
    if selector == "first-stage":
        return lambda passages, vector: [0.0] + [-1.0] * (len(passages) - 1), lambda score, rank: -rank
    if selector == "lexical":
        every = {}
        config = model.config
        flat = []
        for document in documents:
            words = document.split()
            for start, end in overlapping_spans(len(words), config.passage_words, config.passage_overlap):
                flat.append(" ".join(words[start:end]))
        every = dict(zip(flat, counted_scores(QUERY, [count_terms(text) for text in flat]), strict=True))
        return lambda passages, vector: [every[p] for p in passages], lambda score, rank: score
    loaded = load_selector(selector, model.config.max_length)

    def choose(passages, vector):
        return [loaded.score(QUERY, loaded.pairs.cut([p], 1000, 0), 1000)[0][0] for p in passages]

    return choose, lambda score, rank: score


@pytest.mark.parametrize(
    ("selector", "fields"),
    [
        ("self", {}),
        ("self", {"use_scorer": False}),
        ("self", {"use_calibrator": False, "use_scorer": False}),
        ("lexical", {}),
        ("lexical", {"use_calibrator": False}),
        ("first-stage", {"encoder_pooling": "pooler", "scorer_positions": True, "mark_overlap": True}),
        ("cross-encoder", {}),
        ("bi-encoder", {}),
    ],
)
def test_equals_the_procedure_by_hand(selector, fields, tokenizer, tmp_path):
    model, documents = make(tokenizer, **fields), texts(19)
    if selector.endswith("encoder"):
        selector = str(tiny.bert_checkpoint(tmp_path, layers=2, labels=1 if selector == "cross-encoder" else None))
    expected = by_hand(model, documents, *selector_by_hand(selector, model, documents))
    ranking = model.rerank(QUERY, documents, selector=selector, batch_tokens=100)
    assert [r["corpus_id"] for r in ranking] == best_first(expected)
    for result in ranking:
        assert result["score"] == pytest.approx(expected[result["corpus_id"]], abs=1e-5)
        assert result["probability"] == pytest.approx(1 / (1 + math.exp(-result["score"])), rel=1e-9)
    # The config's selector is the default, and the batch size changes no score.
    model.config.selector = selector
    for again in (model.rerank(QUERY, documents), model.rerank(QUERY, documents, batch_tokens=1)):
        assert sorted(r["corpus_id"] for r in again) == list(range(19))
        scores = {r["corpus_id"]: r["score"] for r in again}
        assert all(scores[r["corpus_id"]] == pytest.approx(r["score"], abs=1e-5) for r in ranking)


def test_the_shape_of_the_result(tokenizer):
    model, documents = make(tokenizer), texts(5)
    ranking = model.rerank(QUERY, documents, top_k=2, return_documents=True)
    assert len(ranking) == 2 and ranking[0]["score"] >= ranking[1]["score"]
    assert set(ranking[0]) == {"corpus_id", "score", "probability", "text"}
    assert ranking[0]["text"] == documents[ranking[0]["corpus_id"]]
    json.dumps(ranking)
    assert model.rerank(QUERY, documents, top_k=0) == []
    assert len(model.rerank(QUERY, documents, top_k=99)) == 5
    assert set(model.rerank(QUERY, documents)[0]) == {"corpus_id", "score", "probability"}
    with_titles = [{"title": "the sky", "text": text} for text in documents]
    joined = [f"the sky {text}" for text in documents]
    assert model.rerank(QUERY, with_titles) == model.rerank(QUERY, joined)
    assert model.rerank(QUERY, with_titles, return_documents=True, top_k=1)[0]["text"] in documents


@pytest.mark.parametrize("fields", [{}, {"use_calibrator": False}, {"use_scorer": False}, tiny.VARIANTS["release"]])
def test_odd_lists(fields, tokenizer):
    model = make(tokenizer, **fields)
    assert model.rerank(QUERY, []) == []
    (alone,) = model.rerank(QUERY, ["bees see"])
    assert alone["corpus_id"] == 0
    assert len(model.rerank(QUERY, ["", "   ", "\n"])) == 3
    odd = [
        "\x00\u200b",
        "🐝 bees \ud83d",
        "[CLS] [SEP] [PAD]",
        "a" * 5000,
        "中文",
        "bees " * 500,
        "e\u0301",
        "\u202ebees",
    ]
    ranking = model.rerank("see [SEP] bees \udc00", odd)
    assert sorted(r["corpus_id"] for r in ranking) == list(range(len(odd)))
    assert all(math.isfinite(r["score"]) for r in ranking)


def test_duplicates_are_each_ranked(tokenizer):
    model = make(tokenizer)
    ranking = model.rerank(QUERY, ["bees see light"] * 5)
    assert sorted(r["corpus_id"] for r in ranking) == [0, 1, 2, 3, 4]
    assert max(r["score"] for r in ranking) - min(r["score"] for r in ranking) < 1e-5
    model = make(tokenizer, use_calibrator=False, use_scorer=False)
    torch.nn.init.zeros_(model.classifier.weight)  # an exact tie keeps the given order
    assert [r["corpus_id"] for r in model.rerank(QUERY, texts(9))] == list(range(9))
    assert model.rerank(QUERY, iter(["bees", "car"])) == model.rerank(QUERY, ("bees", "car"))


KNOWN = {"starting_weights": [1, 0.5, 0], "feedback_weight": 0.5, "neighbour_weight": 0.2}


@pytest.mark.parametrize(
    "fields",
    [*(fields for name, fields in tiny.VARIANTS.items() if name != "release"), {"selector": "self"}, KNOWN],
)
def test_equal_documents_keep_the_given_order(fields, tokenizer):
    """Wherever in its group a document stands: products of matrices round by that, and must not tell them apart."""
    model = make(tokenizer, **fields)
    for seed in range(20):
        other = texts(4, longest=9, seed=seed)
        documents = [other[i] for i in (0, 1, 2, 0, 3, 0)]
        found = [result for result in model.rerank(QUERY, documents) if result["corpus_id"] in (0, 3, 5)]
        assert [result["corpus_id"] for result in found] == [0, 3, 5]
        assert len({result["score"] for result in found}) == 1


def test_documents_differ_by_what_the_model_reads_of_them(tokenizer):
    """Equal passages of documents with other first-stage scores, or other words, are not the same."""
    model = make(tokenizer, starting_weights=[1, 0, 0.5])
    scores = [result["score"] for result in model.rerank(QUERY, [{"text": "bees", "score": s} for s in (1, 3, 2)])]
    assert scores == sorted(set(scores), reverse=True) and len(scores) == 3
    model = make(tokenizer, **KNOWN, passage_words=2, passage_overlap=0, selector="first-stage")
    endings = ["red car", "the bees see the flower", "red car"]
    ranking = model.rerank(QUERY, [f"bees see {words}" for words in endings])
    by_place = {result["corpus_id"]: result["score"] for result in ranking}
    assert by_place[1] != by_place[0] or by_place[1] != by_place[2]


def test_ten_thousand_documents(tokenizer):
    model = make(tokenizer)
    ranking = model.rerank(QUERY, texts(10_000, longest=6), top_k=10)
    assert len(ranking) == 10 and len({r["corpus_id"] for r in ranking}) == 10


def test_each_distinct_pair_is_encoded_once(tokenizer, monkeypatch):
    model = make(tokenizer)
    rows = []
    encode = model.encode

    def counted(input_ids, **inputs):
        rows.extend(tuple(row) for row in input_ids.tolist())
        return encode(input_ids, **inputs)

    monkeypatch.setattr(model, "encode", counted)
    documents = texts(30)
    model.rerank(QUERY, documents * 2, selector="self")
    distinct = {tuple(x for x in row if x) for row in rows}
    assert len(rows) == len(distinct)


def test_errors(tokenizer):
    model = make(tokenizer)
    with pytest.raises(ValueError, match="query has 40 tokens, but a row of 32 has room for 28"):
        model.rerank("bees " * 40, ["car"])
    with pytest.raises(TypeError, match="document 1 must be a string or a dict"):
        model.rerank(QUERY, ["car", 5])
    for query, documents in ((5, ["car"]), (None, ["car"]), (None, [])):
        with pytest.raises(TypeError, match="query must be a string"):
            model.rerank(query, documents)
    for one in ("bees see", {"text": "bees"}, None, 3, b"bees"):
        with pytest.raises(TypeError, match="must be a list of documents"):
            model.rerank(QUERY, one)
    with pytest.raises(ValueError, match="top_k must not be negative"):
        model.rerank(QUERY, ["car"], top_k=-1)
    for name, number in (("top_k", "2"), ("top_k", 1.5), ("batch_tokens", "1024")):
        with pytest.raises(TypeError, match=f"{name} must be a whole number, not {number!r}"):
            model.rerank(QUERY, ["car"], **{name: number})
    for name in ("top_k", "batch_tokens"):
        with pytest.raises(ValueError, match=f"{name} must be at most"):
            model.rerank(QUERY, ["car"], **{name: 10**20})
    with pytest.raises(TypeError, match="selector must be a name or a folder, not 3"):
        model.rerank(QUERY, ["car"], selector=3)
    with pytest.raises(TypeError, match="tokenizer must be one, not its name"):
        model.rerank(QUERY, ["car"], tokenizer="a/folder")
    with pytest.raises(TypeError, match="must be a list of documents, not ndarray"):
        model.rerank(QUERY, numpy.array("car"))
    with pytest.raises(ValueError, match="scorer but no calibrator has none"):
        make(tokenizer, use_calibrator=False).rerank(QUERY, ["car"], selector="self")
    with pytest.raises(OSError):
        model.rerank(QUERY, ["car"], selector="./no-such-folder")
    with pytest.raises(ValueError, match="pass tokenizer="):
        tiny.model().rerank(QUERY, ["car"])
    torch.nn.init.constant_(model.classifier.weight, float("nan"))
    with pytest.raises(ValueError, match="not a number"):
        model.rerank(QUERY, ["car", "bees"])


def test_a_selector_may_be_a_path_and_is_seen_to_work(tokenizer, tmp_path):
    """What a bi-encoder embeds counts in the progress too, beside the pairs."""
    model, folder = make(tokenizer), tiny.bert_checkpoint(tmp_path / "bert", layers=1)
    documents = texts(5)
    assert model.rerank(QUERY, documents, selector=folder) == model.rerank(QUERY, documents, selector=str(folder))
    pairs, told, embedded = PairTokenizer(tokenizer, 32), [], []
    with torch.no_grad():
        encode_list(model, pairs, QUERY, documents, str(folder), 64, told.append, embedded.append)
    cut = pairs.cut(documents, model.config.passage_words, model.config.passage_overlap)
    assert sum(told) == 5 < sum(embedded) == sum(len(document.spans) for document in cut)


def test_an_empty_query_and_a_table_are_refused(tokenizer):
    model = make(tokenizer)
    for query in ("", " \n"):
        with pytest.raises(ValueError, match="the query is empty"):
            model.rerank(query, ["bees"])
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"title": ["a", "b"], "text": ["bees", "cars"]})
    with pytest.raises(TypeError, match="documents must be a list of documents, not DataFrame"):
        model.rerank(QUERY, table)
    assert len(model.rerank(QUERY, table["text"])) == 2
    assert len(model.rerank(QUERY, table.to_dict("records"))) == 2


def test_scores_may_be_numbers_of_numpy(tokenizer):
    model = make(tokenizer, starting_weights=[1, 0, 1])
    plain = model.rerank(QUERY, [{"text": t, "score": float(i)} for i, t in enumerate(("bees", "car", "sky"))])
    for kind in (numpy.float32, numpy.float64, numpy.int64):
        scored = [{"text": t, "score": kind(i)} for i, t in enumerate(("bees", "car", "sky"))]
        assert model.rerank(QUERY, scored) == plain
    with pytest.raises(ValueError, match="document 0 has the score .*finite"):
        model.rerank(QUERY, [{"text": "bees", "score": numpy.float32("nan")}])


def test_a_folder_is_found_from_wherever_the_process_goes(tmp_path, monkeypatch):
    tiny.checkpoint(tmp_path / "model")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    model = CoBertForGroupwiseRanking.from_pretrained("model")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(model.rerank(QUERY, ["bees"])) == 1


def test_words_are_compared_whatever_the_default_dtype(tokenizer):
    model = make(tokenizer, **KNOWN)
    before = model.rerank(QUERY, texts(5))
    torch.set_default_dtype(torch.float64)
    try:
        after = model.rerank(QUERY, texts(5))
    finally:
        torch.set_default_dtype(torch.float32)
    assert [result["corpus_id"] for result in after] == [result["corpus_id"] for result in before]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_prototypes": 0}, "at least one prototype"),
        ({"max_length": 500, "passage_words": 300}, "encoder's 64 positions, got 500"),
        ({"group_size": 1}, "overlap of 2 with groups of 1"),
        ({"scorer_positions": True, "group_size": 7, "group_overlap": 0}, "has positions for groups of"),
    ],
)
def test_fields_given_at_loading_are_checked(options, message, tmp_path):
    tiny.checkpoint(tmp_path, group_size=5, group_overlap=2)
    with pytest.raises(Exception, match=f"(?s){message}"):
        CoBertForGroupwiseRanking.from_pretrained(tmp_path, **options)


def test_a_model_in_training_stays_in_training_and_ranks_without_dropout(tokenizer):
    model, documents = make(tokenizer), texts(9)
    expected = model.rerank(QUERY, documents)
    model.train()
    model.scorer.eval()
    assert model.rerank(QUERY, documents) == expected
    assert model.training and model.encoder.training and not model.scorer.training


def test_selectors_are_loaded_once_and_never_saved(tokenizer, tmp_path):
    selector = str(tiny.bert_checkpoint(tmp_path / "selector", layers=2, labels=1))
    model = make(tokenizer, selector=selector)
    model.rerank(QUERY, texts(3))
    ((key, first),) = model.text_side.selectors.items()
    model.rerank(QUERY, texts(3))
    assert model.text_side.selectors == {key: first}
    assert not any("selector" in name or "text_side" in name for name, _ in model.named_modules())
    model.save_pretrained(tmp_path / "saved")
    loaded, info = CoBertForGroupwiseRanking.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not info["unexpected_keys"] and not info["missing_keys"]
    assert loaded.config.selector == selector
    assert loaded.rerank(QUERY, texts(3)) == model.rerank(QUERY, texts(3))


def test_the_tokenizer_comes_with_the_checkpoint(tokenizer, tmp_path):
    model = make(tokenizer)
    model.save_pretrained(tmp_path / "a")
    loaded = CoBertForGroupwiseRanking.from_pretrained(tmp_path / "a")
    loaded.save_pretrained(tmp_path / "b")  # it was never used: it is found and saved all the same
    again = CoBertForGroupwiseRanking.from_pretrained(tmp_path / "b")
    assert again.rerank(QUERY, texts(4)) == model.rerank(QUERY, texts(4))
    assert again.rerank(QUERY, texts(4), tokenizer=tokenizer) == model.rerank(QUERY, texts(4))


def test_a_tokenizer_must_know_words(tokenizer, tmp_path):
    """Where its files are not there AutoTokenizer makes one up, to which all texts of a length are the same."""
    folder = tiny.checkpoint(tmp_path / "model")
    for path in [*folder.glob("tokenizer*"), folder / "vocab.txt"]:
        path.unlink()
    model = CoBertForGroupwiseRanking.from_pretrained(folder)
    with pytest.raises(ValueError, match="model: the tokenizer knows no words, only 5 special tokens"):
        model.rerank(QUERY, texts(3))
    empty = BertTokenizer()
    pipe = CoBertTextRankingPipeline(model=model, tokenizer=empty, device="cpu")
    with pytest.raises(ValueError, match="knows no words"):
        pipe({"query": QUERY, "documents": texts(3)})
    model.tokenizer = empty
    with pytest.raises(ValueError, match="knows no words"):
        model.rerank(QUERY, texts(3))
    selector = tiny.bert_checkpoint(tmp_path / "selector", layers=2, labels=1)
    for path in [*selector.glob("tokenizer*"), selector / "vocab.txt"]:
        path.unlink()
    with pytest.raises(ValueError, match="selector: the tokenizer knows no words"):
        load_selector(str(selector))
    assert len(model.rerank(QUERY, texts(3), tokenizer=tokenizer)) == 3


def test_a_tokenizer_must_fit_the_encoder(tokenizer, tmp_path):
    folder = tiny.checkpoint(tmp_path / "model")
    documents = texts(3)
    known = len(tiny.VOCAB)
    larger = tiny.tokenizer(tmp_path / "larger")
    larger.add_tokens(["honeycomb"])
    larger.save_pretrained(folder)
    model = CoBertForGroupwiseRanking.from_pretrained(folder)
    message = f"the tokenizer knows {known + 1} tokens, but the encoder only {known}"
    for options in ({}, {"tokenizer": larger}):
        with pytest.raises(ValueError, match=message):
            model.rerank(QUERY, documents, **options)
    model.resize_token_embeddings(known + 7)  # more rows than tokens are as good as the same number
    assert len(model.rerank(QUERY, documents)) == 3


@pytest.mark.parametrize("content", ['{"a"', '{"a": 1}', "[]", ""])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_is_named(name, content, tmp_path):
    folder = tiny.checkpoint(tmp_path / "model")
    (folder / name).write_text(content)
    model = CoBertForGroupwiseRanking.from_pretrained(folder)
    if (name, content) == ("tokenizer_config.json", '{"a": 1}'):
        assert model.rerank(QUERY, texts(3))  # nothing is wrong with it
        return
    with pytest.raises(ValueError, match="model: its tokenizer cannot be read .*: copy tokenizer.json"):
        model.rerank(QUERY, texts(3))


def edit_weights(folder, edit):
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("edit", "options", "message"),
    [
        (lambda w: w.pop("classifier.bias"), {}, "1 missing, such as classifier.bias"),
        (lambda w: w.update({"encoder.x": torch.zeros(2)}), {}, "1 too many, such as encoder.x"),
        (
            lambda w: w.update({"classifier.bias": torch.zeros(2)}),
            {"ignore_mismatched_sizes": True},
            r"1 of another shape, such as classifier.bias \(2,\) for \(1,\)",
        ),
    ],
)
def test_weights_that_are_not_the_models_do_not_rank(edit, options, message, tmp_path):
    folder = edit_weights(tiny.checkpoint(tmp_path / "model"), edit)
    model, info = CoBertForGroupwiseRanking.from_pretrained(folder, output_loading_info=True, **options)
    assert info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]
    pipe = CoBertTextRankingPipeline(model=model, tokenizer=model.find_tokenizer(), device="cpu")
    for rank in (model.rerank, copy.deepcopy(model).rerank, lambda q, d: pipe({"query": q, "documents": d})):
        with pytest.raises(ValueError, match=f"model: the checkpoint's weights are .*: {message}. Its ranking would"):
            rank(QUERY, texts(3))
    allowed = model.rerank(QUERY, texts(3), allow_fresh_weights=True)
    assert pipe({"query": QUERY, "documents": texts(3)}, allow_fresh_weights=True) == allowed
    # Training goes on from it, and what is saved then is whole.
    loss = model(**tiny.batch()).loss
    loss.backward()
    model.save_pretrained(tmp_path / "saved")
    assert CoBertForGroupwiseRanking.from_pretrained(tmp_path / "saved").rerank(QUERY, texts(3)) == allowed


def test_a_config_with_fewer_layers_does_not_rank(tmp_path):
    folder = tiny.checkpoint(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["encoder_config"]["num_hidden_layers"] = 3
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="32 too many, such as encoder.encoder.layer.3.attention"):
        CoBertForGroupwiseRanking.from_pretrained(folder).rerank(QUERY, texts(3))


def test_pipeline(tokenizer):
    model, documents = make(tokenizer), texts(6)
    pipe = CoBertTextRankingPipeline(model=model, tokenizer=tokenizer, device="cpu")
    question = {"query": QUERY, "documents": documents}
    assert pipe(question) == model.rerank(QUERY, documents)
    assert pipe(question, top_k=2, selector="self") == model.rerank(QUERY, documents, top_k=2, selector="self")
    assert pipe([question, {"query": "car", "documents": []}], top_k=1) == [
        model.rerank(QUERY, documents, top_k=1),
        [],
    ]
    assert pipe([]) == pipe(()) == []
    assert pipe((question, question)) == [model.rerank(QUERY, documents)] * 2
    one = CoBertTextRankingPipeline(model=model, tokenizer=tokenizer, device="cpu", top_k=1)
    assert one(question) == model.rerank(QUERY, documents, top_k=1)
    assert one(question, top_k=None) == model.rerank(QUERY, documents)
    assert pipeline("text-ranking", model=model, tokenizer=tokenizer)(question) == model.rerank(QUERY, documents)
    assert pipe([question] * 3, batch_size=2) == [model.rerank(QUERY, documents)] * 3
    by_two = CoBertTextRankingPipeline(model=model, tokenizer=tokenizer, device="cpu", batch_size=2)
    assert by_two([question] * 3) == [model.rerank(QUERY, documents)] * 3
    with pytest.raises(ValueError, match="dict with 'query' and 'documents'"):
        pipe("bees")
    with pytest.raises(TypeError, match="unknown option topk"):
        pipe(question, topk=1)
