"""Is this output the product of these inputs? Stamps by content, where make has only clocks.

A stage (prepare, train, evaluate, notebook, report) names its inputs as a flat dictionary of digests:
configuration, source code, upstream outputs. When it has finished it writes a stamp beside its outputs
with that dictionary and every output's sha256. The stage is fresh when the inputs are equal and every
output is still there, unchanged. Stamps are never committed, so a fresh clone recomputes everything.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from filelock import FileLock, Timeout

from pangu_hif8.errors import UserError
from pangu_hif8.files import read_json, sha256_file, write_json

PACKAGE = Path(__file__).resolve().parent
ALWAYS_REHASH_BELOW = 4_000_000  # bytes; larger files are hashed again only when size or mtime changed


def stale_reason(stamp: Path, inputs: dict[str, str]) -> str | None:
    """None when fresh, else a short reason for people ("lr changed", "steps.csv is damaged")."""
    if not stamp.exists():
        return "not made yet"
    try:
        record = read_json(stamp)
        changed = [k for k in inputs | record["inputs"] if inputs.get(k) != record["inputs"].get(k)]
        if changed:
            return f"{', '.join(sorted(changed))} changed"
        return next(filter(None, (_output_fault(stamp.parent, *o) for o in record["outputs"].items())), None)
    except (UserError, KeyError, TypeError, AttributeError):
        return "stamp is damaged"


def _output_fault(base: Path, name: str, known: dict[str, int | str]) -> str | None:
    path = base / name
    if not path.is_file():
        return f"{name} is missing"
    status = path.stat()
    same = status.st_size == known["size"] and status.st_mtime_ns == known["mtime_ns"]
    if same and status.st_size >= ALWAYS_REHASH_BELOW:
        return None
    return None if sha256_file(path) == known["sha256"] else f"{name} is damaged or changed"


def write_stamp(stamp: Path, inputs: dict[str, str], outputs: list[Path]) -> None:
    """Record that `outputs` (under the stamp's directory) were made from `inputs`."""
    known = {}
    for path in outputs:
        status = path.stat()
        known[path.relative_to(stamp.parent).as_posix()] = {
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "sha256": sha256_file(path),
        }
    write_json(stamp, {"inputs": inputs, "outputs": known})


def output_digest(stamp: Path) -> str:
    """One digest over a finished stage's outputs, for the stages that consume them."""
    outputs = read_json(stamp)["outputs"]
    text = "".join(f"{name}:{known['sha256']};" for name, known in sorted(outputs.items()))
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def source_digest(*modules: str) -> str:
    """Digest of the named modules of this package and of all that they import from it."""
    text = "".join(f"{name}:{sha256_file(path)};" for name, path in sorted(_closure(modules).items()))
    return hashlib.sha256(text.encode()).hexdigest()


def _closure(modules: tuple[str, ...]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = PACKAGE / f"{name}.py"
        waiting.extend(imported_modules(found[name]))
    return found


def imported_modules(path: Path) -> set[str]:
    """Names of the package's own modules that a source file imports, wherever the import stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pangu_hif8"):
            inner = (node.module or "").split(".")[1:]
            names |= {inner[0]} if inner else {a.name for a in node.names}
        elif isinstance(node, ast.Import):
            names |= {a.name.split(".")[1] for a in node.names if a.name.startswith("pangu_hif8.")}
    return {name for name in names if (PACKAGE / f"{name}.py").exists()}


@contextmanager
def exclusive(directory: Path, what: str, timeout_s: float = 3600.0) -> Iterator[None]:
    """Hold a directory's lock, so that two makes at once work one after the other."""
    lock = _acquire(directory, what, timeout_s)
    try:
        yield
    finally:
        lock.release()


def _acquire(directory: Path, what: str, timeout_s: float) -> FileLock:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(directory / ".lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            print(f"waiting for another process that is making {what} ...", flush=True)
            lock.acquire(timeout=timeout_s)
    except Timeout as error:
        raise UserError(f"{what} is still being made by another process (lock in {directory})") from error
    except OSError as error:
        raise UserError(f"cannot write in {directory}: {error.strerror}. Check permissions.") from error
    return lock
