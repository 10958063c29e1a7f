"""The run folder, as others read it: config.json, metrics.csv, episodes.csv and policies/."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qcrl.envs.base import Description
from qcrl.errors import UserError
from qcrl.kinds import Json
from qcrl.runs import checkpoints, shapes
from qcrl.runs.columns import read_columns
from qcrl.runs.files import file_hash
from qcrl.runs.lane import Lane, Numbers, from_dict, from_earlier_version, listed, require_home, shortest

if TYPE_CHECKING:
    from pandas import DataFrame

    from qcrl.runs.jax_policy import JaxPolicy
    from qcrl.runs.policy import Policy

FORMAT = 3
"""Of config.json and of what lies beside it. Of runs in another one, only tables and curves can be read."""
Pick = float | None
"""The value that the lane meant has; None where it may be left out."""


class NotCertified(UserError):
    """There is no certified policy, or none of those that were asked for."""


class Promised(NamedTuple):
    """A policy that a promise was certified of."""

    file: Path
    lane: Lane
    """The one it was trained in; where that was for ranges, with the limit and probability that it was certified at."""
    promise: float


@dataclass(frozen=True)
class Run:
    """A run folder."""

    path: Path

    @cached_property
    def config(self) -> Json:
        """What was trained, on what, under which constraint: the content of config.json."""
        return read_config(self.path, shapes.TRAINED)

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """Seeds x probabilities x limits, in the order in which they are trained."""
        return lanes_of(self.config)

    def __repr__(self) -> str:
        try:
            count = "1 lane" if len(self.lanes) == 1 else f"{len(self.lanes)} lanes"
            env, steps = self.config["environment"]["id"], f"{self.config['steps']:,} steps"
            what = f"{label(self.config)} on {env}, {count}, {steps}"
        except (UserError, KeyError, TypeError, ValueError):
            what = "not readable"
        return f"<Run {self.path}: {what}>"

    @property
    def frame(self) -> "DataFrame":
        """The rows of metrics.csv as a table of pandas, which must be installed."""
        try:
            import pandas
        except ImportError as error:
            raise UserError("pandas is not installed; pip install pandas, or use run.metrics") from error
        return pandas.DataFrame(self.metrics)

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """The columns of metrics.csv: one row per lane and iteration."""
        return read_columns(self.path / "metrics.csv", ("seed", "probability", "limit", "iteration", "env_steps"))

    @property
    def episodes(self) -> dict[str, np.ndarray]:
        """The columns of episodes.csv: one row per finished training episode."""
        return read_columns(self.path / "episodes.csv", ("seed", "probability", "limit", "env_steps", "return", "cost"))

    @property
    def frozen(self) -> tuple[Lane, ...]:
        """Lanes whose training turned non-finite. Their policies are the last good ones."""
        return tuple(lane for lane in self.lanes if not self.policy_info(lane).get("alive", True))

    def policy_info(self, lane: Lane) -> Json:
        """What is saved beside the arrays of a lane's policy."""
        return self._info(self.policy_file(lane))

    def _info(self, path: Path) -> Json:
        advice = "continue the run with --resume, which writes its policies again, or train it again"
        try:
            info = checkpoints.read_info(path)
        except checkpoints.Torn as torn:
            raise UserError(f"{torn}; {advice}") from None
        shapes.check(info, shapes.Policy, path, advice)
        return info

    def policy_file(self, lane: Lane) -> Path:
        path = self.path / "policies" / f"{lane.trained or lane}.safetensors"
        if not path.exists():
            raise UserError(
                f"{self.path} holds no policy for {lane}; train it for at least one checkpoint, or give the run that "
                "these results were taken from"
            )
        return path

    def lane(self, seed: Pick = None, probability: Pick = None, limit: Pick = None, learning_rate: Pick = None) -> Lane:
        """The one lane meant. The seed defaults to the first; the others may be left out where there is one.

        Of a lane that was trained for ranges, the one with the limit and probability asked for.
        """
        if self.lanes[0].constraint.ranged and (limit is not None or probability is not None):
            trained = self.lane(seed, learning_rate=learning_rate)
            trained.constraint.locate(limit, probability)
            return trained.judged(limit, probability)[0]
        first = self.lanes[0].seed if seed is None else seed
        lanes = self.chosen(seed=first, probability=probability, limit=limit, learning_rate=learning_rate)
        for name in ("probability", "limit", "learning_rate"):
            known = sorted({getattr(lane, name) for lane in lanes} - {None})
            if len(known) > 1:
                raise UserError(f"{self.path} was trained with {name} {_listing(known)}; say which one")
        return lanes[0]

    def chosen(self, **asked: Numbers) -> list[Lane]:
        """All lanes with these values, each one or several; None leaves all."""
        given = {name: listed(value, []) for name, value in asked.items() if value is not None}
        for name, values in given.items():
            known = sorted({getattr(lane, name) for lane in self.lanes} - {None})
            missing = [value for value in values if value not in known]
            if missing:
                trained = f"it was trained with {_listing(known)}" if known else "all of its lanes have the same"
                raise UserError(f"{self.path} has no {name} {shortest(missing[0])}; {trained}")
        lanes = [lane for lane in self.lanes if all(getattr(lane, name) in values for name, values in given.items())]
        if not lanes:
            wanted = ", ".join(f"{name} {value:g}" for name, values in given.items() for value in values)
            raise UserError(f"{self.path} was not trained with {wanted} together; see the lanes in its config.json")
        return lanes

    def policy(
        self,
        seed: Pick = None,
        probability: Pick = None,
        limit: Pick = None,
        learning_rate: Pick = None,
        backend: str = "jax",
    ) -> "Policy":
        """The trained policy of one lane, NumPy in and NumPy out; backend is jax, or numpy for quick single calls."""
        lane = self.lane(seed, probability, limit, learning_rate)
        if backend == "jax":
            return self.policy_of(lane)
        return self.without_jax(self.policy_file(lane), lane.trained or lane, backend)

    def without_jax(self, path: Path, lane: Lane | None = None, backend: str = "numpy") -> "Policy":
        """The policy in a file of this run, which must be one of this lane, if one is given."""
        from qcrl.runs.policy import Policy  # not above: to read tables, no policy is needed

        check_format(self.path, self.config)
        policy = Policy.load(path, backend)
        own = from_dict(policy.info)
        home = {"lane": lane or own, "environment": Description.from_dict(self.config["environment"])}
        require_home(path.stem, {"lane": own, "environment": policy.env}, home)
        return policy

    @property
    def certificates(self) -> list[Json]:
        """What the certificates in the folder say, the newest attempt last."""
        paths = sorted(self.path.glob("certificate-*.json"))
        found = [shapes.read_json(path, shapes.Certified, "certify the policy again") for path in paths]
        return sorted(found, key=lambda each: each["attempt"])

    def promised(self, probability: Pick = None, limit: Pick = None, seed: Pick = None) -> "JaxPolicy":
        """The policy that a promise was certified of, the newest one of that probability, limit and seed."""
        newest = self.promises(probability, limit, seed)[-1]
        return self.policy_in(newest.file, newest.lane)

    def promises(self, probability: Numbers = None, limit: Numbers = None, seed: Numbers = None) -> list[Promised]:
        """The certified policies with these values, the newest of every seed and promise; the newest of all last."""
        kept = lambda each: each["verdict"] == "certified" and (self.path / each["policy"]).is_file()
        certified = [each for each in self.certificates if kept(each)]
        asked = {"probability": probability, "limit": limit, "seed": seed}
        newest: dict[tuple[Any, ...], Json] = {}
        for each in reversed(certified):
            if all(each[name] in listed(value, [each[name]]) for name, value in asked.items()):
                newest.setdefault((*(each[name] for name in asked), each.get("learning_rate")), each)
        if not newest:
            lost = [each["policy"] for each in self.certificates if each["verdict"] == "certified" and not kept(each)]
            if lost and not certified:
                raise NotCertified(f"the certified policy {self.path / lost[-1]} is not there; put it back")
            known = ["seed {seed} for {probability:g} at limit {limit:g}".format(**each) for each in certified]
            made = f"it has: {', '.join(dict.fromkeys(known))}"
            advice = made if known else f"make one: qcrl certify {self.path} --promise P"
            raise NotCertified(f"{self.path} has no such certified policy; {advice}")
        return [self._promised(each) for each in reversed(newest.values())]

    def _promised(self, certificate: Json) -> Promised:
        path = self.path / certificate["policy"]
        if file_hash(path) != certificate["policy_sha256"]:
            raise UserError(f"{path} is another policy than the certified; put that back, or certify this one anew")
        lane = from_dict(self._info(path))
        if lane.constraint.ranged:
            (lane,) = lane.judged(certificate["limit"], certificate["trained_probability"])
        return Promised(path, lane, certificate["probability"])

    def policy_of(self, lane: Lane) -> "JaxPolicy":
        """The trained policy of a lane, with its algorithm."""
        return self.policy_in(self.policy_file(lane), lane)

    def policy_in(self, path: Path, lane: Lane) -> "JaxPolicy":
        """The policy in a file of this run, which must be one of this lane."""
        from qcrl.runs.jax_policy import load  # not above: to read tables, no algorithm is needed

        check_format(self.path, self.config)
        policy = load(path)
        policy.require_home(self.config, lane.trained or lane)
        return policy if lane.trained is None else policy.at(lane.limit, lane.probability)


