"""`rlcorr conformance [NAME ...] [--report DIR] [--adapter FILE] [--finding ID]`.

Exit status: 0 done; 1 the user's own functions (--adapter) depart from a vector; 2 malformed input.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import ContractError
from ..vectors import store
from . import report
from .findings.records import one
from .protocol import BUILT_IN, Adapter, read_adapter, read_file
from .runner import Outcome, run

DEPARTS = 1
SHOWN = 12


def add_parser(commands: Any) -> None:
    """Add the `conformance` sub-command to the command line."""
    parser = commands.add_parser(
        "conformance",
        help="run installed packages, or your own functions, against the vectors",
        description="Judge installed packages against the vectors. An absent package, or a version that its adapter "
        "was not verified against, is not run. Exit status: 0 done; 1 your own functions (--adapter) depart; "
        "2 malformed input.",
    )
    known = ", ".join(name.replace("_", "-") for name in BUILT_IN)
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"packages: {known}; none: all of them")
    parser.add_argument(
        "--report", metavar="DIR", type=Path, help="write report.json, matrix.md, matrix.html and findings/"
    )
    parser.add_argument(
        "--adapter", metavar="FILE", type=Path, help="a Python file with your own functions, about 20 lines"
    )
    parser.add_argument("--family", metavar="NAME", help="only this family or id prefix, such as weight or grad.00")
    parser.add_argument("--finding", metavar="ID", help="show one finding of a package: input, returned, right")
    parser.set_defaults(run=main)


def main(args: argparse.Namespace) -> int:
    """`rlcorr conformance`."""
    if args.finding is not None:
        return _finding(args)
    names = args.names or ([] if args.adapter else list(BUILT_IN))
    adapters = [read_adapter(name) for name in names]
    if args.adapter is not None:
        adapters.append(read_file(args.adapter))
    cases = store.load(args.family)
    runs = [(adapter, run(adapter, cases)) for adapter in adapters]
    document = report.build(runs)
    for adapter, outcomes in runs:
        print("\n".join(lines(adapter, outcomes, document)))
    if args.report is not None:
        for path in report.write(args.report, document)[:3]:
            print(f"written: {path}")
    own = [o for adapter, outcomes in runs if adapter.module.__name__.startswith("rlcorr_adapter_") for o in outcomes]
    return DEPARTS if any(o.state == "departs" for o in own) else 0


def _finding(args: argparse.Namespace) -> int:
    if len(args.names) != 1:
        raise ContractError("--finding: name one package, as in `rlcorr conformance verl --finding ID`")
    adapter = read_adapter(args.names[0])
    if adapter.status != "ready":
        raise ContractError(f"{adapter.name}: not run: {adapter.reason}")
    finding, seen = one(adapter, args.finding)
    print(f"{adapter.title} {adapter.version}: {finding.title}")
    for key, value in (
        ("documented or named", finding.documents),
        ("input", finding.input),
        ("returned", seen.returned),
        ("right", seen.right),
        ("observed", "yes" if seen.present else "no: it agrees now"),
    ):
        print(f"  {key}: {value}")
    return 0


def lines(adapter: Adapter, outcomes: list[Outcome], document: dict[str, Any]) -> list[str]:
    """The run of one adapter in a few lines; for a departure the known fault with the same numbers, if there is one."""
    if adapter.status != "ready":
        return [f"{adapter.title}: not run: {adapter.reason}"]
    counts = {state: sum(o.state == state for o in outcomes) for state in report.STATES}
    text = ", ".join(f"{n} {state}" for state, n in counts.items() if n)
    out = [f"{adapter.title} {adapter.version}".strip() + f" ({adapter.dtype}): {text}"]
    wrong = [o for o in outcomes if o.state == "departs"]
    for o in wrong[:SHOWN]:
        reason = o.why if o.why.startswith("raised") else "; ".join(o.misses[:1])
        out.append(f"  departs {o.id}: {reason}")
        if o.faults:
            out.append(f"    same numbers as the known fault {', '.join(o.faults)}")
        else:
            out += [f"    {kind}" for kind in classes(o.id)]
    if len(wrong) > SHOWN:
        out.append(f"  and {len(wrong) - SHOWN} more")
    named: dict[str, int] = {}
    for o in wrong:
        for fault in o.faults:
            named[fault] = named.get(fault, 0) + 1
    if named:
        ranked = sorted(named.items(), key=lambda item: (-item[1], item[0]))
        out.append("  faults by number of cases: " + ", ".join(f"{fault} {n}" for fault, n in ranked[:5]))
    out += [
        f"  finding {f['id']}: {f['title']}"
        for f in document["findings"]
        if f["package"] == adapter.name and f["present"]
    ]
    return out


def classes(case_id: str) -> list[str]:
    """The classes of fault that a case exposes, in words."""
    case = store.get(case_id)
    family = case_id.rpartition(".")[0]
    return [
        f"{store.note_of(flag, family)['bug_type']}: {store.note_of(flag, family)['description']}"
        for flag in case["flags"]
    ]
