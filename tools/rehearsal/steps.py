"""The steps of the rehearsal, in their order. Each does one thing, checks what it claims and returns it.

A step that does not hold raises UserError with one line; nothing after it is tried.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from pangu_hif8.errors import UserError
from pangu_hif8.experiments import EXPERIMENTS
from pangu_hif8.files import read_json
from rehearsal import checks
from rehearsal.checkpoint import NUM_EMBEDDINGS, write_checkpoint
from rehearsal.checks import must
from rehearsal.items import write_items
from rehearsal.jobs import NUM_PROCESSES, Place, alive, family, kill, own, rank, started, succeed, wait_until
from rehearsal.profile import NAME, SIZES, places, unscorable, write_profile
from rehearsal.text import write_texts

PROFILE = ["--profile", NAME]
KILLED, KILL_STEPS = "E8", (5, 10)  # the run that is killed, once these steps' checkpoints are there
PATIENCE_S = 120.0  # for a stage whose rank was killed to notice and end
STEPS, WARMUP = SIZES["train.steps"], SIZES["train.bf16_warmup_steps"]


def files(place: Place) -> str:
    """The model, two texts, five data sets, and the profile that names them."""
    words, questions = write_items(place.hub)
    documents = write_texts(place.hub)
    checkpoint = Path(places(place.hub)["model.name"])
    parameters = write_checkpoint(
        checkpoint, [line for text in [*documents, *questions] for line in text.splitlines()]
    )
    (place.root / "parameters").write_text(str(parameters))
    without = unscorable()
    write_profile(place.profiles, place.hub, frozenset(without))
    left_out = "".join(f"; LEFT OUT: {reason}" for reason in without.values())
    return f"random model of {parameters:,} parameters, two texts, benchmarks with {words}{left_out}"


def doctor(place: Place) -> str:
    """Nothing is missing, and every source is found where the profile says."""
    lines = succeed(place, own("doctor", *PROFILE, "--gpus", "0")).splitlines()
    local = [line for line in lines if ": local copy " in line]
    must(len(local) >= 4 and lines[-1].startswith("Nothing is missing"), f"doctor says: {lines[-1]}")
    unknown = [line for line in lines if "licence:" in line and "not known here" in line]
    must(not unknown, f"doctor knows no licence: {unknown[:1]}")
    return f"{lines[-1]}; {len(local)} local copies, each with its licence"


def plan(place: Place) -> str:
    """The plan counts the parameters that were written, and the paper's 63 linears."""
    text = " ".join(succeed(place, own("plan", *PROFILE, "--gpus", "2")).split())  # its lines are wrapped
    parameters = int((place.root / "parameters").read_text())
    must(
        f"{parameters:,} parameters (tied embeddings)" in text, "plan counts other parameters than there are"
    )
    must("63 linears in 21 of 26 blocks quantized" in text, "plan does not find the paper's 63 linears")
    must(" Fits: " in text, "plan says that the run does not fit")
    return f"{parameters:,} parameters, 63 linears in 21 of 26 blocks"


def prepare(place: Place) -> str:
    """Model, tokens and items are made as the profile asks, the odd documents counted."""
    succeed(place, own("prepare", *PROFILE))
    return checks.prepared(place.root / "cache" / "prepared" / NAME, NUM_EMBEDDINGS)


def untrained(place: Place) -> str:
    """E0: the checkpoint as it is, through its notebook."""
    succeed(place, own("stage", "E0", *PROFILE))
    return checks.scores(run(place, "E0"))


def killed(place: Place) -> str:
    """E8 by two processes, killed twice: all at once, as when a node dies; then one rank alone."""
    saved = [_killed(place, KILL_STEPS[0], _everything), _killed(place, KILL_STEPS[1], _second_rank)]
    return f"kill -9 of all processes after step {saved[0]}, of one rank after step {saved[1]}"


def _killed(place: Place, step: int, blow: Callable[[subprocess.Popen[bytes]], None]) -> int:
    """Start the stage, strike when the step's checkpoint is there; returns the newest checkpoint's step."""
    directory = run(place, KILLED)
    checkpoint = directory / "progress" / f"step-{step:08d}"
    with started(place, own("stage", KILLED, *PROFILE)) as job:
        wait_until(checkpoint.is_dir, job, f"the checkpoint of step {step} was there")
        blow(job)
    must(not (directory / "run.json").exists(), f"{KILLED} had ended before it could be killed")
    return max(int(path.name.split("-")[1]) for path in (directory / "progress").glob("step-????????"))


