"""The sweeps' lists: what they hold at each profile's scale, and that every setting resolves."""

from __future__ import annotations

import pytest
from tiny_runs import profile as tiny_profile

from pangu_hif8.beyond_variants import NUM_BLOCKS, SPREADS, beyond_variants, num_blocks
from pangu_hif8.config import Profile, load_profile
from pangu_hif8.linear import quantized_blocks
from pangu_hif8.page_stage import variants_of


def hp_blocks(profile: Profile, ranking: list[int]) -> dict[str, list[int]]:
    return {
        v.id: v.changes["hp_blocks"]
        for v in beyond_variants(profile, ranking)
        if v.id.startswith("F3-") and v.changes["hp_blocks"]
    }


@pytest.mark.parametrize("name", ["smoke", "laptop", "paper"])
def test_every_setting_resolves_to_a_run_of_its_own(name: str) -> None:
    profile = load_profile(name)
    ranking = list(range(num_blocks(profile)))[::-1]
    variants = beyond_variants(profile, ranking)
    configs = {v.id: v.config(name, 0) for v in variants}
    assert {v.id.split("-")[0] for v in variants} == {"F1", "F2", "F3", "W", "T"}
    assert all(config.custom for config in configs.values())
    same = [{v.id for v in variants if configs[v.id].run_name == c.run_name} for c in configs.values()]
    # The most sensitive blocks are here the last ones, on purpose: one run for both.
    twins = {frozenset((f"F3-E8-{n}-last", f"F3-E8-{n}-sensitive")) for n in NUM_BLOCKS[1:]}
    assert all(len(names) == 1 or frozenset(names) in twins for names in same)


@pytest.mark.parametrize("name", ["smoke", "laptop", "paper"])
def test_no_variant_is_the_experiment_that_it_changes(name: str) -> None:
    profile = load_profile(name)
    windows = [v.changes["amax_history_len"] for v in beyond_variants(profile) if v.id.startswith("W-")]
    assert profile.train.amax_history_len not in windows
    assert max(windows) <= 2 * profile.train.steps
    targets = [v.changes["hif8_max"] for v in beyond_variants(profile) if v.id.startswith("T-")]
    assert targets == [8.0, 56.0, 224.0]


@pytest.mark.parametrize(("name", "numbers"), [("smoke", {5}), ("laptop", {5, 10}), ("paper", {5, 10})])
def test_ten_blocks_are_left_out_where_the_model_has_eight(name: str, numbers: set[int]) -> None:
    profile = load_profile(name)
    kept = hp_blocks(profile, list(range(num_blocks(profile))))
    assert {len(blocks) for blocks in kept.values()} == numbers
    for blocks in kept.values():
        assert quantized_blocks(num_blocks(profile), 0, 0, blocks)


def test_a_model_of_three_blocks_keeps_none_of_these() -> None:
    profile = tiny_profile()
    assert not hp_blocks(profile, [0, 1, 2])
    assert [v.id for v in beyond_variants(profile) if v.id.startswith("F3-")] == ["F3-E8-0"]


def test_the_ranking_chooses_the_most_sensitive() -> None:
    profile = load_profile("smoke")
    assert hp_blocks(profile, [7, 0, 3, 5, 1, 2, 4, 6])["F3-E8-5-sensitive"] == [0, 1, 3, 5, 7]
    assert "F3-E8-5-sensitive" not in hp_blocks(profile, [])
    assert hp_blocks(profile, [])["F3-E8-5-last"] == [3, 4, 5, 6, 7]


def test_the_latest_switch_is_half_of_the_run() -> None:
    for name in ("smoke", "paper"):
        profile = load_profile(name)
        found = [v for v in beyond_variants(profile) if "adaptive_warmup_spread" in v.changes]
        assert len(found) == len(SPREADS)
        assert {v.changes["bf16_warmup_steps"] for v in found} == {profile.train.steps // 2}


def test_the_page_lists_the_same_without_a_measurement() -> None:
    assert variants_of("beyond", "smoke") == beyond_variants(load_profile("smoke"))
