"""Mixtures: one of several policies acts in every episode, wherever it is played, and files keep it."""

import jax
import numpy as np
import pytest

import qcrl
from qcrl import UserError
from qcrl.envs import make
from qcrl.envs.host.environment import open_host
from qcrl.runs.jax_policy import write_mixture
from qcrl.runs.policy import Policy
from qcrl.sampling.play.device import play_on_device
from qcrl.sampling.play.host import play_on_host
from test_evaluation import RISKY, SAFE, write_run

pytest_plugins = ["fakes"]
WEIGHTS = 0.3, 0.7


@pytest.fixture
def mixture(fake, tmp_path):
    """Of route 2, which returns .8, and route 1, which returns 1."""
    run = qcrl.load(write_run(tmp_path, [SAFE, RISKY]))
    parts = [run.policy_of(lane) for lane in run.lanes]
    write_mixture(tmp_path / "mixture.safetensors", parts, WEIGHTS, [{"policy": "a"}, {"policy": "b"}])
    return Policy.load(tmp_path / "mixture.safetensors")


def test_every_episode_is_one_part_s_and_as_often_as_it_weighs(mixture):
    """Means within four standard errors of 4,000 episodes."""
    routes = make("TwoPathEnv-v0").routes
    (totals,) = play_on_device([(mixture, 1)], make("TwoPathEnv-v0"), 4000, deterministic=True)
    safe = totals.returns < 0.9
    np.testing.assert_allclose(totals.returns, np.where(safe, 0.8, 1.0), rtol=1e-6)
    assert safe.mean() == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / 4000) ** 0.5)
    outage = 0.3 * routes[1].outage(15) + 0.7 * routes[0].outage(15)
    assert np.mean(totals.costs > 15) == pytest.approx(outage, abs=4 * (outage * (1 - outage) / 4000) ** 0.5)


def test_in_python_it_is_drawn_at_the_start_of_every_episode(mixture):
    env = open_host(lambda: __import__("gymnasium").make("qcrl/TwoPathEnv-v0"))
    returns = play_on_host(mixture, env, 200, 1, deterministic=True).returns
    assert np.mean(returns < 0.9) == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / 200) ** 0.5)


def test_the_carry_holds_the_part_that_was_drawn(mixture):
    rng = np.random.default_rng(0)
    carries = [mixture.initial(rng) for _ in range(1000)]
    share = np.mean([carry.memory.part == 0 for carry in carries])
    assert share == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / 1000) ** 0.5)
    assert [mixture.initial(5).memory.part for _ in range(3)] == [mixture.initial(5).memory.part] * 3
    for carry in carries[:10]:
        part, obs = int(carry.memory.part), np.zeros(4)
        for _ in range(3):
            action, carry = mixture(obs, carry._replace(action=np.zeros(1)), 0.0, 0.0, deterministic=True)
            assert carry.memory.part == part
            assert action == pytest.approx([SAFE if part == 0 else RISKY])


def test_a_file_without_all_its_parts_is_no_mixture(mixture, tmp_path):
    from qcrl.runs import checkpoints

    path = tmp_path / "torn.safetensors"
    state = mixture.state._replace(parts=mixture.state.parts[:1])
    checkpoints.write_tree(path, jax.device_get(state), {k: v for k, v in mixture.info.items() if k != "name"})
    with pytest.raises(UserError, match="is not a policy of this version"):
        Policy.load(path)


def test_recent_policies_are_those_that_a_shorter_training_ends_with(fake, tmp_path):
    from qcrl.training.loop import train

    def trained(name, **options):
        return train("fake", "TwoPathEnv-v0", qcrl.Outage(15, 0.1), out=tmp_path / name, progress=False, **options)

    run = trained("long", steps=20 * 20, recent=2)
    kept = sorted(path.name for path in (run.path / "policies" / "recent").iterdir())
    assert kept == ["seed0-p0.1-d15-i15.safetensors", "seed0-p0.1-d15-i18.safetensors"]
    short = trained("short", steps=15 * 20)
    recent = run.policy_in(run.path / "policies" / "recent" / kept[0], run.lanes[0])
    np.testing.assert_array_equal(recent.state["weight"], short.policy().state["weight"])
    assert recent.state["weight"] != run.policy().state["weight"]
