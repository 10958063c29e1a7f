"""All tables of an accelerator at full size, several programs side by side, in groups of a few minutes.

python benchmarks/accelerator.py --minutes 8 --jobs 3 [--match outage]     # until nothing is left
python benchmarks/accelerator.py --list

Each name is one command, in the order of what it is worth. What has ended well is named in runs/accelerator/done.txt
and not run again; what is stopped goes on from its checkpoints. Rows are in results/, what was printed in
runs/accelerator/.
"""

import argparse
import re
import shutil
import sys
import time
from pathlib import Path

from outage import side_by_side

KEPT = Path("runs/accelerator")
CALLS = KEPT / "promise"
SCALE = "^scale-outage_ppo.*"
CELLS = {
    "outage-gremlin-.01": f"{SCALE}Gremlin.*p0.01",
    "outage-small": "^small",
    "outage-tuned": "^tuned-outage_ppo",
    "outage-qcpo-tuned": "^(tuned-qcpo-tuned|gremlin)",
    "outage-others-scale": "^scale-(qcpo-scale|ppo_lag)",
    "outage-qcpo-tuned-budget": "^tuned-qcpo-budget",
    "outage-qcpo-scale-budget": "^scale-qcpo-budget",
    "outage-scale": SCALE,
}
"""Cells of benchmarks/outage.py."""
PROMISES = [(env, promise) for promise in ("0.01", "0.1") for env in ("DynamicEnv-v0", "DynamicButtonEnv-v0")]
FIRST_SEED = 6000
"""Of the calls: what promises are aimed at was chosen with the seeds before."""


def commands() -> dict[str, list[str]]:
    run = sys.executable
    bench = [run, "-m", "qcrl.cli.main", "bench"]
    found = {
        f"promise-{env}-{promise}": [
            *(*bench, "promise", "--env", env, "--preset", "scale", "--promise", promise, "--kinds", "call"),
            *("--first-seed", str(FIRST_SEED), "--out", str(CALLS)),
        ]
        for env, promise in PROMISES
    }
    found |= {f"together-{what}": [run, "benchmarks/together.py", what] for what in ("gremlin", "mean", "limits")}
    found |= {name: [run, "benchmarks/outage.py", "--match", cells, "--jobs", "1"] for name, cells in CELLS.items()}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="stop after so long (default: 8)")
    parser.add_argument("--jobs", type=int, default=3, help="programs side by side (default: 3)")
    parser.add_argument("--match", default="", help="only names with this regular expression in it")
    parser.add_argument("--list", action="store_true", help="only name what is left")
    args = parser.parse_args()
    KEPT.mkdir(parents=True, exist_ok=True)
    done = KEPT / "done.txt"
    ended = done.read_text().split() if done.exists() else []
    left = {name: line for name, line in commands().items() if name not in ended and re.search(args.match, name)}
    if args.list:
        print("\n".join(left))
        return 0

    def keep(name: str, code: int) -> None:
        print(f"{time.strftime('%H:%M:%S')} {name}: exit code {code}", flush=True)
        if code == 0:
            with open(done, "a") as file:
                print(name, file=file)

    logged = {name: ["sh", "-c", f'exec "$@" >> {KEPT / name}.log 2>&1', "sh", *line] for name, line in left.items()}
    try:
        side_by_side(logged, args.jobs, args.minutes, keep, patience=90.0)
    finally:
        for rows in CALLS.glob("*/rows.csv"):
            shutil.copy(rows, Path("results/promise") / f"{rows.parent.name}-s{FIRST_SEED}.csv")
    return 0


if __name__ == "__main__":
    sys.exit(main())
