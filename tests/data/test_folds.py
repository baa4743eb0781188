"""Folds: disjoint parts, test parts that partition the queries, the files in use, bad files refused by name."""

import json
import logging
import random
import re

import pytest
import small_collection as small
from hypothesis import given
from hypothesis import strategies as st

from modeling_cobert.collections.collection import open_collection
from modeling_cobert.collections.folds import Fold, check_folds, make_folds, read_folds, rotate_parts, write_folds
from modeling_cobert.collections.options import SplitOptions
from modeling_cobert.collections.splits import plan_splits

IDS = st.lists(
    st.one_of(st.integers(0, 10**6).map(str), st.text("abc019-é", min_size=1, max_size=6)),
    min_size=7,
    max_size=60,
    unique=True,
)
METHOD = st.sampled_from(["random", "round-robin"])

GOOD = {
    "1": {"train": ["c", "d", "e"], "dev": ["b"], "test": ["a"]},
    "2": {"train": ["a", "d", "e"], "dev": ["c"], "test": ["b"]},
}


@given(IDS, METHOD, st.integers(), st.integers(3, 7))
def test_parts_are_disjoint_balanced_and_rotate(query_ids, method, seed, num_folds):
    folds = make_folds(query_ids, method, seed, num_folds)
    assert len(folds) == num_folds
    for fold, following in zip(folds, folds[1:] + folds[:1], strict=True):
        # sorted lists, not sets: a query that came twice would show
        assert sorted(fold.train + fold.validation + fold.test) == sorted(query_ids)
        assert fold.validation == following.test
    assert sorted(query_id for fold in folds for query_id in fold.test) == sorted(query_ids)
    sizes = [len(fold.test) for fold in folds]
    assert max(sizes) - min(sizes) <= 1


@given(IDS, METHOD, st.integers(), st.randoms(use_true_random=False))
def test_folds_depend_on_the_seed_alone_and_not_on_the_order_of_the_ids(query_ids, method, seed, shuffler):
    folds = make_folds(query_ids, method, seed)
    shuffled = list(query_ids)
    shuffler.shuffle(shuffled)
    assert make_folds(shuffled, method, seed) == folds


def test_random_folds_differ_between_seeds_and_stay_the_same_for_one():
    query_ids = [str(number) for number in range(100)]
    assert len({tuple(make_folds(query_ids, seed=seed)) for seed in range(20)}) == 20
    # An independent statement of the deal: ids in natural order, each with its draw, by draw, every fifth.
    random_numbers = random.Random(42)
    drawn = [query_id for _, query_id in sorted((random_numbers.random(), query_id) for query_id in query_ids)]
    assert make_folds(query_ids)[4].test == tuple(sorted(drawn[0::5], key=int))


def test_ids_of_digits_are_dealt_by_their_number():
    query_ids = ["10", "9", "1", "2", "03", "100"]
    assert [fold.test for fold in make_folds(query_ids, "round-robin", num_folds=3)] == [
        ("03", "100"),
        ("2", "10"),
        ("1", "9"),
    ]


def test_a_number_longer_than_python_converts_is_still_an_id():
    longest = "9" * 5000
    folds = make_folds([longest, "1", "2"], "round-robin", num_folds=3)
    assert folds[0].test == (longest,)


