"""Rows and settings that somebody edited are refused where the folder is opened, with the query or the key."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_collection
from tiny_rows import make_rows

from modeling_cobert.collections.collection import open_collection
from modeling_cobert.collections.options import SplitOptions
from modeling_cobert.data.rows import SCHEMA, build_rows, load_rows
from modeling_cobert.ranking.inputs import rows_inputs

FILE = "data/train-00000-of-00001.parquet"


@pytest.fixture
def folder(tmp_path):
    return make_rows(tmp_path / "rows")


@pytest.fixture(scope="module")
def selected(tmp_path_factory):
    """A collection, and what was selected from it."""
    made = tmp_path_factory.mktemp("made")
    tiny_collection.rows(tiny_collection.make(made / "words"), made)
    return made


def edit(folder, **changes):
    """Changes columns of the second row; `None` in place of a value is a null."""
    path = folder / FILE
    rows = pq.read_table(path).to_pylist()
    rows[1] |= {name: change(rows[1][name]) for name, change in changes.items()}
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)


LISTS = [field.name for field in SCHEMA if pa.types.is_list(field.type)]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"query": lambda text: ""}, "has an empty query"),
        ({"query": lambda text: " "}, "has an empty query"),
        ({"query": lambda text: None}, "has an empty query"),
        ({"doc_ids": lambda ids: [*ids[:-1], ids[0]]}, "names a document twice"),
        ({"doc_ids": lambda ids: [*ids[:-1], None]}, "has a null among its doc_ids"),
        ({"passages": lambda texts: texts[:-1]}, "has 9 doc_ids, but 8 passages"),
        ({"passages": lambda texts: None}, "has 9 doc_ids, but 0 passages"),
        ({"passages": lambda texts: [None, *texts[1:]]}, "has a null among its passages"),
        ({"selector_scores": lambda scores: [None, *scores[1:]]}, "has a null among its selector_scores"),
        ({"grades": lambda grades: [*grades, 1]}, "has 9 doc_ids, but 10 grades"),
        ({name: lambda values: [] for name in LISTS}, "has no documents"),
        ({name: lambda values: None for name in LISTS}, "has no documents"),
    ],
)
def test_a_row_is_one_query_with_lists_of_equal_length(folder, changes, fault):
    edit(folder, **changes)
    with pytest.raises(ValueError, match=rf"rows: the row of query 'q1' {fault}.*: make the folder anew"):
        _ = rows_inputs(folder, fold=None).queries


def test_a_query_has_one_row(folder):
    path = folder / FILE
    rows = pq.read_table(path)
    pq.write_table(pa.concat_tables([rows, rows.slice(2, 1)]), path)
    with pytest.raises(ValueError, match="rows: query 'q2' has two rows, in splits 'train' and 'train'"):
        load_rows(folder)
    shutil.copy(folder / "data" / "test-00000-of-00001.parquet", path)
    with pytest.raises(ValueError, match="rows: query 'q5' has two rows, in splits 'train' and 'test'"):
        load_rows(folder)
    pq.write_table(rows, path)
    edit(folder, query_id=lambda query_id: None)
    with pytest.raises(ValueError, match="a row of split 'train' has no query_id"):
        load_rows(folder)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("k", "many", "a whole number from 1 on, not 'many'"),
        ("k", 0, "a whole number from 1 on, not 0"),
        ("k", True, "a whole number from 1 on, not True"),
        ("passage_words", "x", "a whole number"),
        ("passage_overlap", -1, "a whole number from 0 on"),
        ("passage_title", 1, "true or false"),
        ("selector", None, "a text"),
        ("collection", 3, "a text"),
        ("first_stage", [], "a text"),
        ("judged", "no", "true or false"),
        ("chosen_by", 1, "a text"),
        ("counts", 7, "the numbers of what was made"),
    ],
)
def test_settings_are_of_their_kinds(folder, key, value, wanted):
    path = folder / "settings.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {key: value}))
    with pytest.raises(ValueError, match=rf"settings.json: {key!r} must be {wanted}.*: make the folder anew"):
        load_rows(folder)
    if key in ("judged", "chosen_by", "counts"):
        return
    del settings[key]
    path.write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=rf"settings.json: {key!r} is missing"):
        load_rows(folder)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"k": "z"}, "'k' must be a whole number from 1 on, not 'z'"),
        ({"passage_words": "10"}, "'passage_words' must be a whole number from 1 on, not '10'"),
        ({"collection": 7}, "'collection' must be a text, not 7"),
        ({"shard_queries": "x"}, "'shard_queries' must be a whole number from 1 on, not 'x'"),
        ({"keep_texts": "no"}, "'keep_texts' must be true or false, not 'no'"),
        ({"sha256": None}, "'sha256' must be the fingerprints"),
        ({"sha256": {"run": 5}}, "'sha256' must be the fingerprints"),
        ({"counts": 5}, "'query_ids' in 'counts' must be a list of query ids"),
        ({"counts": {}}, "'query_ids' in 'counts' must be a list of query ids"),
        ({"query_ids": ["q0", 1]}, "'query_ids' in 'counts' must be a list of query ids"),
        ({"query_ids": ["q0", "q0"]}, "'query_ids' in 'counts' names a query twice"),
        ({"pairs": "many"}, "'counts' must be the numbers of what was made"),
        ({"truncated": "few"}, "'counts' must be the numbers of what was made"),
        ({"skipped": 0}, "'counts' must be the numbers of what was made"),
        ({"skipped": {"documents_missing": None}}, "'counts' must be the numbers of what was made"),
    ],
)
def test_settings_of_a_selection_are_of_their_kinds(selected, tmp_path, changes, fault):
    shutil.copytree(selected / "selected", tmp_path / "selected")
    path = tmp_path / "selected" / "settings.json"
    settings = json.loads(path.read_text())
    for name, value in changes.items():
        (settings if name in settings else settings["counts"])[name] = value
    path.write_text(json.dumps(settings | {key: changes[key] for key in ("keep_texts",) if key in changes}))
    with pytest.raises(ValueError, match=rf"selected/settings.json: {fault}.*: make the folder anew"):
        build_rows(tmp_path / "selected", tmp_path / "out", open_collection(selected / "words"), SplitOptions("none"))
    assert not (tmp_path / "out").exists()
