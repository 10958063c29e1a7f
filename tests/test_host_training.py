"""Training and evaluating on Python environments, by API and command line: known optima, resuming, the guide."""

import functools
import sys
import time
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qcrl
from host_envs import SMALL, Mortal, Nested, OneStep, Ragged, Written, written
from qcrl import stats
from qcrl.algos import hyperparameters
from qcrl.algos.find import build
from qcrl.cli import main as cli
from qcrl.envs.host.environment import open_host
from qcrl.errors import UserError, WorkerFailure
from qcrl.runs import checkpoints
from qcrl.sampling.record import unpack
from qcrl.training.checks import fit

sys.path.append(str(Path(__file__).parent.parent / "examples"))
OUTAGE = qcrl.Outage(5.0, 0.1)


def test_a_training_writes_the_exact_costs_of_its_episodes(tmp_path):
    (tmp_path / "costs").mkdir()
    run = qcrl.train(
        "ppo_lag",
        lambda: Written(Ragged(), tmp_path / "costs"),
        [qcrl.Outage(5, 0.1), qcrl.Outage(5, 0.2)],
        steps=240,
        seeds=2,
        out=tmp_path / "run",
        progress=False,
        **SMALL,
    )
    tried = written(tmp_path / "costs") - Counter(run.episodes["cost"])
    assert not Counter(run.episodes["cost"]) - written(tmp_path / "costs")
    assert set(tried.values()) == {3}  # before the training, the same seeds three times
    assert {(row["seed"], row["probability"]) for row in rows_of(run.metrics)} == {
        (0, 0.1),
        (0, 0.2),
        (1, 0.1),
        (1, 0.2),
    }
    assert run.metrics["iteration"].max() == 3


def rows_of(table):
    return [dict(zip(table, values)) for values in zip(*table.values())]


def test_qcpo_keeps_its_outage_where_the_costs_are_known(tmp_path):
    import courier

    run = courier.main(out=tmp_path / "run", progress=False)
    result = qcrl.evaluate(run, episodes=1000, progress=False).per_lane[0]
    low, high = stats.outage_interval(result.outages, 1000)
    assert low <= 0.1 <= high
    assert result.mean_return == pytest.approx(0.6, abs=0.02)
    # The policy itself, by closed form: nearly always the way whose outage is 0.1.
    policy, rng = run.policy(), np.random.default_rng(0)
    ways = [int(policy(np.eye(4)[0], policy.initial(), rng=rng)[0]) for _ in range(200)]
    assert np.mean(np.array(ways) == 1) > 0.95
    again = qcrl.evaluate(run.path, env=courier.Courier, episodes=1000, progress=False).per_lane[0]
    assert again == result


SOFT = {
    "num_envs": 8,
    "steps_per_env": 40,
    "steps_per_update": 4,
    "batch_size": 64,
    "start_steps": 100,
    "replay_size": 5000,
    "hidden_sizes": (32, 32),
}


def replay_of(run):
    algorithm, env = hyperparameters.from_json(run.config["algorithm"]), run.policy().env
    init = lambda seed: algorithm.init(env, jax.random.key(seed), run.lanes[0].constraints)
    shapes = jax.eval_shape(jax.vmap(init), jnp.zeros(1, jnp.uint32))
    state, _ = checkpoints.load_checkpoint(run.path / "checkpoints", like=shapes)
    return unpack(env, state.store[0, : int(state.env_steps[0])])


