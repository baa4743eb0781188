"""First stages: scores by hand, against bm25s and PISA, and properties of the index and of the expansions."""

import math
import re
from collections import Counter

import numpy as np
import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

from modeling_cobert.collections.collection import Document, open_collection
from modeling_cobert.collections.trec import trec_order
from modeling_cobert.retrieval import index as index_module
from modeling_cobert.retrieval.analysis import Analyzer, load_stopwords
from modeling_cobert.retrieval.expansion import rm3, rocchio_kl
from modeling_cobert.retrieval.first_stage import FirstStage, check_queries, query_terms, rank_all
from modeling_cobert.retrieval.index import build_index
from modeling_cobert.retrieval.options import RetrievalOptions
from modeling_cobert.retrieval.retrieve import retrieve

PLAIN = {"stemmer": "none", "stopwords": "none"}


def make_index(texts, analyzer=None):
    documents = [Document(f"d{number}", "", text) for number, text in enumerate(texts, start=1)]
    return build_index(documents, analyzer or Analyzer("terrier", **PLAIN))


# --- analysis


def test_terrier_analysis():
    analyzer = Analyzer("terrier")
    assert analyzer("The wings' STABILITY, 1234 and 12345; x1y2z3w4v5") == ["wing", "stabil", "1234"]
    # longer than 20 characters, or more than three equal ones in a row
    assert analyzer("a" * 3 + " " + "b" * 4 + " abcdefghijklmnopqrst abcdefghijklmnopqrstu") == [
        "aaa",
        "abcdefghijklmnopqrst",
    ]
    assert analyzer("naïve 日本") == ["na", "ve"]
    assert analyzer("") == analyzer("...") == analyzer("the of and") == []


def test_anserini_analysis():
    analyzer = Analyzer("anserini")
    assert analyzer("The U.K. wing's stability isn't 1,000.5 times (better)!") == [
        "u.k", "wing", "stabil", "isn't", "1,000.5", "time", "better",
    ]  # fmt: skip
    assert analyzer("O’Neil’s naïve 日本 cafe\u0301") == ["o’neil", "naïv", "日", "本", "cafe\u0301"]
    assert [len(term) for term in Analyzer("anserini", **PLAIN)("x" * 300)] == [255, 45]


# One of each kind that Unicode's rules for words tell apart, and anything else.
SPACES, MARKS = " \r\x0b\x1c\x85\xa0\u2028\u202f", "\u0301\u200d\xad\ufeff\U000e0100"
LETTERS = st.sampled_from("a0'\".,:_-ツאあก中가İΣ\U0001f1e6🐝’" + SPACES + MARKS)


@given(st.text(st.one_of(LETTERS, st.characters()), max_size=60))
@example("\r\U000e01000")
@example("\ufeffword")
@example("1\u202f000")
def test_chunks_change_nothing(text):
    # The standard tokeniser looks at chunks; on the whole text it must find the same words. Marks after white space
    # hang on nothing and are dropped; and every white space separates.
    from modeling_cobert.retrieval.analysis import _standard_tokens

    whole = text.lower().replace("\u202f", " ")
    whole = regex.sub(r"(^|\s)[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]+", r"\1", whole)
    assert Analyzer("anserini", **PLAIN)(text) == _standard_tokens(whole)


def test_a_word_after_a_byte_order_mark_or_a_soft_hyphen_is_a_word():
    assert Analyzer("anserini", **PLAIN)("\ufeffword \xadhyphen \u0301accent \u0301") == ["word", "hyphen", "accent"]


def test_stop_lists(tmp_path):
    assert len(load_stopwords("terrier")) == 733 and len(load_stopwords("lucene")) == 33
    assert load_stopwords("none") == frozenset()
    (tmp_path / "words").write_text("Foo\nbar\n")
    assert Analyzer("terrier", "none", tmp_path / "words")("foo the bar") == ["the"]
    with pytest.raises(ValueError, match="neither a file nor one of"):
        load_stopwords("absent")
    analyzer = Analyzer("terrier", index_stopwords=True)
    assert analyzer("the wing") == ["the", "wing"] and analyzer.query("the wing") == ["wing"]


@pytest.mark.parametrize(("name", "stemmer"), [("other", "porter"), ("terrier", "lovins")])
def test_unknown_analysis(name, stemmer):
    with pytest.raises(ValueError, match="must be one of"):
        Analyzer(name, stemmer)


# --- index


