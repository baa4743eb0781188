"""Progress where nobody watches: lines, at most one a minute, and nothing at all of what is over soon."""

import io
import subprocess
import sys
from types import SimpleNamespace

import pytest
import tqdm.std

from modeling_cobert.steps import progress
from modeling_cobert.steps.progress import progress_bar

# The module alone, since the package would take its seconds to load.
LOOP = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("progress", sys.argv[2])
progress = importlib.util.module_from_spec(spec)
spec.loader.exec_module(progress)
progress.A_MINUTE = float(sys.argv[1])
for _ in progress.progress_bar(range(5), desc="Walking", unit="steps"):
    pass
with progress.progress_bar(desc="Counting", unit="pairs", total=30) as bar:
    for _ in range(3):
        bar.update(10)
list(progress.progress_bar(range(5), desc="Hidden", unit="steps", show=False))
"""


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when the test says so."""
    seconds = [1000.0]
    monkeypatch.setattr(tqdm.std, "time", lambda: seconds[0])
    return seconds


@pytest.fixture
def pipe(monkeypatch):
    """What `progress_bar` takes for the standard error; pytest puts its own in place of one that is set here."""
    made = io.StringIO()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=made))
    return made


def run_loop(minute):
    command = [sys.executable, "-c", LOOP, str(minute), progress.__file__]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""
    return done.stderr.decode()


def test_a_short_loop_in_a_pipe_prints_nothing():
    assert run_loop(progress.A_MINUTE) == ""
    assert progress.A_MINUTE == 60


def test_lines_in_a_pipe_are_lines():
    printed = run_loop(0)
    assert "\r" not in printed and "\x1b" not in printed and printed.endswith("\n")
    lines = printed.split("\n")[:-1]
    assert all(line.startswith(("Walking: ", "Counting: ")) for line in lines)
    assert all(len(line) <= 100 and line == line.strip() and line.isascii() for line in lines)
    assert [line.split("|")[-1].split()[0] for line in lines if line.startswith("Counting")][-3:] == [
        "10/30",
        "20/30",
        "30/30",
    ]


@pytest.mark.parametrize("seconds", [1, 7, 59, 60, 90])
@pytest.mark.parametrize("by_iterating", [False, True])
def test_at_most_a_line_a_minute(clock, pipe, seconds, by_iterating):
    steps, times, seen = 600 // seconds, [], 0

    def note():
        nonlocal seen
        if len(pipe.getvalue()) > seen:
            times.append(clock[0])
            seen = len(pipe.getvalue())

    if by_iterating:
        for _ in progress_bar(range(steps), desc="Walking", unit="steps"):
            note()
            clock[0] += seconds
    else:
        with progress_bar(desc="Walking", unit="steps", total=steps) as bar:
            for _ in range(steps):
                clock[0] += seconds
                bar.update()
                note()
    assert times[0] >= 1060
    assert all(later - earlier >= 60 for earlier, later in zip(times, times[1:], strict=False))
    assert len(times) >= 4  # and it does say something
    assert pipe.getvalue().count("\n") in (len(times), len(times) + 1)  # iterating, the last one comes at the end
    assert "\r" not in pipe.getvalue()


def test_work_that_slows_down_is_not_told_of_twice(clock, pipe):
    """tqdm has a thread that wakes bars whose pace has dropped; the line it prints comes on top of the bar's own."""
    bar = progress_bar(desc="Walking", unit="steps", total=10_000)
    for _ in range(200):
        clock[0] += 1
        bar.update(10)
    assert pipe.getvalue().count("\n") == 3
    # What that thread asks before it wakes a bar.
    assert not (bar.miniters > 1)
    bar.close()
    assert pipe.getvalue().count("\n") == 3


def test_nothing_is_printed_by_processes_that_do_not_show(clock, pipe):
    with progress_bar(desc="Walking", unit="steps", total=3, show=False) as bar:
        for _ in range(3):
            clock[0] += 100
            bar.update()
    assert pipe.getvalue() == ""


def test_a_terminal_has_a_bar(clock, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar(desc="Walking", unit="steps", total=3) as bar:
        bar.update()
        assert terminal.getvalue() == ""  # what is over in 3 seconds needs none
        for _ in range(2):
            clock[0] += 4
            bar.update()
    assert "\r" in terminal.getvalue() and "Walking" in terminal.getvalue()
