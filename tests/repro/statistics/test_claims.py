"""Verdicts on data whose window means are known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from repro.rows import Check, Comparison
from repro.statistics import claims
from repro.statistics.claims import FAILS, HOLDS, NOT_TESTED, UNDERPOWERED
from repro.statistics.inference import Replicate


def table(ends: dict[str, list[list[float]]], steps: int = 8, start: float = 0.25) -> pd.DataFrame:
    """Accuracy is ``start`` in the first half of the steps and the given number, per condition, checkpoint and seed, in
    the second. A condition is an arm or variant/arm."""
    rows = [
        {
            "variant": condition.rpartition("/")[0] or "base",
            "arm": condition.rpartition("/")[2],
            "checkpoint": f"k{k}",
            "seed": seed,
            "step": step,
            "accuracy": start if step <= steps // 2 else end,
        }
        for condition, checkpoints in ends.items()
        for k, seeds in enumerate(checkpoints)
        for seed, end in enumerate(seeds)
        for step in range(1, steps + 1)
    ]
    return pd.DataFrame(rows).sample(frac=1.0, random_state=0)  # the order of rows in a file means nothing


def above(better: str, worse: str, margin: float = 0.0) -> Comparison:
    return Comparison(better, worse, margin)


def check(*comparisons: Comparison, improves=(), not_tested=(), window: int = 4) -> Check:
    return Check("accuracy", window, 0.1, comparisons, improves, not_tested)


PG = [[0.25] * 4] * 3


@pytest.mark.parametrize(
    ("sc", "margin", "state"),
    [
        ([[0.5, 0.55, 0.5, 0.45], [0.5] * 4, [0.6, 0.5, 0.5, 0.5]], 0.1, HOLDS),
        ([[0.5, 0.55, 0.5, 0.45], [0.5] * 4, [0.6, 0.5, 0.5, 0.5]], 0.25, UNDERPOWERED),  # the mean is 0.258 above
        ([[0.5, 0.55, 0.5, 0.45], [0.5] * 4, [0.6, 0.5, 0.5, 0.5]], 0.4, FAILS),
        ([[0.5] * 4, [0.5] * 4, [0.2] * 4], 0.0, UNDERPOWERED),  # one of three checkpoints disagrees, all its seeds do
        ([[0.5, 0.5, 0.2, 0.5]] * 3, 0.0, HOLDS),  # one seed of each disagrees, every checkpoint agrees
        ([[0.125] * 4] * 3, 0.0, FAILS),
        ([[0.25] * 4] * 3, 0.0, UNDERPOWERED),  # equal everywhere: not above, and no sign to test
    ],
)
def test_comparison_of_two_conditions(sc, margin, state):
    (verdict,) = claims.evaluate(check(above("sc", "pg", margin)), table({"sc": sc, "pg": PG}))
    assert verdict.state == state
    by = f" by more than {margin:g}" if margin else ""
    assert str(verdict).startswith(f"{state}: sc ends above pg{by} in accuracy, last 4 steps (mean ")
    assert "over 3 checkpoints x 4 seeds" in verdict.detail and "95% interval" in verdict.detail
    assert verdict.difference.interval.mean == pytest.approx(np.mean(sc) - 0.25)
    assert claims.overall([verdict]) == state


def test_the_p_value_is_against_the_margin():
    data = table({"sc": [[0.4, 0.6] * 2] * 3, "pg": PG})
    p = {m: claims.evaluate(check(above("sc", "pg", m)), data)[0].difference.p_value for m in (0.0, 0.25, 0.5)}
    assert p[0.0] == p[0.5] == 2 / 4096 and p[0.25] == 1.0


def test_a_negative_margin_states_that_one_is_not_much_worse():
    data = table({"sc": [[0.26] * 4] * 3, "pg": PG})
    verdicts = claims.evaluate(check(above("pg", "sc", -0.05), above("pg", "sc", -0.002)), data)
    assert [verdict.state for verdict in verdicts] == [HOLDS, FAILS]
    assert verdicts[0].statement == "pg ends less than 0.05 below sc in accuracy, last 4 steps"


def test_an_undecided_comparison_says_how_wide_it_is():
    data = table({"sc": [[0.5] * 4, [0.5] * 4, [0.2] * 4], "pg": PG})
    (verdict,) = claims.evaluate(check(above("sc", "pg")), data)
    assert "12 replicates leave an interval of width 0.300 that contains the margin 0" in verdict.detail
    assert "by checkpoint +0.250, +0.250, -0.050; above the margin in 8 of 12" in verdict.detail


@pytest.mark.parametrize("ends", [[[0.5] * 8], [[0.5], [0.5]]])
def test_one_checkpoint_or_two_replicates_never_decide(ends):
    low = [[0.25] * len(seeds) for seeds in ends]
    for names in (("sc", "pg"), ("pg", "sc")):
        (verdict,) = claims.evaluate(check(above(*names)), table({"sc": ends, "pg": low}))
        assert verdict.state == UNDERPOWERED
        count = sum(map(len, ends))
        assert f"needs at least 2 checkpoints and 3 replicates, ran {len(ends)} and {count}" in verdict.detail


def test_both_the_interval_and_the_exact_test_must_agree():
    """Three replicates have an interval that excludes the margin and a p-value that cannot be small; six can decide."""
    (verdict,) = claims.evaluate(
        check(above("sc", "pg")), table({"sc": [[0.5, 0.5], [0.5]], "pg": [[0.25, 0.25], [0.25]]})
    )
    assert verdict.state == UNDERPOWERED and verdict.difference.interval.low > 0
    assert "over 3 replicates over 2 checkpoints" in verdict.detail and "p 0.25 (floor 0.25)" in verdict.detail
    assert verdict.detail.endswith("; the sign-flip test does not reject at 3 replicates")
    six = {"sc": [[0.5] * 2] * 3, "pg": [[0.25] * 2] * 3}
    assert claims.evaluate(check(above("sc", "pg")), table(six))[0].state == HOLDS
    assert claims.evaluate(check(above("pg", "sc")), table(six))[0].state == FAILS


def test_the_correction_counts_every_comparison_of_the_row():
    data = table({"sc": [[0.5] * 4] * 3, "pg": PG, "onpolicy": [[0.5] * 4] * 3})
    pairs = (above("sc", "pg"), above("onpolicy", "pg"), above("absent", "pg"))
    verdicts = claims.evaluate(check(*pairs, improves=("onpolicy",)), data)
    assert [verdict.state for verdict in verdicts] == [HOLDS, HOLDS, UNDERPOWERED, HOLDS]
    floor = 2 / 4096
    for verdict in (verdicts[0], verdicts[1], verdicts[3]):
        assert verdict.difference.interval.level == pytest.approx(1 - 0.05 / 4)
        assert verdict.difference.p_value == floor and verdict.difference.adjusted == pytest.approx(4 * floor)
        assert "does not reject" not in verdict.detail
        assert "98.75% interval" in verdict.detail and "(floor 0.00049), Holm 0.002" in verdict.detail


def test_a_wider_correction_can_withdraw_a_verdict():
    # The third checkpoint alone, drawn three times in a row (1/27), gives a mean at or below zero nearly half of the time:
    # a lower tail of about 1.7 %, less than 2.5 % and more than 2.5 % / 4.
    data = table({"sc": [[0.5] * 4, [0.5] * 4, [0.30, 0.30, 0.22, 0.20]], "pg": PG})
    (alone,) = claims.evaluate(check(above("sc", "pg")), data)
    together = claims.evaluate(check(*[above("sc", "pg")] * 4), data)
    assert alone.state == HOLDS and {verdict.state for verdict in together} == {UNDERPOWERED}
    assert alone.difference.interval.low > together[0].difference.interval.low


def test_improvement_compares_a_condition_with_its_own_start():
    rising, falling = table({"onpolicy": [[0.5, 0.4, 0.5]] * 3}), table({"onpolicy": [[0.125, 0.2, 0.125]] * 3})
    assert claims.evaluate(check(improves=("onpolicy",)), rising)[0].state == HOLDS
    (verdict,) = claims.evaluate(check(improves=("onpolicy",)), falling)
    assert verdict.state == FAILS and "ends above its own first 4 steps" in verdict.statement


def test_swapped_labels_take_the_verdict_away():
    """Relabelling the arms of about half of the replicates at random must not leave a claim standing."""
    data = table({"sc": [[0.5] * 4] * 3, "pg": PG})
    assert claims.evaluate(check(above("sc", "pg")), data)[0].state == HOLDS
    rng, states = np.random.default_rng(2), []
    for _ in range(10):
        flipped = {(f"k{k}", s) for k in range(3) for s in range(4) if rng.random() < 0.5}
        swap = [(k, s) in flipped for k, s in zip(data["checkpoint"], data["seed"], strict=True)]
        arms = data["arm"].where(~np.array(swap), data["arm"].map({"sc": "pg", "pg": "sc"}))
        states.append(claims.evaluate(check(above("sc", "pg")), data.assign(arm=arms))[0].state)
    assert states.count(UNDERPOWERED) >= 8, states


def test_missing_conditions_steps_and_common_replicates_are_named():
    data = table({"sc": [[0.5] * 3] * 2, "pg": [[0.25] * 3] * 2})
    lacking = claims.evaluate(check(above("sc", "tis"), improves=("onpolicy",)), data)
    assert [(v.state, v.detail) for v in lacking] == [(UNDERPOWERED, f"not run: {x}") for x in ("tis", "onpolicy")]
    (short,) = claims.evaluate(check(above("sc", "pg"), window=9), data)
    assert short.detail == "needs 9 steps, the shortest run of sc has 8" and short.difference is None
    (overlap,) = claims.evaluate(check(improves=("sc",), window=5), data)
    assert "needs 10 steps" in overlap.detail
    apart = data[(data["arm"] == "sc") == (data["checkpoint"] == "k0")]
    assert claims.evaluate(check(above("sc", "pg")), apart)[0].detail == "the conditions have no replicate in common"
    ragged = data[(data["seed"] > 0) | (data["step"] < 7) | (data["arm"] == "pg")]
    assert "the runs of sc have from 6 to 8 steps" in claims.evaluate(check(above("sc", "pg")), ragged)[0].detail
    early = data[(data["arm"] == "sc") | (data["step"] < 7)]
    assert "sc has 8 steps, pg 6" in claims.evaluate(check(above("sc", "pg")), early)[0].detail


def test_replicates_without_a_partner_are_left_out_and_counted():
    data = table({"sc": [[0.5] * 4] * 3, "pg": [[0.25] * 4, [0.25] * 3, [0.25] * 4]})
    (verdict,) = claims.evaluate(check(above("sc", "pg")), data)
    assert verdict.state == HOLDS and "over 11 replicates over 3 checkpoints" in verdict.detail
    assert "1 replicates without a partner left out" in verdict.detail


def test_statements_beyond_this_scale_are_printed_and_change_nothing():
    data = table({"sc": [[0.5] * 4] * 3, "pg": PG})
    verdicts = claims.evaluate(check(above("sc", "pg"), not_tested=("it holds at 0.6 B parameters",)), data)
    assert str(verdicts[1]) == "NOT TESTED AT THIS SCALE: it holds at 0.6 B parameters"
    assert claims.overall(verdicts) == HOLDS and claims.overall(verdicts[1:]) == NOT_TESTED
    assert verdicts[0].difference.interval.level == 0.95


def test_one_failure_fails_the_claim():
    verdicts = [claims.Verdict("", state, "") for state in (HOLDS, NOT_TESTED, UNDERPOWERED, FAILS)]
    assert [claims.overall(verdicts[:n]) for n in (1, 2, 3, 4)] == [HOLDS, HOLDS, UNDERPOWERED, FAILS]


def test_conditions_carry_the_variant_only_where_there_are_several():
    one, two = table({"sc": PG, "pg": PG}), table({"low/sc": PG, "high/sc": [[0.5] * 4] * 3})
    assert sorted(claims.conditions(one)) == ["pg", "sc"]
    assert sorted(claims.conditions(two)) == ["high/sc", "low/sc"]
    assert claims.evaluate(check(above("high/sc", "low/sc")), two)[0].state == HOLDS
    alone = two[two["variant"] == "high"]  # a part of the row still answers to its full name
    assert claims.conditions(alone) == ["sc"]
    assert set(claims.window_means(alone, "high/sc", "accuracy", 4)) == set(claims.replicates(alone))
    with pytest.raises(ValueError, match="expected variant/arm for one of the variants"):
        claims.evaluate(check(above("sc", "low/sc")), two)


def test_tables_without_variant_and_checkpoint_still_load():
    data = table({"sc": [[0.5] * 4], "pg": [[0.25] * 4]}).drop(columns=["variant", "checkpoint"])
    filled = claims.complete(data, "countdown_tiny_seed1")
    assert set(filled["variant"]) == {"base"} and set(filled["checkpoint"]) == {"countdown_tiny_seed1"}
    assert claims.window_means(filled, "sc", "accuracy", 4) == {
        Replicate("countdown_tiny_seed1", seed): 0.5 for seed in range(4)
    }
    assert "ran 1 and 4" in claims.evaluate(check(above("sc", "pg")), data)[0].detail
    assert sorted(claims.conditions(data)) == ["pg", "sc"] and len(claims.replicates(data)) == 4


def test_a_broken_file_is_no_missing_run():
    data = table({"sc": PG, "pg": PG})
    with pytest.raises(KeyError, match="accuracy: expected a column"):
        claims.evaluate(check(above("sc", "pg")), data.rename(columns={"accuracy": "x"}))
    with pytest.raises(ValueError, match="consecutive steps, each once, in sc, k0 seed 0"):
        claims.evaluate(check(above("sc", "pg")), data[data["step"] != 3])
    with pytest.raises(ValueError, match="consecutive steps, each once"):
        claims.evaluate(check(above("sc", "pg")), pd.concat([data, data.head(1)]))


def test_ordering_is_the_one_that_came_out():
    data = table({"sc": [[0.25, 0.375, 0.5]] * 2, "pg": [[0.5] * 3] * 2, "tis": [[0.125] * 3] * 2})
    order = claims.ordering(data, "accuracy", 4)
    assert [name for name, _ in order] == ["pg", "sc", "tis"]
    assert [interval.mean for _, interval in order] == pytest.approx([0.5, 0.375, 0.125])
    assert 0.25 <= order[1][1].low < 0.375 < order[1][1].high <= 0.5
    assert order == claims.ordering(data.sort_values("step"), "accuracy", 4)


def test_variants_with_warm_starts_of_their_own_are_counted_per_condition():
    def part(variant, starts, seeds):
        return pd.DataFrame(
            [
                {"variant": variant, "arm": "pg", "checkpoint": start, "seed": seed, "step": 1}
                for start in starts
                for seed in seeds
            ]
        )

    same = pd.concat([part("a", ("x", "y"), (1, 2)), part("b", ("z", "w"), (1, 2))])
    assert claims.extent_per_condition(same) == "2 checkpoints x 2 seeds" and len(claims.fullest(same)) == 4
    ragged = pd.concat([part("a", ("x", "y"), (1, 2)), part("b", ("z",), (1,))])
    assert claims.extent_per_condition(ragged) == "1 to 4 replicates"
    assert {replicate.checkpoint for replicate in claims.fullest(ragged)} == {"x", "y"}