@given(
    texts=st.lists(st.text("ab.' é\n", max_size=12), min_size=1, max_size=8),
    name=st.sampled_from(["terrier", "anserini"]),
    batch=st.sampled_from([1, 5, 1000]),
)
def test_index_counts_what_a_counter_counts(texts, name, batch):
    analyzer = Analyzer(name, "none", "lucene")
    before = index_module._BATCH_CHARACTERS
    index_module._BATCH_CHARACTERS = batch
    try:
        index = make_index(texts, analyzer)
    finally:
        index_module._BATCH_CHARACTERS = before
    counters = [Counter(analyzer(text)) for text in texts]
    for row, counter in enumerate(counters):
        terms, counts = index.document(row)
        assert dict(zip((index.vocabulary[term] for term in terms), counts.tolist(), strict=True)) == counter
    assert index.doc_lengths.tolist() == [counter.total() for counter in counters]
    for term, column in index.terms.items():
        assert index.doc_frequencies[column] == sum(term in counter for counter in counters)
        assert index.collection_frequencies[column] == sum(counter[term] for counter in counters)
        rows, counts = index.postings(column)
        assert {int(row): int(count) for row, count in zip(rows, counts, strict=True)} == {
            row: counter[term] for row, counter in enumerate(counters) if term in counter
        }


def test_title_is_indexed_and_nothing_to_index_is_an_error():
    index = build_index([Document("d1", "Title", "text")], Analyzer("terrier", **PLAIN))
    assert set(index.terms) == {"title", "text"}
    with pytest.raises(ValueError, match="no documents"):
        build_index([], Analyzer("terrier", **PLAIN))


# --- scores by hand

TEXTS = ["a b", "a a c c", "c d d", "e"]  # 10 terms in 4 documents, 2.5 on average


def test_bm25_by_hand():
    ranking = FirstStage(RetrievalOptions("bm25", k1=1.0, b=0.5)).rank(make_index(TEXTS), "a c c")
    idf = math.log(1 + 2.5 / 2.5)  # a and c are in 2 of 4 documents each
    norm = {"d1": 0.5 + 0.5 * 2 / 2.5, "d2": 0.5 + 0.5 * 4 / 2.5, "d3": 0.5 + 0.5 * 3 / 2.5}
    expected = {
        "d2": idf * 2 / (2 + norm["d2"]) * 3,
        "d3": idf * 1 / (1 + norm["d3"]) * 2,
        "d1": idf * 1 / (1 + norm["d1"]),
    }
    assert list(ranking) == list(expected)
    assert ranking == pytest.approx(expected, rel=1e-6)


def test_bm25_robertson_and_k3():
    ranking = FirstStage(RetrievalOptions("bm25", k1=1.0, b=0.0, k3=8.0, idf="robertson")).rank(
        make_index(TEXTS), "d d"
    )
    assert ranking == pytest.approx({"d3": math.log(3.5 / 1.5) * (2 / 3) * (9 * 2 / 10)}, rel=1e-6)


def test_dph_by_hand():
    ranking = FirstStage(RetrievalOptions("dph")).rank(make_index(TEXTS), "a")

    def dph(frequency, length, collection_frequency=3):
        share = frequency / length
        gain = frequency * math.log2(frequency * 2.5 / length * 4 / collection_frequency)
        return (1 - share) ** 2 / (frequency + 1) * (gain + 0.5 * math.log2(2 * math.pi * frequency * (1 - share)))

    assert ranking == pytest.approx({"d1": dph(1, 2), "d2": dph(2, 4)}, rel=1e-6)


def test_dph_of_a_document_with_one_term_only_is_finite():
    ranking = FirstStage(RetrievalOptions("dph")).rank(make_index(["e", "e e e", "a e"]), "e")
    assert set(ranking) == {"d1", "d2", "d3"} and all(map(math.isfinite, ranking.values()))


# --- order


@given(
    texts=st.lists(st.text("abc ", max_size=8), min_size=1, max_size=12),
    query=st.text("abc ", max_size=6),
    k=st.integers(1, 14),
    model=st.sampled_from(["bm25", "bm25+rm3", "dph", "dph+kl"]),
)
@example(texts=["aaaa"], query="aaaa", k=1, model="bm25")  # no word to Terrier's analysis
def test_a_shorter_ranking_is_the_head_of_the_longer_one(texts, query, k, model):
    index = make_index(texts)
    stage = FirstStage(RetrievalOptions(model))
    everything = stage.rank(index, query, k=len(texts))
    ranking = stage.rank(index, query, k)
    assert list(ranking.items()) == list(everything.items())[:k]
    assert list(everything) == trec_order(everything)
    if "+" not in model:  # exactly the documents that hold a term of the query

        def words(text):  # Terrier drops those with more than three equal letters in a row
            return {word for word in text.split() if not re.search(r"(.)\1{3}", word)}

        found = {f"d{i}" for i, text in enumerate(texts, start=1) if words(query) & words(text)}
        assert set(everything) == found


