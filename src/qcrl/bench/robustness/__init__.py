"""Hostile cases: damaged files of a run, options of any value, environments that break. Counts what became of them."""

import argparse
import itertools
import random
import resource
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from qcrl.bench import count, print_table
from qcrl.errors import UserError
from qcrl.kinds import Tree

Main = Callable[[list[str]], int]
KINDS = ("file", "option", "command", "environment")
HEADROOM = 8 * 2**30
"""Bytes that the cases may take beyond what is there at their start: one must not end them all."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", type=count, default=600, help="files; half as many options each (default: 600)")
    parser.add_argument("--seed", type=int, default=0, help="of the cases (default: 0)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="(default: all)")


def run(args: argparse.Namespace) -> int:
    try:
        from qcrl.bench.robustness.cases import BAD, OUTCOMES, Outcome
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; pip install 'qcrl[dev]'") from None
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    there = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (there + HEADROOM, hard))
    tables: dict[str, Counter[str]] = {}
    bad: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="qcrl-") as folder:
        for kind in args.kinds:
            tables[kind] = Counter()
            for outcome in CASES[kind](args.main, Path(folder), args.cases, args.seed):
                tables[kind][outcome.kind] += 1
                if outcome.kind in BAD:
                    bad.append(outcome)
                    last = outcome.text.strip().splitlines()[-1:] or [""]
                    print(f"{outcome.kind}: {outcome.name}: {last[0]}", flush=True)
    rows = [[kind, sum(table.values()), *(table[each] for each in OUTCOMES)] for kind, table in tables.items()]
    print_table(["kind", "cases", *OUTCOMES], rows)
    return 1 if bad else 0


def files(main: Main, folder: Path, cases: int, seed: int) -> Iterator:
    """Commands on runs with one damaged file."""
    from qcrl.bench.robustness import cases as attempts
    from qcrl.bench.robustness.damage import damaged

    base = attempts.trained(folder / "base")
    names = list(filter(attempts.family, attempts.contents(base)))
    choose = random.Random(seed)
    each = -(-cases // len(names))
    for name in names:
        for damage in drawn(damaged(name, (base / name).read_bytes()), each, seed):
            usual = [command for command in attempts.READ[attempts.family(name)] if command != "go on"]
            # To go on compiles a program: a few will do.
            some = ["go on"] if "go on" in attempts.READ[attempts.family(name)] and choose.random() < 0.05 else usual
            yield attempts.try_file(main, base, folder, name, damage, choose.choice(some))


def options(main: Main, folder: Path, cases: int, seed: int) -> Iterator:
    """Trainings with options of any value."""
    from qcrl.algos.find import algorithms
    from qcrl.bench.robustness import cases as attempts
    from qcrl.bench.robustness import damage

    for name in algorithms():
        for given in drawn(damage.options(name), -(-cases // 2 // len(algorithms())), seed):
            yield attempts.try_options(main, folder, name, given)


def commands(main: Main, folder: Path, cases: int, seed: int) -> Iterator:
    """Other commands with one option of any value."""
    from qcrl.bench.robustness import cases as attempts
    from qcrl.bench.robustness import damage

    base = attempts.trained(folder / "commands")
    every = [
        (name, f"--{option}={value}")
        for name, kinds in attempts.OPTIONS.items()
        for own, values in zip(kinds, (damage.COUNTS, damage.SHARES, damage.TEXTS))
        for option, value in itertools.product(own, values)
    ]
    for name, option in random.Random(seed).sample(every, min(cases // 2, len(every))):
        yield attempts.try_command(main, base, folder, name, option)


def environments(main: Main, folder: Path, cases: int, seed: int) -> Iterator:
    """Every environment of the zoo, by every command that runs one."""
    from qcrl import Outage, train
    from qcrl.bench.robustness import cases as attempts
    from qcrl.bench.robustness import zoo

    sound = folder / "sound"
    train("ppo_lag", zoo.Sound, Outage(3, 0.1), 80, preset="fast", out=sound, progress=False, **attempts.SMALL)
    for name, command in itertools.product(zoo.ZOO, ("check-env", "train", "evaluate", "certify")):
        yield attempts.try_environment(folder, sound, name, command)


CASES = {"file": files, "option": options, "command": commands, "environment": environments}


def drawn(strategy: Tree, how_many: int, seed: int) -> list:
    """So many examples of a strategy of Hypothesis, the same for the same seed."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    found: list = []

    @seeded(seed)
    @settings(
        max_examples=how_many,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(each: object) -> None:
        found.append(each)

    collect()
    return found
