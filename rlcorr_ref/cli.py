"""The `rlcorr` command. Exit status: 0 done, 2 malformed input (one clear line on standard error)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import __version__, presets
from .conformance.command import add_parser as add_conformance
from .contract import Objective
from .dialects.command import add_parser as add_dialects
from .errors import ContractError
from .vectors.command import add_parser as add_vectors
from .wire import FUNCTIONS, evaluate_case

MALFORMED = 2


def build_parser() -> argparse.ArgumentParser:
    """The command-line interface, one sub-command per verb."""
    parser = argparse.ArgumentParser(
        prog="rlcorr",
        description="Reference gradients for rollout correction.",
        epilog="Exit status: 0 done, 2 malformed input.",
    )
    parser.add_argument("--version", action="version", version=f"rlcorr-ref {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    evaluate = commands.add_parser(
        "evaluate",
        help="evaluate one case and print the answer as JSON",
        description=f"Evaluate one case in the wire format. Functions: {', '.join(FUNCTIONS)}.",
    )
    evaluate.add_argument("case", metavar="CASE.json", help="a file, or - for standard input")
    evaluate.set_defaults(run=run_evaluate)
    named = commands.add_parser(
        "presets",
        help="the corrections of the field by name, as definitions",
        description="Print the table of presets, or one preset's definition as JSON.",
    )
    named.add_argument("name", metavar="NAME", nargs="?", help="one preset; without it the whole table")
    named.set_defaults(run=run_presets)
    add_dialects(commands)
    add_vectors(commands)
    add_conformance(commands)
    return parser


def read_json(path: str) -> Any:
    """Read strict JSON from a file or standard input; bare NaN and Infinity are refused, they are not JSON."""

    def refuse(token: str) -> None:
        raise ContractError(f'{path}: bare {token} is not JSON; write it as the string "{token}"')

    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        return json.loads(text, parse_constant=refuse)
    except OSError as error:
        raise ContractError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ContractError(f"{path}: not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ContractError(f"{path}: not valid JSON, line {error.lineno}: {error.msg}") from None


def run_evaluate(args: argparse.Namespace) -> int:
    """`rlcorr evaluate CASE.json`: print the answer as one line of strict JSON."""
    print(json.dumps(evaluate_case(read_json(args.case)), allow_nan=False))
    return 0


def run_presets(args: argparse.Namespace) -> int:
    """`rlcorr presets [NAME]`: the table, or one definition with every default spelled out."""
    if args.name is None:
        print(presets.table())
    else:
        definition = Objective.from_dict(presets.definition(args.name)).to_dict()
        print(json.dumps(definition, indent=2, allow_nan=False))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    args = build_parser().parse_args(argv)
    try:
        return args.run(args)
    except ContractError as error:
        print(f"rlcorr: {error}", file=sys.stderr)
        return MALFORMED
    except BrokenPipeError:  # the reader went away, as with `| head`
        sys.stderr.close()
        return 0
