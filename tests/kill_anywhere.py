"""The whole way, killed with SIGKILL at random moments and gone on with: nothing may be lost, mixed, or left behind.

    make kill-anywhere KILLS=50      # at full size; `tests/test_kill_anywhere.py` has a short version

prepare, train, eval and reproduce run on a piece of the demo collection, first undisturbed, then killed and restarted,
the same command each time, until they end. Then every file, and every folder, is compared with the undisturbed run's,
byte by byte. Of a checkpoint's `trainer_state.json` alone the seconds that something took are left out: they say how
long it took, and are read by nobody. A seed repeats the kills: exactly, where they are by operation. Then come full
and read-only disks, inputs that change between two starts, and clocks that go wrong (tests/kill_troubles.py).
"""

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

if __name__ == "__main__":  # before the first import of datasets: its cache is ours alone, and as old as the search
    FOLDER = Path(tempfile.mkdtemp(prefix="kill-anywhere-"))
    os.environ.update(HF_HOME=str(FOLDER / "hf"), OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", MKL_CBWR="AUTO,STRICT")
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import tiny  # noqa: E402
from kill_troubles import Troubles  # noqa: E402
from killing import KINDS, Command, Outcome, draw_moment, run  # noqa: E402

# All commands are imported once, here; what is forked has run nothing of them.
from modeling_cobert.collections.demo import demo_collection  # noqa: E402
from modeling_cobert.collections.folds import make_folds, write_folds  # noqa: E402
from modeling_cobert.commands import eval, prepare, reproduce, train  # noqa: E402, F401

QUERIES, DOCUMENTS, WORDS = 6, 30, 400
CUT = "--passage_words 40 --passage_overlap 10 --k 8 --max_length 40".split()
TRAINING = "--use_cpu True --disable_tqdm True --learning_rate 1e-3 --save_total_limit 1".split()
GROUPS = "--num_prototypes 2 --group_size 5 --group_overlap 1".split()
MODEL = "--encoder ../encoder --calibrator_layers 1 --scorer_layers 1 --max_length 40".split()
PARTS = "--calibrator encoder --scorer encoder --calibrator_layers 1 --scorer_layers 1".split()
CHAIN = [
    Command(
        "prepare",
        "data_scripts/prepare.py",
        "--collection ../mine --selector ../encoder --folds ../folds.json --shard_queries 1".split()
        + [*CUT, "--output", "prepared"],
        "prepared",
    ),
    Command(
        "train",
        "train_cobert.py",
        [*"--rows prepared/rows --fold all --output_dir trained --num_train_epochs 2".split()]
        + [*MODEL, *GROUPS, *TRAINING],
        "trained",
    ),
    Command(
        "train",
        "train_cobert.py",
        [*"--rows prepared/rows --fold 1 --output_dir context --num_train_epochs 3 --freeze_encoder".split()]
        + [*MODEL, *GROUPS, *TRAINING],
        "context",
    ),
    Command(
        "eval",
        "eval_cobert.py",
        "--model trained/fold-1 --rows prepared/rows --fold 1 --use_cpu True --threads 1 --output results".split(),
        "results",
    ),
    Command(
        "reproduce",
        "data_scripts/reproduce_paper.py",
        "--collection ../mine --encoder ../encoder --bert ../encoder --folds ../folds.json --paper robust04".split()
        + "--only bm25+rm3 dph+kl bert-base-maxp bert-qe cobert --max_steps 2 --batch_size 8".split()
        + "--study_batches 6 8 --study_prototypes 1 2 --study_overlaps 0 1".split()
        + "--qe_passage_words 30 --qe_passage_overlap 10 --qe_max_length 48".split()
        + "--num_prototypes 2 --group_overlap 1".split()
        + [*PARTS, *CUT, *TRAINING, "--output", "reproduction"],
        "reproduction",
    ),
]
SECONDS = ("runtime", "per_second", "total_flos")


def make_inputs(folder: Path) -> None:
    """`mine` (a piece of the demo collection in files), `folds.json` and `encoder`."""
    demo, mine = demo_collection(), folder / "mine"
    queries = dict(list(demo.queries().items())[2 : 2 + QUERIES])
    qrels = {query_id: demo.qrels()[query_id] for query_id in queries}
    wanted = {doc_id for grades in qrels.values() for doc_id in grades}
    documents = sorted(demo.documents(), key=lambda document: document.doc_id not in wanted)[:DOCUMENTS]
    there = {document.doc_id for document in documents}
    (mine / "qrels").mkdir(parents=True)
    _jsonl(mine / "queries.jsonl", [{"_id": query_id, "text": text} for query_id, text in queries.items()])
    _jsonl(
        mine / "corpus.jsonl",
        [{"_id": d.doc_id, "title": d.title, "text": " ".join(d.text.split()[:WORDS])} for d in documents],
    )
    lines = [f"{q}\t{d}\t{g}\n" for q, grades in qrels.items() for d, g in grades.items() if d in there]
    (mine / "qrels" / "test.tsv").write_text("".join(lines))
    write_folds(folder / "folds.json", make_folds(list(queries), "round-robin", num_folds=3))
    words = {word for text in queries.values() for word in re.findall("[a-z]+", text.lower())}
    tiny.VOCAB = [*tiny.VOCAB, *sorted(words - set(tiny.VOCAB))]  # letter by letter a query would leave no room
    tiny.bert_checkpoint(folder / "encoder", layers=2, labels=2)


def _jsonl(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder, with the bytes of files."""
    return {str(path.relative_to(folder)): _content(path) for path in sorted(folder.rglob("*"))}


def _content(path: Path) -> bytes | None:
    if path.is_dir():
        return None
    if path.name != "trainer_state.json":
        return path.read_bytes()
    return json.dumps(_without_seconds(json.loads(path.read_text())), sort_keys=True).encode()


def _without_seconds(value):
    if isinstance(value, list):
        return [_without_seconds(one) for one in value]
    if isinstance(value, dict):
        return {k: _without_seconds(v) for k, v in value.items() if not any(part in k for part in SECONDS)}
    return value


def differences(whole: dict, found: dict) -> list[str]:
    """A line for every path that is there too much, missing, or has other bytes."""
    lines = [f"left behind: {path}" for path in found.keys() - whole.keys()]
    lines += [f"missing: {path}" for path in whole.keys() - found.keys()]
    lines += [f"other bytes: {path}" for path in whole.keys() & found.keys() if whole[path] != found[path]]
    return sorted(lines)


def half_written(folder: Path) -> list[str]:
    """A line for every file that has its final name and is not whole; a checkpoint's is final once it is marked."""
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        above = [part for part in path.relative_to(folder).parts if re.fullmatch(r"\..*\.tmp", part)]
        unmarked = path.parent.name.startswith("checkpoint-") and not (path.parent / "complete.json").exists()
        if not (above or unmarked or _is_whole(path)):
            found.append(f"half written: {path.relative_to(folder)}")
    return found


def _is_whole(path: Path) -> bool:
    data = path.read_bytes()
    if path.suffix == ".json":
        try:
            json.loads(data)
        except ValueError:
            return False
    if path.suffix == ".parquet":
        return data[:4] == data[-4:] == b"PAR1"
    if path.suffix == ".safetensors":
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 + size:
            return False
        parts = [part for name, part in json.loads(data[8 : 8 + size]).items() if name != "__metadata__"]
        return len(data) == 8 + size + max(part["data_offsets"][1] for part in parts)
    return path.suffix not in (".trec", ".tsv") or data[-1:] == b"\n"


def complaint(outcome: Outcome) -> str:
    """What a command that failed said last."""
    lines = [line for line in outcome.err.splitlines() if line.strip()]
    return f"exit code {outcome.code}: {lines[-1] if lines else outcome.out[-200:]!r}"


class Search:
    """Rounds of the chain, until there were enough kills."""

    def __init__(self, folder: Path, chain: list[Command], seed: int, real_rounds: int, repeatable: bool):
        self.folder, self.chain, self.choose = folder, chain, random.Random(seed)
        self.real_rounds = real_rounds
        self.kinds = ["operation"] if repeatable else KINDS
        self.counts: Counter = Counter()
        self.faults: list[str] = []
        self.trees: list[dict] = []
        self.whole: dict[bool, list[Outcome]] = {False: []}

    def undisturbed(self) -> None:
        """The chain in forks and, where some rounds are to be so, as a user types it: both give the same bytes."""
        for real in (False, True) if self.real_rounds else (False,):
            folder = self.folder / ("whole-typed" if real else "whole")
            folder.mkdir()
            self.whole[real] = [run(command, folder, real=real) for command in self.chain]
            for command, outcome in zip(self.chain, self.whole[real], strict=True):
                if outcome.code != 0:
                    raise RuntimeError(f"{command.name}, undisturbed: {complaint(outcome)}\n{outcome.err[-3000:]}")
            trees = [tree(folder / command.output) for command in self.chain]
            if self.trees:
                self._note("undisturbed, as typed", sum(map(differences, self.trees, trees), []))
            else:
                self.trees = trees

    def round(self, number: int, kills: int) -> None:
        """One chain, killed at most so often in each step, and compared after each."""
        folder, real = self.folder / f"round-{number}", number <= self.real_rounds
        folder.mkdir()
        for step, command in enumerate(self.chain):
            where, left, restarts = f"round {number}, {command.output}", self.choose.randint(2, kills), 0
            said: list[str] = []
            while True:
                kinds = [kind for kind in self.kinds if not (real and kind == "operation")]
                moment = draw_moment(self.choose, self.whole[real][step], kinds) if left > 0 else None
                outcome = run(command, folder, moment, real)
                if not outcome.killed:
                    break
                left, restarts = left - 1, restarts + 1
                self.counts[command.output, moment.kind, real] += 1
                said.append(f"{moment} {outcome.last}".strip())
                self._note(f"{where} (killed {said[-1]})", half_written(folder / command.output))
            self.counts["restarts"] = max(self.counts["restarts"], restarts)
            where += f" (killed {'; '.join(said) or 'never'})"
            if outcome.code != 0:
                self._note(where, [complaint(outcome)])
                return  # what follows would fail for the same reason
            self._note(where, differences(self.trees[step], tree(folder / command.output)))
        shutil.rmtree(folder)

    def _note(self, where: str, faults: list[str]) -> None:
        self.faults += [f"{where}: {fault}" for fault in faults]
        for fault in faults:
            print(f"FAULT {where}: {fault}"[:400], flush=True)

    @property
    def kills(self) -> int:
        return sum(count for key, count in self.counts.items() if isinstance(key, tuple))

    def line(self) -> str:
        """The figures so far."""
        kinds, steps = Counter(), Counter()
        for key, count in self.counts.items():
            if isinstance(key, tuple):
                steps[key[0]] += count
                kinds[key[1]] += count
        typed = sum(count for key, count in self.counts.items() if isinstance(key, tuple) and key[2])
        parts = [f"{name} {count}" for name, count in sorted(steps.items())]
        parts += [f"by {name} {count}" for name, count in sorted(kinds.items())]
        return f"{self.kills} kills ({', '.join(parts)}; of commands as typed {typed}), {len(self.faults)} faults"


def search(
    folder: Path,
    kills: int,
    seed: int,
    real_rounds: int = 0,
    chain: list[Command] = CHAIN,
    repeatable: bool = False,
    a_step: int = 5,
) -> Search:
    """Kills and compares until there were so many kills."""
    make_inputs(folder)
    found = Search(folder, chain, seed, real_rounds, repeatable)
    found.undisturbed()
    files = [path for one in found.trees for path, content in one.items() if content is not None]
    took = sum(outcome.seconds for outcome in found.whole[False])
    print(f"undisturbed: {len(files)} files to compare, {took:.0f} s", flush=True)
    number, start = 0, time.monotonic()
    while found.kills < kills:
        number += 1
        found.round(number, a_step)
        print(f"round {number}, {time.monotonic() - start:.0f} s: {found.line()}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--typed", type=int, default=1, help="so many rounds run the commands as a user types them")
    parser.add_argument("--steps", nargs="+", help="only these of prepared, trained, context, results, reproduction")
    parser.add_argument("--without_troubles", action="store_true", help="kills only")
    parser.add_argument("--repeatable", action="store_true", help="only kills that a seed repeats exactly")
    args = parser.parse_args()
    if args.repeatable and args.typed:
        parser.error("--repeatable counts the operations of forks: give --typed 0 with it")
    chain = [command for command in CHAIN if args.steps is None or command.output in args.steps]
    print(
        f"seed {args.seed}; again: python tests/kill_anywhere.py --kills {args.kills} --seed {args.seed}", flush=True
    )
    try:
        found = search(FOLDER, args.kills, args.seed, args.typed, chain, args.repeatable)
        if not args.without_troubles:
            Troubles(found, tree, differences, half_written).all()
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
    print(f"{found.line()}, at most {found.counts['restarts']} restarts of one step")
    sys.exit(bool(found.faults))


if __name__ == "__main__":
    main()
