"""From a promise to a certificate: targets, calibration, mixtures, advice, and how often the procedure is wrong."""

import contextlib
import json
import os
from argparse import Namespace
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from scipy import stats

import qcrl
from host_envs import Ragged
from qcrl import Outage, UserError
from qcrl.bench.certificates import simulate
from qcrl.cli.main import main
from qcrl.cli.promised import finish, key_of
from qcrl.envs import make
from qcrl.evaluation import plan as plans
from qcrl.evaluation.advice import advice
from qcrl.evaluation.aim import POWER, afforded, aimed_by, promised, target
from qcrl.evaluation.calibrate import Candidate, Measured, calibrate, choose, shortest
from qcrl.evaluation.certificate import earlier_certificates
from qcrl.evaluation.certify import certify_all, require_confidence
from qcrl.evaluation.evaluate import Player, trained_environment
from qcrl.evaluation.promise import HOPELESS, CannotCertify, Outcome, keep
from qcrl.evaluation.verify import verify
from qcrl.runs.lane import Lane
from qcrl.runs.policy import Policy
from qcrl.training import loop
from test_evaluation import RISKY, SAFE, write_run

pytest_plugins = ["fakes"]
PLAN = plans.fixed(0.1, 0.05, 5000)


@pytest.mark.parametrize("sequential", [False, True])
def test_false_certificates_are_as_rare_as_the_confidence_says(sequential):
    """Every candidate's outage is the promise, every attempt is made: at most .05 of calls, up to one in a million."""
    tally = simulate(0.1, 0.1, 200, np.random.default_rng(0), episodes=1000, sequential=sequential, hopeless=0.0)
    assert tally.attempted == 1
    assert 0 < tally.certified <= stats.binom.isf(1e-6, 200, 0.05) / 200
    assert simulate(0.1, 0.1, 50, np.random.default_rng(0), episodes=1000, sequential=sequential).attempted < 0.8


def test_a_policy_at_the_planned_outage_is_certified_with_the_planned_power():
    """The certificate has .98; what it loses to calibration is little."""
    outage = plans.planned_outage(0.1, 0.05, 2000, POWER)
    assert simulate(0.1, outage, 80, np.random.default_rng(1), episodes=2000).certified > 0.85
    assert simulate(0.1, 0.9 * outage, 80, np.random.default_rng(1), episodes=2000).certified > 0.95


@pytest.mark.parametrize(("promise", "episodes"), [(0.2, 1000), (0.1, 5000), (0.01, 120_000), (0.001, 200_000)])
def test_the_target_is_below_what_the_episodes_certify(promise, episodes):
    planned = plans.planned_outage(promise, 0.05, episodes, POWER)
    share = 0.9 if promise >= 0.1 else 0.75  # the smaller the promise, the less recent policies differ
    assert share * planned < target(promise, 0.05, episodes) < planned < promise
    assert target(promise, 0.01, episodes) < target(promise, 0.05, episodes) < target(promise, 0.05, 2 * episodes)


def test_the_choice_is_the_highest_return_with_the_asked_chance():
    safe, good, risky = Measured(4000, 200, 17.0), Measured(4000, 300, 18.0), Measured(4000, 390, 18.1)
    assert choose([safe, good, risky], PLAN, POWER).parts == (1,)
    assert choose([safe, risky._replace(outages=500)], PLAN, 0.9999).parts[0] == 0
    hopeless = choose([risky, risky._replace(outages=450)], PLAN, POWER)
    assert hopeless.parts == (0,)
    assert hopeless.power < HOPELESS


def test_two_policies_are_mixed_where_that_returns_more():
    """Outages .05 and .12: mixed so that .1 can just be certified, and no further."""
    safe, risky = Measured(20_000, 1000, 10.0), Measured(20_000, 2400, 20.0)
    choice = choose([safe, risky], PLAN, POWER)
    assert choice.parts == (0, 1)
    assert choice.power >= POWER
    assert choice.outage == pytest.approx(0.05 * choice.weights[0] + 0.12 * choice.weights[1])
    assert choice.mean_return == pytest.approx(10 + 10 * choice.weights[1])
    more = choice.weights[1] + 0.05
    assert PLAN.power(0.05 + 0.07 * more) < POWER
    assert choose([safe, risky._replace(mean_return=10.05)], PLAN, POWER).parts == (0,)  # not worth it


