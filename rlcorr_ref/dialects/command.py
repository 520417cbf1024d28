"""The sub-command `rlcorr dialects`: comparison table, one framework, or the meaning of a configuration fragment."""

from __future__ import annotations

import argparse
import json

from ..errors import ContractError
from . import get, names, translate
from .config import read_fragment, split
from .records import Translation
from .table import markdown, page, plain, record, rows


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Register `dialects` with the command's sub-parsers."""
    parser = commands.add_parser(
        "dialects",
        help="what each framework means by its option names",
        description="Compare frameworks, show one, or translate a configuration fragment to a definition.",
        epilog=f"Frameworks: {', '.join(names())}.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="show one framework: options, settings, traps")
    parser.add_argument("--config", metavar="FILE", help="a YAML or JSON fragment in the framework's own option names")
    parser.add_argument(
        "--framework", metavar="NAME", help="the framework of --config, where no top-level key names it"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="the comparison as Markdown")
    form.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """`rlcorr dialects [NAME] [--config FILE [--framework NAME]] [--markdown | --json]`."""
    if args.config is not None:
        if args.name is not None:
            raise ContractError("NAME and --config: give one; --framework names the framework of --config")
        if args.markdown:
            raise ContractError("--config and --markdown: the answer is text or JSON")
        dialect, options = split(read_fragment(args.config), args.framework)
        print(_answer(translate(dialect.name, options), dialect.traps, args.json))
        return 0
    if args.framework is not None:
        raise ContractError("--framework: it goes with --config; `rlcorr dialects NAME` shows a framework")
    if args.name is not None:
        if args.markdown:
            raise ContractError("NAME and --markdown: the page is text or JSON")
        dialect = get(args.name)
        print(json.dumps(record(dialect), indent=2, allow_nan=False) if args.json else page(dialect))
        return 0
    if args.json:
        print(json.dumps(rows(), indent=2))
    else:
        print(markdown() if args.markdown else plain())
    return 0


def _answer(meaning: Translation, traps: tuple[str, ...], as_json: bool) -> str:
    if as_json:
        out = {
            "framework": meaning.framework,
            "options": meaning.options,
            "definition": meaning.definition,
            "formula": meaning.formula,
            "policies": meaning.policies,
            "notes": list(meaning.notes),
            "traps": list(traps),
        }
        return json.dumps(out, indent=2, allow_nan=False)
    lines = [
        json.dumps(meaning.definition, allow_nan=False),
        "",
        f"formula: {meaning.formula}",
        f"policies: {meaning.policies}",
    ]
    lines += [f"note: {note}" for note in meaning.notes]
    lines += [f"trap: {trap}" for trap in traps]
    return "\n".join(lines)
