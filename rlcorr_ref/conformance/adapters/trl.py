"""TRL: `GRPOTrainer._compute_loss`, the off-policy sequence mask, and the importance weights that are computed inside
generation.

The weights are a statement of `_generate_and_score_completions` and no function, so that statement is compiled
from the installed file and run with the options as `self`. Imports `trl.trainer.grpo_trainer` (needs accelerate,
datasets, transformers, pandas).
"""

from __future__ import annotations

import ast
import math
from types import SimpleNamespace
from typing import Any

from ..protocol import Named
from . import grpo_options as grpo
from .tools import complete, execute, file_of, gradient, need, plain_objective, statements

NAME, TITLE = "trl", "TRL"
DISTRIBUTION, VERIFIED = "trl", ("1.16.0", "1.16.1")
DIALECT = "trl"
ENTRY = "imported loss method and the weight statement of the installed file, from log-probs"
ABSENT = {
    "ratio": "the ratio is returned after clipping only; it is judged in family weight",
    "advantages": "advantages are formed inside generation, from gathered rewards",
    "head_coefficients": "1.16.0 has no score centering",
    "log_softmax": "log-probs come from the model's forward pass",
    "quantise": "no quantiser",
    "shard": "sharding is the trainer's; token means are judged with a given count",
}
SOURCE = "trl/trainer/grpo_trainer.py"
METHOD = "_generate_and_score_completions"
GUARD = "self.use_vllm and self.vllm_importance_sampling_correction"
REDUCTIONS = ("dapo", "grpo", "dr_grpo", "luspo")


def load() -> Any:
    """The adapter's functions bound to the imported package and its installed source."""
    import torch
    from trl.trainer import grpo_trainer

    path = file_of(DISTRIBUTION, SOURCE)
    blocks = statements(path, METHOD, GUARD)
    return Trl(
        SimpleNamespace(torch=torch, module=grpo_trainer, trainer=grpo_trainer.GRPOTrainer, path=path, blocks=blocks)
    )


