"""The training loop with an algorithm that does next to nothing: lanes, rows, and what can go wrong."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
import types
from contextlib import contextmanager

import jax
import numpy as np
import pytest
from rich.console import Console

import qcrl
from fake_runs import ENV, rows, same, train
from qcrl import CVaR, Mean, Outage, UserError
from qcrl.algos.find import build
from qcrl.runs import checkpoints
from qcrl.runs.lane import Lane
from qcrl.sampling import program
from qcrl.sampling.compilation_cache import use_cache
from qcrl.training import checks
from qcrl.training.interruption import Interruption
from qcrl.training.sinks import terminal

pytest_plugins = ["fakes"]


def test_a_group_is_seeds_by_constraints_in_order(fake, tmp_path):
    constraints = [Outage(limit, p) for p in (0.1, 0.2) for limit in (15, 20)]
    run = train(tmp_path / "run", constraint=constraints, seeds=2, first_seed=3)
    assert [(lane.seed, lane.probability, lane.limit) for lane in run.lanes[:3]] == [
        (3, 0.1, 15),
        (3, 0.1, 20),
        (3, 0.2, 15),
    ]
    assert [lane.constraint for lane in run.lanes] == constraints * 2
    assert [lane.seed for lane in run.lanes] == [3] * 4 + [4] * 4
    first = rows(run)[:8]
    found = [
        {"seed": int(r["seed"]), "probability": float(r["probability"]), "limit": float(r["limit"])} for r in first
    ]
    assert found == [lane.columns for lane in run.lanes]


def test_lanes_depend_on_their_seed_alone(fake, tmp_path):
    alone = train(tmp_path / "alone", seeds=[4])
    among = train(tmp_path / "among", seeds=[7, 4], constraint=[Outage(15, 0.2), Outage(15, 0.1)])
    assert [row for row in rows(among) if row["seed"] == "4" and row["probability"] == "0.1"] == rows(alone)


def test_rows_are_what_the_algorithm_reported(fake, tmp_path):
    run = train(tmp_path / "run", seeds=2)  # 100 steps: 5 iterations of 20, in 2 environments; episodes take 4 steps
    metrics, episodes = run.metrics, run.episodes
    leading = "seed probability limit iteration env_steps episode_return episode_cost cost_quantile outage multiplier"
    assert list(metrics)[:11] == [*leading.split(), "steps_per_second"]
    assert metrics["iteration"].tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert metrics["env_steps"][-1] == 100
    assert "alive" not in metrics
    assert (metrics["steps_per_second"] > 0).all()
    assert list(episodes) == ["seed", "probability", "limit", "env_steps", "return", "cost"]
    of_first = episodes["seed"] == 0
    assert episodes["env_steps"][of_first].tolist() == [steps for steps in range(8, 101, 8) for _ in range(2)]
    # The fake's multiplier is the sum of all its costs.
    assert metrics["multiplier"][-2] == pytest.approx(episodes["cost"][of_first].sum(), rel=1e-5)


def test_speed_holds_for_every_row_also_where_a_call_returns_only_when_all_is_done(fake, tmp_path, monkeypatch):
    open_program = program.open_program

    @contextmanager
    def slow(*arguments):
        with open_program(*arguments) as opened:

            def wait(state):
                time.sleep(0.05)
                return jax.block_until_ready(opened.advance(state))

            yield opened._replace(advance=wait)

    monkeypatch.setattr(program, "open_program", slow)
    run = qcrl.train("fake", ENV, Outage(15, 0.1), steps=100, out=tmp_path / "run")
    # 20 steps an iteration. The first row comes with the second iteration, so the last two share the time of one.
    assert (run.metrics["steps_per_second"] <= 2 * 20 / 0.05).all()


def test_config_tells_how_to_run_again(fake, tmp_path):
    run = train(tmp_path / "run", seeds=2, scale=3, max_norm=5.5)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["algorithm"]["fields"]["scale"] == 3.0
    assert (config["seeds"], config["probabilities"], config["limits"]) == ([0, 1], [0.1], [15.0])
    assert config["environment"]["id"] == ENV
    assert config["setup"].keys() >= {"qcrl", "jax", "python", "device"}
    assert run.config == config


def test_without_a_folder_a_new_one_is_made(fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = train(None), train(None)
    assert first.path.parent.name == "runs"
    assert first.path != second.path


def test_a_lane_that_breaks_is_frozen_and_the_others_go_on(fake, tmp_path, capsys):
    run = train(tmp_path / "run", constraint=[Outage(15, 0.5), Outage(15, 0.1)], breaks_at=3, broken_probability=0.5)
    assert [str(lane) for lane in run.frozen] == ["seed0-p0.5-d15"]
    assert "seed0-p0.5-d15 turned non-finite in iteration 3" in capsys.readouterr().err
    iterations = [(row["probability"], row["iteration"]) for row in rows(run)]
    assert [i for p, i in iterations if p == "0.5"] == ["1", "2"]
    assert [i for p, i in iterations if p == "0.1"] == ["1", "2", "3", "4", "5"]
    last_good = [float(row["multiplier"]) for row in rows(run) if row["probability"] == "0.5"][-1]
    assert run.policy(probability=0.5).state["weight"] == pytest.approx(last_good)
    assert len(run.episodes["cost"]) == 2 * (20 // 4 + 50 // 4)  # of 2 environments, 4 steps each: 2 and 5 iterations
    assert train(run.path, constraint=[Outage(15, 0.5), Outage(15, 0.1)], breaks_at=3, resume=True).frozen == run.frozen


def test_training_ends_when_every_lane_is_frozen(fake, tmp_path):
    run = train(tmp_path / "run", constraint=Outage(15, 0.5), breaks_at=2, steps=10**8)
    assert len(run.frozen) == 1
    assert len(rows(run)) == 1


def test_a_full_disk_ends_in_one_sentence_and_loses_nothing(fake, tmp_path, monkeypatch):
    whole = train(tmp_path / "whole", steps=200)
    write, room = checkpoints.write_file, [7]

    def write_until_full(path, content):
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "write_file", write_until_full)
        with pytest.raises(UserError, match=r"No space left on device.*--resume --out"):
            train(tmp_path / "run", steps=200)
    assert same(train(tmp_path / "run", steps=200, resume=True), whole)


def test_two_processes_cannot_train_in_one_folder(fake, tmp_path):
    run = train(tmp_path / "run")
    script = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), 2); print(flush=True); input()"
    holder = subprocess.Popen([sys.executable, "-c", script, run.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        holder.stdout.readline()
        with pytest.raises(UserError, match="another process is training"):
            train(run.path, resume=True)
    finally:
        holder.communicate(b"\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "seeds is 0"),
        ({"seeds": [1, 1]}, "given twice"),
        ({"seeds": 1.5}, "seeds is 1.5"),
        ({"seeds": [-1]}, "between 0 and"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": float("nan")}, "steps is nan"),
        ({"algo": "qcp"}, "did you mean qcpo"),
        ({"preset": "quick"}, "no preset 'quick'"),
        ({"constraint": []}, "no constraint"),
        ({"constraint": Mean(15)}, "fake trains under Outage, not under Mean"),
        ({"scal": 3}, "did you mean scale"),
        ({"scale": "big"}, "scale is 'big', but must be a number"),
        ({"num_envs": 2.5}, "num_envs is 2.5, but must be a whole number"),
        ({"hidden_sizes": (1, "x")}, "must be a list, each a whole number"),
        ({"checkpoint_interval": -1}, "checkpoint_interval is -1"),
        ({"checkpoint_interval": "often"}, "checkpoint_interval is 'often'"),
        ({"wandb": "project"}, "wandb is not installed"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(fake, tmp_path, monkeypatch, options, message):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=message):
        qcrl.train(**{"algo": "fake", "env": ENV, "constraint": Outage(15, 0.1), "out": tmp_path / "run", **options})
    assert not (tmp_path / "run").exists()


def test_from_python_kinds_are_looked_at_before_anything_is_done(tmp_path):
    for given, message in (
        ({"constraint": 0.1}, "the constraint is 0.1, but must be one such as"),
        ({"constraint": [1]}, r"the constraint is \[1\], but must be one such as .*, or a list"),
        ({"constraint": qcrl.Outage(15, 0.1), "callback": 3}, "callback is 3, but must be a function"),
    ):
        with pytest.raises(UserError, match=message):
            qcrl.train("ppo_lag", "TwoPathEnv-v0", out=tmp_path / "r", progress=False, **given)


def test_an_existing_run_is_not_overwritten(fake, tmp_path):
    run = train(tmp_path / "run")
    before = (run.path / "metrics.csv").read_bytes()
    with pytest.raises(UserError, match="exists already; continue that run with --resume"):
        train(run.path)
    assert (run.path / "metrics.csv").read_bytes() == before


def test_a_folder_that_cannot_be_written_to(fake, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="cannot write to"):
        train(tmp_path / "file" / "run")


def test_constraints_are_read_as_the_algorithm_trains(fake, tmp_path):
    assert checks.lanes(build("ppo_lag", "fast"), Mean(7), 1, 0) == (Lane(0, (Mean(7.0),), 0.1),)
    assert checks.lanes(build("ppo_lag", "fast"), Outage(7, 0.2), 1, 0) == (Lane(0, (Mean(7.0),), 0.2),)
    assert checks.lanes(build("cvar_pg", "fast"), Outage(7, 0.2), 1, 0) == (Lane(0, (CVaR(7.0, 0.2),), 0.2),)
    with pytest.raises(UserError, match=r"give qcrl.Outage"):
        checks.lanes(build("qcpo", "fast"), CVaR(7, 0.2), 1, 0)


def test_the_episode_window_grows_with_rare_outages(fake, tmp_path, capsys):
    run = train(tmp_path / "run", constraint=Outage(15, 0.01))
    assert run.config["algorithm"]["fields"]["window"] == 200
    assert run.config["algorithm"]["fields"]["driver_window"] == 200
    assert "the most recent 200 are looked at" in capsys.readouterr().err
    assert train(run.path, constraint=Outage(15, 0.01), steps=200, resume=True).metrics["iteration"][-1] == 10


def test_a_training_too_short_for_its_settings_is_warned_of():
    said = []
    for kind, steps in [("tuned", 5e6), ("authors", 1e4), ("fast", 1e4), ("tuned", 1e6)]:
        checks.check_length(build("qcpo", kind), steps, said.append)
    assert len(said) == 1
    assert "1,000,000 steps are few" in said[0]
    assert "4,320,000 or more" in said[0]


def test_the_warning_comes_before_the_training(fake, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(type(build("fake", "fast")), "learning_rate_halving", 100.0, raising=False)
    train(tmp_path / "run")
    assert "steps are few" in capsys.readouterr().err


def test_progress_shows_the_outage_against_its_target(fake, tmp_path, capsys):
    train(tmp_path / "run", constraint=[Outage(15, 0.1), Outage(15, 0.2)])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "compiling fake for 2 lanes"
    assert "(asked 0.1|0.2)" in lines[-1]
    train(tmp_path / "limits", constraint=[Outage(limit, p) for p in (0.1, 0.2) for limit in (15, 20)])
    assert "(asked 0.1|0.1|0.2|0.2, limit 15|20|15|20)" in capsys.readouterr().err
    assert all(word in lines[-1] for word in ("100%", "return", "multiplier", "steps/s", "left"))
    train(tmp_path / "quiet", progress=False)
    assert capsys.readouterr().err == ""


def test_weights_and_biases_gets_the_curves(fake, tmp_path, monkeypatch):
    logged = []
    session = types.SimpleNamespace(log=lambda scalars, step: logged.append((step, scalars)), finish=lambda: None)
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda **_: session))
    run = train(tmp_path / "run", wandb="project")
    assert [step for step, _ in logged] == [20, 40, 60, 80, 100]
    assert logged[-1][1]["outage/seed0-p0.1-d15"] == pytest.approx(run.metrics["outage"][-1])


def test_without_tensorboard_training_goes_on(fake, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    with pytest.warns(UserWarning, match="tensorboardX is not installed"):
        run = train(tmp_path / "run")
    assert not list(run.path.glob("events.out.*"))
    assert len(rows(run)) == 5


def test_tensorboard_events_hold_the_metrics(fake, tmp_path):
    from tensorboardX.proto.event_pb2 import Event

    run = train(tmp_path / "run")
    content = next(run.path.glob("events.out.*")).read_bytes()
    events, position = [], 0
    while position < len(content):  # length (8 bytes), its checksum (4), the event, its checksum (4)
        length = int.from_bytes(content[position : position + 8], "little")
        events.append(Event.FromString(content[position + 12 : position + 12 + length]))
        position += 16 + length
    curve = [
        (event.step, value.simple_value)
        for event in events
        for value in event.summary.value
        if value.tag == "episode_cost/seed0-p0.1-d15"
    ]
    assert [step for step, _ in curve] == [20, 40, 60, 80, 100]
    np.testing.assert_allclose([value for _, value in curve], run.metrics["episode_cost"], rtol=1e-6)


def test_compiled_programs_are_kept(tmp_path, monkeypatch):
    kept = jax.config.jax_compilation_cache_dir
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        monkeypatch.setenv("QCRL_CACHE", "")
        use_cache()
        assert jax.config.jax_compilation_cache_dir is None
        monkeypatch.setenv("QCRL_CACHE", str(tmp_path / "cache"))
        use_cache()
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "cache")
    finally:
        jax.config.update("jax_compilation_cache_dir", kept)


def test_a_terminal_gets_a_bar(fake, tmp_path, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(terminal, "console", lambda _: Console(file=screen, force_terminal=True, width=80))
    train(tmp_path / "run")
    assert "compiling fake for 1 lane" in screen.getvalue()
    assert "(asked 0.1)" in screen.getvalue()
    assert "100%" in screen.getvalue()


def test_the_second_interruption_aborts_at_once():
    said = []
    before = signal.getsignal(signal.SIGINT)
    with Interruption(said.append) as interruption:
        signal.raise_signal(signal.SIGINT)
        assert interruption.requested == signal.SIGINT
        assert said == ["stopping after this iteration; once more to abort at once"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
