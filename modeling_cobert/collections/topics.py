"""TREC topics: number and title of every `<top>`, in the layouts of TREC's tracks, with closing tags or without."""

import os
import re
from collections.abc import Iterator

from .trec import numbered_lines

_EDGE = re.compile(r"(</?top>)")
_ONLY_TAGS = re.compile(r"(?:\s*</?\w+>)*\s*")
_MARKUP = "a|b|big|br|code|em|font|i|p|small|span|strong|sub|sup|tt|u"
_FIELD = re.compile(r"<(num|desc|narr|head|dom|smry|con|fac|nat|def|query|querytime|querytweettime)(\s[^<>]*)?>")
# What ends a title that is not closed: a field or, at the beginning of a line, any tag that is no markup.
_NEXT = re.compile(rf"^[ \t]*</?(?!(?:{_MARKUP})[\s>])[A-Za-z][\w-]*(\s[^<>]*)?>|{_FIELD.pattern}", re.MULTILINE)
_AFTER_TITLE = re.compile(rf"</title>\s*(?:[^<\s]|</?(?:{_MARKUP})>)")
_NUMBER = re.compile(r"[^<]*")


def read_topics(path: str | os.PathLike) -> Iterator[tuple[int, str, str]]:
    """Yields (line of its `<top>`, id, title) of every topic."""
    start, parts = 0, [""]
    for number, line in numbered_lines(path):
        for piece in _EDGE.split(line):
            if piece == "<top>":
                if start:
                    raise ValueError(f"{path}:{start}: <top> without </top>: the next topic begins in line {number}")
                start, parts = number, []
            elif piece == "</top>":
                yield start, *_read_topic("\n".join(parts) if start else "", f"{path}:{number}")
                start = 0
            elif start:
                parts.append(piece.replace("\r", "\n"))  # the line ends of old Macs
            elif not _ONLY_TAGS.fullmatch(piece):
                raise ValueError(
                    f"{path}:{number}: text outside a field; a TREC topics file has <top>, <num> and <title>"
                )
    if start:
        raise ValueError(f"{path}:{start}: <top> without </top>")


def _read_topic(text: str, where: str) -> tuple[str, str]:
    for name in ("num", "title"):
        if f"<{name}>" not in text:
            raise ValueError(f"{where}: a topic needs <top>, <num> and <title>")
        # Another one in the midst of words is a word.
        count = len(re.findall(rf"(?:^|>)\s*<{name}>", text, re.MULTILINE))
        if count > 1:
            raise ValueError(f"{where}: the topic that ends here has {count} <{name}>: is a </top> missing before?")
    found = _NUMBER.match(text, text.index("<num>") + len("<num>"))
    number = found[0].replace("Number:", "").strip() if found else ""
    title = " ".join(_title(text, text.index("<title>") + len("<title>"), where).split())
    return number, title.removeprefix("Topic:").strip()


def _title(text: str, begin: int, where: str) -> str:
    end = text.find("</title>", begin)
    if end < 0:
        following = _NEXT.search(text, begin)
        return text[begin : following.start() if following else len(text)]
    inside = _FIELD.search(text, begin, end)
    if inside:
        raise ValueError(f"{where}: the topic that ends here has {inside[0]} before </title>")
    if _AFTER_TITLE.match(text, end):
        raise ValueError(f"{where}: the topic that ends here has text after </title>, in no field")
    return text[begin:end]