def test_a_safer_choice_is_certified_in_fewer_episodes():
    found = [Measured(2000, 80, 1.0)]
    lengths = [plans.fixed(0.1, 0.05, n) for n in (100, 500, 2500, 5000)]
    choice = choose(found, PLAN, POWER)
    assert shortest(found, choice, lengths, POWER).episodes == 500
    found = [Measured(2000, 190, 1.0)]
    assert shortest(found, choose(found, PLAN, POWER), lengths, POWER).episodes == 5000


def test_those_that_matter_are_measured_twice():
    asked = []

    def measured(number, episodes, first):
        asked.append((number, episodes, first))
        return Measured(episodes, round((0.12, 0.05, 0.07, 0.3)[number] * episodes), (9.0, 1.0, 5.0, 9.5)[number])

    choice, found = calibrate(measured, 4, 8000, PLAN, POWER)
    assert asked[:4] == [(number, 1000, 0) for number in range(4)]
    again = [number for number, _, first in asked if first == 1000]
    assert 3 not in again
    assert set(choice.parts) <= set(again)
    assert found[3].episodes == 1000


@pytest.fixture
def run(fake, tmp_path):
    """Seed 0 has outage .08 and return .8, seed 1 .287 and 1: .1 can be kept by seed 0, .15 best by a mixture."""
    folder = write_run(tmp_path, [SAFE, RISKY])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"steps": 160_000}))
    return folder


def test_a_mixture_is_certified_verified_evaluated_and_loaded(run, capsys):
    command = f"certify {run} --promise 0.15 --deterministic".split()
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "% of episodes" in out
    assert "a mixture of 2 policies: certified" in out
    (certificate,) = qcrl.load(run).certificates
    assert (certificate["policy"], certificate["candidates"]) == ("policies/promised-p0.15-d15.safetensors", 2)
    routes = make("TwoPathEnv-v0").routes
    weights = [part["weight"] for part in certificate["parts"]]
    outage = weights[0] * routes[1].outage(15) + weights[1] * routes[0].outage(15)
    assert 0.12 < outage < 0.15
    assert certificate["outages"] / certificate["episodes"] == pytest.approx(outage, abs=0.015)
    file = run / "certificate-promised-p0.15-d15.json"
    assert verify(file, progress=False)[1] is None
    assert main(command) == 0  # the same attempt
    assert len(qcrl.load(run).certificates) == 1
    policy = qcrl.load(run).promised(probability=0.15)
    assert isinstance(policy, Policy)
    assert {int(policy.initial(seed).memory.part) for seed in range(40)} == {0, 1}
    with pytest.raises(UserError, match="has no such certified policy"):
        qcrl.load(run).promised(probability=0.2)
    assert main(f"export {run} --promised --out {run}/policy.onnx".split()) == 2
    assert "is a mixture of policies, which only JAX can run" in capsys.readouterr().err
    rows = qcrl.evaluate(run, 2000, promised=True, deterministic=True, progress=False).per_lane
    assert [row.probability for row in rows] == [0.15]
    assert rows[0].outage == pytest.approx(outage, abs=0.03)
    # A part that is exchanged for another policy is found.
    path = run / certificate["policy"]
    whole = path.read_bytes()
    path.write_bytes((run / "policies" / "seed0-p0.1-d15.safetensors").read_bytes())
    assert verify(file, progress=False)[1].startswith("the policy policies/promised-p0.15-d15.safetensors is another")
    with pytest.raises(UserError, match=r"d15\.safetensors is another policy than the certified; put that back"):
        qcrl.load(run).promised()
    for command in ("evaluate", f"render --out {run}/a.gif", f"export --format numpy --out {run}/a.safetensors"):
        assert main([*command.split(), str(run), "--promised"]) == 2
        assert "is another policy than the certified" in capsys.readouterr().err
    path.write_bytes(whole)
    (run / "policies" / "seed1-p0.1-d15.safetensors").unlink()
    assert verify(file, progress=False)[1].startswith("the candidate policies/seed1-p0.1-d15.safetensors is not")


