"""The loopback Hub against the real clients: what transformers and huggingface_hub push, they load again."""

import hashlib
import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from hub_server import HubError, LoopbackHub

CARD = "---\nlicense: apache-2.0\npipeline_tag: text-ranking\ntags:\n- naïve\n---\n\n# A card --- with dashes\n"

DIGEST = """
import hashlib, json, sys
import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, BertTokenizer

def digest(model):
    state = sorted(model.state_dict().items())
    parts = [(name, str(value.dtype), list(value.shape), value.tolist()) for name, value in state]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
"""

PUSH = """
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "group", "##wise", "rank"]
tokenizer = BertTokenizer(vocab={word: index for index, word in enumerate(words)})
sizes = dict(num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, max_position_embeddings=16)
model = BertModel(BertConfig(vocab_size=len(words), hidden_size=12, **sizes))
HfApi().create_repo("org/tiny")
HfApi().upload_file(path_or_fileobj=sys.argv[1].encode(), path_in_repo="README.md", repo_id="org/tiny")
tokenizer.push_to_hub("org/tiny")
first = {"sha": model.push_to_hub("org/tiny").oid, "weights": digest(model)}

statuses = {}
for token in ("hf_wrong", False):
    for repo in ("org/tiny", "org/new"):
        try:
            model.push_to_hub(repo, token=token)
        except HfHubHTTPError as error:
            statuses[f"{repo} {token}"] = error.response.status_code

torch.nn.init.normal_(model.embeddings.word_embeddings.weight)
second = {"sha": model.push_to_hub("org/tiny").oid, "weights": digest(model)}
unchanged = model.push_to_hub("org/tiny").oid
torch.nn.init.normal_(model.pooler.dense.weight)
branch = {"sha": model.push_to_hub("org/tiny", revision="try/this").oid, "weights": digest(model)}
ids = tokenizer("Groupwise rank")["input_ids"]
print(json.dumps(dict(first=first, second=second, unchanged=unchanged, branch=branch, statuses=statuses, ids=ids)))
"""

LOAD = """
found = {"main": digest(AutoModel.from_pretrained("org/tiny"))}
found["ids"] = AutoTokenizer.from_pretrained("org/tiny")("Groupwise rank")["input_ids"]
for revision in sys.argv[1:]:
    found[revision] = digest(AutoModel.from_pretrained("org/tiny", revision=revision))
try:
    AutoModel.from_pretrained("org/missing")
except OSError as error:
    found["missing"] = [type(error.__cause__).__name__, str(error)]
print(json.dumps(found))
"""

FOLDER = """
import json, sys
from pathlib import Path
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub import errors

def name_of_error(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        return type(error).__name__, getattr(getattr(error, "response", None), "status_code", None)

api, source, target = HfApi(), sys.argv[1], sys.argv[2]
told = {"user": api.whoami()["name"], "url": str(api.create_repo("org/files", private=True))}
told["again"] = name_of_error(api.create_repo, "org/files")
told["folder"] = api.upload_folder(repo_id="org/files", folder_path=source).oid
told["same"] = api.upload_folder(repo_id="org/files", folder_path=source).oid
told["late"] = name_of_error(
    api.upload_file, path_or_fileobj=b"x", path_in_repo="x", repo_id="org/files", parent_commit="0" * 40
)
told["card"] = name_of_error(
    api.upload_file, path_or_fileobj=b"---\\na: b---\\n", path_in_repo="README.md", repo_id="org/files"
)
told["pull request"] = name_of_error(
    api.upload_file, path_or_fileobj=b"x", path_in_repo="x", repo_id="org/files", create_pr=True
)
told["tree"] = {
    entry.path: [type(entry).__name__, getattr(entry, "size", None), bool(getattr(entry, "lfs", None))]
    for entry in api.list_repo_tree("org/files", recursive=True)
}
told["top"] = [entry.path for entry in api.list_repo_tree("org/files")]
told["inside"] = [entry.path for entry in api.list_repo_tree("org/files", "a")]
snapshot_download("org/files", local_dir=target)
api.delete_folder("a/b", "org/files")
told["after"] = api.delete_file("empty.txt", "org/files").oid
told["listed"] = api.list_repo_files("org/files")
told["listed before"] = api.list_repo_files("org/files", revision=told["folder"])
told["no file"] = name_of_error(hf_hub_download, "org/files", "empty.txt")
told["no revision"] = name_of_error(hf_hub_download, "org/files", "top.txt", revision="never")
told["no repo"] = name_of_error(snapshot_download, "org/missing")
told["stranger"] = name_of_error(api.model_info, "org/files", token=False)
told["dataset"] = str(api.create_repo("org/files", repo_type="dataset"))
api.upload_file(path_or_fileobj=b"1", path_in_repo="data/one.csv", repo_id="org/files", repo_type="dataset")
told["data"] = Path(hf_hub_download("org/files", "data/one.csv", repo_type="dataset")).read_text()
print(json.dumps(told))
"""


