// A consumer of the vectors in another language, written from INTERPRETING.md alone: no Python, no shared code.
//
//     node consumer.mjs EXPORT_DIR RESPONSE.json [FAULT]
//
// Reads cases.json and levels/logprobs.json of `rlcorr vectors export EXPORT_DIR --prompt-only`, answers the families below in
// doubles and writes a response for `rlcorr vectors check`. FAULT plants one named mistake, to show that it is found.

import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const FAULTS = ["unshifted", "reversed", "geometric", "one-sided", "padded-mean", "attached", "head-only-mass", "tail-dropped"];
const ANSWERS = { log_softmax: logSoftmaxCase, ratio: ratioCase, weight: weightCase, aggregate: aggregateCase, objective: gradientCase };

const [dir, target, fault = ""] = process.argv.slice(2);
if (!dir || !target || (fault && !FAULTS.includes(fault))) {
  console.error(`usage: node consumer.mjs EXPORT_DIR RESPONSE.json [${FAULTS.join(" | ")}]`);
  process.exit(2);
}

const read = (name) => JSON.parse(readFileSync(join(dir, name), "utf8"));
const cases = read("cases.json");
const given = existsSync(join(dir, "levels", "logprobs.json")) ? read(join("levels", "logprobs.json")) : {};

const num = (x) => (typeof x === "string" ? Number(x) : x); // "NaN", "Infinity" and "-Infinity" are what Number() reads
const wire = (x) => (Array.isArray(x) ? x.map(wire) : Number.isFinite(x) ? x : String(x));
const map2 = (mask, f) => mask.map((row, b) => row.map((m, t) => (m ? f(b, t) : 0))); // 0 off the mask
const sum = (xs) => xs.reduce((a, b) => a + b, 0);
const clamp = (x, c) => (c == null ? x : Math.min(Math.max(x, -c), c));

// log p [V] of one row on its support
function logSoftmax(row, temperature, inside) {
  const z = row.map((x, v) => (inside && !inside[v] ? -Infinity : num(x) / temperature));
  const top = fault === "unshifted" ? 0 : Math.max(...z);
  const lse = Math.log(sum(z.map((x) => Math.exp(x - top))));
  return z.map((x) => x - top - lse);
}

function logSoftmaxCase({ inputs, parameters }) {
  const T = parameters.temperature ?? 1;
  const logp = inputs.logits.map((row, b) => row.map((z, t) => logSoftmax(z, T, inputs.support?.[b][t])));
  const out = { logp };
  if (inputs.tokens) {
    out.logp_token = logp.map((row, b) => row.map((l, t) => l[inputs.tokens[b][t]]));
    out.score = logp.map((row, b) => row.map((l, t) => l.map((x, v) => ((v === inputs.tokens[b][t] ? 1 : 0) - Math.exp(x)) / T)));
  }
  return out;
}

// log-ratio [B, T] of a rule at its level, over the valid tokens of each row
function logRatio(x, rule) {
  const n = rule.numerator !== "trainer" && x.logp_anchor ? x.logp_anchor : x.logp_trainer;
  const each = rule.clamp_order === "token" ? rule.log_clamp : null;
  const sign = fault === "reversed" ? -1 : 1;
  const d = map2(x.mask, (b, t) => clamp(sign * (num(n[b][t]) - num(x.logp_sampler[b][t])), each));
  let level = rule.level ?? "token";
  if (fault === "geometric" && level === "sequence") level = "geometric";
  const valid = (b) => d[b].filter((_, t) => x.mask[b][t]);
  const run = (b, t) => {
    let from = t, to = t;
    while (from > 0 && x.mask[b][from - 1]) from--;
    while (to + 1 < d[b].length && x.mask[b][to + 1]) to++;
    return d[b].slice(from, to + 1);
  };
  const at = {
    token: (b, t) => d[b][t],
    sequence: (b) => sum(valid(b)),
    geometric: (b) => sum(valid(b)) / valid(b).length,
    segment: (b, t) => sum(run(b, t)) / run(b, t).length,
  }[level];
  return map2(x.mask, (b, t) => clamp(at(b, t), rule.log_clamp));
}

function ratioCase({ inputs, parameters }) {
  const d = logRatio(inputs, parameters);
  return { log_ratio: d, ratio: map2(inputs.mask, (b, t) => Math.exp(d[b][t])) };
}

// f(rho) of a one- or two-sided band for a token with advantage a
function applied(rule, rho, a) {
  if (rule.sign === "positive" && a < 0) return 1;
  if (rule.sign === "negative" && a >= 0) return 1;
  const band = (a >= 0 ? rule.positive : rule.negative) ?? rule;
  const low = band.low ?? 0, high = band.high ?? Infinity;
  const inside = rule.closed === false ? (low === 0 || rho > low) && rho < high : rho >= low && rho <= high;
  if (inside || rule.outside == null) return rule.inside === "one" ? 1 : rho;
  if (rule.outside === "zero") return 0;
  return rho >= high ? high : fault === "one-sided" ? rho : low;
}

function weightCase({ inputs, parameters }) {
  const d = logRatio(inputs, parameters);
  const a = (b, t) => (inputs.advantages ? num(inputs.advantages[b][t]) : 1);
  const w = map2(inputs.mask, (b, t) => applied(parameters, Math.exp(d[b][t]), a(b, t)));
  return { weights: normalised(w, inputs.mask, parameters.normalise) };
}

function normalised(w, mask, mode) {
  if (!mode) return w;
  const valid = (b) => w[b].filter((_, t) => mask[b][t]);
  const rows = mask.map((_, b) => valid(b)).filter((row) => row.length);
  const mean = mode === "tokens" ? sum(rows.flat()) / rows.flat().length : sum(rows.map((r) => sum(r) / r.length)) / rows.length;
  return map2(mask, (b, t) => w[b][t] / (mean === 0 ? 1 : mean));
}

