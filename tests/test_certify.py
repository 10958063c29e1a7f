"""Certificates: exact verdicts, the price of choosing, and checking them again."""

import json
from dataclasses import asdict, replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats as scipy_stats

import qcrl
from qcrl import Outage, UserError
from qcrl.algos.find import build
from qcrl.cli.main import main
from qcrl.envs.two_path import TwoPathEnv
from qcrl.evaluation import plan as plans
from qcrl.evaluation.calibrate import Measured
from qcrl.evaluation.certificate import read_certificate, write_certificate
from qcrl.evaluation.certify import certify_all, choose
from qcrl.evaluation.evaluate import Player
from qcrl.evaluation.verify import verify
from qcrl.runs import checkpoints
from qcrl.runs.files import locked
from qcrl.runs.lane import Lane
from qcrl.stats import episodes_needed
from test_evaluation import RISKY, SAFE, write_policy, write_run

pytest_plugins = ["fakes"]


@pytest.fixture
def run(fake, tmp_path):
    """Seed 0 has outage .08, seeds 1 and 2 .287, and a higher return."""
    return write_run(tmp_path, [SAFE, RISKY, RISKY])


def test_a_policy_at_its_target_is_hardly_ever_certified():
    """4,000 repetitions at a true outage of .1; a right bound fails this with probability below 1e-6."""
    outages = np.random.default_rng(0).binomial(300, 0.1, size=4000)
    verdicts = np.array([plans.fixed(0.1, 0.05, 300).verdict(0, k) for k in range(301)])[outages]
    alarm = scipy_stats.binom.isf(1e-6, 4000, 0.05) / 4000
    assert 0 < np.mean(verdicts == "certified") <= alarm
    assert 0 < np.mean(verdicts == "violated") <= alarm


@pytest.mark.parametrize("together", [1, 4])
def test_choosing_among_candidates_is_paid_for(together):
    """Of 8 candidates, all at the target, the one with the fewest outages is taken, `together` times.

    Certified on 300 other episodes, in at most .05 of 4,000 repetitions any is; on those of the choice, in 1 of 3.
    """
    rng = np.random.default_rng(1)
    certified = np.arange(301) <= plans.fixed(0.1, 0.05 / together, 300).certify_at[0]
    candidates = rng.binomial(300, 0.1, size=(4000, together, 8))
    fresh = rng.binomial(300, 0.1, size=(4000, together))
    alarm = scipy_stats.binom.isf(1e-6, 4000, 0.05) / 4000
    assert np.mean(certified[fresh].any(axis=1)) <= alarm
    assert np.mean(certified[candidates.min(axis=2)].any(axis=1)) > 0.2


@pytest.mark.parametrize(
    ("outages", "verdict"),
    [(0, "certified"), (21, "certified"), (22, "undecided"), (39, "undecided"), (40, "violated")],
)
def test_verdicts_are_those_of_the_exact_bounds(outages, verdict):
    """300 episodes at an outage of .1: Pr(<= 21) is .046, Pr(<= 22) .070, Pr(>= 39) .055 and Pr(>= 40) .038."""
    plan = plans.fixed(0.1, 0.05, 300)
    assert plan.verdict(0, outages) == verdict
    lower, upper = plan.bounds(0, outages)
    less, more = (scipy_stats.binomtest(outages, 300, alternative=side) for side in ("less", "greater"))
    assert upper == pytest.approx(less.proportion_ci(0.95, "exact").high)
    assert lower == pytest.approx(more.proportion_ci(0.95, "exact").low, abs=1e-12)


