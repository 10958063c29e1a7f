"""An algorithm from outside the package is a full citizen: trained, killed, resumed, evaluated, certified, drawn."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import qcrl
from qcrl import UserError, named
from qcrl.algos.hyperparameters import to_json
from qcrl.cli.main import main
from qcrl.show.curves import read_curves
from qcrl.show.figures import figure, save

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = {"num_envs": 4, "steps_per_env": 20, "chunk_length": 20, "epochs": 2, "hidden_sizes": (8,)}
WHERE = {"device": "TwoPathEnv-v0", "host": "host_envs:OneStep"}


@pytest.fixture
def own(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import own_algorithm

    return own_algorithm.Priced


def test_as_an_object_and_as_a_name_it_is_the_same(own, tmp_path):
    constraint = qcrl.Outage(15, 0.1)
    given = [own(**SMALL), "own_algorithm:Priced"]
    runs = [
        qcrl.train(each, "TwoPathEnv-v0", constraint, 400, out=tmp_path / str(n), **({} if n == 0 else SMALL))
        for n, each in enumerate(given)
    ]
    described = json.loads(json.dumps(to_json(own(**SMALL))))
    assert runs[0].config["algorithm"] == runs[1].config["algorithm"] == described
    assert (runs[0].metrics["excess_loss"] == runs[1].metrics["excess_loss"]).all()
    assert runs[0].metrics["multiplier"][-1] > 0


@pytest.mark.parametrize("where", WHERE)
def test_it_goes_all_the_way(own, tmp_path, where):
    out, limit = tmp_path / "run", 2.0
    small = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items() if name != "hidden_sizes"]
    command = [sys.executable, "-m", "qcrl.cli.main", "train", "own_algorithm:Priced", WHERE[where], "--limit", "2"]
    paths = os.pathsep.join([str(EXAMPLES), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    forever = ["--steps", "1e9", "--checkpoint-interval", "0", "--out", str(out)]
    with subprocess.Popen([*command, *small, *forever], env=environment, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while len(list((out / "checkpoints").glob("*.safetensors"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    (out / "config.json").write_text((out / "config.json").read_text().replace("1000000000", "80"))
    reached = max(int(path.stem) for path in (out / "checkpoints").glob("[0-9]*.safetensors"))
    steps = str(80 * (reached + 3))
    trusted = ["--trust=own_algorithm", "--trust=host_envs"]
    assert main(["train", "--resume", "--out", str(out), "--steps", steps, *trusted]) == 0
    run = qcrl.load(out)
    assert run.metrics["iteration"].tolist() == list(range(1, reached + 4))
    result = qcrl.evaluate(run, episodes=50, env=WHERE[where], progress=False)
    assert result.per_lane[0].episodes == 50
    assert result.per_lane[0].limit == limit
    certificate = qcrl.certify(run, promise=0.9, power=0.8, env=WHERE[where], progress=False)
    assert certificate.verdict in ("certified", "violated", "undecided")
    drawn = save(figure(read_curves([out])), tmp_path / "curves.png")
    assert drawn.stat().st_size > 10_000


def test_a_policy_of_a_class_that_was_not_named_says_how_to_name_it(own, tmp_path, monkeypatch):
    run = qcrl.train(own(**SMALL), "TwoPathEnv-v0", qcrl.Outage(15, 0.1), 80, out=tmp_path / "run")
    monkeypatch.delitem(sys.modules, "own_algorithm")
    monkeypatch.setattr(named, "_TRUSTED", set())
    with pytest.raises(UserError, match="add --trust own_algorithm") as error:
        qcrl.Policy.load(run.policy_file(run.lanes[0]))
    assert "train it again" not in str(error.value)
