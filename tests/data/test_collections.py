"""Collections: every format gives the same view, and every malformed line is named."""

import json
import shutil
from typing import NamedTuple

import pytest

from modeling_cobert.collections.collection import Document, NoJudgmentsError, open_collection, read_queries
from modeling_cobert.collections.options import CollectionOptions

DOCUMENTS = {
    "d1": Document("d1", "Apples", "red and green"),
    "d2": Document("d2", "", "žluťoučký kůň 😀"),
    "d3": Document("d3", "Nothing", ""),
}
QUERIES = {"q2": "green apple", "q1": "horse", "q3": "unjudged"}
QRELS = {"q2": {"d1": 2, "d3": 0}, "q1": {"d2": 1}}


def write_jsonl(path, items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")


@pytest.fixture
def beir(tmp_path):
    folder = tmp_path / "tiny"
    (folder / "qrels").mkdir(parents=True)
    write_jsonl(
        folder / "corpus.jsonl", [{"_id": d.doc_id, "title": d.title, "text": d.text} for d in DOCUMENTS.values()]
    )
    write_jsonl(folder / "queries.jsonl", [{"_id": query_id, "text": text} for query_id, text in QUERIES.items()])
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq2\td1\t2\nq2\td3\t0\n")
    (folder / "qrels" / "dev.tsv").write_text("q1\td2\t1\n")
    (folder / "qrels" / "dev-graded.tsv").write_text("q1\td2\t3\n")
    return folder


@pytest.fixture
def trec(tmp_path):
    folder = tmp_path / "trec"
    folder.mkdir()
    write_jsonl(
        folder / "corpus.jsonl", [{"_id": d.doc_id, "title": d.title, "text": d.text} for d in DOCUMENTS.values()]
    )
    (folder / "topics.tsv").write_text("".join(f"{query_id}\t{text}\n" for query_id, text in QUERIES.items()))
    (folder / "qrels.txt").write_text("q2 0 d1 2\nq2 0 d3 0\nq1 0 d2 1\n")
    return folder


@pytest.fixture
def irds(tmp_path, monkeypatch):
    ir_datasets = pytest.importorskip("ir_datasets")
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "irds"))
    from ir_datasets import formats, util
    from ir_datasets.datasets.base import Dataset

    (tmp_path / "qrels").write_text("q2 0 d1 2\nq2 0 d3 0\nq1 0 d2 1\n")
    for name in ("docs", "queries"):
        items = DOCUMENTS.values() if name == "docs" else QUERIES.items()
        (tmp_path / f"{name}.tsv").write_text("".join("\t".join(item) + "\n" for item in items), encoding="utf-8")

    class TitledDoc(NamedTuple):
        doc_id: str
        title: str
        text: str

        def default_text(self):
            return f"{self.title} {self.text}"

    dataset = Dataset(
        formats.TsvDocs(util.LocalDownload(tmp_path / "docs.tsv"), doc_cls=TitledDoc, namespace="tiny", lang="en"),
        formats.TsvQueries(util.LocalDownload(tmp_path / "queries.tsv")),
        formats.TrecQrels(util.LocalDownload(tmp_path / "qrels"), {}),
    )
    monkeypatch.setitem(ir_datasets.registry._registered, "tiny", dataset)
    return "irds:tiny"


@pytest.mark.parametrize("kind", ["beir", "trec", "irds"])
def test_every_format_gives_the_same_view(kind, request):
    collection = open_collection(request.getfixturevalue(kind))
    assert collection.queries() == QUERIES and list(collection.queries()) == list(QUERIES)
    assert collection.qrels() == QRELS
    assert list(collection.documents()) == list(DOCUMENTS.values())
    assert collection.lookup(["d3", "d2", "absent", "d3"]) == {key: DOCUMENTS[key] for key in ("d2", "d3")}
    assert collection.lookup([]) == {}
    assert collection.folds() is None
    assert collection.name.endswith(("tiny", "trec"))


