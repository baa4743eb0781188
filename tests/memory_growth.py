"""Does memory grow with the number of calls of `model.rerank`?

    make invariants CALLS=10000      # at full size; `tests/test_invariants.py` has a short version

Each call has texts that no call before it had, so that whatever remembers them would grow.
"""

import argparse
import gc
import random
import string
import sys
import tempfile
import tracemalloc
from pathlib import Path

import tiny
import torch

KNOWN = {"starting_weights": [0.7, 0.4, 0.5], "feedback_weight": 0.8, "neighbour_weight": 0.6}
# One object kept a call would be thousands; those of other threads and of the interpreter come and go by a few.
OBJECTS = 100
# A call that kept no more than its six texts would keep 500 bytes of them. What Python and torch keep for the next
# call (free lists) fills up over some thousand calls: a hundred bytes each, at first.
BYTES_A_CALL = 300
# The allocators of C keep what they once had, and round up: a few megabytes however many calls there are. To keep one
# query's vectors (1 KB) of 10,000 calls would be 10 MB.
RESIDENT = 6 * 2**20


def make_model(folder: Path):
    """All that ranks: encoder, calibrator, scorer, start, feedback and neighbours."""
    sizes = {"encoder": (4, 40), "calibrator": (3, 28), "scorer": (2, 36)}
    parts = {f"{name}_config": tiny.bert_config(1, *shape) for name, shape in sizes.items()}
    made = tiny.model(**KNOWN, **parts)
    torch.nn.init.normal_(made.classifier.weight)
    made.tokenizer = tiny.tokenizer(folder)
    return made


def rank(model, choose: random.Random, calls: int) -> None:
    for _ in range(calls):
        letters = ["".join(choose.choices(string.ascii_lowercase, k=5)) for _ in range(3)]
        documents = [" ".join(choose.choices(tiny.WORDS + letters, k=choose.randint(0, 14))) for _ in range(6)]
        model.rerank(" ".join(letters[:2]), documents)


def resident() -> int:
    """The process's memory, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def growth(calls: int, warm_up: int, traced: int) -> dict[str, float]:
    """
    What there is more after `calls` calls than before: `resident` bytes, `objects` that the garbage collector knows;
    and, over `traced` further calls, Python's own `bytes` a call, by tracemalloc.
    """
    choose = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder))
        rank(model, choose, warm_up)
        gc.collect()
        before = resident(), len(gc.get_objects())
        rank(model, choose, calls)
        gc.collect()
        after = resident(), len(gc.get_objects())
        tracemalloc.start()
        rank(model, choose, traced)  # Python keeps some small pieces of memory for the next call
        gc.collect()
        first = tracemalloc.get_traced_memory()[0]
        rank(model, choose, traced)
        gc.collect()
        last = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    return {
        "resident": after[0] - before[0],
        "objects": after[1] - before[1],
        "bytes": (last - first) / traced,
    }


def faults(found: dict[str, float]) -> list[str]:
    """What grows by more than it may."""
    bounds = {"resident": RESIDENT, "objects": OBJECTS, "bytes": BYTES_A_CALL}
    return [
        f"{name}: {found[name]:+.0f}, which may be {bound}" for name, bound in bounds.items() if found[name] > bound
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    args = parser.parse_args()
    found = growth(args.calls, warm_up=max(200, args.calls // 20), traced=max(100, args.calls // 20))
    print(
        f"after {args.calls} calls: {found['resident'] / 2**20:+.2f} MB resident, {found['objects']:+d} objects, "
        f"{found['bytes']:+.1f} bytes a call by tracemalloc"
    )
    wrong = faults(found)
    print("\n".join(wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
