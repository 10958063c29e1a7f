"""What README and docs show: command lines parse, code runs, links lead somewhere."""

import contextlib
import importlib
import pkgutil
import re
import runpy
import shlex
import shutil
import sys
import textwrap
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import qcrl
from qcrl.cli.bench import SUBJECTS
from qcrl.cli.main import COMMANDS, Parser, main, parser_of
from test_adapters import FakeBrax, FakeGymnax

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob(".github/**/*.md"), *ROOT.glob("docs/**/*.md")])
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in PAGES}
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def commands(text):
    """All lines `qcrl ...` of a page: those of code blocks, with their continuations, and those within sentences."""
    plain = FENCE.sub("", text)
    lines = re.sub(r" *\\\n *", " ", plain).splitlines()
    for line in lines:
        if found := re.match(r"(?:    |\t)\s*(?:cd \S+ && )?(qcrl [a-z].*)", line):
            yield re.sub(r"\s+#.*", "", found[1])
    for found in re.finditer(r"`(qcrl [a-z-]+ [^`]+)`", plain):
        if "..." not in found[1]:
            yield re.sub(r"\bN\b", "1", " ".join(found[1].split())).replace("ALGO", "qcpo")


def parse(line):
    """As `qcrl` does, without running anything."""
    name, *arguments = shlex.split(line)[1:]
    if name == "bench" and arguments and arguments[0] in SUBJECTS:
        parser = Parser(prog=f"qcrl bench {arguments[0]}")
        importlib.import_module(f"qcrl.bench.{arguments[0]}").add_options(parser)
        arguments = arguments[1:]
    else:
        parser, _ = parser_of(name, arguments)
    parser.parse_args(arguments)


SHOWN = sorted({line for text in TEXTS.values() for line in commands(text)})


@pytest.mark.parametrize("line", SHOWN)
def test_command_lines_are_accepted(line, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "examples")
    code = None
    try:
        parse(line)
    except SystemExit as end:  # --help ends with 0
        code = end.code
    assert not code


def test_mentioned_commands_exist():
    mentioned = {word for text in TEXTS.values() for word in re.findall(r"`qcrl ([a-z][a-z-]*)", FENCE.sub("", text))}
    assert mentioned - {*COMMANDS} == set()
    assert len(mentioned) > 8


def test_command_lines_are_found_and_mistakes_in_them_noticed():
    assert len(SHOWN) > 60
    assert {shlex.split(line)[1] for line in SHOWN} <= {*COMMANDS}
    with pytest.raises(ValueError, match="unrecognized arguments: --sedes"):
        parse("qcrl train qcpo DynamicEnv-v0 --sedes 3")


def blocks(text):
    """The Python of a page, but for two examples that tests/test_host_training.py trains on."""
    elsewhere = [(ROOT / "examples" / name).read_text() for name in ("cartpole.py", "cheetah.py")]
    found = [textwrap.dedent(code) for language, code in FENCE.findall(text) if language == "python"]
    return [code for code in found if code not in elsewhere]


TUTORIAL, SIMULATOR = "docs/start/tutorial.md", "docs/start/simulator.md"
SMALL = {"num_envs": 4, "steps_per_env": 20, "chunk_length": 10, "hidden_sizes": (8,), "minibatches": 1}
BEFORE = {
    "docs/evaluation.md": """qcrl.train("qcpo", "TwoPathEnv-v0", qcrl.Outage(15, 0.1), out="runs/demo")""",
    "docs/plots.md": """qcrl.train("qcpo", "TwoPathEnv-v0", qcrl.Outage(15, 0.1), out="runs/a")
import os, shutil; os.makedirs("results/b"); shutil.copy("runs/a/metrics.csv", "results/b/metrics_thin.csv")""",
    "docs/reproduce.md": """qcrl.train("qcpo", "TwoPathEnv-v0", qcrl.Outage(15, 0.1),
out="runs/grid/DynamicEnv-v0/qcpo-authors")""",
    SIMULATOR: f"""import pathlib, shutil; pathlib.Path("delivery.py").write_text({blocks(TEXTS[SIMULATOR])[0]!r})
from delivery import Delivery
policies = qcrl.train("outage_ppo", Delivery, qcrl.Outage(10, 0.1), out="runs/delivery").path / "policies"
shutil.copy(policies / "seed0-p0.1-d10.safetensors", policies / "promised-p0.1-d10.safetensors")""",
}
"""What readers of a page have done already."""
SHORTER = {"(0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)": "(0.2, 0.1)", "for p in (0.1, 0.2)": "for p in (0.1,)"}
SHORTER['"DynamicEnv-v0", any_limit'] = '"TwoPathEnv-v0", any_limit'
SHORTER['"GremlinEnv-v0", both'] = '"DynamicEnv-v0", both'
"""Fewer numbers, and tasks that compile sooner."""


QUICKER = """--steps 4e4 --num-envs 64 --steps-per-env 20 --chunk-length 20 --hidden-sizes 8 --minibatches 4
--out-of-phase false --initial-multiplier 20 --learning-rate 1e-2 --episodes 5000"""
"""So that the tutorial's training takes seconds, and still keeps what it promises."""


def follow(folder, more=""):
    """Run the commands of the tutorial in a folder, but for the last, which takes minutes."""
    *lines, last = commands(TEXTS[TUTORIAL])
    assert last == "qcrl train --out runs/demo"
    with contextlib.chdir(folder):
        for line in lines:
            assert main(shlex.split(f"{line} {more if line.startswith('qcrl train') else ''}")[1:]) == 0, line
    return folder