def test_certify_runs_exactly_what_it_states(run, capsys):
    """Outage .08 against a promise of .3: certified. The file is the certificate."""
    certificate = qcrl.certify(run, seed=0, promise=0.3, deterministic=True)
    needed = episodes_needed(0.3, expected=0.15)
    assert f"takes {needed} fresh episodes" in " ".join(capsys.readouterr().err.split())
    assert certificate.episodes == needed
    assert certificate.verdict == "certified"
    assert repr(certificate).startswith("<Certificate seed0-p0.1-d15: certified. Promise: at most 0.3 of episodes cost")
    assert certificate.outages / needed == pytest.approx(0.08, abs=4 * (0.08 * 0.92 / needed) ** 0.5)
    assert (certificate.candidates, certificate.selection_episodes, certificate.certified_together) == (1, 0, 1)
    assert json.loads((run / "certificate-seed0-p0.1-d15.json").read_text()) == asdict(certificate)
    assert qcrl.certify(run, seed=0, promise=0.3, deterministic=True, progress=False) == certificate


def test_a_risky_policy_is_violated(run):
    certificate = qcrl.certify(run, seed=1, episodes=300, deterministic=True, progress=False)
    assert certificate.verdict == "violated"
    assert certificate.lower_bound > 0.1


def test_among_several_seeds_one_is_chosen_on_other_episodes(run):
    certificate = qcrl.certify(run, expected=0.09, episodes=400, deterministic=True, progress=False)
    assert certificate.seed == 0
    assert (certificate.candidates, certificate.selection_episodes) == (3, 200)


def test_every_certificate_of_a_call_shares_the_confidence(fake, tmp_path):
    folder = write_run(tmp_path, [SAFE], probabilities=(0.1, 0.2))
    first, second = certify_all(folder, deterministic=True, episodes=500, progress=False)
    assert (first.certified_together, first.trained_probability, second.trained_probability) == (2, 0.1, 0.2)
    less = scipy_stats.binomtest(second.outages, 500, alternative="less")
    assert second.upper_bound == pytest.approx(less.proportion_ci(0.975, "exact").high)
    with pytest.raises(UserError, match="would need 2 certificates"):
        qcrl.certify(folder)
    alone = qcrl.certify(folder, 0.9, probability=0.2, episodes=500, deterministic=True, progress=False)
    assert (alone.certified_together, alone.attempt, alone.spent) == (1, 2, first.error + second.error)


def test_the_choice_prefers_return_among_those_that_seem_safe():
    found = {"a": Measured(100, 2, 1.0), "b": Measured(100, 4, 3.0), "c": Measured(100, 9, 5.0)}
    assert choose(found, 0.05) == "b"
    assert choose(found, 0.01) == "a"


def test_a_certificate_is_verified_and_its_policy_must_be_the_same(run, capsys):
    certificate = qcrl.certify(run, seed=0, promise=0.2, deterministic=True, progress=False)
    file = run / certificate.file
    assert verify(file, progress=False) == (certificate, None)
    assert main(["certify", "--verify", str(file)]) == 0
    assert "Verified" in capsys.readouterr().out
    copy_policy(run, "seed1-p0.1-d15", "seed0-p0.1-d15")
    assert main(["certify", "--verify", str(file)]) == 1
    assert "Not verified: the policy policies/seed0-p0.1-d15.safetensors is another one" in capsys.readouterr().out


CHANGES = {
    "verdict": "violated",
    "policy_sha256": "0" * 64,
    "environment": {"id": "Mine-v0"},
    "engine": "mujoco",
    "deterministic": False,
    "limit": 16.0,
    "cost": "energy",
    "probability": 0.19,
    "trained_probability": 0.2,
    "confidence": 0.99,
    "certified_together": 2,
    "attempt": 2,
    "spent": 0.01,
    "error": 0.01,
    "expected": 0.01,
    "power": 0.99,
    "looks": [300],
    "spending": 0.5,
    "certify_at": [50],
    "violate_at": [9],
    "counts": [0],
    "episodes": 1000,
    "outages": 0,
    "upper_bound": 0.01,
    "lower_bound": 0.2,
    "candidates": 9,
    "selection_episodes": 9,
    "calibration": [{"policy": "policies/better.safetensors"}],
    "parts": [{"weight": 1.0}],
    "episode_seed": 7,
    "versions": {},
    "seed": 1,
    "at_run_time": True,
    "constraints": [{"verdict": "certified", "words": "All is well."}],
    "sha256": "0" * 64,
}
SILENT = {"expected", "power", "versions", "spending"}
"""What nothing can be computed from: only the hash, and a signature, cover it."""


