"""Training and ranking on 1, 2 and 4 processes and on two "machines" on loopback, and with a process killed.

    make processes

What must hold: N processes twice give the same bytes; two machines of one process each give those of two processes of
one machine; a training on N processes agrees to 1e-5 with one process that accumulates N batches; rankings and
selections have the same bytes on any number. Where one process is killed with SIGKILL the others end, with a message,
within a bounded time, and the same command goes on to the same bytes.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tiny
import tiny_collection
from safetensors.torch import load_file
from tiny_rows import make_rows

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
MOST_SECONDS = 420
# So long the others may take, after one was killed: what starts them gives them half a minute to end by themselves.
BOUND_SECONDS = 120
SMALL = "--num_prototypes 2 --group_size 5 --group_overlap 1".split()


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def launchers(processes: int, machines: int) -> list[list[str]]:
    """The command, before the script, on each machine."""
    if machines == 1:
        return [[str(BIN / "torchrun"), "--nproc_per_node", str(processes), "--master_port", free_port(), "--"]]
    command = [str(BIN / "accelerate"), "launch", "--multi_gpu", "--num_processes", str(processes)]
    command += ["--num_machines", str(machines), "--main_process_ip", "127.0.0.1", "--main_process_port", free_port()]
    command += ["--mixed_precision", "no", "--dynamo_backend", "no", "--rdzv_backend", "static"]
    return [[*command, "--machine_rank", str(rank)] for rank in range(machines)]


class Launch:
    """A script on some processes; each machine's launcher leads a process group of its own."""

    def __init__(self, folder: Path, script: str, words: list, processes: int = 1, machines: int = 1):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
        environment |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "MKL_CBWR": "AUTO,STRICT"}
        self.log, self.start = folder / "log", time.monotonic()
        commands = launchers(processes, machines) if processes > 1 else [[sys.executable]]
        with open(self.log, "wb") as log:
            self.running = [
                subprocess.Popen(
                    [*command, str(ROOT / script), *map(str, words)],
                    env=environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
                for command in commands
            ]

    def workers(self) -> list[int]:
        """The processes that run the script, by what the system says of all that these launchers started."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                names = dict(entry.partition("=")[::2] for entry in path.read_text(errors="replace").split("\0"))
                group = os.getpgid(int(path.parent.name))
                parent = int((path.parent / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, ValueError):
                continue
            ours = {process.pid for process in self.running}
            if "LOCAL_RANK" in names and (group in ours or parent in ours):
                found.append((int(names["RANK"]), int(path.parent.name)))
        return [pid for _, pid in sorted(found)]

    def wait(self, seconds: float) -> list[int]:
        """Exit codes; what takes longer is killed and is a `TimeoutError`."""
        end = time.monotonic() + seconds
        try:
            return [process.wait(max(1, end - time.monotonic())) for process in self.running]
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"not done after {seconds:.0f} s: {self.said()}") from None
        finally:
            for pid in [*self.workers(), *(process.pid for process in self.running if process.poll() is None)]:
                os.kill(pid, signal.SIGKILL)

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-1500:]


def run(folder: Path, *arguments, **options) -> None:
    launch = Launch(folder, *arguments, **options)
    codes = launch.wait(MOST_SECONDS)
    if any(codes):
        raise RuntimeError(f"exit codes {codes}: {launch.said()}")


def kill_one(folder: Path, seen, script: str, words: list, processes: int) -> float:
    """Kills the last process once `seen()` is true; how long the others took to end, all with an error and a word."""
    launch = Launch(folder, script, words, processes)
    end = time.monotonic() + MOST_SECONDS
    while not seen():
        if time.monotonic() > end or launch.running[0].poll() is not None:
            launch.wait(1)
            raise RuntimeError(f"it was done, or never began: {launch.said()}")
        time.sleep(0.01)
    os.kill(launch.workers()[-1], signal.SIGKILL)
    start = time.monotonic()
    codes = launch.wait(BOUND_SECONDS)
    if not all(codes) or "-9" not in launch.said() and "SIGKILL" not in launch.log.read_text(errors="replace"):
        raise RuntimeError(f"exit codes {codes}, and nothing says what happened: {launch.said()}")
    return time.monotonic() - start


def contents(folder: Path) -> dict[str, bytes]:
    """Of every file; those of checkpoints but for their weights, since their notes say how long something took."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "trainer_state.json"]
    # A model card is headed by the name of its folder, which differs here.
    name = folder.name.encode()
    return {
        str(path.relative_to(folder)): path.read_bytes().replace(name, b"" if path.name == "README.md" else name)
        for path in files
    }


class Check:
    """The inputs, and what was found."""

    def __init__(self, folder: Path):
        self.folder, self.faults = folder, []
        self.rows = make_rows(folder / "rows", queries=12)
        self.mine = tiny_collection.make(folder / "mine")
        self.encoder = tiny.bert_checkpoint(
            folder / "encoder", layers=2, labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
        self.model = tiny.checkpoint(folder / "model")

    def say(self, what: str, fine: bool, figure: str = "") -> None:
        print(f"{'ok   ' if fine else 'FAULT'} {what}{figure}", flush=True)
        if not fine:
            self.faults.append(what)

    def same(self, what: str, one: Path, other: Path) -> None:
        first, second = contents(one), contents(other)
        other_bytes = [p for p in first.keys() | second.keys() if first.get(p) != second.get(p)]
        self.say(
            what, not other_bytes and bool(first), f": {len(first)} files" if not other_bytes else f": {other_bytes}"
        )

    def train(self, name: str, accumulation: int = 1) -> tuple[str, list]:
        words = ["--rows", self.rows, "--encoder", self.encoder, "--calibrator_layers", 1, "--scorer_layers", 1]
        words += [*SMALL, "--max_length", 32, "--use_cpu", "True", "--disable_tqdm", "True", "--optim", "sgd"]
        words += ["--learning_rate", 0.01, "--num_train_epochs", 2, "--gradient_accumulation_steps", accumulation]
        return "train_cobert.py", [*words, "--output_dir", self.folder / name]

    def rank(self, name: str) -> tuple[str, list]:
        words = ["--model", self.model, "--rows", self.rows, "--use_cpu", "True", "--threads", 1, *SMALL]
        return "eval_cobert.py", [*words, "--output", self.folder / name]

    def select(self, name: str) -> tuple[str, list]:
        words = ["--collection", self.mine, "--skip_missing", "--run", self.mine / "run.trec", "--folds", "none"]
        words += ["--selector", self.encoder, "--passage_words", 10, "--passage_overlap", 4, "--max_length", 32]
        return "data_scripts/prepare.py", [*words, "--shard_queries", 1, "--output", self.folder / name]

    def trainings(self, counts: tuple[int, ...]) -> None:
        for count in counts:
            run(self.folder, *self.train(f"train-{count}"), processes=count)
            run(self.folder, *self.train(f"train-as-{count}", count))
            one, many = (
                load_file(self.folder / name / "model.safetensors") for name in (f"train-as-{count}", f"train-{count}")
            )
            far = max(float((value - many[name]).abs().max()) for name, value in one.items())
            self.say(f"training on {count} processes agrees with accumulation", far <= 1e-5, f": {far:.1e}")
        run(self.folder, *self.train("train-2-again"), processes=2)
        self.same("training on 2 processes twice", self.folder / "train-2", self.folder / "train-2-again")
        run(self.folder, *self.train("train-machines"), processes=2, machines=2)
        self.same(
            "training on two machines, as on 2 processes", self.folder / "train-2", self.folder / "train-machines"
        )

    def shared(self, kind: str, counts: tuple[int, ...]) -> None:
        work = getattr(self, kind)
        run(self.folder, *work(f"{kind}-1"))
        for count in counts:
            run(self.folder, *work(f"{kind}-{count}"), processes=count)
            self.same(
                f"{kind} on {count} processes, as on one", self.folder / f"{kind}-1", self.folder / f"{kind}-{count}"
            )
        run(self.folder, *work(f"{kind}-machines"), processes=2, machines=2)
        self.same(
            f"{kind} on two machines, as on one process", self.folder / f"{kind}-1", self.folder / f"{kind}-machines"
        )

    def killed(self, kind: str, pattern: str, whole: str) -> None:
        name = f"{kind}-killed"
        work = getattr(self, kind)(name)
        took = kill_one(self.folder, lambda: any((self.folder / name).glob(pattern)), *work, processes=2)
        self.say(f"{kind}: one of 2 processes killed, the others end", took < BOUND_SECONDS, f" after {took:.0f} s")
        run(self.folder, *work, processes=2)
        self.same(f"{kind}: then the same command goes on", self.folder / whole, self.folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[2, 4])
    counts = tuple(parser.parse_args().counts)
    folder, start = Path(tempfile.mkdtemp(prefix="processes-")), time.monotonic()
    try:
        check = Check(folder)
        check.shared("rank", counts)
        check.killed("rank", ".parts/*.parquet", "rank-1")
        check.trainings(counts)
        check.killed("train", "checkpoint-*/complete.json", "train-2")
        check.shared("select", counts)
        check.killed("select", "selected/shards/*.parquet", "select-1")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(check.faults)} faults, {time.monotonic() - start:.0f} s")
    sys.exit(bool(check.faults))


if __name__ == "__main__":
    main()
