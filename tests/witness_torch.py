"""Second witness: a torch float64 loss with explicit detach, differentiated by autograd.

It uses the head-only form that training code uses (coefficients q g - alpha p on the head), while the multi-precision
witness sums the whole vocabulary. `evaluate` returns float64 arrays under the same keys, plus
- `grad_logits_dense`: gradient of the dense loss, the better conditioned of the two,
- `margin`: relative distance of the nearest comparison to its threshold,
- `scale`: [B, T] size of the summands behind each token's loss, to judge a loss difference by.
"""

from __future__ import annotations

import torch
from witness_torch_batch import load, with_defaults
from witness_torch_diagnostics import diagnostics
from witness_torch_rules import Margins, gate_open, kept_mask, mass, row_mean, sampled_weights


def product(c, x):
    """c * x with a zero c removing the term even where x is infinite."""
    return torch.where(c == 0, 0.0, c) * torch.where(c == 0, 0.0, x)


def band(surrogate):
    low, high = surrogate["eps_low"], surrogate["eps_high"]
    return None if low is None else 1 - low, None if high is None else 1 + high


def clip(r, low, high):
    r = r if low is None else r.clamp(min=low)
    return r if high is None else r.clamp(max=high)


def stopped(r, advantages, surrogate, margins, where):
    """Boolean: the clipped or the dual branch is strictly the one taken."""
    low, high = band(surrogate)
    dual = surrogate.get("dual")
    up, down = advantages > 0, advantages < 0
    margins.see(r, high, where & up)
    margins.see(r, low, where & down)
    margins.see(r, dual, where & down)
    return (up & (r > high)) | (down & (r < low)) | (down & (r > (torch.inf if dual is None else dual)))


def surrogate_value(batch, definition, logp, margins):
    """s [B, T], differentiable in logp, and the detached clip indicator."""
    surrogate, a, mask = definition["surrogate"], batch["advantages"], batch["mask"]
    none = torch.zeros_like(mask)
    if surrogate["kind"] == "reinforce":
        return product(-a, logp), none
    base = batch["log_q"] if batch["log_o"] is None else batch["log_o"]
    low, high = band(surrogate)
    if surrogate["kind"] == "cispo":
        r = (logp - base).exp().detach()
        margins.see(r, low, mask)
        margins.see(r, high, mask)
        clipped = clip(r, low, high)
        return product(-clipped * a, logp), (clipped != r) & mask
    log_r = logp - base
    if surrogate["kind"] == "gspo":
        log_r = row_mean(log_r, mask).detach() + (logp - logp.detach())
    r = log_r.exp()
    stop = stopped(r.detach(), a, surrogate, margins, mask)
    limit, dual = r.detach().clamp(low, high), surrogate.get("dual")
    if dual is not None:
        limit = torch.where((a < 0) & (r.detach() > dual), torch.full_like(limit, dual), limit)
    return -a * torch.where(stop, limit, r), stop & mask


def effective_mass(batch, definition, log_q, log_p, log_o, margins, where):
    """q g [B, T, *]: token-level weight, gate and surrogate factor times q, from detached log-probs."""
    weight, gate, surrogate = definition["weight"], definition["gate"], definition["surrogate"]
    a = batch["advantages"].unsqueeze(-1).expand_as(log_p)
    named = {"trainer": log_p, "anchor": log_o, None: log_p if batch["log_o"] is None else log_o}
    weighted = weight is not None and weight["level"] == "token"
    out = mass(weight, named[weight["numerator"]], log_q, a, margins, where) if weighted else log_q.exp()
    out = out / batch["divisor"]
    passed = torch.ones_like(out)
    if gate is not None and gate["level"] == "token":
        passed = gate_open(gate, named[gate["numerator"]] - log_q, a, margins, where).to(out.dtype)
    out = out * passed
    if surrogate["kind"] == "reinforce":
        return out
    base = log_q if batch["log_o"] is None else log_o
    r = torch.where(log_p == -torch.inf, 0.0, (log_p - base).exp())
    # without an anchor and without a weight, q r = p; written so, no quotient by q = 0 is left
    times_r = log_p.exp() * passed if base is log_q and not weighted else product(out, r)
    if surrogate["kind"] == "ppo_clip":
        return torch.where(stopped(r, a, surrogate, margins, where), 0.0, times_r)
    low, high = band(surrogate)
    margins.see(r, low, where)
    margins.see(r, high, where)
    limit = clip(r, low, high)
    return torch.where(limit == r, times_r, product(out, limit))