def test_every_change_of_a_certificate_is_found(run, capsys):
    """As it stands, and where the hash is made to fit; exit code 1, and the difference is named."""
    certificate = qcrl.certify(run, seed=0, promise=0.2, deterministic=True, progress=False)
    file = run / certificate.file
    whole = json.loads(file.read_text())
    assert set(CHANGES) >= set(whole) - {"policy", "signature", "learning_rate"}
    for name, value in CHANGES.items():
        file.write_text(json.dumps(whole | {name: value}))
        assert main(["certify", "--verify", str(file)]) == 1, name
        assert "Not verified: " in capsys.readouterr().out
        forged = replace(read_certificate(file), sha256="").sealed()
        file.write_text(json.dumps(asdict(forged)))
        code = main(["certify", "--verify", str(file)])
        assert code == 0 if name in (*SILENT, "sha256") else code in (1, 2), name
    for name in whole:
        file.write_text(json.dumps({key: value for key, value in whole.items() if key != name}))
        assert main(["certify", "--verify", str(file)]) == 1, name
        assert f"its {name} is missing" in capsys.readouterr().err
    for name, value in {"note": "certified", "looks": ["x"], "versions": {"jax": 1}, "verdict": None}.items():
        file.write_text(json.dumps(whole | {name: value}))
        assert main(["certify", "--verify", str(file)]) == 1, name
        assert f"its {name}" in capsys.readouterr().err
    file.write_text(json.dumps(whole))
    assert verify(file, progress=False) == (certificate, None)


@pytest.mark.parametrize("sequential", [False, True])
def test_the_same_attempt_brings_no_fresh_luck(run, monkeypatch, sequential):
    """As where an environment ignores seeds. Another confidence is another attempt, with other episodes."""
    options = dict(seed=0, promise=0.2, sequential=sequential, deterministic=True, progress=False)
    first = qcrl.certify(run, **options)
    written = (run / first.file).read_bytes()
    play = Player.play_one
    other = lambda self, policy, episodes, seed, *how: play(self, policy, episodes, [*seed, 1], *how)
    with monkeypatch.context() as changed:
        changed.setattr(Player, "play_one", other)
        with pytest.raises(UserError, match=r"came out otherwise \(outages .*; the certificate of before stands"):
            qcrl.certify(run, **options)
        assert (run / first.file).read_bytes() == written
        assert qcrl.certify(run, 0.9, **options).attempt == 2
    assert qcrl.certify(run, **options) == first


def test_the_same_attempt_finds_the_same_of_every_constraint(run):
    found = {"promise": 0.2, "outages": 3, "upper_bound": 0.1, "lower_bound": 0.0, "verdict": "certified", "words": ""}
    rows = [{"trained": Outage(15, 0.1).as_dict(), **found}]
    made = qcrl.certify(run, seed=0, promise=0.2, deterministic=True, progress=False)
    first, other = (
        replace(made, constraints=[row | {"outages": outages} for row in rows]).sealed() for outages in (3, 4)
    )
    assert write_certificate(qcrl.load(run), first, [first]) == first
    with pytest.raises(UserError, match=r"\(outages 4, before 3\)"):
        write_certificate(qcrl.load(run), other, [first])
    assert read_certificate(run / first.file) == first


