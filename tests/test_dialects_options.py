"""Options of the dialects: errors that name the argument, refusals that say why, and no option without an effect."""

from __future__ import annotations

import pytest

from rlcorr_ref import ContractError, dialects
from rlcorr_ref.dialects.records import KINDS
from rlcorr_ref.dialects.settings import CIRCUMSTANCES

TOKEN = {"rollout_is": "token"}
OPENRLHF = {"is_correction_level": "token"}


def areal(**rule):
    return {"use_decoupled_loss": True, "rejection_sampling": rule}


@pytest.mark.parametrize(
    "call, words",
    [
        (("swift", {}), "unknown name 'swift'; known: verl, trl, ms-swift"),
        (("verl", {"rollout_iss": "token"}), "unknown option 'rollout_iss'; known options of 0.9.1"),
        (("verl", {"rollout_is": "tokens"}), "expected one of null, 'token', 'sequence'; got 'tokens'"),
        (("verl", {"bypass_mode": "yes"}), "verl.bypass_mode: expected true or false"),
        (("verl", {"clip_ratio_c": 0.5}), "verl.clip_ratio_c: expected a number > 1"),
        (("verl", {**TOKEN, "rollout_is_threshold": "0.5_2.0_3"}), r"verl reads it as \(0.5, 2.03\), silently"),
        (("verl", {**TOKEN, "rollout_is_threshold": "nan"}), "every weight becomes NaN"),
        (("verl", {**TOKEN, "rollout_is_threshold": "nan_2.0"}), "every weight becomes NaN"),
        (("verl", {**TOKEN, "rollout_is_threshold": "1_000"}), "expected a number > 0, got '000'"),
        (("verl", {**TOKEN, "rollout_is_threshold": "5_0.5"}), "low 5 is above high 0.5"),
        (("verl", {**TOKEN, "rollout_is_threshold": True}), "verl raises TypeError"),
        (("verl", {**TOKEN, "rollout_is_threshold": "abc"}), "verl raises ValueError"),
        (("verl", {"rollout_rs": "token_k1"}), "rollout_rs_threshold: required"),
        (
            ("verl", {"rollout_rs": "seq_max_k1", "rollout_rs_threshold": 2.0}),
            "unknown option 'seq_max_k1'; known: token_k1",
        ),
        (("verl", {"rollout_rs": "token_k2", "rollout_rs_threshold": "0.5_2"}), "k2 takes an upper bound only"),
        (("verl", {"rollout_rs": "token_k1", "rollout_rs_threshold": 0.5}), "give a number >= 1"),
        (("verl", {"rollout_rs": "token_k1,token_k2", "rollout_rs_threshold": "2,1,1"}), "expected 1 or 2 thresholds"),
        (("verl", {"@global_rows": 4.0}), "'token-mean' does not divide by it"),
        (("trl", {"vllm_importance_sampling_clip_min": 4.0}), "4 is not below clip_max 3"),
        (("openrlhf", {**OPENRLHF, "is_correction_threshold": [5.0, 0.5]}), "expected low <= high"),
        (("openrlhf", {**OPENRLHF, "is_correction_gating": "tv"}), "tv takes an upper bound only"),
        (("nemo-rl", {"truncated_importance_sampling_type": "tis"}), "needs use_importance_sampling_correction=true"),
        (("areal", {"rejection_sampling": {"uper": 2.0}}), "unknown key 'uper'"),
        (("areal", areal(upper=0.5)), "needs upper > 1"),
        (("slime", {"use_tis": True, "use_rollout_logprobs": True}), "not both are set"),
        (("slime-mis", {"tis_level": "geometric"}), "not with tis_level geometric"),
        (("unirl", {"rollout_is_threshold": 2.0}), "needs old_logp_source='replay'"),
        (("open-instruct", {"use_vllm_logprobs": True}), "refuses the pair"),
        (("roll", {"filters": [{"enable": True}]}), r"roll.filters\[0\]: unknown key 'enable'"),
        (("authors", {"sc": True, "is_correction": True, "stat": "tv", "high": 0.2}), "'tv' does not compose with sc"),
        (("verl", {"clip_ratio_low": "1e-4"}), "YAML 1.1 reads 1e-4 as text: write 1.0e-4"),
        (("openrlhf", {"is_correction_level": False}), "YAML 1.1 reads a bare off as false: quote it"),
        (("verl", [1]), "expected an object with the option names"),
    ],
)
def test_errors_name_the_argument_and_list_what_is_known(call, words):
    with pytest.raises(ContractError, match=words) as error:
        dialects.definition(*call)
    assert not isinstance(error.value, dialects.NotExpressible)


