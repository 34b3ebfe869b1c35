"""The paper's tasks scored: by hand, on two processes, and of an exported checkpoint."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluate_rank import NUM_POSITIONS, few_shot_model, write
from hub_files import HAS_MATH, PAPER, needs_math, paper_evaluation
from test_evaluate import plain_nll
from tiny import tiny_profile

from pangu_hif8 import benchmarks, experiments, lm_tasks, scoring
from pangu_hif8.config import EvalConfig
from pangu_hif8.evaluate import ITEM_COLUMNS, Evaluation, evaluate_model
from pangu_hif8.evaluate_stage import evaluate_run
from pangu_hif8.prepared import Prepared

NAMES = tuple(name for name, _, _ in PAPER if HAS_MATH or name != "minerva_math")
NUM_ITEMS = {
    "mmlu": 114, "gsm8k": 5, "minerva_math": 14, "hellaswag": 5, "arc_easy": 6, "arc_challenge": 6
}  # fmt: skip


@pytest.fixture(scope="module")
def evaluation(hub: Path) -> EvalConfig:
    return paper_evaluation(hub, *NAMES)


@pytest.fixture(scope="module")
def prepared(
    tiny_parts: Prepared, evaluation: EvalConfig, tmp_path_factory: pytest.TempPathFactory
) -> Prepared:
    """With the paper's items in the place of its own."""
    folder = tmp_path_factory.mktemp("items")
    benchmarks.build_benchmarks(evaluation, tiny_profile().data, folder)
    return replace(tiny_parts, benchmarks_dir=folder)


@pytest.fixture(scope="module")
def model(prepared: Prepared) -> tuple[Any, Any]:
    return few_shot_model(prepared)