def test_a_certificate_is_signed_and_another_key_or_none_is_found(run, tmp_path, capsys, monkeypatch):
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    from cryptography.hazmat.primitives import serialization

    for name in ("mine", "yours"):
        key = ed25519.Ed25519PrivateKey.generate()
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        (tmp_path / f"{name}.pem").write_bytes(key.private_bytes(*form))
        public = key.public_key().public_bytes(form[0], serialization.PublicFormat.SubjectPublicKeyInfo)
        (tmp_path / f"{name}.pub").write_bytes(public)
    options = dict(seed=0, promise=0.2, deterministic=True, progress=False)
    certificate = qcrl.certify(run, key=tmp_path / "mine.pem", **options)
    with monkeypatch.context() as changed:  # the same attempt once more loses nothing, also where other fields change
        for versions in (certificate.versions, {"qcrl": "9"}):
            changed.setattr("qcrl.evaluation.certify.versions", lambda engine, named=versions: named)
            again = qcrl.certify(run, **options)
            assert (again.signature, again.sha256) == (certificate.signature, certificate.sha256)
        signed = qcrl.certify(run, key=tmp_path / "mine.pem", **options)
    assert (signed.versions, signed.sha256 == certificate.sha256) == ({"qcrl": "9"}, False)
    assert qcrl.certify(run, key=tmp_path / "mine.pem", **options).sha256 == certificate.sha256
    file = run / certificate.file
    check = lambda key: main(["certify", "--verify", str(file), "--key", str(tmp_path / key)])
    assert check("mine.pub") == 0
    assert certificate.signature["public_key"] in capsys.readouterr().out
    assert check("yours.pub") == 1
    assert "it is signed, but not with the key" in capsys.readouterr().out
    forged = replace(certificate, versions={}, sha256="", signature=None).sealed()
    file.write_text(json.dumps(asdict(replace(forged, signature=certificate.signature))))
    assert check("mine.pub") == 1
    assert "its signature is not one of its hash" in capsys.readouterr().out
    file.write_text(json.dumps(asdict(forged)))
    assert main(["certify", "--verify", str(file)]) == 0  # without a key, only what can be computed again
    assert check("mine.pub") == 1
    assert "it has no signature" in capsys.readouterr().out
    with pytest.raises(UserError, match="holds a public key, which can only verify"):
        qcrl.certify(run, key=tmp_path / "mine.pub", **options)
    (tmp_path / "bad.pem").write_text("no key")
    with pytest.raises(UserError, match="holds no key that can be read"):
        qcrl.certify(run, key=tmp_path / "bad.pem", **options)


def test_a_second_attempt_spends_error_and_a_third_has_none(run):
    first = qcrl.certify(run, 0.97, seed=0, promise=0.2, deterministic=True, progress=False)
    again = qcrl.certify(run, 0.97, seed=0, promise=0.2, deterministic=True, progress=False)
    assert again == first
    assert (first.attempt, first.spent, first.error) == (1, 0.0, pytest.approx(0.03))
    second = qcrl.certify(run, seed=0, promise=0.2, episodes=400, deterministic=True, progress=False)
    assert (second.attempt, second.spent, second.error) == (2, first.error, pytest.approx(0.02))
    assert second.episode_seed != first.episode_seed
    assert second.file == "certificate-seed0-p0.1-d15-attempt2.json"
    for certificate in (first, second):
        assert verify(run / certificate.file, progress=False) == (certificate, None)
    with pytest.raises(UserError, match="attempt 3 to certify a policy of this run"):
        qcrl.certify(run, seed=0, promise=0.3, deterministic=True, progress=False)
    # Training that goes on sets certificates aside, and what they spent stays spent.
    (run / "earlier" / "iteration-1").mkdir(parents=True)
    for certificate in (first, second):
        (run / certificate.file).rename(run / "earlier" / "iteration-1" / certificate.file)
    with pytest.raises(UserError, match="attempt 3 to certify a policy of this run"):
        qcrl.certify(run, seed=0, promise=0.3, deterministic=True, progress=False)
    # Where a certificate is missing, its number is not given again.
    (run / "earlier" / "iteration-1" / first.file).unlink()
    third = qcrl.certify(run, seed=0, promise=0.3, deterministic=True, progress=False)
    assert (third.attempt, third.spent) == (3, second.error)


