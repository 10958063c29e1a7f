"""Recorded episodes, the critic's outage estimate, and films."""

import math
import sys

import jax
import numpy as np
import pytest
from PIL import Image

from qcrl.algos.outage_ppo import OutagePPO
from qcrl.algos.ppo_lag import PPOLag
from qcrl.algos.qcpo import QCPO
from qcrl.cli.main import main
from qcrl.constraints import Outage
from qcrl.envs import make
from qcrl.envs.base import Description
from qcrl.envs.point.pictures import VERMILLION, TwoPathScene
from qcrl.errors import UserError
from qcrl.quantiles import at_level
from qcrl.runs.jax_policy import JaxPolicy
from qcrl.sampling.play.host import Moment, play_on_host
from qcrl.show import episode as replay
from qcrl.show import film as video
from qcrl.show.episode import exceedance, outage_estimator
from qcrl.training.checks import trained_under

pytest_plugins = ["trained"]


def untrained(kind, id):
    env, algorithm = make(id), kind(hidden_sizes=(8,), lstm_size=0, cost_input="none", cost_scale=10.0)
    described, constraints = Description.of(env), [trained_under(algorithm, Outage(15.0, 0.1))]
    start = lambda key: algorithm.policy_state(described, algorithm.init(described, key, constraints))
    return JaxPolicy(algorithm, described, jax.jit(start)(jax.random.key(0)), {})


@pytest.mark.parametrize("level", [0.02, 0.05, 0.5, 0.9, 0.97, 0.98, 0.99, 0.999])
def test_exceedance_inverts_the_critics_quantiles(level):
    quantiles = np.sort(np.random.default_rng(0).exponential(2.0, 25)).astype(np.float32)
    threshold = float(at_level(quantiles, level, 0.7))
    assert exceedance(quantiles[::-1], threshold, 0.7) == pytest.approx(1 - level, rel=1e-3)


def test_costs_below_every_quantile_are_exceeded_for_sure():
    assert exceedance(np.array([2.0, 3.0, 4.0]), 1.0, 1.0) == 1


def test_the_estimate_is_about_what_is_left_of_the_limit():
    policy = untrained(QCPO, "TwoPathEnv-v0")
    carry = policy.initial()
    moment = Moment(policy.inputs(np.array([1, 0, 0, 0], np.float32), carry), carry.memory)
    params, normaliser = policy.state.params, policy.state.normaliser
    outputs, _ = policy.algorithm.network(policy.env).step(params, normaliser, *moment)
    quantiles = np.sort(10 * np.exp(outputs[2:27]))  # after action and value; costs were divided by 10
    shape = 4 / (1 + math.exp(-outputs[27]))
    limit = 2 * float(quantiles[-1])
    estimate = outage_estimator(policy, limit)
    assert estimate(moment, limit - float(quantiles[12])) == pytest.approx(0.5, abs=1e-4)
    # The tail from the last level, .98, at twice its quantile.
    assert estimate(moment, 0.0) == pytest.approx(0.02 ** (2**shape), rel=1e-3)
    assert estimate(moment, limit + 0.01) == 1


@pytest.mark.parametrize(("cost", "over"), [(0.1, False), (0.10001, True)])
def test_costs_at_the_limit_are_over_it_nowhere(cost, over, monkeypatch):
    """The sum of 150 costs of 0.1, which are of single precision, is a little above 15 in double precision."""
    policy = untrained(OutagePPO, "TwoPathEnv-v0")
    carry = policy.initial()
    inputs = policy.inputs(np.array([1, 0, 0, 0], np.float32), carry)
    paid = Moment(inputs._replace(previous_cost=np.full(1, cost, np.float32)), carry.memory)
    moments = [jax.tree.map(lambda x: np.asarray(x)[None], paid)] * 150
    estimate = outage_estimator(policy, 15.0)
    with monkeypatch.context() as patch:
        patch.setattr(replay, "_environment", lambda *given: None)
        patch.setattr(replay, "outage_estimator", lambda *given: lambda moment, spent: 0.5)
        patch.setattr(replay, "play_on_host", lambda *given, watch: list(map(watch, moments)))
        episode = replay.record(policy, 15.0)
    assert episode.costs[-1] > 15
    assert episode.outage.tolist() == [0.5] * 149 + [float(over)]
    assert (estimate(Moment(inputs, carry.memory), float(episode.costs[-1])) == 1) == over
    still = episode._replace(scenes=[TwoPathScene(0, 0, 4)] * 150, outage=None)
    [frame] = video.frames_of([video.Shown(still, 15.0, "")], [149])
    assert (frame[:, 480:] == VERMILLION).all(axis=2).any() == over


def test_a_critic_of_means_has_no_estimate():
    policy = untrained(PPOLag, "TwoPathEnv-v0")
    assert outage_estimator(policy, 15.0) is None
    assert replay.record(policy, 15.0).outage is None


