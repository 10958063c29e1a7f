"""What applies to environments in Python where nothing is asked for: scales, batches, presets, separate critics."""

import math
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qcrl
from host_envs import Ragged
from qcrl import UserError
from qcrl.algos.find import build, default_preset
from qcrl.algos.losses import normalised, policy_loss
from qcrl.algos.scales import Scale
from qcrl.bench import learn
from qcrl.cli.main import main
from qcrl.envs.host.environment import open_host
from qcrl.nets.network import Inputs, Memory, Network, only_heads
from qcrl.sampling.program import Workers
from qcrl.training import checks, fit
from qcrl.training.fit import Pace


def test_a_scale_is_the_spread_of_discounted_sums_whatever_the_batches():
    rng = np.random.default_rng(0)
    signal, first = 5 * rng.exponential(size=(40, 3)), rng.random((40, 3)) < 0.1
    sums, seen = np.zeros(3), []
    for now, begun in zip(signal, first):
        sums = now + 0.9 * np.where(begun, 0.0, sums)
        seen.append(sums)
    whole = Scale.init(3).update(jnp.asarray(signal), jnp.asarray(first), 0.9)
    halves = Scale.init(3)
    for part in (slice(0, 15), slice(15, 40)):
        halves = halves.update(jnp.asarray(signal[part]), jnp.asarray(first[part]), 0.9)
    assert float(whole.unit) == pytest.approx(np.std(seen), rel=1e-4)
    assert float(halves.unit) == pytest.approx(np.std(seen), rel=1e-4)
    more = Scale.init(3).update(jnp.asarray(1000 * signal), jnp.asarray(first), 0.9)
    assert float(more.unit) == pytest.approx(1000 * np.std(seen), rel=1e-4)


def test_a_scale_never_divides_by_nothing():
    first = jnp.ones((4, 2), bool)
    assert float(Scale.init(2).unit) == 1
    assert float(Scale.init(2).update(jnp.zeros((4, 2)), first, 0.9).unit) == 1
    assert float(Scale.init(2).update(jnp.full((4, 2), 50.0), first, 0.9).unit) == pytest.approx(5.0)


def test_normalised_advantages_do_not_depend_on_units():
    rng = np.random.default_rng(1)
    reward, cost = jnp.asarray(rng.normal(size=50)), jnp.asarray(rng.normal(size=50))
    one = normalised(reward, [cost], [jnp.float32(2.0)])
    np.testing.assert_allclose(one, normalised(7 * reward, [7 * cost], [jnp.float32(2.0)]), rtol=1e-4)
    assert float(one.mean()) == pytest.approx(0, abs=1e-6)
    assert float(one.std()) == pytest.approx(1, abs=1e-5)
    assert float(policy_loss(jnp.ones(50), one, (), (), 0.2, "joint")) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("preset", "probability", "episodes"), [("host", 0.1, 20), ("host", 0.01, 200), ("fast", 0.1, 100)]
)
def test_in_python_the_multiplier_follows_episodes_of_few_policies(preset, probability, episodes):
    state = SimpleNamespace(probability=jnp.asarray(probability))
    assert int(build("outage_ppo", preset).steering_window(state)) == episodes


def test_separate_critics_share_nothing_with_the_policy():
    network = Network((6, 5), 0, False, "none", 10.0, separate=True)
    params, normaliser = network.init(jax.random.key(0), 3, 2, 2 + 4)
    inputs = Inputs.first(jnp.ones((1, 3)), 2, 1)
    run = lambda params: network.step(params, normaliser, inputs, Memory((), ()))[0]
    outputs = run(params)
    assert outputs.shape == (1, 6)
    np.testing.assert_allclose(run(only_heads(params, 2)), outputs[:, :2], rtol=1e-6)
    of_critics = jax.grad(lambda params: run(params)[:, 2:].sum())(params)
    of_policy = jax.grad(lambda params: run(params)[:, :2].sum())(params)
    size = lambda gradient, name: float(jnp.abs(gradient[name]["kernel"]).sum())
    assert size(of_critics, "mlp_0") == size(of_critics, "heads") == 0
    assert size(of_policy, "critic_0") == size(of_policy, "critic_heads") == 0
    assert min(size(of_critics, "critic_1"), size(of_policy, "mlp_1")) > 0