@pytest.fixture(scope="session")
def tutorial(tmp_path_factory):
    return follow(tmp_path_factory.mktemp("tutorial"), QUICKER)


@pytest.mark.large
def test_the_tutorial_works_word_for_word(tmp_path):
    follow(tmp_path)


@pytest.fixture
def small(tutorial, monkeypatch, tmp_path):
    """What code blocks call, made small: a few steps and episodes; a promise is that of the tutorial."""
    train, evaluate, certify = qcrl.train, qcrl.evaluate, qcrl.certify

    def train_a_little(algo, env, constraint, steps=None, seeds=1, preset=None, out=None, promise=None, **options):
        if promise:
            return qcrl.load(shutil.copytree(tutorial / "runs" / "first", out))
        options |= SMALL
        preset = None if preset == "authors" else preset  # an LSTM compiles for long
        if algo == "outage_ppo":
            options["out_of_phase"] = False
        return train(algo, env, constraint, 160, 1, preset, out, progress=False, **options)

    monkeypatch.setattr(qcrl, "train", train_a_little)
    monkeypatch.setattr(
        qcrl, "evaluate", lambda run, **asked: evaluate(run, **asked | {"episodes": 2, "engine": "jax"})
    )
    monkeypatch.setattr(qcrl, "certify", lambda run, **asked: certify(run, **asked, episodes=30))
    monkeypatch.setitem(sys.modules, "gymnax", SimpleNamespace(make=lambda name: (FakeGymnax(), None)))
    monkeypatch.setitem(sys.modules, "brax", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "brax.envs", SimpleNamespace(get_environment=lambda name: FakeBrax()))
    sys.modules["brax"].envs = sys.modules["brax.envs"]
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").mkdir()
    one, _, _ = (ROOT / "examples" / "tiny.toml").read_text().rpartition("[[algorithms]]")
    (tmp_path / "examples" / "tiny.toml").write_text(one.replace("50_000", "500").replace("200", "2"))


def provided():
    """What a reader has of their own."""
    trial = SimpleNamespace(report=lambda value, step: None, should_prune=lambda: False)
    return {
        "qcrl": qcrl,
        "constraint": qcrl.Outage(30, 0.1),
        "my_cost": lambda obs, action, next_obs, info: float(action == 1),
        "rate": 1e-3,
        "trial": trial,
        "optuna": SimpleNamespace(TrialPruned=RuntimeError),
        "mlflow": SimpleNamespace(log_metrics=lambda values, step: None),
    }


@pytest.mark.parametrize("page", [page for page, text in TEXTS.items() if blocks(text)])
def test_code_blocks_run(page, small, tutorial, monkeypatch):
    """In their order, in one session of Python."""
    if page == TUTORIAL:
        monkeypatch.chdir(tutorial)
    script = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    vars(script).update(provided())
    for code in [BEFORE.get(page, ""), *blocks(TEXTS[page])]:
        for long, short in SHORTER.items():
            code = code.replace(long, short)
        exec(compile(code, page, "exec"), vars(script))


def test_every_public_name_is_in_the_reference():
    listed = re.findall(r"^::: ([\w.]+)$", TEXTS["docs/reference/python.md"], re.MULTILINE)
    assert {*qcrl.__all__} <= {name.split(".")[-1] for name in listed}
    for name in listed:
        home, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(home), last), name


def test_the_page_of_equations_has_them_all_and_names_what_exists():
    text = TEXTS["docs/equations.md"]
    found = re.findall(r"\((\d+)\)(?: to \((\d+)\))?", text)
    assert {number for first, last in found for number in range(int(first), int(last or first) + 1)} == {*range(1, 276)}
    names = re.findall(r"`((?:\w+\.)+\w+)`", re.sub(r".*tools/.*|.*src/.*", "", text))
    assert len(names) > 60
    for name in names:
        assert pkgutil.resolve_name(f"qcrl.{name}")


PAPER = r"""\section{One}
\begin{equation} a = b \label{first} \end{equation} % \begin{equation} not this \end{equation}
\begin{equation}\tag{Named} \begin{array}{l} c \\ d \end{array} \end{equation}
\subsection{With $x_{1}$}
\begin{align} e \nonumber \\ &= \left\{ \begin{array}{l} f \\ g \end{array} \right. \label{second} \\ h \\ \end{align}
\begin{align*} i \\ j \end{align*}
\section*{Not counted} \appendix \section{More}
\begin{equation} k \end{equation}
"""


def test_the_script_counts_equations_as_latex_does():
    """LaTeX gives (5) to the k here: it counts an empty row after a last line break."""
    module = runpy.run_path(str(ROOT / "tools" / "equations.py"))
    found = [row[:3] for row in module["equations"](PAPER)]
    rows = [
        ("1", "1", "first"),
        ("1", "Named", ""),
        ("1.1", "2", "second"),
        ("1.1", "3", ""),
        ("1.1", "4", ""),
        ("A", "5", ""),
    ]
    assert found == rows


def test_the_pictures_of_the_house_are_as_drawn():
    drawn = runpy.run_path(str(ROOT / "tools" / "pictures.py"))["PICTURES"]
    for name, draw in drawn.items():
        assert (ROOT / "docs" / "images" / name).read_text() == draw(), "run python tools/pictures.py"


def anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page):
    text = FENCE.sub("", TEXTS[page])
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        name, _, part = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists() or path.name == "commands.md", target
        if part:
            headings = re.findall(r"^#+ (.*)$", FENCE.sub("", path.read_text()), re.MULTILINE)
            assert part in map(anchor, headings), target
