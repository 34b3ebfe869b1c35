"""Two texts as Parquet files in the hub's layout and columns: FineWeb's and Wikipedia's, in small.

The documents are paragraphs of the smoke profile's invented world; among FineWeb's are, as on the web, an
empty one, one of blanks, one of several thousand characters and one that is not UTF-8.
"""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pangu_hif8.config import load_profile
from pangu_hif8.world import place_paragraph
from rehearsal.profile import PAPER

NUM_FILES, NUM_DOCUMENTS, NUM_ARTICLES = 3, 300, 60
PLACE = 40  # of the odd documents: behind the held-out ones, among those that are trained on
LONG_PARAGRAPHS = 60  # of one document


def documents(num_documents: int, seed: int) -> list[str]:
    """Documents of one to three paragraphs."""
    draw = random.Random(f"rehearsal:{seed}")
    return ["\n".join(place_paragraph(draw) for _ in range(draw.randint(1, 3))) for _ in range(num_documents)]


def write_texts(hub: Path) -> list[str]:
    """Write both data sets below `hub`; returns the documents of the first, as a tokenizer's text."""
    data = load_profile(PAPER).data
    assert data.text and data.second_domain_text
    fineweb = documents(NUM_DOCUMENTS, 0)
    _write_fineweb(hub / data.text.dataset / "sample" / "10BT", _with_oddities(fineweb))
    wikipedia = hub / data.second_domain_text.dataset / str(data.second_domain_text.subset)
    _write_wikipedia(wikipedia / "train-00000-of-00001.parquet", documents(NUM_ARTICLES, 1))
    return fineweb


def _with_oddities(texts: list[str]) -> list[bytes]:
    draw = random.Random("rehearsal:long")
    long = "\n".join(place_paragraph(draw) for _ in range(LONG_PARAGRAPHS))
    odd = [b"", b"   \n ", long.encode(), b"Latin-1 caf\xe9 in a file of UTF-8"]
    plain = [text.encode() for text in texts]
    return plain[:PLACE] + odd + plain[PLACE:]


def _write_fineweb(folder: Path, texts: list[bytes]) -> None:
    folder.mkdir(parents=True)
    size = -(-len(texts) // NUM_FILES)
    for number in range(NUM_FILES):
        part = texts[number * size : (number + 1) * size]
        strings = pa.Array.from_buffers(pa.string(), len(part), pa.array(part, pa.binary()).buffers())
        rows = {
            "text": strings,
            "id": [f"<urn:uuid:{number}-{row}>" for row in range(len(part))],
            "url": ["https://example.org"] * len(part),
            "language_score": [0.9] * len(part),
            "token_count": [1] * len(part),
        }
        pq.write_table(pa.table(rows), folder / f"{number:03d}_00000.parquet", row_group_size=50)


def _write_wikipedia(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True)
    numbers = [str(number) for number in range(len(texts))]
    urls = [f"https://example.org/{number}" for number in numbers]
    pq.write_table(pa.table({"id": numbers, "url": urls, "title": numbers, "text": texts}), path)