class Trl:
    """Contract functions answered by TRL."""

    def __init__(self, package: SimpleNamespace) -> None:
        self.p = package

    def weight(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, logp_anchor: Any = None, **_: Any
    ):
        need(not parameters.get("gate"), "no gate on a weight")
        n = logp_trainer if logp_anchor is None or parameters["numerator"] == "trainer" else logp_anchor
        w = self._weights(parameters, n, logp_sampler, mask)[0].expand_as(n)
        # the loss multiplies padding by the mask; it is left out of the comparison here and judged in the gradient
        return {"weights": self.p.torch.where(mask.bool(), w, 0.0)}

    def reject(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, advantages: Any = None, **more: Any
    ):
        threshold = grpo.drop_rule(parameters["rejection"], more.get("logp_anchor"))
        need(advantages is not None, "the sequence mask needs advantages")
        kept = self.p.trainer.get_off_policy_mask(
            self._one_sign(advantages, mask), logp_trainer, logp_sampler, mask, threshold
        )
        return {"mask": kept * mask}

    def surrogate(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, advantages: Any = None, **more: Any
    ):
        old = more.get("logp_anchor")
        grpo.one_advantage(parameters, advantages, mask)
        old = None if parameters["kind"] == "reinforce" else logp_sampler if old is None else old
        advantages = self.p.torch.ones_like(logp_trainer) if advantages is None else advantages
        aggregation = {"kind": "token-sum", "slope": True}
        found = gradient(lambda logp: self._loss(logp, old, advantages, mask, parameters, aggregation), logp_trainer)
        return {"slope": found["grad_logp"]}

    def aggregate(self, parameters: dict, values: Any, mask: Any):
        """A token loss of `values`: advantages -values at ratio 1."""
        definition = grpo.all_rows({"aggregation": parameters}, len(mask))
        zero = self.p.torch.zeros_like(values)
        value = self._loss(zero, None, -values, mask, {"kind": "reinforce"}, parameters)
        return Named({"value": value}, grpo.ALL_ROWS, settings=definition["aggregation"])

    def diagnostics(self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, **more: Any):
        need(
            bool(parameters.get("weight") or parameters.get("surrogate")),
            "reported with a weight or a clipped surrogate only",
        )
        anchor, out, values = more.get("logp_anchor"), {}, {}
        settings = complete(parameters)
        if settings["weight"] is not None:
            n = logp_trainer if anchor is None else anchor
            w, metrics = self._weights(settings["weight"], n, logp_sampler, mask)
            prefix = "sampling/importance_sampling_ratio/"
            out |= {f"weight_{key}": metrics[prefix + key][0] for key in ("mean", "min", "max")}
            if w.shape[1] == 1:
                values = {
                    f"weight_{k}": v for k, v in grpo.over_rows(settings["weight"], n, logp_sampler, mask).items()
                }
        rule = settings["surrogate"]
        if parameters.get("surrogate") and rule["kind"] in ("ppo_clip", "gspo"):
            old = logp_sampler if anchor is None else anchor
            seen: dict[str, list[float]] = {}
            self._loss(logp_trainer, old, more["advantages"], mask, rule, {"kind": "token-mean"}, seen=seen)
            out["clip_fraction"] = seen["clip_ratio/region_mean"][0]
        return Named(out, "sequence weights are averaged over all rows, an empty row having weight 1", values=values)

    def objective(
        self, definition: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, advantages: Any, **more: Any
    ):
        plain_objective(definition, "TRL", ("kl", "rejection"))
        anchor, rule, kl = more.get("logp_anchor"), definition["weight"], definition["kl"]
        kind = definition["surrogate"]["kind"]
        grpo.one_advantage(definition["surrogate"], advantages, mask)
        need(kl is None or (kl["kind"] == "k3" and not kl["weighted"]), "the KL term is k3 and not weighted")
        need((kind == "reinforce") == (anchor is None), grpo.OWN)
        need(
            rule is None or anchor is None or rule["numerator"] in (None, "anchor"), "weights compare the old log-probs"
        )
        threshold = grpo.drop_rule(definition["rejection"], anchor)
        need(threshold is None or kl is None, "the sequence mask leaves the KL term alone")
        need(
            not any(r["denominator"] == "shrunk" for r in definition["rejection"]),
            "the sequence mask keeps the denominators",
        )
        w = None
        if rule is not None:
            w = self._weights(rule, logp_trainer.detach() if anchor is None else anchor, logp_sampler, mask)[0]
        found = gradient(
            lambda logp: self._loss(
                logp,
                anchor,
                advantages,
                mask,
                definition["surrogate"],
                definition["aggregation"],
                weights=w,
                kl=(kl, more.get("logp_reference")),
                drop=(threshold, logp_sampler),
            ),
            logp_trainer,
        )
        return Named({"grad_logp": found["grad_logp"]}, grpo.ALL_ROWS, settings=grpo.all_rows(definition, len(mask)))

    def _one_sign(self, advantages: Any, mask: Any) -> Any:
        """One advantage per row [B, 1], as the static mask function takes it."""
        first = self.p.torch.where(mask.bool(), advantages, 0.0)
        positive, negative = (first > 0).any(-1), (first < 0).any(-1)
        need(not bool((positive & negative).any()), "the sequence mask takes one advantage per row")
        return first.sum(-1, keepdim=True)

    def _weights(self, rule: dict, n: Any, q: Any, mask: Any) -> tuple[Any, dict[str, list[float]]]:
        """Weights ([B, T] or [B, 1]) and metrics from the two statements of the installed file."""
        level, low, high = rule["level"], rule["low"], rule["high"]
        need(level in ("token", "sequence"), f"no {level} importance weight")
        need(rule["statistic"] == "ratio" and rule["inside"] == "ratio", "the weight is the ratio, banded by the ratio")
        need(rule["positive"] is None and rule["negative"] is None and rule["sign"] == "both", "no bounds by sign")
        need(rule["closed"], "bands keep their ends")
        need(rule["log_clamp"] is None, "no clamp on the log-ratio")
        need(rule["normalise"] is None, "no batch normalisation of weights")
        low = low or None
        clip = rule["outside"] == "clip" and (low is not None or high is not None)
        me = grpo.trainer(
            {
                "use_vllm": True,
                "vllm_importance_sampling_correction": True,
                "vllm_importance_sampling_mode": f"{level}_{'truncate' if clip else 'mask'}",
                "vllm_importance_sampling_clip_min": low,
                "vllm_importance_sampling_clip_max": high,
            }
        )
        scope = {
            **vars(self.p.module),
            "math": math,
            "self": me,
            "mode": "train",
            "device": "cpu",
            "tool_mask": None,
            "completion_mask": mask,
            "old_per_token_logps": n,
            "sampling_per_token_logps": q,
        }
        execute(ast.Module(list(self.p.blocks[:2]), []), self.p.path, scope)
        return scope["vllm_importance_sampling_ratio"], me._metrics["train"]

    def _loss(self, logp: Any, old: Any, advantages: Any, mask: Any, rule: dict, aggregation: dict, **more: Any) -> Any:
        """`_compute_loss` with the given log-probs as the model's."""
        kl, reference = more.get("kl", (None, None))
        threshold, sampler = more.get("drop", (None, None))
        options = grpo.surrogate(rule)
        weights = more.get("weights")
        me = grpo.trainer(
            {
                **options,
                "args": SimpleNamespace(delta=options["delta"], use_bias_correction_kl=False, steps_per_generation=1),
                "loss_type": grpo.loss_type(rule, aggregation, REDUCTIONS),
                "beta": 0.0 if kl is None else kl["beta"],
                "off_policy_mask_threshold": threshold,
                "get_off_policy_mask": self.p.trainer.get_off_policy_mask,
                "use_vllm": weights is not None,
                "vllm_importance_sampling_correction": weights is not None,
                "max_completion_length": aggregation.get("length"),
                "top_entropy_quantile": 1.0,
                "aux_loss_enabled": False,
                "_entropy_bonus_enabled": False,
                "_get_per_token_logps_and_entropies": lambda *a, **k: (logp, self.p.torch.zeros_like(logp), None),
            }
        )
        empty = mask.new_zeros(len(mask), 0)
        batch = {
            "prompt_ids": empty,
            "prompt_mask": empty,
            "completion_ids": self.p.torch.zeros_like(mask),
            "completion_mask": mask,
            "advantages": advantages,
            "num_items_in_batch": grpo.items(aggregation, mask),
            "old_per_token_logps": old,
            "importance_sampling_ratio": weights,
            "ref_per_token_logps": reference,
        }
        if sampler is not None:
            batch["sampling_per_token_logps"] = sampler
        loss = self.p.trainer._compute_loss(me, None, batch)
        if "seen" in more:
            more["seen"].update(me._metrics["train"])
        return loss
