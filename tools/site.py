"""What MkDocs needs besides pages: the reference of commands, and files outside docs/ that pages link to."""

import argparse
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

LINK = re.compile(r"(\]\()((?:\.\./)+)((?:examples|results)/[^)#\s]+)")
GLOSSARY = "reference/glossary.md"
EVERYDAY = ("run", "cell", "replay")
"""Words that pages also use as everybody does, so that a link would mislead."""
OPENS = re.compile(r"<(a|code|pre|h\d|summary|figcaption|script|style)\b")
SHARED = ("examples/*.py", "examples/*.toml", "results/*.md", "results/*.png", "results/*.csv")


def on_files(files, config):
    """Add the generated page, and what pages show of the repository's other folders."""
    from mkdocs.structure.files import File, InclusionLevel

    files.append(File.generated(config, "reference/commands.md", content=commands()))
    for pattern in SHARED:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            hidden = InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, name, abs_src_path=str(path), inclusion=hidden))
    return files


def on_page_markdown(markdown, page, **_):
    """In the repository such files are beside docs/, on the site they are inside."""
    depth = page.file.src_uri.count("/")
    return LINK.sub(lambda m: f"{m[1]}{m[2][3:]}{m[3]}" if m[2].count("..") > depth else m[0], markdown)


def on_page_content(html, page, **_):
    """The first time that a page says a word of the glossary it is a link, with the meaning where the mouse rests."""
    if page.file.src_uri == GLOSSARY or page.file.src_uri.startswith("reference/"):
        return html
    home = "../" * page.file.src_uri.count("/") + GLOSSARY.replace(".md", ".html")
    meanings, inside, parts = dict(_meanings()), [], re.split(r"(<[^>]+>)", html)
    for place, part in enumerate(parts):
        if part.startswith("<"):
            if opens := OPENS.match(part):
                inside.append(opens[1])
            elif inside and part == f"</{inside[-1]}>":
                inside.pop()
        elif not inside and part.strip() and meanings:
            said = re.compile(
                rf"(?<![\w-])({'|'.join(sorted(map(re.escape, meanings), key=len, reverse=True))})s?(?![\w-])"
            )

            def link(found):
                meaning = meanings.pop(found[1], None)
                return f'<a href="{home}" class="word" title="{meaning}">{found[0]}</a>' if meaning else found[0]

            parts[place] = said.sub(link, part)
    return "".join(parts)


def on_post_page(output, page, **_):
    """Pages are read offline: nothing that they load may lie on another host."""
    if found := re.search(r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=\"?(?:https?:)?//[^ >]*", output):
        raise SystemExit(f"{page.file.src_uri} loads from another host: {found[0]}")
    return output


def _meanings():
    """Words of the glossary, and what they mean as plain text."""
    for words, meaning in re.findall(
        r"^\| \*\*(.+?)\*\* \| (.*) \|$", (ROOT / "docs" / GLOSSARY).read_text(), re.MULTILINE
    ):
        plain = re.sub(r"`|\*|\[([^\]]*)\]\([^)]*\)", lambda found: found[1] or "", meaning).replace('"', "&quot;")
        yield from ((word, plain) for word in words.split(", ") if word not in EVERYDAY)


def commands():
    """A page with every command and option, from the parsers themselves."""
    from qcrl.cli.main import COMMANDS

    os.environ["COLUMNS"] = "100"
    text = "# Commands and options\n\nThis page is made from the program. `qcrl COMMAND --help` says the same.\n"
    for name, meaning in COMMANDS.items():
        text += f"\n## qcrl {name}\n\n{meaning[0].upper()}{meaning[1:]}.\n\n"
        text += _described(name, [])
        if name == "train":
            text += _hyperparameters()
        if name == "bench":
            text += _measurements()
    return text


def _measurements():
    from importlib import import_module

    from qcrl.cli.bench import SUBJECTS
    from qcrl.cli.main import Parser

    text = ""
    for subject in SUBJECTS:
        module, parser = import_module(f"qcrl.bench.{subject}"), Parser(prog=f"qcrl bench {subject}")
        module.add_options(parser)
        text += f"\n### qcrl bench {subject}\n\n{module.__doc__}\n\n{_tables(parser)}"
    return text


def _hyperparameters():
    from qcrl.algos.find import algorithms

    text = "\n### Hyper-parameters\n\nEach is an option of `qcrl train`, and a keyword of `qcrl.train`.\n"
    for algo in algorithms():
        text += f'\n??? note "of {algo}"\n\n'
        text += _indented(_described("train", [algo], hyperparameters=True)) + "\n"
    return text


def _described(name, arguments, hyperparameters=False):
    """One command: its usage, and a table for each group of options."""
    from qcrl.cli.main import parser_of

    parser, _ = parser_of(name, arguments)
    usage = "" if hyperparameters else f"```text\n{parser.format_usage().removeprefix('usage: ').strip()}\n```\n"
    return usage + _tables(parser, hyperparameters)


def _tables(parser, hyperparameters=False):
    text = ""
    for group in parser._action_groups:
        shown = [each for each in group._group_actions if each.help != argparse.SUPPRESS]
        if not shown or ("hyper-parameters" in str(group.title)) != hyperparameters:
            continue
        text += f"\n**{group.title}**\n\n| option | meaning |\n|---|---|\n"
        for action in shown:
            text += f"| {_named(parser, action)} | {_meaning(parser, action)} |\n"
    return text


def _named(parser, action):
    value = "" if action.nargs == 0 else parser._get_formatter()._format_args(action, _metavar(action))
    names = [f"{name} {value}".strip() for name in action.option_strings] or [value]
    return ", ".join(f"`{each}`" for each in names).replace("|", "\\|")


def _metavar(action):
    return action.dest.upper() if action.option_strings else action.dest


def _meaning(parser, action):
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def _indented(text):
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())
