"""The registry and the profiles: names, types and identities."""

from __future__ import annotations

import pytest

from pangu_hif8.config import OptimizerConfig, load_profile, profile_names
from pangu_hif8.errors import UserError
from pangu_hif8.experiments import EXPERIMENTS, resolve


def test_registry_is_the_paper_s_table():
    rows = {e.id: (e.lr, e.amax_compute_algo, e.bf16_warmup, e.baseline) for e in EXPERIMENTS.values()}
    assert rows == {
        "E0": (None, None, False, None),
        "E1": (1e-4, None, False, None),
        "E2": (1e-4, "most_recent", False, "E1"),
        "E3": (1e-4, "exponential_smoothing", False, "E1"),
        "E4": (1e-4, "current", False, "E1"),
        "E5": (1e-4, "max_window", False, "E1"),
        "E6": (1e-5, None, False, None),
        "E7": (1e-5, "most_recent", False, "E6"),
        "E8": (1e-5, "max_window", True, "E6"),
    }


@pytest.mark.parametrize("profile", profile_names())
def test_every_profile_resolves_for_every_experiment(profile):
    hashes = {resolve(e, profile).train_hash() for e in EXPERIMENTS}
    assert len(hashes) == len(EXPERIMENTS)
    assert load_profile(profile).name == profile


def test_defaults_are_the_paper_s():
    config = resolve("E5", "laptop").quantization
    assert (config.hif8_max, config.overflow, config.smoothing_decay) == (15.0, "saturate", 0.9)
    assert config.bf16_warmup_steps == 0
    assert resolve("E8", "laptop").quantization.bf16_warmup_steps > 0
    assert resolve("E5", "laptop").lr == 1e-4 and resolve("E8", "laptop").lr == 1e-5
    settings = OptimizerConfig()
    assert (settings.adam_beta1, settings.adam_beta2) == (0.9, 0.95)
    assert (settings.weight_decay, settings.max_grad_norm) == (0.1, 1.0)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        (dict(experiment="E9"), "valid: E0, E1"),
        (dict(profile="desktop"), "valid: .*smoke"),
        (dict(profile=None), "valid: "),
        (dict(seed=-1), "seed"),
        (dict(seed="0"), "seed"),
        (dict(seed=True), "seed"),
        (dict(lr="fast"), "lr: .*number"),
        (dict(lr=0.0), "lr"),
        (dict(lr=float("nan")), "lr"),
        (dict(lrr=1e-3), "lrr"),
        (dict(steps=1.5), "steps"),
        (dict(overflow="wrap"), "overflow"),
        (dict(amax_history_len=0), "amax_history_len"),
        (dict(smoothing_decay=0.5), "does not smooth"),
        (dict(bf16_warmup_steps=10**6), "never quantize"),
        (dict(experiment="E1", overflow="taper"), "does not quantize"),
        (dict(experiment="E2", amax_history_len=4), "no window"),
        (dict(experiment="E0", lr=1e-3), "not trained"),
    ],
)
def test_bad_input_is_one_clear_error(kwargs, words):
    with pytest.raises(UserError, match=words) as caught:
        resolve(**(dict(experiment="E5", profile="smoke") | kwargs))
    assert "\n" not in str(caught.value)


def test_an_override_makes_a_run_of_its_own():
    plain, custom = resolve("E5", "smoke"), resolve("E5", "smoke", lr=3e-4)
    assert plain.run_name == "E5" and custom.run_name.startswith("E5-custom-")
    assert resolve("E5", "smoke", lr=None, steps=None) == plain
    assert plain.train_hash() != custom.train_hash()


def test_a_setting_changes_the_identity_of_the_runs_that_read_it_and_no_other():
    def rerun(name, **train):
        settings = load_profile("smoke")
        base = resolve(name, "smoke")
        changed = base.model_copy(update={"train": settings.train.model_copy(update=train)})
        return base.train_hash() != changed.train_hash()

    assert rerun("E1", steps=7) and rerun("E1", num_threads=3)
    assert not rerun("E1", amax_history_len=3) and not rerun("E1", bf16_warmup_steps=3)
    window = resolve("E5", "smoke", amax_history_len=3)
    assert window.quantization.amax_history_len == 3
    assert window.train_hash() != resolve("E5", "smoke").train_hash()


def test_yaml_numbers_are_strict(tmp_path, monkeypatch):
    from pangu_hif8 import config

    source = (config.PROFILES_DIR / "smoke.yaml").read_text()
    monkeypatch.setattr(config, "PROFILES_DIR", tmp_path)
    (tmp_path / "bad.yaml").write_text(source.replace("lr_scale: 6.0", "lr_scale: 6e-0"))
    with pytest.raises(UserError, match="lr_scale: Input should be a valid number"):
        config.load_profile("bad")
    (tmp_path / "odd.yaml").write_text(source + "\nlearning: 3\n")
    with pytest.raises(UserError, match="learning: Extra inputs"):
        config.load_profile("odd")
