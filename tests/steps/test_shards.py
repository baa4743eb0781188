"""The resumable loop: what is there is not made again, every process has its share, wrong files are named."""

import os
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modeling_cobert.steps.files import atomic_open
from modeling_cobert.steps.shards import QueryShards, fill, read_parquet

SCHEMA = pa.schema([("query_id", pa.string()), ("words", pa.list_(pa.string())), ("number", pa.int32())])
QUERIES = ["q1", "q-ü", "3", "q4", "q5", "q6", "q7"]


class State:
    """One process of several, as `accelerate.PartialState` tells of it; they wait for each other at a barrier."""

    def __init__(self, process_index=0, barrier=None):
        self.process_index, self.barrier = process_index, barrier
        self.num_processes = 1 if barrier is None else barrier.parties
        self.waited = 0

    @property
    def is_main_process(self):
        return self.process_index == 0

    def wait_for_everyone(self):
        self.waited += 1
        if self.barrier is not None:
            self.barrier.wait(timeout=60)


def in_processes(count, work):
    """Calls `work(state)` in so many threads that take each other for processes; the first error is raised."""
    barrier, errors = threading.Barrier(count), []

    def run(index):
        try:
            work(State(index, barrier))
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def make_row(query_id):
    return {"words": list(query_id), "number": QUERIES.index(query_id)}


def rows_of(query_ids):
    return [{"query_id": query_id, **make_row(query_id)} for query_id in query_ids]


def shards(folder, size=3, query_ids=QUERIES):
    return QueryShards(folder, query_ids, SCHEMA, size)


