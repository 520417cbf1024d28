"""What the adapters share: gradients through a package's loss, refusals, and functions taken from an installed file.

`isolate` compiles named functions and classes of an installed source file without importing the package around
them, for packages whose import needs a GPU stack. The code stays where it is: nothing of it is copied into this
project.
"""

from __future__ import annotations

import ast
import importlib.metadata
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ...contract import Objective
from ...wire import evaluate_case
from ..protocol import NotSupported

BOUND = 10.0


def gradient(loss_of: Callable[[Any], Any], logp: Any, mask: Any = None) -> dict[str, Any]:
    """Loss and d loss / d log p [B, T] of a torch loss; entries that the loss does not touch are 0.

    A gradient of the form 0 * NaN is left as it is: that is what the package would step with.
    """
    leaf = logp.detach().clone().requires_grad_()
    loss = loss_of(leaf)
    if loss.requires_grad:
        loss.backward()
    grad = leaf.grad if leaf.grad is not None else leaf.detach() * 0
    return {"grad_logp": grad, "loss": loss.detach()}


def need(condition: bool, what: str) -> None:
    """Decline a case: the package has no `what`."""
    if not condition:
        raise NotSupported(what)


def complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a definition with the contract's defaults spelled out."""
    return Objective.from_dict(dict(settings)).to_dict()


def compared(rules: Iterable[Mapping[str, Any]], trainer: Any, anchor: Any) -> Any:
    """The log-probs [B, T] that a package compares with the sampler's: the old ones where it has them. Declines
    another numerator.
    """
    for rule in rules:
        need(
            anchor is None or rule.get("numerator") in (None, "anchor"),
            "with old log-probs the numerator is the anchor",
        )
    return trainer if anchor is None else anchor


def plain_objective(definition: Mapping[str, Any], package: str, allowed: Iterable[str]) -> None:
    """Decline the parts of a definition that a package has no option for."""
    allowed = set(allowed)
    for part in ("gate", "centering", "entropy", "kl", "rejection"):
        if definition.get(part):
            need(part in allowed, f"{package} has no option for {part} here")


def bounded_k3(
    definition: Mapping[str, Any], logp: Any, reference: Any, mask: Any, weights: Any = None
) -> dict[str, Any]:
    """What bounding k3 to [-10, 10] adds to loss and gradient [B, T]: the value stops at 10, its derivative at 0.

    float64 from the given log-probs; {} without a k3 term. `weights` where the package multiplies the KL term by
    them.
    """
    kl = definition["kl"]
    if not kl or kl["kind"] != "k3":
        return {}
    keep = mask.bool()
    x = (reference.double() - logp.double()).masked_fill(~keep, 0.0)
    plain = x.expm1() - x
    over = plain > BOUND
    case = {"function": "aggregate", "parameters": definition["aggregation"]}
    share = evaluate_case({**case, "inputs": {"values": (x * 0).tolist(), "mask": mask.long().tolist()}})[
        "coefficients"
    ]
    factor = kl["beta"] * x.new_tensor(share) * (1.0 if weights is None else weights.double().masked_fill(~keep, 0.0))
    grad = (factor * x.expm1()).masked_fill(~over, 0.0)  # minus the derivative -expm1(x) that is lost
    return {"grad_logp": grad, "loss": (factor * (BOUND - plain)).masked_fill(~over, 0.0).sum()}


def file_of(distribution: str, path: str) -> Path:
    """Path of an installed source file. Raises `ImportError` where the distribution does not hold it."""
    found = importlib.metadata.distribution(distribution).locate_file(path)
    if not Path(found).is_file():
        raise ImportError(f"{distribution} has no file {path}")
    return Path(found)


def isolate(path: Path, names: Iterable[str], namespace: dict[str, Any], inside: str | None = None) -> dict[str, Any]:
    """Compile top-level functions, classes and constants (or methods of class `inside`) of a file into `namespace`.

    Raises `ImportError` naming what is missing: the file then belongs to another version.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    body = tree.body
    if inside is not None:
        body = next((n.body for n in body if isinstance(n, ast.ClassDef) and n.name == inside), [])
    wanted = set(names)
    nodes = [node for node in body if _name(node) in wanted]
    missing = wanted - {_name(node) for node in nodes}
    if missing:
        raise ImportError(f"{path.name} has no {', '.join(sorted(missing))}")
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            node.decorator_list = [d for d in node.decorator_list if _name_of(d) in ("dataclass", "staticmethod")]
    return execute(ast.Module(nodes, []), path, namespace)


def statements(path: Path, method: str, condition: str) -> list[ast.If]:
    """The `if` statements of a method whose test is `condition` (source text), the longest first. Raises
    `ImportError` for none.
    """
    wanted = ast.dump(ast.parse(condition, mode="eval").body)
    found = [
        node
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef) and function.name == method
        for node in ast.walk(function)
        if isinstance(node, ast.If) and ast.dump(node.test) == wanted
    ]
    if not found:
        raise ImportError(f"{path.name}: {method} has no statement guarded by `{condition}`")
    return sorted(found, key=lambda node: node.lineno - node.end_lineno)


def execute(module: ast.Module, path: Path, namespace: dict[str, Any]) -> dict[str, Any]:
    """Run nodes of a file; tracebacks keep its name and line numbers. Annotations are not evaluated."""
    future = ast.parse(textwrap.dedent("from __future__ import annotations"))
    tree = ast.fix_missing_locations(ast.Module([*future.body, *module.body], []))
    exec(compile(tree, str(path), "exec"), namespace)  # the installed package's own source, nothing a user typed
    return namespace


def _name(node: ast.stmt) -> str:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return ""


def _name_of(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
