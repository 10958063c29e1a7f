"""Habits of the field: names in any case, callbacks that may stop a run, and what objects say of themselves."""

import numpy as np
import pytest

import qcrl
from qcrl import UserError
from qcrl.evaluation import verdict as verdicts

pytest_plugins = ["fakes"]
CONSTRAINT = qcrl.Outage(15, 0.1)


@pytest.fixture
def train(fake, tmp_path):
    return lambda **options: qcrl.train(
        "FAKE", "TwoPathEnv-v0", CONSTRAINT, 60, 2, out=tmp_path / "run", progress=False, **options
    )


def test_a_callback_sees_every_row(train):
    rows = []
    run = train(callback=rows.append)
    assert [row["iteration"] for row in rows] == [1, 1, 2, 2, 3, 3]
    assert [row["seed"] for row in rows] == [0, 1] * 3
    np.testing.assert_allclose([row["some_loss"] for row in rows], run.metrics["some_loss"], rtol=1e-6)
    assert {*run.metrics} == {*rows[0]}


def test_a_callback_may_stop_a_run_which_can_go_on(train):
    run = train(callback=lambda row: row["iteration"] == 2 and row["seed"] == 1, checkpoint_interval=0)
    assert run.metrics["iteration"].max() == 2
    assert run.policy().info["iteration"] == 2
    assert train(resume=True).metrics["iteration"].tolist() == [1, 1, 2, 2, 3, 3]


def test_what_a_callback_raises_is_raised_after_saving(train, tmp_path):
    class Pruned(Exception):
        pass

    def prune(row):
        raise Pruned("enough")

    with pytest.raises(Pruned, match="enough"):
        train(callback=prune)
    assert qcrl.load(tmp_path / "run").policy().info["iteration"] >= 1


def test_a_run_says_what_it_is(train, tmp_path):
    run = train()
    assert repr(run) == f"<Run {tmp_path / 'run'}: Fake fast on TwoPathEnv-v0, 2 lanes, 60 steps>"
    (tmp_path / "run" / "config.json").write_text("{}")
    assert repr(type(run)(run.path)).endswith(": not readable>")


def test_metrics_as_a_table_of_pandas(train, monkeypatch):
    run = train()
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(UserError, match="pandas is not installed"):
        run.frame  # noqa: B018


def test_a_verdict_that_learned_nothing_says_so(train, monkeypatch):
    run = train()
    words = "no better than the first episodes of the training, 0.50"
    episodes = {**run.episodes, "return": np.full(len(run.episodes["return"]), 0.5)}
    monkeypatch.setattr(type(run), "episodes", episodes)
    for value, told in ((0.4, True), (0.6, False)):
        found = (np.full((2, 20), value), {"cost": np.zeros((2, 20))}, "fresh episodes")
        monkeypatch.setattr(verdicts, "_episodes", lambda *_, found=found: found)
        assert (words in qcrl.verdict(run.path)) == told
