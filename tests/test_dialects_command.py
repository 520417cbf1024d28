"""`rlcorr dialects`: the comparison, one framework, and configuration fragments in a framework's own names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlcorr_ref import ContractError, cli, dialects
from rlcorr_ref.dialects import config, table

ROOT = Path(cli.__file__).parents[1]


def run(capsys, *args: str) -> str:
    assert cli.main(["dialects", *args]) == 0
    return capsys.readouterr().out


def fails(capsys, *args: str) -> str:
    assert cli.main(["dialects", *args]) == cli.MALFORMED
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err


def test_comparison_fits_150_columns_and_has_every_framework(capsys):
    out = run(capsys)
    assert max(map(len, out.splitlines())) <= 150
    first = [line.split()[0] for line in out.splitlines() if line and not line.startswith((" ", "-", "framework"))]
    assert [name for name in first if name in dialects.names()] == dialects.names()
    words = " ".join(out.split())
    for heading in ("truncation", "boundary", "log clamp", "default"):
        assert heading in words


def test_comparison_as_markdown_and_json(capsys):
    lines = run(capsys, "--markdown").splitlines()
    assert len(lines) == 2 + len(dialects.names())
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    rows = json.loads(run(capsys, "--json"))
    assert [row["framework"] for row in rows] == dialects.names()
    assert next(row for row in rows if row["framework"] == "ms-swift")["sequence"] == "geometric mean"
    assert rows == table.rows()


@pytest.mark.parametrize("name", dialects.names())
def test_page_of_one_framework(capsys, name):
    out = run(capsys, name)
    assert max(map(len, out.splitlines())) <= 150
    dialect = dialects.get(name)
    assert out.startswith(f"{dialect.title} {dialect.version}")
    words = " ".join(out.split())
    for option in dialect.options:
        assert f"{option.name} = {option.default}" in words
        assert all(str(value) in words for value in (*option.choices, *option.refused) if value is not None)
    assert all(" ".join(trap.split()) in words for trap in dialect.traps)
    record = json.loads(run(capsys, name, "--json"))
    assert len(record["settings"]) == len(dialect.entries)
    for setting in record["settings"]:
        assert setting["definition"] is not None or setting["reason"].startswith("not expressible: ")


def test_output_to_a_file_and_to_a_closed_pipe(tmp_path):
    code = "import sys; from rlcorr_ref.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "dialects"]
    with (tmp_path / "table.txt").open("w") as out:
        subprocess.run(command, stdout=out, check=True, cwd=ROOT)
    assert (tmp_path / "table.txt").read_text().count("\n") > len(dialects.names())
    assert "\x1b" not in (tmp_path / "table.txt").read_text()
    piped = subprocess.run(
        f"{sys.executable} -c '{code}' dialects --markdown | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert piped.stdout.startswith("| framework |") and "Traceback" not in piped.stderr


FRAGMENTS = {
    "verl.yaml": (
        """
verl:
  algorithm:
    rollout_correction: {rollout_is: token, rollout_is_threshold: "0.5_5.0"}
  actor_rollout_ref:
    actor: {loss_agg_mode: seq-mean-token-mean, clip_ratio_high: 0.28}
""",
        "verl",
        {
            "rollout_is": "token",
            "rollout_is_threshold": "0.5_5.0",
            "loss_agg_mode": "seq-mean-token-mean",
            "clip_ratio_high": 0.28,
        },
    ),
    "slime.json": (
        json.dumps({"slime": {"--use-tis": True, "--tis-clip": 2.0, "--calculate-per-token-loss": True}}),
        "slime",
        {"use_tis": True, "tis_clip": 2.0, "calculate_per_token_loss": True},
    ),
    "areal.yml": (
        "areal:\n  actor:\n    use_decoupled_loss: true\n    rejection_sampling: {level: sequence, upper: 1.01}\n",
        "areal",
        {"use_decoupled_loss": True, "rejection_sampling": {"level": "sequence", "upper": 1.01}},
    ),
    "skyrl.json": (
        json.dumps(
            {
                "skyrl": {
                    "trainer.algorithm.use_kl_loss": False,
                    "trainer": {"algorithm": {"off_policy_correction": {"tis_ratio_type": "sequence"}}},
                }
            }
        ),
        "skyrl",
        {"use_kl_loss": False, "tis_ratio_type": "sequence"},
    ),
    "roll.yaml": (
        """