@pytest.mark.parametrize("kind", ["beir", "trec", "irds"])
def test_no_judgments_at_all(kind, request, monkeypatch):
    """Whoever can do without them can tell it from judgments that were asked for and are not there."""
    place = request.getfixturevalue(kind)
    if kind == "irds":
        import ir_datasets
        from ir_datasets.datasets.base import Dataset

        whole = ir_datasets.load("tiny")
        without = Dataset(whole.docs_handler(), whole.queries_handler())
        monkeypatch.setitem(ir_datasets.registry._registered, "tiny", without)
    else:
        for path in place.glob("qrels*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    collection = open_collection(place)
    with pytest.raises(NoJudgmentsError, match="no judgments: neither|no qrels; a more specific id"):
        collection.qrels()
    assert collection.queries() == QUERIES and collection.splits() == ()
    if kind != "irds":
        for asked in (open_collection(place, split="test"), open_collection(place, qrels="nowhere.txt")):
            with pytest.raises(FileNotFoundError) as error:
                asked.qrels()
            assert not isinstance(error.value, NoJudgmentsError)


def test_lookup_before_documents(beir):
    assert open_collection(beir).lookup(iter(["d2"])) == {"d2": DOCUMENTS["d2"]}


def test_splits(beir):
    collection = open_collection(beir, split="test")
    assert collection.queries() == {"q2": "green apple"}
    assert collection.qrels() == {"q2": QRELS["q2"]}
    assert collection.qrels("dev-graded") == {"q1": {"d2": 3}}
    assert open_collection(beir).qrels("test,dev-graded") == {"q2": QRELS["q2"], "q1": {"d2": 3}}
    with pytest.raises(ValueError, match="dev-graded.tsv: query 'q1', document 'd2' is judged in another split"):
        open_collection(beir).qrels("dev,dev-graded")
    with pytest.raises(FileNotFoundError, match="'train'.*'dev', 'dev-graded', 'test'"):
        open_collection(beir).qrels("train")


def test_other_files(beir, trec, tmp_path):
    (tmp_path / "questions.tsv").write_text("q2\twhat is green?\n")
    (tmp_path / "other.txt").write_text("q2 0 d2 1\n")
    collection = open_collection(trec, queries=tmp_path / "questions.tsv", qrels=tmp_path / "other.txt")
    assert collection.queries() == {"q2": "what is green?"}
    assert collection.qrels() == {"q2": {"d2": 1}}
    with pytest.raises(ValueError, match="not both"):
        open_collection(beir, split="test", qrels=tmp_path / "other.txt")


def test_judgments_for_other_queries(beir, caplog):
    (beir / "qrels" / "test.tsv").write_text("q2\td1\t2\nq77\td1\t2\n")
    with pytest.raises(ValueError, match="1 judged queries.*'q77'.*other queries"):
        open_collection(beir, split="test").queries()
    assert open_collection(beir, split="test", skip_missing=True).queries() == {"q2": "green apple"}
    assert "1 judged queries" in caplog.text


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not a JSON object"),
        (b"", "blank line"),
        (b"[1]", "not a JSON object, but list"),
        (b'{"id": "d4", "text": ""}', "no '_id'"),
        (b'{"_id": 4, "text": ""}', "string without white space or NUL, found 4"),
        (b'{"_id": "", "text": ""}', "non-empty"),
        (b'{"_id": "d 4", "text": ""}', "white space"),
        (b'{"_id": "d4"}', "'text' must be a string, found nothing"),
        (b'{"_id": "d4", "text": null}', "'text' must be a string"),
        (b'{"_id": "d4", "text": "", "title": 3}', "'title' must be a string, found 3"),
        (b'{"_id": "d1", "text": ""}', "'d1' appears twice"),
        (b'{"_id": "d4", "text": "\xff"}', "not a JSON object.*utf-8"),
        (b"[" * 100_000, "not a JSON object"),
    ],
)
def test_bad_documents(beir, line, reason):
    with open(beir / "corpus.jsonl", "ab") as file:
        file.write(line + b"\n")
    for walk in (lambda c: list(c.documents()), lambda c: c.lookup(["d1"])):
        with pytest.raises(ValueError, match=f"corpus.jsonl:4: .*{reason}"):
            walk(open_collection(beir))