def test_of_several_certificates_the_seed_chooses_and_each_policy_is_played_once(run, capsys, monkeypatch):
    certify = lambda **options: certify_all(run, episodes=500, deterministic=True, progress=False, **options)
    assert [each.verdict for each in certify(promise=0.4, every_seed=True)] == ["certified"] * 2
    again = [(0.4, 0.9), (0.3, 0.8)]  # the same promise, and a better one
    for promise, confidence in again:
        assert certify(promise=promise, confidence=confidence, seed=0)[0].verdict == "certified"
    played, play = [], Player.play
    counted = lambda self, policies, *how: played.append(len(policies)) or play(self, policies, *how)
    monkeypatch.setattr(Player, "play", counted)
    evaluate = lambda **chosen: qcrl.evaluate(run, 50, promised=True, deterministic=True, progress=False, **chosen)
    rows = [(row.seed, row.probability, row.outage) for row in evaluate().per_lane]
    assert [row[:2] for row in rows] == [(1, 0.4), (0, 0.4), (0, 0.3)]
    assert rows[1][2] == rows[2][2] < rows[0][2]
    assert played == [2]
    assert [row.seed for row in evaluate(seed=1).per_lane] == [1]
    assert qcrl.load(run).promised(seed=1).info["seed"] == 1
    known = "seed 0 for 0.4 at limit 15, seed 1 for 0.4 at limit 15, seed 0 for 0.3 at limit 15"
    for command in ("evaluate", f"render --out {run}/a.gif", f"export --format numpy --out {run}/a.safetensors"):
        assert main([*command.split(), str(run), "--promised", "--seed", "7"]) == 2
        assert f"has no such certified policy; it has: {known}" in capsys.readouterr().err


def test_a_promise_that_nothing_can_keep_costs_no_attempt_and_gets_advice(run, capsys):
    assert main(f"certify {run} --promise 0.06 --deterministic".split()) == 1
    out = capsys.readouterr().out
    assert "none of 2 policies can be certified for 0.06: the best of them has an outage of 0.08" in out
    assert "train anew with --promise 0.06 --outage 0.0" in out
    assert qcrl.load(run).certificates == []
    with pytest.raises(CannotCertify, match="none of 2 policies"):
        qcrl.certify(run, promise=0.06, deterministic=True, progress=False)
    assert keep(run, 0.1, deterministic=True, progress=False).certificate.attempt == 1


def test_advice_where_no_number_of_episodes_helps(monkeypatch):
    monkeypatch.setattr("qcrl.stats.outage_interval", lambda outages, episodes: (0.08, 0.09999))
    candidate, found = Candidate(Lane(0, (Outage(15.0, 0.1),), 0.1), Path()), Measured(10_000, 990, 1.0)
    text = advice(SimpleNamespace(config={}), [candidate], [found], choose([found], PLAN, POWER), PLAN, 0.09)
    assert "train anew with --promise 0.1 --outage 0.0" in text
    assert "--episodes" not in text


@pytest.mark.parametrize(("outages", "verdict"), [(90, "undecided"), (130, "violated")])
def test_the_last_words_say_what_to_do_after_an_attempt_that_failed(run, capsys, monkeypatch, outages, verdict):
    made = keep(run, 0.15, deterministic=True, progress=False).certificate
    failed = replace(made, verdict=verdict, looks=[1000], certify_at=[80], episodes=1000, outages=outages)
    last = {"undecided": "cannot tell; train anew", "violated": "does not keep the promise; train anew"}[verdict]
    monkeypatch.setattr("qcrl.evaluation.promise.keep", lambda run, **options: Outcome(failed, "Chosen"))
    monkeypatch.setattr("qcrl.cli.promised._show", lambda run: None)
    assert main(f"certify {run} --promise 0.15".split()) == 1
    assert last in capsys.readouterr().out.splitlines()[-1]
    assert finish(qcrl.load(run), Outcome(failed, "Chosen")) == 1
    assert last in capsys.readouterr().out.splitlines()[-1]
    assert finish(qcrl.load(run), Outcome(None, "none of 2; train anew")) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "None of 2; train anew."