def load(path: str | Path) -> Run:
    """Open a run folder."""
    run = Run(Path(path))
    run.config  # noqa: B018 - a folder that holds no run fails here, not at first use
    return run


def read_config(folder: Path, needed: Sequence[str] = ()) -> Json:
    """The content of config.json, with these keys among others."""
    path, advice = folder / "config.json", "give the folder of a run, or put its own config.json there"
    if folder.is_file():
        raise UserError(f"{folder} is a file; give the folder of a run, the one that holds its config.json")
    try:
        config = shapes.read_json(path, shapes.Config, advice)
    except FileNotFoundError:
        runs = sorted(str(each.parent) for each in [*folder.glob("*/*/config.json"), *folder.glob("*/config.json")])
        inside = f", such as {runs[0]}" if runs else ""
        raise UserError(
            f"there is no run in {folder}: it has no config.json; give the folder of a run{inside}"
        ) from None
    missing = [key for key in needed if key not in config]
    if missing:
        raise UserError(f"{path} cannot be read: its {missing[0]} is missing; {advice}")
    return config


def label(config: Json) -> str:
    """Algorithm and preset of a run."""
    algorithm = config["algorithm"]
    return " ".join(filter(None, [algorithm.get("label", algorithm["name"]), config.get("preset")]))


def rows_of(table: dict[str, np.ndarray], setting: Mapping[str, float]) -> np.ndarray:
    """Which rows of a table have these values: those of a lane, or of all its seeds."""
    return np.flatnonzero(np.all([table[name] == value for name, value in setting.items()], axis=0))


def cost_column(table: dict[str, np.ndarray], costs: Sequence[str], name: str) -> np.ndarray:
    """What episodes cost by this name, in a table of an environment with these costs."""
    return table["cost" if len(costs) == 1 else f"cost_{name}"]


def lanes_of(config: Json) -> tuple[Lane, ...]:
    """The lanes that a config describes, those of earlier versions included."""
    kind = config.get("constraint", "Outage")
    return tuple(
        from_dict(each) if isinstance(each, dict) else from_earlier_version(each, kind) for each in config["lanes"]
    )


def check_format(folder: Path, config: Json) -> None:
    """Raise where a run is of an earlier version, whose policies and checkpoints cannot be read."""
    if config.get("format") != FORMAT:
        raise UserError(
            f"{folder} was trained by an earlier version of qcrl: its curves can be shown, but its policies can be "
            "neither run nor trained further; train it again in another folder"
        )


def _listing(values: list[Any]) -> str:
    return ", ".join(f"{value:g}" for value in values)
