"""The command line: help, exit codes, one-sentence mistakes, and training that is killed, stopped and resumed."""

import csv
import json
import random
import re
import signal
import subprocess
import sys
import time

import pytest

from qcrl import make
from qcrl.algos.find import algorithms
from qcrl.cli.main import COMMANDS, main

pytest_plugins = ["fakes"]
QCRL = [sys.executable, "-m", "qcrl.cli.main"]
TINY = ["train", "ppo_lag", "TwoPathEnv-v0", "--steps", "6400", "--seeds", "2", "--num-envs", "2"]
TINY += ["--steps-per-env", "16", "--chunk-length", "8", "--hidden-sizes", "8", "--minibatches", "1"]


@pytest.fixture
def call(capsys):
    """Runs a command in this process; its exit code, stdout and stderr."""

    def run(*arguments):
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse leaves this way after --help
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_explains_itself(call, command):
    code, out, err = call(*command.split(), "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: qcrl {command}".strip())


def test_help_names_every_option_with_its_default(call):
    _, out, _ = call("train", "ppo_lag", "--help")
    options = [" ".join(text.split()) for text in re.split(r"\n  (?=--|algo|env)", out)[1:]]
    assert len(options) > 40
    assert all("(default: " in option for option in options)
    assert (
        "--outage P [P ...] share of episodes that may cost more; several are trained side by side (default: 0.1)"
        in options
    )
    assert "--learning-rate X Adam's learning rate. [a number] (default: 0.001)" in options
    assert "(hyper-parameters of ppo_lag, defaults: preset fast)" in out
    _, out, _ = call("train", "qcpo", "--preset", "paper", "--help")
    assert "--learning-rate X Adam's learning rate. [a number] (default: 0.0001)" in " ".join(out.split())


