"""The training figure on invented curves: what is drawn, deterministic bytes, embedded record, bad data."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from synthetic import ARMS, curves

from repro import figures
from repro.figures import STYLES, FigureDataError, note, save, training_figure
from repro.provenance import FigureError, read_figure
from repro.statistics import moving_average

RECORD = {
    "row": "countdown-fig4",
    "seeds": [0, 1, 2],
    "dirty": True,
    "command": "python -m repro run x",
    "note": "é <&>",
}


@pytest.fixture(scope="module")
def data() -> pd.DataFrame:
    return pd.DataFrame(curves())


def test_the_arms_with_a_style_are_those_of_the_trainer():
    from repro.arms import ARMS as TRAINED

    assert set(STYLES) == set(TRAINED)


def test_lines_are_the_seeds_and_their_mean(data):
    train, heldout = training_figure(data, "t").axes[:2]
    runs = data[data["arm"] == "pg"].pivot(index="step", columns="seed", values="train_accuracy")
    smooth = np.stack([moving_average(runs[seed], figures.SMOOTHING) for seed in runs])
    lines = [line for line in train.get_lines() if to_rgb(line.get_color()) == to_rgb(STYLES["pg"].colour)]
    np.testing.assert_allclose([line.get_ydata() for line in lines], [*smooth, smooth.mean(0)])
    thin, thick = lines[0], lines[-1]
    assert thin.get_linewidth() < thick.get_linewidth()
    evaluated = [line.get_xdata().tolist() for line in heldout.get_lines()]
    assert evaluated == [[1, 20, 40, 60]] * (len(ARMS) * 4), "held-out points sit at the evaluated steps only"


def test_panels_are_labelled_with_units_and_the_legend_is_off_the_data(data):
    figure = training_figure(data, "The title", note(data))
    panels = [axes for axes in figure.axes if axes.axison]
    (header,) = (axes for axes in figure.axes if not axes.axison)
    assert len(panels) == 6 and all(axes.get_xlabel() == "optimizer step" for axes in panels)
    titles = " ".join(axes.get_title(loc="left") for axes in panels)
    assert "nats/token" in titles and titles.count("[fraction]") == 2
    assert all(axes.get_ylabel() == "correct responses [%]" for axes in panels[:2])
    assert [text.get_text() for text in header.get_legend().get_texts()] == [STYLES[arm].label for arm in STYLES]
    assert all(not header.get_position().overlaps(axes.get_position()) for axes in panels)
    assert panels[0].get_ylim() == panels[1].get_ylim(), "the two accuracies share one scale"
    assert figure.get_suptitle() == "The title"


def test_arms_differ_in_more_than_colour():
    assert len({style.colour for style in STYLES.values()}) == len(STYLES)
    assert len({style.dashes for style in STYLES.values()}) == len(STYLES)
    assert len({style.marker for style in STYLES.values()}) == len(STYLES)


def test_the_note_counts_seeds_and_names_the_largest_error(data):
    text = note(data)
    assert text.startswith("3 seeds per arm") and "Quantisation is simulated" in text
    assert f"{data['oracle_error'].max():.1e} (limit 2e-05)" in text
    lone = data[data["seed"] == 0].assign(oracle_error=np.nan)
    assert note(lone).startswith("1 seed per arm") and "not compared" in note(lone)


def test_the_same_data_give_the_same_bytes_whatever_the_reader_configured(data, tmp_path):
    first = [path.read_bytes() for path in save(training_figure(data, "t", "n"), tmp_path, "a", RECORD, "t")]
    with matplotlib.rc_context({"axes.facecolor": "yellow", "xtick.direction": "in", "font.size": 20.0}):
        again = [path.read_bytes() for path in save(training_figure(data, "t", "n"), tmp_path, "a", RECORD, "t")]
    assert first == again
    corners = [value for axes in training_figure(data, "t", "n").axes for value in axes.get_position().bounds]
    # the layout solver's last bits vary from call to call and must not show in the file
    np.testing.assert_allclose(corners, np.round(corners, 4), rtol=0, atol=1e-12)
    moved = data.assign(train_accuracy=data["train_accuracy"] + 0.01)
    other = [path.read_bytes() for path in save(training_figure(moved, "t", "n"), tmp_path, "b", RECORD, "t")]
    assert first[0] != other[0] and first[1] != other[1]


def test_drawing_leaves_the_readers_settings_alone(data):
    with matplotlib.rc_context({"font.size": 20.0}):
        training_figure(data, "t")
        assert matplotlib.rcParams["font.size"] == 20.0


def test_the_record_is_inside_both_files(data, tmp_path):
    for path in save(training_figure(data, "t"), tmp_path, "a", RECORD, "A title"):
        assert read_figure(path) == RECORD


def test_few_steps_missing_arms_and_a_dead_run_can_be_drawn(tmp_path):
    short = pd.DataFrame(curves(steps=3, seeds=1, arms=("pg",)))
    assert training_figure(short, "t").axes[-2].get_yscale() == "log"
    short.loc[2, "grad_norm"] = 0.0  # a dead policy's gradient is exactly zero, which a logarithmic axis cannot show
    figure = training_figure(short, "t", note(short))
    assert figure.axes[-2].get_yscale() == "linear"
    paths = save(figure, tmp_path, "a", RECORD, "t")
    assert all(path.stat().st_size > 10_000 for path in paths)


def test_the_mean_stops_where_a_seed_stops(data):
    cut = data[(data["arm"] == "sc") & ((data["seed"] != 2) | (data["step"] <= 30))]
    lines = training_figure(cut, "t").axes[0].get_lines()
    assert [line.get_xdata()[np.isfinite(line.get_ydata())].max() for line in lines] == [60, 60, 30, 30]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.drop(columns="ess"), "missing column 'ess'; has row, tier, arm"),
        (lambda d: d.iloc[:0], "at least one row"),
        (lambda d: d.assign(arm="ppo"), "arm 'ppo' has no style; known: onpolicy, pg"),
    ],
)
def test_data_that_cannot_be_drawn(data, change, words):
    with pytest.raises(FigureDataError, match=words):
        training_figure(change(data), "t")


def test_files_that_carry_no_record(tmp_path, data):
    with pytest.raises(FigureError, match="readable figure file, got No such file"):
        read_figure(tmp_path / "none.png")
    (tmp_path / "text.png").write_text("hello")
    with pytest.raises(FigureError, match="expected a PNG or SVG file"):
        read_figure(tmp_path / "text.png")
    for suffix in ("png", "svg"):
        figure = training_figure(data, "t")
        figure.savefig(tmp_path / f"plain.{suffix}")
        with pytest.raises(FigureError, match="carries no record"):
            read_figure(tmp_path / f"plain.{suffix}")
    whole = save(training_figure(data, "t"), tmp_path, "a", RECORD, "t")[1].read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FigureError, match="damaged chunk"):
        read_figure(tmp_path / "cut.png")
