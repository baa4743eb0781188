"""Peak memory and time of a training step: plain, and with the encoder in chunks.

    python benchmarks/training_memory.py --chunk_sizes 4 8 16

A random Co-BERT of BERT-Base's size (12 layers, 768 wide, calibrator of 2 and scorer of 4 layers), one group of 4 + 60
pairs of 256 tokens, Adam. Each way runs in a process of its own, all in one call. Memory is the peak of the process
(`ru_maxrss`) less what it had once model, gradients and Adam's moments were there; so it is what a step adds to that.
The plain step of 64 pairs needs about 20 GB in all. CPU seconds are those of all threads, also on a busy machine.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time


def peak_bytes() -> int:
    # Linux counts in KiB, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def run_steps(options: argparse.Namespace) -> dict:
    """One way, in this process: steps to warm up, then the measured ones."""
    import torch

    from modeling_cobert import CoBertConfig, CoBertForGroupwiseRanking
    from modeling_cobert.training.gradient_cache import encoder_in_chunks

    torch.manual_seed(0)
    model = CoBertForGroupwiseRanking(CoBertConfig()).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    before = peak_bytes()
    shape = (1, options.pairs, options.tokens)
    batch = {
        "input_ids": torch.randint(5, 30000, shape),
        "attention_mask": torch.ones(shape, dtype=torch.long),
        "labels": torch.randint(0, 2, (1, options.pairs - model.num_prototypes)),
    }
    times, work = [], []
    with encoder_in_chunks(model, options.chunk_size):
        for _ in range(options.warmup + options.steps):
            start, worked = time.perf_counter(), time.process_time()
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            times.append(time.perf_counter() - start)
            work.append(time.process_time() - worked)
    times, work = times[options.warmup :], work[options.warmup :]
    return {"bytes": peak_bytes() - before, "seconds": min(times), "cpu_seconds": min(work)}


def main(options: argparse.Namespace) -> None:
    """Every way in a process of its own, then the table."""
    if options.child:
        print(json.dumps(run_steps(options)))
        return
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "MALLOC_MMAP_THRESHOLD_": "65536"}
    plain = None
    print("| encoder chunk | memory above weights, GiB | share | seconds | ratio | CPU seconds | ratio |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for size in [None, *options.chunk_sizes]:
        command = [sys.executable, __file__, "--child", "--pairs", options.pairs, "--tokens", options.tokens]
        command += ["--steps", options.steps, "--warmup", options.warmup]
        command += [] if size is None else ["--chunk_size", size]
        done = subprocess.run(list(map(str, command)), env=environment, stdout=subprocess.PIPE, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        plain = plain or found
        print(
            f"| {size or 'all at once'} | {found['bytes'] / 2**30:.2f} | {found['bytes'] / plain['bytes']:.3f} "
            f"| {found['seconds']:.1f} | {found['seconds'] / plain['seconds']:.2f} "
            f"| {found['cpu_seconds']:.1f} | {found['cpu_seconds'] / plain['cpu_seconds']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunk_sizes", type=int, nargs="+", default=[4, 8, 16], help="pairs a chunk, one run each")
    parser.add_argument("--pairs", type=int, default=64, help="prototypes and candidates of the group")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of every pair")
    parser.add_argument("--steps", type=int, default=2, help="measured steps, of which the fastest counts")
    parser.add_argument("--warmup", type=int, default=1, help="steps before them")
    parser.add_argument("--chunk_size", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    main(parser.parse_args())
