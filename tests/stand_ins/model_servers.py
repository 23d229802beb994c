"""Stand-ins for the places that models come from: a package index and a hub, on a local port, with small files."""

import base64
import contextlib
import hashlib
import http.server
import io
import json
import threading
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

GGUF = b"GGUF" + bytes(range(256)) * 64


def sha256(data: bytes) -> str:
    """The hash as indexes write it."""
    return hashlib.sha256(data).hexdigest()


def make_wheel(
    name: str, version: str, files: dict[str, bytes], *, requires: tuple[str, ...] = (), lie: bool = False
) -> tuple[str, bytes]:
    """A wheel's name and bytes; with `lie`, its RECORD names other hashes than its files have."""
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    members = {
        **files,
        f"{stem}.dist-info/METADATA": (metadata + "\nText\n").encode(),
        f"{stem}.dist-info/WHEEL": wheel.encode(),
    }
    rows = []
    for member, data in members.items():
        digest = hashlib.sha256(data + b"x" if lie else data).digest()
        rows.append(f"{member},sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()},{len(data)}")
    rows.append(f"{stem}.dist-info/RECORD,,")
    members[f"{stem}.dist-info/RECORD"] = ("\n".join(rows) + "\n").encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return f"{stem}-py3-none-any.whl", buffer.getvalue()


@dataclass
class Answer:
    """What a server sends: with `cut`, only so many bytes of the body; with `hang`, it then waits for that event."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    hang: threading.Event | None = None


class Server:
    """A local HTTP server that counts what it was asked."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.authorizations: list[str | None] = []
        self.sent = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append(f"{self.command} {self.path}")
                outer.authorizations.append(self.headers.get("Authorization"))
                answer = outer.answer(unquote(urlsplit(self.path).path))
                self.send_response(answer.status)
                for key, value in answer.headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                if self.command == "HEAD":
                    return
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.wfile.write(answer.body[: answer.cut])
                    self.wfile.flush()
                outer.sent.set()
                if answer.hang is not None:
                    answer.hang.wait(30)
                if answer.cut is not None:
                    self.close_connection = True

            do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

            def log_message(self, *args: object) -> None:
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, path: str) -> Answer:
        """What to send for a path."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop serving."""
        self._http.shutdown()
        self._http.server_close()


class Index(Server):
    """A simple repository index. `form` is `json` or `html`; `spoil` may change the answer for a wheel."""

    def __init__(self, form: str = "json") -> None:
        self.form = form
        self.wheels: dict[str, dict[str, bytes]] = {}
        self.hashes: dict[str, str] = {}
        self.yanked: set[str] = set()
        self.spoil: Callable[[Answer], Answer] = lambda answer: answer
        super().__init__()

    def add(self, package: str, wheel: tuple[str, bytes]) -> None:
        """Offer a wheel."""
        self.wheels.setdefault(package, {})[wheel[0]] = wheel[1]
        self.hashes[wheel[0]] = sha256(wheel[1])

    def answer(self, path: str) -> Answer:
        kind, _, name = path.strip("/").partition("/")
        if kind == "files":
            for files in self.wheels.values():
                if name in files:
                    return self.spoil(Answer(files[name]))
        if kind == "simple" and name in self.wheels:
            return self._page(self.wheels[name])
        return Answer(b"nothing here", 404)

    def _page(self, files: dict[str, bytes]) -> Answer:
        if self.form == "json":
            entries = [
                {
                    "filename": file,
                    "url": f"../../files/{file}",
                    "hashes": {"sha256": self.hashes[file]},
                    "yanked": file in self.yanked,
                }
                for file in files
            ]
            body = json.dumps({"meta": {"api-version": "1.0"}, "name": "x", "files": entries}).encode()
            return Answer(body, headers={"Content-Type": "application/vnd.pypi.simple.v1+json"})
        links = "".join(
            f'<a href="../../files/{file}#sha256={self.hashes[file]}"{" data-yanked" if file in self.yanked else ""}>'
            f"{file}</a>"
            for file in files
        )
        return Answer(
            f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), headers={"Content-Type": "text/html"}
        )


class Hub(Server):
    """As much of Hugging Face as a download needs."""

    revision = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.hashes: dict[str, str] = {}
        self.refuse: tuple[int, dict[str, str]] | None = None
        super().__init__()

    def answer(self, path: str) -> Answer:
        if self.refuse is not None:
            return Answer(b"{}", self.refuse[0], self.refuse[1])
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            return self._info("/".join(parts[2:4]))
        repo, rest = "/".join(parts[:2]), parts[2:]
        name = "/".join(rest[2:])
        if rest[:1] != ["resolve"] or name not in self.repos.get(repo, {}):
            return Answer(b"", 404, {"X-Error-Code": "EntryNotFound"})
        data = self.repos[repo][name]
        tag = self.hashes.get(name, sha256(data))
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": self.revision, "X-Linked-Size": str(len(data))}
        return Answer(data, headers={**headers, "X-Linked-Etag": f'"{tag}"'})

    def _info(self, repo: str) -> Answer:
        if repo not in self.repos:
            return Answer(b"{}", 404, {"X-Error-Code": "RepoNotFound"})
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "lfs": {"sha256": self.hashes.get(name, sha256(data)), "size": len(data), "pointerSize": 130},
            }
            for name, data in self.repos[repo].items()
        ]
        body = {"id": repo, "modelId": repo, "sha": self.revision, "siblings": siblings, "tags": [], "private": False}
        return Answer(json.dumps(body).encode(), headers={"Content-Type": "application/json"})