def test_a_promise_without_a_number_is_that_of_the_training(run, capsys):
    config = json.loads((run / "config.json").read_text())
    kept = {"probability": 0.15, "confidence": 0.9, "episodes": 5000, "sequential": True}
    (run / "config.json").write_text(json.dumps(config | {"promise": kept}))
    assert main(f"certify {run} --promise --deterministic".split()) == 0
    (certificate,) = earlier_certificates(qcrl.load(run))
    assert (certificate.probability, certificate.confidence) == (0.15, 0.9)
    assert certificate.looks[-1] <= 5000 * 1.25
    assert len(certificate.looks) > 1
    assert main(f"certify {run} --promise --confidence 0.8 --episodes 300 --deterministic".split()) in (0, 1)
    assert {each.confidence for each in earlier_certificates(qcrl.load(run))} == {0.9, 0.8}


def test_a_promise_with_its_number_takes_nothing_over_from_the_training_and_none_takes_a_key(run, monkeypatch):
    config = json.loads((run / "config.json").read_text())
    kept = {"probability": 0.15, "confidence": 0.9, "episodes": 5000, "sequential": True, "key": "nowhere.pem"}
    (run / "config.json").write_text(json.dumps(config | {"promise": kept}))
    asked, nothing = [], Outcome(None, "")
    monkeypatch.setattr("qcrl.evaluation.promise.keep", lambda run, **options: asked.append(options) or nothing)
    names = ("promise", "confidence", "episodes", "sequential", "key")
    for number in ("", "0.15"):
        assert main(["certify", str(run), "--promise", *number.split()]) == 1
    told = [{name: options[name] for name in names if name in options} for options in asked]
    assert told == [{"promise": 0.15, "confidence": 0.9, "episodes": 5000, "sequential": True}, {"promise": 0.15}]


def test_a_resumed_training_signs_only_where_its_key_is_still_there(run, tmp_path, monkeypatch, capsys):
    key = tmp_path / "key.pem"
    key.write_text("a key")
    assert key_of(Namespace(key=None), {"key": str(key)}) == str(key)
    assert capsys.readouterr().err == ""
    assert key_of(Namespace(key=None), {"key": "/dev/fd/63"}) is None
    err = capsys.readouterr().err
    assert "the key /dev/fd/63 is not there, so the certificate will be unsigned; give --key" in err
    assert err.count("\n") == 1
    assert key_of(Namespace(key="mine.pem"), {"key": "/dev/fd/63"}) == "mine.pem"
    os.mkfifo(tmp_path / "pipe")
    stored = []
    monkeypatch.setattr(loop, "train", lambda *how, **more: stored.append(more["extra"]["promise"].get("key")))
    monkeypatch.setattr("qcrl.evaluation.promise.keep", lambda *how, **more: None)
    monkeypatch.setattr("qcrl.evaluation.promise.signing_key", lambda key: key)
    monkeypatch.chdir(tmp_path)
    for given in ("key.pem", Path("pipe"), None):
        with contextlib.suppress(TypeError):  # no outcome comes of these
            qcrl.train("fake", "TwoPathEnv-v0", Outage(15, 0.1), 160_000, promise=0.1, key=given)
    assert stored == [str(key), None, None]


def test_a_torn_policy_among_the_recent_ones_is_one_sentence(run, capsys):
    path = run / "policies" / "recent" / "seed0-p0.1-d15-i3.safetensors"
    path.parent.mkdir()
    path.write_bytes((run / "policies" / "seed0-p0.1-d15.safetensors").read_bytes()[:200])
    assert main(f"certify {run} --promise 0.15".split()) == 2
    err = capsys.readouterr().err
    assert "i3.safetensors is not a complete file" in err
    assert err.count("\n") == 1


def test_an_attempt_is_the_same_only_while_its_policy_is_there(run, monkeypatch):
    """Error that is spent is said before anything is trained or measured."""
    first = keep(run, 0.15, progress=False).certificate
    assert keep(run, 0.15, progress=False).certificate == first
    steps = json.loads((run / "config.json").read_text())["steps"]
    monkeypatch.setattr(Player, "play", lambda *how, **more: pytest.fail("episodes were run"))
    monkeypatch.setattr(loop, "train", lambda *how, **more: pytest.fail("it was trained"))
    train = lambda steps, **options: qcrl.train(
        "fake", "TwoPathEnv-v0", Outage(15, 0.1), steps, seeds=2, out=run, resume=True, promise=0.15, **options
    )
    with pytest.raises(pytest.fail.Exception, match="it was trained"):
        train(steps)
    with pytest.raises(UserError, match="attempt 2 to certify a policy of this run"):
        train(2 * steps)
    for other in (dict(episodes=9000), dict(episodes=300), dict(sequential=True)):
        with pytest.raises(UserError, match="attempt 2 to certify a policy of this run"):
            train(steps, **other)
        with pytest.raises(UserError, match="attempt 2 to certify a policy of this run"):
            keep(run, 0.15, progress=False, **other)
    (run / first.policy).unlink()
    with pytest.raises(UserError, match="attempt 2 to certify a policy of this run"):
        keep(run, 0.15, progress=False)


