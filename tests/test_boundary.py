"""The boundary around environments: whatever they do is one sentence. Code that only a file names is not run."""

import json

import numpy as np
import pytest

from qcrl.bench.robustness import zoo
from qcrl.cli import main as cli
from qcrl.envs.find import find
from qcrl.envs.host.check import check_env
from qcrl.errors import BrokenEnvironment, UserError

pytest_plugins = ["fakes"]


def walk(env, workers=0):
    """Two environments for forty steps, which is three episodes and more."""
    said = []
    fleet = find(env).fleet(2, workers, say=said.append)
    try:
        fleet.reset([0, 1])
        for _ in range(40):
            fleet.step(np.zeros((2, 2), np.float32))
    finally:
        fleet.close()
    return said


def test_a_sound_environment_goes_through():
    assert walk(zoo.Sound) == []
    assert walk(zoo.OddLimit) == []
    assert find(zoo.OddLimit).timed is False


@pytest.mark.parametrize("name", [*zoo.STEPS, *zoo.RESETS])
def test_what_an_environment_does_wrong_is_told_with_its_number_and_step(name):
    with pytest.raises(BrokenEnvironment, match=r"^environment 0 of Broken-custom, step \d+: "):
        walk(zoo.ZOO[name])


@pytest.mark.parametrize("name", zoo.MADE)
def test_what_cannot_be_made_or_closed_is_told_before_training(name):
    with pytest.raises(UserError):
        walk(zoo.MADE[name])


@pytest.mark.parametrize("name", ["exits with 0", "raises EOFError", "rewards None"])
def test_in_a_worker_the_same_is_told(name):
    with pytest.raises(BrokenEnvironment, match=rf"environment 0 of .*, step {zoo.FROM}: "):
        walk(zoo.ZOO[name], workers=1)


@pytest.mark.parametrize("name", zoo.ZOO)
def test_check_env_names_the_defect_and_never_breaks(name):
    report = check_env(zoo.ZOO[name], steps=200)
    assert not report.passed
    assert all(len(check.seen) < 400 for check in report.checks)


def test_an_environment_that_cannot_be_closed_later_is_only_named():
    class Late(zoo.Sound):
        closed = 0

        def close(self):
            type(self).closed += 1
            assert self.closed == 1, "busy"  # the first is the one that was tried

    (said, other) = walk(Late)
    assert "could not be closed: AssertionError: busy" in said
    assert said.startswith("warning: environment 0 of")
    assert other.startswith("warning: environment 1 of")


def test_an_id_with_its_module_is_imported(tmp_path, monkeypatch, capsys):
    home = "entry_point='qcrl.bench.robustness.zoo:Sound', max_episode_steps=10"
    (tmp_path / "registering.py").write_text(f"import gymnasium\ngymnasium.register('Zoo/Sound-v0', {home})\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cli.main(["check-env", "registering:Zoo/Sound-v0", "--episodes", "2"]) == 0
    assert "2 episodes of 10 to 10 steps" in capsys.readouterr().out
    (tmp_path / "exiting.py").write_text("import sys\nsys.exit(0)\n")
    assert cli.main(["check-env", "exiting:Zoo/Sound-v0"]) == 2
    assert "which cannot be imported (SystemExit: 0)" in capsys.readouterr().err


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A run that another module can be written into, and a module that says when it is used."""
    import fake_runs

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "evil.py").write_text("import pathlib\npathlib.Path(__file__).with_name('used').touch()\n")
    return fake_runs.train(tmp_path / "run").path


@pytest.mark.parametrize("command", ["evaluate", "certify", "train --resume --out"])
@pytest.mark.parametrize("place", ["environment", "cost", "algorithm", "constraint"])
def test_code_that_only_a_file_names_is_not_run(fake, stranger, command, place, capsys):
    config = json.loads((stranger / "config.json").read_text())
    match place:
        case "environment":
            config["environment"] |= {"id": "os:abort", "cost": 'info["cost"]'}
        case "cost":
            config["environment"] |= {"id": "CartPole-v1", "cost": "evil:cost"}
        case "algorithm":
            config["algorithm"]["name"] = "evil:Algorithm"
        case _:
            config["lanes"][0]["constraints"][0]["kind"] = "evil:Constraint"
    (stranger / "config.json").write_text(json.dumps(config))
    before = {path: path.read_bytes() for path in stranger.rglob("*") if path.is_file()}
    assert cli.main([*command.split(), str(stranger)]) == 2
    assert not (stranger.parent / "used").exists()
    last = capsys.readouterr().err.splitlines()[-1]
    assert "--trust" in last or (place, command) == ("constraint", "train --resume --out")
    assert before == {path: path.read_bytes() for path in stranger.rglob("*") if path.is_file()}