def tree(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_fill_makes_what_is_not_there_and_nothing_else(tmp_path):
    paths = [tmp_path / f"{number}" for number in range(5)]
    paths[1].write_text("before")
    paths[3].write_text("")
    made = []

    def make(number):
        made.append(number)
        paths[number].write_text(str(number))

    state = State()
    fill(paths, make, state)
    assert made == [0, 2, 4] and state.waited > 0
    assert [path.read_text() for path in paths] == ["0", "before", "2", "", "4"]
    fill(paths, make, State())
    fill(paths, make)  # alone, with nobody to wait for
    assert made == [0, 2, 4]
    fill([], make, State())


@pytest.mark.parametrize("count", [2, 3, 8])
def test_every_missing_file_is_made_by_one_process(tmp_path, count):
    paths = [tmp_path / f"{number}" for number in range(7)]
    paths[2].write_text("2")
    made = [[] for _ in range(count)]

    def work(state):
        def make(number):
            made[state.process_index].append(number)
            with atomic_open(paths[number]) as file:
                file.write(str(number))

        fill(paths, make, state)
        assert all(path.exists() for path in paths)  # nobody returns before all is there

    in_processes(count, work)
    assert sorted(number for share in made for number in share) == [0, 1, 3, 4, 5, 6]
    assert max(map(len, made)) - min(map(len, made)) <= 1
    assert [path.read_text() for path in paths] == [str(number) for number in range(7)]


def test_processes_look_before_anyone_writes_and_after_the_main_one_has_prepared(tmp_path):
    """The shares are of one list: a file that a fast process finishes is not missing from a slow one's."""
    paths = [tmp_path / f"{number}" for number in range(4)]
    events = []

    class Watching(State):
        def wait_for_everyone(self):
            super().wait_for_everyone()
            events.append("wait")

    class Watched(type(tmp_path)):
        def exists(self, **options):
            events.append("look")
            return super().exists(**options)

    fill([Watched(path) for path in paths], lambda number: events.append("make"), Watching())
    assert events == ["wait", *["look"] * 4, "wait", *["make"] * 4, "wait"]


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_rows_come_back_in_order(tmp_path, size):
    table = shards(tmp_path, size)
    assert table.missing() == QUERIES
    table.fill(make_row, State())
    assert table.missing() == []
    assert list(table.read()) == rows_of(QUERIES)
    assert [table.row(query_id) for query_id in reversed(QUERIES)] == rows_of(reversed(QUERIES))
    assert sorted(tree(tmp_path)) == [f"{number:05d}.parquet" for number in range(-(-7 // size))]
    with pytest.raises(KeyError, match="nobody"):
        table.row("nobody")


def test_no_queries_no_files(tmp_path):
    table = shards(tmp_path / "new", query_ids=[])
    table.fill(make_row, State())
    assert list(table.read()) == table.missing() == []
    with pytest.raises(ValueError, match="shard_queries must be at least 1, got 0"):
        shards(tmp_path, size=0)


def test_resumed_after_an_error_or_a_kill_is_the_same_to_the_byte(tmp_path):
    shards(tmp_path / "whole").fill(make_row, State())

    class Killed(BaseException):
        """Neither an error that is caught anywhere nor the end of this process."""

    for number, (end, error) in enumerate([("q5", ValueError), ("q1", Killed), ("q-ü", OSError)]):
        table, asked = shards(tmp_path / str(number)), []

        def stop(query_id, end=end, error=error):
            if query_id == end:
                raise error("no more")
            return make_row(query_id)

        with pytest.raises(error, match="no more"):
            table.fill(stop, State())
        missing = table.missing()
        assert missing == (QUERIES[3:] if end == "q5" else QUERIES)  # shards before it are whole, its own is not there
        table.fill(lambda query_id, asked=asked: asked.append(query_id) or make_row(query_id), State())
        assert asked == missing
        assert tree(tmp_path / str(number)) == tree(tmp_path / "whole")


def test_the_number_of_processes_leaves_no_trace(tmp_path):
    shards(tmp_path / "1", 2).fill(make_row, State())
    for count in (2, 3, 6):
        in_processes(count, lambda state, count=count: shards(tmp_path / str(count), 2).fill(make_row, state))
        assert tree(tmp_path / str(count)) == tree(tmp_path / "1")


def test_an_error_names_its_query(tmp_path):
    def make(query_id):
        raise ValueError(f"cannot do {len(query_id)}")

    with pytest.raises(ValueError, match=r"^query 'q1': cannot do 2$"):
        shards(tmp_path).fill(make, State())
    with pytest.raises(ValueError, match="query 'q1': cannot do 2|query 'q4': cannot do 2"):
        in_processes(2, lambda state: shards(tmp_path).fill(make, state))
    assert tree(tmp_path) == {}


def test_damaged_files_are_named(tmp_path):
    table = shards(tmp_path)
    table.fill(make_row, State())
    path, whole = table.paths[1], table.paths[1].read_bytes()
    for damaged in (b"", b"nonsense", whole[:-5], whole[: len(whole) // 2], whole[:40] + bytes(40) + whole[80:]):
        path.write_bytes(damaged)
        for read in (lambda: list(table.read()), lambda: table.row("q5")):
            with pytest.raises(ValueError, match=r"(?s)00001.parquet: damaged .*: remove it and run again"):
                read()
        assert table.row("q1") == rows_of(["q1"])[0]  # another file's query is not touched by it
    os.remove(path)
    table.fill(make_row, State())  # the cure that the message names
    assert path.read_bytes() == whole


def test_other_columns_are_refused(tmp_path):
    table = shards(tmp_path)
    table.fill(make_row, State())
    path = table.paths[0]
    content = pq.read_table(path)
    for other in (content.drop_columns(["number"]), content.set_column(2, "number", pa.array([0.0, 1.0, 2.0]))):
        pq.write_table(other, path)
        with pytest.raises(ValueError, match=r"00000.parquet: damaged \(not these columns: query_id, words, number\)"):
            next(table.read())
    pq.write_table(content, path)
    assert read_parquet(path, SCHEMA, ["query_id"]).to_pydict() == {"query_id": QUERIES[:3]}
    with pytest.raises(FileNotFoundError, match="gone.parquet"):
        read_parquet(tmp_path / "gone.parquet", SCHEMA)


@pytest.mark.parametrize("query_ids", [["q4", "q6", "q5"], ["q4", "q5"], ["q1", "q-ü", "3"], ["q4", "q5", "q6", "q7"]])
def test_a_file_of_other_queries_is_refused(tmp_path, query_ids):
    table = shards(tmp_path)
    table.fill(make_row, State())
    pq.write_table(pa.Table.from_pylist(rows_of(query_ids), schema=SCHEMA), table.paths[1])
    with pytest.raises(ValueError, match="00001.parquet: has other queries than 'q4', ...: remove it and run again"):
        list(table.read())
    with pytest.raises(ValueError, match="00001.parquet: has other queries than 'q4', ...: remove it and run again"):
        table.row("q6")