@pytest.mark.parametrize("options", [dict(episodes=700), dict(episodes=3300, sequential=True)])
def test_an_attempt_is_the_same_with_any_number_of_episodes(run, options):
    first, second = (keep(run, 0.3, deterministic=True, progress=False, **options).certificate for _ in range(2))
    assert first == second


def test_a_training_goes_on_with_the_aim_it_began_with_and_hands_its_workers_on(run, monkeypatch):
    config = json.loads((run / "config.json").read_text())
    kept = {"promise": {"probability": 0.15, "confidence": 0.95, "episodes": 20_000}, "probabilities": [0.123]}
    (run / "config.json").write_text(json.dumps(config | kept))
    trained, certified = [], []
    monkeypatch.setattr(loop, "train", lambda *how, **more: trained.append(how[2]))
    handed = lambda *how, **more: certified.append((more["processes"], more["step_timeout"]))
    monkeypatch.setattr("qcrl.evaluation.promise.keep", handed)
    more = dict(steps=3 * config["steps"], seeds=2, out=run, promise=0.15)
    for options in (dict(resume=True, workers=3, step_timeout=600.0), dict(resume=True, confidence=0.9), {}):
        with contextlib.suppress(TypeError):  # no outcome comes of these
            qcrl.train("fake", "TwoPathEnv-v0", Outage(15, 0.15), **more, **options)
    assert trained[0] == [Outage(15, 0.123)]
    assert all(0.123 < each.probability < 0.15 for each in (*trained[1], *trained[2]))
    assert certified == [(3, 600.0), (None, None), (None, None)]
    loaded = qcrl.load(run)
    play = lambda **timeout: Player(loaded, trained_environment(loaded), **timeout).crew.timeout
    assert (play(), play(step_timeout=600.0)) == (60.0, 600.0)


@pytest.mark.parametrize(
    ("env", "constraint", "options", "message"),
    [
        ("TwoPathEnv-v0", [Outage(15, 0.1), Outage(20, 0.1)], {}, "several limits are given"),
        ("TwoPathEnv-v0", Outage(15, 0.1), {"key": "nowhere"}, "cannot read nowhere"),
        ("TwoPathEnv-v0", None, {}, "the constraint is None, but must be one such as"),
        ("TwoPathEnv-v0", [], {}, r"the constraint is \[\], but must be one such as"),
        ("TwoPathEnv-v0", Outage(15, 0.1), {"recent": 3}, "recent is 3, but a promise has its own; leave recent out"),
        ("TwoPathEnv-v0", Outage(15, 0.1), {"extra": {}}, "extra is {}, but a promise has its own"),
        (SyncVectorEnv([Ragged] * 2), Outage(15, 0.1), {}, "is a vector environment; to promise, give the function"),
    ],
)
def test_what_cannot_be_certified_is_not_trained(fake, tmp_path, env, constraint, options, message):
    if "key" in options:
        pytest.importorskip("cryptography")
    with pytest.raises(UserError, match=message):
        qcrl.train("fake", env, constraint, steps=160_000, out=tmp_path / "run", promise=0.1, **options)
    assert not (tmp_path / "run").exists()


def test_advice_to_train_anew_where_the_learning_rate_has_ended():
    config = {"steps": 80_000, "algorithm": {"fields": {"learning_rate_end": 40.0}}}
    candidate, found = SimpleNamespace(lane=SimpleNamespace(probability=0.05)), Measured(4000, 800, 1.0)
    text = advice(SimpleNamespace(config=config), [candidate], [found], choose([found], PLAN, POWER), PLAN, 0.09)
    assert "trained for 0.05, so train anew in another folder with --steps 1.2e+05" in text


