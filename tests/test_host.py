"""Training and evaluating on environments that run in Python: exact costs, errors by name, workers that die."""

import functools
import sys
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import qcrl
from host_envs import Faulty, Mortal, Nested, OneStep, Ragged, SixValues, Written
from qcrl import checkpoints, cli, hyperparameters, rollout, stats
from qcrl.algos import PPOLag, distributions
from qcrl.algos.sac import read_records
from qcrl.envs.host import open_host
from qcrl.envs.spaces import Actions
from qcrl.errors import UserError, WorkerFailure
from qcrl.host_rollout import HostRollout
from qcrl.policy import Interface

sys.path.append(str(Path(__file__).parent.parent / "examples"))
SMALL = {"num_envs": 2, "steps_per_env": 40, "chunk_length": 10, "hidden_sizes": (8,), "lstm_size": 0}
OUTAGE = qcrl.Outage(5.0, 0.1)


def open_rollout(stack, env, count=3, workers=0, lanes=1, **settings):
    """A rollout that only collects, and the policy it collects with."""
    host = open_host(env)
    algorithm = PPOLag(**{**SMALL, "num_envs": count, **settings})
    state = jax.vmap(lambda seed: algorithm.init(Interface.of(host), jax.random.key(seed), 5.0, 0.1))(np.arange(lanes))
    fleet = host.fleet(lanes * count, workers)
    stack.callback(fleet.close)
    collector = HostRollout(algorithm, host, fleet, list(range(lanes)))
    actor, _, words, env_steps = collector.prepare(state)
    return collector, lambda: collector.collect(actor, np.asarray(words), np.asarray(env_steps))


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


def written(folder):
    return Counter(float(line) for path in Path(folder).glob("*.txt") for line in path.read_text().split())


VECTORS = {"sync": SyncVectorEnv, "async": functools.partial(AsyncVectorEnv, context="spawn")}


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("kind", list(VECTORS))
def test_vector_environments_lose_no_cost_and_count_none_twice(kind, mode, tmp_path, stack):
    make = functools.partial(Written, Ragged(), tmp_path) if kind == "async" else lambda: Written(Ragged(), tmp_path)
    with closing(VECTORS[kind]([make] * 2, autoreset_mode=mode)) as vector:
        collector, collect = open_rollout(stack, vector, count=2)
        batches = [collect()[0][0] for _ in range(3)]
        ours = Counter(cost for _, _, cost in collector.finished[0])
    assert sum(ours.values()) > 30
    assert ours == written(tmp_path)
    for rows in batches:  # only real steps: time goes up by one, and after an end comes the start of the next episode
        obs, next_obs, ended = rows[..., :2], rows[..., 2:4], rows[..., 8:10].any(axis=-1)
        assert (next_obs == obs + np.array([0, 1])).all()
        assert (obs[1:] == np.where(ended[:-1, :, None], (obs[:-1] + 1) * [1, 0], next_obs[:-1])).all()
        assert ended.sum() > 10


@pytest.mark.parametrize("workers", [0, 2])
def test_own_environments_lose_no_cost_and_count_none_twice(workers, tmp_path, stack):
    collector, collect = open_rollout(stack, lambda: Written(Ragged(), tmp_path), workers=workers)
    rows = np.concatenate([collect()[0] for _ in range(3)], axis=1)[0]
    assert Counter(cost for _, _, cost in collector.finished[0]) == written(tmp_path)
    ended = rows[..., 8:10].any(axis=-1)
    assert (rows[1:, :, :2] == np.where(ended[:-1, :, None], rows[1:, :, :2], rows[:-1, :, 2:4])).all()
    assert sorted(rows[..., -1][ended]) == pytest.approx(sorted(cost for _, _, cost in collector.finished[0]), rel=1e-6)


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
    assert Counter(run.episodes["cost"]) == written(tmp_path / "costs")
    assert {(row["seed"], row["probability"]) for row in rows_of(run.metrics)} == {
        (0, 0.1),
        (0, 0.2),
        (1, 0.1),
        (1, 0.2),
    }
    assert run.metrics["iteration"].max() == 3


def rows_of(table):
    return [dict(zip(table, values)) for values in zip(*table.values())]


def test_the_memory_of_chunks_is_that_of_the_network_run_through_the_batch(stack):
    collector, collect = open_rollout(stack, Ragged, lstm_size=4, late_cost=True, steps_per_env=30)
    start = collector.memory
    rows, memory = collect()
    algorithm, host = collector.algorithm, collector.host
    state = algorithm.init(Interface.of(host), jax.random.key(np.uint32(0)), 5.0, 0.1)
    blank = rollout.start(Interface.of(host), jax.random.key(0), 3, algorithm.network.initial_memory(3))
    trajectory, _ = rollout.unpack(host, blank, rows[0], jax.tree.map(lambda x: x[0], memory))
    _, memories = algorithm.network.sequence(
        state.params, state.normaliser, trajectory.inputs, trajectory.first, jax.tree.map(lambda x: x[0], start)
    )
    for chunk in (1, 2):
        for kept, expected in zip(memory, memories):
            expected = np.where(trajectory.first[10 * chunk][:, None], 0.0, expected[10 * chunk - 1])
            np.testing.assert_allclose(kept[0, chunk], expected, atol=1e-6)
    assert all(kept[0, 1:].any() for kept in memory)