def test_gains_count_per_step_and_not_per_iteration():
    def moved(iterations, steps_per_env):
        algorithm = replace(build("ppo_lag", "host"), num_envs=2, steps_per_env=steps_per_env, minibatches=1)
        env = qcrl.make("TwoPathEnv-v0")
        state = algorithm.init(env, jax.random.key(0), [qcrl.Mean(1.0)])
        window = state.window._replace(cost=jnp.full_like(state.window.cost, 1.5), seen=jnp.int32(50))
        state = state._replace(window=window)
        for _ in range(iterations):
            state = state._replace(learner=state.learner._replace(multiplier=algorithm._steer(env, state)[0]))
        return float(state.learner.multiplier.integral)

    assert moved(8, 64) == pytest.approx(moved(1, 512), rel=0.05)
    assert moved(8, 64) > 1.01 * build("ppo_lag", "host").initial_multiplier


@pytest.mark.parametrize(
    "wrong", [{"num_envs": 0}, {"steps_per_env": "abc"}, {"chunk_length": 0}, {"num_envs": 2.5}, {"num_envs": np.inf}]
)
def test_bad_batches_are_refused_with_the_reason(wrong, tmp_path):
    name = next(iter(wrong))
    with pytest.raises(UserError, match=f"{name} is"):
        qcrl.train("qcpo", Ragged, qcrl.Outage(5.0, 0.1), 100, out=tmp_path / "r", progress=False, **wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"workers": 1, "step_timeout": -1}, "workers is 1 and step_timeout -1, but must be from 0 on, and above 0"),
        ({"workers": -1}, "workers is -1 and step_timeout 60.0, but must be"),
        ({"workers": "two"}, "workers is 'two' and step_timeout 60.0, but must be"),
        ({"on_error": "wait"}, "'wait'"),
    ],
)
def test_how_to_step_is_checked_before_the_simulator_is_tried(wrong, message, tmp_path, monkeypatch):
    monkeypatch.setattr(fit, "measure", lambda *given: pytest.fail("tried"))
    with pytest.raises(UserError, match=message):
        qcrl.train("outage_ppo", Ragged, qcrl.Outage(5.0, 0.1), 100, out=tmp_path / "r", progress=False, **wrong)


@pytest.mark.parametrize(
    ("speed", "workers", "steps"),
    [(20_000, 0, 2048), (205, 0, 2048), (100, 0, 512), (37, 0, 256), (37, 4, 1024), (1, 0, 256)],
)
def test_a_batch_is_full_within_seconds(speed, workers, steps):
    assert fit.batch(Pace(speed, 100), 2048, workers) == steps


def test_what_is_given_stays_and_the_rest_fits(tmp_path):
    env, said = open_host(Ragged), []
    host = build("outage_ppo", "host")
    chosen = fit.complete(host, env, {}, 20_480, Workers(), said.append)
    follows = {"minibatches": 32, "learning_rate_end": 11.0, "gain_steps": 103}
    assert chosen == {"num_envs": 8, "steps_per_env": 256} | follows
    assert "an iteration is 8 environments x 256 steps" in said[0]
    assert fit.complete(host, env, {"num_envs": 2, "steps_per_env": 40}, 800, Workers(), said.append) == {
        "num_envs": 2,
        "steps_per_env": 40,
        "chunk_length": 40,
        "minibatches": 1,
        "learning_rate_end": 11.0,
        "gain_steps": 4,
    }
    memory = fit.complete(host, env, {"num_envs": 4, "steps_per_env": 128, "lstm_size": 8}, 800, Workers(), said.append)
    assert (memory["separate_critics"], memory["minibatches"]) == (False, 8)
    replace(host, **memory)
    assert len(said) == 1


def test_schedules_that_end_with_the_training_are_as_long_as_it():
    scale = build("outage_ppo", "scale")
    assert fit.scheduled(scale, "scale", 60_000_000, {}) == scale
    longer = fit.scheduled(scale, "scale", 180_000_000, {})
    assert (longer.learning_rate_end, longer.falls_for) == pytest.approx((1260, 750))
    wide = fit.scheduled(replace(scale, num_envs=2304), "scale", 60_000_000, {"falls_for": 250.0})
    assert (wide.learning_rate_end, wide.falls_for) == (210, 250)
    for name in ("fast", "tuned"):  # theirs halves, whatever the length; also where a user lets it end
        own = replace(build("outage_ppo", name), learning_rate_end=50.0)
        assert fit.scheduled(own, name, 1_000_000, {"learning_rate_end": 50.0}) == own


