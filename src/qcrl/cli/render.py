"""qcrl render: a film of an episode."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qcrl.cli.main import Handler, Parser

if TYPE_CHECKING:
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
    option("--promised", "film the certified policy of a promise", "off", action="store_true")
    option("--engine", "jax or mujoco", "jax", default="jax", metavar="ENGINE")
    option("--deterministic", "take the mean action instead of drawing one", "off", action="store_true")
    return run


def run(args: argparse.Namespace) -> int:
    from qcrl.runs import lane as lanes  # not above: --help need not wait for JAX
    from qcrl.runs.folder import load

    run = load(args.run)
    if args.promised:
        policy = run.promised(args.probability, args.limit)
        lane = lanes.from_dict(policy.info)
    else:
        lane = run.lane(args.seed, args.probability, args.limit)
        policy = run.policy_of(lane)
    print(film_of(run, lane, policy, args.out, args.episode, args.episodes, args.engine, args.deterministic))
    return 0


def film_of(
    run: "Run",
    lane: "Lane",
    policy: "JaxPolicy",
    file: str | Path,
    which: str = "median",
    episodes: int = 10,
    engine: str = "jax",
    deterministic: bool = False,
) -> str:
    """Write the film of an episode, and say where it is and what is in it."""
    from qcrl.runs.folder import label
    from qcrl.show import episode as replay
    from qcrl.show import film as video
    from qcrl.show.figures import check_format

    out = check_format(file, video.FORMATS)
    video.check_writer(out)
    [number] = replay.choose(policy, [which], episodes, engine, deterministic)
    episode = replay.record(policy, lane.limit, number, engine, deterministic)
    meaning = "" if which == "first" else f", the {which} of {episodes}"
    title = "\n".join(
        [
            policy.env.id,
            f"{label(run.config)}, seed {lane.seed}, p = {lane.probability:g}",
            f"{engine} engine, episode {number}{meaning}",
        ]
    )
    video.film(episode, lane.limit, title, out)
    return f"{out}: return {episode.returns[-1]:.2f}, cost {episode.costs[-1]:.4g} (limit {lane.limit:g})"
