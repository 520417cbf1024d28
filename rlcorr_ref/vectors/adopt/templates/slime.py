"""CPU tests of the policy losses and of the mismatch-correction example against vendored rlcorr vectors.

`rlcorr_vectors/` beside this file holds a stdlib-only loader and the case files (CC0-1.0); nothing has to be installed. Every
case is a batch with its answer at 50 digits and error scales, so the tolerance is in the data: float32 answers pass when they
are off by no more than rounding can explain. Gradients are compared, not only losses.
"""

import importlib.util
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from slime.utils.ppo_utils import compute_cispo_loss, compute_policy_loss

NUM_GPUS = 0

VECTORS = Path(__file__).parent / "rlcorr_vectors"


def _module(path):
    """A module loaded from its file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOADER = _module(VECTORS / "loader_minimal.py")
MIS = _module(Path(__file__).parents[1] / "examples" / "train_infer_mismatch_helper" / "mis.py")


def _tensor(values):
    """Wire values as float32: "NaN" and "Infinity" are what float() reads."""
    if isinstance(values, list):
        return torch.stack([_tensor(v) for v in values])
    return torch.tensor(float(values), dtype=torch.float32)


def _cases(family, keep):
    """pytest parameters of the cases of a vendored file that `keep` accepts."""
    cases = LOADER.load(VECTORS / f"{family}.json")
    return [pytest.param(case, id=name) for name, case in cases.items() if keep(case)]


def _check(case, answer):
    """Judge float32 outputs; the message names the case, its class of bug and the share of the tolerance."""
    plain = {name: value.tolist() for name, value in answer.items()}
    verdict = LOADER.judge(case, plain, "fp32")
    assert verdict["ok"], f"{case['id']} {case['title']}: {verdict['used']:.3g} x tolerance; {', '.join(case['flags'])}"


def _inputs(case):
    """Float32 inputs with junk under the mask replaced: the caller of these functions packs valid tokens only."""
    mask = torch.tensor(case["inputs"]["mask"]).bool()
    names = [name for name, value in case["inputs"].items() if name != "mask" and value is not None]
    given = {name: torch.where(mask, _tensor(case["inputs"][name]), 0.0) for name in names}
    given.setdefault("advantages", torch.ones(mask.shape))
    return mask, given


def _clipped(case):
    kind = case["parameters"].get("kind")
    return kind in ("ppo_clip", "cispo") and "fp32" in case["dtypes"]


@pytest.mark.parametrize("case", _cases("surrogate", _clipped))
def test_policy_loss_value_and_slope(case):
    """Value and d loss / d log p of compute_policy_loss and compute_cispo_loss, per token."""
    mask, x = _inputs(case)
    rule = case["parameters"]
    logp = x["logp_trainer"].requires_grad_()
    old = x.get("logp_anchor", x["logp_sampler"])
    low = rule.get("eps_low", 0.2 if rule["kind"] == "ppo_clip" else None)
    high = rule.get("eps_high", 0.2)
    low, high = (1.0 if low is None else low), (float("inf") if high is None else high)
    if rule["kind"] == "ppo_clip":
        losses, _ = compute_policy_loss(old - logp, x["advantages"], low, high, rule.get("dual"))
    else:
        losses, _ = compute_cispo_loss(old - logp, logp, x["advantages"], low, high)
    losses = torch.where(mask, losses, 0.0)
    losses.sum().backward()
    _check(case, {"value": losses.detach(), "slope": logp.grad})


def _bounded(case):
    """Rules that the example has: truncation at an upper or at both bounds."""
    rule = case["parameters"]
    if not {"level", "low", "high", "outside", "log_clamp"}.issuperset(rule) or "fp32" not in case["dtypes"]:
        return False
    levels = ("token", "sequence", "geometric")
    return rule.get("outside") == "clip" and rule.get("high") is not None and rule.get("level", "token") in levels


@pytest.mark.parametrize("case", _cases("weight", _bounded))
def test_mismatch_weights(case):
    """compute_mis_weights: token, sequence and geometric level, truncated at the upper bound or clipped at both."""
    mask, x = _inputs(case)
    rule = {"level": "token", "low": 0.0, **case["parameters"]}
    args = Namespace(
        use_tis=True,
        use_rs=False,
        tis_level=rule["level"],
        tis_mode="clip" if rule["low"] else "truncate",
        tis_lower_bound=rule["low"] or None,
        tis_upper_bound=rule["high"],
        rs_lower_bound=None,
        rs_upper_bound=None,
        tis_batch_normalize=False,
    )
    weights, _, _ = MIS.compute_mis_weights(
        args,
        train_log_probs=list(x.get("logp_anchor", x["logp_trainer"])),
        rollout_log_probs=list(x["logp_sampler"]),
        loss_masks=list(mask.float()),
    )
    _check(case, {"weights": torch.stack(weights)})


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
