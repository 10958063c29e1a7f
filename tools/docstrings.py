"""Docstrings explain arguments in lines such as `seed: which one`; on the site these become a list."""

import re

import griffe

ARGUMENT = re.compile(r"^([a-z_]+(?:, [a-z_]+)*): ", re.MULTILINE)


class ArgumentLists(griffe.Extension):
    """Marks the lines of arguments as a list of Markdown."""

    def on_object(self, *, obj, **_):
        """Called for everything that has a docstring, or may have one."""
        if obj.docstring:
            text = ARGUMENT.sub(r"- **\1**: ", obj.docstring.value)
            obj.docstring.value = re.sub(r"(?<!\n)\n(?=- \*\*)", "\n\n", text)
