"""The table of named corrections: every entry evaluates, and the ones that exist in two forms have one gradient."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cases_helper import random_inputs

from rlcorr_ref import Batch, ContractError, Objective, cli, presets

DATA = random_inputs(np.random.default_rng(0), 4, 5, 7, 3, anchor=True)


@pytest.mark.parametrize("name", presets.DEFINITIONS)
def test_every_preset_evaluates(name):
    out = Objective.from_dict(presets.definition(name)).evaluate(Batch(**DATA))
    assert np.isfinite(out.grad_logits).all() and np.isfinite(out.loss)


@pytest.mark.parametrize(
    "surrogate, band",
    [
        ({"kind": "ppo_clip", "eps_low": 0.2, "eps_high": 0.2, "dual": 3.0}, "ppo_band"),
        ({"kind": "ppo_clip", "eps_low": 0.2, "eps_high": 0.28, "dual": 3.0}, "dapo_band"),
        ({"kind": "cispo", "eps_low": None, "eps_high": 0.2}, "cispo"),
    ],
)
def test_surrogate_and_detached_weight_have_the_same_gradient(surrogate, band):
    """Two policies: the clipped surrogate in p/q against REINFORCE with the band as a detached weight, centered or not."""
    two = {k: v for k, v in DATA.items() if "anchor" not in k}
    for centering in (None, {"tail": "rescaled"}, {"tail": "exact"}):
        ratio_form = Objective.from_dict({"surrogate": surrogate, "centering": centering}).evaluate(Batch(**two))
        weight_form = Objective.from_dict({**presets.definition(band), "centering": centering}).evaluate(Batch(**two))
        np.testing.assert_allclose(ratio_form.grad_logits, weight_form.grad_logits, atol=1e-15, rtol=1e-12)
    plain = Objective.from_dict({}).evaluate(Batch(**two))
    assert not np.allclose(plain.grad_logits, weight_form.grad_logits)


def test_a_definition_is_a_copy():
    presets.definition("tis")["weight"]["high"] = 9.0
    assert presets.definition("tis")["weight"]["high"] == 2.0


def test_unknown_name():
    with pytest.raises(ContractError, match="unknown name 'tiss'; known: reinforce, .*tis"):
        presets.definition("tiss")


def test_table_and_command(capsys):
    assert cli.main(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(presets.DEFINITIONS) + 2
    row = next(line for line in lines if line.startswith("ppo_band"))
    assert row.split() == [
        "ppo_band",
        "token",
        "ratio",
        "[0,",
        "1.2]",
        "/",
        "[0.8,",
        "3]",
        "zero",
        "ratio",
        "both",
        "-",
    ]
    assert cli.main(["presets", "tis"]) == 0
    assert json.loads(capsys.readouterr().out)["weight"]["high"] == 2.0
    assert cli.main(["presets", "nothing"]) == cli.MALFORMED


def test_an_objective_takes_records_or_their_wire_form():
    definition = {
        "weight": {"high": 2.0, "outside": "clip"},
        "rejection": [{"statistic": "k2", "reduce": "mean", "high": 1}],
        "kl": None,
        "entropy": {"coef": 0.1},
        "surrogate": {"kind": "reinforce"},
    }
    objective = Objective(**definition)
    assert objective == Objective.from_dict(definition) == Objective.from_dict(objective.to_dict())
    with pytest.raises(ContractError, match="weight: unknown key 'hihg'"):
        Objective(weight={"hihg": 2.0})
    with pytest.raises(ContractError, match="gate: expected an object"):
        Objective(gate=3)
    with pytest.raises(ContractError, match="aggregation: expected an object"):
        Objective(aggregation=None)
