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
        parser.add_argument(f"--{name}", type=float, metavar="X", help=f"which policy of the run (default: {meaning})")
    return run


def run(args: argparse.Namespace) -> int:
    from qcrl.runs.folder import load  # not above: --help need not wait for NumPy
    from qcrl.runs.numpy_policy import NumpyPolicy

    found = load(args.run)
    policy = found.policy(args.seed, args.probability, args.limit, backend="numpy")
    assert isinstance(policy, NumpyPolicy)
    path = Path(args.out or ("policy.onnx" if args.format == "onnx" else "policy.safetensors"))
    if path.exists():
        raise UserError(f"{path} exists already; give another --out")
    if args.format == "onnx":
        from qcrl.runs.onnx_export import export

        export(policy, path)
    else:
        from qcrl.runs.checkpoints import write_file

        write_file(path, found.policy_file(found.lane(args.seed, args.probability, args.limit)).read_bytes())
    print(f"{path}: {policy!r}")
    print(f"It must be told of the step before: {' and '.join(policy.needs) or 'nothing'}.")
    return 0