def test_wcsac_finds_the_known_optimum_of_one_step_episodes(tmp_path):
    """The best action in [0, 4] is 2 + s, which the policy has as s / 2; what follows a cut does not depend on it."""
    (tmp_path / "costs").mkdir()
    make = lambda: Written(OneStep(), tmp_path / "costs")
    limit = qcrl.CVaR(100, 0.1)
    run = qcrl.train("wcsac", make, limit, 6400, preset="fast", out=tmp_path / "run", progress=False, **SOFT)
    policy = run.policy()
    actions = [policy(np.array([s, 0.0]), policy.initial(), deterministic=True)[0][0] for s in (-0.8, 0.0, 0.8)]
    np.testing.assert_allclose(actions, [1.2, 2.0, 2.8], atol=0.3)
    assert run.metrics["episode_return"][-1] > -0.2  # random actions earn -1/3 - 1/12
    assert run.episodes["env_steps"].tolist() == np.repeat(np.arange(8, 6401, 8), 8).tolist()
    tried = sorted((written(tmp_path / "costs") - Counter(run.episodes["cost"])).values())
    assert tried == [2] * 19 + [4]  # the same seeds twice, and the first of them also where the cost was found
    replay = replay_of(run)
    assert len(replay.obs) == 5000  # as many as it holds
    assert (replay.obs[:, 1] == 0).all()
    assert (
        replay.next_obs == replay.obs + jnp.array([0, 1])
    ).all()  # the last observation, not the next episode's first
    assert (replay.terminated == (replay.obs[:, 0] >= 0)).all()  # after a cut the critics' estimate follows


def test_wcsac_saves_and_resumes_where_an_environment_fails(tmp_path):
    options = {"steps": 960, "out": tmp_path / "run", "progress": False, **SOFT}
    with pytest.raises(
        UserError, match=r"environment 0 of .*, step 63: it raised AssertionError.*saved up to iteration 1, to continue"
    ):
        qcrl.train("wcsac", lambda: OneStep(63), qcrl.CVaR(100, 0.1), **options)
    run = qcrl.load(tmp_path / "run")
    assert run.policy().info["env_steps"] == len(replay_of(run).obs) == 320
    qcrl.train("wcsac", lambda: OneStep(), qcrl.CVaR(100, 0.1), resume=True, **options)
    assert run.metrics["env_steps"].tolist() == [320, 640, 960]


@pytest.mark.parametrize("algorithm", ["wcsac", "wcsac_weibull"])
def test_off_policy_algorithms_refuse_choices_before_training(algorithm, tmp_path):
    with pytest.raises(UserError, match=r"which has discrete actions.*use outage_ppo, qcpo, ppo_lag or cvar_pg"):
        qcrl.train(algorithm, Nested, OUTAGE, out=tmp_path / "run", cost="penalty")
    assert not (tmp_path / "run").exists()


def test_cvar_pg_takes_the_best_way_whose_cvar_is_allowed(tmp_path):
    """Exponential costs have the CVaR mean x (1 + log(1 / 0.1)): 6.6 walking, 14.3 running, 33 riding."""
    import courier

    options = {"num_envs": 16, "steps_per_env": 20, "learning_rate": 0.02, "window": 400}
    run = qcrl.train(
        "cvar_pg", courier.Courier, qcrl.CVaR(20, 0.1), steps=48_000, out=tmp_path / "run", progress=False, **options
    )
    policy, rng = run.policy(), np.random.default_rng(0)
    ways = np.array([policy(np.eye(4)[0], policy.initial(), rng=rng)[0] for _ in range(200)])
    assert np.mean(ways == 1) > 0.9
    assert run.metrics["cvar"][-20:].mean() == pytest.approx(10 / np.log(10) * (1 + np.log(10)), rel=0.25)


def test_an_instance_is_one_environment_with_a_batch_of_the_same_size(tmp_path):
    run = qcrl.train(
        "ppo_lag", Ragged(), OUTAGE, steps=100, out=tmp_path / "run", progress=False, **{**SMALL, "num_envs": 1}
    )
    assert run.config["environment"]["id"] == "Ragged-custom"
    with pytest.raises(UserError, match=r"num_envs is 2, but Ragged-custom .* holds 1"):
        qcrl.train("ppo_lag", Ragged(), OUTAGE, num_envs=2, out=tmp_path / "b", progress=False)
    with pytest.raises(UserError, match="give the function that makes it"):
        qcrl.train("ppo_lag", Ragged(), OUTAGE, seeds=2, out=tmp_path / "c", progress=False)
    assert not (tmp_path / "c").exists()
    with pytest.raises(UserError, match="pass it as env="):
        qcrl.evaluate(run, 5, progress=False)
    result = qcrl.evaluate(run, 5, env=Ragged, progress=False)
    assert (result.engine, result.per_lane[0].episodes) == ("host", 5)
    fitted = fit(build("qcpo", "fast"), open_host(Ragged()), {})
    assert (fitted.num_envs, fitted.steps_per_env) == (1, 12_000)
    soft = build("wcsac", "fast")
    fitted = fit(soft, open_host(Ragged()), {})
    assert (fitted.num_envs, fitted.block, fitted.steps_per_iteration) == (1, soft.block, soft.steps_per_iteration)