def test_three_parts_train_one_validates_one_tests():
    folds = make_folds([str(number) for number in range(250)])
    assert {(len(fold.train), len(fold.validation), len(fold.test)) for fold in folds} == {(150, 50, 50)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], "random"), "no query ids"),
        ((["1", "2", "3", "4"], "random"), "4 queries cannot fill 5 folds"),
        ((["1", "2", "3", "4", "4"], "random"), r"1 query ids occur more than once \(4\)"),
        ((["1", "2", "3", "4", "5 6"], "random"), "'5 6' is empty or contains white space"),
        ((["1", "2", "3", "4", ""], "random"), "'' is empty"),
        ((["1", "2", "3", "4", 5], "random"), "query ids are strings, found 5"),
        ((["1", "2", "3", "4", "5"], "sorted"), "unknown method 'sorted'"),
        ((["1", "2", "3"], "random", 42, 2), "at least 3 folds"),
    ],
)
def test_ids_that_cannot_be_dealt_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_folds(*arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for all examples: a file is written over that of the example before."""
    return tmp_path_factory.mktemp("folds")


@given(query_ids=IDS, method=METHOD)
def test_written_folds_are_read_back(folder, query_ids, method):
    path = folder / "folds.json"
    folds = make_folds(query_ids, method)
    write_folds(path, folds)
    assert read_folds(path) == folds
    assert [entry.name for entry in path.parent.iterdir()] == ["folds.json"]


def test_a_refused_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "folds.json"
    write_folds(path, make_folds("abcde"))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="parts overlap"):
        write_folds(path, [Fold(("a", "b"), ("b",), ("c",))])
    assert path.read_bytes() == before


def test_all_layouts_mean_the_same(tmp_path):
    parts = [["a"], ["b"], ["c"], ["d", "f"], ["e"]]
    folds = rotate_parts(parts)
    assert folds[3] == Fold(train=("a", "b", "c"), validation=("e",), test=("d", "f"))
    layouts = {
        "authors": {f"{k}": {"train": f.train, "dev": f.validation, "test": f.test} for k, f in enumerate(folds, 1)},
        "ours": {
            f"{k}": {"train": f.train, "validation": f.validation, "test": f.test} for k, f in enumerate(folds, 1)
        },
        "cedr": {
            f"s{k}": {"train_qids": f.train, "predict": {"dev": f.validation, "test": f.test}}
            for k, f in enumerate(folds, 1)
        },
        "anserini": parts,
    }
    for name, content in layouts.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content))
        assert read_folds(path) == folds, name


def test_folds_come_in_the_order_of_their_numbers(tmp_path):
    path = tmp_path / "folds.json"
    folds = make_folds([str(number) for number in range(24)], num_folds=12)
    write_folds(path, folds)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(dict(sorted(content.items()))))  # "1", "10", "11", "12", "2", ..
    assert read_folds(path) == folds


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", ":1: not JSON"),
        ('{\n "1": {"train": [,\n', ":2: not JSON"),
        ("{}", "found {}"),
        ("[]", r"found \[\]"),
        ("3", "found 3"),
        ('{"1": ["a"]}', r"fold '1': expected an object with train, dev and test, found \[\"a\"\]"),
        ('{"1": {"train": ["a"], "test": ["b"]}}', "fold '1': expected the keys .*, found test, train"),
        ('{"1": {"train_qids": ["a"], "predict": {"test": ["b"]}}}', "found test, train"),
        ('{"1": {"train_qids": ["a"], "predict": ["b"]}}', "found predict, train_qids"),
        ('{"1": {"train": "abc", "dev": ["d"], "test": ["e"]}}', 'train: expected a list of query ids, found "abc"'),
        ('{"1": {"train": [], "dev": ["d"], "test": ["e"]}}', "fold '1': train: no query ids"),
        ('{"1": {"train": [301], "dev": ["d"], "test": ["e"]}}', "strings, found 301"),
        ('{"1": {"train": ["a", "a"], "dev": ["d"], "test": ["e"]}}', "train: 1 query ids occur more than once"),
        ('{"1": {"train": ["a"], "dev": ["d"], "test": ["a"]}}', r"fold 1: parts overlap: .* \(a\)"),
        ('{"1": {"train": ["a"], "dev": ["d"], "test": ["e"]}, "1": {}}', "the key '1' occurs more than once"),
        (json.dumps({"1": GOOD["1"], "2": GOOD["1"]}), r"test parts of different folds overlap: .* \(a\)"),
        ('[["a"], ["b"]]', "at least 3 parts, found 2"),
        ('[["a"], ["b"], "c"]', 'part 3: expected a list of query ids, found "c"'),
        ('[["a"], ["b"], ["a"]]', r"parts overlap: .* \(a\)"),
        ("[" * 100_000, "not a file of folds|not JSON"),
        ("[[" + "9" * 5000 + "]]", "."),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_the_cause(tmp_path, content, message):
    path = tmp_path / "folds.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}.*{message}"):
        read_folds(path)


def test_a_file_that_is_not_text_is_refused_with_its_name(tmp_path):
    path = tmp_path / "folds.json"
    path.write_bytes(b"\xff\x00\x81")
    with pytest.raises(ValueError, match=re.escape(str(path))):
        read_folds(path)
    with pytest.raises(FileNotFoundError, match="absent.json"):
        read_folds(tmp_path / "absent.json")


def test_check_counts_what_folds_and_collection_do_not_share(caplog):
    folds = make_folds("abcde", "round-robin")
    assert check_folds(folds, "abcde").untested == check_folds(folds, "abcde").unknown == ()
    with pytest.raises(
        ValueError, match=r"my.json: 2 of 6 queries are tested in no fold \(x, y\); 1 queries .* \(e\)"
    ):
        check_folds(folds, "abcdxy", source="my.json")
    with caplog.at_level(logging.WARNING):
        report = check_folds(folds, "abcdxy", skip_missing=True, source="my.json")
    assert (report.untested, report.unknown) == (("x", "y"), ("e",))
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "my.json: 2 of 6 queries" in caplog.text and "my.json: 1 queries of the folds" in caplog.text


@pytest.mark.parametrize(
    "folds",
    [
        [],
        [Fold(("a", "b"), ("c",), ("a",))],
        [Fold(("a",), ("b",), ("b",))],
        [Fold(("a",), ("b",), ("c",)), Fold(("a",), ("b",), ("c",))],
        [Fold(("a",), (), ("c",))],
    ],
)
def test_overlap_is_an_error_even_when_missing_queries_are_skipped(folds):
    with pytest.raises(ValueError, match="my.json"):
        check_folds(folds, "abc", skip_missing=True, source="my.json")


# The real files; the counts were taken from their JSON directly, without this package.


@pytest.mark.parametrize(
    ("name", "tested", "named"),
    [
        ("cacm/folds.json", 52, 52),
        ("cranfield/folds.json", 225, 225),
        ("time/folds.json", 83, 83),
        ("vaswani/folds.json", 93, 93),
        ("trec-gov2/folds.json", 150, 150),
        ("trec-robust04/folds.json", 250, 250),
        ("trec-robust04/folds.huston14-title.json", 250, 250),
        ("trec-robust04/folds.anserini-paper2.json", 250, 250),
        # CEDR trains on topic 672, which has no relevant document, and never tests it
        ("trec-robust04/folds.cedr.json", 249, 250),
    ],
)
def test_the_files_in_use_parse(shared_data, name, tested, named):
    folds = read_folds(shared_data / name)
    assert len(folds) == 5
    assert len({query_id for fold in folds for query_id in fold.test}) == tested
    assert len({query_id for fold in folds for query_id in fold.train + fold.validation + fold.test}) == named


def test_every_file_of_folds_is_in_the_list_above(shared_data):
    assert len(list(shared_data.glob("*/folds*.json"))) == 9


@pytest.mark.parametrize("name", ["trec-robust04", "trec-gov2"])
def test_the_authors_folds_rotate_as_ours(shared_data, name):
    folds = read_folds(shared_data / name / "folds.json")
    ours = rotate_parts([fold.test for fold in folds])
    for theirs, mine in zip(folds, ours, strict=True):
        for part in ("train", "validation", "test"):
            assert set(getattr(theirs, part)) == set(getattr(mine, part))


def test_round_robin_over_gov2_gives_the_authors_folds(shared_data):
    topics = (shared_data / "trec-gov2" / "topics.tsv").read_text(encoding="utf-8").splitlines()
    query_ids = [line.split("\t")[0] for line in topics]
    assert make_folds(query_ids, method="round-robin") == read_folds(shared_data / "trec-gov2" / "folds.json")


@pytest.fixture(scope="module")
def collection_folder(tmp_path_factory):
    return small.write_collection(tmp_path_factory.mktemp("folds") / "collection")


def test_a_plan_deals_all_queries_of_the_collection(collection_folder, caplog):
    """Nobody's fold depends on what a first stage found."""
    collection, queries = open_collection(collection_folder), list(small.QUERIES)
    for options in (SplitOptions("round-robin"), SplitOptions("random", fold_seed=7)):
        plan = plan_splits(collection, queries, options)
        assert plan.folds == plan.turns == make_folds(queries, options.folds, options.fold_seed)
        assert list(plan.splits) == [f"fold_{number}" for number in range(1, 6)]
        assert [set(ids) for ids in plan.splits.values()] == [set(fold.test) for fold in plan.folds]
        gone = next(fold.test[0] for fold in plan.folds if len(fold.test) > 1)
        less = plan_splits(collection, [query_id for query_id in queries if query_id != gone], options)
        assert less.split_of == {q: split for q, split in plan.split_of.items() if q != gone}
        assert less.skipped == {"queries_in_no_fold": 0, "fold_queries_unknown": 1}
    assert plan_splits(collection, queries, SplitOptions("random", 1)).splits != plan.splits
    caplog.clear()
    assert plan_splits(collection, queries).splits == plan_splits(collection, queries, SplitOptions("random")).splits
    assert "has no folds of its own: its queries are dealt at random, seed 42" in caplog.text


def test_a_plan_without_folds(collection_folder):
    plan = plan_splits(open_collection(collection_folder), ["q4", "q1"], SplitOptions("none"))
    assert (plan.splits, plan.folds, plan.split_of) == ({"test": ("q4", "q1")}, None, {"q4": "test", "q1": "test"})
    assert plan.turns == [Fold((), (), ("q4", "q1"))]


def test_a_plan_without_judgments(collection_folder, tmp_path):
    """All queries are there to train on, unless the collection has folds or some were asked for."""
    collection, queries = open_collection(collection_folder), list(small.QUERIES)
    plan = plan_splits(collection, queries[::-1], judged=False)
    assert (plan.splits, plan.folds) == ({"train": tuple(queries[::-1])}, None)
    for folds in ("random", "round-robin", "none"):
        asked = SplitOptions(folds)
        assert plan_splits(collection, queries, asked, judged=False) == plan_splits(collection, queries, asked)
    own = small.write_collection(tmp_path / "own")
    write_folds(own / "folds.json", rotate_parts([("q1", "3"), ("q-ü", "q4"), ("q5", "q6", "q7")]))
    assert list(plan_splits(open_collection(own), queries, judged=False).splits) == ["fold_1", "fold_2", "fold_3"]


def test_what_a_plan_does_with_queries_that_do_not_fit_is_the_collections_word_or_the_callers(
    collection_folder, tmp_path
):
    strict, skipping = (open_collection(collection_folder, skip_missing=skip) for skip in (False, True))
    write_folds(tmp_path / "folds.json", rotate_parts([("q1", "x"), ("q-ü", "q4"), ("q5", "q6", "q7")]))
    options, queries = SplitOptions(str(tmp_path / "folds.json")), list(small.QUERIES)
    plans = [plan_splits(skipping, queries, options), plan_splits(strict, queries, options, skip_missing=True)]
    for plan in plans:
        assert list(plan.splits.values()) == [("q1",), ("q-ü", "q4"), ("q5", "q6", "q7")]
        assert plan.skipped == {"queries_in_no_fold": 1, "fold_queries_unknown": 1}
        assert plan.source == options.folds
    for collection, skip in ((strict, None), (skipping, False)):
        with pytest.raises(ValueError, match=r"folds.json: 1 of 7 .*\(3\).*1 queries of the folds .*\(x\)"):
            plan_splits(collection, queries, options, skip)
    with pytest.raises(ValueError, match="no query is left to test on in fold 1"):
        plan_splits(skipping, [query_id for query_id in queries if query_id != "q1"], options)
