"""Simulators that fail: with on_error=restart their episode is cut off, they are made anew, and this is counted."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import qcrl
from host_envs import SMALL, Mortal, Ragged
from qcrl import UserError
from qcrl.envs.host import restarting
from qcrl.envs.host.environment import open_host
from qcrl.errors import BrokenEnvironment, WorkerFailure
from qcrl.evaluation.verdict import verdict
from qcrl.sampling.program import Workers
from qcrl.training import fit

CONSTRAINT = qcrl.Outage(5.0, 0.1)


class Fragile(Ragged):
    """Breaks at every 30th step that all of its kind have taken."""

    taken, every, made = 0, 30, 0

    def __init__(self):
        super().__init__()
        type(self).made += 1

    def step(self, action):
        type(self).taken += 1
        if self.taken % self.every == 0:
            raise RuntimeError("the solver has not converged")
        return super().step(action)


@pytest.fixture
def fragile(monkeypatch):
    for name in ("taken", "made"):
        monkeypatch.setattr(Fragile, name, 0)
    return Fragile


def test_training_goes_on_and_counts(fragile, tmp_path):
    settings = {"steps": 160, "progress": False, **SMALL, "epochs": 1}
    open_host(fragile)
    before, fragile.taken = fragile.taken, 0  # the steps with which it is tried before a training
    run = qcrl.train("ppo_lag", fragile, CONSTRAINT, out=tmp_path / "run", on_error="restart", **settings)
    assert run.metrics["iteration"].tolist() == [1, 2]
    assert run.metrics["restarts"].tolist() == [(before + steps) // 30 - before // 30 for steps in (80, 160)]
    with pytest.raises(UserError, match="the solver has not converged"):
        qcrl.train("ppo_lag", fragile, CONSTRAINT, out=tmp_path / "other", **settings)


def test_the_trial_before_a_training_goes_on_as_well(fragile):
    env, said = open_host(fragile), []
    fragile.taken = 29
    assert fit.measure(env, Workers(on_error="restart"), said.append, seconds=0.0).steps_per_second > 0
    assert "the solver has not converged" in said[0]
    assert said[0].endswith("restarted")
    fragile.taken = 29
    with pytest.raises(UserError, match="the solver has not converged"):
        fit.measure(env, Workers(), said.append, seconds=0.0)


def test_a_trial_that_breaks_too_often_says_what_it_found(fragile, monkeypatch):
    env = open_host(fragile)
    monkeypatch.setattr(restarting, "MOST", 3)
    pace = fit.measure(env, Workers(on_error="restart"), lambda text: None, seconds=60.0)
    assert pace.episode_length is not None


def test_where_fresh_episodes_break_those_of_the_training_are_judged(fragile, tmp_path, monkeypatch):
    settings = {"steps": 2000, "progress": False, **SMALL, "epochs": 1}
    run = qcrl.train("ppo_lag", fragile, CONSTRAINT, out=tmp_path / "run", on_error="restart", **settings)
    env = replace(open_host(fragile), horizon=5)
    assert "last training episodes, as in fresh ones" in verdict(run, env)
    monkeypatch.setattr(fragile, "every", 10**9)
    assert "fresh episodes;" in verdict(run, env)


def test_the_broken_episode_is_cut_off_at_what_was_seen_last(fragile):
    said = []
    fleet = open_host(fragile).fleet(2, say=said.append, restart=True)
    fragile.taken = 0
    before = fleet.reset([1, 2])
    made, action = fragile.made, np.zeros((2, 2), np.float32)
    for _ in range(14):
        out = fleet.step(action)
        before = out.obs
    out = fleet.step(action)
    assert (out.truncated[1], out.terminated[1], out.reward[1], out.cost[1, 0]) == (True, False, 0.0, 0.0)
    np.testing.assert_array_equal(out.next_obs[1], before[1])
    np.testing.assert_array_equal(out.obs[1], [0.0, 0.0])
    assert (fragile.made, fleet.restarts()) == (made + 1, 1)
    assert "RuntimeError: the solver has not converged" in said[0]
    fleet.close()


def test_what_breaks_too_often_ends_the_training(fragile, monkeypatch):
    fleet = open_host(fragile).fleet(1, restart=True)
    fleet.reset([0])
    monkeypatch.setattr(Fragile, "every", 1)
    for _ in range(restarting.IN_A_ROW):
        assert fleet.step(np.zeros((1, 2), np.float32)).truncated[0]
    with pytest.raises(BrokenEnvironment, match=f"broke {restarting.IN_A_ROW + 1} times in a row"):
        fleet.step(np.zeros((1, 2), np.float32))
    only = open_host(Ragged())
    with pytest.raises(UserError, match="given as an object"):
        only.fleet(1, restart=True)
    with pytest.raises(UserError, match="reaction to errors 'ignore'"):
        qcrl.train("ppo_lag", Ragged, CONSTRAINT, on_error="ignore", **SMALL)


@pytest.mark.parametrize(("how", "said"), [("die", "was killed by SIGKILL"), ("hang", "gave no answer for")])
def test_a_worker_that_dies_or_hangs_is_started_anew(tmp_path, capsys, how, said):
    (tmp_path / how).touch()
    settings = {"steps": 160, "workers": 2, "step_timeout": 2.0, **SMALL, "epochs": 1, "cost": "cost"}
    make = partial(Mortal, tmp_path)
    run = qcrl.train("ppo_lag", make, CONSTRAINT, out=tmp_path / "run", on_error="restart", **settings)
    assert (tmp_path / f"{how} was done").exists()
    assert run.metrics["iteration"].tolist() == [1, 2]
    assert run.metrics["restarts"].tolist() == [0, 1]
    assert f"{said}" in capsys.readouterr().err


def test_a_worker_that_dies_again_and_again_ends_the_training():
    fleet = open_host(Ragged, "cost").fleet(2, workers=1, timeout=np.inf, restart=True)
    fleet.reset([0, 1])
    fleet.step(np.zeros((2, 2), np.float32))
    for count in range(restarting.IN_A_ROW):
        fleet.workers[0].process.kill()
        fleet.workers[0].process.join()
        out = fleet.step(np.zeros((2, 2), np.float32))
        assert out.truncated.all()
        assert fleet.restarts() == count + 1
    fleet.workers[0].process.kill()
    with pytest.raises(WorkerFailure, match="6 times in a row, too often"):
        fleet.step(np.zeros((2, 2), np.float32))
    fleet.close()