@pytest.mark.parametrize(
    ("fault", "words"), [("leave out", "no cost"), (-0.5, "-0.5"), (float("nan"), "nan"), (float("inf"), "inf")]
)
@pytest.mark.parametrize("vector", [False, True])
def test_a_bad_cost_is_an_error_that_names_environment_and_step(fault, words, vector, stack):
    make = lambda: Faulty(fault)
    env = SyncVectorEnv([Ragged, make], autoreset_mode=AutoresetMode.DISABLED) if vector else make
    _, collect = open_rollout(stack, env, count=2)
    # The vector environment was stepped once before, to find the cost.
    with pytest.raises(UserError, match=rf"environment {int(vector)} of .* at its step {10 - vector} ") as caught:
        collect()
    assert words in str(caught.value)


def test_where_the_cost_comes_from_is_found_and_stated():
    assert 'info["cost"] (found automatically)' in str(open_host(Ragged))
    assert "6-tuple (found automatically)" in str(open_host(SixValues))
    assert str(open_host(Nested, "penalty").source) == 'info["penalty"]'
    with pytest.raises(UserError, match=r"Nested.* reports no cost.*penalty"):
        open_host(Nested)
    with pytest.raises(UserError, match="has no cost"):
        open_host(Ragged, "penalty")
    given = open_host("CartPole-v1", lambda obs, action, next_obs, info: obs[0] ** 2)
    fleet = given.fleet(1)
    before = fleet.reset([3])
    assert fleet.step(np.array([1])).cost == pytest.approx(before[0, 0] ** 2)


def test_actions_are_mapped_from_minus_one_to_one_onto_the_bounds():
    box = Actions(False, (2,), "float32", 0, (-2.0, 0.0), (2.0, 4.0))
    np.testing.assert_allclose(box.to_env(np.array([[0.5, -1.0], [3.0, -3.0]])), [[1.0, 0.0], [2.0, 0.0]])
    half = Actions(False, (2,), "float32", 0, (0.0, None), (None, None))
    np.testing.assert_allclose(half.to_env(np.array([-3.0, 7.0])), [0.0, 7.0])
    assert open_host(Nested, "penalty").actions.to_env(np.eye(3)).tolist() == [-1, 0, 1]


def test_dictionaries_are_flattened_in_key_order_with_one_hot_choices():
    fleet = open_host(Nested, "penalty").fleet(1)
    assert fleet.reset([0])[0].tolist() == [0.5] * 4 + [0, 0, 1]


