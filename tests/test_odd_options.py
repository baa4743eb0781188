"""A sample of `make fuzz-options`: every command, options that nobody means."""

import random

import odd_options


def test_options_that_nobody_means(tmp_path):
    names = odd_options.sandbox(tmp_path)
    known = list(odd_options.cases(names, list(odd_options.COMMANDS)))
    chosen = random.Random(7).sample(known, 150)
    ends = list(odd_options.run_cases(chosen, names, tmp_path))
    assert [end for end in ends if end[-1]] == []
    # The sample reaches the ends that there are, and is not refused as a whole for another reason.
    assert {end[3] for end in ends} == {0, 1, 2}
