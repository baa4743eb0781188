"""The embedded collection: whole on this Python, consistent in its judgments, honest about what is missing."""

import json
import logging
import re
from collections import Counter
from importlib import resources
from pydoc_data.topics import topics as TOPICS

import pytest

from modeling_cobert.collections.collection import open_collection
from modeling_cobert.collections.demo import demo_collection
from modeling_cobert.collections.folds import check_folds, make_folds

STORED = json.loads(resources.files("modeling_cobert.collections").joinpath("demo_collection.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def demo():
    return demo_collection()


def only(*keys):
    return {key: TOPICS[key] for key in keys}


def test_every_judged_topic_is_in_this_python(caplog):
    demo_collection()
    assert caplog.text == ""
    assert {key for query in STORED["queries"] for key in query["judgments"]} <= set(TOPICS)


def test_queries_are_fifty_different_ones(demo):
    queries = demo.queries()
    assert len(queries) == len(STORED["queries"]) == 50
    assert len({text.lower() for text in queries.values()}) == 50
    assert all(text.strip() == text and 2 <= len(text.split()) <= 15 for text in queries.values())
    assert not any(re.search(r"\s", query_id) for query_id in queries)


def test_every_query_is_judged_with_grades_of_0_to_2_and_has_an_answer(demo):
    qrels = demo.qrels()
    assert list(qrels) == list(demo.queries())
    for query_id, grades in qrels.items():
        assert set(grades.values()) <= {0, 1, 2}, query_id
        assert 2 in grades.values(), query_id
        assert 0 in grades.values(), query_id
    counts = Counter(grade for grades in qrels.values() for grade in grades.values())
    # No stored judgment was lost and none appeared, except that else and if are one text.
    stored = Counter(grade for query in STORED["queries"] for key, grade in query["judgments"].items() if key != "if")
    assert counts == stored
    assert sum(sum(grade > 0 for grade in grades.values()) > 1 for grades in qrels.values()) >= 30


def test_judged_documents_are_documents(demo):
    ids = {document.doc_id for document in demo.documents()}
    assert {doc_id for grades in demo.qrels().values() for doc_id in grades} <= ids


def test_documents_are_the_distinct_topics_in_order(demo):
    documents = list(demo.documents())
    ids = [document.doc_id for document in documents]
    assert ids == sorted(ids)
    assert len(ids) == len(set(TOPICS.values()))
    assert not any(re.search(r"\s", doc_id) for doc_id in ids)
    assert documents == list(demo_collection(dict(reversed(TOPICS.items()))).documents())
    assert demo.qrels() == demo_collection(dict(reversed(TOPICS.items()))).qrels()


def test_many_documents_are_longer_than_several_windows(demo):
    lengths = sorted(len(document.text.split()) for document in demo.documents())
    assert sum(length > 3 * 150 for length in lengths) >= 20
    assert lengths[-1] > 20 * 150
    assert lengths[0] > 0


def test_titles_are_headings_and_texts_have_words_but_no_drawing(demo):
    documents = demo.lookup(TOPICS)
    assert documents["with"].title == "The with statement"
    assert documents["typesmapping"].title == "Mapping Types — dict"
    for document in documents.values():
        assert document.title and "\n" not in document.title
        assert not re.search(r"^[\s*=+~|-]*[*=+~|-]{3}$", document.text, flags=re.MULTILINE), document.doc_id
        # Every word of the topic is there, in order: what went is drawing, and the heading is the title.
        drawing = re.compile(r"[-=*~^+|]{3,}|\|")
        words = [word for word in TOPICS[document.doc_id].split() if not drawing.fullmatch(word)]
        heading = TOPICS[document.doc_id].strip().splitlines()[0].split()
        assert heading + [w for w in document.text.split() if not drawing.fullmatch(w)] == words, document.doc_id
    precedence = documents["operator-summary"].text
    assert re.search(r'^\s*"\|"\s+Bitwise OR$', precedence, flags=re.MULTILINE)
    assert '| "%="' not in precedence and '"//=" | "%="' in documents["augassign"].text


def test_two_keys_of_one_text_are_one_document():
    # else and if are the same text in every Python; here it is shown on texts that are surely equal
    topics = {"while": "Loops\n*****\n\nfor, while", "for": "Loops\n*****\n\nfor, while", "break": TOPICS["break"]}
    demo = demo_collection(topics)
    assert [document.doc_id for document in demo.documents()] == ["break", "for"]
    assert demo.lookup(["while", "for"]).keys() == {"for"}
    loops = next(query for query in STORED["queries"] if query["text"] == "What does else after a loop do?")
    assert demo.qrels()[loops["id"]] == {"for": 2, "break": 1}


def test_equal_texts_take_the_best_grade():
    query = next(query for query in STORED["queries"] if query["text"] == "leave a loop early")
    assert query["judgments"]["break"] == 2 and query["judgments"]["continue"] == 0
    demo = demo_collection({"continue": "Jump.", "break": "Jump."})
    assert demo.qrels()[query["id"]] == {"break": 2}
    assert next(demo.documents()) == ("break", "Break", "Jump.")


def test_a_topic_that_contains_another_is_judged_at_least_as_high(demo):
    def paragraphs(doc_id):
        return {" ".join(part.split()) for part in TOPICS[doc_id].split("\n\n") if len(part.split()) > 4}

    parts = {document.doc_id: paragraphs(document.doc_id) for document in demo.documents()}
    contained = [(a, b) for a in parts for b in parts if a != b and parts[a] and parts[a] <= parts[b]]
    assert ("try", "compound") in contained and ("numeric-types", "specialnames") in contained
    for query_id, grades in demo.qrels().items():
        for part, whole in contained:
            assert grades.get(whole, 0) >= grades.get(part, 0), (query_id, part, whole)


def test_missing_topics_take_their_judgments_and_then_their_queries_along(caplog):
    gone = {"assert", "for"}
    reduced = {key: text for key, text in TOPICS.items() if key not in gone}
    with caplog.at_level(logging.WARNING):
        demo = demo_collection(reduced)
    full = demo_collection()
    lost = full.queries().keys() - demo.queries().keys()
    assert [full.queries()[query_id] for query_id in lost] == ["turn off sanity checks in production"]
    for query_id, grades in demo.qrels().items():
        expected = {doc_id: grade for doc_id, grade in full.qrels()[query_id].items() if doc_id not in gone}
        assert grades == expected
    dropped = sum(len(query["judgments"]) for query in STORED["queries"] if query["id"] in lost) + sum(
        key in gone for query in STORED["queries"] if query["id"] not in lost for key in query["judgments"]
    )
    total = sum(len(query["judgments"]) for query in STORED["queries"])
    assert f"lacks the topics assert, for; dropped {dropped} of {total} judgments and 1 of 50 queries" in caplog.text


def test_a_blank_topic_counts_as_missing(caplog):
    demo = demo_collection({**only("break"), "for": " \n"})
    assert [document.doc_id for document in demo.documents()] == ["break"]
    assert all("for" not in grades for grades in demo.qrels().values())


def test_without_any_topic_nothing_is_left_and_the_log_says_so(caplog):
    demo = demo_collection({})
    assert (demo.queries(), demo.qrels(), list(demo.documents())) == ({}, {}, [])
    assert "50 of 50 queries" in caplog.text


def test_callers_cannot_change_the_collection(demo):
    demo.queries().clear()
    demo.qrels()["1"].clear()
    assert demo.queries() and demo.qrels()["1"]


def test_it_opens_by_name_and_its_queries_fold():
    collection = open_collection("demo")
    assert collection.name == "demo"
    assert collection.folds() is None
    assert collection.lookup(["nothing", "try"]).keys() == {"try"}
    with pytest.raises(ValueError, match="no splits, so no 'test'"):
        collection.qrels("test")
    folds = make_folds(collection.queries())
    assert check_folds(folds, collection.queries()).untested == ()
    assert [len(fold.test) for fold in folds] == [10] * 5
