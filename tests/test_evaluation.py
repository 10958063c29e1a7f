"""Fixed-count evaluation against the closed forms of the two-path environment, and MuJoCo over several processes."""

import csv
import dataclasses
import json
from dataclasses import asdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

import qcrl
from qcrl import Outage, UserError
from qcrl.algos import hyperparameters
from qcrl.algos.find import build
from qcrl.cli.main import main
from qcrl.envs import TASKS, make
from qcrl.envs.base import Description
from qcrl.envs.point.jax_engine import PointEnv
from qcrl.envs.two_path import TwoPathEnv
from qcrl.evaluation.summary import Results, summarise
from qcrl.runs import checkpoints
from qcrl.runs.folder import FORMAT
from qcrl.runs.lane import Lane
from qcrl.runs.policy import Policy
from qcrl.sampling.play import device, play
from qcrl.sampling.play.device import play_on_device
from qcrl.sampling.play.seeds import key_words
from qcrl.stats import outage_interval

pytest_plugins = ["fakes"]
SAFE, RISKY = 5.0, -5.0
"""Weights with which the fake policy takes route 2 (outage .08 at limit 15) or route 1 (outage .287)."""
SMALL = {"num_envs": 2, "steps_per_env": 8, "chunk_length": 8, "hidden_sizes": (8,), "minibatches": 1, "lstm_size": 8}


def write_policy(path, algorithm, env, lane, change=lambda state: state):
    start = lambda: algorithm.policy_state(env, algorithm.init(env, jax.random.key(0), lane.constraints))
    state = change(jax.jit(start)())
    described = {"algorithm": hyperparameters.to_json(algorithm), "environment": Description.of(env).as_dict()}
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoints.write_tree(path, state, {**described, "alive": True, **lane.as_dict()})


