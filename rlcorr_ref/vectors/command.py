"""`rlcorr vectors ...`: list, show, export, check, verify, diff, bulk; and for maintainers new, lint, withdraw.

Exit status: 0 fine; 1 something is wrong with the answers or the set; 2 malformed input (one clear line on standard error).
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import ContractError
from . import model, show, store
from .bulk import command as bulk
from .canonical import document, parse, read, write_text

WRONG = 1


def add_parser(commands: Any) -> None:
    """Add the `vectors` group to the command line."""
    group = commands.add_parser(
        "vectors",
        help="oracle vectors: list, show, export, check, verify, diff",
        description="Oracle vectors. Exit status: 0 fine, 1 something is wrong, 2 malformed input.",
    )
    verbs = group.add_subparsers(dest="verb", required=True)

    def verb(name: str, run: Any, text: str, *arguments: tuple[tuple[str, ...], dict[str, Any]]) -> None:
        parser = verbs.add_parser(name, help=text, description=text)
        for flags, options in arguments:
            parser.add_argument(*flags, **options)
        parser.add_argument("--root", type=Path, default=store.ROOT, help=argparse.SUPPRESS)
        parser.set_defaults(run=run)

    filters = (
        (("--family",), {"metavar": "NAME", "help": "family or id prefix, such as grad or grad.00"}),
        (("--flag",), {"metavar": "FLAG", "help": "cases that expose this class of fault"}),
        (("--dtype",), {"choices": model.DTYPES, "help": "cases that claim this dtype"}),
        (("--level",), {"choices": model.LEVELS, "help": "cases that can be entered here"}),
    )
    verb("list", run_list, "one line per case: id, slug, title", *filters)
    verb("show", run_show, "one case: formula, numbers, dialects, sources, citation", (("id",), {"metavar": "ID"}))
    verb(
        "export",
        run_export,
        "write the questions (and answers) as {id: case} and {id: answer}",
        (("directory",), {"metavar": "DIR", "type": Path}),
        (("--prompt-only",), {"action": "store_true", "help": "questions without answers"}),
        *filters,
    )
    verb(
        "check",
        run_check,
        "judge {id: answer}",
        (("response",), {"metavar": "RESPONSE.json", "help": "a file, or - for standard input"}),
        (("--require-all",), {"action": "store_true", "help": "a case without an answer is an error"}),
        (("--report",), {"metavar": "FILE.json", "type": Path, "help": "also write the verdicts as JSON"}),
    )
    verb(
        "verify",
        run_verify,
        "recompute the checksums of a set, folder or vendored file",
        (("path",), {"metavar": "PATH", "type": Path}),
    )
    verb(
        "mutants",
        run_mutants,
        "which wrong implementations each case rejects, and each mutant's cases",
        (
            ("name",),
            {"metavar": "NAME", "nargs": "?", "help": "one mutant: what it gets wrong and the cases that reject it"},
        ),
    )
    sets = tuple(
        ((name,), {"metavar": name.upper(), "type": Path, "help": "a set, MANIFEST.json, ledger or family file"})
        for name in ("a", "b")
    )
    verb("diff", run_diff, "ids that were added, changed, withdrawn or removed from A to B", *sets)
    verb(
        "lint",
        run_lint,
        "check the published files against the cases",
        (("--write",), {"action": "store_true", "help": "put regenerated files in place"}),
        (("--publish",), {"action": "store_true", "help": "with --write: add new cases to the ledger, for good"}),
        (("--keep-scales",), {"action": "store_true", "help": "do not recompute error scales (faster)"}),
    )
    verb(
        "new",
        run_new,
        "append a case to a family from an envelope; the id is assigned here",
        (("family",), {"metavar": "FAMILY"}),
        (("slug",), {"metavar": "SLUG"}),
        (("case",), {"metavar": "CASE.json", "help": "function, inputs, definition or parameters"}),
        (("--title",), {"required": True}),
        (("--description",), {"required": True, "help": "what is computed and which mistake it exposes"}),
        (("--flag",), {"action": "append", "required": True, "dest": "flags"}),
    )
    verb(
        "withdraw",
        run_withdraw,
        "mark a case as withdrawn; its value stays",
        (("id",), {"metavar": "ID"}),
        (("--reason",), {"required": True}),
        (("--superseded-by",), {"metavar": "ID"}),
    )
    verb(
        "bulk",
        bulk.run_bulk,
        "build the cases at production sizes (vocabulary 151,936; T = 4096), or judge a folder of answers to them",
        (("--out",), {"metavar": "DIR", "type": Path, "required": True, "help": "where the tier is (to be) built"}),
        (
            ("--check",),
            {"metavar": "RESPONSE_DIR", "type": Path, "help": "answers, <id>.safetensors; needs a built DIR"},
        ),
    )
    verb(
        "scaffold",
        run_scaffold,
        "a ready test file in another project's convention",
        (("--for",), {"choices": ("verl", "slime"), "required": True, "dest": "project"}),
        (
            ("--out",),
            {"metavar": "FILE", "type": Path, "help": "write it there, with vendored vectors where it needs any"},
        ),
    )


def _tool(name: str) -> ModuleType:
    """A module of the generator, which needs the derive extra."""
    try:
        return importlib.import_module(f"rlcorr_ref.vectors.{name}")
    except ModuleNotFoundError as error:
        if error.name != "mpmath":
            raise
        raise ContractError(
            "this verb computes at 50 digits and needs mpmath: pip install 'rlcorr-ref[derive]'"
        ) from None


def _chosen(args: argparse.Namespace, withdrawn: bool = False) -> list[dict[str, Any]]:
    return store.load(
        args.family, dtype=args.dtype, level=args.level, flag=args.flag, withdrawn=withdrawn, root=args.root
    )


def _everything(root: Path) -> dict[str, dict[str, Any]]:
    return {case["id"]: case for case in store.load(withdrawn=True, root=root)}


def run_list(args: argparse.Namespace) -> int:
    """`rlcorr vectors list`."""
    cases = _chosen(args, withdrawn=True)
    for case in cases:
        gone = " (withdrawn)" if case["status"] == "withdrawn" else ""
        print(f"{case['id']:16} {case['slug']:36} {case['title']}{gone}")
    print(f"{len(cases)} cases, set {store.manifest(args.root)['set_version']}", file=sys.stderr)
    return 0


def run_show(args: argparse.Namespace) -> int:
    """`rlcorr vectors show ID`."""
    case = store.get(args.id, args.root)
    family = store.family_file(case["id"].rpartition(".")[0], args.root)
    print(show.render(case, family))
    return 0


def run_export(args: argparse.Namespace) -> int:
    """`rlcorr vectors export DIR`."""
    cases = _chosen(args)
    if args.directory.exists() and not args.directory.is_dir():
        raise ContractError(f"{args.directory}: expected a folder, found a file")
    write_text(args.directory / "cases.json", _map({case["id"]: store.envelope(case) for case in cases}))
    for level in model.LEVELS:
        inputs = {c["id"]: c["levels"][level]["inputs"] for c in cases if c["levels"].get(level, {}).get("inputs")}
        if inputs:
            write_text(args.directory / "levels" / f"{level}.json", _map(inputs))
    if not args.prompt_only:
        write_text(args.directory / "answers.json", _map({case["id"]: answer(case) for case in cases}))
    print(f"{len(cases)} cases written to {args.directory}")
    return 0


def _map(entries: dict[str, Any]) -> str:
    """{id: ...} one entry per line."""
    text = document({"entries": entries}, "entries")
    return text.removeprefix('{\n"entries":').removesuffix("\n}\n") + "\n"


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """The expected outputs of a case's first level as a response would state them."""
    out: dict[str, Any] = {}
    level = next(case["levels"][name] for name in model.LEVELS if name in case["levels"])
    for name in (*level["required"], *level.get("optional", ())):
        target, *path = out, *name.split(".")
        for key in path[:-1]:
            target = target.setdefault(key, {})
        target[path[-1]] = case["expected"][name]["data"]
    return out


