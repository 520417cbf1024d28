"""The notebooks' tools: one prefix for every token, numbers in formulas, checked exercises, sliders and their fallback."""

from __future__ import annotations

import numpy as np
import pytest

from rlcorr_ref import ContractError, teaching, teaching_page
from rlcorr_ref.derive.symbolic import derivations

P = np.array([0.5, 0.3, 0.2])
Q = np.array([0.2, 0.3, 0.5])


def test_every_token_gives_one_gradient_per_sampled_token():
    plain = teaching.every_token(P, Q, {}, np.array([1.0, 2.0, -1.0])).grad_logits[:, 0]
    np.testing.assert_allclose(plain, -np.array([[1.0], [2.0], [-1.0]]) * (np.eye(3) - P), atol=1e-15)
    centered = teaching.every_token(P, Q, {"centering": {"tail": "exact"}}).grad_logits[:, 0]
    np.testing.assert_allclose(centered, -(np.eye(3) - Q), atol=1e-15)
    cold = teaching.every_token(P, Q, {"temperature": 0.5}).grad_logits[:, 0]
    np.testing.assert_allclose(cold, -(np.eye(3) - P) / 0.5, atol=1e-14)


def test_every_token_takes_a_head_and_an_anchor():
    head = teaching.every_token(P, Q, {"centering": {"tail": "rescaled"}}, head=[2, 1])
    np.testing.assert_allclose(head.grad_head_logp[0, 0], Q[[2, 1]] - (0.2 / 0.5) * P[[2, 1]], atol=1e-15)
    anchored = teaching.every_token(P, Q, {"weight": {"level": "token"}}, anchor=np.array([0.4, 0.4, 0.2]))
    np.testing.assert_allclose(anchored.weights[:, 0], np.array([0.4, 0.4, 0.2]) / Q, rtol=1e-14)
    with pytest.raises(ContractError, match=r"q: expected shape \[V\]"):
        teaching.every_token(P, Q[:2])


def test_derivation_shows_its_steps(monkeypatch):
    shown = []
    monkeypatch.setattr(teaching_page, "display", lambda kind, body: shown.append((kind, body)))
    record = teaching.derivation("eq-drift", vocabulary=2)
    assert record.anchor == "eq-drift"
    (kind, body), expected = shown[0], record.latex()
    assert kind == "Markdown" and record.statement in body
    assert all(label in body for label, _ in expected)
    assert body.count("simplifies to **0** (checked)") == sum(latex == "0" for _, latex in expected) > 3
    with pytest.raises(ContractError, match="eq-nothing.*eq-score"):
        teaching.derivation("eq-nothing")


def test_numbers_put_values_into_formulas():
    record = derivations()["eq-drift"](vocabulary=3)
    reward = np.array([1.0, 0.0, 2.0])
    found = teaching.numbers(record, record.result["drift"], p=P, q=Q, R=reward, T=2.0)
    np.testing.assert_allclose(found, (Q @ reward) * (Q - P) / 2.0, atol=1e-15)
    with pytest.raises(ContractError, match="C: not a symbol of eq-drift"):
        teaching.numbers(record, record.result["drift"], C=2.0)


def test_exercise_tells_right_from_wrong_and_from_unanswered(capsys):
    exercise = teaching.Exercise(lambda x, y: np.array([x, x * y]), ((1.0, 2.0), (3.0, 4.0)), "Multiply.")
    assert exercise.check(lambda x, y: [x, x * y])
    assert not exercise.check(None) and not exercise.check(lambda x, y: None)
    assert not exercise.check(lambda x, y: [x, x + y])
    assert not exercise.check(lambda x, y: x)
    assert not exercise.check(lambda x, y: [x, np.nan])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Right: ") and said[1] == said[2] == "Not answered yet."
    assert said[3] == "Not yet: off by up to 1. Multiply."
    assert said[4].startswith("Not yet: expected shape [2], got []") and "nan" in said[5]
    with pytest.raises(ContractError, match="expected a function of 2 arguments"):
        exercise.check(3.0)


