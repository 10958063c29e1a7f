"""What README and docs show: command lines parse, code compiles and where it is quick runs, links lead somewhere."""

import importlib
import pkgutil
import re
import runpy
import shlex
from pathlib import Path

import pytest

import qcrl
from qcrl.cli.bench import SUBJECTS
from qcrl.cli.main import COMMANDS, Parser, parser_of

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob(".github/**/*.md"), *ROOT.glob("docs/**/*.md")])
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in PAGES}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SLOW = ("train(", "sweep(", "runs/", "run.", ".safetensors", "plans.planned")
"""Blocks with one of these need a training, or half a minute."""


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


BLOCKS = [
    pytest.param(code, id=f"{page}-{i}")
    for page, text in TEXTS.items()
    for i, code in enumerate(code for language, code in FENCE.findall(text) if language == "python")
]


@pytest.mark.parametrize("code", BLOCKS)
def test_code_blocks_compile_and_quick_ones_run(code):
    compiled = compile(code, "block", "exec")
    if not any(word in code for word in SLOW) and "import" in code:
        exec(compiled, {"__name__": "block"})


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