def run_check(args: argparse.Namespace) -> int:
    """`rlcorr vectors check RESPONSE.json`."""
    from . import judge

    if args.response == "-":
        response = parse(sys.stdin.read(), "standard input")
    else:
        response = read(args.response)
    cases = _everything(args.root)
    report = judge.check(cases, response)
    families = {name.rpartition(".")[0] for name in cases}
    notes = {f: n for name in families for f, n in store.family_file(name, args.root)["notes"].items()}
    print(judge.render(report, cases, notes))
    if args.report is not None:
        write_text(args.report, json.dumps(_verdicts(report), indent=1, sort_keys=True) + "\n")
    missing = args.require_all and report.unanswered
    if missing:
        print(f"not answered: {', '.join(report.unanswered[:5])}{', ...' if len(report.unanswered) > 5 else ''}")
    return WRONG if report.failed or missing else 0


def _verdicts(report: Any) -> dict[str, Any]:
    return {
        "set_version": model.SET_VERSION,
        "passed": {v.id: {"dtype": v.dtype, "level": v.level, "used": v.used} for v in report.verdicts if v.passed},
        "failed": {
            v.id: {"dtype": v.dtype, "level": v.level, "misses": [m.line() for m in v.misses[:3]]}
            for v in report.failed
        },
        "not_answered": report.unanswered,
        "not_judged": report.unclaimed,
    }