def test_lists_of_what_there_is(call):
    _, envs, _ = call("envs")
    assert re.search(r"GremlinEnv-v0 +60 +2 +5 hazards, 3 gremlins", envs)
    assert re.search(r"TwoPathEnv-v0 +4 +1 ", envs)
    _, algos, _ = call("algos")
    assert re.search(r"ppo_lag +Mean, several +paper, authors, tuned, fast", algos)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("trian", "there is no command 'trian'; did you mean train? the commands are train"),
        ("--verbose", "unrecognized arguments: --verbose"),
        ("train --outage 0", "probability is 0.0"),
        ("train --outage 0.1 1.5", "probability is 1.5"),
        ("train --limit -1", "limit is -1.0"),
        ("train --limit abc", "invalid float value: 'abc'"),
        ("train --seeds 0", "seeds is 0"),
        ("train --steps 0", "steps is 0"),
        ("train --steps 1.5", "steps is 1.5, but must be a whole number"),
        ("train --hidden-sizes 0", "hidden_sizes is (0,)"),
        ("train --budget-parts 0", "budget_parts is (0.0,)"),
        ("train wcsac --hidden-sizes 0", "hidden_sizes is (0,)"),
        ("train qpco", "there is no algorithm 'qpco'; did you mean qcpo?"),
        ("train qcpo DynamicEnv-v9", "there is no environment 'DynamicEnv-v9'"),
        ("train qcpo DynamicEnv", "did you mean DynamicEnv-v0?"),
        ("train --lr 1e-3", "unrecognized arguments: --lr; did you mean --learning-rate?"),
        ("train --seed 3", "unrecognized arguments: --seed; did you mean --first-seed?"),
        ("train qcpo pump.py:Pump", "did you mean pump:Pump?"),
        (f"evaluate {__file__}", "test_cli.py is a file; give the folder of a run"),
        ("certify --verify .", ". is a folder; give the file of a certificate in it"),
        ("train --cost-limit 25", "did you mean --limit?"),
        ("train --preset quick", "there is no preset 'quick'"),
        ("train --epoch 3", "unrecognized arguments: --epoch; did you mean --epochs?"),
        ("train --epochs many", "epochs is 'many', but must be a whole number"),
        ("train --minibatches 7", "minibatches is 7"),
        ("train ppo_lag --driver outage", "unrecognized arguments: --driver outage"),
        ("train --lstm-size 0 --cost-input lstm", "cost_input is lstm, but lstm_size is 0"),
        ("train qcrl.errors:UserErrors TwoPathEnv-v0", "is 'qcrl.errors:UserErrors', which cannot be imported"),
        ("train --resume", "--resume needs to know which run"),
        ("train --resume --out mistyped", "there is no run in mistyped"),
        ("train --out /dev/null/run", "cannot write to /dev/null/run"),
        ("bench speed", "invalid choice: 'speed'"),
        ("bench env --tasks x", "unrecognized arguments: --tasks x"),
        ("bench train --set num_envs", "--set num_envs has no value"),
        ("bench train --set num_env=3", "there is no hyper-parameter 'num_env'; did you mean num_envs?"),
        ("bench train --iterations 0", "argument --iterations: 0 is less than 1"),
        ("bench train --seeds few", "argument --seeds: invalid count value: 'few'"),
        ("bench host --workers -1", "workers must be from 0 on"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(call, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*arguments.split())
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("qcrl: ")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_training_ends_with_a_verdict(fake, call, tmp_path):
    code, out, _ = call("train", "fake", "TwoPathEnv-v0", "--steps", "400", "--out", tmp_path / "run", "--scale", 1)
    assert code == 0
    # The fake policy acts with the sum of its costs, so it takes route 2: reward .8, outage .08.
    counts = re.search(r"Reached: (0\.\d+) \((\d+) of 10 fresh episodes; exact 95% interval (0\.\d+) to", out)
    assert float(counts[1]) == int(counts[2]) / 10
    assert "Asked for: at most 0.1 of episodes cost more than 15." in out
    assert "Mean return 0.80" in out
    assert f"Run folder: {tmp_path / 'run'}" in out


def test_a_short_training_is_judged_by_its_own_episodes(fake, call, tmp_path):
    """100 episodes each, with routes by chance: more than 10 cost 43% of those on one and 91% of those on the other."""
    options = ("--steps", "390", "--out", tmp_path / "run", "--num-envs", 50, "--seeds", 3, "--limit", 10)
    code, out, _ = call("train", "fake", "TwoPathEnv-v0", *options)
    assert code == 0
    share = re.search(r"Reached: (0\.\d+) \(\d+ of 300 last training episodes", out)[1]
    expected = sum(route.outage(10) for route in make("TwoPathEnv-v0").routes) / 2
    # Three standard errors.
    assert float(share) == pytest.approx(expected, abs=0.08)
    assert re.search(r"mean cost \d+\.\d+ \(of the episodes over the limit \d+\.\d+\)\.", out)
    assert "over 3 seeds). The outage constraint is broken." in out


def test_the_verdict_of_a_mean_constraint_says_so(call, tmp_path, monkeypatch):
    from fakes import FakeMean

    monkeypatch.setitem(algorithms(), "fake_mean", FakeMean)
    code, out, _ = call("train", "fake_mean", "TwoPathEnv-v0", "--steps", 100, "--out", tmp_path / "run")
    assert code == 0
    assert "at most 0.1 of episodes cost more than 15 (but trained under Mean). Reached: " in out
    assert "Its own constraint, that episodes cost at most 15 on average, is kept (" in out
    (tmp_path / "run" / "episodes.csv").write_text("seed,probability,limit,env_steps,return,cost\n")
    code, out, _ = call("train", "--resume", "--out", tmp_path / "run")
    assert (code, "No episode has ended yet: train for more steps." in out) == (0, True)


def test_an_algorithm_of_ones_own_is_named_by_where_it_is(call, tmp_path):
    options = ("fakes:Own", "TwoPathEnv-v0", "--scale", 0, "--steps", 100, "--out", tmp_path / "run")
    code, out, _ = call("train", *options)
    assert (code, "at most 0.1 of episodes cost more than 15. Reached: " in out) == (0, True)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["algorithm"]["name"], config["algorithm"]["label"]) == ("fakes:Own", "Own")
    assert (config["algorithm"]["fields"]["scale"], config["preset"]) == (0, None)
    code, _, err = call("train", "--resume", "--out", tmp_path / "run", "--steps", 200)
    assert (code, "continues after iteration 5 of 10" in err) == (0, True)


def test_a_frozen_lane_is_exit_code_1(fake, call, tmp_path):
    options = ("--breaks-at", "2", "--outage", "0.5", "0.1", "--steps", "400", "--out", tmp_path / "run")
    code, out, err = call("train", "fake", "TwoPathEnv-v0", *options)
    assert code == 1
    assert "turned non-finite in iteration 2" in err
    assert "seed0-p0.5-d15 turned non-finite and was frozen" in out
    assert "at most 0.1 of episodes" in out


def test_resuming_needs_no_more_than_the_folder(fake, call, tmp_path):
    run = tmp_path / "run"
    options = (
        "--limit",
        5,
        7,
        "--outage",
        "0.3",
        "--seeds",
        2,
        "--first-seed",
        4,
        "--num-envs",
        3,
        "--hidden-sizes",
        5,
        6,
    )
    assert call("train", "fake", "TwoPathEnv-v0", *options, "--steps", 300, "--out", run)[0] == 0
    before = (run / "metrics.csv").read_bytes()
    code, _, err = call("train", "--resume", "--out", run, "--steps", 600)
    assert (code, "continues after iteration 10 of 20" in err) == (0, True)
    after = (run / "metrics.csv").read_bytes()
    assert after.startswith(before)
    assert len(after.splitlines()) == 1 + 2 * 2 * 20
    code, _, err = call("train", "--resume", "--out", run, "--limit", 6)
    assert (code, "another limits ([5.0, 7.0], now [6.0])" in err) == (2, True)
    code, _, err = call("train", "--resume", "--out", run, "--preset", "paper", "--num-envs", 2)
    assert (code, "another num_envs (3, now 2)" in err) == (2, True)
    code, _, err = call("train", "--out", run)
    assert (code, "exists already" in err) == (2, True)
    assert (run / "metrics.csv").read_bytes() == after


