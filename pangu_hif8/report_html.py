"""The executed report notebook as one HTML page that opens by itself, with pictures inside and no code.

`PAGE_STYLE` makes it readable on a screen and on paper: no figure, table row or heading is cut by a page's
end, a caption stays with its picture, and tables are set smaller.
"""

from __future__ import annotations

import base64
import re
from html import escape
from pathlib import Path
from typing import Any

from pangu_hif8.errors import UserError
from pangu_hif8.files import write_text

EXTERNAL_SCRIPT = re.compile(r"<script[^>]*\bsrc\s*=\s*[\"']?(?:https?:)?//[^>]*>\s*</script>", re.IGNORECASE)

# nbconvert's page loads a diagram library from the net where a diagram stands; the report has none.
DIAGRAM_LOADER = re.compile(
    r"<script type=\"module\">(?:(?!</script>).)*mermaid(?:(?!</script>).)*</script>", re.DOTALL
)
ANCHOR = re.compile(r"<a class=\"anchor-link\"[^>]*>.*?</a>")  # of headings: a sign that is printed, too
FIGURE_WIDTH_PX = 825  # of a figure at its own size: 5.5 inches at 150 dots an inch

PAGE_STYLE = """<style>
body.jp-Notebook {max-width: 1000px; margin: 0 auto; padding: 1rem 1.5rem}
.jp-RenderedHTMLCommon {line-height: 1.45}
.jp-RenderedHTMLCommon table {display: block; max-width: 100%; overflow-x: auto; font-size: 12px;
  table-layout: auto}
.jp-RenderedHTMLCommon :is(td, th) {text-align: left; vertical-align: top; white-space: normal}
.jp-RenderedHTMLCommon :is(h1, h2, h3) {break-after: avoid}
.jp-RenderedHTMLCommon img {break-inside: avoid; max-width: 100%}
.jp-RenderedHTMLCommon figcaption {font-size: 13px; margin-top: 2px}
@page {size: A4; margin: 15mm}
@media print {
  body.jp-Notebook {max-width: none; padding: 0}
  .jp-Cell, .jp-OutputArea, .jp-OutputArea-child, .jp-Cell-outputWrapper, .jp-Cell-outputArea,
  .jp-RenderedHTMLCommon {display: block !important; overflow: visible !important; padding: 0 !important;
    break-inside: auto !important}
  .jp-InputPrompt, .jp-OutputPrompt, .jp-Collapser {display: none !important}
  .jp-RenderedHTMLCommon {font-size: 9.5pt; line-height: 1.35; color: black}
  .jp-RenderedHTMLCommon table {display: table; overflow: visible; width: auto; font-size: 7.5pt}
  .jp-RenderedHTMLCommon thead {display: table-header-group}
  .jp-RenderedHTMLCommon :is(tr, figure) {break-inside: avoid}
  .jp-RenderedHTMLCommon :is(td, th) {padding: 2pt 4pt}
  .jp-RenderedHTMLCommon figure {max-width: 12.5cm !important}
  .jp-RenderedHTMLCommon div.pair figure {max-width: 50% !important}
  .jp-RenderedHTMLCommon figcaption {font-size: 8pt}
  .jp-RenderedHTMLCommon p {orphans: 3; widows: 3}
}
</style></head>"""


def figure_html(png: Path, sentence: str, title: str = "") -> str:
    """A picture with its caption, the picture's bytes inside; `title` stands in bold before the caption."""
    data = base64.b64encode(png.read_bytes()).decode("ascii")
    caption = (f"<b>{escape(title)}</b>: " if title else "") + escape(sentence)
    picture = f'<img src="data:image/png;base64,{data}" alt="{escape(sentence)}" style="width: 100%">'
    return (
        f'<figure style="margin: 0 0 1.2em; max-width: {FIGURE_WIDTH_PX}px">{picture}'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def pair_html(figures: list[str]) -> str:
    """Figures next to each other, each on its half of the width."""
    halves = "".join(
        figure.replace('<figure style="', '<figure style="flex: 0 1 50%; ', 1) for figure in figures
    )
    return f'<div class="pair" style="display: flex; gap: 1em; align-items: flex-start">{halves}</div>'


def write_html(executed: Path, target: Path) -> None:
    """Convert an executed notebook to a self-contained page.

    Raises UserError when it is missing, damaged, holds an error or a cell that has not run.
    """
    notebook = _read(executed)
    _check(notebook, executed)
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(exclude_input=True, exclude_input_prompt=True, exclude_output_prompt=True)
    exporter.embed_images = True
    exporter.mathjax_url = exporter.require_js_url = exporter.jquery_url = exporter.mermaid_js_url = ""
    resources = {
        "metadata": {"name": "HiF8 quantization-aware training: report", "path": str(executed.parent)}
    }
    body, _ = exporter.from_notebook_node(notebook, resources)
    page = ANCHOR.sub("", DIAGRAM_LOADER.sub("", EXTERNAL_SCRIPT.sub("", body)))
    write_text(target, page.replace("</head>", PAGE_STYLE, 1))


def _read(executed: Path) -> Any:
    import nbformat

    try:
        return nbformat.read(executed, as_version=4)
    except FileNotFoundError as error:
        raise UserError(f"{executed} is missing; run the report notebook first") from error
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{executed} is not a readable notebook; run the report notebook again") from error


def _check(notebook: Any, executed: Path) -> None:
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    outputs = [output for cell in code for output in cell.outputs]
    if any(output.output_type == "error" for output in outputs):
        raise UserError(f"{executed} ended with an error; mend it and run the report again")
    if any(cell.execution_count is None for cell in code):
        raise UserError(f"{executed} has cells that have not run; run the report again")
