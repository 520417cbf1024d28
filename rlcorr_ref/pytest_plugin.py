"""pytest plugin: oracle vectors as parametrised tests. Loaded by pytest wherever rlcorr-ref is installed, inert until used.

    from rlcorr_ref import pytest_plugin as rlcorr

    @rlcorr.cases("grad", level="logp", dtype="float32", features={"weight", "weight.outside:clip"})
    def test_tis(rlcorr_case):
        rlcorr_case.check(my_loss_gradient(**rlcorr_case.arguments()))

`rlcorr_case.arguments()` holds the inputs as arrays (NumPy, or torch where dtype is a torch dtype or arrays="torch") and the
complete `definition` (or `parameters`); `check` takes {output: array}, or the array alone where one output is required. Options:
--rlcorr-profile, --rlcorr-xfails, --rlcorr-set, --rlcorr-report. Nothing but the standard library is imported before a test
asks for a case.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

MARKER = "rlcorr"
FIXTURE = "rlcorr_case"
OPTIONS = {
    "profile": ("FILE", "a dialect fragment or a profile (JSON or YAML): supported features, definitions, options"),
    "xfails": ("FILE", "expected failures, strict: one id or prefix per line, `# reason`"),
    "set": ("VERSION", "fail unless this version of the vectors is installed, such as 2026.1"),
    "report": ("FILE.json", "write what passed, failed, was near its tolerance or had no vector"),
}


def cases(*families: str, **options: Any) -> pytest.MarkDecorator:
    """Parametrise a test over the cases of families or ids ("grad", "grad.00", "grad.0012"; none: the whole set).

    level: "logits", "logp" (logprobs), "weights" or "trace", default the first that a case offers. dtype: "float32" (default),
    "float64", "bfloat16" or torch dtypes. features: supported ones (patterns such as "weight.*"); cases that need another are
    left out and reported. needs: features that a case must have. flag: one class of fault. arrays: "numpy", "torch", "lists".
    profile (the content of a profile) and xfails ({id or prefix: reason}) do for this test what the options do for the run.
    """
    return getattr(pytest.mark, MARKER)(*families, **options)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the --rlcorr-* options."""
    group = parser.getgroup("rlcorr", "oracle vectors for rollout correction")
    for name, (metavar, text) in OPTIONS.items():
        group.addoption(f"--rlcorr-{name}", metavar=metavar, default=None, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; check the options if any was given (one clear line and exit status 4 otherwise)."""
    config.addinivalue_line(
        "markers", f"{MARKER}(*families, **options): run over oracle vectors, see rlcorr_ref.pytest_plugin"
    )
    session = Session(config)
    config.pluginmanager.register(session, "rlcorr-session")
    if any(config.getoption(f"rlcorr_{name}") is not None for name in OPTIONS):
        from .errors import ContractError

        try:
            session.prepare()
        except ContractError as error:
            raise pytest.UsageError(f"rlcorr: {error}") from None


class Session:
    """State of one test run: profile and expected failures, and the runs seen so far."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.ready = False
        self.profile: Any = None
        self.xfails: dict[str, str] = {}
        self.entries: dict[str, dict[str, Any]] = {}

    def prepare(self) -> None:
        """Read the set pin, profile and expected failures, once. Raises `ContractError`."""
        if self.ready:
            return
        from .errors import ContractError
        from .vectors import store
        from .vectors.adopt.profile import read_profile
        from .vectors.adopt.xfails import read_xfails

        option = self.config.getoption
        wanted, found = option("rlcorr_set"), store.manifest()["set_version"]
        if wanted not in (None, found):
            raise ContractError(
                f"--rlcorr-set: the tests are pinned to set {wanted}, installed is {found}; install the rlcorr-ref "
                "release that carries it, or change the pin"
            )
        if option("rlcorr_profile") is not None:
            self.profile = read_profile(option("rlcorr_profile"))
        if option("rlcorr_xfails") is not None:
            self.xfails = read_xfails(option("rlcorr_xfails"))
        report = option("rlcorr_report")
        if report is not None and not os.access(os.path.dirname(os.path.abspath(report)), os.W_OK):
            raise ContractError(f"--rlcorr-report {report}: its folder does not exist or cannot be written to")
        self.ready = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what the fixture left in the test's user properties; the same in one process and with workers."""
        found = next((value for name, value in report.user_properties if name == MARKER), None)
        if found is None:
            return
        entry = self.entries.setdefault(report.nodeid, {**found, "test": report.nodeid, "pytest": "passed"})
        entry.update(found)
        if report.failed:
            strict = report.when == "call" and str(report.longrepr).startswith("[XPASS(strict)]")
            entry["pytest"] = "xpassed" if strict else "failed"
        elif report.skipped:
            entry["pytest"] = "xfailed" if hasattr(report, "wasxfail") else "skipped"
            entry["reason"] = getattr(report, "wasxfail", "")

    def report(self) -> dict[str, Any]:
        """The report so far."""
        from .vectors.adopt.report import build

        self.prepare()
        return build(list(self.entries.values()), self.profile, self.xfails)

    def pytest_sessionfinish(self) -> None:
        """Write the report file; workers of a distributed run leave that to the controller."""
        path = self.config.getoption("rlcorr_report")
        if path is not None and not hasattr(self.config, "workerinput"):
            from .vectors.adopt.report import write

            write(path, self.report())

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """A few lines at the end of a run that used vectors."""
        if not self.entries:
            return
        from .vectors.adopt.report import lines

        terminalreporter.section("rlcorr vectors")
        for line in lines(self.report()):
            terminalreporter.line(line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise tests that carry the marker."""
    marks = list(metafunc.definition.iter_markers(MARKER))
    if FIXTURE not in metafunc.fixturenames:
        if marks:
            pytest.fail(
                f"rlcorr: {metafunc.definition.name} has @rlcorr.cases but no argument {FIXTURE}", pytrace=False
            )
        return
    if not marks:
        pytest.fail(
            f'rlcorr: {metafunc.definition.name} takes {FIXTURE}: add @rlcorr.cases("grad", ...)', pytrace=False
        )
    from .errors import ContractError
    from .vectors.adopt.selection import read_request, select
    from .vectors.adopt.xfails import reason_for

    session = metafunc.config.pluginmanager.get_plugin("rlcorr-session")
    parameters, names = [], set()
    for mark in marks:
        try:
            session.prepare()
            request = read_request(mark.args, mark.kwargs)
            found = select(request, session.profile)
            if not found.runs:
                why = (
                    "; ".join(f"{len(ids)} {reason}" for reason, ids in found.left_out.items())
                    or "no case has what it needs"
                )
                raise ContractError(f"{metafunc.definition.name}: no case to run ({why})")
        except ContractError as error:
            pytest.fail(f"rlcorr: {error}", pytrace=False)
        asked = json.dumps([mark.args, {k: _plain(v) for k, v in mark.kwargs.items()}], sort_keys=True)
        for run in found.runs:
            if run.name in names:
                continue
            names.add(run.name)
            reason = reason_for(run.case["id"], {**session.xfails, **request.xfails})
            expected = [] if reason is None else [pytest.mark.xfail(strict=True, reason=reason)]
            parameters.append(pytest.param((run, asked), id=run.name, marks=expected))
    metafunc.parametrize(FIXTURE, parameters, indirect=True)


def _plain(value: Any) -> Any:
    """An argument of `cases` as JSON, for the report: torch dtypes by name, sets as sorted lists."""
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (str, bool, int, float)) else str(value)


@pytest.fixture
def rlcorr_case(request: pytest.FixtureRequest) -> Any:
    """One oracle vector: `arguments()`, `check(answer)`; a test that never calls `check` is an error."""
    from .vectors.adopt.verdict import VectorCase

    run, asked = request.param
    session = request.config.pluginmanager.get_plugin("rlcorr-session")
    case = VectorCase(run, pytest.fail)
    case.properties["request"] = asked
    request.node.user_properties.append((MARKER, case.properties))
    yield case
    ended = session.entries.get(request.node.nodeid, {}).get("pytest")
    if case.verdict is None and ended == "passed":
        pytest.fail(f"rlcorr: {request.node.name} never called rlcorr_case.check(...)", pytrace=False)
