"""Environments in another Python: here the same one, but started anew, which sees nothing of this process."""

import subprocess
import sys

import numpy as np
import pytest

import qcrl
from host_envs import SMALL, Nested, Ragged, SixValues
from qcrl import UserError
from qcrl.cli.main import main
from qcrl.envs.host import elsewhere, elsewhere_server
from qcrl.envs.host.check import check_env
from qcrl.envs.host.environment import open_host


@pytest.fixture(autouse=True)
def in_the_folder_of_the_tests(monkeypatch, request):
    monkeypatch.chdir(request.path.parent)


def test_it_steps_as_the_environment_does_here():
    there = elsewhere.Elsewhere(sys.executable, "host_envs:Nested")
    here = Nested()
    assert there.observation_space == here.observation_space
    assert there.action_space == here.action_space
    for env in (here, there):
        env.action_space.seed(3)
    (obs, _), (seen, _) = here.reset(seed=4), there.reset(seed=4)
    for _ in range(3):
        for key in obs:
            np.testing.assert_array_equal(seen[key], obs[key])
        obs, *rest = here.step(here.action_space.sample())
        seen, *others = there.step(there.action_space.sample())
        assert [float(x) for x in others[:-1]] == [float(x) for x in rest[:-1]]
        assert others[-1] == pytest.approx(rest[-1])
    process = there.process
    there.close()
    assert process.poll() is not None


def test_it_is_trained_on_evaluated_and_checked(tmp_path, capsys):
    given = ["train", "ppo_lag", "host_envs:SixValues", "--python", sys.executable, "--limit", "5", "--outage", "0.1"]
    small = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items() if name != "hidden_sizes"]
    out = ["--out", str(tmp_path / "run"), "--steps", "80", "--epochs", "1", "--hidden-sizes", "8"]
    assert main([*given, *small, *out]) == 0
    own = open_host(SixValues)
    run = qcrl.load(tmp_path / "run")
    assert run.config["environment"]["id"] == f"python:{sys.executable}:host_envs:SixValues"
    assert run.config["environment"]["cost"] == "6-tuple"
    result = qcrl.evaluate(run, episodes=10, progress=False)
    here = qcrl.evaluate(run, env=own, episodes=10, progress=False)
    assert result.pooled[0].mean_cost == pytest.approx(here.pooled[0].mean_cost)
    assert check_env(elsewhere.named(sys.executable, "host_envs:Ragged"), episodes=3).passed


def test_what_goes_wrong_there_is_said_here():
    with pytest.raises(UserError, match="cannot be run"):
        elsewhere.Elsewhere("/no/such/python", "CartPole-v1")
    with pytest.raises(UserError, match="ModuleNotFoundError: No module named 'nowhere'"):
        open_host(elsewhere.named(sys.executable, "nowhere:Env"))
    env = elsewhere.Elsewhere(sys.executable, "host_envs:Ragged")
    env.process.kill()
    with pytest.raises(UserError, match="ended with exit code -9"):
        env.reset(seed=0)


def test_the_other_side_needs_nothing_of_qcrl():
    script = (
        "import sys; sys.modules['qcrl'] = sys.modules['jax'] = None; sys.argv = ['x']\n"
        f"exec(open({elsewhere_server.__file__!r}).read())"
    )
    request = '{"make": "host_envs:Ragged"}\n{"reset": 1}\n'
    done = subprocess.run([sys.executable, "-c", script], input=request, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 2
    assert '"error"' not in done.stdout
    assert Ragged().observation_space.shape == (2,)