def centering(batch, definition, logp, margins):
    """Head-only and dense detached coefficients with their log-prob carriers: dict, or None without centering."""
    rule = definition["centering"]
    if rule is None:
        return None
    frozen, mask = logp.detach(), batch["mask"].unsqueeze(-1)
    tail, out = rule["tail"], {"head": None, "alpha": torch.zeros_like(batch["advantages"])}

    def effective(log_q, log_p, log_o, where):
        c = effective_mass(batch, definition, log_q, log_p, log_o, margins, where & mask)
        return torch.where(where & mask, c, 0.0)

    if "ids" in batch:
        head_p = frozen.gather(2, batch["ids"])
        q_head, p_head = batch["head_q"].exp(), torch.where(batch["present"], head_p.exp(), 0.0)
        out["Q"], out["P"] = q_head.sum(-1), p_head.sum(-1)
        cut = {side: 0.0 if rule[f"floor_{side}"] is None else rule[f"floor_{side}"] for side in ("sampler", "trainer")}
        q_t = (1 - out["Q"]).clamp(min=cut["sampler"])
        p_t = torch.where(batch["member"], 0.0, frozen.exp()).sum(-1).clamp(min=cut["trainer"])
        out["tail_ratio"] = torch.where((p_t == 0) & (q_t == 0), 1.0, q_t / p_t)
        out["tail_mass"] = torch.minimum(q_t, p_t)
    if tail == "exact" or (tail == "support" and batch["full_q"] is not None):
        out["dense"] = effective(batch["full_q"], frozen, batch["full_o"], batch["support"])
        return out
    outside = ~batch["member"] & batch["support"]
    log_q = batch["head_q"] - (out["Q"].log().unsqueeze(-1) if tail == "renormalised" else 0.0)
    c = effective(log_q, head_p, batch["head_o"], batch["present"])
    dense = torch.zeros_like(frozen).scatter_add(2, batch["ids"], c)
    if tail == "uniform":
        share = (1 - out["Q"]).clamp(min=0).unsqueeze(-1) / outside.sum(-1, keepdim=True).clamp(min=1)
        dense = dense + effective(share.log().expand_as(frozen), frozen, batch["full_o"], outside)
    elif tail == "rescaled":
        o_t = None
        if batch["head_o"] is not None:
            o_t = (1 - batch["head_o"].exp().sum(-1)).clamp(min=cut["trainer"]).log().unsqueeze(-1)
        everywhere = torch.ones_like(mask)
        grown = effective(q_t.log().unsqueeze(-1), p_t.log().unsqueeze(-1), o_t, everywhere)[..., 0]
        void, unit = torch.full_like(mask, -torch.inf, dtype=torch.float64), torch.zeros_like(mask, dtype=torch.float64)
        unbounded = effective_mass(batch, definition, void, unit, None if o_t is None else unit, Margins(), everywhere)
        out["alpha"] = torch.where(p_t > 0, grown / p_t, unbounded[..., 0])
        dense = dense + torch.where(outside & mask, out["alpha"].unsqueeze(-1) * frozen.exp(), 0.0)
        c = c - product(out["alpha"].unsqueeze(-1), p_head)
    out["dense"] = dense
    if tail != "uniform":
        out["head"] = torch.where(batch["present"] & mask, c, 0.0)
    return out


def kl_term(kind, x):
    """k1, k2, k3 of x = log ref - log p; "k3+" has k3's value and k2's gradient."""
    k2, k3 = x.square() / 2, x.expm1() - x
    return {"k1": -x, "k2": k2, "k3": k3, "k3+": k2 + (k3 - k2).detach()}[kind]


def coefficients(mask, kept, definition):
    """Aggregation coefficient of each token [B, T]; 0 on dropped tokens."""
    rule = definition["aggregation"]
    counted = kept if any(r["denominator"] == "shrunk" for r in definition["rejection"]) else mask
    lengths = counted.sum(1, keepdim=True).to(torch.float64).expand(mask.shape)
    n = float(counted.sum()) if rule["tokens"] is None else rule["tokens"]
    r = float(counted.any(1).sum()) if rule["sequences"] is None else rule["sequences"]
    ones = torch.ones_like(lengths)
    kind = rule["kind"]
    if kind == "token-mean":
        c = ones / n
    elif kind == "token-sum":
        c = ones
    elif kind == "seq-mean-token-mean":
        c = ones / (r * lengths)
    else:
        c = ones / (r * (rule["length"] if kind == "seq-mean-token-sum-norm" else 1.0))
    return torch.where(kept, c, 0.0)