# From here on in processes of their own, but for what is only compared.


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A real, small training from start to end, in this process."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    assert main([*TINY, "--out", str(out)]) == 0
    return out


def contents(run):
    with open(run / "metrics.csv", newline="") as file:
        rows = [{k: v for k, v in row.items() if k != "steps_per_second"} for row in csv.DictReader(file)]
    policies = {path.name: path.read_bytes() for path in (run / "policies").iterdir()}
    return rows, (run / "episodes.csv").read_bytes(), policies


def wait_for_rows(process, run, count):
    """Until metrics.csv has that many lines, or the process has ended."""
    while process.poll() is None:
        if (run / "metrics.csv").exists() and (run / "metrics.csv").read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.002)


@pytest.mark.parametrize("kills", [2, pytest.param(5, marks=pytest.mark.large)])
def test_kills_and_resumes_change_nothing(undisturbed, tmp_path, kills):
    run = tmp_path / "run"
    arguments = [*TINY, "--out", str(run), "--resume", "--checkpoint-interval", "0.1"]
    chance = random.Random()
    for moment in sorted(chance.randrange(1, 400) for _ in range(kills)):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen([*QCRL, *arguments], **quiet) as process:
            wait_for_rows(process, run, moment)
            time.sleep(chance.uniform(0, 0.02))
            process.kill()
    assert main(arguments) == 0
    rows, episodes, policies = contents(undisturbed)
    assert len(rows) == 400
    assert contents(run) == (rows, episodes, policies)


def stop(run, number):
    """Start training, send a signal in its midst; exit code and stderr."""
    with subprocess.Popen([*QCRL, *TINY, "--out", run], stderr=subprocess.PIPE, text=True) as process:
        wait_for_rows(process, run, 50)
        process.send_signal(number)
        return process.communicate(timeout=60)[1], process.wait()


def test_a_stopped_training_is_saved_and_resumes(undisturbed, call, tmp_path):
    run = tmp_path / "run"
    err, code = stop(run, signal.SIGINT)
    assert code == 130
    assert "stopping after this iteration" in err
    assert err.splitlines()[-1] == f"qcrl: stopped and saved; continue with: qcrl train --resume --out {run}"
    saved = contents(run)[0]
    assert 40 < len(saved) < 400
    code, _, err = call("train", "--resume", "--out", run)
    assert (code, f"continues after iteration {saved[-1]['iteration']} of 200" in err) == (0, True)
    assert contents(run) == contents(undisturbed)


def test_a_terminated_training_is_saved(undisturbed, tmp_path):
    err, code = stop(tmp_path / "run", signal.SIGTERM)
    assert code == 143
    assert "stopped and saved" in err
    assert list((tmp_path / "run" / "checkpoints").iterdir())


def test_a_bare_machine_can_train(undisturbed, tmp_path):
    """Without MuJoCo, Gymnasium, tyro and tensorboardX there is one warning, and the same numbers."""
    script = (
        "import sys\n"
        "for name in ('mujoco', 'gymnasium', 'tyro', 'tensorboardX', 'orbax', 'pandas'): sys.modules[name] = None\n"
        "from qcrl.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", script, *TINY, "--out", tmp_path / "run"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    assert done.stderr.count("tensorboardX is not installed") == 1
    assert contents(tmp_path / "run") == contents(undisturbed)


def test_help_does_not_wait_for_jax():
    script = "import sys; from qcrl.cli.main import main\ntry: main(['--help'])\nfinally: print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("False\n")


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m qcrl.cli.main train --help | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("usage: qcrl train [ALGO] [ENV] [options]\n", "")


OF_A_CERTIFICATE = (
    "--confidence 0.9",
    "--confidence 0",
    "--episodes 50",
    "--episodes 0",
    "--sequential",
    "--key k.pem",
)


@pytest.mark.parametrize("option", OF_A_CERTIFICATE)
def test_options_of_a_certificate_need_a_promise(option, tmp_path, capsys):
    command = f"train ppo_lag TwoPathEnv-v0 --steps 100 --out {tmp_path}/run {option}"
    assert main(command.split()) == 2
    assert f"{option.split()[0]} is of a certificate, but nothing is promised" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
