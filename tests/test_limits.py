"""One policy for every limit: what is drawn, the multiplier over the ranges, and what is learned on two routes."""

import json
import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import qcrl
from qcrl import Outage, UserError
from qcrl.algos import limits
from qcrl.algos.outage_ppo import OutagePPO
from qcrl.cli.main import main
from qcrl.envs.drawing import Drawing
from qcrl.envs.two_path import TwoPathEnv
from qcrl.evaluation.verify import verify
from qcrl.nets.network import Inputs
from qcrl.runs import checkpoints, lane
from qcrl.runs.folder import load
from qcrl.sampling.record import Episodes, Window
from qcrl.show.figures import plot
from qcrl.show.report import content

BOTH = Outage((5, 30), (0.02, 0.5))
SMALL = dict(
    num_envs=256,
    steps_per_env=4,
    chunk_length=4,
    hidden_sizes=(32,),
    minibatches=4,
    learning_rate=3e-3,
    learning_rate_halving=300.0,
    out_of_phase=False,
    outage_scale=1.0,
    discount=1.0,
    cost_input="none",
    integral_gain=0.1,
    proportional_gain=1.0,
    gain_smoothing=0.5,
)


def test_positions_and_numbers_belong_together():
    assert BOTH.locate(5, 0.5) == (0.0, 1.0)
    for position in [(0.0, 0.0), (0.3, 0.7), (1.0, 1.0)]:
        now = BOTH.ask(position)
        assert BOTH.locate(now.limit, now.probability) == pytest.approx(position)
    assert BOTH.middle.limit == 17.5
    assert BOTH.middle.probability == pytest.approx(0.1)
    assert lane.kinds.from_dict(BOTH.as_dict()) == BOTH
    assert "5 to 30" in BOTH.words
    for asked in [(4, 0.1), (31, 0.1), (10, 0.6), (True, 0.1), ("x", 0.1)]:
        with pytest.raises(UserError, match="trained for"):
            BOTH.locate(*asked)
    with pytest.raises(UserError, match="say which one"):
        BOTH.locate(limit=10)


def test_a_lane_for_ranges_becomes_lanes_for_numbers():
    trained = lane.make_lane(3, (BOTH,), BOTH)
    assert str(trained) == "seed3-p0.02to0.5-d5to30"
    assert (trained.limit, trained.probability) == (17.5, pytest.approx(0.1))
    judged = trained.judged([5, 10], 0.1)
    assert [str(each) for each in judged] == ["seed3-p0.1-d5", "seed3-p0.1-d10"]
    assert all(each.trained is trained for each in judged)
    assert len(trained.judged()) == 9
    assert lane.from_dict(trained.as_dict()) == trained
    plain = lane.make_lane(3, (Outage(5, 0.1),), Outage(5, 0.1))
    assert plain.judged() == [plain]


def test_nodes_share_every_position():
    positions = jnp.array(np.random.default_rng(0).random((50, 2)))
    shares = limits.shares(BOTH, positions)
    assert shares.shape == (50, 24)
    np.testing.assert_allclose(shares.sum(-1), 1.0, rtol=1e-5)
    grid = np.stack(np.meshgrid(np.linspace(0, 1, 6), np.linspace(0, 1, 4), indexing="ij"), -1).reshape(-1, 2)
    np.testing.assert_allclose(limits.shares(BOTH, jnp.array(grid)), np.eye(24), atol=1e-5)
    np.testing.assert_allclose(shares @ grid, positions, atol=1e-5)
    only = Outage((5, 30), 0.1)
    assert limits.counts(only) == (6, 1)
    assert limits.fewest_episodes(only, 10) == 1000


