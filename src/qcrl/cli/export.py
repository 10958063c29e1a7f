"""qcrl export: a trained policy for other programs."""

import argparse
from pathlib import Path

from qcrl.cli.main import Handler, Parser
from qcrl.errors import UserError

FORMATS = ("onnx", "numpy")


def command(parser: Parser, arguments: list[str]) -> Handler:
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument(
        "--format", choices=FORMATS, default="onnx", help="onnx, or the file that Policy.load reads (default: onnx)"
    )
    parser.add_argument("--out", metavar="FILE", help="where to (default: policy.onnx or policy.safetensors)")
    for name, meaning in {"seed": "the first", "probability": "the only one", "limit": "the only one"}.items():
        kind = int if name == "seed" else float
        parser.add_argument(f"--{name}", type=kind, metavar="X", help=f"which policy of the run (default: {meaning})")
    parser.add_argument(
        "--promised", action="store_true", help="export the certified policy of a promise (default: off)"
    )
    return run


def run(args: argparse.Namespace) -> int:
    from qcrl.runs.folder import load  # not above: --help need not wait for NumPy
    from qcrl.runs.numpy_policy import NumpyPolicy

    found = load(args.run)
    if args.promised:
        file, lane, _ = found.promises(args.probability, args.limit, args.seed)[-1]
    else:
        lane = found.lane(args.seed, args.probability, args.limit)
        file = found.policy_file(lane)
    policy = found.without_jax(file, lane.trained or lane)
    assert isinstance(policy, NumpyPolicy)
    path = Path(args.out or ("policy.onnx" if args.format == "onnx" else "policy.safetensors"))
    if path.exists():
        raise UserError(f"{path} exists already; give another --out")
    if args.format == "onnx":
        from qcrl.runs.onnx_export import export

        export(policy, path)
    else:
        from qcrl.runs.checkpoints import write_file

        write_file(path, file.read_bytes())
    print(f"{path}: {policy!r}")
    if lane.trained is not None:
        print(f"It was trained for ranges: ask it for limit {lane.limit:g} and probability {lane.probability:g}.")
    certified = [found.path / each["policy"] for each in found.certificates if each["verdict"] == "certified"]
    if certified and file not in certified:
        print(f"It is not the policy that was certified, {certified[-1]}: that one takes --promised.")
    print(f"It must be told of the step before: {' and '.join(policy.needs) or 'nothing'}.")
    return 0
