"""Training figures on invented curves: what each layout draws, what it says, deterministic bytes, bad data."""

from __future__ import annotations

from dataclasses import replace

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from synthetic import curves, table

from repro import manifest
from repro.arms import ARMS
from repro.figures import panels as figure_panels
from repro.figures import training
from repro.figures.layouts import swept
from repro.figures.styles import MESSAGE, MOST_CURVES, SHAPES, STYLES, curve_styles, label
from repro.figures.training import FigureDataError, figure_for, note, save
from repro.provenance import FigureError, read_figure
from repro.rows import BASE
from repro.statistics.claims import ordering, window_means
from repro.statistics.inference import moving_average

ROWS = manifest.load()
ROW = ROWS["countdown-fig4"]
RECORD = {"row": ROW.id, "seeds": [10, 11], "dirty": True, "command": "python -m repro run x", "note": "é <&>"}
STARTS = ("warm0", "warm1")


@pytest.fixture(scope="module")
def data() -> pd.DataFrame:
    return pd.DataFrame(curves(seeds=2, checkpoints=STARTS))


@pytest.fixture(scope="module")
def drawn(data):
    return figure_for(ROW, data)


def panels_of(figure):
    """The panels by title or y label, without the header of legends."""
    return {
        axes.get_title(loc="left") or axes.get_ylabel() or axes.get_xlabel(): axes
        for axes in figure.axes
        if axes.axison
    }


def lines_of(axes, arm):
    return [line for line in axes.get_lines() if to_rgb(line.get_color()) == to_rgb(STYLES[arm].colour)]


def test_lines_are_the_runs_and_the_mean_over_warm_starts(data, drawn):
    train, heldout = drawn.axes[:2]
    runs = data[data["arm"] == "pg"].pivot(index="step", columns=["checkpoint", "seed"], values="train_accuracy")
    width = figure_panels.smoothing_of(60)
    smooth = np.stack([moving_average(runs[run], width) for run in sorted(runs)])
    lines = lines_of(train, "pg")
    np.testing.assert_allclose([line.get_ydata() for line in lines], [*smooth, smooth.mean(0)])
    assert lines[0].get_linewidth() < lines[-1].get_linewidth()
    evaluated = [line.get_xdata().tolist() for line in heldout.get_lines()]
    assert evaluated == [[1, 20, 40, 60]] * (5 * 5), "held-out points sit at the evaluated steps only"


def test_the_mean_weighs_warm_starts_equally_and_stops_where_a_run_stops(data):
    cut = data[(data["checkpoint"] == "warm0") | (data["seed"] == 10)]  # two seeds of warm0, one of warm1
    cut = cut[(cut["arm"] == "sc") & ((cut["checkpoint"] == "warm0") | (cut["step"] <= 30))]
    runs = figure_panels.curves(cut, "sc", "train_accuracy")
    mean = figure_panels.mean_curve(runs)
    first, second, other = (run.loc[:30] for run in runs.values())
    np.testing.assert_allclose(mean, ((first + second) / 2 + other) / 2)
    assert mean.index.max() == 30


@pytest.mark.parametrize("steps, width", [(1, 1), (9, 1), (40, 4), (100, 10), (160, 10)])
def test_short_runs_are_smoothed_less(steps, width):
    assert figure_panels.smoothing_of(steps) == width


def test_panels_are_labelled_with_units_and_legends_are_off_the_data(data, drawn):
    panels = panels_of(drawn)
    (header,) = (axes for axes in drawn.axes if not axes.axison)
    assert len(panels) == 8 and drawn.get_suptitle() == ROW.title
    text = " ".join([*panels, *(axes.get_ylabel() + axes.get_xlabel() for axes in panels.values())])
    assert "nats/token" in text and text.count("[fraction]") == 3 and text.count("[%]") == 3
    legends = [text.get_text() for legend in [header.get_legend(), *header.artists] for text in legend.get_texts()]
    assert set(legends) == {STYLES[arm].label for arm in MESSAGE} | {f"warm start {start}" for start in STARTS}
    assert all(not header.get_position().overlaps(axes.get_position()) for axes in panels.values())
    train, heldout = drawn.axes[:2]
    assert train.get_ylim() == heldout.get_ylim(), "the two accuracies share one scale"