@pytest.mark.parametrize(
    ("observations", "actions"),
    [
        (gymnasium.spaces.Text(5), gymnasium.spaces.Discrete(2)),
        (gymnasium.spaces.Box(0, 1, (2,)), gymnasium.spaces.MultiDiscrete([2, 3])),
        (gymnasium.spaces.Box(0, 1, (2,)), gymnasium.spaces.Box(0, 5, (1,), int)),
    ],
)
def test_other_spaces_are_an_error_before_training(observations, actions, tmp_path):
    env = Ragged()
    env.observation_space, env.action_space = observations, actions
    with pytest.raises(UserError, match=r"space of Ragged.* can be trained"):
        qcrl.train("qcpo", env, OUTAGE, out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_categorical_policy_draws_by_its_softmax_and_knows_its_probabilities():
    logits = jnp.array([0.5, -1.0, 1.5])
    expected = np.exp(logits) / np.exp(logits).sum()
    drawn = distributions.draw({}, logits, jax.random.normal(jax.random.key(0), (40_000, 3)))
    np.testing.assert_allclose(drawn.mean(axis=0), expected, atol=4 * 0.5 / 200)
    np.testing.assert_allclose(np.exp(distributions.log_prob({}, logits, jnp.eye(3))), expected, rtol=1e-5)
    assert distributions.draw({}, logits, 0.0).tolist() == [0, 0, 1]
    assert distributions.statistics({}, logits)["entropy"] == pytest.approx(
        -(expected * np.log(expected)).sum(), rel=1e-5
    )


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
    algorithm, interface = hyperparameters.from_json(run.config["algorithm"]), run.policy().interface
    init = lambda seed: algorithm.init(interface, jax.random.key(seed), 5.0, 0.1)
    shapes = jax.eval_shape(jax.vmap(init), jnp.zeros(1, jnp.uint32))
    state, _ = checkpoints.load_checkpoint(run.path / "checkpoints", like=shapes)
    return read_records(interface, state.replay[0, : int(state.env_steps[0])])


def test_wcsac_finds_the_known_optimum_of_one_step_episodes(tmp_path):
    """The best of the actions in [0, 4] is 2 + s, which the policy has as s / 2; what follows a cut does not depend on it."""
    (tmp_path / "costs").mkdir()
    make = lambda: Written(OneStep(), tmp_path / "costs")
    run = qcrl.train("wcsac", make, qcrl.CVaR(100, 0.1), steps=6400, out=tmp_path / "run", progress=False, **SOFT)
    policy = run.policy()
    actions = [policy(np.array([s, 0.0]), policy.initial(), deterministic=True)[0][0] for s in (-0.8, 0.0, 0.8)]
    np.testing.assert_allclose(actions, [1.2, 2.0, 2.8], atol=0.3)
    assert run.metrics["episode_return"][-1] > -0.2  # random actions earn -1/3 - 1/12
    assert run.episodes["env_steps"].tolist() == np.repeat(np.arange(8, 6401, 8), 8).tolist()
    (trial,) = (written(tmp_path / "costs") - Counter(run.episodes["cost"])).values()
    assert trial == 2  # the steps with which the cost was found, both of the same seed
    replay = replay_of(run)
    assert len(replay.obs) == 5000  # as many as it holds
    assert (replay.obs[:, 1] == 0).all()
    assert (
        replay.next_obs == replay.obs + jnp.array([0, 1])
    ).all()  # the last observation, not the next episode's first
    assert (replay.follows == (replay.obs[:, 0] < 0)).all()  # after a cut the critics' estimate follows


def test_wcsac_saves_and_resumes_where_an_environment_fails(tmp_path):
    options = {"steps": 960, "out": tmp_path / "run", "progress": False, **SOFT}
    with pytest.raises(
        UserError, match=r"environment 0 of .* at its step 63 raised AssertionError.*iteration 1, to continue"
    ):
        qcrl.train("wcsac", lambda: OneStep(63), qcrl.CVaR(100, 0.1), **options)
    run = qcrl.load(tmp_path / "run")
    assert run.policy().info["env_steps"] == len(replay_of(run).obs) == 320
    qcrl.train("wcsac", lambda: OneStep(), qcrl.CVaR(100, 0.1), resume=True, **options)
    assert run.metrics["env_steps"].tolist() == [320, 640, 960]


@pytest.mark.parametrize("algorithm", ["wcsac", "wcsac_weibull"])
def test_off_policy_algorithms_refuse_choices_before_training(algorithm, tmp_path):
    with pytest.raises(UserError, match=r"which has discrete actions.*use qcpo, ppo_lag or cvar_pg"):
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
    from qcrl.algos import preset
    from qcrl.host_rollout import fit

    fitted = fit(preset("qcpo", "fast"), open_host(Ragged()), {})
    assert (fitted.num_envs, fitted.steps_per_env) == (1, 12_000)
    soft = preset("wcsac", "fast")
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


def step_on(fleet):
    for _ in range(60):
        fleet.step(np.array([[0.0, 1.0], [0.0, 1.0]], np.float32))


def test_a_hanging_worker_is_named(tmp_path, stack):
    (tmp_path / "hang").touch()
    fleet = open_host(functools.partial(Mortal, tmp_path)).fleet(2, workers=2, timeout=1.0)
    stack.callback(fleet.close)
    fleet.reset([0, 1])
    with pytest.raises(WorkerFailure, match=r"worker \d .* gave no answer for 1 s, at step 50"):
        step_on(fleet)


def test_a_killed_worker_of_the_users_vector_environment_is_named(tmp_path, stack):
    (tmp_path / "die").touch()
    vector = AsyncVectorEnv([functools.partial(Mortal, tmp_path)] * 2, context="spawn")
    fleet = open_host(vector).fleet(2)
    fleet.reset([0, 1])
    with pytest.raises(WorkerFailure, match=r"Worker<AsyncVectorEnv>-\d \(environment \d, exit code -9\)"):
        step_on(fleet)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train qcpo CartPole-v1", "CartPole-v1 reports no cost"),
        ("train CartPole-v1 --cost nothing", "has no cost"),
        ("train CartPole-v1 --cost nowhere:cost", "cannot be imported"),
        ("train NoSuch-v7", "there is no environment 'NoSuch-v7'"),
        ("train DynamicEnv-v0 --cost x", "has its own"),
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


@pytest.mark.parametrize("name", ["cartpole", "cheetah"])
def test_the_examples_of_the_guide_train(name, tmp_path):
    import importlib

    run = importlib.import_module(name).main(
        steps=200, out=tmp_path / "run", progress=False, **{**SMALL, "steps_per_env": 100, "minibatches": 1}
    )
    assert run.metrics["iteration"].tolist() == [1]
    assert run.config["environment"]["cost"].startswith(f"{name}:")


@pytest.mark.parametrize("name", ["cartpole", "cheetah", "courier"])
def test_the_guide_shows_the_examples_as_they_are(name):
    root = Path(__file__).parent.parent
    assert (root / "examples" / f"{name}.py").read_text() in (root / "docs" / "your_environment.md").read_text()
