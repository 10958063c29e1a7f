"""Certificates: an exact one-sided bound on the outage of a policy, from episodes that nothing was chosen by."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import numpy as np
from rich.console import Console

from qcrl import stats
from qcrl.constraints import Outage
from qcrl.envs.base import Description
from qcrl.errors import UserError
from qcrl.evaluation.evaluate import Player, choose_lanes, trained_environment, versions, write_json
from qcrl.evaluation.summary import Results
from qcrl.kinds import Json
from qcrl.runs.folder import Run, load
from qcrl.runs.lane import Lane, by_setting

SELECTION_EPISODES = 200
"""Per candidate, where one of several seeds is chosen."""
EXPECTED_SHARE = 0.5
"""Share of the promised probability that the true outage is expected to be, unless the user knows better."""

NUMBERS: dict[Any, Any] = {float: (float, int), float | None: (float, int, type(None))}
"""What JSON may hold for a field of that type."""


@dataclass(frozen=True)
class Certificate:
    """A promise about one policy, and all that is needed to check it."""

    verdict: str
    """certified: the upper bound is at most the probability. violated: the lower bound is above it. Else undecided."""
    policy_sha256: str
    environment: Json
    engine: str
    deterministic: bool
    limit: float
    probability: float
    """What is promised: at most this share of episodes costs more than the limit."""
    trained_probability: float
    confidence: float
    """Of all the certificates that were made together."""
    episodes: int
    outages: int
    upper_bound: float
    lower_bound: float
    candidates: int
    """Seeds that this policy was chosen from."""
    selection_episodes: int
    """Per candidate, other episodes than those that certify; 0 where nothing was chosen."""
    certified_together: int
    """Certificates that share the confidence: each bound holds with 1 - (1 - confidence) / certified_together."""
    episode_seed: int
    versions: dict[str, str]
    seed: int
    """Training seed of the policy."""
    learning_rate: float | None = None
    """Only where lanes of the run differ in it."""

    @property
    def lane(self) -> Lane:
        constraint = Outage(self.limit, self.trained_probability)
        return Lane(self.seed, (constraint,), self.trained_probability, self.learning_rate)

    def __str__(self) -> str:
        share = f"{self.outages:,} outages in {self.episodes:,} episodes"
        promise = f"at most {self.probability:g} of episodes cost more than {self.limit:g}"
        level = f"confidence {self.confidence:.4g}"
        if self.certified_together > 1:
            level += f" for all {self.certified_together} certificates"
        bounds = f"upper bound {self.upper_bound:.4f}, lower bound {self.lower_bound:.4f}, each one-sided"
        return f"{self.lane}: {self.verdict}. Promise: {promise}. Found: {share}; {bounds}, {level}."


def judge(
    outages: int, episodes: int, probability: float, confidence: float = 0.95, together: int = 1
) -> tuple[str, float, float]:
    """Verdict, upper and lower bound. Several certificates share the error probability evenly (Bonferroni)."""
    each = 1 - (1 - confidence) / together
    upper = stats.outage_bound(outages, episodes, each)
    lower = stats.outage_lower_bound(outages, episodes, each)
    verdict = "certified" if upper <= probability else "violated" if lower > probability else "undecided"
    return verdict, upper, lower


def certify(run: str | Path | Run, confidence: float = 0.95, **options: Any) -> Certificate:
    """Certify one policy of a run, with the options of `certify_all`; where the run has several settings, say which."""
    run = run if isinstance(run, Run) else load(run)
    chosen = {name: options[name] for name in ("seed", "probability", "limit") if name in options}
    groups = _candidates(choose_lanes(run, **chosen), options.get("every_seed", False))
    if len(groups) > 1:
        settings = "; ".join(f"{group[0]}" for group in groups)
        raise UserError(
            f"{run.path} would need {len(groups)} certificates ({settings}); choose one by seed, probability and "
            "limit, or call qcrl.evaluation.certify.certify_all"
        )
    return certify_all(run, confidence, **options)[0]


def certify_all(
    run: str | Path | Run,
    confidence: float = 0.95,
    *,
    promise: float | None = None,
    expected: float | None = None,
    power: float = 0.8,
    episodes: int | None = None,
    engine: str = "jax",
    deterministic: bool = False,
    seed: int | None = None,
    probability: float | None = None,
    limit: float | None = None,
    every_seed: bool = False,
    selection_episodes: int = SELECTION_EPISODES,
    episode_seed: int | None = None,
    env: Any = None,
    processes: int | None = None,
    progress: bool = True,
) -> list[Certificate]:
    """Certify one policy per setting of a run, and write the certificates to its folder.

    Of several seeds one is chosen, by `selection_episodes` episodes each that are not used again.

    promise: outage to certify; the one that was trained for unless given.
    expected: outage that the policy is thought to have, for the number of episodes; half the promise unless given.
    power: chance of the verdict "certified" if the policy has the expected outage.
    episodes: how many; those that `expected` and `power` ask for unless given.
    engine, deterministic, env, processes: as for `evaluate`.
    seed, probability, limit: only the lanes trained with these.
    every_seed: certify every seed instead of choosing one.
    episode_seed: which episodes; by default a number that follows from the policy, so that trying again gives the
        same episodes and not another chance.
    """
    if not 0 < confidence < 1:
        raise UserError(f"confidence is {confidence}, but it must lie strictly between 0 and 1; 0.95 means 95%")
    run = run if isinstance(run, Run) else load(run)
    groups = _candidates(choose_lanes(run, seed, probability, limit), every_seed)
    if selection_episodes < 1 and max(map(len, groups)) > 1:
        raise UserError(
            f"selection_episodes is {selection_episodes}, but choosing among {max(map(len, groups))} seeds takes at "
            "least 1 episode each; give more, or certify one seed (seed) or each of them (every_seed)"
        )
    play = Player(run, trained_environment(run, env), engine, deterministic, processes, progress)
    console = Console(stderr=True, quiet=not progress)
    each = 1 - (1 - confidence) / len(groups)
    plans = []
    for group in groups:
        target = Outage(group[0].limit, group[0].probability if promise is None else promise).probability
        outage = EXPECTED_SHARE * target if expected is None else expected
        plans.append((group, target, outage, _plan(target, each, outage, power, episodes)))
    certificates = []
    for group, target, outage, count in plans:
        lane, selected = group[0], 0
        if len(group) > 1:
            console.print(f"Choosing among {len(group)} seeds by {selection_episodes:,} episodes each", soft_wrap=True)
            lane = choose(play(group, selection_episodes, "select", episode_seed or 0), outage)
            selected = selection_episodes
        planned = f" ({power:g} power if its outage is {outage:g})" if episodes is None else ""
        text = f"Certifying {lane}: outage <= {target:g} takes {count:,} fresh episodes{planned}"
        console.print(text, highlight=False, soft_wrap=True)
        digest = _hash(run.policy_file(lane))
        stream = int(digest[:8], 16) if episode_seed is None else episode_seed
        outages = _count_outages(play, lane, count, stream)
        verdict, upper, lower = judge(outages, count, target, confidence, len(groups))
        certificate = Certificate(
            verdict=verdict,
            policy_sha256=digest,
            environment=Description.of(play.env).as_dict(),
            engine=play.engine,
            deterministic=deterministic,
            limit=lane.limit,
            probability=target,
            trained_probability=lane.probability,
            confidence=confidence,
            episodes=count,
            outages=outages,
            upper_bound=upper,
            lower_bound=lower,
            candidates=len(group),
            selection_episodes=selected,
            certified_together=len(groups),
            episode_seed=stream,
            versions=versions(play.engine),
            seed=lane.seed,
            learning_rate=lane.learning_rate,
        )
        write_json(run.path / f"certificate-{lane}.json", asdict(certificate))
        certificates.append(certificate)
    return certificates


def choose(results: Mapping[Lane, Results], outage: float) -> Lane:
    """The best mean return among those with at most this outage; the lowest outage where there is none."""

    def rank(lane: Lane) -> tuple[float, float]:
        reached = float(np.mean(results[lane].costs > lane.limit))
        return min(outage - reached, 0.0), float(np.mean(results[lane].returns))

    return max(results, key=rank)


def verify(
    file: str | Path,
    run: str | Path | Run | None = None,
    *,
    env: Any = None,
    processes: int | None = None,
    progress: bool = True,
) -> tuple[Certificate, list[str]]:
    """Run a certificate's episodes again. The certificate, and in what it differs from what is found: nothing, if true.

    run: where the policy is; the folder of the certificate unless given.
    """
    certificate = read_certificate(file)
    run = Path(file).parent if run is None else run
    run = run if isinstance(run, Run) else load(run)
    c = certificate
    trained = choose_lanes(run, c.seed, c.trained_probability, c.limit)
    lane = next((lane for lane in trained if lane.learning_rate == c.learning_rate), None)
    if lane is None:
        raise UserError(f"{run.path} has no lane {c.lane}; give the run that was certified")
    found = judge(c.outages, c.episodes, c.probability, c.confidence, c.certified_together)
    differences = []
    if c.verdict != found[0] or not np.allclose(found[1:], (c.upper_bound, c.lower_bound), rtol=0, atol=1e-9):
        differences.append(
            f"{c.outages} outages in {c.episodes} episodes mean {found[0]} with bounds {found[1]:.6g} and "
            f"{found[2]:.6g}, not {c.verdict} with {c.upper_bound:.6g} and {c.lower_bound:.6g}"
        )
    if _hash(run.policy_file(lane)) != c.policy_sha256:
        return c, [*differences, f"the policy of {lane} is another one than the certified"]
    play = Player(run, trained_environment(run, env), c.engine, c.deterministic, processes, progress)
    if Description.of(play.env).as_dict() != c.environment:
        return c, [*differences, "the environment is another one than the certified"]
    outages = _count_outages(play, lane, c.episodes, c.episode_seed)
    if outages != c.outages:
        changed = [name for name, value in versions(c.engine).items() if value != c.versions.get(name)]
        why = f"; other {', '.join(changed)} than then, which may change an episode by rounding" if changed else ""
        differences.append(f"{outages} outages in {c.episodes} episodes, not {c.outages}{why}")
    return c, differences


def read_certificate(file: str | Path) -> Certificate:
    """The certificate in this file; anything else is a user's mistake."""
    try:
        content = json.loads(Path(file).read_text())
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}); give the file of a certificate") from None
    except ValueError as error:
        raise UserError(f"{file} is torn: it is not JSON ({error}); certify the policy again") from None
    hints = get_type_hints(Certificate)
    names = [field.name for field in fields(Certificate)]
    for name in names:
        value = content.get(name) if isinstance(content, dict) else None
        kind = NUMBERS.get(hints[name]) or get_origin(hints[name]) or hints[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise UserError(f"{file} is no whole certificate: its {name} is {value!r}; certify the policy again")
    if content["certified_together"] < 1:
        raise UserError(f"{file} is no whole certificate: certified_together is below 1; certify the policy again")
    return Certificate(**{name: content.get(name) for name in names})


def _candidates(lanes: Sequence[Lane], every_seed: bool) -> list[list[Lane]]:
    """Groups of lanes of which one each is certified."""
    if every_seed:
        return [[lane] for lane in lanes]
    return by_setting(lanes)


def _plan(probability: float, confidence: float, expected: float, power: float, episodes: int | None) -> int:
    """How many episodes certify."""
    if episodes is None:
        return stats.episodes_needed(probability, confidence, expected, power)
    least = stats.episodes_needed(probability, confidence)
    if episodes < least:
        raise UserError(
            f"episodes is {episodes}, but even without any outage an outage of {probability:g} cannot be certified at "
            f"{confidence:.4g} confidence with fewer than {least}; give more, or leave it out"
        )
    return episodes


def _count_outages(play: Player, lane: Lane, episodes: int, episode_seed: int) -> int:
    results = play([lane], episodes, "certify", episode_seed)[lane]
    return int(np.sum(results.costs > lane.limit))


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
