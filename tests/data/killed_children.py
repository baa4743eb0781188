"""Runs a data script again and again, each time killing it with SIGKILL at a certain file, then once to the end.

Reads JSON from standard input: a list of objects with `script`, `argv`, and `kills`, a list of `[when, end of path]`,
where `when` says whether the kill comes before or after the file gets its final name. Prints all exit codes.
"""

import json
import os
import runpy
import signal
import sys

# Imported once, here; every child is a fork that has not run anything yet.
import modeling_cobert.commands.prepare  # noqa: F401


def kill_at(when: str, end: str) -> None:
    replace = os.replace

    def replace_and_die(source, target):
        hit = str(target).endswith(end)
        if hit and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
        if hit:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace_and_die


def run(script: str, argv: list[str], kill: list[str] | None) -> int:
    """One child's exit code."""
    child = os.fork()
    if child == 0:
        if kill is not None:
            kill_at(*kill)
        sys.argv = [script, *argv]
        sys.stdout = sys.stderr
        code = 1
        try:
            runpy.run_path(script, run_name="__main__")
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    jobs = json.load(sys.stdin)
    json.dump([[run(j["script"], j["argv"], kill) for kill in [*j["kills"], None]] for j in jobs], sys.stdout)
