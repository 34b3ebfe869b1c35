"""The audit: where the paper's text and its published code part, and what follows from each difference.

A1 to A6 are runs beside the paper's eight (`audit_variants`), A3 also a dose response on the untouched model,
A7 the published scores themselves, A8 a replay of amaxes that runs have recorded. `build_audit` needs nothing
but results files, and no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from pangu_hif8.audit_gradients import build_gradients
from pangu_hif8.audit_labels import build_labels
from pangu_hif8.audit_overflow import build_overflow
from pangu_hif8.audit_published import build_published
from pangu_hif8.audit_records import build_records
from pangu_hif8.audit_scales import build_warmup, build_window
from pangu_hif8.audit_variants import audit_variants
from pangu_hif8.audit_weights import build_weights
from pangu_hif8.config import load_profile
from pangu_hif8.dose import measure_dose
from pangu_hif8.errors import UserError
from pangu_hif8.results import ProfileResults
from pangu_hif8.sections import Builder, Page, Section, write_page
from pangu_hif8.variant_runs import make_runs, variant_results

SECTIONS: dict[str, Builder] = {
    "A1": build_labels,
    "A2": build_weights,
    "A3": build_overflow,
    "A4": build_window,
    "A5": build_warmup,
    "A6": build_gradients,
    "A7": build_published,
    "A8": build_records,
}


def measure_audit(profile: str, seeds: Iterable[int], *, fresh: bool = False) -> None:
    """Make the runs and the dose response that are not there. Raises UserError.

    `fresh`: those that came with the repository are made again.
    """
    make_runs(audit_variants(load_profile(profile)), profile, seeds, fresh=fresh)
    measure_dose(profile, fresh=fresh)


def build_audit(profile: str) -> Page:
    """Write results/<profile>/audit/{figures,tables,summary.json} and return the page.

    What is not there is said in its section. Raises UserError for an unknown profile, or one without results.
    """
    results = variant_results(audit_variants(load_profile(profile)), profile)
    return write_page("audit", results, [partial(_build, name) for name in SECTIONS])


def _build(name: str, results: ProfileResults) -> Section:
    """A section; one whose results can't be compared says why, and costs the others nothing."""
    try:
        return SECTIONS[name](results)
    except UserError as error:
        return Section(name, name, missing=str(error))