def test_dots_are_all_arms_from_best_to_worst_with_every_run(data):
    more = pd.DataFrame(curves(seeds=2, checkpoints=STARTS, arms=ROWS["countdown-fig4-left"].arms))
    row = ROWS["countdown-fig4-left"]
    figure = figure_for(row, more)
    dots = panels_of(figure)["All arms: mean of the last 20 steps"]
    ranked = ordering(more, row.check.metric, row.check.window)
    assert [tick.get_text() for tick in dots.get_yticklabels()] == [label(arm) for arm, _ in ranked]
    means = [line.get_xdata()[0] for line in dots.get_lines() if line.get_markersize() == 5.5]
    np.testing.assert_allclose(means, [end.mean for _, end in ranked])
    bars = [line.get_xdata() for line in dots.get_lines() if line.get_linewidth() == 2.2]
    np.testing.assert_allclose(bars, [(end.low, end.high) for _, end in ranked])
    marks = [line.get_marker() for line in dots.get_lines() if line.get_markerfacecolor() == "none"]
    assert {shape: marks.count(shape) for shape in set(marks)} == dict.fromkeys(SHAPES[:2], 2 * len(ranked))
    counts = dict(zip([arm for arm, _ in ranked], [text.get_text() for text in dots.texts], strict=False))
    assert counts["onpolicy"] == "0/4" and counts["placebo"] == "4/4"
    train = figure.axes[0]
    assert {line.get_color() for line in train.get_lines()} == {STYLES[arm].colour for arm in MESSAGE}


def test_the_fraction_not_collapsed_is_that_of_the_caption(data, drawn):
    from repro.statistics.survival import survival

    alive = panels_of(drawn)["Not collapsed: 20-step mean at or above 0.15"]
    steps, marks = lines_of(alive, "pg")
    expected = survival(data, "pg", ROW.check)
    np.testing.assert_array_equal(steps.get_ydata(), expected.fraction)
    assert expected.fraction[-1] < expected.fraction[0]
    at = np.searchsorted(expected.steps, marks.get_xdata())
    reach = [c for c in alive.collections if to_rgb(c.get_color()[0]) == to_rgb(STYLES["pg"].colour)]
    ends = [segment[:, 1] for segment in reach[0].get_segments()]
    np.testing.assert_allclose(ends, np.stack([expected.low[at], expected.high[at]], axis=1))


def test_the_map_has_a_line_per_variant_and_pairs_each_arm_with_the_plain_gradient():
    row = ROWS["countdown-map"]
    data = table(row, steps=40)
    figure = figure_for(row, data)
    mismatch, ends, gaps = figure.axes[:3]
    assert [tick.get_text() for tick in mismatch.get_yticklabels()] == list(row.variants)
    assert mismatch.get_xlabel().endswith("[nats/token]") and "percentage points" in gaps.get_xlabel()
    means = {
        axes: [
            line.get_xdata()[0]
            for line in axes.get_lines()
            if line.get_markersize() == 5 and len(line.get_xdata()) == 1
        ]
        for axes in (ends, gaps)
    }
    assert len(means[ends]) == 3 * len(row.variants) and len(means[gaps]) == 2 * len(row.variants)
    part = data[data["variant"] == "11 tokens"]
    by_arm = {
        arm: pd.Series(window_means(part, arm, "train_accuracy", 20)).groupby(level=0).mean().mean() for arm in row.arms
    }
    place = 3 * list(row.variants).index("11 tokens")
    np.testing.assert_allclose(means[ends][place : place + 3], [by_arm[arm] for arm in row.arms])
    place = 2 * list(row.variants).index("11 tokens")
    np.testing.assert_allclose(
        means[gaps][place : place + 2], [by_arm["onpolicy"] - by_arm["pg"], by_arm["sc"] - by_arm["pg"]], atol=1e-12
    )


@pytest.mark.parametrize("name", ["countdown-lr", "countdown-staleness"])
def test_a_column_per_variant_and_the_ends_against_the_setting(name):
    row = ROWS[name]
    data = table(row, steps=40)
    figure = figure_for(row, data)
    number = len(row.variants)
    setting, values = swept(row)
    top, dots, (ends, heldout) = figure.axes[:number], figure.axes[number : 2 * number], figure.axes[2 * number : -1]
    assert len({axes.get_ylim() for axes in top}) == len({axes.get_xlim() for axes in dots}) == 1
    for axes, value in zip(top, values.values(), strict=True):
        assert f"{value:g}" in axes.get_title(loc="left")
    assert ends.get_xlabel() == heldout.get_xlabel() and "[" in ends.get_xlabel()
    assert ends.get_ylabel() != heldout.get_ylabel()
    assert [tick.get_text() for tick in ends.get_xticklabels()] == [f"{value:g}" for value in values.values()]
    ranked = dict(ordering(data, row.check.metric, row.check.window))
    line = lines_of(ends, "pg")[-1]
    np.testing.assert_allclose(line.get_ydata(), [ranked[f"{variant}/pg"].mean for variant in row.variants])
    np.testing.assert_allclose(line.get_xdata(), list(values.values()), rtol=0.1)


