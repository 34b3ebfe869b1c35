"""Make the virtual environment that everything runs in, or do nothing when it is up to date.

Standard library only: it runs before anything is installed. The stamp inside the environment records what
it was made from, by content, and is written last: an interrupted or half-failed installation is redone,
a touched or checked-out-again file is not. Two makes at once wait for each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("requirements.lock", "pyproject.toml", "tools/install.py")
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "-qq", "--no-input")  # -qq: errors only


def identity() -> str:
    """What the environment is made from: the pins, this script, and where the project lies."""
    text = str(ROOT) + "".join(hashlib.sha256((ROOT / name).read_bytes()).hexdigest() for name in SOURCES)
    return hashlib.sha256(text.encode()).hexdigest()


def is_fresh(venv: Path) -> bool:
    """Whether a finished installation of exactly these sources stands there."""
    stamp = venv / "installed.stamp"
    return (venv / "bin" / "python").exists() and stamp.exists() and stamp.read_text() == identity()


def build(venv: Path) -> None:
    """Make the environment from nothing; the stamp comes last."""
    print(f"installing the pinned packages into {venv.name} (once, a few minutes)", flush=True)
    shutil.rmtree(venv, ignore_errors=True)
    python = str(venv / "bin" / "python")
    run(sys.executable, "-m", "venv", str(venv))
    run(python, *PIP, "-r", str(ROOT / "requirements.lock"))
    run(python, *PIP, "--no-deps", "--no-build-isolation", "-e", str(ROOT))
    temporary = venv / "installed.stamp.tmp"
    temporary.write_text(identity())
    temporary.replace(venv / "installed.stamp")


def run(*command: str) -> None:
    """Run a step; its own words say what went wrong, ours say which step it was."""
    status = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONWARNINGS": "ignore"}).returncode
    if status:
        sys.exit(f"error: the installation failed at: {' '.join(command)}\nMend that and call make again.")


def main() -> None:
    """Entry point: `python tools/install.py [DIRECTORY]`."""
    if sys.version_info < (3, 11):  # noqa: UP036 - runs on whatever Python there is
        sys.exit(f"error: Python 3.11 or newer is needed, {sys.executable} is {sys.version.split()[0]}")
    if importlib.util.find_spec("ensurepip") is None:
        sys.exit(f"error: {sys.executable} cannot make virtual environments (on Debian: python3-venv)")
    venv = ROOT / (sys.argv[1] if len(sys.argv) > 1 else ".venv")
    if is_fresh(venv):
        return
    with venv.with_name(f"{venv.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_fresh(venv):
            build(venv)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
