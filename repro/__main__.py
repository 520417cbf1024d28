"""The laboratory's command line: ``python -m repro COMMAND``, see ``--help``."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from repro import manifest
from repro.cells.executors import Interrupted, run_cells
from repro.cells.plan import Plan, UsageError
from repro.cells.progress import duration
from repro.cells.store import Store
from repro.errors import LaboratoryError
from repro.manifest import Row
from repro.measure import command as measure_command
from repro.provenance import ROOT, command_line, portable, read_figure

EPILOG = """exit status:
  0  done; for verify: everything is intact and no comparison of the claim fails
  1  a cell failed, the run was interrupted, a stored file is damaged, or the claim fails
  2  the request cannot be carried out: unknown row, tier or arm, a store of other settings, missing data or packages

stores live in repro/runs/<row>/<tier>/ unless --store says otherwise; results of a whole tier go to the row's folder in
paper_figures/, those of a run with --steps or of a part of the cells to the folder 'figure' in its store."""
OK, FAILED, REFUSED = 0, 1, 2


def command_list(arguments: argparse.Namespace) -> int:
    """Print every row with its figure, tiers and claim."""
    for row in manifest.load(arguments.manifest).values():
        print(f"{row.id}: {row.title} ({row.figure})")
        print(f"  claim: {row.claim}")
        print(f"  arms: {', '.join(row.arms)}")
        for name, tier in row.tiers.items():
            cells = len(row.cells(name))
            print(
                f"  tier {name}: {cells} cells x {tier.steps} steps, about {duration(60 * tier.minutes)} on {tier.needs}"
            )
        print(f"  data: {_shipped(row)}")
    return OK


def _shipped(row: Row) -> str:
    """What of the row lies in the checkout, in words."""
    record = ROOT / row.output / "meta.json"
    if not record.is_file():
        return "not run"
    meta = json.loads(record.read_text(encoding="utf-8"))
    return f"{row.output}, tier {meta['tier']}, {meta['finished'][:10]}"


def command_plan(arguments: argparse.Namespace) -> int:
    """Print the cells and what is left of them; run nothing and write nothing."""
    plan = Plan(arguments)
    exists = plan.root.exists()
    store = Store.open(plan.root, plan.header(), create=False) if exists else Store(plan.root, plan.header())
    print(
        f"{plan.row.id}, tier {plan.tier_name}, store {portable(str(plan.root))}{'' if exists else ' (not there yet)'}"
    )
    left = 0
    for cell in plan.cells:
        status = store.status(cell)
        left += status.state != "done"
        print(f"  {store.key(cell):<40} {status.state:<8} {status.detail}".rstrip())
    tier_steps = len(plan.row.cells(plan.tier_name)) * plan.tier.steps
    minutes = plan.tier.minutes * left * plan.cells[0].config["steps"] / tier_steps
    print(f"{left} of {len(plan.cells)} cells to do, about {duration(60 * minutes)} on {plan.tier.needs}")
    return OK


def _take_finished(plan: Plan, store: Store, rows: dict[str, Row]) -> None:
    """Cells that another store of the checkout or some row's shipped data hold need not be computed again."""
    from repro.cells.restore import adopt, restore  # pandas is needed only where there is something to take

    for row, count in adopt(store, plan.cells, sorted((ROOT / "repro" / "runs").glob("*/*"))).items():
        print(f"{count} finished cells taken from the runs of {row}")
    for name, count in restore(store, plan.cells, [ROOT / row.output for row in rows.values()]).items():
        print(f"{count} finished cells taken from paper_figures/{name}")