def _everything(job: subprocess.Popen[bytes]) -> None:
    kill(family(job.pid))


def _second_rank(job: subprocess.Popen[bytes]) -> None:
    """The stage has to notice, end the other rank and say so; none may go on or hang."""
    below = family(job.pid)
    victim = rank(job.pid, 1)
    must(victim is not None, "no process of rank 1 was found")
    assert victim is not None
    kill([victim])
    try:
        status = job.wait(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise UserError(f"one rank was killed, and the stage still waits after {PATIENCE_S:.0f} s") from None
    must(status == 2, f"one rank was killed, and the stage ended with status {status}, not 2")
    left = alive(below)
    must(not left, f"one rank was killed, and {len(left)} processes live on")


def resumed(place: Place) -> str:
    """The same command goes on from the checkpoints to the end."""
    succeed(place, own("stage", KILLED, *PROFILE))
    info = read_json(run(place, KILLED) / "run.json")
    must(len(info["resumed_from"]) == 2, f"resumed from {info['resumed_from']}, not twice")
    first, second = info["resumed_from"]
    must(KILL_STEPS[0] <= first < STEPS and KILL_STEPS[1] <= second < STEPS, "resumed from other steps")
    return f"went on from steps {first} and {second}, {STEPS} steps in all"


def undisturbed(place: Place) -> str:
    """The same run without a kill has the same bytes."""
    elsewhere = place.root / "undisturbed"
    launch = [
        *own()[:1],
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(NUM_PROCESSES),
    ]
    succeed(place, [*launch, *own("train", KILLED, *PROFILE)[1:]], PANGU_HIF8_RESULTS=str(elsewhere))
    names = ("steps.csv", "saturation.csv", "checkpoint/model.safetensors", "checkpoint/scaling.safetensors")
    checks.same_bytes(run(place, KILLED), elsewhere / NAME / KILLED / "seed0", names)
    return f"{', '.join(name.split('/')[-1] for name in names)}: the same bytes as those of the killed run"


def reproduce(place: Place) -> str:
    """`make reproduce` makes the other runs and the report."""
    succeed(place, ["make", "--no-print-directory", "reproduce", f"PROFILE={NAME}"])
    trained = [run(place, name) for name in EXPERIMENTS if name != "E0"]
    for directory in trained:
        checks.trained(directory, NUM_PROCESSES, STEPS, WARMUP)
        checks.scores(directory)
    report = checks.report(place.results / NAME)
    return f"{len(trained)} runs of {STEPS} steps by {NUM_PROCESSES} processes; {report}"


def export(place: Place) -> str:
    """E8 as a checkpoint of HiF8 codes."""
    said = succeed(place, own("export", KILLED, str(place.root / "export"), *PROFILE)).splitlines()
    must(said[0].startswith(f"{KILLED} seed 0: 63 linears"), f"export says: {said[0]}")
    return said[0].split(": ")[1].split(" in ")[0] + "; " + said[1].split(", ")[-1] + " of their weights"


def exported(place: Place) -> str:
    """The export is scored as its run was, item by item."""
    out = place.root / "export-scores"
    succeed(place, own("evaluate", "--export", str(place.root / "export"), *PROFILE))
    checks.same_bytes(run(place, KILLED), out, ("items.csv", "heldout.csv"))
    return "items.csv and heldout.csv: the same bytes as the run's"


def again(place: Place) -> str:
    """A second call finds nothing to do."""
    said = succeed(place, ["make", "--no-print-directory", "reproduce", f"PROFILE={NAME}"])
    must(
        "everything is up to date" in said, f"a second make reproduce says: {said.strip().splitlines()[-1:]}"
    )
    return "make reproduce: everything is up to date"


def run(place: Place, experiment: str) -> Path:
    """A run's directory."""
    return place.results / NAME / experiment / "seed0"


STEPS_IN_ORDER: dict[str, Callable[[Place], str]] = {
    "files": files,
    "doctor": doctor,
    "plan": plan,
    "prepare": prepare,
    "E0": untrained,
    "kill": killed,
    "resume": resumed,
    "undisturbed": undisturbed,
    "reproduce": reproduce,
    "export": export,
    "evaluate": exported,
    "again": again,
}
