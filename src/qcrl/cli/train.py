"""qcrl train: options, what they mean and default to, and the verdict at the end."""

import argparse
import os
from pathlib import Path
from typing import Any, get_type_hints

from qcrl.algos import hyperparameters
from qcrl.algos.find import DEFAULT_PRESET, algorithms, default_preset, find
from qcrl.cli import asked, promised
from qcrl.cli.asked import EXAMPLE
from qcrl.cli.main import COMMANDS, Handler, Parser
from qcrl.constraints import Constraint, Outage, Together, from_dict
from qcrl.envs import ENVIRONMENT_IDS
from qcrl.envs.base import HOST_PRESET
from qcrl.envs.find import find as find_environment
from qcrl.envs.host import costs, elsewhere
from qcrl.errors import UserError
from qcrl.kinds import Settings
from qcrl.named import require_trust
from qcrl.runs import shapes
from qcrl.runs.folder import check_format, read_config
from qcrl.training import loop
from qcrl.training.claim import trusting

DEFAULTS: Settings = {
    "algo": "outage_ppo",
    "env": "DynamicEnv-v0",
    "limit": [15.0],
    "outage": [0.1],
    "constraint": "what --limit and --outage say",
    "steps": "the length of the preset",
    "seeds": 1,
    "first_seed": 0,
    "preset": f"{DEFAULT_PRESET}, or where the environment runs in Python {HOST_PRESET}",
    "out": "a new, timestamped one under runs/",
    "resume": "off",
    "python": "this one",
    "cost": "found, in a step of six values or in info",
    "workers": 0,
    "step_timeout": 60.0,
    "on_error": "stop",
    "checkpoint_interval": 60,
    "wandb": "off",
    "deterministic": "off",
    **promised.DEFAULTS,
}
"""What applies where an option is left out; while a run is resumed, its own settings apply instead."""

NEXT = ("certify", "plot", "report")
"""Commands that make something of a trained run."""


def command(parser: Parser, arguments: list[str]) -> Handler:
    algo = _algorithm_among(arguments)
    words = [word for word in arguments if not word.startswith("-")]
    in_python = any(map(_is_environment, words)) and not any(word in ENVIRONMENT_IDS for word in words)
    preset = _peek(arguments, "--preset", default_preset(algo, HOST_PRESET if in_python else None) or "")
    parser.usage = "qcrl train [ALGO] [ENV] [options]"

    def option(name: str, meaning: str, **details: Any) -> None:
        parser.add_argument(name, help=f"{meaning} (default: {_shown(name)})", **details)

    option("algo", f"{', '.join(algorithms())}, or module:Class of your own", nargs="?")
    option("env", f"{', '.join(ENVIRONMENT_IDS)}, an id of Gymnasium, or module:function that makes one", nargs="?")
    several = {"nargs": "+", "type": float}
    option("--limit", "allowed episode cost; several are trained side by side", metavar="D", **several)
    option("--outage", "share of episodes that may cost more; several are trained side by side", metavar="P", **several)
    option(
        "--constraint",
        f"instead of --limit and --outage: a constraint such as {EXAMPLE}; those given together hold together; "
        "limit=5..30 is a range, of which every episode draws its own",
        action="append",
        metavar="KIND:FIELD=VALUE,...",
    )
    option("--steps", "environment steps per seed and setting", type=float, metavar="N")
    option("--seeds", "number of seeds, trained side by side", type=int, metavar="N")
    option("--first-seed", "the first of them", type=int, metavar="SEED")
    option("--preset", f"values of the hyper-parameters: {', '.join(find(algo).presets)}", metavar="NAME")
    option("--out", "run folder", metavar="DIR")
    option("--resume", "continue the run in --out; options left out are those of the run", action="store_true")
    option(
        "--cost",
        "where the cost of an environment in Python is: a key of info, or module:function; several as NAME=COST each",
        action="append",
        metavar="COST",
    )
    option("--python", "the Python that has the environment, where it cannot be installed beside qcrl", metavar="PATH")
    option("--workers", "processes that step environments in Python; 0 is this one", type=int, metavar="N")
    option("--step-timeout", "seconds to wait for a worker before giving up", type=float, metavar="S")
    option("--on-error", "what to do where an environment in Python breaks: stop, or restart it", metavar="WHAT")
    option("--checkpoint-interval", "seconds between checkpoints", type=float, metavar="S")
    promised.add_options(option)
    option("--wandb", "log to this project of Weights & Biases as well", nargs="?", const="qcrl", metavar="PROJECT")
    option("--deterministic", "make a GPU compute bit for bit alike, if more slowly", action="store_true")
    _add_hyperparameters(parser, algo, preset)
    return run