def command_run(arguments: argparse.Namespace) -> int:
    """Compute what is missing, then collect and draw."""
    plan = Plan(arguments)
    store = Store.open(plan.root, plan.header(), fresh=arguments.fresh, create=arguments.command == "run")
    if arguments.take_shipped:
        _take_finished(plan, store, manifest.load(arguments.manifest))
    outcomes = run_cells(
        plan.cells, store, workers=arguments.workers, runner=plan.runner, command=arguments.command_line
    )
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        print(f"{outcome.cell.name}: {outcome.error}", file=sys.stderr)
    if failed:
        names = ", ".join(outcome.cell.name for outcome in failed)
        print(f"{len(failed)} of {len(outcomes)} cells failed ({names}); nothing was drawn", file=sys.stderr)
        return FAILED
    if arguments.no_draw:
        return OK
    from repro.cells import publication  # pandas is needed from here on

    folder = arguments.out or (plan.published() if plan.whole else plan.root / "figure")
    publication.collect(store, plan.cells, folder, arguments.command_line)
    return _draw(plan.row, folder)


def command_publish(arguments: argparse.Namespace) -> int:
    """Collect what is finished of a tier, all or a part of it, and draw."""
    plan = Plan(arguments)
    store = Store.open(plan.root, plan.header(), create=False)
    from repro.cells import publication

    folder = arguments.out or plan.published()
    publication.collect(store, plan.cells, folder, arguments.command_line)
    return _draw(plan.row, folder)


def command_verify(arguments: argparse.Namespace) -> int:
    """Check the store and the shipped data of a row, whichever exist, and compute the claim from them."""
    plan = Plan(arguments)
    from repro.cells import publication
    from repro.statistics import claims

    found, bad = False, False
    if plan.root.exists():
        found = True
        store = Store.open(plan.root, plan.header(), create=False)
        statuses = [store.status(cell) for cell in plan.cells]
        for cell, status in zip(plan.cells, statuses, strict=True):
            print(f"store: {cell.name}: {status.state} {status.detail}".rstrip())
        if all(status.state == "done" for status in statuses):
            bad |= _print_verdicts("store", claims.evaluate(plan.row.check, publication.table(store, plan.cells)))
        else:
            bad = True
    folder = arguments.out or plan.published()
    if (folder / publication.DATA).exists():
        found = True
        data, meta = publication.load(folder / publication.DATA)
        print(f"data: {len(data)} rows, hash as recorded, commit {meta['commit']}, dirty {meta['dirty']}")
        bad |= _print_verdicts("data", claims.evaluate(plan.row.check, data))
        for path in sorted([*folder.glob("*.png"), *folder.glob("*.svg")]):
            same = read_figure(path).get("data_sha256") == meta["data_sha256"]
            print(f"figure: {path.name}: {'drawn from these data' if same else 'drawn from OTHER data; redraw it'}")
            bad |= not same
    if not found:
        raise UsageError(f"row {plan.row.id}: neither a store at {portable(str(plan.root))} nor shipped data to verify")
    return FAILED if bad else OK


def _print_verdicts(source: str, verdicts: list[Any]) -> bool:
    from repro.statistics import claims

    for verdict in verdicts:
        print(f"{source}: {verdict}")
    state = claims.overall(verdicts)
    print(f"{source}: claim {state}")
    return state == claims.FAILS


def command_draw(arguments: argparse.Namespace) -> int:
    """Redraw from shipped data."""
    rows = manifest.load(arguments.manifest)
    if arguments.all == (arguments.row is not None):
        raise UsageError("draw: name one row or figure, or give --all")
    from repro.cells import publication
    from repro.figures.others import drawers

    others = drawers()
    if arguments.row in others:
        return _draw_other(arguments.row, others[arguments.row], arguments.out)
    if arguments.row is not None and arguments.row not in rows:
        raise UsageError(f"draw {arguments.row!r}: known rows and figures: {', '.join([*rows, *others])}")
    chosen = list(rows.values()) if arguments.all else [manifest.find(rows, arguments.row)]
    status = OK
    for row in chosen:
        folder = ROOT / row.output
        if arguments.all and not (folder / publication.DATA).exists():
            print(f"{row.id}: not run, nothing to draw")
            continue
        if arguments.out:
            publication.load(folder / publication.DATA)
            target = arguments.out / folder.name if arguments.all else arguments.out
            target.mkdir(parents=True, exist_ok=True)
            for name in (publication.DATA, publication.META):
                shutil.copyfile(folder / name, target / name)
            folder = target
        status = max(status, _draw(row, folder))
    if arguments.all and arguments.manifest == manifest.MANIFEST:
        for name, drawer in others.items():
            _draw_other(name, drawer, arguments.out / name if arguments.out else None)
    return status


