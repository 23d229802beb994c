"""The contract tests: frameworks that talk to OpenAI, each in an environment of its own, against this server.

    python tools/contract.py                      all of tests/contract/requirements
    python tools/contract.py langchain instructor --keep .contract

They cannot share an environment: some want an older client of OpenAI than others. llama-batch is not installed there;
the package that this interpreter imports is put beside them, for what is tried in process, and this interpreter serves.
A framework that cannot be installed is skipped, and why is printed; one that installs and fails makes the exit code 1.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "contract"
RUNNER = ("pytest>=8.3", "pytest-timeout>=2.3")
INSTALL_TIMEOUT_S = 600.0
KEPT_DAYS = 7


@dataclass(frozen=True)
class Environment:
    """Where a framework is installed.

    Attributes:
        framework: its name, as in `requirements/NAME.txt` and `test_NAME.py`.
        folder: of the environment.
        failure: why it could not be installed; None where it was.
    """

    framework: str
    folder: Path
    failure: str | None

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return interpreter(self.folder)


def interpreter(folder: Path) -> Path:
    """The interpreter of a virtual environment."""
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def needs() -> list[str]:
    """What llama-batch needs to serve, and what runs the tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["server"], *RUNNER]


def requirements(framework: str) -> Path:
    """What has to be installed for a framework."""
    return TESTS / "requirements" / f"{framework}.txt"


def install(framework: str, kept: Path) -> Environment:
    """Make an environment, or take one that was made of the same requirements before.

    Args:
        framework: its name.
        kept: the folder of all environments.

    Returns:
        The environment; its folder is there only where the installation went through.
    """
    asked = [sys.version, requirements(framework).read_text(encoding="utf-8"), *needs()]
    digest = hashlib.sha256("\n".join(asked).encode()).hexdigest()[:12]
    folder = kept / f"{framework}-{digest}"
    done = folder / "installed"
    if done.exists():
        done.touch()
        return Environment(framework, folder, None)
    shutil.rmtree(folder, ignore_errors=True)
    words = [str(interpreter(folder)), "-m", "pip", "install", "--quiet", "--no-input", "--no-compile"]
    # What llama-batch needs may not go together with what the framework needs: then only the port is tried.
    attempts = ([*needs()], [*RUNNER])
    for number, rest in enumerate(attempts):
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, capture_output=True)
            chosen = [*words, "--requirement", str(requirements(framework)), *rest]
            subprocess.run(chosen, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
        except subprocess.CalledProcessError as error:
            failure = (error.stderr or str(error)).strip().splitlines()[-1]
        except (OSError, subprocess.TimeoutExpired) as error:
            failure = str(error)
        else:
            if number:
                print(f"{framework}: only by its port, since beside llama-batch it does not install: {failure}")
            done.touch()
            return Environment(framework, folder, None)
    shutil.rmtree(folder, ignore_errors=True)
    return Environment(framework, folder, failure)


def test(environment: Environment, link: Path, rest: list[str]) -> int:
    """Run a framework's tests.

    Args:
        environment: where it is installed.
        link: a folder that holds the package `llama_batch`, and nothing else.
        rest: further arguments of pytest.

    Returns:
        pytest's exit code.
    """
    env = {**os.environ, "LLAMA_BATCH_PYTHON": sys.executable, "PYTHONPATH": str(link), "PYTHONDONTWRITEBYTECODE": "1"}
    # Whether a framework warns of what it does itself is not ours to mend.
    options = ["-q", "-W", "default", "--disable-warnings", "-p", "no:cacheprovider", *rest]
    words = [str(environment.python), "-m", "pytest", *options, str(TESTS / f"test_{environment.framework}.py")]
    return subprocess.run(words, env=env, cwd=ROOT, check=False).returncode


def forget(kept: Path) -> None:
    """Remove environments that nobody has used for long."""
    for done in kept.glob("*/installed"):
        if time.time() - done.stat().st_mtime > KEPT_DAYS * 86400:
            shutil.rmtree(done.parent, ignore_errors=True)


def main() -> int:
    """Install and test.

    Returns:
        1 where a framework that was installed failed.
    """
    known = sorted(path.stem for path in (TESTS / "requirements").glob("*.txt"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("frameworks", nargs="*", metavar="FRAMEWORK", help=f"of {', '.join(known)} (default: all)")
    parser.add_argument("--keep", type=Path, default=None, help="a folder that keeps environments for the next time")
    parser.add_argument("--jobs", type=int, default=4, help="installations at the same time")
    chosen, rest = parser.parse_known_args()
    if unknown := set(chosen.frameworks) - set(known):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    frameworks = chosen.frameworks or known
    import llama_batch

    with tempfile.TemporaryDirectory() as scratch:
        kept = (chosen.keep or Path(scratch) / "environments").resolve()
        kept.mkdir(parents=True, exist_ok=True)
        forget(kept)
        link = Path(scratch) / "beside"
        link.mkdir()
        (link / "llama_batch").symlink_to(Path(llama_batch.__file__).parent, target_is_directory=True)
        began = time.monotonic()
        with ThreadPoolExecutor(chosen.jobs) as pool:
            environments = list(pool.map(lambda framework: install(framework, kept), frameworks))
        print(f"{len(frameworks)} frameworks, installed in {time.monotonic() - began:.0f} s", flush=True)
        failed = []
        for environment in environments:
            if environment.failure is not None:
                print(f"SKIPPED {environment.framework}: it does not install: {environment.failure}", flush=True)
                continue
            print(f"\n{environment.framework}:", flush=True)
            if test(environment, link, rest):
                failed.append(environment.framework)
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