def _algorithm_among(arguments: list[str]) -> str:
    """The algorithm whose hyper-parameters are options: the one named, that of the run to resume, or the default."""
    out = Path(_peek(arguments, "--out", ""))
    words = [word for word in arguments if not word.startswith("-")]
    named = next((word for word in words if word.lower() in algorithms() or _is_class(word)), None)
    if "--resume" in arguments and (out / "config.json").exists():
        stored = str(read_config(out, shapes.RESUMED)["algorithm"]["name"])
        require_trust(stored, "algorithm")
        return stored
    return named or DEFAULTS["algo"]


def _is_class(word: str) -> bool:
    """module:Class of an algorithm, not module:function of an environment."""
    if ":" not in word:
        return False
    try:
        find(word)
    except UserError:
        return False
    return True


def _add_hyperparameters(parser: Parser, algo: str, preset: str) -> None:
    kind = find(algo)
    settings = kind.presets.get(preset) or kind.presets.get(DEFAULT_PRESET) or kind()
    hints, texts = get_type_hints(kind), hyperparameters.documentation(kind)
    for heading, fields in hyperparameters.grouped(kind).items():
        source = f"preset {preset}" if preset in kind.presets else "its own"
        group = parser.add_argument_group(f"{heading} (hyper-parameters of {algo}, defaults: {source})")
        for field in fields:
            value = getattr(settings, field)
            is_list = isinstance(value, tuple)
            shown = " ".join(map(str, value)) if is_list else value
            meaning = f"{texts[field]} [{hyperparameters.describe(hints[field])}] (default: {shown})"
            group.add_argument(
                f"--{field.replace('_', '-')}",
                dest=f"field_{field}",
                nargs="+" if is_list else None,
                metavar="X",
                help=meaning.replace("%", "%%"),
            )


def _shown(option: str) -> str:
    value = DEFAULTS[option.removeprefix("--").replace("-", "_")]
    return " ".join(f"{part:g}" for part in value) if isinstance(value, list) else str(value)


def run(args: argparse.Namespace) -> int:
    if args.deterministic:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true".strip()
    if args.resume and args.out is None:
        raise UserError("--resume needs to know which run; give its folder with --out")
    if args.resume and args.algo is None and not (Path(args.out) / "config.json").exists():
        raise UserError(f"there is no run in {args.out}; give the folder of the run to continue")
    if args.env is None and _is_environment(args.algo or ""):
        args.algo, args.env = None, args.algo
    if args.python is not None:
        if args.env is None:
            raise UserError("--python says where an environment is, but not which; name it, or leave --python out")
        args.env = elsewhere.named(args.python, args.env)
    given = _with_defaults(args)
    find(given["algo"])
    env = find_environment(given["env"], asked.costs(given["cost"]))
    algo = given["algorithm"] or given["algo"]
    trained = algo, env, _constraints(args, given), given["steps"], given["seeds"], given["preset"], args.out
    options: Settings = dict(
        first_seed=given["first_seed"],
        resume=args.resume,
        checkpoint_interval=given["checkpoint_interval"],
        wandb=args.wandb,
        workers=given["workers"],
        step_timeout=given["step_timeout"],
        on_error=given["on_error"],
        **{
            name.removeprefix("field_"): hyperparameters.parse(",".join(typed) if isinstance(typed, list) else typed)
            for name, typed in vars(args).items()
            if name.startswith("field_") and typed is not None
        },
    )
    if given["promise"] is not None:
        from qcrl.evaluation.promise import train_to_certify  # not above: --help need not wait for scipy

        options |= {name: given[name] for name in ("promise", "confidence", "episodes", "sequential", "key")}
        return promised.finish(*train_to_certify(*trained, **options))
    for name in ("confidence", "episodes", "sequential", "key"):
        if getattr(args, name) is not None and getattr(args, name) is not False:
            raise UserError(f"--{name} is of a certificate, but nothing is promised; add --promise P, or leave it out")
    run = loop.train(*trained, **options)
    try:
        from qcrl.evaluation.verdict import verdict  # not above: --help need not wait for scipy

        print(verdict(run, env, given["workers"], given["step_timeout"]))
    except KeyboardInterrupt as interrupt:
        raise type(interrupt)(f"stopped before the verdict; the trained run is saved in {run.path}") from None
    except UserError as error:
        raise type(error)(f"there is no verdict ({error}); the trained run is saved in {run.path}") from error
    print(f"Run folder: {run.path}")
    following = [f"qcrl {name} {run.path}{trusting(run.config)}" for name in NEXT if name in COMMANDS]
    print("Next: " + ", ".join([*following, f"tensorboard --logdir {run.path}"]))
    return 1 if run.frozen else 0