def write_run(folder, weights, env=None, probabilities=(0.1,), limit=15.0):
    """A run of the fake algorithm: one lane per seed and probability, seed i with the i-th weight."""
    env = env or make("TwoPathEnv-v0")
    algorithm = build("fake", "fast")
    lanes = [Lane(seed, (Outage(limit, p),), p) for seed in range(len(weights)) for p in probabilities]
    for lane in lanes:
        path = folder / "policies" / f"seed{lane.seed}-p{lane.probability:g}-d{limit:g}.safetensors"
        weight = jnp.float32(weights[lane.seed])
        write_policy(path, algorithm, env, lane, lambda state, weight=weight: {**state, "weight": weight})
    described = Description.of(env).as_dict()
    settings = {"algorithm": hyperparameters.to_json(algorithm), "environment": described}
    config = {"format": FORMAT, **settings, "lanes": [lane.as_dict() for lane in lanes]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def run(fake, tmp_path):
    return write_run(tmp_path, [SAFE, RISKY])


def test_summaries_agree_with_the_closed_forms_of_both_routes(run):
    """Tolerances are four standard errors of 20,000 episodes; the quantile lies in its 95% interval for this seed."""
    result = qcrl.evaluate(run, episodes=20_000, deterministic=True, progress=False)
    (both,) = result.pooled
    assert repr(result) == (
        "<Evaluation of 2 policies on TwoPathEnv-v0 (jax), 20,000 episodes each: "
        f"outage {both.outage:.4g}, return {both.mean_return:.4g}>"
    )
    for row, route in zip(result.per_lane, reversed(make("TwoPathEnv-v0").routes)):
        outage = route.outage(15)
        assert row.outage == pytest.approx(outage, abs=4 * (outage * (1 - outage) / 20_000) ** 0.5)
        assert (row.outage_low, row.outage_high) == outage_interval(row.outages, 20_000)
        assert row.cost_quantile_low <= route.quantile(0.9) <= row.cost_quantile_high
        assert row.cost_quantile_low < row.cost_quantile < row.cost_quantile_high
        assert row.mean_return == pytest.approx(route.reward)
        assert row.std_return == pytest.approx(0, abs=1e-6)
        assert row.mean_cost == pytest.approx(route.mean(), rel=0.03)
        # Mean cost over the limit: limit + integral of Pr(cost > x) beyond it / Pr(cost > limit).
        beyond = quad(route.outage, 15, 300)[0] / outage
        assert row.mean_cost_over == pytest.approx(15 + beyond, rel=0.03)
        # Costs are Weibull distributed, so that the fit finds the route's own parameters.
        assert row.weibull["shape"] == pytest.approx(route.shape, rel=0.05)
        assert row.weibull["outage"] == pytest.approx(outage, abs=0.01)
    risky = result.per_lane[1]
    # Exponential with mean 12: the worst tenth costs its quantile and a mean more; a Gaussian says 40%.
    assert risky.cvar == pytest.approx(12 * (np.log(10) + 1), rel=0.03)
    assert risky.gaussian["outage"] == pytest.approx(0.4013, abs=0.01)
    (pooled,) = result.pooled
    assert (pooled.seed, pooled.seeds, pooled.episodes) == (None, 2, 40_000)
    assert pooled.outages == sum(row.outages for row in result.per_lane)
    assert pooled.over_seeds["return_iqm"] == pytest.approx(0.9)


def test_no_tail_is_fitted_to_a_handful_of_values():
    lane = Lane(0, (Outage(0.0, 0.1),), 0.1)
    for costs, fits in ((np.arange(200) % 2, False), (np.arange(200) % 5, False), (np.arange(200) % 6, True)):
        found = summarise([lane], [Results(np.zeros(200), costs.astype(float))])
        assert (found.gaussian is not None, found.weibull is not None) == (fits, fits)


def test_what_episodes_over_the_limit_cost():
    lanes = [Lane(seed, (Outage(15.0, 0.1),), 0.1) for seed in range(2)]
    found = [Results(np.zeros(3), np.array(costs)) for costs in ([1.0, 15.0, 16.0], [2.0, 40.0, 3.0])]
    assert summarise(lanes, found).mean_cost_over == 28
    assert summarise([lanes[0]], [Results(np.zeros(2), np.array([1.0, 15.0]))]).mean_cost_over is None


def test_files_hold_what_is_returned_and_every_episode(run):
    result = qcrl.evaluate(run, episodes=300, seed=1, deterministic=True, progress=False)
    stored = json.loads((run / "evaluation-jax-deterministic.json").read_text())
    assert stored == asdict(result)
    assert (stored["engine"], stored["environment"]["id"], stored["episodes"]) == ("jax", "TwoPathEnv-v0", 300)
    with open(run / "evaluation-jax-deterministic.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["episode"]) for row in rows] == list(range(300))
    assert {row["seed"] for row in rows} == {"1"}
    assert sum(float(row["cost"]) > 15 for row in rows) == result.per_lane[0].outages
    assert not (run / "evaluation-jax.json").exists()


def test_episodes_do_not_depend_on_how_many_are_run(run):
    """The 1,200 take three batches, the 100 a part of one."""
    policy, env = qcrl.load(run).policy(seed=0), make("TwoPathEnv-v0")
    (many,), (few,) = (play_on_device([(policy, [3, 4])], env, n) for n in (1200, 100))
    assert many.costs.shape == (1200, 1)
    np.testing.assert_array_equal(many.costs[:100], few.costs)
    assert len(set(many.costs[:, 0])) == 1200


def test_parts_of_a_size_play_the_same_episodes_and_stop_together(run):
    """Of 130 in batches of 50 the last has 30; what stops one part stops all."""
    policy, env = qcrl.load(run).policy(seed=0), make("TwoPathEnv-v0")
    whole, parts = (play_on_device([(policy, 5)], env, 130, batch=batch)[0] for batch in (None, 50))
    np.testing.assert_array_equal(whole.costs, parts.costs)
    np.testing.assert_array_equal(whole.returns, parts.returns)
    told = []

    def stop(done):
        told.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play_on_device([(policy, 5)], env, 2000, progress=stop, batch=50)
    assert len(told) < 20  # of 40


def test_policies_side_by_side_play_the_episodes_that_each_plays_alone(run, monkeypatch):
    """Three, with room for two at a time."""
    monkeypatch.setattr(device, "MOST_AT_ONCE", {"cpu": 80})
    env, loaded = make("TwoPathEnv-v0"), qcrl.load(run)
    jobs = [(loaded.policy(seed=seed), number) for number, seed in enumerate((0, 1, 0))]
    told = []
    together = play_on_device(jobs, env, 40, progress=told.append)
    assert sum(told) == pytest.approx(120)
    for job, totals in zip(jobs, together):
        (alone,) = play_on_device([job], env, 40)
        np.testing.assert_allclose(totals.returns, alone.returns, rtol=1e-6)
        np.testing.assert_allclose(totals.costs, alone.costs, rtol=1e-6)
    assert not np.array_equal(together[0].costs, together[2].costs)


def test_lanes_purposes_and_trainings_share_no_random_numbers(fake, tmp_path):
    """Two lanes with the same policy: all costs differ. Keys of trainings have a first word of 0."""
    folder = write_run(tmp_path, [SAFE, SAFE])
    qcrl.evaluate(folder, episodes=500, progress=False)
    with open(folder / "evaluation-jax.csv") as file:
        costs = [row["cost"] for row in csv.DictReader(file)]
    assert len(set(costs)) > 990  # of 1,000, written with eight digits
    training = np.asarray(jax.random.key_data(jax.random.key(2**32 - 1)))
    assert training[0] == 0
    assert all(key_words(seed)[0] % 2 == 1 for seed in range(100))


class LongPath(TwoPathEnv):
    """Claims to be shorter than it is."""

    horizon = 3


def test_an_episode_that_does_not_end_is_not_counted(run):
    with pytest.raises(UserError, match="5 episodes of TwoPathEnv-v0 did not end within its horizon of 3 steps"):
        play_on_device([(qcrl.load(run).policy(seed=0), 0)], LongPath(), 5)


def test_mujoco_gives_the_same_episodes_on_any_number_of_processes_and_those_of_the_jax_engine(tmp_path):
    """An untrained network, 40 steps, 64 episodes: means of the engines within five standard errors of each other."""
    env = PointEnv(dataclasses.replace(TASKS["DynamicEnv-v0"], horizon=40))
    algorithm = hyperparameters.replace(build("qcpo", "fast"), SMALL)
    write_policy(tmp_path / "policy.safetensors", algorithm, env, Lane(0, (Outage(15.0, 0.1),), 0.1))
    policy = Policy.load(tmp_path / "policy.safetensors")
    stacked = lambda totals: np.column_stack([totals.returns, totals.costs])
    jobs = [(policy, 1), (policy, 2)]
    one, two = ([stacked(each) for each in play(jobs, env, 64, "mujoco", processes=n)] for n in (1, 2))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one[0], one[1])
    for ours, theirs in zip(stacked(play_on_device([(policy, 1)], env, 128)[0]).T, np.concatenate(one).T):
        error = np.hypot(ours.std(), theirs.std()) / 128**0.5
        assert ours.mean() == pytest.approx(theirs.mean(), abs=5 * error + 1e-9)


def test_the_command_prints_a_table_and_where_it_is_written(run, capsys):
    assert main(["evaluate", str(run), "--episodes", "50", "--deterministic"]) == 0
    out = capsys.readouterr().out
    assert "all 2" in out
    assert f"{run}/evaluation-jax-deterministic.json and .csv" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--episodes 0", "episodes is 0"),
        ("--seed 7", "has no seed 7; it was trained with 0, 1"),
        (f"--seed {10**400}", "has no seed inf; it was trained with 0, 1"),
        ("--probability 0.3", "has no probability 0.3"),
        ("--engine mujoco", "TwoPathEnv-v0 has no MuJoCo model"),
        ("--engine mjx", "invalid choice: 'mjx'"),
        ("--processes 0", "processes is 0"),
        ("--episode-seed -1", "episode_seed is -1"),
        ("--promised --episode-seed -1", "episode_seed is -1"),
    ],
)
def test_mistakes_are_one_sentence(run, capsys, arguments, message):
    assert main(["evaluate", str(run), *arguments.split()]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("qcrl: ")
    assert err.count("\n") == 1


def test_what_is_not_a_trained_run_is_a_user_error(run, tmp_path):
    with pytest.raises(UserError, match="there is no run in"):
        qcrl.evaluate(tmp_path / "nowhere")
    with pytest.raises(UserError, match="horizon is 4, but here it is 9"):
        qcrl.evaluate(run, env=TwoPathEnv(length=9))
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"environment": config["environment"] | {"id": "Mine-v0"}}))
    with pytest.raises(UserError, match="Mine-v0, which does not come with qcrl; pass it as env="):
        qcrl.evaluate(run)
    (run / "config.json").write_text(json.dumps(config))
    (run / "policies" / "seed1-p0.1-d15.safetensors").unlink()
    with pytest.raises(UserError, match="holds no policy for seed1"):
        qcrl.evaluate(run)


def test_a_policy_that_is_not_finite_is_not_counted_as_safe(fake, tmp_path):
    class Broken(TwoPathEnv):
        def step(self, state, action):
            after, out = super().step(state, action)
            return after, out._replace(cost=jnp.where(out.terminated, jnp.nan, out.cost))

    with pytest.raises(UserError, match="not a finite number"):
        qcrl.evaluate(write_run(tmp_path, [SAFE]), 10, env=Broken(), progress=False)
