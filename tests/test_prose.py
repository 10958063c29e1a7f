"""How README and docs are written: short lines and sentences, plain parentheses, abbreviations that are explained."""

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob(".github/**/*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/*.md")]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(PAGES)}
LONGEST_LINE, LONGEST_SENTENCE = 140, 30

MARKDOWN = MarkdownIt("commonmark").enable("table")
NOTE = re.compile(r"^(?:\?\?\?|!!!) \w+ (\".*\")\n((?:    .*\n|\n)*)", re.MULTILINE)
END = re.compile(r"(?<=[.!?])[*)\"']*\s+(?=[\"'(]*(?:[A-Z0-9]|[-+]?\.\d))")
ABBREVIATION = re.compile(r"\b(?=\w*[A-Z]\w*[A-Z])[A-Z]\w+(?:-[A-Z]\w+)*\b")


def passages(text):
    """What a page says, in pieces that sentences do not cross: paragraphs, items, headings, cells of tables."""
    text = NOTE.sub(lambda note: f"{note[1]}\n\n{re.sub('^    ', '', note[2], flags=re.MULTILINE)}", text)
    for token in MARKDOWN.parse(text):
        if token.type == "inline":
            yield "".join(plain(child) for child in token.children)


def plain(token):
    """Code counts as one word, a picture as its description."""
    return {"code_inline": "Code", "softbreak": " ", "hardbreak": " "}.get(token.type, token.content)


def sentences(text):
    return [each for passage in passages(text) for each in END.split(passage)]


def words(sentence):
    return [word for word in sentence.split() if re.search(r"\w", word)]


def nested(passage):
    """Whether parentheses stand in parentheses. Those of a formula, right behind a letter or bracket, do not count."""
    depth = []
    for before, sign in zip(" " + passage, passage):
        if sign == "(":
            depth.append(not re.match(r"[\w\]]", before))
        elif sign == ")" and depth:
            depth.pop()
        if sum(depth) > 1:
            return True
    return False


COMMON = {
    "AMD",
    "API",
    "AVX",
    "CPU",
    "CPUs",
    "CSV",
    "EPYC",
    "FAQ",
    "GB",
    "GHz",
    "GPU",
    "GPUs",
    "GiB",
    "HTML",
    "JSON",
    "MB",
}
COMMON |= {
    "MIT",
    "NaN",
    "NVIDIA",
    "SHA",
    "SIGTERM",
    "SVG",
    "README",
    "CONTRIBUTING",
    "CHANGELOG",
    "CITATION",
    "NeurIPS",
    "PNG",
}
COMMON |= {
    "PPO_Lag",
    "WCSACs",
    "MLflow",
    "PyTorch",
    "TensorBoard",
    "HalfCheetah",
    "CartPole",
    "LunarLander",
    "UserError",
    "SciPy",
}
"""What readers know, names of programs and files, and names of this library."""


@pytest.mark.parametrize("page", TEXTS)
def test_pages_read_easily(page):
    text = TEXTS[page]
    assert [line for line in text.splitlines() if len(line) > LONGEST_LINE] == []
    if not page.startswith(("results/", "docs/notebook/")):  # made by a program; histories
        assert [each for each in sentences(text) if len(words(each)) > LONGEST_SENTENCE] == []
    assert [each for each in passages(text) if nested(each)] == []
    assert "![](" not in text, "a figure without a description"


def test_abbreviations_are_in_the_glossary():
    explained = set(re.findall(r"^\| \*\*(.+?)\*\*", TEXTS["docs/reference/glossary.md"], re.MULTILINE))
    explained |= {word for words in explained for word in words.split(", ")}
    used = {word for text in TEXTS.values() for passage in passages(text) for word in ABBREVIATION.findall(passage)}
    tasks = {word for word in used if word.endswith("Env") or f"{word}Env" in used}
    assert used - explained - tasks - COMMON == set()


def test_what_breaks_the_rules_is_noticed():
    text = 'One. Two `a b c` three.\n\n??? note "Four"\n\n    Five 5.5 six. Seven.\n\n'
    text += "| a | b. C |\n|---|---|\n| 1 | (x (y)) |\n"
    assert sentences(text) == [
        "One.",
        "Two Code three.",
        '"Four"',
        "Five 5.5 six.",
        "Seven.",
        "a",
        "b.",
        "C",
        "1",
        "(x (y))",
    ]
    assert nested("a (b (c))")
    assert not nested("a (b) (c), (Pr(X > d))")
    assert ABBREVIATION.findall("A QCPO of CVaR, Not Weibull-PPO_Lag") == ["QCPO", "CVaR", "PPO_Lag"]