def _constraints(args: argparse.Namespace, given: Settings) -> list[Constraint | Together]:
    """Those that are trained side by side."""
    if args.constraint is not None:
        if args.limit is not None or args.outage is not None:
            raise UserError("--constraint says all that --limit and --outage would; give it, or these")
        return [asked.together(args.constraint)]
    if given["lanes"] and args.limit is None and args.outage is None:
        joined = [Together(tuple(map(from_dict, lane["constraints"]))) for lane in given["lanes"]]
        if any(len(each.constraints) > 1 or each.constraints[0].ranged for each in joined):
            return list(dict.fromkeys(joined))
    return [Outage(limit, probability) for probability in given["outage"] for limit in given["limit"]]


def _with_defaults(args: argparse.Namespace) -> Settings:
    """What was not given is as in the run that is resumed, or the default."""
    unset = ("algorithm", "cost", "steps", "preset", "episodes", "key")
    defaults: Settings = {**DEFAULTS, **dict.fromkeys(unset), "lanes": []}
    kept: Settings = {}
    if args.resume and (Path(args.out) / "config.json").exists():
        stored = read_config(Path(args.out), shapes.RESUMED)
        check_format(Path(args.out), stored)
        if args.env is None:
            require_trust(stored["environment"]["id"], "environment", calls=True)
        if args.cost is None:
            costs.require_trust(stored["environment"].get("cost"))
        defaults |= {
            "algo": stored["algorithm"]["name"],
            "env": stored["environment"]["id"],
            "limit": stored["limits"],
            "outage": stored["probabilities"],
            "steps": stored["steps"],
            "seeds": stored["seeds"] if args.first_seed is None else len(stored["seeds"]),
            "first_seed": stored["seeds"][0],
            "preset": stored["preset"],
            "cost": stored["environment"].get("cost"),
            "lanes": stored["lanes"],
            **stored.get("stepping", {}),
        }
        kept = stored.get("promise", {})
        if defaults["env"] in ENVIRONMENT_IDS and stored["environment"]["costs"] != ["cost"]:
            defaults["cost"] = stored["environment"]["costs"]
        if args.algo in (None, defaults["algo"]) and args.preset in (None, defaults["preset"]):
            defaults["algorithm"] = hyperparameters.from_json(stored["algorithm"])
    defaults |= {name: kept[name] for name in ("confidence", "episodes") if name in kept}
    given = {
        name: default if getattr(args, name, None) is None else getattr(args, name)
        for name, default in defaults.items()
    }
    given["promise"] = promised.promise_of(args, kept)
    given["key"] = promised.key_of(args, kept)
    given["sequential"] = args.sequential or kept.get("sequential", False)
    if given["promise"] is not None and args.outage is None and not kept:
        given["outage"] = [given["promise"]]
    return given


def _is_environment(word: str) -> bool:
    """An id, which ends in its version, or module:function."""
    return word in ENVIRONMENT_IDS or "-v" in word or (":" in word and not _is_class(word))


def _peek(arguments: list[str], option: str, default: str) -> str:
    for word, following in zip(arguments, [*arguments[1:], default]):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return default
