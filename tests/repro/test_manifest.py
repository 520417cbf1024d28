"""The manifest: the shipped one is consistent with the trainer, a bad one is refused by name."""

from __future__ import annotations

import pytest

from repro import manifest
from repro.arms import ARMS
from repro.cells.worker import resolve
from repro.gpu.settings import complete_config as gpu_config
from repro.manifest import ManifestError
from repro.oracle import LIMIT
from repro.provenance import ROOT
from repro.settings import TASKS, complete_config

ROWS = manifest.load()
TEXT = manifest.MANIFEST.read_text(encoding="utf-8")


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_every_cell_is_a_complete_trainer_config(row):
    assert set(row.arms) <= set(ARMS)
    for tier in row.tiers:
        for cell in row.cells(tier):
            # nothing is left to the trainer's defaults: a changed default could not change what a key means
            complete = gpu_config if tier == "gpu" else complete_config
            assert complete(cell.config) == cell.config


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_what_a_row_names_exists_and_its_texts_can_be_filled(row):
    assert (ROOT / row.notebook).is_file()
    for line in row.scaled_down:
        assert "{" not in line.format(**vars(row.settings), steps=1)
    for name, tier in row.tiers.items():
        assert tier.steps >= 2 * row.check.window, "the claim needs a first and a last window"
        if tier.runner == manifest.RUNNER:  # what another one starts from is the user's
            assert all((ROOT / start / "model.safetensors").is_file() for start in row.starts(name))
        assert callable(resolve(tier.runner))
        assert not set(tier.seeds) & set(row.tuning_seeds), "a figure shows a seed on which settings were chosen"


def test_rows_share_no_output_and_conditions_name_their_variant():
    assert len({row.output for row in ROWS.values()}) == len(ROWS)
    assert ROWS["countdown-fig4"].conditions() == ["onpolicy", "pg", "tis", "sc", "tis_sc"]
    assert ROWS["countdown-staleness"].conditions()[:5] == [
        "lag-2/pg",
        "lag-2/tis",
        "lag-2/sc",
        "lag-2/tis_sc",
        "lag-4/pg",
    ]


def test_figures_and_oracle_state_the_same_limit():
    from repro.figures.training import ORACLE_LIMIT

    assert ORACLE_LIMIT == LIMIT


def test_a_variant_may_start_from_warm_starts_of_its_own():
    row = ROWS["countdown-map"]
    cells = row.cells("cpu", seeds=[10], arms=["pg"])
    starts = {cell.variant: cell.checkpoint for cell in cells if cell.checkpoint.endswith("seed1")}
    assert len(cells) == 3 * len(row.variants) and len(starts) == len(row.variants)
    assert starts["11 tokens"] == "countdown_one_seed1" and starts["fp8 alone"] == "countdown_tiny_seed1"
    for cell in cells:
        assert cell.config["checkpoint"].endswith(cell.checkpoint) and "checkpoints" not in cell.config
        assert cell.config["max_tokens"] == TASKS[cell.config["task"]].MAX_RESPONSE
    (one,) = row.cells("cpu", seeds=[10], arms=["pg"], checkpoints=["countdown_three_seed2"])
    assert one.variant == "27 tokens"


def test_cells_come_seed_by_seed_with_overrides_in_their_configs():
    row = ROWS["countdown-fig4"]
    cells = row.cells("tiny", arms=["sc", "pg"], seeds=[5, 4, 5], checkpoints=["countdown_tiny_seed1"], steps=7)
    assert [(cell.seed, cell.arm) for cell in cells] == [(5, "pg"), (5, "sc"), (4, "pg"), (4, "sc")]
    assert {cell.config["steps"] for cell in cells} == {7}
    tier = row.tier("tiny")
    cells = row.cells("tiny")
    assert len(cells) == len(row.arms) * len(tier.seeds) * len(tier.checkpoints)
    assert {cell.config["checkpoint"] for cell in cells} == set(tier.checkpoints)
    assert len({cell.name for cell in cells}) == len(cells)


