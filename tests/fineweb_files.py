"""FineWeb-shaped Parquet files, tokenizers with and without BOS, and a local stand-in for the hub."""

from __future__ import annotations

import hashlib
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from pangu_hif8.pretrain import train_tokenizer
from pangu_hif8.world import place_paragraph

SUBSET = "sample/10BT"
COMMIT = "9bb295ddab0e05d785b879661af7260fed5140fc"


def documents(num_documents: int, seed: int = 0) -> list[str]:
    """Paragraphs of one or two invented places."""
    rng = random.Random(seed)
    return ["\n".join(place_paragraph(rng) for _ in range(rng.randint(1, 2))) for _ in range(num_documents)]


def write_parquet(path: Path, texts: list[Any], row_group_size: int = 7, kind: Any = None) -> Path:
    """One file with FineWeb's columns; `texts` may hold None, or bytes that are not UTF-8."""
    raw = [text.encode() if isinstance(text, str) else text for text in texts]
    binary = pa.array(raw, pa.binary())
    column = binary if kind == "binary" else pa.Array.from_buffers(pa.string(), len(raw), binary.buffers())
    rows = {
        "text": column,
        "id": [f"<urn:uuid:{n}>" for n in range(len(raw))],
        "url": ["https://example.org"] * len(raw),
        "language_score": [0.9] * len(raw),
        "token_count": [1] * len(raw),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(rows), path, row_group_size=row_group_size)
    return path


def write_fineweb(folder: Path, texts: list[Any], num_files: int = 3) -> Path:
    """`texts` spread over files in the hub's layout; returns the folder."""
    size = -(-len(texts) // num_files)
    for index in range(num_files):
        part = texts[index * size : (index + 1) * size]
        write_parquet(folder / SUBSET / f"{index:03d}_00000.parquet", part)
    return folder


def save_tokenizer(target: Path, vocab_size: int = 400, bos: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level BPE in a model directory; with `bos` it puts <s> in front, as openPangu's does."""
    tokenizer = train_tokenizer(6, 0, vocab_size)
    if bos:
        tokenizer.add_special_tokens({"bos_token": "<s>"})
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)]
        )
    tokenizer.save_pretrained(target)
    return tokenizer


class FakeHub(BaseHTTPRequestHandler):
    """The four requests that the hub's client makes for a data set of Parquet files in `folder`."""

    folder: Path
    requests: list[str]
    failing: set[str]  # files that the hub refuses to give
    refusal: tuple[int, str] | None = None  # status and the hub's error code, answered to everything

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def _answer(self) -> None:
        self.requests.append(f"{self.command} {self.path}")
        path = unquote(self.path.split("?")[0])
        if self.refusal:
            self._send(b"{}", self.refusal[0], {"X-Error-Code": self.refusal[1]})
        elif "/resolve/" in path:
            self._file(path.split(f"/resolve/{COMMIT}/")[1])
        elif "/tree/" in path:
            self._send(json.dumps(self._tree(path.split(f"/tree/{COMMIT}/")[1])).encode())
        else:
            self._send(json.dumps(self._info()).encode())

    def _info(self) -> dict[str, Any]:
        def config(name: str, pattern: str) -> dict[str, Any]:
            return {"config_name": name, "data_files": [{"split": "train", "path": pattern}]}

        configs = [config("default", "data/*/*"), config("sample-10BT", "sample/10BT/*")]
        return {
            "id": "HuggingFaceFW/fineweb",
            "sha": COMMIT,
            "siblings": [],
            "cardData": {"configs": configs},
        }

    def _tree(self, under: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        for path in sorted((self.folder / under).iterdir(), reverse=True):
            content, name = path.read_bytes(), path.relative_to(self.folder).as_posix()
            lfs = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            entries.append({"type": "file", "path": name, "size": len(content), "oid": "0" * 40, "lfs": lfs})
        return [*entries, {"type": "directory", "path": f"{under}/sub", "oid": "1" * 40}]

    def _file(self, name: str) -> None:
        if name in self.failing:
            self._send(b"no", 404)
            return
        content = (self.folder / name).read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        self._send(content, headers={"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(content))})

    def _send(self, content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@contextmanager
def fake_hub(folder: Path) -> Iterator[tuple[str, type[FakeHub]]]:
    """Serve `folder` as the data set HuggingFaceFW/fineweb; gives the endpoint and the handler's class."""
    handler = type("Hub", (FakeHub,), {"folder": folder, "requests": [], "failing": set()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler
    finally:
        server.shutdown()
        server.server_close()
