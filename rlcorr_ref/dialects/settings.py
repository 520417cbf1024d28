"""Reading a framework's options: complete values from the given ones, with errors that list what is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ContractError, check_bool, check_number
from .records import Dialect, Option, refuse

# How the framework is run decides these for every dialect; they are not options of any framework.
CIRCUMSTANCES = (
    Option(
        "@temperature", 1.0, "temperature", "sampling temperature that the trainer divides its logits by", above=0.0
    ),
    Option(
        "@global_tokens",
        None,
        "aggregation",
        "the token count that the framework divides by when it is counted over all ranks and micro-batches",
        optional=True,
        above=0.0,
    ),
    Option(
        "@global_rows",
        None,
        "aggregation",
        "the row count that the framework divides by (empty rows included where it includes them)",
        optional=True,
        above=0.0,
    ),
)


def canonical(name: str) -> str:
    """An option name without command-line dashes: "--use-tis" is "use_tis"."""
    return name.lstrip("-").replace("-", "_") if name.startswith("--") else name


def complete(dialect: Dialect, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of the dialect, defaults filled in and values checked.

    Raises `ContractError` for an unknown option (listing the known ones) or value, `NotExpressible` for a value that the
    framework has and the contract has not.
    """
    if not isinstance(options, Mapping):
        raise ContractError(f"options: expected an object with the option names of {dialect.name}, got {options!r}")
    known = {option.name: option for option in (*dialect.options, *CIRCUMSTANCES)}
    given: dict[str, Any] = {}
    for raw, value in options.items():
        name = canonical(str(raw))
        if name not in known:
            raise ContractError(
                f"{dialect.name}: unknown option {raw!r}; known options of {dialect.version}: {', '.join(known)}"
            )
        if name in given and given[name] != value:
            raise ContractError(
                f"{dialect.name}.{name}: given twice with different values, {given[name]!r} and {value!r}"
            )
        given[name] = value
    return {name: check(dialect, option, given.get(name, option.default)) for name, option in known.items()}


def check(dialect: Dialect, option: Option, value: Any) -> Any:
    """The value of one option, or an error that names the option, what was expected and what came."""
    where = f"{dialect.name}.{option.name}"
    if value is None and (option.optional or option.default is None or None in option.choices):
        return None
    if option.kind == "number":
        if isinstance(value, str) and _reads_as_number(value):
            raise ContractError(
                f"{where}: expected a number, got the text {value!r}; YAML 1.1 reads 1e-4 as text: write 1.0e-4"
            )
        return check_number(where, value, optional=option.optional, above=option.above, at_least=option.at_least)
    if option.kind == "bool":
        return check_bool(where, value)
    if option.kind == "mapping" and not isinstance(value, Mapping):
        raise ContractError(f"{where}: expected an object, got {value!r}")
    if option.kind == "list" and not isinstance(value, (list, tuple)):
        raise ContractError(f"{where}: expected a list, got {value!r}")
    if option.kind == "choice":
        return choice(where, option, value)
    return value


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def choice(where: str, option: Option, value: Any) -> Any:
    """A value of `choices`; one of `refused` exists in the framework and is refused with the reason."""
    for known in option.choices:
        if type(known) is type(value) and known == value:
            return value
    for known, reason in option.refused.items():
        if type(known) is type(value) and known == value:
            refuse(f"{where}={value!r}: {reason}")
    listed = ", ".join("null" if known is None else repr(known) for known in (*option.choices, *option.refused))
    quoted = isinstance(value, bool) and bool({"on", "off", "yes", "no"} & set(option.choices))
    hint = "; YAML 1.1 reads a bare off as false: quote it" if quoted else ""
    raise ContractError(f"{where}: expected one of {listed}; got {value!r}{hint}")