@given(st.lists(st.text("abcd ", min_size=1, max_size=10), min_size=2, max_size=8), st.randoms())
def test_order_of_the_collection_does_not_matter(texts, random):
    documents = [Document(f"d{number}", "", text) for number, text in enumerate(texts)]
    shuffled = random.sample(documents, len(documents))
    for model in ("bm25+rm3", "dph+kl"):
        first, second = (
            FirstStage(RetrievalOptions(model)).rank(build_index(part, Analyzer("terrier", **PLAIN)), "a b c")
            for part in (documents, shuffled)
        )
        assert first == pytest.approx(second, rel=1e-5, abs=1e-6)


# --- expansion by hand


def test_rm3_by_hand():
    # "a" is in 2 of 20 documents, which is not more than a tenth; "z" is in all of them, and "x" is too short a word
    index = make_index(["aa aa bb zz x", "aa cc zz x"] + ["zz x"] * 18)
    query = query_terms(index, "aa")
    expanded = rm3(index, query, rows=[0, 1], scores=[3.0, 1.0], terms=2, original_weight=0.4)
    # reduced: (aa 2/3, bb 1/3) * 3 and (aa 1/2, cc 1/2) * 1; sum: aa 2.5, bb 1, cc 0.5; two stay
    assert {index.vocabulary[term]: weight for term, weight in expanded.items()} == pytest.approx(
        {"aa": 0.4 + 0.6 * 2.5 / 3.5, "bb": 0.6 * 1 / 3.5}
    )


def test_rm3_without_candidates_keeps_the_query():
    index = make_index(["a b", "a c"])
    query = query_terms(index, "a b b")
    assert rm3(index, query, rows=[0], scores=[1.0]) == query


def test_kl_by_hand():
    index = make_index(["aa aa bb", "aa bb cc"] + ["dd ee ff gg hh ii"] * 3)  # 24 terms
    query = query_terms(index, "aa aa bb")
    expanded = rocchio_kl(index, query, rows=[0, 1], terms=2)
    weight = {"aa": 3 / 6 * math.log2((3 / 6) / (3 / 24)), "bb": 2 / 6 * math.log2((2 / 6) / (2 / 24))}
    most = 3 / 6 * math.log2(24 / 6)
    # cc is in one feedback document only, and not in the query
    assert {index.vocabulary[term]: value for term, value in expanded.items()} == pytest.approx(
        {"aa": 1 + weight["aa"] / most, "bb": 0.5 + weight["bb"] / most}
    )
    expanded = rocchio_kl(index, query, rows=[0, 1], terms=1, beta=0.4)
    assert expanded == pytest.approx({index.terms["aa"]: 1.4, index.terms["bb"]: 0.5})
    # a single feedback document cannot be asked for terms in two; aa and bb are in it with 2/3 and 1/3
    assert set(rocchio_kl(index, query, rows=[4], terms=3)) > set(query)


def test_kl_of_the_whole_collection_adds_nothing():
    index = make_index(["aa bb", "aa"])
    query = query_terms(index, "aa")
    assert rocchio_kl(index, query, rows=[0, 1]) == query


# --- bad input


def test_bad_queries(caplog):
    index = make_index(["wing", "flow"], Analyzer("terrier"))
    queries = {"1": "wings", "2": "", "3": "the of", "4": "unheard"}
    with pytest.raises(ValueError, match="'2'.*has no terms.*1 more"):
        rank_all(FirstStage(RetrievalOptions("dph")), index, queries)
    with pytest.raises(ValueError, match="'4' .*'unheard'.*matches no document"):
        rank_all(FirstStage(RetrievalOptions("dph")), index, {"1": "wings", "4": "unheard"})
    assert list(rank_all(FirstStage(RetrievalOptions("dph")), index, queries, skip_missing=True)) == ["1"]
    assert "skipped: query 2, 3 has no terms (stop words do not count) (2 queries)" in caplog.text
    assert "skipped: query 4 matches no document (1 queries)" in caplog.text
    assert check_queries({"1": "wings"}, index.analyzer.query) == {"1": "wings"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_stage": "tfidf"}, {"idf": "x"}, {"k1": -1}, {"b": 1.5}, {"k3": -1}, {"feedback_docs": 0},
        {"feedback_terms": 0}, {"original_weight": 2}, {"beta": -1}, {"k1": math.nan},
    ],
)  # fmt: skip
def test_bad_parameters(wrong):
    with pytest.raises(ValueError):
        RetrievalOptions(**wrong)


def test_empty_documents_are_never_found_and_never_in_the_way():
    index = make_index(["", "a", "..."])
    assert list(FirstStage(RetrievalOptions("bm25")).rank(index, "a")) == ["d2"]
    assert FirstStage(RetrievalOptions("dph+kl")).rank(make_index([""]), "a") == {}
    with pytest.raises(ValueError, match="k must be"):
        FirstStage(RetrievalOptions("bm25")).rank(index, "a", k=0)


# --- independent oracles


