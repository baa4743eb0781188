"""Files made by an enemy: code in pickles and beside models, sizes that would fill the memory, paths out of a folder.

    make fuzz-hostile        # every case; `tests/test_hostile_checkpoints.py` has some

Each case is a command of `cobert` on such files, in a process of its own whose memory and time are limited. It must
end with one line that names the file or its folder, and nothing of the enemy's code may have run.
"""

import argparse
import gzip
import json
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import tiny
import tiny_collection
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_rows import make_rows

from modeling_cobert import cli
from modeling_cobert.data.rows import SCHEMA
from modeling_cobert.data.rows_card import split_file

# Beyond what the process has when it begins; what a command with a tiny model really takes is far below.
MEMORY, SECONDS = 1 << 31, 40
SIZES = "--calibrator_layers 1 --scorer_layers 2 --max_length 32 --num_prototypes 2 --group_size 5 --group_overlap 1"
SIZES = f"{SIZES} --num_train_epochs 1 --use_cpu --disable_tqdm True".split()
HUGE = 10**12
FINE = ("refused", "done")


@dataclass(frozen=True)
class Case:
    """
    A command, and how it must end.

    Args:
        command (`list`): of `cobert`.
        names (`str`, *optional*): what the line must say; without it the files are harmless to us, and the command
            must go through.
    """

    command: list
    names: str | None


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.mknod, (str(self.marker),)


class Sandbox:
    """Healthy files, and copies of them that an enemy has changed."""

    def __init__(self, folder: Path):
        self.folder, self.marker = folder, folder / "MARKER"
        self.count = 0
        self.collection = tiny_collection.make(folder / "words")
        self.rows = make_rows(folder / "rows")
        self.cobert = tiny.checkpoint(folder / "cobert")
        self.positions = tiny.checkpoint(folder / "positions", scorer_positions=True)
        self.cross = tiny.bert_checkpoint(folder / "cross", layers=4, labels=2)
        self.bi = tiny.bert_checkpoint(folder / "bi", layers=4)
        (folder / "documents.jsonl").write_text('{"text": "bees see"}\n{"text": "the red car"}\n')

    def copy(self, source: Path) -> Path:
        self.count += 1
        return Path(shutil.copytree(source, self.folder / f"enemy-{self.count}"))

    def altered(self, source: Path, file: str = "config.json", part: str | None = None, **fields) -> Path:
        """A copy with other fields in a JSON file."""
        folder = self.copy(source)
        content = json.loads((folder / file).read_text())
        (content if part is None else content[part]).update(fields)
        (folder / file).write_text(json.dumps(content))
        return folder

    def pickled(self, source: Path, name: str = "pytorch_model.bin") -> Path:
        """A copy whose weights are a pickle that makes a file."""
        folder = self.copy(source)
        (folder / "model.safetensors").unlink()
        self.bomb(folder / name)
        return folder

    def bomb(self, path: Path) -> None:
        torch.save({"encoder.weight": Bomb(self.marker)}, path)

    def with_code(self, folder: Path, file: str, **fields) -> Path:
        """Names Python code beside it that makes a file when it is imported."""
        folder = self.altered(folder, file, **fields)
        (folder / "enemy.py").write_text(
            f"open({str(self.marker)!r}, 'w')\n"
            "from transformers import BertConfig, BertModel, BertTokenizer\n"
            "class Config(BertConfig): model_type = 'enemy'\n"
            "class Model(BertModel): config_class = Config\n"
            "class Tokenizer(BertTokenizer): pass\n"
        )
        return folder

    # --- commands

    def output(self) -> Path:
        self.count += 1
        return self.folder / f"output-{self.count}"

    def rerank(self, model: Path, *more) -> list:
        return ["rerank", "--model", model, "--query", "bees", "--use_cpu", self.folder / "documents.jsonl", *more]

    def train(self, *more, rows: Path | None = None, output: Path | None = None, layers: bool = True) -> list:
        sizes = SIZES if layers else SIZES[4:]
        return ["train", "--rows", rows or self.rows, "--output_dir", output or self.output(), *sizes, *more]

    def go_on(self, model: Path, option: str = "--checkpoint", *more) -> list:
        return ["train", "--rows", self.rows, "--output_dir", self.output(), option, model, *more, "--use_cpu"]

    def select(self, selector: Path, *more) -> list:
        common = ["--collection", self.collection, "--skip_missing", "--run", self.collection / "run.trec"]
        return ["select", *common, "--selector", selector, "--max_length", "32", "--output", self.output(), *more]

    def bert_qe(self, **phases) -> list:
        given = {"phase1": self.cross, "phase2": self.cross, "phase3": self.cross} | phases
        common = ["--collection", self.collection, "--skip_missing", "--run", self.collection / "run.trec"]
        options = [argument for name, value in given.items() for argument in (f"--{name}", value)]
        return ["bert-qe", *common, *options, "--max_length", "32", "--output", self.output()]


