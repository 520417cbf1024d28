"""The table of what each tail model leaves: measured against the closed form and against what must be exact."""

from __future__ import annotations

import numpy as np

from rlcorr_ref.population.tail_bias import COLUMNS, main, residual, table, to_csv


def test_table_of_tail_bias(tmp_path, capsys):
    rows = table(widths=(4, 16))
    assert len(rows) == 3 * 2 * 3 * 5 and tuple(rows[0]) == COLUMNS
    bias = {(r["tail_shape"], r["tail_model"], r["rule"], r["k"]): r["bias_l1"] for r in rows}
    for row in rows:
        if row["tail_model"] == "rescaled":
            assert row["bias_l1"] <= row["bound_l1"] + 1e-14
        if row["tail_model"] == "exact":
            assert row["bias_l1"] < 1e-14
    for rule in ("none", "tis", "mis"):  # each model is exact where the tail has its shape
        for k in (4, 16):
            assert bias["proportional", "rescaled", rule, k] < 1e-14 < bias["proportional", "uniform", rule, k]
            assert bias["flat", "uniform", rule, k] < 1e-14 < bias["flat", "rescaled", rule, k]
    for shape in ("proportional", "flat", "reversed"):
        for model in ("dropped", "renormalised"):
            assert bias[shape, model, "none", 4] > 2 * bias[shape, model, "none", 16] > 1e-3
    # a reversed tail is the worst case of the rescaled model; a cap tames it
    assert bias["reversed", "rescaled", "none", 4] > bias["flat", "rescaled", "none", 4]
    assert bias["reversed", "rescaled", "tis", 4] < bias["reversed", "rescaled", "none", 4]
    lines = to_csv(rows).splitlines()
    assert lines[0] == ",".join(COLUMNS) and len(lines) == len(rows) + 1
    assert main([str(tmp_path / "bias.csv")]) == 0 and main([]) == 0
    assert (tmp_path / "bias.csv").read_text() == capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["bias.csv"]
    assert main(["a", "b"]) == 2


def test_residual_of_the_table_is_the_written_formula():
    rng = np.random.default_rng(4)
    p, q = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    order = np.argsort(-q)
    p, q = p[order], q[order]
    for rule, cap in ((None, None), ("tis", 2.0)):
        m = q if rule is None else np.minimum(p, cap * q)
        q_hat = np.where(np.arange(6) < 3, q, q[3:].sum() * p / p[3:].sum())
        m_hat = q_hat if rule is None else np.minimum(p, cap * q_hat)
        expected = -((m - m_hat) - (m - m_hat).sum() * p) / 0.7
        np.testing.assert_allclose(residual(p, q, 3, "rescaled", rule, temperature=0.7), expected, atol=1e-14)
