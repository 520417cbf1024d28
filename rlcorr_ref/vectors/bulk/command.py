"""`rlcorr vectors bulk --out DIR [--check RESPONSE_DIR]`.

Exit status: 0 built, or every answer passes; 1 an answer is wrong; 2 a damaged tier or a malformed answer (one clear line).
"""

from __future__ import annotations

import argparse
import importlib

from ...errors import ContractError

WRONG = 1


def run_bulk(args: argparse.Namespace) -> int:
    """Build the tier into --out, or judge the answers of --check against the tier built there."""
    files = importlib.import_module("rlcorr_ref.vectors.bulk.files")
    if args.check is not None:
        judge = importlib.import_module("rlcorr_ref.vectors.bulk.judge")
        text, failed, _ = judge.check(args.out, args.check)
        print(text)
        return WRONG if failed else 0
    try:
        manifest = files.build(args.out)
    except ModuleNotFoundError as error:
        if error.name != "mpmath":
            raise
        raise ContractError("the bulk tier is computed at 50 digits: pip install 'rlcorr-ref[derive]'") from None
    sizes = {name: entry["bytes"] for name, entry in manifest["files"].items()}
    asked = sum(size for name, size in sizes.items() if ".inputs." in name)
    total, count = sum(sizes.values()), len(manifest["cases"])
    print(f"{count} cases in {args.out}: {total / 2**20:.1f} MiB, inputs {asked / 2**20:.1f} MiB")
    return 0