def test_a_node_is_steered_by_the_recent_episodes_near_it():
    only, size = Outage((5, 30), 0.1), 2000
    window = Window.init(size, 1, draws=True)
    position = np.random.default_rng(1).random((size, 2)).astype(np.float32)
    limit = 5 + 25 * position[:, 0]
    # Lately every episode is over its limit where that is low, and none where it is high.
    late = np.arange(size) >= 1000
    costs = np.where(late & (limit < 10), limit + 1, 0.0)
    episodes = Episodes(
        jnp.ones(size, bool), jnp.arange(size), jnp.zeros(size), jnp.array(costs)[:, None], jnp.array(position)
    )
    ratios = limits.outage_ratios(only, jnp.array(costs), window.add(episodes), 10, jnp.ones(()))
    assert float(ratios[0]) == pytest.approx(10.0)
    np.testing.assert_array_equal(ratios[2:], 0.0)
    unknown = jnp.asarray(0.75)
    np.testing.assert_array_equal(limits.outage_ratios(only, jnp.zeros(size), window, 10, unknown), 0.75)


def test_every_episode_draws_and_the_policy_sees_it():
    algorithm = tiny()
    env = Drawing(TwoPathEnv())
    constraint = Outage((15, 30), 0.1)
    state = jax.jit(lambda: algorithm.init(env, jax.random.key(0), [constraint]))()
    before = np.asarray(state.actors.inputs.asked)
    state, metrics = jax.jit(lambda state: algorithm.iterate(env, state))(state)
    assert before.shape == (8, 2)
    assert len(np.unique(before)) == 16
    np.testing.assert_array_equal(metrics.episodes.asked[:8], before)
    assert not np.isin(np.asarray(state.actors.inputs.asked), before).any()
    limit = 15 + 15 * np.asarray(state.window.asked[:16, 0])
    assert float(metrics.scalars["outage"]) == pytest.approx((np.asarray(state.window.cost[:16, 0]) > limit).mean())
    assert state.learner.multiplier.value.shape == (6,)
    inputs = Inputs.first(jnp.zeros(4), 1, 1)._replace(spent=jnp.array([6.0]), asked=jnp.array([0.2, 0.5]))
    seen = algorithm.see(env, (constraint,), inputs).obs[4:]
    np.testing.assert_allclose(seen, [12 / 18, 1.0, -0.6, 12 / 30], rtol=1e-6)


def tiny():
    shape = dict(num_envs=8, steps_per_env=8, chunk_length=4, hidden_sizes=(8,), minibatches=1, out_of_phase=False)
    return replace(OutagePPO.presets["fast"], **shape)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("limits") / "r", 10_240)


def trained(out, steps):
    return qcrl.train("outage_ppo", "TwoPathEnv-v0", Outage((15, 30), 0.1), steps, out=out, progress=False, **SMALL)


@pytest.mark.large
def test_one_policy_takes_the_steeper_route_as_often_as_each_limit_allows(tmp_path):
    run = trained(tmp_path / "r", 800_000)
    policy, env = run.policy(), TwoPathEnv()
    risky, steady = env.routes
    for limit in (15.0, 20.0, 25.0, 30.0):
        inputs = policy.inputs(np.eye(4, dtype=np.float32)[0], policy.initial(limit=limit))
        actor, algorithm = policy.state, policy.algorithm
        seen = algorithm.see(policy.env, actor.constraints, jax.tree.map(jnp.asarray, inputs))
        outputs, _ = algorithm.network(policy.env).step(
            actor.params, actor.normaliser, seen, algorithm.initial_memory(env)
        )
        mean = algorithm.squash(actor.params, algorithm.read(outputs, actor.constraints).head)
        share = norm.cdf(-float(mean[0]) / float(np.exp(actor.params["log_std"][0])))
        outage = share * risky.outage(limit) + (1 - share) * steady.outage(limit)
        best = np.clip((0.1 - steady.outage(limit)) / (risky.outage(limit) - steady.outage(limit)), 0, 1)
        assert outage <= 0.14
        assert share >= best - 0.25
    table = run.metrics
    assert table["outage_allowed"][-1] == pytest.approx(0.1)


