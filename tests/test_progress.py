"""Environments in Python while an iteration runs: signs of progress, and Ctrl-C in the middle of it."""

import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import qcrl
from host_envs import SMALL, Ragged
from qcrl.envs.host.environment import open_host
from qcrl.training.interruption import Interrupted
from qcrl.training.sinks import terminal
from qcrl.training.sinks.terminal import Display

CONSTRAINT = qcrl.Outage(5.0, 0.1)


class Interrupting(Ragged):
    """Presses Ctrl-C at this step, counted over all environments, and complains about every later one."""

    at, steps = 0, 0

    def step(self, action):
        type(self).steps += 1
        assert not 0 < self.at < self.steps
        if self.steps == self.at:
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)


@pytest.mark.parametrize("step", [30, 100])
def test_ctrl_c_acts_within_a_step_and_the_run_goes_on(tmp_path, monkeypatch, step):
    """An iteration is 80 steps: the first is broken off, or the second."""
    monkeypatch.setattr(Interrupting, "steps", 0)
    open_host(Interrupting)
    at = Interrupting.steps + step  # the steps with which it is tried before a training
    monkeypatch.setattr(Interrupting, "steps", 0)
    monkeypatch.setattr(Interrupting, "at", at)
    settings = {"steps": 160, "out": tmp_path / "run", "progress": False, **SMALL}
    with pytest.raises(Interrupted, match="stopped and saved"):
        qcrl.train("ppo_lag", Interrupting, CONSTRAINT, **settings)
    assert Interrupting.steps == at
    assert len(qcrl.load(tmp_path / "run").metrics["iteration"]) == step // 80
    monkeypatch.setattr(Interrupting, "at", 0)
    run = qcrl.train("ppo_lag", Interrupting, CONSTRAINT, resume=True, **settings)
    np.testing.assert_array_equal(run.metrics["iteration"], [1, 2])
    np.testing.assert_array_equal(run.metrics["env_steps"], [80, 160])


def test_an_iteration_that_takes_long_says_how_far_it_is(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    display = Display([])
    display.start(0, 4)
    said = []
    for tenth in range(200):
        now[0] = 100.0 + tenth / 10
        display.within(tenth / 250, 500)
        said.append(capsys.readouterr().err)
    lines = [(tenth / 10, text) for tenth, text in enumerate(said) if text]
    assert [round(at) for at, _ in lines] == [3, 13]
    assert "iteration 1: " in lines[0][1]
    assert " of 500 steps, 20 steps/s" in lines[0][1]
    assert lines[0][1].startswith("  3%")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_simulator_of_a_second_a_step_shows_signs_and_is_stopped_at_once(tmp_path, request, workers):
    """Eight environments: all of them take 8 s for a step in one process, and 4 s in two."""
    small = ["--num-envs=8", "--steps-per-env=40", "--chunk-length=10", "--minibatches=1", "--hidden-sizes", "8"]
    given = ["ppo_lag", "host_envs:Sleepy", "--limit", "5", "--outage", "0.1", "--workers", str(workers), *small]
    command = [sys.executable, "-m", "qcrl.cli", "train", *given, "--out", str(tmp_path / "run")]
    folder = request.path.parent
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests in the background may not hear it
    process = subprocess.Popen(command, cwd=folder, preexec_fn=heard, **pipes)
    compiled, lines = None, []
    for line in process.stderr:
        lines.append((time.monotonic(), line))
        if "compiling" in line:
            compiled = time.monotonic()
        if "iteration 1: " in line:
            break
    assert compiled is not None, lines
    assert re.search(r"0%  iteration 1: \d+ of 320 steps", lines[-1][1])
    pressed = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    taken = time.monotonic() - pressed
    assert process.returncode == 130
    assert "stopped and saved" in rest
    assert list((tmp_path / "run" / "checkpoints").iterdir())
    assert taken < 10, taken  # 2 s and a step, and Python's own end on a busy computer
    run = qcrl.load(tmp_path / "run")
    assert run.policy(backend="numpy").info["iteration"] == 0
