"""What a killed process leaves behind goes when the same work is done again, and nothing else goes with it."""

import os
import signal
import subprocess
import sys

import pytest

from modeling_cobert.steps import folders
from modeling_cobert.steps.files import files_beside, write_json
from modeling_cobert.steps.folders import SETTINGS, check_folder, check_writable, claim_folder, claims_end

LEFT = ".a.json.0a_bcdef.tmp"


def killed(function) -> None:
    """Calls a function in a child that the function must kill."""
    child = os.fork()
    if child == 0:
        try:
            function()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_temporary_file_goes_when_its_file_is_written_again(tmp_path):
    others = [".b.json.0a_bcdef.tmp", ".a.json.short.tmp", "a.json.0a_bcdef.tmp", ".a.json.0a_bcdef"]
    for name in (LEFT, *others):
        (tmp_path / name).write_text("{")
    write_json(tmp_path / "a.json", {})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "a.json"])


def test_a_temporary_file_of_a_living_process_stays(tmp_path):
    code = "import sys; from modeling_cobert.steps.locks import lock_file; f = open(sys.argv[1], 'w'); lock_file(f); "
    code += "print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / LEFT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        write_json(tmp_path / "a.json", {})
        assert (tmp_path / LEFT).exists()
        other.stdin.close()


def test_a_probe_that_was_killed_is_no_file_of_something_else(tmp_path, monkeypatch):
    folder = tmp_path / "made" / "out"
    with monkeypatch.context() as patch:
        patch.setattr(folders.os, "fsync", die)
        killed(lambda: check_writable(folder, "--output"))
    assert len(list(folder.iterdir())) == 1
    with claims_end():
        check_folder(folder, {"step": "test"})
        assert claim_folder(folder, {"step": "test"}) is None
        assert {path.name for path in folder.iterdir()} == {SETTINGS, ".lock"}


@pytest.mark.parametrize("ask", [claim_folder, check_folder])
def test_a_folder_that_is_done_has_no_lock(tmp_path, ask):
    folder, settings = tmp_path / "out", {"step": "test"}

    def finish():
        claim_folder(folder, settings)
        folders._release = die  # in the child alone
        folders.write_settings(folder, settings, {"made": 1})

    killed(finish)
    assert (folder / ".lock").exists()
    assert ask(folder, settings) == {"step": "test", "counts": {"made": 1}}
    assert [path.name for path in folder.iterdir()] == [SETTINGS]


def test_folders_are_cleaned_of_folders_too(tmp_path):
    folder = tmp_path / "out"

    def save():
        claim_folder(folder, {"step": "test"})
        with files_beside(folder) as beside:
            (beside / "half").write_text("")
            die()

    killed(save)
    assert not (folder / "half").exists()
    with claims_end():
        claim_folder(folder, {"step": "test"})
        assert {path.name for path in folder.iterdir()} == {SETTINGS, ".lock"}


def test_files_beside_take_their_places(tmp_path):
    (tmp_path / "out" / "more").mkdir(parents=True)
    (tmp_path / "out" / "more" / "old").write_text("")
    (tmp_path / "out" / "kept").write_text("kept")
    with files_beside(tmp_path / "out") as beside:
        (beside / "more").mkdir()
        (beside / "more" / "new").write_text("")
        (beside / "one").write_text("1")
        assert not (tmp_path / "out" / "one").exists()
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*"))
    assert found == ["kept", "more", "more/new", "one"]
    with pytest.raises(KeyError), files_beside(tmp_path / "out") as beside:
        (beside / "two").write_text("2")
        raise KeyError
    assert not (tmp_path / "out" / "two").exists()
    assert not (tmp_path / "out" / ".saving.tmp").exists()


def test_fingerprints_that_an_earlier_version_did_not_know_are_no_other_settings(tmp_path):
    folders.write_settings(tmp_path, {"step": "test"}, None)
    assert check_folder(tmp_path, {"step": "test", folders.FILES: {"a": "1"}}) is None
    folders.write_settings(tmp_path, {"step": "test", folders.FILES: {"a": "2"}}, None)
    with pytest.raises(ValueError, match=r"begun with other settings: files_sha256.a is \"2\", now \"1\""):
        check_folder(tmp_path, {"step": "test", folders.FILES: {"a": "1"}})
