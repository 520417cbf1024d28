"""Time to load the oracle vectors, to answer them with NumPy and with torch, and to import the pytest plugin.

`python -m repro.bench.vectors` measures on one thread:

    load      the core set from disk with every file's checksum, cache emptied each time         target 50 ms
    numpy     every case through the float64 reference                                           target 2 s
    torch     the cases that the float32 training loss or torch.log_softmax covers, judged       target 5 s
    plugin    import of rlcorr_ref.pytest_plugin, package included, in a fresh interpreter that has pytest   target 5 ms
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import torch

from repro.bench import best_of, write_result
from repro.losses import LossBatch, check_definition, correction_loss
from rlcorr_ref import evaluate_case
from rlcorr_ref.vectors import judge, store

TARGETS = {"load_s": 0.05, "numpy_s": 2.0, "torch_s": 5.0, "plugin_import_s": 0.005}
INTEGERS = ("tokens", "head_ids")
FIELDS = LossBatch.__dataclass_fields__
REPEATS = 9


def load() -> list[dict[str, Any]]:
    """The set from disk, nothing remembered."""
    store._families.cache_clear()
    return store.load()


def tensor(name: str, value: Any) -> torch.Tensor:
    """Wire values in the dtype that the training loss takes."""
    kind = torch.int64 if name in INTEGERS else torch.bool if name in ("mask", "support") else torch.float32
    return torch.from_numpy(np.array(value, dtype=object).astype(np.float64)).to(kind)


def covered(case: dict[str, Any]) -> bool:
    """Whether the torch consumer answers a case: the loss's own check decides for objectives."""
    if "fp32" not in case["dtypes"] or case["function"] not in ("objective", "log_softmax"):
        return False
    if case["function"] == "log_softmax":
        return "tokens" in case["inputs"]
    given = {name for name, value in case["inputs"].items() if value is not None}
    if not given <= {*FIELDS, "logits"} or "grad_logits" not in case["expected"]:
        return False
    definition = case["definition"]
    centering = definition.get("centering")
    clipped = (definition.get("surrogate") or {}).get("kind") == "ppo_clip"
    if clipped and definition.get("weight") is not None and "logp_anchor" not in given:
        return False
    if centering is not None and centering.get("tail", "rescaled") == "exact" and "logp_sampler_full" not in given:
        return False
    try:
        check_definition(definition)
    except ValueError:
        return False
    return True


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Outputs in float32 torch at the logits: the gradient of the training loss, or log-softmax and score."""
    x = {name: tensor(name, value) for name, value in case["inputs"].items() if value is not None}
    if case["function"] == "log_softmax":
        z = x["logits"].where(x["support"], -torch.inf) if "support" in x else x["logits"]
        temperature = case["parameters"].get("temperature", 1.0)
        logp = torch.log_softmax(z / temperature, -1)
        hit = torch.nn.functional.one_hot(x["tokens"], z.shape[-1])
        own = logp.gather(-1, x["tokens"][..., None])[..., 0]
        return {"logp": logp.tolist(), "logp_token": own.tolist(), "score": ((hit - logp.exp()) / temperature).tolist()}
    logits = x.pop("logits").requires_grad_()
    definition = dict(case["definition"])
    if definition.get("centering") is not None:  # the loss's default tail is another than the contract's
        definition["centering"] = {"tail": "rescaled", **definition["centering"]}
    correction_loss(logits, LossBatch(**x), definition).backward()
    return {"grad_logits": logits.grad.tolist()}


def verdict(case: dict[str, Any], given: dict[str, Any]) -> judge.Verdict:
    """Judge what the consumer answers (for an objective the gradient alone)."""
    plain = {name: _wire(value) for name, value in given.items()}
    return judge.judge({**case, "levels": {"logits": {"required": list(plain)}}}, plain, "fp32", "logits")


def _wire(value: Any) -> Any:
    if isinstance(value, list):
        return [_wire(item) for item in value]
    return value if np.isfinite(value) else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]


def import_seconds(*modules: str) -> float:
    """Best time that a fresh interpreter spends on importing `modules` after pytest."""
    code = (
        "import pytest, time; t = time.perf_counter()\n"
        + "".join(f"import {name}\n" for name in modules[:-1])
        + f"u = time.perf_counter(); import {modules[-1]}; print(time.perf_counter() - u)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(REPEATS)
    ]
    return min(float(run.stdout) for run in runs)


def main() -> None:
    torch.set_num_threads(1)
    cases = load()
    asked = [case for case in cases if covered(case)]
    questions = [store.envelope(case) for case in cases]
    verdicts = [verdict(case, answer(case)) for case in asked]
    measured = {
        "load_s": best_of(load, REPEATS),
        "numpy_s": best_of(lambda: [evaluate_case(question) for question in questions], 3),
        "torch_s": best_of(lambda: [verdict(case, answer(case)) for case in asked], 3),
        # what a test run pays that has the plugin installed and does not use it, and the plugin's own part of that
        "plugin_import_s": import_seconds("rlcorr_ref.pytest_plugin"),
        "plugin_alone_import_s": import_seconds("rlcorr_ref", "rlcorr_ref.pytest_plugin"),
    }
    result = {
        **{name: round(value, 5) for name, value in measured.items()},
        "targets": TARGETS,
        "missed": sorted(name for name, target in TARGETS.items() if measured[name] > target),
        "set_version": store.manifest()["set_version"],
        "cases": len(cases),
        "torch_cases": len(asked),
        "torch_failed": sorted(v.id for v in verdicts if not v.passed),
        "torch_largest_used": round(max(v.used for v in verdicts), 3),
        "threads": 1,
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    for name, target in TARGETS.items():
        print(f"{name:18} {measured[name]:8.4f} s   target {target} s")
    print(f"plugin after its package: {measured['plugin_alone_import_s']:.4f} s")
    print(f"{len(asked)} of {len(cases)} cases in torch float32, {len(result['torch_failed'])} failed", end="; ")
    print(f"largest share of tolerance {result['torch_largest_used']}")
    print(f"written: {write_result('vectors', result).name}")


if __name__ == "__main__":
    main()