def test_a_longer_training_goes_on_with_its_schedules_and_what_was_given_must_be_given_again(tmp_path):
    small = dict(num_envs=8, minibatches=1, hidden_sizes=(4,), epochs=1, candidates=1, progress=False)
    train = lambda steps, name="run", **more: qcrl.train(
        "outage_ppo", "TwoPathEnv-v0", qcrl.Outage(15, 0.1), steps, out=tmp_path / name, **small | more
    )
    runs = [train(2000, preset="scale"), train(3000, preset="scale", resume=True)]
    ends = [each.config["algorithm"]["fields"]["learning_rate_end"] for each in runs]
    assert ends == pytest.approx([420 * 2 / 416.67] * 2, rel=1e-4)
    forever = dict(preset="scale", learning_rate_end=math.inf)
    train(2000, "forever", **forever)
    with pytest.raises(UserError, match="another learning_rate_end"):
        train(2000, "forever", preset="scale", resume=True)
    assert train(3000, "forever", resume=True, **forever).metrics["iteration"].max() == 3
    for preset in ("scale", "tuned"):
        train(2000, preset, preset=preset, learning_rate_halving=7.0)
        with pytest.raises(UserError, match="another learning_rate_halving"):
            train(2000, preset, preset=preset, resume=True)


def test_a_target_that_would_not_come_down_in_time_is_told():
    said = []
    checks.check_length(build("outage_ppo", "scale"), 6_000_000, said.append)
    assert "6,000,000 steps are few for a target that comes down for 36,000,000" in said[0]
    checks.check_length(build("outage_ppo", "scale"), 36_000_000, said.append)
    assert len(said) == 1
    short = fit.scheduled(build("outage_ppo", "scale"), "scale", 6_000_000, {})
    checks.check_length(short, 6_000_000, said.append)
    assert "6,000,000 steps are few for a multiplier that moves once in 144,000" in said[1]
    checks.check_length(build("outage_ppo", "host"), 6_000, said.append)
    assert len(said) == 2


def test_python_environments_have_a_preset_of_their_own(tmp_path):
    assert (default_preset("qcpo"), default_preset("qcpo", "host")) == ("fast", "host")
    small = {"num_envs": 2, "steps_per_env": 40, "hidden_sizes": (8,), "epochs": 1}
    settings = {"steps": 80, "out": tmp_path / "run", "progress": False, **small}
    run = qcrl.train("outage_ppo", Ragged, qcrl.Outage(5.0, 0.1), **settings)
    assert run.config["preset"] == "host"
    assert run.config["algorithm"]["fields"]["reward_scale"] == "auto"
    again = qcrl.train("outage_ppo", Ragged, qcrl.Outage(5.0, 0.1), resume=True, **settings | {"steps": 160})
    assert again.metrics["iteration"].tolist() == [1, 2]
    policies = (again.policy(backend=backend) for backend in ("jax", "numpy"))
    one, two = (policy(np.ones(2), policy.initial(), deterministic=True)[0] for policy in policies)
    np.testing.assert_allclose(one, two, atol=1e-5)


def test_a_comparison_of_learners_is_in_units_of_its_error():
    rows = [learn.Row("T", "qcrl", seed, 10, value, 2.0, 3.0) for seed, value in enumerate([10.0, 12.0])]
    rows += [learn.Row("T", "sb3", seed, 10, value, 8.0, 9.0) for seed, value in enumerate([4.0, 8.0])]
    cells = learn.compare("T", rows)
    assert cells == ["T", "10", "2|2", "11.0 ± 1.0", "6.0 ± 2.0", f"{5 / 5**0.5:+.1f}", "2 of 8", "0.25"]
    assert learn.compare("other", rows) == []
    single = learn.compare("T", [rows[0], rows[2]])
    assert single[3:6] == ["10.0", "4.0", "unknown"]  # one training has no error


def test_what_there_is_no_time_for_is_listed(tmp_path, capsys):
    options = ["bench", "learn", "--tasks", "CartPole-v1", "Ant-v5", "--minutes", "0", "--out"]
    assert main([*options, str(tmp_path / "learn.csv")]) == 0
    assert "Left out: sb3 on Ant-v5, from seed 0 on: no time" in capsys.readouterr().out
