"""Films of environments that run in Python, and the processes that run their episodes."""

import io

import numpy as np
import pytest
from PIL import Image

import qcrl
from host_envs import SMALL, Drawn, Ragged
from qcrl import UserError
from qcrl.cli.main import main
from qcrl.envs.host.environment import open_host
from qcrl.evaluation.evaluate import Player
from qcrl.sampling.play.host import Crew, play_on_host
from qcrl.show import episode as replay


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    options = {"steps": 160, "out": tmp_path_factory.mktemp("filmed") / "run", "progress": False, **SMALL, "epochs": 1}
    return qcrl.train("ppo_lag", "host_envs:Drawn", qcrl.Outage(5.0, 0.1), **options)


def test_an_episode_is_seen_step_by_step(run):
    policy, env = run.policy(), open_host(Drawn)
    [worst] = replay.choose(policy, ["worst"], 5, env=env)
    episode = replay.record(policy, 5.0, worst, env=env)
    seen = [np.array(Image.open(io.BytesIO(scene.png))) for scene in episode.scenes]
    assert [int(frame.max()) for frame in seen] == [20 * step for step in range(len(seen))]
    assert seen[0].shape == (24, 48, 3)
    assert len(seen) == len(episode.costs) == len(episode.returns)
    totals = play_on_host(policy, env, 5, replay.SEED, side_by_side=1)
    assert episode.costs[-1] == pytest.approx(totals.costs.max(), rel=1e-5)


def test_the_command_writes_a_film(run, tmp_path, capsys):
    out = tmp_path / "episode.gif"
    given = ["render", str(run.path), "--out", str(out), "--trust", "host_envs", "--workers", "2"]
    assert main([*given, "--episodes", "3"]) == 0
    with Image.open(out) as film:
        assert film.n_frames >= 4
        assert film.info["duration"] == 100
        film.seek(2)
        assert film.convert("RGB").getpixel((240, 240)) == pytest.approx((40, 40, 40), abs=12)
    assert "limit 5)" in capsys.readouterr().out


def test_what_cannot_be_drawn_says_so(run):
    policy = run.policy()
    with pytest.raises(UserError, match="render_mode is None, but must be 'rgb_array'"):
        replay.record(policy, 5.0, env=open_host(Ragged, "cost"))
    with pytest.raises(UserError, match="given as an object"):
        replay.record(policy, 5.0, env=open_host(Ragged(), "cost"))


def test_workers_stay_from_one_policy_to_the_next(run):
    play = Player(run, open_host("host_envs:Drawn"), processes=2, progress=False)
    first = play(run.lanes, 20, "evaluate", 0)
    assert play.crew.kept is not None
    crew = play.crew
    living = [worker.process for worker in crew.kept[2].workers]
    again = play(run.lanes, 20, "evaluate", 0)
    assert [worker.process.pid for worker in crew.kept[2].workers] == [each.pid for each in living]
    alone = Player(run, open_host("host_envs:Drawn"), progress=False)(run.lanes, 20, "evaluate", 0)
    for lane in run.lanes:
        np.testing.assert_array_equal(first[lane].costs, again[lane].costs)
        np.testing.assert_array_equal(first[lane].costs, alone[lane].costs)
    del play
    assert crew.kept is None
    assert not any(each.is_alive() for each in living)
    with pytest.raises(UserError, match="needs none"):
        replay.choose(run.policy(), ["first"], 1, workers=2)
    assert Crew().kept is None
