"""Files damaged at random, read as commands read them: the right answer, or an error that tells a user what to mend.

    make fuzz-files CASES=10000      # at full size; `tests/test_damaged_files.py` has a short version

A case is a number: `python tests/damaged_files.py --first 4711 --cases 1` repeats it. Where damage leaves a file that
still can be read, the result must be what a plain reader of a few lines, written here for nothing else, finds in it:
nothing may be shorter, or other, than the file. An error names the file, or the folder that it is in.
"""

import argparse
import json
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import datasets
import tiny
import tiny_collection
import transformers

from modeling_cobert.collections.collection import open_collection, read_queries
from modeling_cobert.collections.folds import make_folds, read_folds, write_folds
from modeling_cobert.collections.trec import read_qrels, read_run
from modeling_cobert.data.rows import load_rows
from modeling_cobert.ranking.loading import load_cobert
from modeling_cobert.steps.failures import told

DEFECT = "This is a bug in cobert"
SNIPPETS = [
    b"\x00",
    b"\xff\xfe",
    b"nan",
    b"-1",
    b"1e400",
    b"\xe2\x80\xae",
    b"{}",
    b"[[[",
    b'"',
    b"\t",
    b"\n",
    b" ",
    b"null",
]
DOCUMENTS = ["bees see blue", "the red car", "honey"]


@dataclass(frozen=True)
class Target:
    """
    A file, and how it is read.

    Args:
        file (`str`): its path in the sandbox.
        read (`Callable[[Path], object]`): reads it, and perhaps what lies beside it, as a command would.
        plain (`Callable[[bytes], object]`, *optional*): what is to be found in it, by other means. Raises
            `ValueError` or the like where the file is not to be accepted.
    """

    file: str
    read: Callable[[Path], object]
    plain: Callable[[bytes], object] | None = None


def plain_lines(data: bytes, columns: int) -> list[list[str]]:
    lines = data.decode("utf-8-sig").removesuffix("\n").split("\n")
    split = [[column for column in re.split(r"[ \t\r\v\f]+", line) if column] for line in lines]  # as C's isspace()
    if any(len(row) != columns for row in split):
        raise ValueError("columns")
    return split


def plain_run(data: bytes) -> dict:
    rows = plain_lines(data, 6)
    found: dict = {}
    for query_id, _, doc_id, _, score, _ in rows:
        found.setdefault(query_id, {})[doc_id] = float(score)
    return _counted(found, rows)


def plain_qrels(data: bytes) -> dict:
    rows = plain_lines(data, 4)
    found: dict = {}
    for query_id, _, doc_id, grade in rows:
        found.setdefault(query_id, {})[doc_id] = int(grade)
    return _counted(found, rows)


def plain_queries(data: bytes) -> dict:
    rows = [json.loads(line) for line in data.decode("utf-8-sig").split("\n") if line.strip("\r")]
    return {row["_id"]: row["text"] for row in rows}


def plain_documents(data: bytes) -> dict:
    rows = [json.loads(line) for line in data.decode("utf-8-sig").split("\n") if line.strip("\r")]
    return {row["_id"]: (row.get("title", ""), row["text"]) for row in rows}


def plain_folds(data: bytes) -> list:
    folds = json.loads(data.decode("utf-8-sig"))
    folds = list(folds.values()) if isinstance(folds, dict) else folds
    names = ("train", "validation", "test")
    return sorted(
        [list(fold.get(name, fold.get("dev", ()))) if name != "train" else list(fold[name]) for name in names]
        for fold in folds
    )  # in what order a damaged number puts them is no matter


def _counted(found: dict, rows: list) -> dict:
    if sum(map(len, found.values())) != len(rows):
        raise ValueError("a document twice")
    return found


def rank(folder: Path) -> list[int]:
    ranking = load_cobert(folder).rerank("how do bees see", DOCUMENTS)
    if sorted(result["corpus_id"] for result in ranking) != [0, 1, 2]:
        raise AssertionError(f"not all documents are ranked: {ranking}")
    if not all(-1e30 < result["score"] < 1e30 for result in ranking):
        raise AssertionError(f"scores that are none: {ranking}")
    return [result["corpus_id"] for result in ranking]


def read_rows(path: Path) -> list:
    rows = load_rows(path.parents[1])
    return rows.dataset().to_list()


