"""Habits of the field: names in any case, callbacks that may stop a run, and what objects say of themselves."""

import inspect

import gymnasium
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


def test_metrics_are_a_table_of_pandas_where_it_is_installed(train):
    pandas = pytest.importorskip("pandas")
    run = train()
    assert isinstance(run.frame, pandas.DataFrame)
    assert run.frame.groupby("seed")["env_steps"].max().tolist() == run.metrics["env_steps"][-2:].tolist()


def test_help_shows_the_arguments_of_training():
    parameters = inspect.signature(qcrl.train).parameters
    assert {"promise", "confidence", "cost", "workers", "on_error", "callback", "resume"} <= parameters.keys()
    assert "options" not in parameters
    assert list(parameters)[-1] == "overrides"
    for name in parameters:
        if name not in ("first_seed", "progress"):
            assert f"{name}:" in qcrl.train.__doc__ or f"{name}," in qcrl.train.__doc__, name


def test_a_wrong_name_suggests_the_nearest(tmp_path):
    with pytest.raises(UserError, match="did you mean learning_rate"):
        qcrl.train("QCPO", "TwoPathEnv-v0", CONSTRAINT, 60, out=tmp_path / "run", learning_rat=1.0)


@pytest.mark.parametrize(
    ("value", "first_cost", "words"),
    [
        (0.4, 0.0, "no better than random actions, 0.50 in the first episodes of the training, which kept the "),
        (
            0.4,
            99.0,
            "no less, 0.50 in the first episodes of the training, but they broke the constraint: 1 where 0.1 is",
        ),
        (0.6, 0.0, ""),
    ],
)
def test_a_verdict_says_where_random_actions_earn_as_much(value, first_cost, words, train, monkeypatch):
    run = train()
    count = len(run.episodes["return"])
    episodes = {**run.episodes, "return": np.full(count, 0.5), "cost": np.full(count, first_cost)}
    monkeypatch.setattr(type(run), "episodes", episodes)
    found = (np.full((2, 20), value), {"cost": np.zeros((2, 20))}, "fresh episodes")
    monkeypatch.setattr(verdicts, "_episodes", lambda *_: found)
    text = qcrl.verdict(run.path)
    assert "The outage constraint is kept" in text
    assert (words or "kept") in text
    assert ("andom actions" in text) == bool(words)
    assert ("nothing was learned" in text) == (value < 0.5 and not first_cost)


def test_a_gain_within_chance_is_hardly_one(train, monkeypatch):
    """Returns that are 0 or 1 have standard errors of .09 in the 28 first episodes and .08 in 40 fresh ones."""
    run = train()
    even = np.arange(len(run.episodes["return"])) % 2
    monkeypatch.setattr(type(run), "episodes", {**run.episodes, "return": even, "cost": 0.0 * even})
    for gain, said in ((0.1, True), (0.4, False)):
        returns = np.arange(40).reshape(2, 20) % 2 + gain
        monkeypatch.setattr(verdicts, "_episodes", lambda *_, now=returns: (now, {"cost": 0 * now}, "fresh episodes"))
        assert ("hardly better than random actions, 0.50 in the first" in qcrl.verdict(run.path)) == said


class Luck(gymnasium.Env):
    """Lasts 2 or 40 steps, whatever is done, and earns 1 in each."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.choice([2, 40]))
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {"cost": 0.0}


def test_random_actions_are_not_judged_by_the_short_episodes_that_end_first(tmp_path):
    shape = {"num_envs": 32, "steps_per_env": 64, "hidden_sizes": (8,), "epochs": 1}
    run = qcrl.train("outage_ppo", Luck, CONSTRAINT, 12_288, out=tmp_path / "run", progress=False, **shape)
    assert run.episodes["return"][:20].mean() < 10
    text = qcrl.verdict(run, Luck)
    assert "The outage constraint is kept" in text
    assert "better than random actions, " in text
    assert "in episodes of the untrained policy, which kept the constraint as well: " in text
