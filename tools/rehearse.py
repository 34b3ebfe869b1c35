"""`make rehearse`: the paper's profile from start to end with every number made small, without a network.

A random model in openPangu's layout, texts and benchmarks in the hub's layout, two processes: doctor, plan,
prepare, the experiments with two kills and resumes, report, export. The profile is `paper` itself with other
sizes and places (tools/rehearsal/profile.py), handed over by PANGU_HIF8_PROFILES, and every command is one
that a person gives, so the code is the very same. All files go to one scratch folder. When everything held,
a record of the code is left there: a second call finds it, asks make whether all is up to date, and is done.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from rehearsal.jobs import Place
from rehearsal.steps import STEPS_IN_ORDER, again

from pangu_hif8.errors import UserError
from pangu_hif8.files import digest, read_json, sha256_file, write_json
from pangu_hif8.paths import ROOT
from pangu_hif8.wall_time import duration

DEFAULT = ROOT / ".cache" / "rehearsal"
MARK, RECORD = ".rehearsal", "rehearsal.json"
SOURCES = ("pangu_hif8/**/*.py", "pangu_hif8/**/*.yaml", "notebooks/*.ipynb", "tools/**/*.py", "Makefile")


def code_digest() -> str:
    """sha256 over every source that takes part."""
    paths = sorted({path for pattern in SOURCES for path in ROOT.glob(pattern)})
    return digest({path.relative_to(ROOT).as_posix(): sha256_file(path) for path in paths})


def fresh(place: Place) -> None:
    """Empty the scratch folder. Raises UserError for a folder that no rehearsal made."""
    root = place.root
    if any(character.isspace() for character in str(root)):
        raise UserError(f"{root}: make can't take a path with blanks; name another folder: REHEARSAL=dir")
    if root.is_dir() and any(root.iterdir()) and not (root / MARK).is_file():
        raise UserError(f"{root} is not empty and no rehearsal's; name another folder: REHEARSAL=dir")
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    (root / MARK).touch()


def rehearse(place: Place) -> None:
    """All steps from nothing, a line each. Raises UserError where one does not hold."""
    code = code_digest()
    fresh(place)
    began = time.monotonic()
    for number, (name, step) in enumerate(STEPS_IN_ORDER.items(), 1):
        started = time.monotonic()
        try:
            found = step(place)
        except (UserError, OSError, KeyError) as error:
            raise UserError(f"rehearsal, step {name}: {error} (all words in {place.log})") from error
        seconds = time.monotonic() - started
        print(f"[{number:>2}/{len(STEPS_IN_ORDER)}] {name:<12}{seconds:>6.1f} s  {found}", flush=True)
    took = duration(time.monotonic() - began)
    write_json(place.root / RECORD, {"code": code, "took": took})
    print(f"rehearsal: everything held, in {took}; files in {place.root}")


def is_done(place: Place) -> bool:
    """Whether this very code was rehearsed here, and all of it is still up to date."""
    path = place.root / RECORD
    if not path.is_file() or read_json(path).get("code") != code_digest():
        return False
    try:
        print(f"rehearsal: {again(place)}; it took {read_json(path)['took']}; files in {place.root}")
    except UserError:
        return False
    return True


def main() -> int:
    """Entry point: `python tools/rehearse.py [DIRECTORY]`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", default=DEFAULT, help=f"by default {DEFAULT}")
    place = Place(parser.parse_args().directory.resolve())
    try:
        if not is_done(place):
            rehearse(place)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; call it again to start anew", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