def test_exercise_with_a_number_and_a_tolerance():
    exercise = teaching.Exercise(2.0, tolerance=0.1)
    assert exercise.check(2.05) and not exercise.check(2.2) and not exercise.check(None)


def draw(axes, scale, shift):
    axes.plot([0, 1], [shift, scale + shift])
    return f"sum {scale + shift:g}"


CONTROLS = {
    "scale": teaching.Dial("scale a", (1.0, 2.0, 5.0), 2.0, "nats"),
    "shift": teaching.Dial("shift", (0.0, 10.0), 10.0),
}


def test_dials_fall_back_to_small_multiples(monkeypatch):
    shown = []
    monkeypatch.setenv("RLCORR_WIDGETS", "0")
    monkeypatch.setattr(teaching_page, "display", lambda kind, *args, **kwargs: shown.append((kind, args, kwargs)))
    figures = []
    monkeypatch.setattr(teaching_page, "png", lambda drawn: figures.append(drawn) or b"png")
    teaching.dials(draw, CONTROLS, "Two lines.", ("weight.0002",))
    assert [kind for kind, _, _ in shown] == ["Image", "Markdown"]
    assert shown[0][2]["alt"] == "Two lines."
    assert [axes.get_title(loc="left") for axes in figures[0].axes] == [
        f"scale a = {value} nats\nsum {value + 10}" for value in (1, 2, 5)
    ]
    assert "shift = 10" in shown[1][1][0] and "Pinned by weight.0002." in shown[1][1][0]


def test_dials_with_a_front_end_move_the_number_and_the_picture(monkeypatch):
    displayed = []
    monkeypatch.setenv("RLCORR_WIDGETS", "1")
    monkeypatch.setattr("IPython.display.display", displayed.append)
    teaching.dials(draw, CONTROLS, "Two lines.", ("weight.0002",))
    scale, shift, number, image = displayed[0].children
    assert (scale.value, shift.value) == (2.0, 10.0)
    assert "sum 12" in number.value and "weight.0002" in number.value
    before = image.value
    assert 'alt="Two lines."' in before
    scale.value = 5.0
    assert (
        "sum 15" in number.value
        and image.value != before
        and image.value.startswith('<img src="data:image/png;base64,iVBOR')
    )


def test_dial_must_start_at_one_of_its_values():
    with pytest.raises(ContractError, match="scale: the start 3.0 is not one of its values"):
        teaching.dials(draw, {"scale": teaching.Dial("a", (1.0, 2.0), 3.0)}, "")


def test_figure_legend_lies_outside_the_axes():
    drawn, axes = teaching.figure(2, width=6.0)
    axes[0].plot([0, 1], label="a line")
    teaching.legend(drawn, axes[0])
    assert teaching_page.png(drawn)[1:4] == b"PNG"
    box = drawn.legends[0].get_window_extent()
    assert box.y1 <= min(a.get_tightbbox().y0 for a in axes) + 1


@pytest.mark.slow
def test_front_end_is_recognised_by_the_request_that_it_sends(monkeypatch):
    from jupyter_client.manager import start_new_kernel

    monkeypatch.delenv("RLCORR_WIDGETS", raising=False)
    assert not teaching.front_end()  # no kernel at all
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(teaching.__file__.rsplit("rlcorr_ref", 1)[0]))
    try:
        said = {}
        for metadata in ({}, {"cellId": "drift-dial", "trusted": True}):
            content = {"code": "from rlcorr_ref import teaching; print(teaching.front_end())", "silent": False}
            content |= {"store_history": False, "user_expressions": {}, "allow_stdin": False, "stop_on_error": True}
            request = client.session.msg("execute_request", content, metadata=metadata)
            client.shell_channel.send(request)
            while True:
                message = client.get_iopub_msg(timeout=60)
                if message["parent_header"].get("msg_id") != request["header"]["msg_id"]:
                    continue
                if message["msg_type"] == "stream":
                    said[len(metadata)] = message["content"]["text"].strip()
                if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                    break
        assert said == {0: "False", 2: "True"}
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