def test_the_chosen_episodes_are_the_worst_and_the_median_by_cost(trained):
    policy = trained.policy(0, 0.1)
    episodes = [replay.record(policy, 15.0, number) for number in range(7)]
    ordered = sorted(episodes, key=lambda episode: episode.costs[-1])
    numbers = replay.choose(policy, ["worst", "median", "first"], 7)
    assert numbers == [ordered[-1].number, ordered[3].number, 0]
    again = replay.record(policy, 15.0, 3)
    assert again.costs.tolist() == episodes[3].costs.tolist()
    assert len({episode.costs[-1] for episode in episodes}) == 7
    assert [episode.outage[-1] for episode in episodes] == [float(episode.costs[-1] > 15) for episode in episodes]


def test_an_episode_in_mujoco_from_its_start_to_its_end():
    episode = replay.record(untrained(QCPO, "DynamicEnv-v0"), 15.0, engine="mujoco")
    assert len(episode.scenes) == len(episode.returns) == len(episode.outage) == 1001
    assert episode.costs[-1] == sum(scene.cost for scene in episode.scenes)
    start, end = episode.scenes[0], episode.scenes[-1]
    assert not np.allclose(start.robot, end.robot)
    assert np.array_equal(start.hazards, end.hazards)
    [first, last] = video.frames_of([video.Shown(episode, 15.0, "title")], [0, 1000])
    assert first.shape == (480, 800, 3)
    assert (first != last).any(axis=2)[:, :480].any()


def test_a_gif_of_every_step(trained, tmp_path, capsys):
    out = tmp_path / "new" / "episode.gif"
    assert main(["render", str(trained.path), "--probability", "0.2", "--episodes", "3", "--out", str(out)]) == 0
    assert "(limit 15)" in capsys.readouterr().out
    with Image.open(out) as film:
        assert (film.n_frames, film.size) == (5, (800, 480))
        film.seek(4)
        assert film.info["duration"] == 2000


def test_two_policies_side_by_side_start_in_the_same_layout(trained, tmp_path, capsys):
    out = tmp_path / "both.gif"
    arguments = ["render", str(trained.path), "--probability", "0.2", "--beside", str(trained.path), "--out", str(out)]
    assert main(arguments) == 0
    assert capsys.readouterr().out.count("(limit 15)") == 2
    with Image.open(out) as film:
        assert film.size == (960, 784)
        left, right = np.split(np.array(film.convert("RGB")), 2, axis=1)
        assert (left == right).all()
    starts = [replay.record(untrained(kind, "DynamicEnv-v0"), 15.0, 4).scenes[0] for kind in (QCPO, PPOLag)]
    assert np.array_equal(*[start.hazards for start in starts])
    assert np.array_equal(*[start.goal for start in starts])
    episode = replay.record(untrained(QCPO, "TwoPathEnv-v0"), 15.0)
    short = episode._replace(scenes=episode.scenes[:2])
    [frame] = video.frames_of([video.Shown(each, 15.0, "") for each in (episode, short)], [4])
    assert frame.shape == (784, 960, 3)


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_an_mp4_where_ffmpeg_is_installed(trained, tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    out = tmp_path / "episode.mp4"
    assert main(["render", str(trained.path), "--probability", "0.1", "--episode", "first", "--out", str(out)]) == 0
    meta = next(ffmpeg.read_frames(str(out)))
    assert meta["size"] == (800, 480)
    assert meta["duration"] == pytest.approx(4.0, abs=0.6)


def test_without_ffmpeg_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UserError, match=r"qcrl\[video\]"):
        video.check_writer(tmp_path / "x.mp4")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "x.avi"], "must end in .mp4, .gif"),
        (["--episode", "best"], "choose one of median, worst, first"),
        (["--episodes", "0"], "must be a whole number from 1"),
        (["--engine", "mujoco"], "engine='jax' only"),
        (["--engine", "bullet"], "choose 'mujoco' or 'jax'"),
        (["--seed", "9"], "has no seed 9"),
    ],
)
def test_mistakes_are_one_sentence(trained, tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    assert main(["render", str(trained.path), "--probability", "0.1", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_episode_that_is_shown_is_the_one_that_was_chosen():
    """On a task where rounding makes another episode within a second."""
    policy = untrained(QCPO, "DynamicEnv-v0")
    [worst] = replay.choose(policy, ["worst"], 3)
    totals = play_on_host(policy, replay._environment(policy, "jax"), 3, replay.SEED, side_by_side=1)
    assert worst == max(range(3), key=lambda number: (totals.costs[number, 0], -totals.returns[number]))
    shown = replay.record(policy, 15.0, worst)
    assert shown.costs[-1] == totals.costs[worst, 0]
    assert shown.returns[-1] == pytest.approx(totals.returns[worst], rel=1e-5)