def test_half_a_surrogate_pair_becomes_the_replacement_character(beir):
    (beir / "corpus.jsonl").write_text('{"_id": "x", "title": null, "text": "a\\ud83d b \\ud83d\\ude00"}\n')
    [document] = open_collection(beir).documents()
    assert document == Document("x", "", "a\ufffd b 😀")


def test_no_documents(beir, trec):
    (beir / "corpus.jsonl").write_text("")
    with pytest.raises(ValueError, match="corpus.jsonl:1: no documents"):
        list(open_collection(beir).documents())
    (trec / "corpus.jsonl").unlink()
    assert open_collection(trec).queries() == QUERIES
    with pytest.raises(FileNotFoundError, match="corpus.jsonl: no documents"):
        open_collection(trec).lookup(["d1"])


def test_changed_file_is_noticed(beir):
    collection = open_collection(beir)
    collection.lookup(["d1"])
    write_jsonl(beir / "corpus.jsonl", [{"_id": "d9", "text": "other"}])
    with pytest.raises(ValueError, match="changed"):
        collection.lookup(["d1"])


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("q.jsonl", '{"_id": "1", "text": "a"}\n{"_id": "1", "text": "b"}\n', ":2: query '1' appears twice"),
        ("q.jsonl", '{"_id": "1"}\n', ":1: 'text'"),
        ("q.tsv", "1\ta\n2 b\n", ":2: .*no tab"),
        ("q.tsv", "1\ta\n\tb\n", ":2: an id must be"),
        ("q.tsv", "", ":1: no queries"),
        ("topics.txt", "<top>\n<num> Number: 1\n</top>\n", ":3: a topic needs"),
        ("topics.txt", "<top>\n<num> 1\n<title> a\n", ":1: <top> without"),
        ("topics.txt", "1\ta\n", ":1: text outside"),
        ("q.tsv", "1\ta\r2\tb\r", ":1: several queries in one line, with the line ends of old Macs"),
        ("topics.txt", "<top>\n<num> 1\n<title> a\n<top>\n<num> 2\n<title> b\n</top>\n", ":1: .*begins in line 4"),
        ("topics.txt", "<top>\n<num> 1\n<title> a\n<num> 2\n<title> b\n</top>\n", ":6: .* 2 <num>: is a </top> m"),
        ("topics.txt", "<top>\n<num> 1\n<title> a\n<desc> b\n<title> c\n</top>\n", ":6: .* 2 <title>: is a </top>"),
        ("topics.txt", "<top>\n<num> 1\n<title> a </title> b\n</top>\n", ":4: .* text after </title>, in no field"),
        ("topics.txt", "<top>\n<num> 1\n<title> a\n<desc> b</title>\n</top>\n", ":5: .* has <desc> before </title>"),
        ("topics.txt", "<top>\n<num> 1\n<title> a\n</top>\n<num> 2\n<title> b\n</top>\n", ":5: text outside"),
        ("topics.txt", "<top>\n<num> 1\n<title> a\n</top>\nmore\n", ":5: text outside"),
        ("topics.txt", "</top>\n", ":1: a topic needs"),
        ("topics.txt", "<top>\n<num> 1 2\n<title> a\n</top>\n", ":1: an id must be"),
    ],
)
def test_bad_queries(tmp_path, name, content, reason):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=name + reason):
        read_queries(tmp_path / name)


def test_queries(tmp_path):
    path = tmp_path / "topics.txt"
    path.write_text(
        "\n<top>\n\n<num> Number: 301\n<title> International\nOrganized Crime \n\n<desc> Description:\nIdentify\n"
        "</top>\n"
        "<top>\n<num> Number: 302 </num>\n<title> Topic: Polio </title>\n</top>\n"
    )
    assert read_queries(path) == {"301": "International Organized Crime", "302": "Polio"}
    (tmp_path / "q.tsv").write_text("1\ta\tb\n2\t\n3\ta\rb\r\n")
    assert read_queries(tmp_path / "q.tsv") == {"1": "a\tb", "2": "", "3": "a\rb"}