// the coefficient of every token in a named reduction
function coefficients(rule, mask) {
  const lengths = mask.map((row) => (fault === "padded-mean" ? row.length : sum(row)));
  const N = rule.tokens ?? sum(lengths);
  const R = rule.sequences ?? lengths.filter((n) => n > 0).length;
  const each = {
    "token-mean": () => 1 / N,
    "token-sum": () => 1,
    "seq-mean-token-sum": () => 1 / R,
    "seq-mean-token-mean": (b) => 1 / (R * lengths[b]),
    "seq-mean-token-sum-norm": () => 1 / (R * rule.length),
  }[rule.kind ?? "token-mean"];
  return map2(mask, each);
}

function aggregateCase({ inputs, parameters }) {
  const c = coefficients(parameters, inputs.mask);
  return { value: sum(map2(inputs.mask, (b, t) => c[b][t] * num(inputs.values[b][t])).flat()), coefficients: c };
}

// d loss / d log p of REINFORCE with a weight, and of score centering on the sampler's head, entered at log-probs
function gradientCase({ inputs, definition }, id) {
  const x = { ...inputs, ...given[id] };
  const coef = coefficients(definition.aggregation ?? {}, x.mask);
  const rule = definition.weight;
  const d = rule ? logRatio(x, rule) : null;
  const a = (b, t) => num(x.advantages[b][t]);
  let w = map2(x.mask, (b, t) => (rule ? applied(rule, Math.exp(d[b][t]), a(b, t)) : 1));
  w = normalised(w, x.mask, rule?.normalise);
  const leak = (b, t) => (fault === "attached" && rule ? 1 + num(x.logp_trainer[b][t]) : 1);
  const out = { grad_logp: map2(x.mask, (b, t) => -coef[b][t] * w[b][t] * a(b, t) * leak(b, t)) };
  if (definition.centering) {
    out.grad_head_logp = x.mask.map((row, b) => row.map((m, t) => headGradient(x, definition, b, t, m ? coef[b][t] * a(b, t) : 0)));
  }
  return out;
}

// coef A c_v on the head, with the tail rescaled: c_v = q_v f(p_v/q_v) - rho f(1/rho) p_v
function headGradient(x, { weight, centering }, b, t, scale) {
  if (!x.mask[b][t]) return x.head_logp_sampler[b][t].map(() => 0);
  const a = num(x.advantages[b][t]);
  const f = (rho) => (weight ? applied(weight, rho, a) : 1);
  const q = x.head_logp_sampler[b][t].map((l) => Math.exp(num(l)));
  const p = x.head_logp_trainer[b][t].map((l) => Math.exp(num(l)));
  const floors = [centering.floor_sampler === undefined ? 1e-6 : centering.floor_sampler,
                  centering.floor_trainer === undefined ? 1e-6 : centering.floor_trainer];
  const Q = Math.max(1 - sum(q), floors[0] ?? 0), P = Math.max(1 - sum(p), floors[1] ?? 0);
  const rho = fault === "head-only-mass" ? 1 : Q / P;
  let alpha = rho * f(1 / rho);
  if (centering.tail === "dropped" || fault === "tail-dropped") alpha = 0;
  return q.map((qv, k) => (qv === 0 && p[k] === 0 ? 0 : scale * (qv * f(p[k] / qv) - alpha * p[k])));
}

// What this consumer knows; everything else is left unanswered, and `check` says so.
const WEIGHT_KEYS = ["level", "low", "high", "positive", "negative", "outside", "inside", "sign", "numerator", "log_clamp",
                     "clamp_order", "closed", "normalise", "statistic"];
function knows(id, c) {
  const family = id.split(".")[0];
  const plain = (rule) => !rule || (Object.keys(rule).every((k) => WEIGHT_KEYS.includes(k)) && (rule.statistic ?? "ratio") === "ratio");
  if (c.function === "weight") return plain(c.parameters);
  if (["log_softmax", "ratio", "aggregate"].includes(c.function)) return true;
  if (c.function !== "objective" || !given[id] || !["grad", "agg", "centre", "edge"].includes(family)) return false;
  const d = c.definition, centred = d.centering;
  const allowed = ["weight", "aggregation", "centering"];
  if (!Object.keys(d).every((k) => allowed.includes(k) || (k === "surrogate" && d[k].kind === "reinforce"))) return false;
  if (!centred) return plain(d.weight);
  const head = ["rescaled", "dropped"].includes(centred.tail ?? "rescaled") && !c.inputs.logp_sampler_full && !c.inputs.support;
  const finite = JSON.stringify([c.inputs.head_logp_sampler, given[id].head_logp_trainer]).indexOf("Infinity") < 0;
  const token = !d.weight || ((d.weight.level ?? "token") === "token" && !d.weight.normalise && d.weight.log_clamp == null);
  const floored = centred.floor_sampler !== null && centred.floor_trainer !== null;
  return plain(d.weight) && head && finite && token && floored && !c.inputs.logp_anchor;
}

const response = { dtype: "fp64" };
for (const [id, c] of Object.entries(cases)) {
  if (!(c.function in ANSWERS) || !knows(id, c)) continue;
  const answer = ANSWERS[c.function]({ parameters: {}, definition: {}, ...c }, id);
  response[id] = c.function === "objective" ? { level: "logprobs", ...answer } : answer;
}
for (const answer of Object.values(response)) if (typeof answer === "object")
  for (const key of Object.keys(answer)) if (key !== "level") answer[key] = wire(answer[key]);
writeFileSync(target + ".tmp", JSON.stringify(response) + "\n");
renameSync(target + ".tmp", target);
console.log(`${Object.keys(response).length - 1} answers written`);
