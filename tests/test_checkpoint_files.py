"""Fetching from a hub that answers, refuses, or is not there: a small server speaks the hub's protocol."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import huggingface_hub.constants as hub
import pytest
import torch
from openpangu_layout import write_openpangu

from pangu_hif8.errors import UserError
from pangu_hif8.hub_model import load_hub_model

COMMIT = "0123456789" * 4
REPO = "someone/openPangu-small"


class FakeHub(BaseHTTPRequestHandler):
    """Model information, file list and files of one repository, or one refusal for everything."""

    folder: Path
    refusal: tuple[int, str] | None
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.asked.append(f"{self.command} {path}")
        if self.refusal:
            self.answer(self.refusal[0], b"no", {"X-Error-Code": self.refusal[1], "X-Error-Message": "no"})
        elif path.startswith(f"/api/models/{REPO}/revision/"):
            self.information(path)
        elif path.startswith(f"/api/models/{REPO}/tree/"):
            files = [
                {"type": "file", "path": f.name, "size": f.stat().st_size, "oid": self.etag(f)}
                for f in self.folder.iterdir()
            ]
            self.answer(200, json.dumps(files).encode())
        elif path.startswith(f"/{REPO}/resolve/{COMMIT}/"):
            file = self.folder / path.rsplit("/", 1)[1]
            self.answer(200, file.read_bytes(), {"ETag": f'"{self.etag(file)}"', "X-Repo-Commit": COMMIT})
        else:
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def information(self, path: str) -> None:
        if path.rsplit("/", 1)[1] in ("main", COMMIT):
            self.answer(200, json.dumps({"id": REPO, "sha": COMMIT, "siblings": []}).encode())
        else:
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})

    @staticmethod
    def etag(file: Path) -> str:
        return hashlib.sha1(file.read_bytes()).hexdigest()

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeHub]]:
    """A hub with one openPangu-shaped model; the real cache and the real hub are out of reach."""

    class Handler(FakeHub):
        folder, refusal, asked = write_openpangu(tmp_path / "remote"), None, []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    use_hub(monkeypatch, tmp_path, server.server_port)
    yield Handler
    server.shutdown()
    server.server_close()


def use_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, port: int) -> None:
    endpoint = f"http://127.0.0.1:{port}"
    monkeypatch.setattr(hub, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        hub, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "HF_HUB_DISABLE_PROGRESS_BARS", True)


def test_a_hub_model_is_the_folders_model(served: type[FakeHub]) -> None:
    model, tokenizer = load_hub_model(REPO)
    local, local_tokenizer = load_hub_model(served.folder)
    weights = local.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert tokenizer("The home").input_ids == local_tokenizer("The home").input_ids


def test_neither_code_nor_pickles_are_fetched(served: type[FakeHub]) -> None:
    (served.folder / "pytorch_model.bin").write_bytes(b"evil")
    load_hub_model(REPO)
    fetched = {line.rsplit("/", 1)[1] for line in served.asked if "/resolve/" in line}
    assert "config.json" in fetched and "model-00001-of-00003.safetensors" in fetched
    assert not [name for name in fetched if name.endswith((".py", ".bin"))]


def test_weights_of_an_unusable_model_are_not_downloaded(served: type[FakeHub]) -> None:
    config = json.loads((served.folder / "config.json").read_text())
    (served.folder / "config.json").write_text(json.dumps(config | {"qk_layernorm": True}))
    with pytest.raises(UserError, match="qk_layernorm"):
        load_hub_model(REPO)
    assert not [line for line in served.asked if line.endswith(".safetensors")]


def test_what_was_fetched_once_loads_offline(served: type[FakeHub], monkeypatch: pytest.MonkeyPatch) -> None:
    load_hub_model(REPO)
    served.asked.clear()
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    load_hub_model(REPO)
    assert not served.asked


def test_a_pinned_revision_is_the_one_that_is_asked_for(served: type[FakeHub]) -> None:
    load_hub_model(REPO, revision=COMMIT)
    with pytest.raises(UserError, match=r"at revision v9.*no such revision"):
        load_hub_model(REPO, revision="v9")


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ((401, "RepoNotFound"), "knows no such model"),
        ((403, "GatedRepo"), "grant access"),
        ((404, "RepoNotFound"), "knows no such model"),
        ((503, ""), "not reachable"),
    ],
)
def test_a_hub_that_says_no(served: type[FakeHub], refusal: tuple[int, str], message: str) -> None:
    served.refusal = refusal
    with pytest.raises(UserError, match=f"{REPO}.*{message}.*folder") as error:
        load_hub_model(REPO)
    assert "\n" not in str(error.value)


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    use_hub(monkeypatch, tmp_path, port)
    with pytest.raises(UserError, match="not reachable"):
        load_hub_model(REPO)
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="not in the cache"):
        load_hub_model(REPO)


def test_a_name_that_is_no_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a folder nor a hub name"):
        load_hub_model(tmp_path / "not" / "there")


def test_a_local_folder_asks_no_hub(served: type[FakeHub]) -> None:
    load_hub_model(served.folder)
    assert not served.asked
