"""A small Hugging Face Hub on the loopback interface, for tests of `push_to_hub` and `from_pretrained`.

It speaks enough of the Hub's HTTP interface for `transformers` and `huggingface_hub`: repositories of every type with
commits, branches, LFS objects and tokens, all in memory. It binds to 127.0.0.1 and a free port. Left out are pull
requests, tags and Xet storage, which get an error for an answer, and `.gitignore`, which is not looked at.

The client reads its endpoint when it is imported, so it has to run in a process of its own:

```python
with LoopbackHub() as hub:
    subprocess.run([sys.executable, "-c", code], env=hub.env(tmp_path / "home"), check=True)
    assert "config.json" in hub.files("org/model")
```
"""

import base64
import hashlib
import json
import os
import re
import secrets
import threading
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qs, quote, unquote, urlsplit

USER = "tester"
GIT_ATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"
# The Hub's own idea of a YAML block, and the `key: value` lines of it that are not nested.
FRONT_MATTER = re.compile(r"\s*---\r?\n((?:.*?\n)??)---[ \t]*(?:\r?\n|$)", re.DOTALL)
CARD_LINE = re.compile(r"^(\w+):[ \t]*[\"']?([^\s\"'][^\"'\r\n]*?)[\"']?[ \t]*\r?$", re.MULTILINE)


class HubError(Exception):
    """An answer that is not a success; `code` goes into X-Error-Code, which the client turns into its exceptions."""

    def __init__(self, status: int, message: str, code: str | None = None, **payload: str):
        super().__init__(message)
        self.status, self.payload = status, {"error": message, **payload}
        # A message may quote a path, and a path may hold anything: line breaks and Unicode stay out of the headers.
        self.headers = {"X-Error-Message": message.encode("unicode_escape").decode()}
        self.headers |= {"X-Error-Code": code} if code else {}


def git_sha(kind: str, data: bytes) -> str:
    """The SHA-1 that git gives to an object."""
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data).hexdigest()


@dataclass(frozen=True)
class Blob:
    """The content of one file; with `lfs` git knows only a pointer to it."""

    data: bytes
    lfs: bool = False

    @cached_property
    def etag(self) -> str:
        return hashlib.sha256(self.data).hexdigest() if self.lfs else git_sha("blob", self.data)

    def entry(self, path: str) -> dict:
        """The file as listings show it."""
        if not self.lfs:
            return {"type": "file", "path": path, "size": len(self.data), "oid": self.etag}
        size = len(self.data)
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.etag}\nsize {size}\n".encode()
        lfs = {"oid": self.etag, "size": size, "pointerSize": len(pointer)}
        return {"type": "file", "path": path, "size": size, "oid": git_sha("blob", pointer), "lfs": lfs}


@dataclass(frozen=True)
class Commit:
    """A state of a repository, and how it came about."""

    sha: str
    parent: str | None
    title: str
    date: str
    files: dict[str, Blob]


@dataclass
class Repo:
    """Commits by SHA, and the branches that point at them."""

    id: str
    private: bool
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, title: str, files: dict[str, Blob]) -> Commit:
        parent = self.branches.get(branch)
        date = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        state = [parent, title, date, sorted((path, blob.etag) for path, blob in files.items())]
        commit = Commit(git_sha("commit", json.dumps(state).encode()), parent, title, date, files)
        self.commits[commit.sha] = commit
        self.branches[branch] = commit.sha
        return commit

    def at(self, revision: str) -> Commit:
        commit = self.commits.get(self.branches.get(revision, revision))
        if commit is None:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit


