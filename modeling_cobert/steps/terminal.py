"""Text of others on a terminal: seen, not obeyed, in what is printed and in what any library logs."""

import logging
import re
import unicodedata

# Colours, which other libraries put into what they log: left out, where all else is made visible.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def visible(text: str) -> str:
    """
    Writes control and direction characters, line separators and lone surrogates as numbers: seen, not obeyed.

    Example:

    ```python
    >>> visible("red\\x1b[0m")
    'red\\\\u001b[0m'

    ```
    """
    return "".join(f"\\u{ord(c):04x}" if _is_hidden(c) else c for c in str(text))


def visible_lines(text: str) -> str:
    """The same for text of several lines, which stay lines."""
    return re.sub(r"[^\n\t]+", lambda found: visible(found[0]), str(text))


def _is_hidden(character: str) -> bool:
    # the two at the end are no characters, and XML may not have them
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") or character in "\ufffe\uffff"


class VisibleRecord(logging.LogRecord):
    """A line of a log, ours or a library's, with the ids, names and paths in it made visible."""

    def getMessage(self) -> str:
        return visible_lines(_COLOURS.sub("", super().getMessage()))