def test_variants_that_differ_in_more_than_one_number_have_no_sweep():
    row = ROWS["countdown-lr"]
    assert swept(ROW) is None
    assert swept(replace(row, variants={"a": {"lr": 0.1}, "b": {"lr": 0.2, "staleness": 2}})) is None
    assert swept(replace(row, variants={"a": {"task": "x"}, "b": {"task": "y"}})) is None
    assert swept(replace(row, variants={"a": {"lr": 0.1, "arms": ["pg"]}, "b": {"lr": 0.2}})) == (
        "lr",
        {"a": 0.1, "b": 0.2},
    )
    assert swept(replace(row, variants={"a": {"lr": 0.1}, "b": {}})) is None
    named = replace(row, variants={"easy": {"task": "x"}, "hard": {"task": "y", "arms": ["grpo"]}})
    data = [curves(20, 1, ("pg", "sc"), STARTS, ("easy",)), curves(20, 1, ("grpo",), STARTS, ("hard",))]
    figure = figure_for(named, pd.DataFrame(sum(data, [])))
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["easy", "hard"]
    assert len(figure.axes) == 5, "two columns of curves and dots, and the legends"


def test_constant_rewards_are_three_curves_against_step():
    row = ROWS["countdown-constant"]
    figure = figure_for(row, table(row, steps=40))
    assert list(panels_of(figure)) == [
        "correct training samples [%]", "responses that end [fraction]", r"KL$(q\,\|\,p)$ [nats/token]",
    ]  # fmt: skip
    assert "hollow marks" not in note(row, table(row, steps=10))


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_arms_drawn_together_differ_in_more_than_colour(row):
    styles = curve_styles(row.arms)
    assert 1 <= len(styles) <= MOST_CURVES
    for name in ("label", "colour", "dashes", "marker"):
        assert len({getattr(style, name) for style in styles.values()}) == len(styles), name


def test_every_arm_has_a_name_and_some_curve():
    assert set(STYLES) <= set(ARMS)
    assert len({label(arm) for arm in ARMS}) == len(ARMS)
    assert list(curve_styles(["mis", "ppo"])) == ["mis", "ppo"]
    assert len(curve_styles([arm for arm in ARMS if arm not in STYLES])) == 4, "as many as there are spare styles"
    assert list(curve_styles(list(ARMS))) == [arm for arm in ARMS if arm in MESSAGE]


def test_the_note_says_how_many_runs_and_what_is_simulated(data):
    text = note(ROW, data)
    assert text.startswith("2 checkpoints x 2 seeds per condition") and "Quantisation is simulated." in text
    assert f"{data['oracle_error'].max():.1e} (limit 2e-05)" in text and "6-step moving averages" in text
    lone = data[(data["seed"] == 10) & (data["checkpoint"] == "warm0") & (data["step"] < 9)].assign(oracle_error=np.nan)
    assert note(ROW, lone).startswith("1 checkpoint x 1 seed") and "not compared" in note(ROW, lone)
    assert "moving" not in note(ROW, lone)
    assert "simulated" not in note(ROWS["countdown-staleness"], data)
    engine = replace(ROW, settings=replace(ROW.settings, engine="vllm"))
    assert "simulated" not in note(engine, data)
    tier = replace(ROW.tiers["tiny"], settings={"engine": "vllm"})
    assert "simulated" not in note(replace(ROW, tiers={"tiny": tier}), data)


def test_tuning_seeds_are_not_shown(data):
    figure = figure_for(replace(ROW, tuning_seeds=(11,)), data)
    assert len(lines_of(figure.axes[0], "pg")) == 3
    with pytest.raises(FigureDataError, match=r"every seed \(10, 11\) is a tuning seed of countdown-fig4"):
        figure_for(replace(ROW, tuning_seeds=(10, 11)), data)