# As in the files of TREC-1 (all fields, two of them in a line of their own), TREC-6, the terabyte track, microblog.
TREC_1 = """
<top>
<head> Tipster Topic Description
<num> Number:  001
<dom> Domain:  International Economics
<title> Topic:  Antitrust Cases Pending

<desc> Description:
Document discusses a pending antitrust case.

<smry> Summary:
Document discusses a <title of a> case.

<fac> Factor(s):
<nat> Nationality: U.S.
</fac>
<def> Definition(s):
</top>

"""
TREC_6 = """
<top>

<num> Number: 301
<title> International Organized Crime

<desc> Description:
Identify organizations that participate in international criminal
activity.

<narr> Narrative:
A relevant document must as a minimum identify the organization.

</top>
"""
CLOSED = """<topics>
<top>
<num>Number: 752</num>
<title>
Dam removal
</title>
<desc>Description: Where?</desc>
</top>
</topics>
"""
MICROBLOG = """
<top>
<num> Number: MB001 </num>
<title> BBC World Service staff cuts </title>
<querytime> Tue Feb 08 12:30:27 +0000 2011 </querytime>
<querytweettime> 34952194402811904 </querytweettime>
</top>
"""


@pytest.mark.parametrize(
    ("content", "queries"),
    [
        (TREC_1 + TREC_6, {"001": "Antitrust Cases Pending", "301": "International Organized Crime"}),
        (CLOSED, {"752": "Dam removal"}),
        (MICROBLOG, {"MB001": "BBC World Service staff cuts"}),
        (TREC_6.replace("\n", " \r\n"), {"301": "International Organized Crime"}),
        ((TREC_6 + CLOSED).replace("\n", "\r"), {"301": "International Organized Crime", "752": "Dam removal"}),
        (
            "<top><num>1</num><title>a b</title><time>c</time></top><top><num>2<title>c<desc>d</top>",
            {"1": "a b", "2": "c"},
        ),
        ("<top>\n<num> 1\n<title> red\ncar </title>\n</top>", {"1": "red car"}),
        ("<top>\n<num> 1\n<title> how do <b>bees</b> see\n</top>", {"1": "how do <b>bees</b> see"}),
        ("<top>\n<num> 1\n<title> how do <b>bees</b> see </title>\n</top>", {"1": "how do <b>bees</b> see"}),
        ("<top>\n<num> 1\n<title>\n<i>red</i> car\n<desc> a\n</top>", {"1": "<i>red</i> car"}),
        ("<top>\n<num> 1\n<title> red\n<other> car\n</top>", {"1": "red"}),
        ('<top>\n<num> 1\n<title> red\n<desc type="long"> car\n</top>', {"1": "red"}),
        ("<top>\n<num> 1\n<title> red\n<EN-desc> car\n</top>", {"1": "red"}),
        ("<top>\n<num> 1\n<title> red <desc > car\n</top>", {"1": "red"}),
        ("<top>\n<num> 1\n<title> red\n<narr> whose <title> names\n</top>", {"1": "red"}),
        ("<top>\n<title> red\n<num> 1\n</top>", {"1": "red"}),
        ("<top>\n<num> 1\n<title> 5 < 6 </title>\n</top>", {"1": "5 < 6"}),
        ("<top>\n<num> 1\n<title> </title>\n</top>", {"1": ""}),
    ],
)
def test_topics_of_every_layout(tmp_path, content, queries):
    path = tmp_path / "topics.txt"
    path.write_text(content, newline="")
    assert list(read_queries(path).items()) == list(queries.items())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("query-id\tcorpus-id\tscore\n", ":1: no judgments"),
        ("q1\td1\t1\nq1\td1\t1\n", ":2: document 'd1' is judged twice"),
        ("q1\td1\t1\nq1\td2\n", ":2: expected 3 columns"),
        ("q1\td1\tx\n", ":1: the grade must be an integer"),
        ("q1\t\t1\n", ":1: an id must be"),
        ("", ":1: the file is empty"),
    ],
)
def test_bad_beir_qrels(beir, content, reason):
    (beir / "qrels" / "test.tsv").write_text(content)
    with pytest.raises(ValueError, match="test.tsv" + reason):
        open_collection(beir).qrels()


