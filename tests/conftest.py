"""Every test works on its own results and on a cache of the test run, never on the user's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pangu_hif8.prepared import Prepared


@pytest.fixture(scope="session", autouse=True)
def _sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Cache and results in temporary directories. Cached parts are checked by content, so tests may share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PANGU_HIF8_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PANGU_HIF8_RESULTS", str(tmp_path_factory.mktemp("results")))
        patch.delenv("MAKEFLAGS", raising=False)  # a test that calls make is no part of the make around it
        patch.delenv("MAKEOVERRIDES", raising=False)
        yield


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty results directory for each test."""
    directory = tmp_path / "results"
    monkeypatch.setenv("PANGU_HIF8_RESULTS", str(directory))
    return directory


@pytest.fixture
def torch_settings() -> Iterator[None]:
    """Threads and determinism of torch are afterwards as before."""
    import torch

    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture
def clean_env() -> dict[str, str]:
    """The environment for a subprocess: none of make's variables, which this process may have inherited."""
    dropped = {"PROFILE", "SEEDS", "ONLY", "TIMEOUT", "PYTHON", "MAKELEVEL", "MFLAGS"}
    return {name: value for name, value in os.environ.items() if name not in dropped}


@pytest.fixture(scope="session")
def shard_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizers and text to make token shards of."""
    from shard_builds import make_inputs

    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="session")
def finished_shards(shard_inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted preparation. Tests that change it work on a copy."""
    from shard_builds import build

    target = tmp_path_factory.mktemp("finished") / "shards"
    build(shard_inputs, target)
    return target


@pytest.fixture
def shards_copy(finished_shards: Path, tmp_path: Path) -> Path:
    """A copy of the finished shards."""
    return Path(shutil.copytree(finished_shards, tmp_path / "copy"))


@pytest.fixture(scope="session")
def finished_sweeps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every run of the sweeps and the sensitivity, synthetic. Tests that change it work on a copy."""
    from fake_beyond import at, write_sweeps

    base = tmp_path_factory.mktemp("sweeps") / "results"
    with at(base):
        write_sweeps(base)
    return base


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made and not saved, which takes most of a page's time."""
    monkeypatch.setattr("pangu_hif8.sections.save_figure", lambda figure, place, name: (place / name, place))


@pytest.fixture
def sweeps_copy(finished_sweeps: Path, results: Path, undrawn: None) -> Path:
    """The same results, to be changed."""
    return Path(shutil.copytree(finished_sweeps, results))


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The paper's benchmarks in the hub's layout. Tests that change them work on a copy."""
    from hub_files import write_hub

    return write_hub(tmp_path_factory.mktemp("hub"))


@pytest.fixture(scope="session")
def tiny_parts(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """The tiny profile's model, text and benchmarks, in a cache of their own. Not to be changed."""
    from tiny import tiny_profile

    from pangu_hif8.prepare import prepare_profile

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PANGU_HIF8_CACHE", str(tmp_path_factory.mktemp("cache")))
        return prepare_profile(tiny_profile())