def test_a_variant_replaces_its_settings_and_nothing_else():
    row = ROWS["countdown-staleness"]
    for cell in row.cells("cpu"):
        changed = {k for k, v in vars(row.settings).items() if cell.config[k] != v}
        assert changed == {"staleness"} and cell.config["staleness"] == int(cell.variant.removeprefix("lag-"))
    only = row.cells("cpu", variants=["lag-4"], arms=["sc"], seeds=[10])
    assert {cell.name for cell in only} == {f"lag-4/sc countdown_tiny_seed{i} seed 10" for i in range(3)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tier": "gpu"}, "tier 'gpu': row countdown-fig4 has the tiers: tiny"),
        ({"tier": "tiny", "arms": ["ppo"]}, "arm 'ppo': row countdown-fig4 has: onpolicy, pg"),
        ({"tier": "tiny", "variants": ["lag-2"]}, "variant 'lag-2': row countdown-fig4 has: base"),
        ({"tier": "tiny", "checkpoints": ["x"]}, "checkpoint 'x': row countdown-fig4 has: countdown_tiny_seed0"),
        ({"tier": "tiny", "steps": 0}, "steps: expected at least 1"),
        ({"tier": "tiny", "seeds": [-1]}, "seeds: expected non-negative"),
    ],
)
def test_requests_that_a_row_cannot_meet(options, words):
    with pytest.raises(ManifestError, match=words):
        ROWS["countdown-fig4"].cells(**options)


def test_unknown_row_lists_the_known_ones():
    with pytest.raises(ManifestError, match="row 'fig9': known rows: countdown-fig4"):
        manifest.find(ROWS, "fig9")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("head_k = 16", "head_kk = 16", r"row countdown-fig4.settings: unknown key 'head_kk'; known: task, optimizer"),
        ("head_k = 16", "", r"settings: missing key 'head_k'"),
        ("head_k = 16", "head_k = 16.5", r"settings.head_k: expected int, got float \(16.5\)"),
        ("head_k = 16", 'head_k = "16"', r"settings.head_k: expected int, got str"),
        ("seeds = [10]", "seeds = [0, true]", r"tiers.tiny.seeds\[1\]: expected int, got bool"),
        ("seeds = [10]", "seeds = []", r"tiers.tiny: steps, eval_every, seeds and checkpoints"),
        ("seeds = [10]", "seeds = 3", r"tiers.tiny.seeds: expected a list, got int"),
        ("seeds = [10]", 'seeds = [10]\ncolour = "red"', r"tiers.tiny: unknown key 'colour'"),
        ("staleness = 8", "stale = 8", r"countdown-staleness.variants.lag-8: unknown key 'stale'"),
        ("staleness = 8", "staleness = 0.5", r"variants.lag-8.staleness: expected int, got float"),
        ('better = "sc", worse', 'better = "ppo", worse', r"countdown-fig4: 'ppo' is no condition of it"),
        ('base = "countdown"', 'base = "chess"', r"row countdown-fig4.base: expected one of countdown, .*got 'chess'"),
        ('layout = "map"', 'layout = "chart"', r"row countdown-map.layout: expected one of map or none, got 'chart'"),
        (
            'checkpoints = ["repro/checkpoints/countdown_one_seed0", "repro/checkpoints/countdown_one_seed1", '
            '"repro/checkpoints/countdown_one_seed2"]',
            "checkpoints = []",
            r"11 tokens.checkpoints: expected a list of names",
        ),
        ("[settings.countdown]", "[setting.countdown]", r"unknown key 'setting'; known: row, settings"),
        ("[[row]]", "[[row]", r"not valid TOML"),
        ("[row.check]", "[row.checks]", r"row countdown-fig4: unknown key 'checks'"),
    ],
)
def test_a_bad_manifest_is_refused_by_name(tmp_path, old, new, words):
    assert old in TEXT
    path = tmp_path / "manifest.toml"
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(ManifestError, match=words):
        manifest.load(path)


def test_a_row_id_may_not_occur_twice(tmp_path):
    path = tmp_path / "manifest.toml"
    path.write_text(TEXT + TEXT[TEXT.rindex("[[row]]") :])
    with pytest.raises(ManifestError, match="the id occurs twice"):
        manifest.load(path)


def test_a_missing_manifest(tmp_path):
    with pytest.raises(ManifestError, match="No such file"):
        manifest.load(tmp_path / "none.toml")