def test_a_table_without_variants_and_checkpoints_is_one_of_each(data):
    old = data[data["checkpoint"] == "warm0"].drop(columns=["variant", "checkpoint"])
    new = old.assign(variant=BASE, checkpoint="warm start")
    for one, other in zip(figure_for(ROW, old).axes, figure_for(ROW, new).axes, strict=True):
        for a, b in zip(one.get_lines(), other.get_lines(), strict=True):
            np.testing.assert_array_equal(a.get_ydata(), b.get_ydata())


def test_the_same_data_give_the_same_bytes_whatever_the_reader_configured(data, tmp_path):
    few = data[(data["step"] <= 40) & data["arm"].isin(["pg", "sc"])]
    figure = figure_for(ROW, few)
    first = [path.read_bytes() for path in save(figure, tmp_path, "a", RECORD, "t")]
    with matplotlib.rc_context({"axes.facecolor": "yellow", "xtick.direction": "in", "font.size": 20.0}):
        again = [path.read_bytes() for path in save(figure_for(ROW, few), tmp_path, "a", RECORD, "t")]
        assert matplotlib.rcParams["font.size"] == 20.0, "drawing leaves the reader's settings alone"
    assert first == again
    corners = [value for axes in figure.axes for value in axes.get_position().bounds]
    # the layout solver's last bits vary from call to call and must not show in the file
    np.testing.assert_allclose(corners, np.round(corners, 4), rtol=0, atol=1e-12)
    moved = few.assign(train_accuracy=few["train_accuracy"] + 0.01)
    other = [path.read_bytes() for path in save(figure_for(ROW, moved), tmp_path, "b", RECORD, "t")]
    assert first[0] != other[0] and first[1] != other[1]


def test_few_steps_missing_arms_and_a_dead_run_can_be_drawn(tmp_path):
    short = pd.DataFrame(curves(steps=3, seeds=1, arms=("pg",)))
    figure = figure_for(ROW, short)
    assert panels_of(figure)["gradient norm"].get_yscale() == "log"
    said = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert said == ["needs 20 steps, the shortest run of pg has 3"] * 2
    sweep = ROWS["countdown-lr"]
    few = table(sweep, steps=3)
    assert len([t for axes in figure_for(sweep, few).axes for t in axes.texts if "needs 20" in t.get_text()]) == 4
    short.loc[2, "grad_norm"] = 0.0  # a dead policy's gradient is exactly zero, which a logarithmic axis cannot show
    figure = figure_for(ROW, short)
    assert panels_of(figure)["gradient norm"].get_yscale() == "linear"
    paths = save(figure, tmp_path, "a", RECORD, "A title")
    assert [read_figure(path) for path in paths] == [RECORD, RECORD]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.drop(columns="ess"), "missing column 'ess'; has row, tier, variant"),
        (lambda d: d.iloc[:0], "at least one row"),
        (lambda d: d.assign(arm="magic"), "unknown arm 'magic'; known: onpolicy, pg"),
        (lambda d: pd.concat([d.assign(checkpoint=f"warm{k}") for k in range(9)]), "at most 8 warm starts, got 9"),
    ],
)
def test_data_that_cannot_be_drawn(data, change, words):
    one = data[(data["checkpoint"] == "warm0") & (data["arm"] == "pg")]
    with pytest.raises(FigureDataError, match=words):
        figure_for(ROW, change(one))


def test_files_that_carry_no_record(tmp_path, drawn):
    with pytest.raises(FigureError, match="readable figure file, got No such file"):
        read_figure(tmp_path / "none.png")
    (tmp_path / "text.png").write_text("hello")
    with pytest.raises(FigureError, match="expected a PNG or SVG file"):
        read_figure(tmp_path / "text.png")
    for suffix in ("png", "svg"):
        drawn.savefig(tmp_path / f"plain.{suffix}")
        with pytest.raises(FigureError, match="carries no record"):
            read_figure(tmp_path / f"plain.{suffix}")
    whole = save(drawn, tmp_path, "a", RECORD, "t")[1].read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FigureError, match="damaged chunk"):
        read_figure(tmp_path / "cut.png")


def test_the_oracle_error_is_the_largest_of_all_runs(data):
    assert training.largest_oracle_error(data) == data["oracle_error"].max()
    assert training.largest_oracle_error(data.assign(oracle_error=np.nan)) is None
