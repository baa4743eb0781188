"""A short walk through damaged files: every one is read as it is, or refused in a line (`make fuzz-files` goes on)."""

import damaged_files


def test_damaged_files_are_read_as_they_are_or_refused():
    counts, faults = damaged_files.search(first=0, cases=400)
    assert not faults
    outcomes = {outcome for _, outcome in counts}
    assert outcomes == {"read", "refused"} and len({name for name, _ in counts}) >= 12


def test_the_search_finds_what_is_silently_wrong(monkeypatch):
    """A reader that skips lines which it does not understand must not get by."""

    def lenient(path):
        found: dict = {}
        for line in path.read_text(errors="replace").splitlines():
            columns = line.split()
            if len(columns) == 6:
                found.setdefault(columns[0], {})[columns[2]] = float(
                    "".join(c for c in columns[4] if c.isdigit()) or 0
                )
        return found

    monkeypatch.setattr(damaged_files, "read_run", lenient)
    _, faults = damaged_files.search(first=0, cases=400)
    assert len(faults) > 5 and all(", run: " in fault for fault in faults)
