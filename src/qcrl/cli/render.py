"""qcrl render: a film of an episode."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qcrl.cli.main import Handler, Parser
from qcrl.errors import UserError

if TYPE_CHECKING:
    from qcrl.envs.host.environment import HostEnv
    from qcrl.runs.folder import Run
    from qcrl.runs.jax_policy import JaxPolicy
    from qcrl.runs.lane import Lane


def command(parser: Parser, arguments: list[str]) -> Handler:
    def option(name: str, meaning: str, otherwise: str, **details: Any) -> None:
        parser.add_argument(name, help=f"{meaning} (default: {otherwise})", **details)

    parser.add_argument("run", metavar="RUN", help="run folder")
    option("--out", "film, .mp4 or .gif", "episode.gif", default="episode.gif", metavar="FILE")
    option("--seed", "seed whose policy acts", "the first", type=int)
    option("--probability", "asked outage of that policy", "the only one", type=float, metavar="P")
    option("--limit", "allowed episode cost of that policy", "the only one", type=float, metavar="D")
    option(
        "--episode",
        "first, or of several the median or the worst by cost, and by return where costs are equal",
        "median",
        default="median",
        metavar="WHICH",
    )
    option("--episodes", "episodes to choose from", "10", type=int, default=10, metavar="N")
    option("--beside", "another run, whose policy is shown at the right, in the same episode", "none", metavar="RUN")
    option("--promised", "film the certified policy of a promise", "off", action="store_true")
    option("--engine", "jax or mujoco", "jax", default="jax", metavar="ENGINE")
    option("--workers", "processes that run the episodes of an environment in Python", "none", type=int, metavar="N")
    option("--deterministic", "take the mean action instead of drawing one", "off", action="store_true")
    return run


def run(args: argparse.Namespace) -> int:
    from qcrl.runs.folder import load  # not above: --help need not wait for JAX

    filmed = []
    for folder in filter(None, (args.run, args.beside)):
        run = load(folder)
        if args.promised:
            file, lane, _ = run.promises(args.probability, args.limit, args.seed)[-1]
        else:
            lane = run.lane(args.seed, args.probability, args.limit)
            file = run.policy_file(lane)
        filmed.append((run, lane, run.policy_in(file, lane)))
    which = args.episode, args.episodes, args.engine, args.deterministic, args.workers or 0
    print(film_of(filmed, args.out, *which))
    return 0


def film_of(
    filmed: "Sequence[tuple[Run, Lane, JaxPolicy]]",
    file: str | Path,
    which: str = "median",
    episodes: int = 10,
    engine: str = "jax",
    deterministic: bool = False,
    workers: int = 0,
) -> str:
    """Write the film of an episode, and say where it is and what is in it. The first policy decides which episode."""
    from qcrl.envs import ENVIRONMENT_IDS
    from qcrl.runs.folder import label
    from qcrl.show import episode as replay
    from qcrl.show import film as video
    from qcrl.show.figures import check_format

    out = check_format(file, video.FORMATS)
    video.check_writer(out)
    tasks = {policy.env.id for _, _, policy in filmed}
    if len(tasks) > 1:
        raise UserError(f"{' and '.join(sorted(tasks))} cannot be shown side by side; give two runs on one environment")
    env = None if tasks < set(ENVIRONMENT_IDS) else in_python(filmed[0][0])
    [number] = replay.choose(filmed[0][2], [which], episodes, engine, deterministic, env=env, workers=workers)
    shown = []
    for run, lane, policy in filmed:
        meaning = "" if which == "first" else f", the {which} of {episodes}"
        about = [f"{label(run.config)}, seed {lane.seed}", lane.constraint.words]
        where = f"{engine} engine, " if env is None else ""
        title = "\n".join([policy.env.id, *about, f"{where}episode {number}{meaning}"])
        episode = replay.record(policy, lane.limit, number, engine, deterministic, env)
        shown.append(video.Shown(episode, lane.limit, title))
    video.film(shown, out)
    ends = [f"return {e.returns[-1]:.2f}, cost {e.costs[-1]:.4g} (limit {limit:g})" for e, limit, _ in shown]
    return f"{out}: {'; beside it '.join(ends)}"


def in_python(run: "Run") -> "HostEnv":
    """The environment of a run that draws its own pictures."""
    from qcrl.evaluation.evaluate import trained_environment
    from qcrl.sampling.play import engine_of

    env = trained_environment(run)
    if engine_of(env) != "host":
        raise UserError(f"{env.id} cannot be drawn; only qcrl's tasks and environments that run in Python can")
    return env  # type: ignore[return-value]