def test_bm25_against_bm25s(shared_data):
    bm25s = pytest.importorskip("bm25s")
    collection = open_collection(shared_data / "cranfield")
    analyzer = Analyzer("anserini")
    index = build_index(collection.documents(), analyzer)
    retriever = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    retriever.index([analyzer(document.full_text) for document in collection.documents()], show_progress=False)
    for text in list(collection.queries().values())[:40]:
        theirs = retriever.get_scores(sorted(set(analyzer(text)) & set(index.terms)))
        ours, _ = FirstStage(RetrievalOptions("bm25")).score(index, dict.fromkeys(query_terms(index, text), 1.0))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_bm25_and_dph_against_pisa(shared_data, tmp_path):
    pytest.importorskip("pyterrier_pisa")
    import pandas
    from pyterrier_pisa import PisaIndex

    collection = open_collection(shared_data / "vaswani")
    analyzer = Analyzer("terrier")
    index = build_index(collection.documents(), analyzer)
    pisa = PisaIndex(str(tmp_path / "pisa"), text_field="toks", stemmer="none", stops="none")
    pisa.toks_indexer("toks", scale=1.0).index(
        {"docno": document.doc_id, "toks": dict(Counter(analyzer(document.full_text)))}
        for document in collection.documents()
    )
    # each term once: PISA does not count repetitions in a query
    queries = {
        query_id: sorted(set(analyzer(text)) & set(index.terms)) for query_id, text in collection.queries().items()
    }
    topics = pandas.DataFrame([{"qid": query_id, "query": " ".join(terms)} for query_id, terms in queries.items()])
    # in PISA an idf below zero counts as zero, so terms in over half of the documents would differ; there are none
    assert index.doc_frequencies.max() < len(index.doc_ids) / 2
    for stage, engine in (
        (
            FirstStage(RetrievalOptions("bm25", k1=1.2, b=0.75, idf="robertson")),
            pisa.bm25(k1=1.2, b=0.75, num_results=100),
        ),
        (FirstStage(RetrievalOptions("dph")), pisa.dph(num_results=100)),
    ):
        result = engine(topics)
        factor = 2.2 if stage.options.first_stage == "bm25" else 1.0  # PISA keeps BM25's constant k1 + 1
        for query_id, group in result.groupby("qid"):
            scores, _ = stage.score(index, dict.fromkeys((index.terms[term] for term in queries[query_id]), 1.0))
            ours = dict(zip(index.doc_ids, (factor * scores).tolist(), strict=True))
            # The same scores in the same order; where two differ only by rounding, either may come first.
            theirs = dict(zip(group.docno, group.score, strict=True))
            assert len(theirs) == 100
            assert [ours[doc_id] for doc_id in theirs] == pytest.approx(list(theirs.values()), rel=1e-4)
            best = sorted(ours.values(), reverse=True)[:100]
            assert best == pytest.approx(sorted(theirs.values(), reverse=True), rel=1e-4)


@pytest.mark.parametrize(
    ("first_stage", "options", "published"),
    [
        # PyTerrier's notebooks: BM25 with Terrier's defaults
        ("bm25", {"k1": 1.2, "b": 0.75, "k3": 8, "idf": "robertson"}, 0.2965),
        # PISA: Porter 2; stop words (and what stems alike) dropped from queries only; no term counted twice
        ("bm25", {"k1": 1.2, "b": 0.75, "idf": "robertson", "stemmer": "english", "index_stopwords": True}, 0.2948),
        ("dph", {"stemmer": "english", "index_stopwords": True}, 0.2918),
    ],
)
def test_published_numbers_on_vaswani(shared_data, first_stage, options, published):
    ir_measures = pytest.importorskip("ir_measures")
    collection = open_collection(shared_data / "vaswani")
    run = retrieve(collection, RetrievalOptions(first_stage, analyzer="terrier", **options))
    found = ir_measures.calc_aggregate([ir_measures.AP @ 1000], collection.qrels(), run)[ir_measures.AP @ 1000]
    assert found == pytest.approx(published, abs=0.005)


@pytest.mark.parametrize("name", ["vaswani", "cranfield"])
@pytest.mark.parametrize(("plain", "expanded"), [("bm25", "bm25+rm3"), ("dph", "dph+kl")])
def test_expansion_helps(shared_data, name, plain, expanded):
    ir_measures = pytest.importorskip("ir_measures")
    collection = open_collection(shared_data / name)
    index = build_index(collection.documents(), RetrievalOptions(plain).make_analyzer())
    measure = ir_measures.AP @ 1000
    before, after = (
        ir_measures.calc_aggregate(
            [measure], collection.qrels(), rank_all(FirstStage(RetrievalOptions(model)), index, collection.queries())
        )[measure]
        for model in (plain, expanded)
    )
    assert after > before + 0.005
