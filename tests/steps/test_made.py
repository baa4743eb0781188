"""What a finished folder must have: files that were lost are made anew, files that were changed are refused."""

import json
import logging

import pytest

from modeling_cobert.steps.folders import check_folder, claim_folder, claims_end, read_settings, write_settings

STEP = {"step": "test", "format": 1}


def finish(folder, settings=STEP, counts=None):
    (folder / "parts").mkdir(parents=True, exist_ok=True)
    paths = [folder / "run.trec", folder / "parts" / "0.parquet"]
    for path in paths:
        path.write_text("as it was")
    write_settings(folder, settings, counts or {"files": 2}, paths)
    return paths


@pytest.mark.parametrize("name", ["run.trec", "parts/0.parquet"])
def test_a_lost_file_is_work_to_do(tmp_path, caplog, name):
    finish(tmp_path)
    whole = (tmp_path / "settings.json").read_bytes()
    assert check_folder(tmp_path, STEP) == STEP | {"counts": {"files": 2}} == read_settings(tmp_path, "test")
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name}: not there any more: the same command .* makes it anew"):
        read_settings(tmp_path, "test")
    assert check_folder(tmp_path, STEP) is None
    with claims_end(), caplog.at_level(logging.WARNING):
        assert claim_folder(tmp_path, STEP) is None
        assert f"{tmp_path / name}: not there any more: it is made anew" in caplog.text
        finish(tmp_path)
    assert (tmp_path / "settings.json").read_bytes() == whole
    assert claim_folder(tmp_path, STEP) == read_settings(tmp_path, "test")


@pytest.mark.parametrize(("name", "content"), [("run.trec", "as it is!"), ("parts/0.parquet", "as it")])
def test_a_changed_file_is_refused_until_it_is_removed(tmp_path, name, content):
    finish(tmp_path)
    (tmp_path / name).write_text(content)
    for ask in (lambda: claim_folder(tmp_path, STEP), lambda: read_settings(tmp_path, "test")):
        with pytest.raises(ValueError, match=rf"{name}: not as it was written \(damaged, or edited\): remove it, and"):
            ask()
    (tmp_path / name).unlink()
    with claims_end():
        assert claim_folder(tmp_path, STEP) is None


def test_what_is_made_anew_has_the_settings_of_the_rest(tmp_path):
    """In other portions, files would be made beside those that are there."""
    (lost, _) = finish(tmp_path, {**STEP, "shard_queries": 4})
    assert check_folder(tmp_path, {**STEP, "shard_queries": 8})
    lost.unlink()
    with pytest.raises(ValueError, match="begun with other settings: shard_queries is 4, now 8"):
        claim_folder(tmp_path, {**STEP, "shard_queries": 8})


def test_folders_of_earlier_versions_have_no_list(tmp_path):
    (path, _) = finish(tmp_path)
    write_settings(tmp_path, STEP, {"files": 2})
    path.unlink()
    assert check_folder(tmp_path, STEP) == read_settings(tmp_path, "test") == STEP | {"counts": {"files": 2}}


@pytest.mark.parametrize("made", [["run.trec"], 3, None, {"../run.trec": 1}, {"/etc/passwd": 1}, {"a\0": 1}])
def test_a_list_that_is_none_is_refused(tmp_path, made):
    (tmp_path / "settings.json").write_text(json.dumps({**STEP, "counts": {}, "made": made}))
    with pytest.raises(ValueError, match="settings.json: 'made' is no list of the folder's files"):
        read_settings(tmp_path)