@pytest.fixture(scope="module")
def result(model: tuple[Any, Any], evaluation: EvalConfig, prepared: Prepared) -> Evaluation:
    """On one thread, as each of two processes has: more threads sum in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return evaluate_model(*model, evaluation, prepared)
    finally:
        torch.set_num_threads(before)


def test_every_task_has_its_items_shots_and_metric(result: Evaluation) -> None:
    for name, shots, metric in PAPER:
        if name in NAMES:
            task = result.summary["tasks"][name]
            assert (task["num_fewshot"], task["metric"], task["num_items"]) == (
                shots,
                metric,
                NUM_ITEMS[name],
            )
            assert math.isfinite(task["stderr"]) and math.isfinite(task["nll_correct"])
            assert task["num_truncated"] == 0
    assert result.summary["fewshot_seed"] == 1234
    generated = result.items["task"].isin(("gsm8k", "minerva_math"))
    assert result.items.columns.tolist() == [*ITEM_COLUMNS, "exact_match"]
    assert result.items["exact_match"].equals(result.items["acc"].where(generated))
    assert result.items["nll_correct"].notna().all() and result.items["acc"].isin((0, 1)).all()
    json.dumps(result.summary, allow_nan=False)


def test_the_score_of_a_group_is_the_mean_over_its_items(result: Evaluation, prepared: Prepared) -> None:
    mmlu = result.items[result.items["task"] == "mmlu"]
    assert result.summary["tasks"]["mmlu"]["value"] == mmlu["acc"].mean()
    assert 0 < mmlu["acc"].mean() < 1
    lines = (prepared.benchmarks_dir / "mmlu.jsonl").read_text().splitlines()
    assert mmlu["item_id"].tolist() == [json.loads(line)["item_id"] for line in lines]


def prompts(evaluation: EvalConfig, prepared: Prepared, name: str) -> list[tuple[dict[str, Any], str]]:
    """Items of a single task with their few-shot prompts."""
    with lm_tasks.task_manager(evaluation, prepared.benchmarks_dir) as manager:
        task = manager.load([name])["tasks"][name]
        task.set_fewshot_seed(1234)
        task.build_all_requests()
        found = {instance.doc_id: (instance.doc, instance.args[0]) for instance in task.instances}
        return [found[i] for i in sorted(found)]


@pytest.mark.parametrize("name", ["arc_easy", "hellaswag"])
def test_choices_agree_with_a_plain_computation(
    name: str, result: Evaluation, evaluation: EvalConfig, prepared: Prepared, tiny_parts: Prepared
) -> None:
    """Unquantized, since a batch of its own has a scale of its own under current scaling."""
    plain, tokenizer = few_shot_model(tiny_parts)
    plain.model.layers[1].mlp.gate_proj.state.set_mode("off")
    chosen = evaluation.model_copy(update={"tasks": [t for t in evaluation.tasks if t.name == name]})
    rows = evaluate_model(plain, tokenizer, chosen, prepared).items.to_dict("records")
    for row, (doc, prompt) in zip(rows, prompts(evaluation, prepared, name), strict=True):
        choices = doc["choices"] if name == "hellaswag" else doc["choices"]["text"]
        gold = int(doc["label"]) if name == "hellaswag" else doc["choices"]["label"].index(doc["answerKey"])
        nll = [plain_nll(plain, tokenizer, prompt, f" {choice}") for choice in choices]
        assert row["nll_correct"] == pytest.approx(nll[gold], abs=1e-3)
        by_length = [n / len(choice) for n, choice in zip(nll, choices, strict=True)]
        assert row["acc_norm"] == float(int(np.argmin(by_length)) == gold)


def test_a_worked_answer_has_its_likelihood(
    evaluation: EvalConfig, prepared: Prepared, tiny_parts: Prepared
) -> None:
    plain, tokenizer = few_shot_model(tiny_parts)
    plain.model.layers[1].mlp.gate_proj.state.set_mode("off")
    chosen = evaluation.model_copy(update={"tasks": [t for t in evaluation.tasks if t.name == "gsm8k"]})
    found = evaluate_model(plain, tokenizer, chosen, prepared).items
    for nll, (doc, prompt) in zip(found["nll_correct"], prompts(evaluation, prepared, "gsm8k"), strict=True):
        assert nll == pytest.approx(plain_nll(plain, tokenizer, prompt, f" {doc['answer']}"), abs=1e-3)
    assert found["acc_norm"].isna().all()


def answering(monkeypatch: pytest.MonkeyPatch, answers: dict[str, str]) -> None:
    """Generation gives these answers to the questions that a prompt ends with, and nothing otherwise."""

    def generate(self: Any, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        last = [[line for line in request.args[0].splitlines() if line][-2] for request in requests]
        return [answers.get(line, "") for line in last]

    monkeypatch.setattr(scoring.SharedPrefixLM, "generate_until", generate)


def scores_of(
    name: str, model: tuple[Any, Any], evaluation: EvalConfig, prepared: Prepared, **more: Any
) -> Evaluation:
    tasks = [task.model_copy(update=more) for task in evaluation.tasks if task.name == name]
    return evaluate_model(*model, evaluation.model_copy(update={"tasks": tasks}), prepared)


def test_gsm8k_is_scored_by_the_last_number(
    model: tuple[Any, Any], evaluation: EvalConfig, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {
        "20": "20+2=22. The answer is 22.",
        "21": "So #### 23",
        "22": "#### 24 or rather 25",
        "23": "26",
    }
    answering(monkeypatch, {f"Question: {i} and 2?": text for i, text in answers.items()})
    found = scores_of("gsm8k", model, evaluation, prepared)
    assert found.items["acc"].tolist() == [1, 1, 0, 0, 0]  # 22, 23, 24, 25, 26 are right
    task = found.summary["tasks"]["gsm8k"]
    assert task["value"] == 0.4
    assert task["exact_match,strict-match"] == 0.4  # 23, and 24 before "or rather"


@needs_math
@pytest.mark.parametrize("metric", ["exact_match", "math_verify"])
def test_math_is_scored_by_the_metric_asked_for(
    metric: str,
    model: tuple[Any, Any],
    evaluation: EvalConfig,
    prepared: Prepared,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = {
        "algebra 2?": "Final Answer: The final answer is $2$. I hope it is correct.",
        "algebra 3?": "The answer is $\\boxed{3}$.",  # without the sentence: math_verify alone finds it
        "geometry 2?": "Final Answer: The final answer is $7$. I hope it is correct.",
    }
    answering(monkeypatch, answers)
    found = scores_of("minerva_math", model, evaluation, prepared, metric=metric).items
    right = set(found.loc[found["acc"] == 1, "item_id"])
    assert right == {"algebra/0"} | ({"algebra/1"} if metric == "math_verify" else set())
    assert len(found) == 14


def test_prompts_are_recorded(
    result: Evaluation, model: tuple[Any, Any], evaluation: EvalConfig, prepared: Prepared
) -> None:
    same = scores_of("arc_easy", model, evaluation, prepared).summary["tasks"]["arc_easy"]
    assert same == result.summary["tasks"]["arc_easy"]
    other = evaluation.model_copy(update={"item_seed": 1})
    assert (
        scores_of("arc_easy", model, other, prepared).summary["tasks"]["arc_easy"]["prompts_digest"]
        != (same["prompts_digest"])
    )


def test_prompts_that_lose_their_start_are_counted(
    tiny_parts: Prepared, evaluation: EvalConfig, prepared: Prepared
) -> None:
    short, tokenizer = few_shot_model(tiny_parts)
    short.config.max_position_embeddings = 128
    found = scores_of("arc_easy", (short, tokenizer), evaluation, prepared)
    assert found.summary["tasks"]["arc_easy"]["num_truncated"] == 6 * 3
    assert short.config.max_position_embeddings < NUM_POSITIONS


def test_no_network_is_looked_at(
    model: tuple[Any, Any], evaluation: EvalConfig, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was looked at")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    scores_of("gsm8k", model, evaluation, prepared)


def on_two_ranks(out: Path, settings: Path) -> None:
    """As torchrun starts them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("evaluate_rank.py")
    ranks = []
    for rank in map(str, range(2)):
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        command = [sys.executable, str(script), str(out), str(settings)]
        ranks.append(subprocess.Popen(command, env=shared | names, stderr=subprocess.PIPE, text=True))
    try:
        errors = [process.communicate(timeout=240)[1][-3000:] for process in ranks]
        assert [process.returncode for process in ranks] == [0, 0], "\n".join(errors)
    finally:
        for process in ranks:
            process.kill()