def run(code: str, env: dict[str, str], *args: str) -> dict:
    """What a child process prints last, as JSON."""
    child = subprocess.run([sys.executable, "-c", code, *args], env=env, capture_output=True, text=True, timeout=300)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


def ask(hub: LoopbackHub, method: str, path: str, body: object = None, token: str | None = "hf_test", **headers: str):
    """Status, headers and body of one plain request."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(hub.endpoint + path, data=data, method=method, headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def commit_of(*operations: dict, **header: str) -> bytes:
    """The body of a commit request."""
    lines = [{"key": "header", "value": {"summary": "a change", **header}}, *operations]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def text_file(path: str, content: str = "MDEyMzQ1Njc4OQ==") -> dict:
    return {"key": "file", "value": {"path": path, "content": content, "encoding": "base64"}}


@pytest.fixture(scope="module")
def pushed(hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """A model that one process has pushed, twice, with what that process knows of it."""
    return run(DIGEST + PUSH, hub.env(tmp_path_factory.mktemp("pusher")), CARD)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of the processes that load."""
    return tmp_path_factory.mktemp("reader")


@pytest.fixture(scope="module")
def loaded(hub: LoopbackHub, pushed: dict, reader: Path) -> dict:
    """The same model in a fresh process with an empty cache, by every revision."""
    return run(DIGEST + LOAD, hub.env(reader, HF_TOKEN=""), pushed["first"]["sha"], "try/this")


def test_load_gives_what_was_pushed(pushed, loaded):
    assert loaded["main"] == pushed["second"]["weights"]
    assert loaded["ids"] == pushed["ids"] == [2, 5, 6, 7, 3]


def test_first_commit_stays_beside_the_second(hub, pushed, loaded):
    first, second = pushed["first"], pushed["second"]
    assert first["sha"] != second["sha"] and first["weights"] != second["weights"]
    assert hub.sha("org/tiny") == second["sha"] == pushed["unchanged"]
    assert loaded[first["sha"]] == first["weights"]
    before, after = hub.files("org/tiny", first["sha"]), hub.files("org/tiny")
    assert [path for path in after if after[path] != before[path]] == ["model.safetensors"]


def test_branch(hub, pushed, loaded):
    assert hub.sha("org/tiny", "try/this") == pushed["branch"]["sha"] != hub.sha("org/tiny")
    assert loaded["try/this"] == pushed["branch"]["weights"] != pushed["second"]["weights"]


def test_card_survives(hub, pushed):
    assert hub.files("org/tiny")["README.md"].decode() == CARD
    info = json.loads(ask(hub, "GET", "/api/models/org/tiny")[2])
    assert info["pipeline_tag"] == "text-ranking" and info["cardData"]["license"] == "apache-2.0"
    assert {"rfilename": "README.md"} in info["siblings"] and info["sha"] == pushed["second"]["sha"]


def test_push_needs_the_token(hub, pushed):
    expected = {f"{repo} {token}": 401 for repo in ("org/tiny", "org/new") for token in ("hf_wrong", False)}
    assert pushed["statuses"] == expected
    assert "org/new" not in hub.repos
    # The initial commit, the card, the tokenizer and three models: what was refused has left no trace.
    assert len(hub.repo("org/tiny").commits) == 6


def test_missing_repository(loaded):
    cause, message = loaded["missing"]
    assert cause == "RepositoryNotFoundError" and "org/missing is not a local folder" in message


def test_second_load_is_offline(hub, loaded, reader):
    before = list(hub.requests)
    again = run(DIGEST + LOAD, hub.env(reader, HF_HUB_OFFLINE="1"))
    assert (again["main"], again["ids"]) == (loaded["main"], loaded["ids"])
    assert hub.requests == before


