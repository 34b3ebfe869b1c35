"""What is missing on this machine for a profile, found before an hour is spent.

`doctor` asks a `Probes` object about the machine and compares it with a profile's `Needs`; each check is a
pure function of the two, so that every finding can be tested without the machine that would show it. A
finding is one line. "missing" means that the work can't be done, "warning" that it can, less well or with
something to know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from pangu_hif8.doctor_facts import GIB, Finding, Needs, Probes, Source
from pangu_hif8.fetch import get_wheel, wheels_dir
from pangu_hif8.licences import TASK_DATASETS, licence_of

__all__ = ["Finding", "Needs", "Source", "can_start", "doctor", "task_sources"]

MIN_PYTHON = (3, 11)
NUM_NAMED = 5  # packages that one line names


def doctor(needs: Needs, probes: Probes) -> list[Finding]:
    """All findings, in the order of the work: software, machine, directories, sources, licences."""
    return [
        *check_software(probes),
        *check_gpus(needs, probes),
        *check_memory(needs, probes),
        *check_compiler(probes),
        *check_directories(needs, probes),
        *check_disk(needs, probes),
        *check_benchmarks(needs),
        *check_wheels(needs, probes),
        *check_sources(needs, probes),
        *check_licences(needs),
    ]


def can_start(findings: Sequence[Finding]) -> bool:
    """Whether nothing is missing; warnings do not stop the work."""
    return all(finding.status != "missing" for finding in findings)


def task_sources(tasks: Sequence[str], local: Path | None = None) -> tuple[Source, ...]:
    """The data sets of lm-eval tasks, each once; `local` is a folder that holds one folder a data set."""
    names = dict.fromkeys(TASK_DATASETS[task] for task in tasks if task in TASK_DATASETS)
    return tuple(Source(name, "dataset", local / name if local else None) for name in names)


def check_software(probes: Probes) -> Iterator[Finding]:
    """Python, and every package against its pin."""
    version = ".".join(map(str, probes.python()))
    if probes.python() < MIN_PYTHON:
        yield Finding("missing", "python", f"{version}", "install Python 3.11 or newer")
    else:
        yield Finding("ok", "python", version)
    pins = probes.pins()
    if not pins:
        yield Finding("warning", "packages", "no requirements.lock to compare with", "run from a checkout")
        return
    found = {name: probes.installed(name) for name in pins}
    absent = [name for name, version in found.items() if version is None]
    other = [f"{n} {v} (pinned {pins[n]})" for n, v in found.items() if v is not None and v != pins[n]]
    needed = [name for name in absent if name in probes.direct()]
    remedy = "pip install -r requirements.lock"
    if needed:
        yield Finding("missing", "packages", f"not installed: {_some(needed)}", remedy)
    if other:
        yield Finding("warning", "packages", f"other versions than pinned: {_some(other)}", remedy)
    if set(absent) - set(needed):
        rest = [name for name in absent if name not in needed]
        yield Finding("warning", "packages", f"pinned, not installed: {_some(rest)}", remedy)
    if not absent and not other:
        yield Finding("ok", "packages", f"all {len(pins)} as pinned")


def check_gpus(needs: Needs, probes: Probes) -> Iterator[Finding]:
    """Number, memory and bfloat16 of the accelerators."""
    gpus = probes.gpus()
    if not gpus:
        if needs.num_gpus:
            text = f"none found, {needs.num_gpus} asked for"
            yield Finding("missing", "gpus", text, "install the driver and a CUDA build of torch")
        else:
            yield Finding("ok", "gpus", "none found, none needed")
        return
    smallest = min(gpu.memory_bytes for gpu in gpus)
    shown = f"{len(gpus)} x {gpus[0].name}, {smallest / GIB:.0f} GiB"
    if smallest < needs.whole_model_bytes:
        text = f"{shown}; each has to hold {needs.whole_model_bytes / GIB:.0f} GiB, the whole float32 model"
        yield Finding("missing", "gpus", text, "take GPUs with more memory: FSDP shards it only afterwards")
    elif smallest < needs.gpu_memory_bytes:
        text = f"{shown}; a step needs {needs.gpu_memory_bytes / GIB:.0f} GiB on each"
        yield Finding("missing", "gpus", text, "take a smaller micro-batch, checkpointing or FSDP (see plan)")
    elif len(gpus) < needs.num_gpus:
        text = f"{shown}; {needs.num_gpus} asked for"
        yield Finding("warning", "gpus", text, "the same run takes longer on fewer")
    else:
        yield Finding("ok", "gpus", shown)
    if lacking := [gpu.name for gpu in gpus if not gpu.has_bfloat16]:
        yield Finding("warning", "gpus", f"{lacking[0]} has no bfloat16", "it is emulated, and slow")


def check_memory(needs: Needs, probes: Probes) -> Iterator[Finding]:
    """Main memory."""
    total = probes.memory_bytes()
    text = f"{total / GIB:.1f} GiB, {needs.memory_bytes / GIB:.1f} GiB needed"
    if total < needs.memory_bytes:
        yield Finding("missing", "memory", text, "take a machine with more, or a smaller profile")
    else:
        yield Finding("ok", "memory", text)


def check_compiler(probes: Probes) -> Iterator[Finding]:
    """A compiler for torch.compile; without one everything runs, with the same bits, slower."""
    found = probes.compiler()
    if found:
        yield Finding("ok", "compiler", found)
    else:
        yield Finding("warning", "compiler", "none: HiF8 rounding runs eager, slower", "install g++ or clang")


def check_directories(needs: Needs, probes: Probes) -> Iterator[Finding]:
    """Whether cache and results can be written."""
    for topic, path in (("cache", needs.cache_dir), ("results", needs.results_dir)):
        fault = probes.write_fault(path)
        variable = f"PANGU_HIF8_{topic.upper()}"
        if fault:
            yield Finding("missing", topic, f"{path} can't be written ({fault})", f"set {variable}")
        else:
            yield Finding("ok", topic, f"{path} can be written")


def check_disk(needs: Needs, probes: Probes) -> Iterator[Finding]:
    """Free space, summed where cache and results share a file system."""
    wanted: dict[int, tuple[Path, int, int]] = {}
    for path, size in ((needs.cache_dir, needs.cache_bytes), (needs.results_dir, needs.results_bytes)):
        identity, free = probes.filesystem(path)
        first, before, _ = wanted.get(identity, (path, 0, 0))
        wanted[identity] = (first, before + size, free)
    for path, size, free in wanted.values():
        text = f"{free / GIB:.1f} GiB free at {path}, {size / GIB:.1f} GiB still needed"
        if free < size:
            remedy = "free some, or set PANGU_HIF8_CACHE or PANGU_HIF8_RESULTS to a larger disk"
            yield Finding("missing", "disk", text, remedy)
        else:
            yield Finding("ok", "disk", text)


def check_benchmarks(needs: Needs) -> Iterator[Finding]:
    """What the profile asks for and can't be scored here; sizes that are not known."""
    for fault in needs.faults:
        yield Finding("missing", "benchmark", fault)
    for note in needs.notes:
        yield Finding("warning", "sizes", note, "what a run needs of memory and disk is not checked")


