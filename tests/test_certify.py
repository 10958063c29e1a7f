"""Certificates: exact verdicts, the price of choosing, and checking them again."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from scipy import stats as scipy_stats

import qcrl
from qcrl import Outage, UserError
from qcrl.cli.main import main
from qcrl.evaluation.certify import certify_all, choose, judge, verify
from qcrl.evaluation.summary import Results
from qcrl.runs.lane import Lane
from qcrl.stats import episodes_needed
from test_evaluation import RISKY, SAFE, write_run

pytest_plugins = ["fakes"]


@pytest.fixture
def run(fake, tmp_path):
    """Seed 0 has outage .08, seeds 1 and 2 .287, and a higher return."""
    return write_run(tmp_path, [SAFE, RISKY, RISKY])


def test_a_policy_at_its_target_is_hardly_ever_certified():
    """4,000 repetitions at a true outage of .1; a right bound fails this with probability below 1e-6."""
    outages = np.random.default_rng(0).binomial(300, 0.1, size=4000)
    verdicts = np.array([judge(k, 300, 0.1)[0] for k in range(301)])[outages]
    alarm = scipy_stats.binom.isf(1e-6, 4000, 0.05) / 4000
    assert 0 < np.mean(verdicts == "certified") <= alarm
    assert 0 < np.mean(verdicts == "violated") <= alarm


@pytest.mark.parametrize("together", [1, 4])
def test_choosing_among_candidates_is_paid_for(together):
    """Of 8 candidates, all at the target, the one with the fewest outages is taken, `together` times.

    Certified on 300 other episodes, in at most .05 of 4,000 repetitions any is; on those of the choice, in 1 of 3.
    """
    rng = np.random.default_rng(1)
    certified = np.array([judge(k, 300, 0.1, together=together)[0] == "certified" for k in range(301)])
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
    found, upper, lower = judge(outages, 300, 0.1)
    assert found == verdict
    less, more = (scipy_stats.binomtest(outages, 300, alternative=side) for side in ("less", "greater"))
    assert upper == pytest.approx(less.proportion_ci(0.95, "exact").high)
    assert lower == pytest.approx(more.proportion_ci(0.95, "exact").low, abs=1e-12)


def test_certify_runs_exactly_what_it_states(run, capsys):
    """Outage .08 against a promise of .2: certified. The file is the certificate."""
    certificate = qcrl.certify(run, seed=0, promise=0.2, deterministic=True)
    needed = episodes_needed(0.2, expected=0.1)
    assert f"takes {needed} fresh episodes" in " ".join(capsys.readouterr().err.split())
    assert certificate.episodes == needed
    assert certificate.verdict == "certified"
    assert certificate.outages / needed == pytest.approx(0.08, abs=4 * (0.08 * 0.92 / needed) ** 0.5)
    assert (certificate.candidates, certificate.selection_episodes, certificate.certified_together) == (1, 0, 1)
    assert json.loads((run / "certificate-seed0-p0.1-d15.json").read_text()) == asdict(certificate)
    assert qcrl.certify(run, seed=0, promise=0.2, deterministic=True, progress=False) == certificate


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
    assert qcrl.certify(folder, probability=0.2, episodes=500, progress=False).certified_together == 1


def test_the_choice_prefers_return_among_those_that_seem_safe():
    lanes = [Lane(seed, (Outage(15.0, 0.1),), 0.1) for seed in range(3)]

    def results(outages, episode_return):
        return Results(np.full(100, episode_return), np.where(np.arange(100) < outages, 20.0, 0.0))

    found = dict(zip(lanes, [results(2, 1.0), results(4, 3.0), results(9, 5.0)]))
    assert choose(found, 0.05).seed == 1
    assert choose(found, 0.01).seed == 0


def test_a_certificate_is_verified_and_changes_are_found(run, capsys):
    certificate = qcrl.certify(run, seed=0, promise=0.2, deterministic=True, progress=False)
    file = run / f"certificate-{certificate.lane}.json"
    assert verify(file, progress=False) == (certificate, [])
    assert main(["certify", "--verify", str(file)]) == 0
    assert "Verified" in capsys.readouterr().out

    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"outages": 0}))
    differences = verify(file, progress=False)[1]
    assert len(differences) == 2  # the bounds are not those of 0 outages, and there are more of them
    assert differences[1].startswith(f"{certificate.outages} outages in {certificate.episodes} episodes, not 0")
    file.write_text(json.dumps(content))
    (run / "policies" / "seed0-p0.1-d15.safetensors").write_bytes(
        (run / "policies" / "seed1-p0.1-d15.safetensors").read_bytes()
    )
    assert main(["certify", "--verify", str(file)]) == 1
    assert "Not verified: the policy of seed0-p0.1-d15 is another one" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"verdict": "certi', "is torn: it is not JSON"),
        ("[]", "is no whole certificate: its verdict is None"),
        ('{"verdict": "certified"}', "is no whole certificate: its policy_sha256 is None"),
    ],
)
def test_a_torn_certificate_is_a_user_error(run, capsys, content, message):
    (run / "torn.json").write_text(content)
    assert main(["certify", "--verify", str(run / "torn.json")]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--episodes 0", "episodes is 0, but even without any outage"),
        ("--episodes 28", "with fewer than 29"),
        ("--confidence 1", "confidence is 1.0"),
        ("--promise 0", "probability is 0.0"),
        ("--expected 0.1", "expected is 0.1"),
        ("--seed 9", "has no seed 9"),
        ("--selection-episodes 0", "selection_episodes is 0, but choosing among 3 seeds"),
        ("--verify nowhere.json", "cannot read nowhere.json"),
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
    config, (first, *_) = run / "config.json", sorted((run / "policies").iterdir())
    content = json.loads(config.read_text())
    lanes = [Lane(0, (Outage(15.0, 0.1),), 0.1, rate).as_dict() for rate in (1e-3, 3e-3)]
    config.write_text(json.dumps(content | {"lanes": lanes}))
    for rate in ("0.001", "0.003"):
        first.with_name(f"seed0-p0.1-d15-lr{rate}.safetensors").write_bytes(first.read_bytes())
    for certificate in certify_all(run, episodes=100, deterministic=True, progress=False):
        file = run / f"certificate-{certificate.lane}.json"
        assert file.name.endswith(f"lr{certificate.learning_rate:g}.json")
        assert verify(file, progress=False) == (certificate, [])
    config.write_text(json.dumps(content | {"lanes": lanes[:1]}))
    with pytest.raises(UserError, match=r"has no lane seed0-p0\.1-d15-lr0\.003"):
        verify(file, progress=False)
