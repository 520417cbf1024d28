"""The refit check without an engine: stand-ins with known faults, and formats whose rounding must not be taken for one."""

from __future__ import annotations

import math

import pytest
import torch

from repro.policies import forward
from repro.quantise import quantise_weights
from repro.samplers.refit import RefitCheck, RefitError, check_refit, distance, probe_of_task, share_of_movement

from .engine_case import CONFIG, STATE, changed

PROBE = probe_of_task(rows=32)
STEP = changed(size=0.1)


class StandIn:
    """An engine that answers with ``forward`` of the weights it holds, in a simulated format or none."""

    prefix_caching = False

    def __init__(self, state, fmt=None):
        self.fmt, self.version = fmt, 0
        self.take(state)

    def take(self, state):
        self.state = quantise_weights(state, self.fmt) if self.fmt else state
        return self

    @torch.no_grad()
    def next_logp(self, sequences, *, read_cache=False):
        return torch.log_softmax(forward(self.state, CONFIG, sequences)[:, -1], dim=-1)


def check(tolerance=1.0):
    return RefitCheck(CONFIG, PROBE, tolerance)


def test_distance_and_share_by_hand():
    old, new = (torch.log_softmax(torch.tensor([[0.0, x], [x, 0.0]]), dim=-1) for x in (0.0, 1.0))
    assert distance(new, new) == 0
    weights = new.double().exp()
    assert distance(old, new) == pytest.approx(float((weights * (old - new).abs()).sum(-1).mean()), abs=1e-6)
    for share in (0.0, 0.25, 1.0):
        mixed = torch.log_softmax(old + share * (new - old), dim=-1)
        assert share_of_movement(mixed, old, new) == pytest.approx((share, 0.0), abs=1e-6)
    assert all(math.isnan(x) for x in share_of_movement(new, new, new))


@pytest.mark.parametrize("fmt", [None, "fp8_e4m3", "int8"])
def test_an_engine_that_follows_passes_in_every_format(fmt):
    refit, engine = check(), StandIn(STATE, fmt)
    first = refit(engine, STATE)
    assert first.verdict == "first load" and (first.level < 1e-6) == (fmt is None)
    report = refit(engine.take(STEP), STEP)
    assert report.verdict == "refitted" and report.distance_new < report.distance_old
    assert abs(report.share - 1) < 4 * report.share_error + 1e-6


@pytest.mark.parametrize("fmt", [None, "fp8_e4m3", "int8"])
def test_old_weights_are_found_in_every_format(fmt):
    refit, engine = check(), StandIn(STATE, fmt)
    refit(engine, STATE)
    with pytest.raises(RefitError, match="still answers with the old weights"):
        refit(engine, STEP)


def test_weights_taken_over_in_part_are_found():
    refit, engine = check(), StandIn(STATE)
    refit(engine, STATE)
    with pytest.raises(RefitError, match="in part only"):
        refit(engine.take({**STEP, "lm_head.weight": STATE["lm_head.weight"]}), STEP)


def test_movements_below_the_noise_are_unresolved_and_add_up():
    """An engine stuck at its first weights is found although no single step could show it."""
    refit, engine = check(), StandIn(STATE, "fp8_e4m3")
    refit(engine, STATE)
    with pytest.raises(RefitError, match="old weights"):
        for step in range(1, 41):
            refit(engine, {name: value + step / 40 * (STEP[name] - value) for name, value in STATE.items()})
    verdicts = [report.verdict for report in refit.reports]
    assert len(verdicts) > 3 and set(verdicts[1:]) == {"unresolved"}


def test_quantisation_is_called_quantisation():
    coarse = StandIn(STATE, "fp4_e2m1")
    with pytest.raises(RefitError, match="at the first load, .* quantisation"):
        check(0.01)(coarse, STATE)
    with pytest.raises(RefitError, match="follows the weights: quantisation, not a broken refit"):
        other = changed(size=0.3)
        check_refit(coarse.take(other), other, CONFIG, PROBE, 0.01, previous=STATE, level=1.0)


def test_log_probs_that_are_not_finite():
    engine = StandIn({**STATE, "lm_head.weight": torch.full_like(STATE["lm_head.weight"], math.nan)})
    with pytest.raises(RefitError, match="not finite on probe 0 at version 0"):
        check()(engine, STATE)


def test_a_stale_prefix_cache_is_told_from_old_weights():
    engine = StandIn(STEP)
    past = StandIn(STATE)
    engine.prefix_caching, straight = True, engine.next_logp
    engine.next_logp = lambda x, read_cache=False: past.next_logp(x) if read_cache else straight(x)
    with pytest.raises(RefitError, match="stale prefix cache"):
        check_refit(engine, STEP, CONFIG, PROBE, 1.0, previous=STATE, level=1e-6)


def test_bad_arguments_name_themselves():
    with pytest.raises(ValueError, match="probe: expected int64"):
        RefitCheck(CONFIG, PROBE.float(), 1.0)
    with pytest.raises(ValueError, match="tolerance: expected a positive"):
        RefitCheck(CONFIG, PROBE, 0.0)
