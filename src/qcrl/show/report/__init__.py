"""One self-contained HTML page about runs: curves, cost distributions, a table over seeds, certificates and replays.

The page is template.html with style.css, the scripts and the numbers written into it; it loads nothing else.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import TypeVar

import numpy as np

from qcrl.constraints import exceeds
from qcrl.envs import ENVIRONMENT_IDS, TASKS
from qcrl.envs.point.pictures import ROUTES, Scene, TwoPathScene
from qcrl.errors import UserError
from qcrl.evaluation.certificate import read_certificate
from qcrl.kinds import Json
from qcrl.runs.checkpoints import write_file
from qcrl.runs.folder import NotCertified, Run, check_format, label, load
from qcrl.runs.jax_policy import JaxPolicy
from qcrl.runs.lane import Lane, by_setting
from qcrl.sampling.play import ENGINES
from qcrl.show import curves as analysis
from qcrl.show import episode as replay
from qcrl.show.curves import Curves, Evaluation
from qcrl.show.figures import KINDS, SPREAD, TITLES
from qcrl.stats import check_episodes
from qcrl.version import __version__

CURVE_POINTS = 400
"""Points of a curve that the page holds; longer ones are thinned."""
SURVIVAL_POINTS = 600
TAIL_POINTS = 120
SCRIPTS = ("charts.js", "replay.js", "report.js")
TASK_SIZES = ("extent", "goal_size", "hazard_size", "button_size", "gremlin_size")

Progress = Callable[[str], None]
T = TypeVar("T")


def report(
    paths: Sequence[str | Path],
    out: str | Path,
    replays: Sequence[str] = replay.CHOICES,
    episodes: int = 10,
    engine: str = "jax",
    progress: Progress = lambda message: None,
) -> Path:
    """Write the page. `replays` are chosen among `episodes` of each setting's first policy; none where it is empty."""
    out = Path(out)
    if out.suffix.lower() != ".html":
        raise UserError(f"cannot write {out}: a report's name must end in .html; give such a name with --out")
    if engine not in ENGINES:
        raise UserError(f"there is no engine {engine!r}; the engines are {', '.join(ENGINES)}")
    check_episodes(episodes)
    made = page(content(paths, replays, episodes, engine, progress))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_file(out, made.encode())
    except OSError as error:
        raise UserError(f"cannot write {out} ({error.strerror or error}); give another file") from None
    return out