def check_wheels(needs: Needs, probes: Probes) -> Iterator[Finding]:
    """Each pinned wheel with a model, text or items: in the cache, or on pip's index."""
    for name in needs.wheels:
        if probes.has_wheel(name):
            yield Finding("ok", "wheel", f"{name}: in the cache")
            continue
        if fault := probes.index_fault(name):
            remedy = f"check the network and pip's index, or put {get_wheel(name).file} in {wheels_dir()}"
            yield Finding("missing", "wheel", f"{name}: not in the cache, and {fault}", remedy)
        else:
            yield Finding("ok", "wheel", f"{name}: pip's index has it")


def check_sources(needs: Needs, probes: Probes) -> Iterator[Finding]:
    """Each model and data set: the local copy, or the hub, or the hub's cache. A dead hub is asked once."""
    unreachable: str | None = None
    for source in needs.sources:
        if source.local is not None:
            yield _local(source)
            continue
        fault = unreachable or probes.hub_fault(source)
        if fault and "not reachable" in fault:
            unreachable = fault
        if not fault:
            yield Finding("ok", source.repo_type, f"{source.name}: the hub has it")
        elif probes.cached(source):
            yield Finding("ok", source.repo_type, f"{source.name}: in the hub's cache ({fault})")
        else:
            remedy = "get network access, or name a local copy"
            yield Finding("missing", source.repo_type, f"{source.name}: {fault}", remedy)


def _local(source: Source) -> Finding:
    path = source.local
    assert path is not None
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        return Finding("ok", source.repo_type, f"{source.name}: local copy {path}")
    return Finding("missing", source.repo_type, f"{source.name}: {path} is empty or absent", "put it there")


def check_licences(needs: Needs) -> Iterator[Finding]:
    """The terms of every source; a warning where they restrict the use or are not known here."""
    for name in needs.wheels:
        yield Finding("ok", "licence", f"{name}: {get_wheel(name).licence} (wheels.yaml)")
    for name in dict.fromkeys([*(source.name for source in needs.sources), *needs.wheel_sets]):
        licence = licence_of(name)
        if licence is None:
            text = f"{name}: not known here"
            yield Finding("warning", "licence", text, "read its page before you use it")
        else:
            text = f"{name}: {licence.name} ({licence.source})"
            status: Literal["ok", "warning"] = "warning" if licence.restriction else "ok"
            yield Finding(status, "licence", text, licence.restriction)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else ""
    return ", ".join(names[:NUM_NAMED]) + more
