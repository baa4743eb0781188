"""TREC files: strictness, round trips, and the order of documents against trec_eval itself."""

import gzip
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modeling_cobert.collections.trec import read_qrels, read_run, trec_order, write_qrels, write_run

ids = st.text(st.characters(exclude_categories=["Cs", "Z", "Cc"]), min_size=1, max_size=4).filter(
    lambda text: not text.startswith("\ufeff")
)
scores = st.one_of(
    st.floats(-1e30, 1e30),
    st.sampled_from([0.0, -0.0, 1.0, 1.0 + 1e-12, 1.0 + 1.2e-7, 16777216.0, 16777217.0, 1e-46]),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for all examples: a file is written over that of the example before."""
    return tmp_path_factory.mktemp("trec")


def trec_eval_order(run: dict[str, float]) -> list[str]:
    """Where trec_eval ranks each document, read off the reciprocal rank when it alone is relevant."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    rank = {}
    for doc_id in run:
        evaluator = pytrec_eval.RelevanceEvaluator({"q": {doc_id: 1}}, {"recip_rank"})
        rank[doc_id] = round(1 / evaluator.evaluate({"q": run})["q"]["recip_rank"])
    return sorted(rank, key=rank.get)


@settings(deadline=None)
@given(st.dictionaries(ids, scores, min_size=1, max_size=12))
def test_order_is_trec_evals(run):
    assert trec_order(run) == trec_eval_order(run)


def test_order_by_hand():
    assert trec_order({"d9": 1, "d10": 1, "a": 2, "é": 1, "z": 1}) == ["a", "é", "z", "d9", "d10"]
    # equal in single precision, so the greater id comes first although its score is smaller as a double
    assert trec_order({"a": 1.0 + 1e-12, "b": 1.0}) == ["b", "a"]
    assert trec_order({}) == []


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, 1e39])
def test_order_refuses_what_has_no_place(score):
    with pytest.raises(ValueError, match="'d2'.*finite"):
        trec_order({"d1": 1.0, "d2": score})


@settings(deadline=None)
@given(run=st.dictionaries(ids, st.dictionaries(ids, scores, min_size=1, max_size=6), min_size=1, max_size=4))
@pytest.mark.parametrize("name", ["run.trec", "run.trec.gz"])
def test_run_round_trip(folder, name, run):
    path = folder / name
    write_run(path, run, tag="test")
    read = read_run(path)
    assert read == run
    assert list(read) == list(run)
    assert all(list(read[query_id]) == trec_order(run[query_id]) for query_id in run)
    first = path.read_bytes()
    write_run(path, read, tag="test")
    assert path.read_bytes() == first


@settings(deadline=None)
@given(qrels=st.dictionaries(ids, st.dictionaries(ids, st.integers(-2, 4), min_size=1), min_size=1, max_size=4))
def test_qrels_round_trip(folder, qrels):
    path = folder / "qrels.txt"
    write_qrels(path, qrels)
    assert read_qrels(path) == qrels


def test_run_is_sorted_whatever_the_file_says(tmp_path):
    path = tmp_path / "run"
    path.write_text("2 Q0 b 1 1.5 x\n1 Q0 a 1 3e-1 x\n2\tQ0\ta  2 +2. x\r\n2 Q0 c 9 .5 x")
    run = read_run(path)
    assert [(query, list(docs.items())) for query, docs in run.items()] == [
        ("2", [("a", 2.0), ("b", 1.5), ("c", 0.5)]),
        ("1", [("a", 0.3)]),
    ]


GOOD = "1 Q0 d1 1 2.5 bm25\n"


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b"", 1, "empty"),
        (GOOD.encode() + b"1 Q0 d2 2 2.0\n", 2, "expected 6 columns .* found 5"),
        (GOOD.encode() + b"1 Q0 d 2 2 2.0 bm25\n", 2, "found 7"),
        (GOOD.encode() + b"\n" + GOOD.encode(), 2, "blank"),
        (GOOD.encode() + b"  \t\n", 2, "blank"),
        (GOOD.encode() + b"1 Q0 d1 2 1.0 bm25\n", 2, "'d1' appears twice for query '1'"),
        (b"1 Q0 d\xff 1 2.5 bm25\n", 1, "not UTF-8"),
        (b"\x1f\x8b\x08\x00", 1, "not UTF-8"),
    ]
    + [
        (f"{GOOD}1 Q0 d2 2 {score} bm25\n".encode(), 2, "finite")
        for score in ("nan", "inf", "-Infinity", "1_0", "abc", "1e39", "0x10", "1,5", "٣", "1e", ".")
    ],
)
def test_bad_runs(tmp_path, content, line, reason):
    path = tmp_path / "run.trec"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"run.trec:{line}: .*{reason}"):
        read_run(path)


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("", 1, "empty"),
        ("1 0 d1 1\n1 0 d1 0\n", 2, "'d1' is judged twice"),
        ("1 0 d1\n", 1, "expected 4 columns"),
        ("1 0 d1 1.0\n", 1, "integer"),
        ("1 0 d1 1_0\n", 1, "integer"),
        ("1 0 d1 12345678901\n", 1, "integer"),
        ("1 0 d1 1\n\n", 2, "blank"),
    ],
)
def test_bad_qrels(tmp_path, content, line, reason):
    path = tmp_path / "qrels"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"qrels:{line}: .*{reason}"):
        read_qrels(path)


def test_damaged_gzip(tmp_path):
    path = tmp_path / "run.gz"
    path.write_bytes(gzip.compress("".join(f"1 Q0 d{i} 1 {i} x\n" for i in range(99)).encode())[:-9])
    with pytest.raises(ValueError, match="run.gz:.*damaged gzip"):
        read_run(path)
    path.write_bytes(b"plain")
    with pytest.raises(ValueError, match="run.gz:1: damaged gzip"):
        read_run(path)


@pytest.mark.parametrize(
    ("run", "tag", "reason"),
    [
        ({}, "x", "empty"),
        ({"1": {}}, "x", "no documents"),
        ({"1": {"a b": 1.0}}, "x", "white space"),
        ({"1": {"": 1.0}}, "x", "non-empty"),
        ({"1 ": {"a": 1.0}}, "x", "white space"),
        ({"1": {"a": 1.0}}, "my tag", "white space"),
        ({"1": {"a": math.nan}}, "x", "finite"),
        ({"\ufeff1": {"a": 1.0}}, "x", "byte order mark"),
    ],
)
def test_what_cannot_be_written_leaves_the_old_file(tmp_path, run, tag, reason):
    path = tmp_path / "run.trec"
    path.write_text(GOOD)
    with pytest.raises(ValueError, match=reason):
        write_run(path, run, tag)
    assert path.read_text() == GOOD
    assert list(tmp_path.iterdir()) == [path]


def test_qrels_that_cannot_be_written(tmp_path):
    for qrels in ({}, {"1": {}}, {"1": {"a": 0.5}}, {"1": {"a\tb": 1}}):
        with pytest.raises(ValueError):
            write_qrels(tmp_path / "qrels", qrels)
    assert not list(tmp_path.iterdir())