def evaluate(inputs, definition):
    """All outputs of one case as float64 arrays (None where the definition has none); see the module docstring."""
    definition, batch, margins = with_defaults(definition), load(inputs), Margins()
    mask, a = batch["mask"], batch["advantages"]
    logits = batch["logits"].clone().requires_grad_()
    scaled = (logits / definition["temperature"]).masked_fill(~batch["support"], -torch.inf)
    logp = torch.log_softmax(scaled, dim=-1)
    # separate nodes for the three carriers, so that autograd can tell their gradients apart
    own = logp.gather(2, batch["tokens"].unsqueeze(-1)).squeeze(-1)
    wide = logp.clone()
    numerators = {"trainer": own.detach(), "anchor": batch["log_o"]}
    numerators[None] = numerators["trainer" if batch["log_o"] is None else "anchor"]
    batch["log_n"] = numerators.__getitem__
    s, clipped = surrogate_value(batch, definition, own, margins)
    w, whole, batch["divisor"] = sampled_weights(batch, definition, margins)
    kept = kept_mask(batch, definition, margins)
    coef = coefficients(mask, kept, definition)
    center = centering(batch, definition, logp, margins)
    term = product(w, s)
    shared = torch.zeros_like(term)
    if definition["kl"] is not None:
        kl = definition["kl"]
        scale = kl["beta"] * (w if kl["weighted"] else torch.ones_like(w))
        term = term + product(scale, kl_term(kl["kind"], batch["log_ref"] - own))
    entropy = torch.zeros_like(term)
    if definition["entropy"] is not None:
        finite = torch.where(wide == -torch.inf, 0.0, wide)
        shared = shared + definition["entropy"]["coef"] * (wide.exp() * finite).sum(-1)
        entropy = shared.detach().abs()
    head, dense, size = None, torch.zeros_like(term), term.detach().abs() + entropy
    if center is not None:
        multiplier = (a * whole).unsqueeze(-1)
        dense = product(multiplier * center["dense"], logp).sum(-1)
        if center["head"] is not None:
            head = logp.gather(2, batch["ids"])
            parts = product(multiplier * center["head"], head)
        else:
            parts = product(multiplier * center["dense"], wide)
        correction = parts.sum(-1)
        size = size + parts.detach().abs().sum(-1) + dense.detach().abs()
    else:
        correction = dense
    token_loss = torch.where(kept, term + shared + correction, 0.0)
    loss = product(coef, token_loss).sum()
    loss_dense = product(coef, torch.where(kept, term + shared + dense, 0.0)).sum()

    def grad(of, node):
        if not of.requires_grad:
            return torch.zeros_like(node)
        return torch.autograd.grad(of, node, retain_graph=True, allow_unused=True, materialize_grads=True)[0]

    full = definition["entropy"] is not None or (center is not None and center["head"] is None)
    grad_head = None if head is None else grad(loss, head)
    grad_full = grad(loss, wide) if full else None
    if full and grad_head is not None:
        grad_full = grad_full.scatter_add(2, batch["ids"], torch.where(batch["present"], grad_head, 0.0))
    arrays = {
        "loss": loss,
        "loss_dense": loss_dense,
        "grad_logits": grad(loss, logits),
        "grad_logits_dense": grad(loss_dense, logits),
        "grad_logp": grad(loss, own),
        "grad_head_logp": None if full else grad_head,
        "grad_logp_full": grad_full,
        "weights": w,
        "mask": kept.to(torch.float64),
        "token_loss": token_loss,
        "scale": torch.where(kept, size, 0.0),
        "coefficients": coef,
    }
    out = {key: None if value is None else value.detach().numpy() for key, value in arrays.items()}
    out["margin"] = margins.smallest
    modelled = definition["centering"] is not None and "tail_mass" in center and mask.any()
    out["tail_mass"] = center["tail_mass"][mask].min().item() if modelled else 1.0
    out["diagnostics"] = diagnostics(batch, definition, w, kept, clipped, center)
    return out