def test_a_killed_worker_is_named_at_once_and_the_run_can_be_resumed(tmp_path):
    (tmp_path / "die").touch()
    options = {
        "steps": 240,
        "out": tmp_path / "run",
        "progress": False,
        "checkpoint_interval": 0.0,
        "workers": 2,
        **SMALL,
    }
    make = functools.partial(Mortal, tmp_path)
    with pytest.raises(
        WorkerFailure, match=r"worker \d \(environments . to . of Mortal.*\) was killed by SIGKILL at step 50.*--resume"
    ):
        qcrl.train("ppo_lag", make, OUTAGE, **options)
    assert time.time() - (tmp_path / "die was done").stat().st_ctime < 10
    run = qcrl.load(tmp_path / "run")
    assert run.metrics["iteration"].tolist() == [1]
    assert run.policy().info["iteration"] == 1
    run = qcrl.train("ppo_lag", make, OUTAGE, resume=True, **options)
    assert run.metrics["iteration"].tolist() == [1, 2, 3]
    assert run.metrics["env_steps"].tolist() == [80, 160, 240]
    assert run.policy().info["iteration"] == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train qcpo CartPole-v1", "CartPole-v1 reports no cost"),
        ("train CartPole-v1 --cost nothing", "has no cost"),
        ("train CartPole-v1 --cost nowhere:cost", "cannot be imported"),
        ("train NoSuch-v7", "there is no environment 'NoSuch-v7'"),
        ("train DynamicEnv-v0 --cost x", "there is no cost 'x'"),
    ],
)
def test_mistakes_on_the_command_line_are_one_sentence(line, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(line.split()) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_command_line_trains_resumes_and_evaluates_by_id(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = "--num-envs 2 --steps-per-env 40 --chunk-length 10 --hidden-sizes 8 --minibatches 1"
    assert cli.main(f"train ppo_lag host_envs:Nested --cost penalty --steps 80 --out run {settings}".split()) == 0
    assert cli.main(["train", "--resume", "--steps", "160", "--out", "run"]) == 0
    assert qcrl.load("run").metrics["iteration"].tolist() == [1, 2]
    assert cli.main(["evaluate", "run", "--episodes", "20"]) == 0
    assert "20 episodes each of host_envs:Nested on host" in capsys.readouterr().out
    assert cli.main(["certify", "run", "--episodes", "100", "--promise", "0.5"]) == 0


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("cartpole", ""),
        ("cheetah", ""),
        ("battery", ""),
        pytest.param("highway", "highway_env", marks=pytest.mark.large),
        pytest.param("mobile", "mobile_env", marks=pytest.mark.large),
    ],
)
def test_the_examples_of_the_guide_train(name, package, tmp_path):
    import importlib

    if package:
        pytest.importorskip(package)
    run = importlib.import_module(name).main(
        steps=200, out=tmp_path / "run", progress=False, **{**SMALL, "steps_per_env": 100, "minibatches": 1}
    )
    assert run.metrics["iteration"].tolist() == [1]
    assert run.config["environment"]["cost"].startswith("info" if name == "battery" else f"{name}:")


@pytest.mark.parametrize("name", ["cartpole", "cheetah", "courier"])
def test_the_guide_shows_the_examples_as_they_are(name):
    root = Path(__file__).parent.parent
    assert (root / "examples" / f"{name}.py").read_text() in (root / "docs" / "your_environment.md").read_text()