@pytest.mark.parametrize(
    "call, words",
    [
        (("verl", {"loss_mode": "sapo"}), "a sigmoid gate on the ratio is no band"),
        (("verl", {"score_centering": True}), "refuses score_centering=true with bypass_mode=false"),
        (("verl", {"loss_agg_mode": "seq-mean-token-sum-norm"}), "depends on the padding"),
        (
            ("verl", {"bypass_mode": True, "rollout_rs": "token_k1", "rollout_rs_threshold": 2.0, "use_kl_loss": True}),
            "leaves its KL and entropy terms",
        ),
        (("trl", {"delta": 1.1}), "clips positive advantages as well"),
        (("nemo-rl", {"reference_policy_kl_type": "k2"}), "only for k3"),
        (("miles", {"loss_type": "score_centering", "use_tis": True}), "score_centering_is selects the weight"),
        (
            (
                "trl",
                {
                    "importance_sampling_level": "sequence",
                    "loss_type": "grpo",
                    "vllm_importance_sampling_mode": "token_mask",
                },
            ),
            "spreads the row's mean factor",
        ),
    ],
)
def test_refusals_say_why(call, words):
    with pytest.raises(dialects.NotExpressible, match=words):
        dialects.definition(*call)


CANDIDATES = {
    "text": ("0.5_2.0", 3.0, "token_k1", "full", 16.0),
    "list": ([{"enabled": True}], [0.6, 1.5]),
    "mapping": ({"upper": 2.0},),
    "number": (3.0, 1.5, 0.25, 0.9, 64.0, 0.0),
}
# Widths of recorded data: they change the batch and not the objective.
WIDTHS = {"score_centering_top_k", "rollout_top_logprobs_num", "score_centering.top_k"}
MORE_BASES = {
    "verl": [{"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": 4.0}, {"use_kl_loss": True}]
    + [{"clip_ratio_low": None}, {"rollout_rs": "token_k2"}],
    "slime": [{"advantage_estimator": "cispo"}, {"use_kl_loss": True, "kl_loss_coef": 0.1}],
    "slime-mis": [
        {"use_tis": False, "use_opsm": True, "use_rollout_logprobs": True},
        {"use_kl_loss": True, "kl_loss_coef": 0.1},
        {"tis_mode": "clip"},
    ],
    "miles": [{"use_opsm": True, "use_rollout_logprobs": True}, {"use_kl_loss": True, "kl_loss_coef": 0.1}],
    "skyrl": [{"loss_reduction": "seq_mean_token_sum_norm", "max_seq_len": 9.0, "use_kl_loss": False}]
    + [{"policy_loss_type": "dual_clip", "use_kl_loss": False}, {"policy_loss_type": "reinforce", "use_kl_loss": False}]
    + [
        {"use_kl_loss": False, "token_mask_is_threshold_low": 0.5},
        {"use_kl_loss": False, "token_mask_is_threshold_high": 2.0},
    ],
    "ms-swift": [{"loss_type": "dr_grpo"}],
    "openrlhf": [{"kl.use_loss": True}],
    "openrlhf-0.11.0": [{"kl.use_loss": True}, {"is_correction_enable": True}],
    "nemo-rl": [{"use_importance_sampling_correction": True}],
    "roll": [{"use_kl_loss": True, "kl_loss_coef": 0.1}, {"pg_clip": 0.1}, {"use_pg_clip_range": True}],
    "trl": [{"beta": 0.1, "use_bias_correction_kl": False}],
    "areal": [{"use_decoupled_loss": True}],
}


