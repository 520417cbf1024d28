"""A float32 torch implementation of what the bulk tier asks, written from the contract, with switches that plant a fault."""

from __future__ import annotations

import numpy as np
import torch


def tensors(inputs):
    """Stored arrays as float32 and int64 tensors."""
    return {n: torch.from_numpy(x.astype(np.int64 if x.dtype.kind in "iu" else np.float32)) for n, x in inputs.items()}


def answer(case, inputs, fault=""):
    """{output: float32 array} for one case record of the manifest."""
    x = tensors(inputs)
    settings = case.get("definition", case.get("parameters"))
    out = FUNCTIONS[case["function"]](x, settings, fault)
    return {
        name: np.asarray(value.detach().numpy(), dtype=np.float32)
        for name, value in out.items()
        if name in case["expected"]
    }


def log_softmax(x, settings, fault):
    z = x["logits"]
    logp = torch.log_softmax(z, -1)
    if fault == "vocabulary-tile-cut":  # a kernel whose last tile of 1,024 ids is incomplete and left out
        logp = z - torch.logsumexp(z[..., : z.shape[-1] // 1024 * 1024], -1, keepdim=True)
    if fault == "sum-in-bfloat16":
        shifted = (z - z.amax(-1, keepdim=True)).bfloat16()
        logp = (shifted - shifted.exp().sum(-1, keepdim=True).log()).float()
    return {"logp": logp, "logp_token": logp.gather(-1, x["tokens"][..., None])[..., 0]}


def objective(x, settings, fault):
    mask = x["mask"] != 0
    z = torch.where(mask[..., None], x["logits"], 0.0).requires_grad_()
    advantages, logq = torch.where(mask, x["advantages"], 0.0), torch.where(mask, x["logp_sampler"], 0.0)
    count = mask.numel() if fault == "mask-ignored" else mask.sum()
    logp = torch.log_softmax(z, -1)
    own = logp.gather(-1, torch.where(mask, x["tokens"], 0)[..., None])[..., 0]
    w = (own - logq).exp().clamp(max=settings["weight"]["high"])
    if fault != "weight-attached":
        w = w.detach()
    w = torch.where(mask, w, 0.0)
    slope, total, dense = -w * advantages / count, -(w * advantages * own).sum() / count, 0.0
    out = {"weights": w, "grad_logp": slope}
    if "head_ids" in x:
        q, head = x["head_logp_sampler"].exp(), logp.gather(-1, x["head_ids"])
        p = head.detach().exp()
        tail_q, tail_p = (1 - q.sum(-1)).clamp(min=1e-6), (1 - p.sum(-1)).clamp(min=1e-6)
        if fault == "head-renormalised":
            q = q / q.sum(-1, keepdim=True)
        rho = tail_q / tail_p
        alpha = rho * (1 / rho).clamp(max=settings["weight"]["high"])
        if fault == "tail-untruncated":
            alpha = torch.ones_like(rho)
        if fault in ("tail-dropped", "head-renormalised"):
            alpha = torch.zeros_like(rho)
        c = (q * (p / q).clamp(max=settings["weight"]["high"]) - alpha[..., None] * p) * advantages[..., None] / count
        total = total + (c * head).sum()
        everything = logp.detach()
        dense = (advantages * alpha * (everything.exp() * everything).sum(-1)).sum() / count
        out["grad_head_logp"] = c
    total.backward()
    return {**out, "loss": total, "loss_dense": total + dense, "grad_logits": z.grad}


def levelled(x, level, fault):
    """(mask, log-ratio at `level`), both [B, T]."""
    mask = x["mask"] != 0
    d = torch.where(mask, x["logp_trainer"] - x["logp_sampler"], 0.0)
    level = {
        "geometric-for-product": {"sequence": "geometric"},
        "product-for-geometric": {"geometric": "sequence"},
    }.get(fault, {}).get(level, level)
    if level == "segment":
        start = mask & ~torch.nn.functional.pad(mask, (1, 0))[:, :-1]
        run = torch.where(mask, start.flatten().cumsum(0).view(mask.shape), 0)
        if fault == "segment-is-row":
            run = torch.where(mask, torch.arange(1, mask.shape[0] + 1)[:, None], 0)
        sums = torch.zeros(int(run.max()) + 1).index_add_(0, run.flatten(), d.flatten())
        sizes = torch.zeros_like(sums).index_add_(0, run.flatten(), torch.ones(run.numel()))
        return mask, (sums / sizes)[run]
    total = d.sum(-1, keepdim=True)
    if level == "geometric":
        total = total / (mask.shape[1] if fault == "mask-ignored" else mask.sum(-1, keepdim=True).clamp(min=1))
        if fault == "off-by-one-length":
            total = d.sum(-1, keepdim=True) / (mask.sum(-1, keepdim=True) + 1)
    return mask, total.expand_as(d)


def ratio(x, settings, fault):
    mask, d = levelled(x, settings["level"], fault)
    return {"log_ratio": torch.where(mask, d, 0.0), "ratio": torch.where(mask, d.exp(), 0.0)}


def weight(x, settings, fault):
    mask, d = levelled(x, settings["level"], fault)
    w = d.exp().clamp(settings["low"], settings["high"])
    return {"weights": w if fault == "mask-ignored" else torch.where(mask, w, 0.0)}


def aggregate(x, settings, fault):
    mask = x["mask"] != 0
    values, counts = torch.where(mask, x["values"], 0.0), mask.sum(-1, keepdim=True)
    if settings["kind"] == "token-mean":
        size = torch.tensor(float(mask.numel())) if fault == "mask-ignored" else mask.sum()
    else:
        size = counts.clamp(min=1) * (mask.shape[0] if fault == "empty-row-counts" else (counts > 0).sum())
    coefficients = torch.where(mask, (1.0 / size).expand(mask.shape), 0.0)
    return {"coefficients": coefficients, "value": (values * coefficients).sum()}


def diagnostics(x, settings, fault):
    mask, d = x["mask"] != 0, x["logp_trainer"] - x["logp_sampler"]
    rule, v = settings["weight"], d[mask]
    r = v.exp()
    w = r.clamp(rule["low"], rule["high"])
    counts = mask.sum(-1)
    rows = counts > 0
    gap = (torch.where(mask, -d, 0.0).sum(-1) / counts)[rows]
    own = (torch.where(mask, -x["logp_sampler"], 0.0).sum(-1) / counts)[rows]
    k3 = torch.expm1(v) - v
    if fault == "k3-in-bfloat16":
        k3 = (v.bfloat16().exp() - 1 - v.bfloat16()).float()
    mean_k1 = gap.mean() if fault == "metrics-pool-rows" else (-v).mean()
    return {
        "kl_k1": mean_k1, "kl_k2": (v * v / 2).mean(), "kl_k3": k3.mean(), "kl_k3_reverse": (torch.expm1(-v) + v).mean(),
        "chi2_token": torch.expm1(2 * v).mean(), "ratio_mean": r.mean(), "ratio_max": r.max(),
        "weight_mean": w.mean(), "weight_std": w.std(correction=0), "ess": w.sum() ** 2 / (w.numel() * (w * w).sum()),
        "fraction_high": (r > rule["high"]).float().mean(), "fraction_low": (r < rule["low"]).float().mean(),
        "log_ppl_diff_mean": gap.mean(), "log_ppl_diff_abs": gap.abs().mean(), "log_ppl_diff_max": gap.max(),
        "ppl_ratio": gap.exp().mean(), "ppl_sampler": own.exp().mean(),
        "valid_tokens": mask.sum(), "valid_rows": rows.sum(),
    }  # fmt: skip


FUNCTIONS = {
    "log_softmax": log_softmax,
    "objective": objective,
    "ratio": ratio,
    "weight": weight,
    "aggregate": aggregate,
    "diagnostics": diagnostics,
}