def test_all_lanes_of_a_run_share_one_error(run):
    """Ten seeds, each certified on its own with an error of .05, would err in up to 40% of runs."""
    options = dict(promise=0.4, episodes=100, deterministic=True, progress=False)
    first = qcrl.certify(run, seed=0, **options)
    for other in (dict(seed=1), dict(seed=0, promise=0.3), dict(every_seed=True)):
        with pytest.raises(UserError, match=r"attempt 2 to certify .* those before have spent an error of 0\.05"):
            certify_all(run, **options | other)
    (again,) = certify_all(run, **options)  # the choice falls on the same policy, which has the same episodes
    assert (again.attempt, again.outages, again.sha256 == first.sha256) == (1, first.outages, False)
    assert qcrl.certify(run, seed=0, **options) == first
    second = qcrl.certify(run, 0.9, seed=1, **options)
    assert (second.attempt, second.spent, second.error) == (2, first.error, pytest.approx(0.05))
    assert "for all 2 attempts of this run" in str(second)
    assert qcrl.certify(run, 0.9, seed=1, **options) == second


def test_certificates_of_one_call_are_one_attempt_also_where_it_was_interrupted(run):
    options = dict(promise=0.4, episodes=100, deterministic=True, progress=False)
    qcrl.certify(run, seed=0, **options)
    made = certify_all(run, 0.9, every_seed=True, **options)
    assert [each.attempt for each in made] == [2, 2, 2]
    assert sum(each.error for each in made) == pytest.approx(0.05)
    assert all(verify(run / each.file, progress=False) == (each, None) for each in made)
    (run / made[2].file).unlink()
    assert certify_all(run, 0.9, every_seed=True, **options) == made
    # What another call spent in between counts.
    (run / made[2].file).unlink()
    qcrl.certify(run, 0.8, seed=0, **options)
    with pytest.raises(UserError, match="attempt 4"):
        certify_all(run, 0.9, every_seed=True, **options)


def test_two_processes_do_not_spend_the_same_error(run):
    options = dict(promise=0.4, episodes=100, deterministic=True, progress=False)
    with locked(run / "config.json", "of a test"):
        for certify in (lambda: qcrl.certify(run, seed=0, **options), lambda: qcrl.certify(run, **options)):
            with pytest.raises(UserError, match="another process certifies policies of"):
                certify()
    assert qcrl.certify(run, seed=0, **options).attempt == 1


def test_a_bad_key_is_found_before_any_episode(run, monkeypatch):
    pytest.importorskip("cryptography")
    monkeypatch.setattr(Player, "play", lambda *how: pytest.fail("episodes were run"))
    for options in (dict(seed=0, promise=0.2), dict(promise=0.2)):
        with pytest.raises(UserError, match="cannot read nowhere"):
            qcrl.certify(run, key="nowhere", progress=False, **options)


def test_a_cost_of_one_s_own_can_be_passed_as_for_an_evaluation(run):
    certificate = qcrl.certify(run, seed=0, promise=0.2, deterministic=True, progress=False)
    own = lambda obs, action, next_obs, info: 0.0
    for look in (
        lambda: qcrl.certify(run, seed=0, promise=0.2, cost=own),
        lambda: qcrl.certify(run, promise=0.2, cost=own),
        lambda: verify(run / certificate.file, cost=own),
    ):
        with pytest.raises(UserError, match="TwoPathEnv-v0 has its own; leave cost out"):
            look()


def test_a_sequential_certificate_stops_early_and_is_verified(run, capsys):
    """Outage .08 where .1 is expected and .2 promised."""
    assert main(f"certify {run} --seed 0 --promise 0.2 --deterministic --sequential --power 0.98".split()) == 0
    assert "takes at most " in capsys.readouterr().err
    certificate = read_certificate(run / "certificate-seed0-p0.1-d15.json")
    assert certificate.verdict == "certified"
    assert certificate.episodes == certificate.looks[len(certificate.counts) - 1] < certificate.looks[-1]
    assert certificate.looks[-1] <= 1.25 * episodes_needed(0.2, expected=0.1, power=0.98)
    assert verify(run / certificate.file, progress=False) == (certificate, None)


