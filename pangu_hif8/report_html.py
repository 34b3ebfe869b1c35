"""The executed report notebook as one HTML page that opens by itself, with pictures inside and no code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pangu_hif8.errors import UserError
from pangu_hif8.files import write_text

EXTERNAL_SCRIPT = re.compile(r"<script[^>]*\bsrc\s*=\s*[\"']?(?:https?:)?//[^>]*>\s*</script>", re.IGNORECASE)

# nbconvert's page loads a diagram library from the net where a diagram stands; the report has none.
DIAGRAM_LOADER = re.compile(
    r"<script type=\"module\">(?:(?!</script>).)*mermaid(?:(?!</script>).)*</script>", re.DOTALL
)


WIDE_TABLES = (
    "<style>.jp-RenderedHTMLCommon table {display: block; max-width: 100%; overflow-x: auto}"
    " @media print {.jp-RenderedHTMLCommon table {font-size: 7pt}}</style></head>"
)


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
    page = DIAGRAM_LOADER.sub("", EXTERNAL_SCRIPT.sub("", body))
    write_text(target, page.replace("</head>", WIDE_TABLES, 1))


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
