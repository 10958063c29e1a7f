"""Outage-PPO: its signal against hand-made episodes, its inputs, and what it learns where the best answer is known."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qcrl
from qcrl import Mean, Outage, UserError
from qcrl.algos.advantages import Links
from qcrl.algos.batch import Sampled
from qcrl.algos.outage_ppo import OutagePPO, outages
from qcrl.envs.base import Description
from qcrl.envs.two_path import TwoPathEnv
from qcrl.nets.network import Inputs
from qcrl.sampling.record import Episodes, Window

SMALL = dict(num_envs=8, steps_per_env=8, chunk_length=8, hidden_sizes=(16,), minibatches=2, out_of_phase=False)
TINY = replace(OutagePPO.presets["fast"], **SMALL)
ENV = TwoPathEnv()


def test_outages_sum_to_whether_the_episode_is_over_its_limit():
    costs = np.random.default_rng(0).exponential(4.0, (20, 50)).astype(np.float32)
    spent = np.concatenate([np.zeros((1, 50), np.float32), np.cumsum(costs, axis=0)])
    over = jnp.asarray(spent > 60.0)
    signal = outages(over[:-1], over[1:])
    np.testing.assert_array_equal(signal.sum(axis=0), spent[-1] > 60.0)
    assert 0 < float(signal.sum()) < 50
    assert {*np.unique(signal)} == {0.0, 1.0}


def signal_of(cost, spent, now, later, ended, limit=10.0, **changes):
    """The cost signal of one environment, step by step."""
    column = lambda x: jnp.asarray(x, jnp.float32)[:, None]
    inputs = SimpleNamespace(spent=column(spent)[..., None])
    total = column(np.asarray(spent) + np.asarray(cost))[..., None]
    trajectory = SimpleNamespace(episode_cost=total, inputs=inputs, ended=jnp.asarray(ended, bool)[:, None])
    links = Links(jnp.zeros((len(cost), 1), bool), ~trajectory.ended)
    state = SimpleNamespace(constraints=(Outage(limit, 0.1),))
    algorithm = replace(TINY, outage_scale=1.0, **changes)
    return algorithm.cost_signal(ENV, state, Sampled(trajectory, column(now), column(later), links))


def test_the_critic_knows_no_discount_and_nothing_after_an_outage_or_an_end():
    # The limit is passed in the second step; the last step ends the episode, here by its time limit.
    signal = signal_of([6, 6, 1, 1], [0, 6, 12, 13], [0.3, 0.5, 0.7, 0.7], [0.5, 0.7, 0.7, 0.9], [0, 0, 0, 1])
    one_step = signal_of(
        [6, 6, 1, 1], [0, 6, 12, 13], [0.3, 0.5, 0.7, 0.7], [0.5, 0.7, 0.7, 0.9], [0, 0, 0, 1], cost_gae_lambda=0.0
    )
    np.testing.assert_allclose(one_step.advantage[:, 0], [0.5 - 0.3, 1 - 0.5, 0, 0], atol=1e-6)
    np.testing.assert_allclose(signal.advantage[:, 0], [0.2 + 0.97 * 0.5, 0.5, 0, 0], atol=1e-6)
    np.testing.assert_array_equal(signal.targets.open[:, 0], [True, True, False, False])
    kept = signal_of([1, 1], [0, 1], [0.3, 0.5], [0.5, 0.9], [0, 1], cost_target_lambda=1.0)
    np.testing.assert_allclose(kept.targets.returns[:, 0], [0.0, 0.0], atol=1e-6)


def test_an_outage_is_charged_once_whatever_costs_round_to():
    """Ten costs of .1, summed in double precision as the host does: the limit of .7 is passed by the eighth."""
    steps = np.arange(10)
    signal = signal_of([0.1] * 10, 0.1 * steps, [0] * 10, [0] * 10, [0] * 9 + [1], cost_gae_lambda=0.0, limit=0.7)
    np.testing.assert_allclose(signal.advantage[:, 0], steps == 7, atol=1e-6)


def test_steps_after_the_outage_do_not_train_the_critic():
    signal = signal_of([6, 6, 1], [0, 6, 12], [0, 0, 0], [0, 0, 0], [0, 0, 1])
    losses = [TINY.cost_loss(jnp.array([[0.5], [0.5], [wrong]]), signal.targets)[0] for wrong in (0.0, 99.0)]
    assert float(losses[0]) == float(losses[1]) > 0


@pytest.mark.parametrize(("timed", "size"), [(True, 2), (False, 1)])
def test_budget_and_time_left_are_seen(timed, size):
    env = Description("X-v0", 3, 1, 100, False, timed=timed)
    inputs = Inputs.first(jnp.zeros(3), 1, 1)._replace(spent=jnp.array([5.0]), time=jnp.float32(25))
    seen = TINY.see(env, (Outage(20.0, 0.1),), inputs).obs
    np.testing.assert_allclose(seen[3:], [0.75, 0.75][:size])
    over = TINY.see(env, (Outage(20.0, 0.1),), inputs._replace(spent=jnp.array([500.0]))).obs
    assert float(over[3]) == pytest.approx(-0.2)
    nothing = TINY.see(env, (Outage(0.0, 0.1),), inputs._replace(spent=jnp.array([0.0]))).obs
    assert float(nothing[3]) == 0.0
    params, _ = TINY.init_params(env, jax.random.key(0))
    assert params["mlp_0"]["kernel"].shape[0] == 3 + 1 + size


def test_the_critic_of_a_mean_that_stands_alone_speaks_in_costs():
    """Inside the learner they are counted in limits."""
    constraint = Mean(20.0)
    policy = TINY.policy_state(ENV, TINY.init(ENV, jax.random.key(0), [constraint]))
    _, obs = ENV.reset(jax.random.key(1))
    inputs, memory = Inputs.first(obs, ENV.action_size, 1), TINY.initial_memory(ENV)
    seen = TINY.see(ENV, policy.constraints, inputs)
    outputs, _ = TINY.network(ENV).step(policy.params, policy.normaliser, seen, memory)
    assert float(TINY.critic(ENV, policy, inputs, memory)) == pytest.approx(20.0 * float(outputs[-1]), rel=1e-5)


def test_it_mixes_routes_as_the_asked_outage_allows(tmp_path):
    """Route 1 is over the limit in .287 of episodes, route 2 in .08: the best share of route 1 at .1 is .097."""
    changes = dict(
        num_envs=64, steps_per_env=16, chunk_length=16, hidden_sizes=(32,), minibatches=4, learning_rate=3e-3
    )
    run = qcrl.train(
        "outage_ppo",
        "TwoPathEnv-v0",
        Outage(15, 0.1),
        steps=400_000,
        out=tmp_path / "r",
        progress=False,
        **changes,
        out_of_phase=False,
        learning_rate_halving=400.0,
    )
    result = qcrl.evaluate(run, episodes=4000, progress=False).per_lane[0]
    share = (result.mean_return - 0.8) / 0.2
    exact = share * 0.2865 + (1 - share) * 0.0803
    assert exact <= 0.115
    assert result.mean_return >= 0.798


def test_it_trains_on_python_environments_with_costs_that_are_no_whole_numbers(tmp_path):
    run = qcrl.train(
        "outage_ppo", "host_envs:Ragged", Outage(4, 0.2), steps=640, out=tmp_path / "r", progress=False, **SMALL
    )
    assert not run.config["environment"]["timed"]
    assert np.isfinite(run.metrics["outage_loss"]).all()
    policy = run.policy()
    carry = policy.initial()
    _, carry = policy(np.zeros(2), carry, rng=0)
    actions = [policy(np.zeros(2), carry, cost=cost, rng=1)[0] for cost in (0.0, 3.9)]
    assert not np.allclose(*actions)
    qcrl.train("outage_ppo", "host_envs:Ragged", Outage(0, 0.2), steps=64, out=tmp_path / "0", progress=False, **SMALL)


def test_out_of_phase_every_episode_is_whole_and_they_end_evenly():
    env = TwoPathEnv(length=8)
    algorithm = replace(TINY, num_envs=8, steps_per_env=2, chunk_length=2, out_of_phase=True, minibatches=1)
    state = jax.jit(lambda: algorithm.init(env, jax.random.key(0), [Outage(15, 0.1)]))()
    iterate = jax.jit(lambda state: algorithm.iterate(env, state))
    params = state.learner.params
    assert int(state.iteration) == -3
    for _ in range(3):
        state, metrics = iterate(state)
        assert not metrics.episodes.finished.any()
    assert (int(state.iteration), int(state.env_steps)) == (0, 0)
    jax.tree.map(np.testing.assert_array_equal, state.learner.params, params)
    assert sorted(state.actors.inputs.time.tolist()) == [0, 0, 2, 2, 4, 4, 6, 6]
    for _ in range(8):
        before = state.actors.inputs.time
        state, metrics = iterate(state)
        assert int(metrics.episodes.finished.sum()) == 2
        np.testing.assert_array_equal(state.actors.inputs.time, (before + 2) % 8)
        assert set(np.asarray(metrics.episodes.return_)[np.asarray(metrics.episodes.finished)].tolist()) <= {
            np.float32(1.0),
            np.float32(0.8),
        }
    with pytest.raises(UserError, match="out_of_phase"):
        replace(algorithm, steps_per_env=6, chunk_length=6).check(env)


def after_episodes(algorithm, costs):
    """A state whose recent episodes had these costs, the newest last; at most .1 of them may cost more than 10."""
    state = algorithm.init(ENV, jax.random.key(0), (Outage(10.0, 0.1),))
    blank = jnp.zeros(len(costs))
    episodes = Episodes(blank == 0, blank.astype(jnp.int32), blank, jnp.asarray(costs, jnp.float32)[:, None])
    return state._replace(window=state.window.add(episodes), probability=jnp.asarray(0.1))


def test_an_outage_is_steered_to_the_margin_below_its_target_and_a_mean_less_far():
    algorithm = replace(TINY, target_margin=0.25)
    state = after_episodes(algorithm, [9.0] * 20)._replace(constraints=(Mean(10.0), Outage(10.0, 0.1)))
    (mean, at), (outage, below) = (critic.steering(ENV, view) for critic, view in algorithm._views(state))
    assert (float(mean / at), float(outage), float(below)) == (pytest.approx(1.0), 0.0, 0.75)


@pytest.mark.parametrize(("iteration", "times"), [(0, 100), (5, 10), (10, 1), (90, 1)])
def test_a_target_comes_down_to_what_was_asked_for(iteration, times):
    """From .1 to .001, as a straight line in the logarithm; one above .1 stays."""
    algorithm = replace(TINY, falls_from=0.1, falls_for=10.0)
    state = lambda asked: SimpleNamespace(iteration=jnp.asarray(iteration), probability=jnp.asarray(asked))
    assert float(algorithm.eased(state(0.001))) == pytest.approx(times, rel=1e-4)
    assert float(algorithm.eased(state(0.2))) == 1
    assert TINY.eased(state(0.001)) == 1


def test_while_the_target_is_higher_so_are_the_outages_that_meet_it():
    eased = replace(TINY, falls_from=0.4)
    costs = [30.0] * 40 + [0.0] * 60
    asked, now = (float(each.steering(ENV, after_episodes(each, costs)).statistic) for each in (TINY, eased))
    assert (asked, now) == (pytest.approx(4), pytest.approx(1))


def test_a_node_of_a_range_rests_while_nothing_is_known_of_it():
    algorithm = replace(TINY, target_margin=0.25)
    state = algorithm.init(ENV, jax.random.key(0), (Outage((5, 30), 0.1),))
    blank, asked = jnp.zeros(4), jnp.tile(jnp.array([0.05, 0.0]), (4, 1))
    cheap = Episodes(blank == 0, blank.astype(jnp.int32), blank, blank[:, None], asked)
    seen = state._replace(window=Window.init(100, draws=True).add(cheap))
    after = algorithm._steer(ENV, seen)[0].integral
    before = state.learner.multiplier.integral
    assert bool(jnp.all(after[:2] < before[:2]))
    assert bool(jnp.all(after[2:] == before[2:]))


@pytest.mark.parametrize("apart", [False, True])
def test_heads_begin_small_but_for_the_value(apart):
    """A cost critic that says nothing at first leaves the policy alone until there are costs."""
    algorithm = replace(TINY, separate_critics=apart)
    params = [replace(algorithm, initial_head=share).init_params(ENV, jax.random.key(0))[0] for share in (1.0, 0.01)]
    whole, small = (
        np.hstack([each[name]["kernel"] for name in ("heads", "critic_heads") if name in each]) for each in params
    )
    factors = [*[0.01] * ENV.action_size, 1.0, 0.01]
    np.testing.assert_allclose(small / whole, np.broadcast_to(factors, whole.shape), rtol=1e-5)


def test_kernels_begin_as_spread_as_orthogonal_ones_where_actions_are_numbers():
    """With a gain of sqrt(2), as PPO is mostly used, those have a spread of sqrt(2 / in)."""
    algorithm = replace(TINY, separate_critics=True, hidden_sizes=(64, 64))
    gain = OutagePPO.presets["host"].initial_gain
    numbers = Description("numbers", 2, 3, 9, fixed_length=True)
    for env, spread in ((numbers, (2 / 64) ** 0.5), (replace(numbers, discrete=True), (1 / 3 / 64) ** 0.5)):
        plain, host = (replace(algorithm, initial_gain=g).init_params(env, jax.random.key(0))[0] for g in (1.0, gain))
        for name in ("mlp_1", "critic_1"):
            assert float(jnp.std(host[name]["kernel"])) == pytest.approx(spread, rel=0.05)
        for name in ("heads", "critic_heads"):
            np.testing.assert_array_equal(host[name]["kernel"], plain[name]["kernel"])


def test_where_most_are_over_the_limit_training_works_with_one_that_half_are_over():
    algorithm = replace(TINY, most_over=0.5, steering_outages=2.0, driver_window=20)

    def limit(costs):
        state = after_episodes(algorithm, costs)
        return float(algorithm._raised(ENV, state))

    costs = np.arange(21.0, 41.0)
    assert limit(costs) == pytest.approx(38 * (1 - 1e-4))  # half of the newest quarter
    assert limit([1.0] * 10 + [*costs[:10]]) == 10  # no more than half are over
    assert limit([0.0, *[40.0] * 19]) == pytest.approx(40 * (1 - 1e-4))  # and not 40, which none is over
    # Of two constraints each looks at as many episodes as its own probability asks for.
    late = after_episodes(replace(algorithm, window=200), [0.0] * 180 + [9.0] * 20)
    both = late._replace(constraints=(Outage(100.0, 0.5), Outage(1.0, 0.01)))
    assert [float(algorithm._raised(ENV, view)) for _, view in algorithm._views(both)] == [100.0, 1.0]


def test_a_raised_limit_is_what_is_seen_while_training_and_never_what_is_saved():
    algorithm = replace(TINY, most_over=0.5)
    state = algorithm.init(ENV, jax.random.key(0), (Outage(10.0, 0.1),))
    assert float(algorithm.actor(ENV, state).constraints[0].limit) == 10
    raised = state._replace(learner=state.learner._replace(limits=(jnp.asarray(40.0),)))
    assert float(algorithm.actor(ENV, raised).constraints[0].limit) == 40
    assert float(algorithm.policy_state(ENV, raised).constraints[0].limit) == 10
    assert TINY.init(ENV, jax.random.key(0), (Outage(10.0, 0.1),)).learner.limits == ()


def test_on_the_fixed_scale_a_passed_limit_is_seen_apart_whatever_was_seen_before():
    algorithm = replace(TINY, normalise_budget=False, cost_scale=1.0)
    constraints = (Outage(10.0, 0.1),)
    inputs = Inputs.first(jnp.zeros((4, ENV.observation_size)), ENV.action_size, 1)
    inputs = inputs._replace(spent=jnp.array([[0.0], [10.0], [10.5], [90.0]]))
    seen = algorithm.see(ENV, constraints, inputs).obs[:, ENV.observation_size]
    np.testing.assert_allclose(seen, [1.0, 0.0, -1.0, -1.0])
    parts = replace(algorithm, budget_parts=(1.0, 0.25))
    inputs = inputs._replace(spent=jnp.array([[0.0], [7.0], [8.0], [10.5]]))
    seen = parts.see(ENV, constraints, inputs).obs[:, ENV.observation_size :][:, :2]
    np.testing.assert_allclose(seen, [[1.0, 1.0], [0.3, 1.0], [0.2, 0.8], [-1.0, -1.0]], atol=1e-6)
    normaliser = algorithm.init(ENV, jax.random.key(0), constraints).learner.normaliser
    late = normaliser.update(jnp.full((100, normaliser.mean.size), 0.99))
    held = algorithm.hold(ENV, constraints, late)
    assert float(held.mean[ENV.observation_size]) == 1.0  # a whole budget is seen as 0
    assert float(held.mean[ENV.observation_size + 1]) == 0.5  # of the time the middle
    assert float(held.variance[ENV.observation_size]) == pytest.approx(1 / 12)
    np.testing.assert_array_equal(held.mean[: ENV.observation_size], late.mean[: ENV.observation_size])


def test_what_is_seen_at_first_is_nothing_also_of_a_limit_of_0_and_the_middle_of_a_range():
    algorithm = replace(TINY, normalise_budget=False, budget_parts=(1.0, 0.25))
    inputs = Inputs.first(jnp.zeros((3, ENV.observation_size)), ENV.action_size, 1)
    inputs = inputs._replace(spent=jnp.array([[0.0], [1.0], [5.0]]), asked=jnp.full((3, 2), 0.5))

    def seen(constraint):
        normaliser = algorithm.init(ENV, jax.random.key(0), (constraint,)).learner.normaliser
        own = slice(ENV.observation_size, ENV.observation_size + algorithm._added(ENV, (constraint,)))
        shown = algorithm.see(ENV, (constraint,), inputs).obs
        return ((shown - normaliser.mean[: shown.shape[1]])[:, own]) / jnp.sqrt(normaliser.variance[own])

    budgets = seen(Outage(0.0, 0.1))[:, :2]
    np.testing.assert_allclose(budgets, np.outer([0, 1, 1], [-(12**0.5) * 2] * 2), atol=1e-5)
    both = seen(Outage((5.0, 15.0), (0.01, 0.1)))
    np.testing.assert_allclose(both[:, -3:-1], 0.0, atol=1e-6)


def test_of_a_range_from_0_the_low_end_is_seen_as_what_is_just_above_it():
    algorithm = replace(TINY, normalise_budget=False, cost_scale="auto")
    first = Inputs.first(jnp.zeros((2, ENV.observation_size)), ENV.action_size, 1)
    inputs = first._replace(asked=jnp.array([[0.0, 0.5], [1e-6, 0.5]]))
    low, above = algorithm.see(ENV, (Outage((0.0, 20.0), 0.1),), inputs).obs
    np.testing.assert_allclose(low, above, atol=1e-5)


def test_the_window_holds_as_many_outages_as_steer():
    assert replace(TINY, steering_outages=50.0).fewest_episodes(Outage(10.0, 0.1)) == 500
    assert TINY.fewest_episodes(Outage(10.0, 0.01)) == 1000


def test_a_multiplier_of_0_over_a_range_is_no_division_by_0():
    algorithm = replace(TINY, relative_gains=False, integral_power=1.0, initial_multiplier=0.0)
    constraint = Outage((5.0, 15.0), 0.1)
    state = algorithm.init(ENV, jax.random.key(0), (constraint,))
    column = jnp.zeros((4, 1))
    inputs = SimpleNamespace(spent=column[..., None], asked=jnp.full((4, 1, 2), 0.5))
    last = jnp.asarray([0, 0, 0, 1], bool)[:, None]
    trajectory = SimpleNamespace(episode_cost=20 + column[..., None], inputs=inputs, ended=last)
    signal = algorithm.cost_signal(ENV, state, Sampled(trajectory, column, column, Links(last, ~last)))
    assert bool(jnp.isfinite(signal.advantage).all())


def test_the_multiplier_rests_while_costs_come_down_from_far_above_the_limit():
    algorithm = replace(TINY, most_over=0.5, steering_outages=2.0, driver_window=20)
    steering = lambda own, costs: float(own.steering(ENV, after_episodes(own, costs)).statistic)
    down, level, near = [30.0] * 10 + [20.0] * 10, [30.0] * 20, [30.0] * 8 + [9.0] * 12
    coming = after_episodes(algorithm, down)
    assert algorithm._steer(ENV, coming) == coming.learner.multipliers
    assert steering(algorithm, level) == pytest.approx(10)
    assert steering(algorithm, near) == pytest.approx(4)
    assert steering(TINY, down) == pytest.approx(10)
    assert steering(replace(algorithm, falls_from=0.9), down) == steering(algorithm, down)
