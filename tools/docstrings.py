"""Examples in our docstrings as code blocks: lines from `>>>` to the next empty one. An extension of griffe."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n *\S.*)*", re.MULTILINE)


def fenced(text: str) -> str:
    """The text with its examples between fences, and without the indentation that they had."""
    return EXAMPLE.sub(lambda found: "```pycon\n" + re.sub(f"(?m)^{found[1]}", "", found[0]) + "\n```", text)


class Examples(griffe.Extension):
    """Rewrites docstrings as they are read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Of every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