def test_every_kind_of_collection_says_whether_to_skip_what_is_missing(beir, trec, irds):
    for name in (str(beir), str(trec), irds, "demo"):
        for skip in (True, False):  # in this order: nothing of it stays behind
            assert open_collection(name, skip_missing=skip).skip_missing is skip
            assert CollectionOptions(name, skip_missing=skip).open().skip_missing is skip
        assert open_collection(name).skip_missing is False


def test_options_open_what_the_function_opens(beir, tmp_path):
    (tmp_path / "queries.tsv").write_text("q2\tother words\n")
    options = CollectionOptions(str(beir), split="test", queries=str(tmp_path / "queries.tsv"), skip_missing=True)
    assert options.open() == open_collection(
        beir, split="test", queries=str(tmp_path / "queries.tsv"), skip_missing=True
    )
    assert options.open().queries() == {"q2": "other words"}


def test_names(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such collection"):
        open_collection(tmp_path / "absent")
    pytest.importorskip("ir_datasets")
    with pytest.raises(ValueError, match="knows no such dataset"):
        open_collection("irds:no/such")
    with pytest.raises(ValueError, match="brings its own"):
        open_collection("irds:vaswani", split="test")


@pytest.mark.parametrize(
    ("name", "documents", "queries", "judged"),
    [("cranfield", 1400, 225, 225), ("vaswani", 11429, 93, 93), ("time", 423, 83, 83), ("cacm", 3204, 64, 52)],
)
def test_real_collections(shared_data, name, documents, queries, judged):
    collection = open_collection(shared_data / name)
    assert sum(1 for _ in collection.documents()) == documents
    assert len(collection.queries()) == queries
    assert len(collection.qrels()) == judged
    folds = collection.folds()
    assert len(folds) == 5
    assert sorted(query for fold in folds for query in fold.test) == sorted(collection.qrels())


def test_real_trec_files(shared_data):
    collection = open_collection(shared_data / "trec-robust04")
    assert len(collection.queries()) == 250 and len(collection.qrels()) == 249
    assert {len(part) for fold in collection.folds() for part in (fold.validation, fold.test)} == {50}


@pytest.mark.parametrize("grade", ["1000000", "-20000"])
def test_grades_of_ir_datasets_are_bounded_as_those_of_files(irds, tmp_path, grade):
    (tmp_path / "qrels").write_text(f"q2 0 d1 {grade}\n")
    message = f"irds:tiny: query 'q2', document 'd1': the grade must be an integer of at most 10000, found '{grade}'"
    with pytest.raises(ValueError, match=message):
        open_collection(irds).qrels()


@pytest.mark.parametrize("part", ["documents", "lookup", "queries", "judgments"])
def test_what_ir_datasets_cannot_download_is_named(part, irds, monkeypatch):
    collection = open_collection(irds)

    def gone(*args):
        raise RuntimeError("download failed\nafter 3 attempts")

    for name in ("docs_iter", "docs_store", "queries_iter", "qrels_iter"):
        monkeypatch.setattr(collection._dataset, name, gone, raising=False)
    read = {
        "documents": lambda: list(collection.documents()),
        "lookup": lambda: collection.lookup(["d1"]),
        "queries": collection.queries,
        "judgments": collection.qrels,
    }
    what = "documents" if part == "lookup" else part
    with pytest.raises(
        OSError, match=rf"^irds:tiny: its {what} cannot be fetched \(download failed after 3 attempts\)"
    ):
        read[part]()
