"""qcrl render: a film of an episode."""

import argparse
from typing import Any

from qcrl.cli.main import Handler, Parser


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
    option("--engine", "jax or mujoco", "jax", default="jax", metavar="ENGINE")
    option("--deterministic", "take the mean action instead of drawing one", "off", action="store_true")
    return run


def run(args: argparse.Namespace) -> int:
    # Not above: --help need not wait for JAX.
    from qcrl.runs.folder import load
    from qcrl.show import episode as replay
    from qcrl.show import film as video
    from qcrl.show.curves import label
    from qcrl.show.figures import check_format

    run = load(args.run)
    out = check_format(args.out, video.FORMATS)
    video.check_writer(out)
    lane = run.lane(args.seed, args.probability, args.limit)
    policy = run.policy_of(lane)
    [number] = replay.choose(policy, [args.episode], args.episodes, args.engine, args.deterministic)
    episode = replay.record(policy, lane.limit, number, args.engine, args.deterministic)
    meaning = "" if args.episode == "first" else f", the {args.episode} of {args.episodes}"
    title = "\n".join(
        [
            policy.env.id,
            f"{label(run.config)}, seed {lane.seed}, p = {lane.probability:g}",
            f"{args.engine} engine, episode {number}{meaning}",
        ]
    )
    video.film(episode, lane.limit, title, out)
    print(f"{out}: return {episode.returns[-1]:.2f}, cost {episode.costs[-1]:.4g} (limit {lane.limit:g})")
    return 0