def page(data: Json) -> str:
    """The template with everything written into it."""
    files = resources.files(__name__)
    read = lambda name: (files / name).read_text(encoding="utf-8")
    # A "<" would let text in the data end the script element.
    numbers = json.dumps(_plain(data), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {"style": read("style.css"), "script": "\n".join(map(read, SCRIPTS)), "data": numbers}
    html = read("template.html")
    for name, text in parts.items():
        html = html.replace(f"@@{name}@@", text)
    return html


def content(
    paths: Sequence[str | Path], replays: Sequence[str], episodes: int, engine: str, progress: Progress
) -> Json:
    """All that the page shows."""
    runs = [load(path) for path in paths]
    names = _names(runs)
    problems: list[str] = []
    curves = analysis.read_curves(paths)
    return {
        "version": __version__,
        "titles": TITLES,
        "spread": SPREAD,
        "columns": _columns(curves),
        "runs": [_run(run, name) for run, name in zip(runs, names)],
        "curves": [_curve(each, _columns(curves)) for each in curves],
        "evaluations": [each for run, name in zip(runs, names) for each in _evaluations(run, name, problems)],
        "certificates": [
            {"run": name, "file": path.name, **asdict(certificate)}
            for run, name in zip(runs, names)
            for path, certificate in _whole(read_certificate, run.path.glob("certificate-*.json"), problems)
        ],
        "replays": [
            each
            for run, name in zip(runs, names)
            for each in _replays(run, name, replays, episodes, engine, progress, problems)
        ],
        "problems": list(dict.fromkeys(problems)),
    }


def _whole(read: Callable[[Path], T], paths: Iterable[Path], problems: list[str]) -> Iterator[tuple[Path, T]]:
    """What these files hold; what is wrong with one does not keep the others from being shown."""
    for path in sorted(paths):
        try:
            yield path, read(path)
        except UserError as error:
            problems.append(str(error))
        except (LookupError, TypeError, ValueError) as error:
            problems.append(f"{path} is not whole ({error!r}); write it again or remove it")


def _names(runs: Sequence[Run]) -> list[str]:
    """The folders' names; whole paths where two are the same."""
    short = [run.path.resolve().name for run in runs]
    return [name if short.count(name) == 1 else str(run.path) for run, name in zip(runs, short)]


def _run(run: Run, name: str) -> Json:
    config = run.config
    return {
        "name": name,
        "label": label(config),
        "environment": config["environment"]["id"],
        "constraint": " & ".join(type(each).__name__ for each in run.lanes[0].constraints),
        "probabilities": sorted({lane.probability for lane in run.lanes}),
        "limits": sorted({lane.limit for lane in run.lanes}),
        "seeds": len({lane.seed for lane in run.lanes}),
        "steps": config.get("steps"),
        "versions": config.get("setup", {}),
    }


def _columns(curves: Sequence[Curves]) -> list[str]:
    """What is drawn over the training: of each constraint too, where several hold together."""
    each = list(dict.fromkeys(key for curve in curves for key in curve.bounds))
    return [*KINDS["curves"], *KINDS["multiplier"], *each, *(f"multiplier_{key}" for key in each)]


def _curve(curves: Curves, names: Sequence[str]) -> Json:
    columns = {}
    for name in names:
        if name in curves.columns:
            steps, mean, std = (_thin(values, CURVE_POINTS) for values in curves.over_seeds(name))
            columns[name] = {"x": steps, "mean": _short(mean), "std": _short(std)}
    return {
        "label": curves.label,
        "environment": curves.environment,
        "probability": curves.probability,
        "limit": curves.limit,
        "seeds": len(curves.seeds),
        "bounds": curves.bounds,
        "columns": columns,
    }


def _evaluations(run: Run, name: str, problems: list[str]) -> list[Json]:
    read = lambda path: _evaluation(analysis.read_evaluation(path), name)
    found = [each for _, each in _whole(read, run.path.glob("evaluation-*.json"), problems)]
    return found or [_evaluation(analysis.recent_training(run), name)]


def _evaluation(evaluation: Evaluation, run: str) -> Json:
    return {
        "run": run,
        "name": evaluation.name,
        "rows": evaluation.rows,
        "pooled": evaluation.pooled,
        "distributions": [_distribution(evaluation, pooled) for pooled in evaluation.pooled],
    }


def _distribution(evaluation: Evaluation, pooled: Json) -> Json:
    """The staircase Pr(cost > x) and both tails, ready to be drawn."""
    costs = evaluation.costs(pooled["probability"], pooled["limit"])
    x, share = analysis.empirical_survival(costs)
    fine = np.linspace(0, 1.05 * max(float(x[-1]), pooled["limit"]), TAIL_POINTS)
    return {
        "probability": pooled["probability"],
        "limit": pooled["limit"],
        "episodes": len(costs),
        "quantile": pooled["cost_quantile"],
        "x": _short(_thin(x, SURVIVAL_POINTS)),
        "share": _short(_thin(share, SURVIVAL_POINTS)),
        "fine": _short(fine),
        "tails": {tail: _short(share) for tail, share in analysis.tails(pooled, fine).items()},
    }


def _replays(
    run: Run,
    name: str,
    which: Sequence[str],
    episodes: int,
    engine: str,
    progress: Progress,
    problems: list[str],
) -> list[Json]:
    """Episodes of the first lane of every setting that has a policy."""
    if not which or run.config["environment"]["id"] not in ENVIRONMENT_IDS:
        return []
    if run.config["environment"]["id"] not in TASKS:
        engine = "jax"  # it has no physics
    recorded = []
    kept = [lane for lane in run.lanes if (run.path / "policies" / f"{lane}.safetensors").exists()]
    try:
        check_format(run.path, run.config)
    except UserError as error:
        problems += [str(error)] if kept else []
        return []
    for lane, *_ in by_setting([judged for each in kept for judged in each.judged()]):
        policy, whose = _shown_policy(run, lane, problems)
        title = f"{name}, {whose}, p = {lane.probability:g}"
        if lane.trained is not None:
            title += f", d = {lane.limit:g}"
        told = lambda done, title=title: progress(f"{title}: episode {done} of {episodes}")
        numbers = replay.choose(policy, which, episodes, engine, progress=told)
        for number in dict.fromkeys(numbers):
            meaning = " and ".join(word for word, chosen in zip(which, numbers) if chosen == number)
            episode = replay.record(policy, lane.limit, number, engine)
            recorded.append(
                {
                    "title": f"{title}: episode {number} ({meaning} of {episodes}, {engine} engine)",
                    "limit": lane.limit,
                    "returns": _short(episode.returns, 4),
                    "costs": _short(episode.costs, 4),
                    "over": exceeds(episode.costs, lane.limit).tolist(),
                    "outage": None if episode.outage is None else _short(episode.outage, 3),
                    **_scenes(episode.scenes),
                }
            )
    return recorded


def _shown_policy(run: Run, lane: Lane, problems: list[str]) -> tuple[JaxPolicy, str]:
    """The certified policy of a promise about this setting, if there is one; else the lane's own."""
    try:
        for file, own, _ in reversed(run.promises()):
            if own.setting == lane.setting:
                return run.policy_in(file, own), "promised policy"
    except NotCertified:
        pass
    except UserError as error:
        problems.append(str(error))
    return run.policy_of(lane), f"seed {lane.seed}"


def _scenes(scenes: Sequence[replay.Seen]) -> Json:
    """What the page draws, column by column."""
    first = scenes[0]
    if isinstance(first, TwoPathScene):
        paths = [scene for scene in scenes if isinstance(scene, TwoPathScene)]
        return {
            "kind": "two paths",
            "colours": [f"rgb{colour}" for colour in ROUTES],
            "length": first.length,
            "route": [scene.route for scene in paths],
            "position": [scene.position for scene in paths],
        }
    moments = [scene for scene in scenes if isinstance(scene, Scene)]
    return {
        "kind": "point",
        **{size: getattr(moments[0].task, size) for size in TASK_SIZES},
        "hazards": _short(moments[0].hazards),
        "buttons": _short(moments[0].buttons),
        "robot": [_short(np.append(scene.robot, scene.heading), 4) for scene in moments],
        "goal": [None if scene.goal is None else _short(scene.goal) for scene in moments],
        "goal_button": [scene.goal_button for scene in moments],
        "buttons_live": [scene.buttons_live for scene in moments],
        "gremlins": [
            _short(np.column_stack([scene.gremlins, scene.gremlin_yaw])) if len(scene.gremlins) else []
            for scene in moments
        ],
        "charged": [scene.cost for scene in moments],
    }


def _thin(values: np.ndarray, most: int) -> np.ndarray:
    """Evenly chosen entries, the first and the last among them."""
    if len(values) <= most:
        return values
    return values[np.linspace(0, len(values) - 1, most).round().astype(int)]


def _short(values: np.ndarray, digits: int = 5) -> list[object]:
    """Lists of numbers with so many significant digits: the page need not be larger."""
    return [_short(each, digits) if np.ndim(each) else float(f"{each:.{digits}g}") for each in values]


def _plain(value: object) -> object:
    """What JSON has a word for: numbers that are not finite become null."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
