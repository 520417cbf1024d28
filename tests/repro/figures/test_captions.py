"""Captions follow their data: numbers, seeds, correction, collapses and the comparison with the published ordering."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from repro.figures import captions
from repro.rows import BASE, Check, Comparison, Published, Row

SETTINGS = {
    "checkpoint": "repro/checkpoints/warm_start_seed1",
    "lr": 0.003,
    "weights": "fp4_e2m1",
    "eval_problems": 256,
}
META = {"tier": "tiny", "steps": 60, "settings": SETTINGS}


def table(ends: dict[str, float], checkpoints: int = 3, seeds: int = 4, steps: int = 60) -> pd.DataFrame:
    """Accuracy 0.3 in the first half of the steps, the given end in the second, with a little spread over replicates."""
    rows = [
        {
            "variant": condition.rpartition("/")[0] or "base",
            "arm": condition.rpartition("/")[2],
            "checkpoint": f"warm{k}",
            "seed": 2 + seed,
            "step": step,
            "train_accuracy": 0.3 if step <= steps // 2 else end + 0.01 * (k - 1) + 0.002 * seed,
            "reward_mean": 0.0,
            "grad_norm": 1.0,
            "heldout_accuracy_trainer": 0.3,
            "oracle_error": None,
        }
        for condition, end in ends.items()
        for k in range(checkpoints)
        for seed in range(seeds)
        for step in range(1, steps + 1)
    ]
    return pd.DataFrame(rows)


def row(ordering=("sc", "tis", "pg"), tuning=(1, 3, 100), not_tested=("it holds at 0.6 B",), variants=None) -> Row:
    comparisons = (Comparison("sc", "pg", 0.1), Comparison("sc", "tis", 0.05))
    return Row(
        id="invented",
        title="An invented row",
        figure="Fig. 0",
        claim="One is above the other.",
        arms=("sc", "tis", "pg"),
        notebook="",
        output="",
        layout="",
        scaled_down=("steps: {steps} instead of 1200",),
        settings=None,  # a caption speaks of the settings in the record
        variants=variants or {BASE: {}},
        tuning_seeds=tuning,
        published=Published("As published.", "As rerun.", ordering),
        check=Check("train_accuracy", 20, 0.1, comparisons, (), not_tested),
        tiers={},
    )


def test_the_caption_follows_its_data():
    data = table({"sc": 0.5, "tis": 0.4, "pg": 0.05})
    data.loc[0, "oracle_error"] = 3e-6
    text = captions.caption(row(), data, META)
    assert "3 conditions x 3 checkpoints x 4 seeds x 60 steps" in text and "steps: 60 instead of 1200" in text
    assert "Warm starts: warm0, warm1, warm2." in text
    assert "chosen on seeds 1, 3, 100. Of the seeds shown, 3 are among them and 2, 4, 5 were unseen then" in text
    assert "simulated" in text and "3e-06, limit 2e-05, on the 1 steps" in text
    assert "HOLDS: sc ends above pg by more than 0.1" in text and "HOLDS: sc ends above tis by more than 0.05" in text
    assert "NOT TESTED AT THIS SCALE: it holds at 0.6 B" in text and "of what this scale tests: **HOLDS**" in text
    assert "The 2 comparisons share a two-sided error of 5%" in text and "97.5% (1 - 0.05/2)" in text
    assert (
        "With 12 replicates it cannot fall below 0.00049" in text and "as units (3) no p could fall below 0.25" in text
    )
    assert "shows 0.67 of the variance" in text and "{" not in text
    swapped = data.assign(arm=data["arm"].map({"sc": "pg", "pg": "sc", "tis": "tis"}), oracle_error=None)
    text = captions.caption(row(not_tested=()), swapped, META)
    assert "FAILS: sc ends above pg" in text and "Overall: **FAILS**" in text and "no step was compared" in text


def test_a_table_of_one_warm_start_takes_its_name_from_the_record():
    data = table({"sc": 0.5, "tis": 0.4, "pg": 0.05}, checkpoints=1).drop(columns=["variant", "checkpoint"])
    text = captions.caption(row(), data, META)
    assert "Warm starts: warm_start_seed1." in text and "1 checkpoint x 4 seeds" in text
    assert "**UNDERPOWERED**" in text and "HOLDS" not in text and "shows 0.00 of the variance" in text
    assert text.count("not separable here") == 2


def test_results_are_listed_from_best_to_worst_with_collapses():
    text = captions.results_table(table({"pg": 0.05, "sc": 0.5, "tis": 0.4}), row().check)
    lines = text.splitlines()[4:]
    assert [line.split(" | ")[0] for line in lines] == ["| SC", "| TIS (cap 2)", "| PG"]
    assert "0.503 [0.49" in lines[0] and lines[0].endswith("| 0 of 12 |")
    # from step 31 at e = 0.040 to 0.066: of 20 steps more than 4/(0.3 - e), so 16 to 18, must be low for a mean below 0.1
    assert "| 0.00 [0.00, 0.24] | 12 of 12, first at step 46 to 48 |" in lines[2]
    assert captions.results_table(table({"sc": 0.5}, steps=8), row().check) == (
        "No ordering: needs 20 steps, the shortest run of sc has 8."
    )


def test_the_published_ordering_is_compared_pair_by_pair():
    data = table({"sc": 0.5, "tis": 0.5, "pg": 0.05, "tis_sc": 0.6})
    data.loc[(data["arm"] == "tis") & (data["checkpoint"] == "warm2") & (data["step"] > 30), "train_accuracy"] += 0.1
    data.loc[(data["arm"] == "tis") & (data["checkpoint"] == "warm0") & (data["step"] > 30), "train_accuracy"] -= 0.1
    lines = captions.ordering_table(data, ("sc", "tis_sc", "pg", "mis"), "train_accuracy", 20).splitlines()
    assert "[98.33% interval]" in lines[0]
    assert lines[2].startswith("| SC above TIS + SC | -0.100 [") and lines[2].endswith("| no |")
    assert lines[3].startswith("| TIS + SC above PG | +0.550 [") and lines[3].endswith("| yes |")
    assert lines[4] == "| PG above MIS [0.5, 5] | not run: mis | not separable here |"
    (*_, undecided) = captions.ordering_table(data, ("sc", "tis"), "train_accuracy", 20).splitlines()
    assert undecided.startswith("| SC above TIS (cap 2) | ") and undecided.endswith("| not separable here |")
    assert captions.ordering_table(data, ("sc",), "train_accuracy", 20) == ""
    assert captions.ordering_table(data, (), "train_accuracy", 20) == ""


def test_variants_are_named_in_front_of_the_arm_and_listed_with_their_settings():
    data = table({"lr-low/sc": 0.5, "lr-high/onpolicy": 0.4})
    text = captions.results_table(data, row().check)
    assert text.index("| lr-low: SC |") < text.index("| lr-high: on-policy control |")
    entry = row(ordering=(), variants={"lr-low": {"lr": 0.001, "arms": ["sc"]}, "lr-high": {}})
    assert captions.describe_variants(entry) == "Variants: lr-low (lr 0.001); lr-high (the settings of the row)."
    assert captions.describe_variants(row()) == ""
    assert "at the learning rate of its variant." in captions.describe_sampler(entry, data, SETTINGS)


def test_only_what_was_simulated_is_called_simulated():
    data = table({"onpolicy": 0.5})
    assert captions.describe_sampler(row(), data, SETTINGS) == (
        "The sampler's quantisation is simulated: values are rounded to the format's grid and computed in float32. "
        "The on-policy control uses the unquantised sampler at the same learning rate, 0.003."
    )
    assert captions.describe_sampler(row(), table({"sc": 0.5}), {**SETTINGS, "weights": ""}) == ""


def test_seeds_used_for_tuning_are_told_apart():
    assert captions.describe_seeds({2, 3}, ()) == "Seeds: 2, 3; no seeds are recorded as used for choosing settings."
    assert (
        captions.describe_seeds({3, 2}, (1,))
        == "Settings were chosen on seeds 1. All seeds shown were unseen then: 2, 3."
    )
    assert captions.describe_seeds({1}, (1,)).endswith(
        "Of the seeds shown, 1 are among them and none were unseen then."
    )


def test_a_row_without_comparisons_published_ordering_or_tuning_seeds_has_a_caption():
    entry = row(ordering=(), tuning=())
    entry = replace(entry, check=replace(entry.check, comparisons=()))
    text = captions.caption(entry, table({"sc": 0.5}), META)
    assert "no seeds are recorded" in text and "Same ordering?" not in text and "Holm" not in text
    assert "of what this scale tests: **NOT TESTED AT THIS SCALE**" in text
