"""A run that goes on: from which checkpoint, with which files, and when it is refused."""

import json
import shutil

import pytest

import qcrl
from fake_runs import rows, same, train
from qcrl import Outage, UserError
from qcrl.algos.find import algorithms

pytest_plugins = ["fakes"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Runs of 80, 100 and 200 steps, to compare with or to copy."""
    from fakes import Fake

    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(algorithms(), "fake", Fake)
        return {steps: train(folder / str(steps), steps=steps) for steps in (80, 100, 200)}


@pytest.fixture
def copy(fake, made, tmp_path):
    return lambda steps: qcrl.load(shutil.copytree(made[steps].path, tmp_path / "run"))


def test_resuming_continues_bit_for_bit(fake, tmp_path):
    whole = train(tmp_path / "whole", steps=200, seeds=2)
    train(tmp_path / "parts", steps=80, seeds=2)
    parts = train(tmp_path / "parts", steps=200, seeds=2, resume=True)
    assert len(rows(whole)) == 20
    assert same(parts, whole)
    name = "seed1-p0.1-d15.safetensors"
    assert (whole.path / "policies" / name).read_bytes() == (parts.path / "policies" / name).read_bytes()


def test_resuming_cuts_files_back_to_the_checkpoint(copy, made):
    run = copy(80)
    before = {path.name: path.read_bytes() for path in run.path.glob("events.out.*")}
    for name in ("metrics.csv", "episodes.csv", *before):
        with open(run.path / name, "ab") as file:
            file.write(b"0,0.1,15.0,5,torn")
    (run.path / "events.out.tfevents.later").write_bytes(b"x")
    resumed = train(run.path, steps=200, resume=True)
    assert same(resumed, made[200])
    assert not (run.path / "events.out.tfevents.later").exists()
    assert all((run.path / name).read_bytes() == content for name, content in before.items())


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_torn_checkpoint_is_passed_over(copy, made, damage):
    run = copy(80)
    newest = max((run.path / "checkpoints").glob("*.safetensors"))
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes({"cut": content[:-3], "flip": content, "empty": b""}[damage])
    assert same(train(run.path, steps=200, resume=True), made[200])


def test_a_run_whose_checkpoints_are_all_torn_is_left_alone(copy):
    run = copy(100)
    for path in (run.path / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:50])
    before = (run.path / "metrics.csv").read_bytes()
    with pytest.raises(UserError, match=r"no checkpoint in .* can be read"):
        train(run.path, steps=200, resume=True)
    assert (run.path / "metrics.csv").read_bytes() == before


def test_a_finished_run_has_nothing_to_resume(copy):
    run = copy(100)
    before = (run.path / "metrics.csv").read_bytes()
    assert (train(run.path, resume=True).path / "metrics.csv").read_bytes() == before


def test_resuming_where_there_is_no_run_starts_one(fake, tmp_path):
    assert len(rows(train(tmp_path / "run", resume=True))) == 5


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"constraint": Outage(10, 0.1)}, r"another limits \(\[15.0\], now \[10.0\]\)"),
        ({"constraint": Outage(15, 0.2)}, "another probabilities"),
        ({"seeds": 2}, "another seeds"),
        ({"scale": 2.0}, r"another scale \(1.0, now 2.0\)"),
        ({"algo": "ppo_lag"}, r"another name \(fake, now ppo_lag\)"),
        ({"steps": 20}, "cannot be cut"),
    ],
)
def test_resuming_with_another_config_is_refused_and_loses_nothing(copy, changed, message):
    run = copy(100)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=message):
        train(run.path, resume=True, **changed)
    assert before == {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def test_a_run_from_before_a_setting_was_there_is_resumed_with_its_default(copy):
    run = copy(100)
    config = json.loads((run.path / "config.json").read_text())
    del config["algorithm"]["fields"]["scale"]
    (run.path / "config.json").write_text(json.dumps(config))
    assert train(run.path, resume=True).metrics["iteration"].max() == run.metrics["iteration"].max()
    (run.path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"another scale \(1.0, now 2.0\)"):
        train(run.path, resume=True, scale=2.0)


def test_a_run_from_before_presets_chose_among_policies_goes_on_without(copy, monkeypatch):
    from fakes import Fake

    run = copy(100)
    config = json.loads((run.path / "config.json").read_text())
    del config["algorithm"]["fields"]["candidates"]
    (run.path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(Fake, "presets", {"fast": Fake(candidates=8)})
    with pytest.raises(UserError, match=r"another candidates \(1, now 4\)"):
        train(run.path, resume=True, candidates=4)
    assert train(run.path, steps=200, resume=True).config["algorithm"]["fields"]["candidates"] == 1
    assert not (run.path / "policies" / "recent").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("config.json", '"scale"', '"once"'), "config.json is not one of this version of qcrl .*'once'"),
        (("config.json", '"algorithm"', '"other"'), "config.json cannot be read: its algorithm is missing"),
        (("metrics.csv", "outage", "shares"), "metrics.csv has other columns than this version of qcrl writes"),
    ],
)
def test_a_run_of_another_version_is_refused_and_loses_nothing(copy, changed, message):
    run = copy(100)
    name, old, new = changed
    (run.path / name).write_text((run.path / name).read_text().replace(old, new))
    kept = [run.path / each for each in ("metrics.csv", "episodes.csv")]
    before = [path.read_bytes() for path in kept]
    with pytest.raises(UserError, match=message):
        train(run.path, steps=200, resume=True)
    assert before == [path.read_bytes() for path in kept]


def test_what_was_found_out_about_earlier_policies_is_set_aside(copy, capsys):
    run = copy(100)
    for name in ("evaluation-jax.json", "certificate-seed0-p0.1-d15.json"):
        (run.path / name).write_text(name)
    train(run.path, resume=True)
    assert not (run.path / "earlier").exists()  # nothing was left to train
    train(run.path, steps=200, resume=True)
    names = ["certificate-seed0-p0.1-d15.json", "evaluation-jax.json"]
    assert [(path.name, path.read_text()) for path in sorted((run.path / "earlier" / "iteration-5").iterdir())] == [
        (name, name) for name in names
    ]
    assert not [*run.path.glob("evaluation-*"), *run.path.glob("certificate-*")]
    assert "are of earlier policies" in capsys.readouterr().err


def files(run):
    return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def test_a_run_whose_checkpoints_were_removed_is_left_alone(copy):
    run = copy(100)
    shutil.rmtree(run.path / "checkpoints")
    before = files(run)
    with pytest.raises(UserError, match="has policies but no checkpoint any more"):
        train(run.path, steps=200, resume=True)
    assert files(run) == before


@pytest.mark.parametrize("damage", ["remove", "cut", "another"])
def test_lost_policies_are_written_again_from_the_checkpoint(fake, tmp_path, damage):
    run = train(tmp_path / "run", seeds=2)
    lost = run.path / "policies" / "seed1-p0.1-d15.safetensors"
    before, other = lost.read_bytes(), lost.with_name("seed0-p0.1-d15.safetensors").read_bytes()
    lost.write_bytes({"remove": b"", "cut": before[:-3], "another": other}[damage])
    if damage == "remove":
        lost.unlink()
    train(run.path, seeds=2, resume=True)
    assert lost.read_bytes() == before


def test_a_torn_policy_is_told_in_one_sentence(copy):
    run = copy(100)
    (path,) = (run.path / "policies").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"is not a complete file.*--resume, which writes its policies again"):
        run.frozen  # noqa: B018


@pytest.mark.parametrize("name", ["metrics.csv", "episodes.csv", "events"])
def test_nothing_is_cut_where_one_file_is_not_as_it_was(copy, name):
    run = copy(100)
    for path in run.path.glob("*.csv"):
        path.write_bytes(path.read_bytes() + b"0,0.1")
    (changed,) = run.path.glob("events.out.*") if name == "events" else [run.path / name]
    changed.write_bytes(b"\xff\xfe")
    before = files(run)
    with pytest.raises(UserError, match="is shorter than at its last checkpoint"):
        train(run.path, steps=200, resume=True)
    assert files(run) == before


def test_bytes_that_are_no_text_are_other_columns(copy):
    run = copy(100)
    path = run.path / "metrics.csv"
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    with pytest.raises(UserError, match="has other columns"):
        train(run.path, steps=200, resume=True)
    with pytest.raises(UserError, match=r"metrics\.csv is not a table"):
        run.metrics  # noqa: B018


def test_a_run_that_is_refused_before_training_leaves_no_folder(fake, tmp_path):
    with pytest.raises(UserError, match=r"take .* GB at least"):
        train(tmp_path / "run", window=2 * 10**9)
    assert not (tmp_path / "run").exists()


def test_a_run_without_checkpoints_says_that_it_starts_over(copy, capsys):
    run = copy(100)
    shutil.rmtree(run.path / "checkpoints")
    shutil.rmtree(run.path / "policies")
    again = train(run.path, resume=True)
    assert "holds no checkpoint, so training starts from the beginning" in capsys.readouterr().err
    assert rows(again) == rows(run)