def test_a_promise_may_be_any_number():
    assert [promised(each) for each in (np.float32(0.1), np.float64(0.1), Fraction(1, 10))] == [0.1] * 3
    assert type(require_confidence(np.float32(0.95))) is float  # JSON knows no other
    for wrong in (True, np.float32(1), float("nan"), "0.1", None):
        with pytest.raises(UserError, match="but must lie strictly between 0 and 1"):
            promised(wrong)


def test_advice_to_train_on_where_the_target_is_not_reached_yet(fake, tmp_path):
    folder = write_run(tmp_path, [RISKY], probabilities=(0.05,))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"steps": 80_000}))
    with pytest.raises(CannotCertify, match=r"trained for 0\.05, so train on with --resume --steps 1\.2e\+05"):
        qcrl.certify(folder, promise=0.1, deterministic=True, progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(promise=0.1, episodes=0), "episodes is 0, but must be a whole number from 1"),
        (dict(promise=0.1, confidence=1.0), "confidence is 1.0"),
        (dict(promise=0.0), "the promise is 0.0"),
        (dict(promise=1.0), "the promise is 1.0"),
        (dict(promise=1e-5), "cannot be certified at 0.95 confidence with fewer than 299572"),
        (dict(promise=0.05), "the promise is 0.05, but 0.1 is to be trained for"),
    ],
)
def test_impossible_promises_are_one_sentence_before_anything_is_trained(fake, tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        qcrl.train("fake", "TwoPathEnv-v0", Outage(15, 0.1), steps=160_000, out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_training_with_a_promise_ends_with_a_certificate_a_film_and_a_report(fake, tmp_path, capsys, monkeypatch):
    """The fake policy is an untrained one that takes route 2 in nearly every episode: outage .08."""
    from fakes import Fake

    monkeypatch.setattr(
        Fake,
        "learn",
        lambda self, env, state, experience: (
            state._replace(learner={"weight": jnp.float32(SAFE)}),
            {"some_loss": jnp.zeros(())},
        ),
    )
    out = tmp_path / "run"
    command = f"train fake TwoPathEnv-v0 --promise 0.15 --sequential --steps 80000 --num-envs 100 --out {out}".split()
    assert main(command) == 0
    told = capsys.readouterr().out
    for line in ("Certificate: ", "Policy: ", "Film: ", "Report: "):
        assert line in told
    assert (out / "episode.gif").stat().st_size > 1000
    assert "certified" in (out / "report.html").read_text()
    config = json.loads((out / "config.json").read_text())
    assert (config["promise"]["probability"], config["promise"]["sequential"]) == (0.15, True)
    assert 0.1 < config["probabilities"][0] < 0.15
    assert qcrl.load(out).certificates[0]["candidates"] == 6
    assert main(["train", "--resume", "--out", str(out)]) == 0  # the promise is the run's, and the attempt the same
    assert len(qcrl.load(out).certificates) == 1


def test_calls_are_counted_beside_trainings_to_the_promise_and_go_on_where_they_were(fake, tmp_path, capsys):
    """Untrained fakes take either route: outages of about .18 keep .5."""
    options = dict(algo="fake", env="TwoPathEnv-v0", calls=2, steps=1000, episodes=200, promise=0.5, out=tmp_path)
    command = ["bench", "promise", *(word for name, value in options.items() for word in (f"--{name}", str(value)))]
    assert main([*command, "--set", "scale=0"]) == 0
    assert "2 of 2 certified" in capsys.readouterr().out
    file = tmp_path / "TwoPathEnv-v0-fast-p0.5" / "rows.csv"
    rows = file.read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["kind", "call", "call", "plain", "plain"]
    file.write_text("\n".join(rows[:-1]) + "\n")
    assert main([*command, "--set", "scale=0"]) == 0
    assert file.read_text().splitlines() == rows


def test_episodes_that_are_asked_for_count_where_the_length_of_an_episode_is_a_guess():
    """A simulator in Python without a time limit: 1,000 steps an episode are assumed, so few would be afforded."""
    env = SimpleNamespace(horizon=1000)
    assert afforded(1e5, env, 10_000) == 10_000
    assert aimed_by(10_000, 1e5, env) == 2_500
    assert aimed_by(100, 1e5, env) == 25
