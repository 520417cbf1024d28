"""What is compared: the arms of the laboratory, each a correction and, for controls, what else differs.

Corrections are named presets of ``rlcorr_ref`` (the sources are there), so that an arm is exactly what the float64
reference computes. A control changes one thing and keeps the rest: the sampler, the gradient's norm, its direction or
the reward.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rlcorr_ref import presets


class Control(NamedTuple):
    """What a control arm does to the plain step.

    clip         the gradient is scaled down to this norm when it is longer
    norm_of      the gradient is scaled to the norm that this arm's gradient has on the same batch
    placebo      a term of centering's length per token in another direction, see ``repro.controls``: "row" or "difference"
    constant     every advantage is this number, whatever the reward
    """

    clip: float | None = None
    norm_of: str | None = None
    placebo: str | None = None
    constant: float | None = None


class Arm(NamedTuple):
    """``definition``: what differs from REINFORCE, as ``rlcorr_ref.Objective.from_dict`` takes it. ``anchored``: ratios are
    formed against the policy at the start of the rollout's updates (three policies)."""

    label: str
    definition: dict[str, Any]
    mismatched: bool = True
    anchored: bool = False
    control: Control = Control()


def _preset(name: str) -> dict[str, Any]:
    return presets.definition(name)


CENTERED = _preset("score_centering")
GRPO = {"surrogate": {"kind": "ppo_clip", "eps_low": 0.2, "eps_high": 0.2}}
CLIP_NORM = 8.0  # half the median gradient norm of plain PG on the tuning seeds: it binds at almost every step
ARMS: dict[str, Arm] = {
    "onpolicy": Arm("on-policy control", {}, mismatched=False),
    "pg": Arm("policy gradient", {}),
    "is": Arm("naive IS", _preset("vanilla_is")),
    "tis": Arm("TIS, cap 2", _preset("tis")),
    "mis": Arm("MIS [0.5, 5]", _preset("mis")),
    "ppo": Arm("PPO band", _preset("ppo_band")),
    "dppo": Arm("DPPO, TV 0.2", _preset("dppo_tv")),
    "sc": Arm("score centering", CENTERED),
    "tis_sc": Arm("TIS + centering", {**_preset("tis"), **CENTERED}),
    "mis_sc": Arm("MIS + centering", {**_preset("mis"), **CENTERED}),
    "pg_clip": Arm("PG, gradient clipped", {}, control=Control(clip=CLIP_NORM)),
    "pg_norm": Arm("PG, norm of SC", {}, control=Control(norm_of="sc")),
    "placebo": Arm("placebo: permuted q", {}, control=Control(placebo="row")),
    "placebo_diff": Arm("placebo: permuted q - p", {}, control=Control(placebo="difference")),
    "onpolicy_minus": Arm("on-policy, A = -1", {}, mismatched=False, control=Control(constant=-1.0)),
    "pg_plus": Arm("PG, A = +1", {}, control=Control(constant=1.0)),
    "pg_minus": Arm("PG, A = -1", {}, control=Control(constant=-1.0)),
    "sc_minus": Arm("SC, A = -1", CENTERED, control=Control(constant=-1.0)),
    "grpo_onpolicy": Arm("GRPO clip, on-policy sampler", GRPO, mismatched=False, anchored=True),
    "grpo": Arm("GRPO clip, no correction", GRPO, anchored=True),
    "grpo_tis": Arm("GRPO clip, TIS cap 2", {**GRPO, **_preset("tis")}, anchored=True),
    "swift_token_truncate": Arm("token truncate", _preset("swift_token_truncate")),
    "swift_token_mask": Arm("token mask", _preset("swift_token_mask")),
    "swift_sequence_truncate": Arm("sequence truncate", _preset("swift_sequence_truncate")),
    "swift_sequence_mask": Arm("sequence mask", _preset("swift_sequence_mask")),
}
