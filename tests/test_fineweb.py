"""FineWeb from a hub that runs here: the client's own requests, and every way in which it says no."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from fineweb_files import COMMIT, FakeHub, fake_hub
from shard_builds import DOCUMENTS, build, contents, make_inputs

from pangu_hif8.corpus import TokenShards
from pangu_hif8.errors import UserError
from pangu_hif8.fineweb import HubParquet
from pangu_hif8.text_source import Position


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizers and text."""
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def hub(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[FakeHub]]]:
    """A local server that answers as the hub does; nothing else is reachable."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    with fake_hub(inputs / "fineweb") as served:
        yield served


def test_the_hub_and_a_folder_give_the_same_shards(
    inputs: Path, tmp_path: Path, hub: tuple[str, type[FakeHub]]
) -> None:
    manifest = build(inputs, tmp_path / "hub", source=HubParquet(endpoint=hub[0]))
    build(inputs, tmp_path / "folder")
    made, expected = contents(tmp_path / "hub"), contents(tmp_path / "folder")
    assert {n: c for n, c in made.items() if n.endswith(".bin")} == {
        n: c for n, c in expected.items() if n.endswith(".bin")
    }
    assert manifest["sources"]["text"]["revision"] == COMMIT
    assert (
        manifest["splits"]["train"]["source"] == f"HuggingFaceFW/fineweb/sample-10BT@main, revision {COMMIT}"
    )
    assert not (tmp_path / "hub" / "downloads").exists()


def test_a_hub_file_lies_here_only_while_it_is_read(tmp_path: Path, hub: tuple[str, type[FakeHub]]) -> None:
    source, seen = HubParquet(endpoint=hub[0]), set()
    listing = source.listing()
    texts = []
    for batch in source.batches(listing, Position(), tmp_path):
        texts += [text.decode() for text in batch.texts if text]
        seen.add(tuple(path.name for path in tmp_path.rglob("*.parquet")))
    assert texts == DOCUMENTS
    assert seen == {(Path(file.path).name,) for file in listing.files}
    assert source.scratch_bytes(listing) == max(file.size for file in listing.files)


def test_a_resume_stays_at_its_commit_and_needs_no_listing(
    inputs: Path, tmp_path: Path, hub: tuple[str, type[FakeHub]]
) -> None:
    """A finished file is lost, the branch may have moved on: only the file that it came from is asked for."""
    source = HubParquet(endpoint=hub[0])
    build(inputs, tmp_path / "shards", source=source)
    before = contents(tmp_path / "shards")
    (tmp_path / "shards" / "train-00003.tokens.bin").unlink()
    hub[1].requests.clear()
    build(inputs, tmp_path / "shards", source=source)
    assert contents(tmp_path / "shards") == before
    assert all(f"/resolve/{COMMIT}/sample/10BT/000_00000.parquet" in asked for asked in hub[1].requests)
    hub[1].requests.clear()
    build(inputs, tmp_path / "shards", source=source)
    assert hub[1].requests == []


def test_a_hub_that_fails_midway_loses_nothing(
    inputs: Path, tmp_path: Path, hub: tuple[str, type[FakeHub]]
) -> None:
    source = HubParquet(endpoint=hub[0])
    hub[1].failing.add("sample/10BT/001_00000.parquet")
    with pytest.raises(UserError, match=r"gives no HuggingFaceFW/fineweb .*finished shards are kept"):
        build(inputs, tmp_path / "shards", source=source, num_train_sequences=300)
    assert (tmp_path / "shards" / "train-00005.tokens.bin").exists()
    hub[1].failing.clear()
    build(inputs, tmp_path / "shards", source=source, num_train_sequences=300)
    build(inputs, tmp_path / "folder", num_train_sequences=300)
    shards, expected = (TokenShards.open(tmp_path / name) for name in ("shards", "folder"))
    assert shards.manifest["splits"]["train"]["files"] == expected.manifest["splits"]["train"]["files"]


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (404, "RepoNotFound", "no such data set, or it is private.*check its name"),
        (404, "RevisionNotFound", "no revision 'main'.*name a branch, tag or commit"),
        (403, "GatedRepo", "it is gated.*accept its terms"),
        (418, "", "418.*check network and disk"),
    ],
)
def test_a_hub_that_says_no(hub: tuple[str, type[FakeHub]], status: int, code: str, said: str) -> None:
    hub[1].refusal = (status, code)
    with pytest.raises(UserError, match=rf"gives no HuggingFaceFW/fineweb .*{said}.* name the folder"):
        HubParquet(endpoint=hub[0]).listing()


def test_a_hub_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name does not resolve; the client's waits between its own tries are left out."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    with pytest.raises(UserError, match=r"gives no HuggingFaceFW/fineweb .*check network and disk"):
        HubParquet(endpoint="http://127.0.0.1:9").listing()


def test_a_hub_that_was_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"HF_HUB_OFFLINE is set.*unset it"):
        HubParquet(endpoint="http://127.0.0.1:9").listing()


def test_an_unknown_subset_is_named(hub: tuple[str, type[FakeHub]]) -> None:
    with pytest.raises(UserError, match="no sub-set 'sample-1TB'; its card names default, sample-10BT"):
        HubParquet(endpoint=hub[0], subset="sample-1TB").listing()


def test_a_download_that_is_damaged_is_thrown_away(
    inputs: Path, tmp_path: Path, hub: tuple[str, type[FakeHub]]
) -> None:
    """Same size, another byte: the sha256 that the hub stated tells."""
    listing = HubParquet(endpoint=hub[0]).listing()
    served = Path(shutil.copytree(inputs / "fineweb", tmp_path / "served"))
    path = served / listing.files[0].path
    path.write_bytes(path.read_bytes()[:-20] + b"!" + path.read_bytes()[-19:])
    hub[1].folder = served
    with pytest.raises(UserError, match=r"000_00000\.parquet came damaged .*run this again"):
        next(HubParquet(endpoint=hub[0]).batches(listing, Position(), tmp_path / "scratch"))
    assert not list((tmp_path / "scratch").rglob("*.parquet"))