def run_verify(args: argparse.Namespace) -> int:
    """`rlcorr vectors verify PATH`."""
    for line in store.verify(args.path, args.root):
        print(line)
    return 0


def run_mutants(args: argparse.Namespace) -> int:
    """`rlcorr vectors mutants [NAME]`: the stored kill matrix, or one wrong implementation and its killers."""
    mutants = importlib.import_module("rlcorr_ref.mutants")
    if args.name is None:
        print(mutants.report())
        return 0
    matrix = importlib.import_module("rlcorr_ref.mutants.matrix")
    mutant = mutants.get(args.name)
    killers = matrix.by_mutant(matrix.stored()).get(mutant.name, [])
    print(f"{mutant.name} ({mutant.fault}): {mutant.says}")
    print(f"upstream: {mutant.threads}")
    print(f"rejected by {len(killers)} cases: {' '.join(killers)}")
    return 0


def run_diff(args: argparse.Namespace) -> int:
    """`rlcorr vectors diff A B`: status 1 when a published value changed or an id disappeared."""
    old, new = _checksums(args.a), _checksums(args.b)
    added = sorted(set(new) - set(old))
    removed = sorted(set(old) - set(new))
    changed = sorted(name for name in set(old) & set(new) if old[name][0] != new[name][0])
    withdrawn = sorted(
        name for name in set(old) & set(new) if new[name][1] == "withdrawn" and old[name][1] not in (None, "withdrawn")
    )
    for word, names in (("added", added), ("withdrawn", withdrawn), ("changed", changed), ("removed", removed)):
        for name in names:
            print(f"{word:9} {name}")
    print(f"{len(added)} added, {len(withdrawn)} withdrawn, {len(changed)} changed, {len(removed)} removed")
    return WRONG if changed or removed else 0


def _checksums(path: Path) -> dict[str, tuple[str, str | None]]:
    """id -> (sha256, status or None) from a set, a MANIFEST.json, a ledger or a family file."""
    if path.is_dir():
        inner = path / store.DATA if (path / store.DATA).is_dir() else path
        files = [file for file in sorted(inner.glob("*.json")) if file.name != "MANIFEST.json"]
        if not files:
            raise ContractError(f"{path}: no vector files (*.json) in this folder")
        return {name: value for file in files for name, value in _checksums(file).items()}
    cases = read(path)
    cases = cases.get("cases") if isinstance(cases, dict) else None
    if isinstance(cases, dict) and all(isinstance(sha, str) for sha in cases.values()):
        return {name: (sha, None) for name, sha in cases.items()}
    if isinstance(cases, list) and all(isinstance(c, dict) and {"id", "sha256", "status"} <= set(c) for c in cases):
        return {case["id"]: (case["sha256"], case["status"]) for case in cases}
    raise ContractError(f"{path}: expected a set, a MANIFEST.json, a ledger or a family file")


def run_lint(args: argparse.Namespace) -> int:
    """`rlcorr vectors lint`: status 1 when a rule is broken or a file is out of date."""
    lint = _tool("lint")
    if args.publish and not args.write:
        raise ContractError("--publish: goes with --write")
    if args.write:
        problems = lint.write(
            args.root, not args.keep_scales, args.publish, lambda name: print(f"  {name}", file=sys.stderr)
        )
    else:
        problems = lint.lint(args.root, not args.keep_scales)
    for line in problems:
        print(line)
    print(f"{len(problems)} problems" if problems else "no problems")
    return WRONG if problems else 0


def run_new(args: argparse.Namespace) -> int:
    """`rlcorr vectors new FAMILY SLUG CASE.json`."""
    name = _tool("edit").new_case(
        args.family, args.slug, args.title, args.description, args.flags, read(args.case), args.root
    )
    print(f"{name} appended to cases/{args.family}.py; now run: rlcorr vectors lint --write")
    return 0


def run_withdraw(args: argparse.Namespace) -> int:
    """`rlcorr vectors withdraw ID`."""
    _tool("edit").withdraw(args.id, args.reason, args.superseded_by, args.root)
    print(f"{args.id} withdrawn")
    return 0


def run_scaffold(args: argparse.Namespace) -> int:
    """`rlcorr vectors scaffold --for PROJECT [--out FILE]`; without --out the test file goes to standard output."""
    from .adopt import scaffold

    if args.out is None:
        sys.stdout.write(scaffold.text(args.project))
        return 0
    for path in scaffold.write(args.project, args.out):
        print(path)
    return 0
