"""The tiny profile: between smoke and laptop, in the proportions that its description promises."""

from __future__ import annotations

from pangu_hif8.config import Profile, load_profile
from pangu_hif8.experiments import EXPERIMENTS, resolve
from pangu_hif8.world import VALUES, people_items


def both() -> tuple[Profile, Profile]:
    return load_profile("tiny"), load_profile("smoke")


def test_it_is_longer_than_smoke_and_asks_everyone_everything() -> None:
    tiny, smoke = both()
    assert tiny.model.source == smoke.model.source == "scratch"
    assert tiny.train.steps == 2 * smoke.train.steps
    assert tiny.train.batch_size == 2 * smoke.train.batch_size
    assert tiny.data.num_people is not None
    assert smoke.data.num_people is not None
    assert tiny.data.num_people > 2 * smoke.data.num_people
    task = tiny.evaluation.tasks[0]
    assert task.num_items == tiny.data.num_people * len(VALUES)
    assert task.num_items == len(people_items(tiny.data.num_people, tiny.data.seed))


def test_window_and_warmup_have_the_other_profiles_share_of_the_steps() -> None:
    shares = {
        name: (settings.amax_history_len / settings.steps, settings.bf16_warmup_steps / settings.steps)
        for name in ("tiny", "smoke", "laptop")
        if (settings := load_profile(name).train)
    }
    assert len(set(shares.values())) == 1
    assert load_profile("tiny").train.bf16_warmup_steps >= load_profile("tiny").train.amax_history_len


def test_no_token_is_seen_twice_and_two_processes_fit_two_cores() -> None:
    tiny = load_profile("tiny")
    assert tiny.train.steps * tiny.train.batch_size <= tiny.data.num_train_sequences
    assert tiny.train.num_threads == 1


def test_rates_keep_the_papers_ratio_and_most_blocks_are_quantized() -> None:
    rates = {name: resolve(name, "tiny").lr for name in EXPERIMENTS if name != "E0"}
    assert set(rates.values()) == {1e-3, 1e-4}
    assert all(rates[name] == 1e-3 for name in ("E1", "E2", "E3", "E4", "E5"))
    model = load_profile("tiny").model
    assert model.architecture is not None
    blocks = model.architecture["num_hidden_layers"]
    assert blocks - model.num_first_hp_blocks - model.num_last_hp_blocks > blocks / 2