def outcome(name: str, options: dict) -> str:
    try:
        return repr(dialects.definition(name, options))
    except ContractError as error:
        return str(error)


@pytest.mark.parametrize("name", dialects.names())
def test_no_option_is_dead(name):
    """For every option there is a setting in which another value changes the meaning, a note, or is refused."""
    dialect = dialects.get(name)
    bases = [dict(entry.options) for entry in dialect.entries] + MORE_BASES.get(name, [])
    for option in (*dialect.options, *CIRCUMSTANCES):
        assert option.kind in KINDS and option.meaning
        if option.name in WIDTHS:
            continue
        values = {"bool": (True, False), "choice": (*option.choices, *option.refused)}.get(option.kind)
        values = CANDIDATES[option.kind] if values is None else values
        legal = [v for v in values if not outcome(name, {option.name: v}).startswith(f"{name}.{option.name}: expected")]
        assert any(outcome(name, base) != outcome(name, {**base, option.name: v}) for base in bases for v in legal), (
            option.name
        )


@pytest.mark.parametrize("name", dialects.names())
def test_every_value_of_a_choice_has_a_meaning_or_a_reason(name):
    dialect = dialects.get(name)
    for option in dialect.options:
        for value, reason in option.refused.items():
            with pytest.raises(dialects.NotExpressible) as error:
                dialects.definition(name, {option.name: value})
            assert str(error.value).endswith(reason)
    assert dialect.sources and dialect.read and dialect.version and dialect.traps
    assert set(dialect.columns) == {key for key, _ in dialects.COLUMNS}


CLIPPED = "-min(r A, clip(r, 0.8, 1.2) A), r = p/o"


@pytest.mark.parametrize(
    "name, options, text",
    [
        (
            "verl",
            {"rollout_is": "sequence", "rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.5_2.0"},
            "loss = 1/N sum w s; w = min(rho, 2), rho = exp(clamp20(sum_row log o/q)); "
            f"s = {CLIPPED}, for A < 0 at most 3 |A|; keep [exp(mean_row clamp20(log q/o)) in [0.5, 2]]",
        ),
        (
            "ms-swift",
            {"rollout_importance_sampling_mode": "sequence_mask", "beta": 0.1},
            "loss = 1/R sum_rows 1/n sum_tokens (w g s + 0.1 w g k3(p, ref)); w = rho, rho = exp(clamp20(log o/q)); "
            f"g = [exp(mean_row log o/q) in [0, 2]]; s = {CLIPPED}",
        ),
        (
            "authors",
            {"is_correction": True, "level": "seq_sum", "high": 1.0, "outside": "clamp", "sign": "neg"},
            "loss = 1/N sum w s; w = min(rho, 1) for A < 0, else 1, rho = exp(clamp20(sum_row log p/q)); s = -A log p",
        ),
        (
            "authors",
            {"sc": True},
            "loss = 1/N sum (s + A sum_v sg(c_v) log p_v); s = -A log p; c: tail rescaled, floors q none, p 1e-06",
        ),
        (
            "skyrl",
            {"use_kl_loss": False, "policy_loss_type": "dppo", "@global_tokens": 7.0},
            "loss = 1/7 sum w s; w = rho [p - q in [-inf, 0.2]] for A >= 0, rho [p - q in [-0.2, inf]] for A < 0, "
            "rho = exp(clamp20(log p/q)); s = -A log p",
        ),
        (
            "trl",
            {"loss_type": "dr_grpo", "max_completion_length": 4, "off_policy_mask_threshold": 0.0}
            | {"vllm_importance_sampling_correction": False},
            f"loss = 1/(R 4) sum s; s = {CLIPPED}; keep [exp(mean_row log q/p) in [0, 1] or A >= 0]",
        ),
    ],
)
def test_formula_is_one_plain_line(name, options, text):
    assert dialects.translate(name, options).formula == text