def test_two_processes_give_the_bytes_of_one(
    result: Evaluation,
    evaluation: EvalConfig,
    prepared: Prepared,
    tiny_parts: Prepared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With current scaling, where a batch cut in two would have two scales."""
    paths = {
        "model": prepared.model_dir,
        "shards": prepared.shards_dir,
        "benchmarks": prepared.benchmarks_dir,
    }
    settings = {name: str(path) for name, path in (paths | {"people": tiny_parts.benchmarks_dir}).items()}
    (tmp_path / "settings.json").write_text(json.dumps(settings | {"evaluation": evaluation.model_dump()}))
    on_two_ranks(tmp_path, tmp_path / "settings.json")
    write(result, tmp_path / "alone")
    for name in ("items.csv", "heldout.csv", "summary.json"):
        expected = (tmp_path / "alone" / name).read_bytes()
        assert (
            (tmp_path / "rank0" / name).read_bytes() == expected == (tmp_path / "rank1" / name).read_bytes()
        )

    monkeypatch.setattr(experiments, "load_profile", lambda name: tiny_profile())
    (tmp_path / "one").mkdir()
    evaluate_run(experiments.resolve("E0", "tiny"), tiny_parts, tmp_path / "one")
    for name in ("items.csv", "heldout.csv", "eval.json"):
        assert (tmp_path / "E0" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