def test_weights_that_are_not_numbers_and_foreign_policies_are_not_certified(run):
    path = run / "policies" / "seed0-p0.1-d15.safetensors"
    whole = path.read_bytes()
    copy_policy(run, "seed1-p0.1-d15", "seed0-p0.1-d15")
    with pytest.raises(UserError, match="was copied in from elsewhere: its lane is not that of this run"):
        qcrl.certify(run, seed=0, promise=0.2, progress=False)
    path.write_bytes(whole)
    policy = qcrl.load(run).policy(seed=0)
    checkpoints.write_tree(path, {**policy.state, "weight": np.float32(np.nan)}, policy.info)
    with pytest.raises(UserError, match="has weights that are not finite numbers"):
        qcrl.certify(run, seed=0, promise=0.2, progress=False)


class TurnsNaN(TwoPathEnv):
    """After training, its observations are no numbers; its rewards and costs still are."""

    def observe(self, state):
        return jnp.where(state.position > 1, jnp.nan, super().observe(state))


def test_observations_that_are_not_numbers_are_not_certified(run):
    with pytest.raises(UserError, match="not a finite number"):
        qcrl.certify(run, seed=0, promise=0.2, env=TurnsNaN(), deterministic=True, progress=False)


def copy_policy(run, source, target):
    content = (run / "policies" / f"{source}.safetensors").read_bytes()
    (run / "policies" / f"{target}.safetensors").write_bytes(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"verdict": "certi', "cannot be read: it is not JSON"),
        ("[]", "cannot be read: it must be object, not array"),
        ('{"verdict": "certified"}', "cannot be read: its policy is missing"),
    ],
)
def test_a_torn_certificate_does_not_hold(run, capsys, content, message):
    (run / "torn.json").write_text(content)
    assert main(["certify", "--verify", str(run / "torn.json")]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--episodes 0", "episodes is 0, but even without any outage"),
        ("--episodes 28", "with fewer than 29"),
        ("--confidence 1", "confidence is 1.0"),
        ("--promise 0", "the promise is 0.0"),
        ("--expected 0.1", "expected is 0.1"),
        ("--seed 9", "has no seed 9"),
        ("--selection-episodes 0", "selection_episodes is 0, but choosing among 3 seeds"),
        ("--verify nowhere.json", "there is no file nowhere.json"),
    ],
)
def test_mistakes_are_one_sentence(run, capsys, arguments, message):
    assert main(["certify", str(run), *arguments.split()]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert message in last
    assert last.startswith("qcrl: ")


def test_a_certificate_needs_a_run(capsys):
    assert main(["certify"]) == 2
    assert "which run?" in capsys.readouterr().err


def test_a_certificate_of_a_learning_rate_is_verified(run):
    config, content = run / "config.json", json.loads((run / "config.json").read_text())
    lanes = [Lane(0, (Outage(15.0, 0.1),), 0.1, rate) for rate in (1e-3, 3e-3)]
    config.write_text(json.dumps(content | {"lanes": [lane.as_dict() for lane in lanes]}))
    for lane in lanes:
        path = run / "policies" / f"{lane}.safetensors"
        write_policy(path, build("fake", "fast"), TwoPathEnv(), lane, lambda state: {**state, "weight": jnp.float32(5)})
    for certificate in certify_all(run, episodes=100, deterministic=True, progress=False):
        file = run / certificate.file
        assert file.name.endswith(f"lr{certificate.learning_rate:g}.json")
        assert verify(file, progress=False) == (certificate, None)
    config.write_text(json.dumps(content | {"lanes": [lanes[0].as_dict()]}))
    with pytest.raises(UserError, match=r"has no lane seed0-p0\.1-d15-lr0\.003"):
        verify(file, progress=False)