class LoopbackHub:
    """
    The server as a context manager.

    Args:
        token (`str`, *optional*, defaults to `"hf_test"`):
            The only token that is accepted. Public repositories can be read without one.
        lfs_threshold (`int`, *optional*, defaults to 10,000,000):
            Files of more bytes go to LFS, as does every binary file.

    Attributes:
        endpoint (`str`): The address, for `HF_ENDPOINT`.
        requests (`list[tuple[str, str, int]]`): Method, path and status of everything that was answered.
    """

    def __init__(self, token: str = "hf_test", lfs_threshold: int = 10_000_000):
        self.token, self.lfs_threshold = token, lfs_threshold
        self.requests: list[tuple[str, str, int]] = []
        self.repos: dict[str, Repo] = {}
        self.lfs_objects: dict[str, Blob] = {}
        self.uploads: dict[str, tuple[str, int]] = {}  # secret of an upload address -> promised SHA-256 and size
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (HubHandler,), {"hub": self}))
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> "LoopbackHub":
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def env(self, home: Path, **changes: str) -> dict[str, str]:
        """A whole environment for a child process that uses this Hub and keeps its cache under `home`."""
        foreign = ("HF_", "HUGGING", "TRANSFORMERS_")  # settings of the parent, such as its cache and offline mode
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        settings = {
            "HF_ENDPOINT": self.endpoint,
            "HF_TOKEN": self.token,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        return inherited | settings | changes

    def repo(self, repo: str) -> Repo:
        """A repository by its id; the id of a dataset begins with `datasets/`."""
        if repo not in self.repos:
            raise HubError(404, "Repository not found", "RepoNotFound")
        return self.repos[repo]

    def sha(self, repo: str, revision: str = "main") -> str:
        """The commit that a revision points at."""
        return self.repo(repo).at(revision).sha

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        """The content of every file of a repository by path."""
        return {path: blob.data for path, blob in self.repo(repo).at(revision).files.items()}


class HubHandler(BaseHTTPRequestHandler):
    """Turns requests into answers: every route returns status, headers and body (bytes, or what goes into JSON)."""

    hub: LoopbackHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes: without this the second waits for an ACK

    def handle_any(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:  # the client went away in the middle: nothing of it may count
            self.close_connection = True
            return
        address = urlsplit(self.path)
        self.query = {name: values[-1] for name, values in parse_qs(address.query).items()}
        try:
            if "Transfer-Encoding" in self.headers:
                self.close_connection = True  # what follows is a body that was not read
                raise HubError(411, "a body needs a Content-Length")
            with self.hub.lock:
                status, headers, content = self.route(address.path, body)
        except HubError as error:
            status, headers, content = error.status, error.headers, error.payload
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            status, headers, content = 400, {}, {"error": f"malformed request: {error!r}"}
        self.hub.requests.append((self.command, address.path, status))
        self.answer(status, headers, content)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_any

    def log_message(self, *_) -> None:
        """Keeps the output of the tests clean; `LoopbackHub.requests` has it all."""

    def route(self, path: str, body: bytes) -> tuple[int, dict, object]:
        method = "GET" if self.command == "HEAD" else self.command
        authorization = self.headers.get("Authorization")
        if authorization not in (None, f"Bearer {self.hub.token}"):
            raise HubError(401, "Invalid credentials in Authorization header")
        self.known = authorization is not None
        for route_method, pattern, needs_token, action in ROUTES:
            if method == route_method and (match := pattern.fullmatch(path)):
                if needs_token and not self.known:
                    raise HubError(401, "Invalid username or password.")
                # Only now, so that the quoted slash of a branch `refs/x` does not split the path.
                named = {name: unquote(value) for name, value in match.groupdict().items() if value is not None}
                return action(self, body, **named)
        raise HubError(404, f"no route for {method} {path}")

    def answer(self, status: int, headers: dict, content: object) -> None:
        if not isinstance(content, bytes):
            content, headers = json.dumps(content).encode(), {"Content-Type": "application/json", **headers}
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if status == 200 and "ETag" in headers and wanted and any(wanted.groups()):
            size, (first, last) = len(content), wanted.groups()
            start = int(first) if first else max(size - int(last), 0)
            stop = min(int(last) + 1, size) if first and last else size
            status, content = (206, content[start:stop]) if start < stop else (416, b"")
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}" if content else f"bytes */{size}"
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def find(self, repo: str, kind: str = "models") -> Repo:
        found = self.hub.repos.get(repo if kind == "models" else f"{kind}/{repo}")
        if found is None or (found.private and not self.known):  # strangers must not learn which of the two it is
            raise HubError(404 if self.known else 401, "Repository not found", "RepoNotFound")
        return found

    # What the account can do

    def whoami(self, body: bytes):
        return 200, {}, {"type": "user", "name": USER, "fullname": USER, "orgs": [], "auth": {"type": "access_token"}}

    def validate_yaml(self, body: bytes):
        content = json.loads(body)["content"]
        if FRONT_MATTER.match(content):
            return 200, {}, {"errors": [], "warnings": []}
        if re.match(r"\s*---\r?\n", content):
            return 400, {}, {"errors": [{"message": "the YAML block at the top is not closed"}], "warnings": []}
        return 200, {}, {"errors": [], "warnings": [{"message": "empty or missing yaml metadata in repo card"}]}

    def create(self, body: bytes):
        wanted = json.loads(body)
        kind = "" if wanted.get("type") in (None, "model") else f"{wanted['type']}s/"
        repo_id = f"{wanted.get('organization') or USER}/{wanted['name']}"
        answer = {"url": f"{self.hub.endpoint}/{kind}{repo_id}", "name": repo_id}
        if kind + repo_id in self.hub.repos:
            raise HubError(409, "You already created this repo", **answer)
        repo = Repo(repo_id, private=wanted.get("visibility") == "private" or bool(wanted.get("private")))
        repo.commit("main", "initial commit", {".gitattributes": Blob(GIT_ATTRIBUTES)})
        self.hub.repos[kind + repo_id] = repo
        return 200, {}, answer

    # What a repository tells

    def info(self, body: bytes, kind: str, repo: str, rev: str = "main"):
        found = self.find(repo, kind)
        commit = found.at(rev)
        siblings = [{"rfilename": path} for path in sorted(commit.files)]
        front = FRONT_MATTER.match(commit.files.get("README.md", Blob(b"")).data.decode("utf-8", "replace"))
        card = dict(CARD_LINE.findall(front[1])) if front else {}
        answer = {"id": found.id, "modelId": found.id, "sha": commit.sha, "lastModified": commit.date, "tags": []}
        answer |= {"private": found.private, "gated": False, "disabled": False, "siblings": siblings, "cardData": card}
        answer |= {name: card[name] for name in ("pipeline_tag", "library_name") if name in card}
        return 200, {}, answer

    def entries(self, commit: Commit) -> dict[str, dict]:
        """All files and folders of a commit by path."""
        found = {path: blob.entry(path) for path, blob in commit.files.items()}
        for folder in {str(parent) for path in commit.files for parent in list(PurePosixPath(path).parents)[:-1]}:
            content = sorted((path, blob.etag) for path, blob in commit.files.items() if path.startswith(f"{folder}/"))
            oid = git_sha("tree", json.dumps(content).encode())
            found[folder] = {"type": "directory", "path": folder, "oid": oid}
        return dict(sorted(found.items()))

    def tree(self, body: bytes, kind: str, repo: str, rev: str, path: str = ""):
        found = self.entries(self.find(repo, kind).at(rev))
        if path and found.get(path, {}).get("type") != "directory":
            raise HubError(404, f"{path} does not exist on {rev}", "EntryNotFound")
        inside = [entry for name, entry in found.items() if not path or name.startswith(f"{path}/")]
        if self.query.get("recursive", "").lower() not in ("1", "true"):
            inside = [entry for entry in inside if str(PurePosixPath(entry["path"]).parent) == (path or ".")]
        return 200, {}, inside

    def resolve(self, body: bytes, repo: str, rev: str, path: str, kind: str = "models"):
        commit = self.find(repo, kind).at(rev)
        blob, headers = commit.files.get(path), {"X-Repo-Commit": commit.sha}
        if blob is None:
            error = HubError(404, "Entry not found", "EntryNotFound")
            error.headers |= headers  # lets the client remember that this commit has no such file
            raise error
        headers |= {"ETag": f'"{blob.etag}"', "Accept-Ranges": "bytes"}
        if blob.lfs:  # huggingface.co redirects to another host here; to the client the answer is the same
            headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(len(blob.data))}
        return 200, headers, blob.data

    # What changes a repository

    def branch(self, body: bytes, kind: str, repo: str, name: str):
        found = self.find(repo, kind)
        if name in found.branches:
            raise HubError(409, f"Reference already exists: {name}")
        found.branches[name] = found.at(json.loads(body or b"{}").get("startingPoint", "main")).sha
        return 200, {}, {}

    def preupload(self, body: bytes, kind: str, repo: str, rev: str):
        present, answer = self.find(repo, kind).at(rev).files, []
        for file in json.loads(body)["files"]:
            large = file["size"] > self.hub.lfs_threshold or b"\0" in base64.b64decode(file["sample"])
            blob = present.get(file["path"])
            mode, oid = "lfs" if large else "regular", blob.etag if blob else None
            answer.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return 200, {}, {"files": answer}

    def lfs_batch(self, body: bytes, repo: str, kind: str = "models"):
        self.find(repo, kind)
        answer = []
        for wanted in json.loads(body)["objects"]:
            item = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.hub.lfs_objects:
                secret = secrets.token_hex(16)  # the address itself is the permission: the PUT carries no token
                self.hub.uploads[secret] = (wanted["oid"], wanted["size"])
                item["actions"] = {"upload": {"href": f"{self.hub.endpoint}/lfs/{secret}", "header": {}}}
            answer.append(item)
        return 200, {}, {"transfer": "basic", "objects": answer}

    def lfs_upload(self, body: bytes, secret: str):
        if secret not in self.hub.uploads:
            raise HubError(403, "unknown upload address")
        blob = Blob(body, lfs=True)
        if self.hub.uploads[secret] != (blob.etag, len(body)):
            raise HubError(400, "the content does not have the promised SHA-256 and size")
        self.hub.lfs_objects[blob.etag] = blob
        return 200, {"ETag": f'"{blob.etag}"'}, b""

    def commit(self, body: bytes, kind: str, repo: str, rev: str):
        found = self.find(repo, kind)
        if self.query.get("create_pr"):
            raise HubError(400, "this Hub has no pull requests")
        if rev not in found.branches:
            raise HubError(404, f"Invalid branch: {rev}", "RevisionNotFound")
        header, *operations = [json.loads(line) for line in body.splitlines() if line.strip()]
        if not found.branches[rev].startswith(header["value"].get("parentCommit", "")):
            raise HubError(412, "A commit has happened since. Please refresh and try again.")
        files = dict(found.at(rev).files)
        for operation in operations:
            self.apply(files, operation["key"], operation["value"])
        folders = {str(parent) for path in files for parent in PurePosixPath(path).parents}
        if both := sorted(folders & files.keys()):
            raise HubError(400, f"both a file and a folder: {both}")
        commit = found.commit(rev, header["value"]["summary"], files)
        prefix = "" if kind == "models" else f"{kind}/"
        url = f"{self.hub.endpoint}/{prefix}{quote(found.id)}/commit/{commit.sha}"
        return 200, {}, {"success": True, "commitOid": commit.sha, "commitUrl": url}

    def apply(self, files: dict[str, Blob], key: str, value: dict) -> None:
        """Makes one change of a commit in `files`; an error leaves the repository as it was."""
        path = value["path"].rstrip("/")
        if not path or any(part in ("", ".", "..", ".git") for part in path.split("/")):
            raise HubError(400, f"invalid path in repo: {value['path']!r}")
        if key == "file" and value.get("encoding") == "base64":
            files[path] = Blob(base64.b64decode(value["content"], validate=True))
        elif key == "lfsFile" and value["oid"] in self.hub.lfs_objects:
            files[path] = self.hub.lfs_objects[value["oid"]]
        elif key in ("deletedFile", "deletedFolder"):
            gone = [name for name in files if name == path or (key[7:] == "Folder" and name.startswith(f"{path}/"))]
            if not gone:
                raise HubError(404, f"{path} does not exist", "EntryNotFound")
            for name in gone:
                del files[name]
        else:
            raise HubError(400, f"cannot apply {key} to {path}: unknown operation, or its content was never uploaded")