def test_files_and_folders(hub, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    large = b"one line of text\n" * 700_000  # no binary: its size alone sends it to LFS
    contents = {
        "top.txt": b"top",
        "empty.txt": b"",
        "large.txt": large,
        "a/weights.bin": b"\0\1\2",
        "a/b/größe & 100%.txt": b"unicode",
        "a/b/c.txt": b"deep",
    }
    for path, content in contents.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes(content)
    seen = len(hub.requests)
    told = run(FOLDER, hub.env(tmp_path / "home"), str(source), str(target))

    assert told["user"] == "tester" and told["url"] == f"{hub.endpoint}/org/files"
    assert told["again"] == ["HfHubHTTPError", 409]
    assert told["same"] == told["folder"] != told["after"]
    assert told["late"] == ["HfHubHTTPError", 412]
    assert told["card"] == ["ValueError", None]
    assert told["pull request"][1] == 400
    assert [status for method, _, status in hub.requests[seen:] if method == "PUT"] == [200, 200]

    files = {".gitattributes": hub.files("org/files")[".gitattributes"], **contents}
    lfs = {"large.txt", "a/weights.bin"}
    tree = {path: ["RepoFile", len(content), path in lfs] for path, content in files.items()}
    assert told["tree"] == tree | {folder: ["RepoFolder", None, False] for folder in ("a", "a/b")}
    assert told["top"] == sorted([".gitattributes", "a", "empty.txt", "large.txt", "top.txt"])
    assert told["inside"] == ["a/b", "a/weights.bin"]
    assert {path: (target / path).read_bytes() for path in files} == files
    assert told["listed before"] == sorted(files)
    assert told["listed"] == [".gitattributes", "a/weights.bin", "large.txt", "top.txt"]

    assert told["no file"][0] == "RemoteEntryNotFoundError"
    assert told["no revision"] == ["RevisionNotFoundError", 404]
    assert told["no repo"] == ["RepositoryNotFoundError", 404]
    assert told["stranger"] == ["RepositoryNotFoundError", 401]
    assert told["dataset"] == f"{hub.endpoint}/datasets/org/files" and told["data"] == "1"
    assert hub.files("datasets/org/files")["data/one.csv"] == b"1"


@pytest.fixture
def digits(request, hub: LoopbackHub) -> str:
    """A public repository with one file of ten digits, made by plain requests."""
    repo = f"org/{request.node.name.split('[')[0]}-{len(hub.repos)}"
    assert ask(hub, "POST", "/api/repos/create", {"name": repo[4:], "organization": "org"})[0] == 200
    assert ask(hub, "POST", f"/api/models/{repo}/commit/main", commit_of(text_file("digits.txt")))[0] == 200
    return repo


@pytest.mark.parametrize(
    ("wanted", "status", "body", "content_range"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-4", 206, b"6789", "bytes 6-9/10"),
        ("bytes=8-99", 206, b"89", "bytes 8-9/10"),
        ("bytes=10-", 416, b"", "bytes */10"),
        ("lines=1-2", 200, b"0123456789", None),
    ],
)
def test_ranges(hub, digits, wanted, status, body, content_range):
    found, headers, content = ask(hub, "GET", f"/{digits}/resolve/main/digits.txt", token=None, Range=wanted)
    assert (found, content, headers["Content-Range"]) == (status, body, content_range)


def test_head_tells_what_get_gives(hub, digits):
    path = f"/{digits}/resolve/main/digits.txt"
    (_, head, nothing), (_, get, content) = ask(hub, "HEAD", path), ask(hub, "GET", path)
    assert (nothing, content) == (b"", b"0123456789")
    names = ("ETag", "Content-Length", "X-Repo-Commit")
    # `printf 0123456789 | git hash-object --stdin`
    expected = ['"ad471007bd7f5983d273b9584e5629230150fd54"', "10", hub.sha(digits)]
    assert [head[name] for name in names] == [get[name] for name in names] == expected


def test_strangers_read_and_do_not_write(hub, digits):
    before = hub.sha(digits)
    assert ask(hub, "GET", f"/{digits}/resolve/main/digits.txt", token=None)[0] == 200
    assert ask(hub, "GET", f"/{digits}/resolve/main/digits.txt", token="hf_wrong")[0] == 401
    objects = {"objects": [{"oid": "0" * 64, "size": 1}]}
    writes = [
        ("/api/repos/create", {"name": "stolen"}),
        (f"/api/models/{digits}/preupload/main", {"files": []}),
        (f"/api/models/{digits}/commit/main", commit_of(text_file("new.txt"))),
        (f"/api/models/{digits}/branch/new", {}),
        (f"/{digits}.git/info/lfs/objects/batch", objects),
    ]
    for path, body in writes:
        for token in (None, "hf_wrong"):
            assert ask(hub, "POST", path, body, token=token)[0] == 401, (path, token)
    assert ask(hub, "PUT", "/lfs/0123", b"guessed")[0] == 403
    assert hub.sha(digits) == before and "tester/stolen" not in hub.repos


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]\n",
        commit_of({"key": "file", "value": {}}),
        commit_of(text_file("good.txt"), text_file("bad.txt", "not base64!")),
        commit_of(text_file("good.txt"), text_file("../escape.txt")),
        commit_of(text_file("good.txt"), text_file("/absolute.txt")),
        commit_of(text_file("good.txt"), text_file("a//b.txt")),
        commit_of(text_file("good.txt"), text_file("good.txt/b.txt")),
        commit_of(text_file("good.txt"), {"key": "lfsFile", "value": {"path": "x", "oid": "0" * 64, "size": 1}}),
        commit_of(text_file("good.txt"), {"key": "deletedFile", "value": {"path": "no\r\nX-Evil: é.txt"}}),
    ],
)
def test_bad_commit_changes_nothing(hub, digits, body):
    before = hub.sha(digits), hub.files(digits)
    status, headers, _ = ask(hub, "POST", f"/api/models/{digits}/commit/main", body)
    assert status in (400, 404) and "X-Evil" not in headers
    assert (hub.sha(digits), hub.files(digits)) == before


