"""Hostile cases, a few of those that `qcrl bench robustness` and `qcrl bench kills` run many of; and broken output."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_runs import train
from qcrl.bench import kills
from qcrl.bench.robustness import cases, damage, zoo
from qcrl.cli import main as cli
from qcrl.output import Unbreakable, console

pytest_plugins = ["fakes"]
FEW = settings(max_examples=40, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return cases.trained(tmp_path_factory.mktemp("base") / "run")


@FEW
@given(data=st.data())
def test_a_damaged_file_is_refused_or_harmless(base, tmp_path_factory, data):
    name = data.draw(st.sampled_from(sorted(filter(cases.family, cases.contents(base)))))
    changed = data.draw(damage.damaged(name, (base / name).read_bytes()))
    commands = [command for command in cases.READ[cases.family(name)] if command != "go on"]
    command = data.draw(st.sampled_from(commands))
    outcome = cases.try_file(cli.main, base, tmp_path_factory.getbasetemp(), name, changed, command)
    assert outcome.kind not in cases.BAD, outcome


@settings(FEW, max_examples=25)
@given(data=st.data())
def test_options_of_any_value_are_refused_or_can_be_traced(tmp_path_factory, data):
    algorithm = data.draw(st.sampled_from(["cvar_pg", "wcsac", "ppo_lag"]))
    given_options = data.draw(damage.options(algorithm))
    outcome = cases.try_options(cli.main, tmp_path_factory.getbasetemp(), algorithm, given_options)
    assert outcome.kind not in cases.BAD, outcome


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--lstm-size=-1", "lstm_size is -1"),
        ("--num-envs=1e6", "GB at least"),
        ("--num-envs=1e9", "steps_per_iteration is 1000000000000"),
        ("--window=1e10", "must be below 2147483648"),
        ("--hidden-sizes=1000000,1000000", "GB at least"),
        ("--epochs=1e18", "must be below 2147483648"),
        ("--outage=1e-300", "give a smaller window, or a larger probability"),
        ("--preset=", "there is no preset ''"),
        ("--warmup-iterations=-1", "must be at least 0"),
        ("--seeds=1000000000", "at most 100,000 lanes"),
        ("--seeds=4294967297", "at most 100,000 lanes"),
        ("--limit=1e39", "limit is 1e+39"),
        ("--learning-rate=inf", "must be finite"),
    ],
)
def test_sizes_that_cannot_be_are_refused(tmp_path, options, words):
    outcome = cases.try_options(cli.main, tmp_path, "ppo_lag", [options])
    assert outcome.kind == "refused"
    assert words in outcome.text
    assert not (tmp_path / "options").exists()


@pytest.mark.parametrize("name", ["exits with 0", "observes NaN"])
def test_what_was_trained_before_an_environment_broke_is_saved(tmp_path, base, name):
    outcome = cases.try_environment(tmp_path, base, name, "train")
    assert outcome.kind == "refused"
    assert "environment 0 of Broken-custom, step 50: " in outcome.text
    assert "; saved up to iteration 1, to continue with: qcrl train --resume" in outcome.text


class Full:
    """A stream on a full disk."""

    encoding = "ascii"

    def write(self, text):
        raise OSError(28, os.strerror(28))

    def flush(self):
        self.write("")


def test_output_that_cannot_be_written_raises_nothing(monkeypatch, capsys):
    for stream in (None, Full()):
        monkeypatch.setattr(sys, "stderr", stream)
        console().print("hello")
        Unbreakable("stderr").flush()
        assert cli.main(["nonsense"]) == 2
        assert sys.stderr is stream
    monkeypatch.setattr(sys, "stdout", Full())
    assert cli.main(["algos"]) == 2


def test_a_pipe_that_nobody_reads_does_not_end_a_training(fake, tmp_path):
    """As in `qcrl train ... 2>&1 | head -1`; and with neither stdout nor stderr, in a folder that is gone."""
    code = (
        "import os, sys, fakes, qcrl.algos.find as f\n"
        "from qcrl.cli.main import main\n"
        "f.algorithms()['fake'] = fakes.Fake\n"
        "gone = sys.argv[1] + '-gone'; os.mkdir(gone); os.chdir(gone); os.rmdir(gone)\n"
        "a = main(['train', 'fake', 'TwoPathEnv-v0', '--steps', '100', '--out', sys.argv[1] + '/a'])\n"
        "os.close(1); os.close(2); sys.stdout = sys.stderr = None\n"
        "b = main(['train', 'fake', 'TwoPathEnv-v0', '--steps', '100', '--out', sys.argv[1] + '/b'])\n"
        "os._exit(10 * a + b)\n"
    )
    reading, writing = os.pipe()
    os.close(reading)
    paths = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, stdout=writing, stderr=writing, env=environment).returncode == 0
    reference = train(tmp_path / "c", steps=100).path
    for name in ("metrics.csv", "episodes.csv"):
        lines = {(tmp_path / each / name).read_text().count("\n") for each in "ab"}
        assert lines == {(reference / name).read_text().count("\n")}


def test_names_of_lanes_tell_every_pair_of_numbers_apart(fake, tmp_path):
    from qcrl import Outage

    constraints = [Outage(limit, p) for limit in (1_000_000, 1_000_001) for p in (0.1, 0.10000001)]
    run = train(tmp_path / "run", constraint=constraints)
    assert len(list((run.path / "policies").iterdir())) == 4
    for constraint in constraints:
        assert run.policy(0, constraint.probability, constraint.limit).info["limit"] == constraint.limit


@pytest.mark.large
@pytest.mark.parametrize("series", [name for name in kills.SERIES if name != "sweep, Ray"])
def test_two_kills_lose_nothing(series, tmp_path):
    assert kills.endure(cli.main, series, tmp_path, 2, random.Random(7))[1] == kills.SAME


@pytest.mark.large
@pytest.mark.parametrize("command", ["train", "evaluate", "certify"])
@pytest.mark.parametrize("name", zoo.ZOO)
def test_every_command_refuses_every_environment_of_the_zoo(sound, tmp_path, name, command):
    assert cases.try_environment(tmp_path, sound, name, command).kind == "refused"


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    import qcrl

    out = tmp_path_factory.mktemp("sound") / "run"
    options = {"preset": "fast", "out": out, "progress": False, **cases.SMALL}
    return qcrl.train("ppo_lag", zoo.Sound, qcrl.Outage(3, 0.1), 80, **options).path


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("steps = inf", "line 2, steps: inf is given"),
        ('preset = ""', "line 2, preset: it is empty"),
        ("seeds = 1000000000", "line 2, seeds: that makes 1,000,000,000 lanes"),
    ],
)
def test_a_grid_of_such_values_is_refused(tmp_path, line, words, capsys):
    (tmp_path / "grid.toml").write_text(f'environments = ["TwoPathEnv-v0"]\n{line}\nalgorithms = ["ppo_lag"]\n')
    assert cli.main(["sweep", str(tmp_path / "grid.toml"), "--out", str(tmp_path / "out")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_run_whose_name_has_dollars_is_drawn(fake, tmp_path):
    runs = [str(train(tmp_path / name).path) for name in ("a$b$_x", "c$d$^")]
    assert cli.main(["plot", *runs, "--out", str(tmp_path / "plot.png")]) == 0
    assert cli.main(["report", runs[0], "--engine", "warp", "--out", str(tmp_path / "report.html")]) == 2
    assert not (tmp_path / "report.html").exists()


def test_a_verdict_that_is_stopped_says_that_the_run_is_saved(fake, tmp_path, monkeypatch, capsys):
    from qcrl.evaluation import verdict

    def stopped(*_, **__):
        raise KeyboardInterrupt

    run = train(tmp_path / "run")
    monkeypatch.setattr(verdict, "verdict", stopped)
    assert cli.main(["train", "--resume", "--out", str(run.path)]) == 130
    assert f"stopped before the verdict; the trained run is saved in {run.path}" in capsys.readouterr().err


class Interrupts:
    """Ctrl-C arrives where Python drops exceptions."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_in_a_finalizer_stops_the_command(monkeypatch):
    def run(arguments):
        Interrupts()
        for _ in range(500):
            time.sleep(0.01)
        return 0

    monkeypatch.setattr(cli, "_run", run)
    assert cli.main(["envs"]) == 130