def _route(method: str, address: str, action, needs_token: bool = False) -> tuple:
    """`{api}` and `{git}` are a repository's address in the API and on the site; `<name>` is one part of the path."""
    address = address.replace("{api}", r"/api/(?P<kind>models|datasets|spaces)/(?P<repo>[^/]+(?:/[^/]+)?)")
    address = address.replace("{git}", r"/(?:(?P<kind>datasets|spaces)/)?(?P<repo>[^/]+(?:/[^/]+)?)")
    return method, re.compile(re.sub(r"(?<!\?P)<(\w+)>", r"(?P<\1>[^/]+)", address)), needs_token, action


ROUTES = [
    _route("GET", "/api/whoami-v2", HubHandler.whoami, needs_token=True),
    _route("POST", "/api/validate-yaml", HubHandler.validate_yaml),
    _route("POST", "/api/repos/create", HubHandler.create, needs_token=True),
    _route("GET", "{api}/tree/<rev>(?:/(?P<path>.+))?", HubHandler.tree),
    _route("POST", "{api}/branch/<name>", HubHandler.branch, needs_token=True),
    _route("POST", "{api}/preupload/<rev>", HubHandler.preupload, needs_token=True),
    _route("POST", "{api}/commit/<rev>", HubHandler.commit, needs_token=True),
    _route("GET", "{api}(?:/revision/<rev>)?", HubHandler.info),
    _route("POST", r"{git}\.git/info/lfs/objects/batch", HubHandler.lfs_batch, needs_token=True),
    _route("PUT", "/lfs/<secret>", HubHandler.lfs_upload),
    _route("GET", "{git}/resolve/<rev>/(?P<path>.+)", HubHandler.resolve),
]