def test_it_is_evaluated_certified_and_drawn_at_the_limits_that_are_asked_for(run, tmp_path, capsys):
    result = qcrl.evaluate(run, episodes=400, limit=[15, 30], progress=False)
    assert [(row.limit, row.probability) for row in result.per_lane] == [(15, 0.1), (30, 0.1)]
    assert result.per_lane[0].outage > result.per_lane[1].outage
    certificate = qcrl.certify(run, limit=30, promise=0.3, progress=False)
    assert certificate.verdict == "certified"
    assert certificate.at_run_time
    assert certificate.file == "certificate-seed0-p0.1-d15to30-at-p0.1-d30-promise0.3.json"
    assert replace(certificate, trained_probability=0.05).file != certificate.file
    assert verify(run.path / certificate.file, progress=False)[1] is None
    (row,) = qcrl.evaluate(run, 400, promised=True, progress=False).per_lane
    assert (row.limit, row.probability) == (30, 0.3)
    assert row.outage == pytest.approx(result.per_lane[1].outage, abs=0.1)
    settled = run.promised()
    assert settled.position() == ()
    np.testing.assert_array_equal(settled.state.asked, run.policy(limit=30).state.asked)
    assert main(f"render {run.path} --promised --episodes 1 --out {tmp_path}/a.gif".split()) == 0
    assert "(limit 30)" in capsys.readouterr().out
    assert main(f"export {run.path} --promised --format numpy --out {tmp_path}/a.safetensors".split()) == 0
    assert "ask it for limit 30 and probability 0.1." in capsys.readouterr().out
    titles = [each["title"] for each in content([run.path], ["first"], 1, "jax", lambda message: None)["replays"]]
    assert [("promised policy" in each, each.split(", ")[3][:8]) for each in titles] == [
        (False, "d = 15: "),
        (False, "d = 22.5"),
        (True, "d = 30: "),
    ]
    assert plot([run.path], tmp_path / "limits.svg", "limits").stat().st_size > 1000
    with pytest.raises(UserError, match="trained for is 15 to 30"):
        qcrl.evaluate(run, episodes=10, limit=40, progress=False)
    with pytest.raises(UserError, match="trained for is 15 to 30"):
        run.policy().initial(limit=14)
    same = run.policy(limit=20, probability=0.1)
    obs = np.eye(4)[0]
    np.testing.assert_array_equal(
        same(obs, same.initial(), rng=0)[0], run.policy()(obs, run.policy().initial(limit=20), rng=0)[0]
    )


def test_a_certificate_chosen_among_seeds_at_a_limit_of_the_range_is_verified(run, tmp_path):
    """The second seed is a copy of the first."""
    copy = load(shutil.copytree(run.path, tmp_path / "copy", ignore=shutil.ignore_patterns("certificate-*")))
    (own,) = copy.lanes
    other = replace(own, seed=1)
    path = shutil.copy(copy.policy_file(own), copy.path / "policies" / f"{other}.safetensors")
    checkpoints.adopt(path, path, {"seed": 1})
    config = json.loads((copy.path / "config.json").read_text())
    config["lanes"].append(other.as_dict())
    (copy.path / "config.json").write_text(json.dumps(config))
    certificate = qcrl.certify(copy.path, limit=30, promise=0.3, episodes=100, progress=False)
    assert {row["lane"] for row in certificate.calibration} == {"seed0-p0.1-d30", "seed1-p0.1-d30"}
    assert verify(copy.path / certificate.file, progress=False) == (certificate, None)


@pytest.mark.large
def test_environments_in_python_draw_as_well(tmp_path):
    shape = dict(num_envs=4, steps_per_env=8, chunk_length=4, hidden_sizes=(8,), minibatches=1, out_of_phase=False)
    run = qcrl.train(
        "outage_ppo", "host_envs:Ragged", Outage((2, 6), (0.1, 0.4)), 320, out=tmp_path / "r", progress=False, **shape
    )
    assert 0.1 < run.metrics["outage_allowed"][-1] < 0.4
    policy = run.policy()
    begun_at = [policy.initial(limit=limit, probability=0.2) for limit in (2, 6)]
    actions = [policy(np.zeros(2), begun, rng=1, deterministic=True)[0] for begun in begun_at]
    assert not np.allclose(*actions)
    assert len(qcrl.evaluate(run, 5, limit=3, probability=0.2, progress=False).per_lane) == 1