roll:
  train_infer_correction:
    is_weight: {enabled: true, weight_type: geometric}
    filters:
      - {enabled: true, agg_type: sequence, ratio_low: 0.5, ratio_high: 2.0}
""",
        "roll",
        {
            "is_weight.enabled": True,
            "is_weight.weight_type": "geometric",
            "filters": [{"enabled": True, "agg_type": "sequence", "ratio_low": 0.5, "ratio_high": 2.0}],
        },
    ),
    "openrlhf.json": (
        json.dumps({"openrlhf": {"--algo.advantage.is_correction_level": "seq", "--actor.eps_clip": 0.1}}),
        "openrlhf",
        {"is_correction_level": "seq", "eps_clip": 0.1},
    ),
}


@pytest.mark.parametrize("name", FRAGMENTS)
def test_config_fragments(tmp_path, capsys, name):
    text, framework, options = FRAGMENTS[name]
    path = tmp_path / name
    path.write_text(text)
    meaning = dialects.translate(framework, options)
    first, *rest = run(capsys, "--config", str(path)).splitlines()
    assert json.loads(first) == meaning.definition
    assert f"formula: {meaning.formula}" in rest
    assert f"policies: {meaning.policies}" in rest
    assert all(f"trap: {trap}" in rest for trap in dialects.get(framework).traps)
    out = json.loads(run(capsys, "--config", str(path), "--json"))
    assert out["definition"] == meaning.definition and out["notes"] == list(meaning.notes)


def test_config_with_the_framework_on_the_command_line(tmp_path, capsys):
    path = tmp_path / "fragment.yaml"
    path.write_text("rollout_importance_sampling_mode: sequence_mask\nbeta: 0.0\n")
    first = run(capsys, "--config", str(path), "--framework", "ms-swift").splitlines()[0]
    assert json.loads(first)["gate"]["level"] == "geometric"
    assert "name the framework by one top-level key or by --framework" in fails(capsys, "--config", str(path))
    assert "unknown name 'swift'" in fails(capsys, "--config", str(path), "--framework", "swift")


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("a.json", '{"verl": {"trainer": {"total_epochs": 3}}}', "unknown option 'trainer.total_epochs' of verl"),
        ("a.json", '{"verl": {"a": {"rollout_is": "token"}, "b": {"rollout_is": null}}}', "rollout_is is set twice"),
        ("a.json", '{"verl": ', "not valid JSON, line 1"),
        ("a.json", "[1]", "expected an object at the top"),
        ("a.json", '{"verl": 3}', "expected an object with options"),
        ("a.yaml", "verl: [", "not valid YAML"),
        ("a.toml", "", "expected a file that ends in .json, .yaml or .yml"),
        ("a.yaml", "verl: {loss_mode: sapo}", "a sigmoid gate on the ratio is no band"),
        ("a.yaml", "verl: {rollout_is: tokens}", "expected one of null, 'token', 'sequence'; got 'tokens'"),
    ],
)
def test_malformed_fragments(tmp_path, capsys, name, text, words):
    path = tmp_path / name
    path.write_text(text)
    assert words in fails(capsys, "--config", str(path))


def test_missing_file_and_missing_yaml(tmp_path, capsys, monkeypatch):
    assert "cannot be read" in fails(capsys, "--config", str(tmp_path / "none.json"))
    path = tmp_path / "a.yaml"
    path.write_text("verl: {}\n")
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert "pip install pyyaml" in fails(capsys, "--config", str(path))
    with pytest.raises(ContractError, match="pip install pyyaml"):
        config.read_fragment(str(path))


@pytest.mark.parametrize(
    "args, words",
    [
        (("swift",), "unknown name 'swift'; known: verl"),
        (("verl", "--config", "x.json"), "NAME and --config"),
        (("--framework", "verl"), "--framework: it goes with --config"),
        (("verl", "--markdown"), "NAME and --markdown"),
        (("--config", "x.json", "--markdown"), "--config and --markdown"),
    ],
)
def test_argument_errors(capsys, args, words):
    assert words in fails(capsys, *args)


def test_config_matches_the_longest_option_name():
    known = {"enabled": "bool", "is_weight.enabled": "bool"}
    assert config.match("a.is_weight.enabled", known) == "is_weight.enabled"
    assert config.match("filters.enabled", known) == "enabled"
    assert config.match("a.b", known) is None