def _draw_other(name: str, drawer: Callable[[Path | None], Path], out: Path | None) -> int:
    notebook = drawer(out)
    print(f"{name}: drawn, see {portable(str(notebook.parent))}")
    return OK


def _draw(row: Row, folder: Path) -> int:
    from repro.cells import publication

    notebook = publication.draw(row, folder)
    print(f"{row.id}: drawn, see {portable(str(notebook.parent))}")
    return OK


def command_figure_info(arguments: argparse.Namespace) -> int:
    """Print the record inside a PNG or SVG file as JSON."""
    print(json.dumps(read_figure(arguments.file), indent=1, sort_keys=True))
    return OK


def parser() -> argparse.ArgumentParser:
    """The argument parser of all commands."""
    top = argparse.ArgumentParser(
        prog="python -m repro", description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(dest="command", required=True)

    def add(name: str, function: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name, help=text, description=text, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        command.set_defaults(function=function)
        if name != "figure-info":
            command.add_argument("--manifest", type=Path, default=manifest.MANIFEST, help="another manifest.toml")
        return command

    add("list", command_list, "list the rows, their claims and tiers")
    for name, function, text in (
        ("plan", command_plan, "print the cells of a row and what is left to do; run nothing"),
        ("run", command_run, "compute the missing cells of a row, then draw its figure"),
        ("resume", command_run, "as run, but the store must exist"),
        ("publish", command_publish, "collect the finished cells of a row, even if some are missing, and draw"),
        ("verify", command_verify, "check stored files and compute the claim from them"),
    ):
        command = add(name, function, text)
        command.add_argument("row", help="id of a row, see `list`")
        command.add_argument("--tier", default="tiny", help="how much of the row to run (default: tiny)")
        command.add_argument("--store", type=Path, help="folder of the store")
        command.add_argument("--steps", type=int, help="optimizer steps instead of the tier's")
        command.add_argument("--seeds", type=int, nargs="+", help="seeds instead of the tier's")
        command.add_argument("--arms", nargs="+", help="some of the row's arms")
        command.add_argument("--variants", nargs="+", help="some of the row's variants")
        command.add_argument("--checkpoints", nargs="+", help="some of the tier's warm starts, by name")
        command.add_argument("--runner", help="trainer entry point, module:function (default: the tier's)")
        command.add_argument("--out", type=Path, help="folder of data, figure and notebook")
        if function is command_run:
            command.add_argument("--workers", type=int, help="worker processes (default: one per core)")
            command.add_argument("--no-draw", action="store_true", help="compute only")
            taken = "take finished cells from other rows' runs and from shipped data"
            command.add_argument("--take-shipped", action="store_true", help=taken)
            command.add_argument("--fresh", action="store_true", help="move an existing store aside, then start anew")
    command = add("draw", command_draw, "redraw figures from shipped data")
    command.add_argument("row", nargs="?", help="id of a row")
    command.add_argument("--all", action="store_true", help="every row")
    command.add_argument("--out", type=Path, help="draw there, not in paper_figures/ (--all: a folder per row)")
    measure_command.add_parser(commands)
    command = add("figure-info", command_figure_info, "print the record inside a PNG or SVG file")
    command.add_argument("file", type=Path)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; every foreseen error is one message on stderr."""
    argv = sys.argv[1:] if argv is None else list(argv)
    arguments = parser().parse_args(argv)
    arguments.command_line = command_line(argv)
    try:
        return arguments.function(arguments)
    except Interrupted as interruption:
        print(f"interrupted: {interruption}; `python -m repro resume` with the same options continues", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # the reader of our output (head, less) has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return FAILED
    except (LaboratoryError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    except ImportError as error:
        print(f"error: {error}; pip install 'rlcorr-ref[repro]' into this Python", file=sys.stderr)
        return REFUSED


if __name__ == "__main__":
    sys.exit(main())