def test_cut_off_commit_changes_nothing(hub, digits):
    # The part that arrives is a whole commit by itself, so only the promised length tells that it is not all.
    before, body = hub.sha(digits), commit_of(text_file("half.txt"))
    head = f"POST /api/models/{digits}/commit/main HTTP/1.1\r\nAuthorization: Bearer hf_test\r\n"
    with socket.create_connection(("127.0.0.1", hub.server.server_port), timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: {len(body) + 1}\r\n\r\n".encode() + body)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert hub.sha(digits) == before


def test_lfs_content_must_be_the_promised_one(hub, digits):
    oid = hashlib.sha256(b"promised").hexdigest()
    _, _, answer = ask(
        hub, "POST", f"/{digits}.git/info/lfs/objects/batch", {"objects": [{"oid": oid, "size": len(b"promised")}]}
    )
    address = json.loads(answer)["objects"][0]["actions"]["upload"]["href"].removeprefix(hub.endpoint)
    commit = commit_of({"key": "lfsFile", "value": {"path": "lfs.bin", "algo": "sha256", "oid": oid, "size": 8}})
    assert ask(hub, "PUT", address, b"anything", token=None)[0] == 400
    assert ask(hub, "POST", f"/api/models/{digits}/commit/main", commit)[0] == 400
    assert ask(hub, "PUT", address, b"promised", token=None)[0] == 200
    assert ask(hub, "POST", f"/api/models/{digits}/commit/main", commit)[0] == 200
    _, headers, content = ask(hub, "GET", f"/{digits}/resolve/main/lfs.bin", Range="bytes=4-")
    assert (headers["X-Linked-Etag"], headers["X-Linked-Size"], content) == (f'"{oid}"', "8", b"ised")


def test_server_ends():
    with LoopbackHub(token="hf_other") as hub:
        assert hub.endpoint.startswith("http://127.0.0.1:")
        assert ask(hub, "GET", "/api/whoami-v2", token="hf_other")[0] == 200
        assert ask(hub, "GET", "/api/whoami-v2")[0] == 401
        with pytest.raises(HubError, match="Repository not found"):
            hub.files("org/none")
    assert not hub.thread.is_alive() and hub.server.socket.fileno() == -1


def test_environment_is_its_own(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", "elsewhere")
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    env = hub.env(tmp_path, HF_TOKEN="hf_changed")
    assert "HF_HUB_CACHE" not in env and "TRANSFORMERS_OFFLINE" not in env
    expected = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0", "HF_TOKEN": "hf_changed"}
    assert expected.items() <= env.items() and env["HF_HUB_DISABLE_XET"] == "1" and "PATH" in env