def make_sandbox(folder: Path) -> dict[str, Target]:
    """Whole files of every kind, and their targets by name."""
    mine = tiny_collection.make(folder / "mine")
    tiny_collection.rows(mine, folder)
    write_folds(folder / "folds.json", make_folds(tiny_collection.QUERIES))
    judged = open_collection(mine).qrels()
    (folder / "qrels.trec").write_text(
        "".join(f"{q} 0 {d} {g}\n" for q, found in judged.items() for d, g in found.items())
    )
    model = tiny.checkpoint(folder / "model")

    def documents(path: Path) -> dict:
        return {d.doc_id: (d.title, d.text) for d in open_collection(path.parent).documents()}

    def folds(path: Path) -> list:
        return sorted([list(fold.train), list(fold.validation), list(fold.test)] for fold in read_folds(path))

    rows = next((folder / "rows").rglob("*.parquet"))
    written = read_rows(rows)
    targets = {
        "run": Target("mine/run.trec", read_run, plain_run),
        "qrels": Target("qrels.trec", read_qrels, plain_qrels),
        "qrels of BEIR": Target("mine/qrels/test.tsv", lambda path: open_collection(path.parents[1]).qrels()),
        "queries": Target("mine/queries.jsonl", read_queries, plain_queries),
        "documents": Target("mine/corpus.jsonl", documents, plain_documents),
        "folds": Target("folds.json", folds, plain_folds),
        # Nobody writes these by hand: what can be read is what was written.
        "rows": Target(str(rows.relative_to(folder)), read_rows, lambda data: written),
        "settings of rows": Target("rows/settings.json", lambda path: read_rows(path.parent / "data" / rows.name)),
    }
    for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        if (model / file).exists():
            targets[file] = Target(f"model/{file}", lambda path: rank(path.parent))
    return targets


def damage(data: bytes, choose: random.Random) -> bytes:
    """One to three hurts: flipped bytes, ends cut off, pieces or lines lost, doubled, moved, or put in."""
    for _ in range(choose.choice([1, 1, 2, 3])):
        kind, place = choose.randrange(8), choose.randrange(len(data) + 1)
        end = min(len(data), place + choose.choice([1, 4, 16, 256]))
        lines = data.splitlines(keepends=True)
        if kind == 0:
            data = data[:place]
        elif kind == 1:
            data = data[:place] + bytes([choose.randrange(256)]) + data[place + 1 :]
        elif kind == 2:
            data = data[:place] + data[end:]
        elif kind == 3:
            data = data[:place] + data[place:end] + data[place:]
        elif kind == 4:
            data = data[:place] + choose.choice(SNIPPETS) + data[place:]
        elif kind == 5 and lines:
            data = b"".join(lines + [choose.choice(lines)])
        elif kind == 6 and lines:
            lines.pop(choose.randrange(len(lines)))
            data = b"".join(lines)
        elif lines:
            choose.shuffle(lines)
            data = b"".join(lines)
    return data


def try_case(number: int, folder: Path, targets: dict[str, Target], whole: dict[str, bytes]) -> tuple[str, str]:
    """The target's name, and what came of it: `read`, `refused`, or the fault."""
    choose = random.Random(number)
    name = choose.choice(list(targets))
    target, path = targets[name], folder / targets[name].file
    hurt = damage(whole[name], choose)
    path.write_bytes(hurt)
    try:
        found = target.read(path)
    except Exception as error:
        line = told(error)
        named = path.name in line or any(str(part) in line for part in path.parents if folder in part.parents)
        # Or the value itself, such as another selector's name; and weights that are NaN may have been trained so.
        named = named or line.split(":")[0].encode() in hurt or "is not a number: the ranking would be" in line
        return name, "refused" if DEFECT not in line and named else f"{type(error).__name__}: {line}"
    finally:
        path.write_bytes(whole[name])
    if target.plain is None:
        return name, "read"
    try:
        expected = target.plain(hurt)
    except Exception as error:
        return name, f"accepted what no plain reader takes ({type(error).__name__}: {error}): {found!r:.300}"
    return name, "read" if found == expected else f"read as {found!r:.300}, not {expected!r:.300}"


def search(first: int, cases: int) -> tuple[Counter, list[str]]:
    """How many cases of each target were read and refused, and a line for every fault."""
    folder = Path(tempfile.mkdtemp())
    try:
        targets = make_sandbox(folder)
        whole = {name: (folder / target.file).read_bytes() for name, target in targets.items()}
        for name, target in targets.items():
            target.read(folder / target.file)  # undamaged, everything can be read
            if target.plain is not None:
                assert target.read(folder / target.file) == target.plain(whole[name]), name
        counts, faults = Counter(), []
        for number in range(first, first + cases):
            name, outcome = try_case(number, folder, targets, whole)
            fine = outcome in ("read", "refused")
            counts[name, outcome if fine else "fault"] += 1
            if not fine:
                faults.append(f"case {number}, {name}: {outcome}")
        return counts, faults
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=10_000)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    counts, faults = search(args.first, args.cases)
    for name in sorted({name for name, _ in counts}):
        read, refused, fault = (counts[name, outcome] for outcome in ("read", "refused", "fault"))
        print(f"{name:<22}{read:>7} read {refused:>7} refused {fault:>5} faults")
    print("\n".join(faults))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