def code_cases(box: Sandbox) -> dict[str, Case]:
    """Where code might run."""
    cases: dict[str, Case] = {}

    def add(name: str, folder: Path, command: list, names: str | None = None) -> None:
        cases[f"code: {name}"] = Case(command, names or str(folder))

    for name in ("pytorch_model.bin", "model.bin", "adapter_model.bin"):
        add(f"--model is {name}", f := box.pickled(box.cobert, name), box.rerank(f))
        add(f"--encoder is {name}", f := box.pickled(box.cross, name), box.train("--encoder", f))
    add("--checkpoint", f := box.pickled(box.cobert), box.go_on(f))
    calibrator = box.pickled(box.bi)
    add("--calibrator", calibrator, box.train("--encoder", box.cross, "--calibrator", calibrator, layers=False))
    evaluation = ["eval", "--rows", box.rows, "--output", box.output(), "--use_cpu"]
    add("eval", f := box.pickled(box.cobert), [*evaluation, "--model", f])
    for kind in ("cross", "bi"):
        add(f"--selector, {kind}", f := box.pickled(getattr(box, kind)), box.select(f))
    for phase in ("phase1", "phase2", "phase3"):
        add(f"bert-qe, {phase}", f := box.pickled(box.cross), box.bert_qe(**{phase: f}))
    add("--selector of rerank", f := box.pickled(box.cross), box.rerank(box.cobert, "--selector", f))

    index = {"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": "shard.bin"}}
    for kind, command in (("cobert", box.rerank), ("bi", box.select)):
        for file in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
            folder = box.pickled(getattr(box, kind), "shard.bin")
            (folder / file).write_text(json.dumps(index))
            add(f"{file} of {kind}", folder, command(folder))

    maps = {
        "AutoConfig": "enemy.Config",
        "AutoModel": "enemy.Model",
        "AutoModelForSequenceClassification": "enemy.Model",
    }
    for model_type in ("bert", "enemy"):
        for kind in ("cross", "bi"):
            folder = box.with_code(getattr(box, kind), "config.json", auto_map=maps, model_type=model_type)
            names = str(folder) if model_type == "enemy" else None  # a BERT that brings code too is a BERT
            cases[f"code: auto_map of {model_type}, {kind} --selector"] = Case(box.select(folder), names)
            cases[f"code: auto_map of {model_type}, {kind} --encoder"] = Case(box.train("--encoder", folder), names)
    folder = box.with_code(box.bi, "config.json", auto_map=maps, model_type="enemy")
    add("auto_map, flops --bi_encoder", folder, ["flops", "--bi_encoder", folder])
    add("auto_map, flops --model", folder, ["flops", "--model", folder])
    add("auto_map, rerank", folder, box.rerank(folder))
    maps = {"AutoTokenizer": ["enemy.Tokenizer", "enemy.Tokenizer"]}
    folder = box.with_code(box.bi, "tokenizer_config.json", auto_map=maps, tokenizer_class="EnemyTokenizer")
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").unlink(missing_ok=True)
    add("auto_map of a tokenizer", folder, box.select(folder))
    folder = box.with_code(box.bi, "config.json")
    modules = [{"idx": 0, "name": "0", "path": "", "type": "enemy.Model"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    add("modules.json", folder, box.select(folder))
    return cases


def resumption_cases(box: Sandbox) -> dict[str, Case]:
    """What a resumed training reads, each replaced by a pickle that would run."""
    begun = box.folder / "begun"
    run(
        box.train(
            "--encoder", box.cross, "--save_strategy", "epoch", "--load_best_model_at_end", "False", output=begun
        )
    )
    (begun / "results.json").unlink()
    settings = json.loads((begun / "settings.json").read_text())
    (begun / "settings.json").write_text(json.dumps(settings | {"counts": None}))
    (state,) = begun.glob("checkpoint-*/trainer_state.json")
    found = json.loads(state.read_text())
    state.write_text(json.dumps(found | {"global_step": 1, "epoch": 0.1}))
    mark = state.with_name("complete.json")  # whoever puts a file in leaves out the list, or writes it anew
    note = json.loads(mark.read_text())
    mark.write_text(json.dumps({key: value for key, value in note.items() if key != "made"}))
    cases = {}
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "pytorch_model.bin", "training_args.bin"):
        output = box.copy(begun)
        (checkpoint,) = output.glob("checkpoint-*")
        if name == "pytorch_model.bin":
            (checkpoint / "model.safetensors").unlink()
        box.bomb(checkpoint / name)
        command = box.train("--encoder", box.cross, "--load_best_model_at_end", "False", output=output)
        cases[f"resume: {name}"] = Case(command, None if name == "training_args.bin" else str(output))
        given = box.train(
            "--encoder", box.cross, "--load_best_model_at_end", "False", "--resume_from_checkpoint", checkpoint
        )
        cases[f"resume, given: {name}"] = Case(given, None if name == "training_args.bin" else str(checkpoint))
    return cases


def size_cases(box: Sandbox) -> dict[str, Case]:
    """Sizes that would fill the memory."""
    cases: dict[str, Case] = {}
    sizes = {
        "hidden_size": 10**9,
        "num_hidden_layers": 10**6,
        "vocab_size": HUGE,
        "max_position_embeddings": HUGE,
        "intermediate_size": HUGE,
        "type_vocab_size": HUGE,
        "num_labels": HUGE,
        "num_attention_heads": HUGE,
    }
    for field, value in sizes.items():
        folder = box.altered(box.cobert, part="encoder_config", **{field: value})
        cases[f"size: encoder_config.{field} of --model"] = Case(box.rerank(folder), str(folder))
        if field in ("num_hidden_layers", "num_labels") or value == HUGE:  # of other sizes flops tells the cost
            cases[f"size: encoder_config.{field}, flops"] = Case(["flops", "--model", folder], str(folder))
        folder = box.altered(box.cross, **{field: value})
        cases[f"size: {field} of --encoder"] = Case(box.train("--encoder", folder), str(folder))
        for kind in ("cross", "bi"):
            folder = box.altered(getattr(box, kind), **{field: value})
            cases[f"size: {field} of --selector, {kind}"] = Case(box.select(folder), str(folder))
    for part in ("scorer_config", "calibrator_config"):
        for field in ("num_hidden_layers", "intermediate_size"):
            folder = box.altered(box.cobert, part=part, **{field: sizes[field]})
            cases[f"size: {part}.{field}"] = Case(box.rerank(folder), str(folder))
    for field in ("group_size", "num_prototypes", "content_size", "passage_words", "max_length", "num_labels"):
        more = {"selector": str(box.bi), "starting_weights": [1, 1, 1]} if field == "content_size" else {}
        folder = box.altered(box.cobert, **{field: HUGE, **more})
        cases[f"size: {field} of --model"] = Case(box.rerank(folder), str(folder))
        cases[f"size: {field} of --checkpoint"] = Case(box.go_on(folder), str(folder))
    folder = box.altered(box.positions, group_size=HUGE)
    cases["size: positions of a scorer"] = Case(box.rerank(folder), str(folder))
    command = box.train("--encoder", box.cross, "--num_prototypes", HUGE)
    cases["size: --num_prototypes"] = Case(command, "num_prototypes")
    return cases


def weight_cases(box: Sandbox) -> dict[str, Case]:
    """Weights whose headers lie."""
    cases = {}
    tensor = {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}
    empty = {"dtype": "F32", "shape": [1 << 62, 0], "data_offsets": [0, 0]}
    heads = {
        "a header of 2^63 bytes": (1 << 63).to_bytes(8, "little"),
        "a header of 99 MB": (99_000_000).to_bytes(8, "little"),
        "sizes beyond the file": packed({"a": tensor}),
        "an empty shape": packed({"classifier.weight": empty}),
        "a deep header": packed_text(b"[" * 100_000),
    }
    for name, content in heads.items():
        for kind, command in (("cobert", box.rerank), ("cross", box.select)):
            folder = box.copy(getattr(box, kind))
            (folder / "model.safetensors").write_bytes(content)
            cases[f"weights: {name}, {kind}"] = Case(command(folder), str(folder))
    for kind, command in (("cobert", box.rerank), ("cross", box.select)):
        folder = box.copy(getattr(box, kind))
        weights = load_file(folder / "model.safetensors")
        lacking = {key: value for key, value in weights.items() if "embeddings" not in key}
        save_file(lacking, folder / "model.safetensors")
        cases[f"weights: no embeddings, {kind}"] = Case(command(folder), str(folder))
    return cases


def tokenizer_cases(box: Sandbox) -> dict[str, Case]:
    """Numbers in tokenizer files."""
    cases = {}
    known = json.loads((box.cobert / "tokenizer.json").read_text())
    word = {"id": 2**32 - 1, "content": "enemy", "single_word": False, "lstrip": False, "rstrip": False}
    word |= {"normalized": False, "special": True}
    vocabulary = known["model"]["vocab"] | {"bees": 2**32 - 1}
    fields = {
        "an id": {"added_tokens": [*known["added_tokens"], word]},
        "an id of a word": {"model": known["model"] | {"vocab": vocabulary}},
        "an id beyond": {"model": known["model"] | {"vocab": vocabulary | {"car": HUGE}}},
    }
    for name, changed in fields.items():
        for kind, command in (("cobert", box.rerank), ("bi", box.select)):
            folder = box.altered(getattr(box, kind), "tokenizer.json", **changed)
            cases[f"tokenizer: {name}, {kind}"] = Case(command(folder), str(folder))
    return cases


def packed(header: dict) -> bytes:
    return packed_text(json.dumps(header).encode())


def packed_text(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + bytes(64)


def bomb_cases(box: Sandbox) -> dict[str, Case]:
    """Small files that become large."""
    cases = {}
    huge = box.copy(box.collection)
    with open(huge / "corpus.jsonl", "ab") as file:  # a hole: it takes no place on the disk
        file.truncate(1 << 30)
    cases["bomb: a line of 1 GB"] = Case(
        ["retrieve", "--collection", huge, "--output", box.output()], str(huge / "corpus.jsonl")
    )
    packed_line = box.folder / "line.jsonl.gz"
    with gzip.open(packed_line, "wb", compresslevel=9) as file:
        file.write(b'{"text": "')
        for _ in range(1 << 10):
            file.write(b"a" * (1 << 20))
    cases["bomb: a packed line of 1 GB"] = Case([*box.rerank(box.cobert)[:-1], packed_line], str(packed_line))
    run_file = box.folder / "run.trec.gz"
    shutil.copy(packed_line, run_file)
    cases["bomb: a packed run"] = Case(
        ["compare", "--qrels", box.collection / "qrels" / "test.tsv", "--baselines", run_file], str(run_file)
    )
    rows = box.copy(box.rows)
    (path,) = (rows / "data").glob("train-*.parquet")
    inflate(path, "passages")
    cases["bomb: rows"] = Case(box.train("--encoder", box.cross, rows=rows), str(rows))
    rows = box.copy(box.rows)
    (path,) = (rows / "data").glob("train-*.parquet")
    inflate(path, "query_id")
    cases["bomb: ids of rows"] = Case(box.train("--encoder", box.cross, rows=rows), str(rows))
    return cases


def inflate(path: Path, column: str) -> None:
    """Writes a table where one text of 1 MB stands 8192 times: its file has it once, and packed."""
    table = pq.read_table(path, schema=SCHEMA).slice(0, 1)
    many = pa.DictionaryArray.from_arrays(pa.array([0] * 8192, pa.int32()), pa.array(["a" * (1 << 20)]))
    if column == "query_id":
        table = pa.concat_tables([table] * 8192)
    else:
        many = pa.ListArray.from_arrays(pa.array([0, 8192], pa.int32()), many)
    table = table.set_column(table.column_names.index(column), column, many)
    pq.write_table(table, path, compression="zstd", store_schema=False, dictionary_pagesize_limit=1 << 24)


def path_cases(box: Sandbox) -> dict[str, Case]:
    """Names that lead out of a folder."""
    cases = {}
    outside = box.copy(box.bi)
    for kind, command in (("cobert", box.rerank), ("bi", box.select)):
        folder = box.copy(getattr(box, kind))
        shutil.move(folder / "model.safetensors", folder.parent / f"{kind}-outside.safetensors")
        weights = load_file(folder.parent / f"{kind}-outside.safetensors")
        index = {"metadata": {}, "weight_map": dict.fromkeys(weights, f"../{kind}-outside.safetensors")}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        cases[f"path: shards of {kind}"] = Case(command(folder), str(folder))
    folder = box.copy(box.bi)
    modules = [{"type": "sentence_transformers.models.Transformer", "path": ""}]
    modules += [{"type": "sentence_transformers.models.Pooling", "path": f"../{outside.name}"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    cases["path: modules.json"] = Case(box.select(folder), str(folder))
    folder = box.copy(box.bi)
    (folder / "model.safetensors").unlink()
    adapter = {"base_model_name_or_path": str(outside), "peft_type": "LORA", "target_modules": ["query"], "r": 2}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    cases["path: adapter_config.json"] = Case(box.select(folder), str(folder))
    for split in ("../../outside", "a/b", "", "x\0y"):
        rows = box.altered(box.rows, "settings.json", splits=["train", "validation", "test", split])
        place = rows / f"data/{split}-00000-of-00001.parquet" if "\0" not in split else None
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(rows / split_file("test"), place)
        cases[f"path: split {split!r}"] = Case(box.train("--encoder", box.cross, rows=rows), str(rows))
    return cases


SECTIONS = {
    "code": code_cases,
    "resume": resumption_cases,
    "size": size_cases,
    "weights": weight_cases,
    "tokenizer": tokenizer_cases,
    "bomb": bomb_cases,
    "path": path_cases,
}


def run(command: Iterable) -> None:
    cli.main([str(argument) for argument in command])


def outcome(box: Sandbox, case: Case, log: Path) -> str:
    """`refused`, or what went wrong."""
    child = os.fork()
    if child == 0:
        _limited(case.command, log)
    _, status = os.waitpid(child, 0)
    said = log.read_text(errors="replace")
    lines = [line for line in said.splitlines() if not line.startswith(("WARNING ", "INFO "))]
    last = lines[-1][:400] if lines else "nothing"
    if box.marker.exists():
        box.marker.unlink()
        return f"CODE RAN ({last})"
    if os.WIFSIGNALED(status):
        return f"killed by signal {os.WTERMSIG(status)} ({last})"
    code = os.WEXITSTATUS(status)
    if code == 0:
        return "done" if case.names is None else f"accepted ({last})"
    errors = [line for line in lines if line.startswith("error: ")]
    if code != 1 or len(errors) != 1 or lines[-1] != errors[0]:  # transformers may have a table to show before it
        return f"exit {code}, {len(lines)} lines ({last})"
    if "bug in cobert" in last:
        return f"not told as what it is ({last})"
    return "refused" if case.names is not None and case.names in errors[0] else f"does not name {case.names} ({last})"


def _limited(command: list, log: Path) -> None:
    """In the child: the command, with limits; does not return."""
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # whatever a test runner has put there
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        spent = int(sum(os.times()[:2]))
        resource.setrlimit(resource.RLIMIT_CPU, (spent + SECONDS, spent + SECONDS))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 31, 1 << 31))
        run(command)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException as error:
        print(f"{type(error).__name__}: {error}")
        code = 3
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def tell(line: str) -> None:
    print(line, flush=True)


def search(sections: Iterable[str], only: Iterable[str] = ()) -> dict[str, str]:
    """What came of the cases of some sections, or of some of these."""
    folder = Path(tempfile.mkdtemp())
    try:
        box = Sandbox(folder)
        found = {}
        for section in sections:
            for name, case in SECTIONS[section](box).items():
                if not only or name in only:
                    found[name] = outcome(box, case, folder / "log").replace(str(folder), "")
                    tell(f"{name:<55} {found[name]}")
        return found
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=[*SECTIONS], help=f"Some of {', '.join(SECTIONS)}.")
    parser.add_argument("--only", nargs="+", default=[], help="The names of cases.")
    args = parser.parse_args()
    transformers.logging.disable_progress_bar()
    found = search(args.sections, args.only)
    faults = sum(result not in FINE for result in found.values())
    tell(f"{len(found)} cases, {faults} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
