"""From text to index terms, as Terrier and as Anserini do it: tokenise, drop stop words, stem.

`terrier`: runs of ASCII letters and digits, lower-cased; a token longer than 20 characters, with more than 4 digits
or with more than 3 equal characters in a row is dropped (Terrier's EnglishTokeniser); Terrier's stop list of 733
words; Porter's stemmer.

`anserini`: words by Unicode's rules (UAX #29, as Lucene's StandardTokenizer), lower-cased, a final 's removed,
Lucene's 33 stop words, Porter's stemmer. Unlike there, a narrow no-break space separates words like any other space.

Both stem with Snowball's `porter`; `english` is Porter 2, which PISA uses. Neither tokeniser looks across white space.
So a text is first cut into *chunks* by cheap string operations, and only a chunk never seen before is analysed.
"""

import json
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import regex

ANALYZERS = ("terrier", "anserini")
STEMMERS = ("porter", "english", "none")
OWN_STOPWORDS = {"terrier": "terrier", "anserini": "lucene"}

_ASCII = "".join(map(chr, range(128)))
_TERRIER_TABLE = str.maketrans({char: char.lower() if char.isalnum() else " " for char in _ASCII})
# Inside a word these may join its halves (u.s, isn't, 1,000, a_b, x:y); any other ASCII punctuation separates.
_STANDARD_TABLE = str.maketrans({char: char if char.isalnum() or char in "'.,;:_" else " " for char in _ASCII})
_NOISE = re.compile(r"(.)\1{3}|[0-9](?:[^0-9]*[0-9]){4}|.{21}")
# With the flag (?w), regex's \b is the word boundary of UAX #29.
_STANDARD_WORD = regex.compile(r"(?w)\b\w.*?\b", regex.VERSION1)
# Marks belong to the character before them; with none before them they are part of no word.
_LOOSE_MARKS = regex.compile(r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]+", regex.VERSION1)
_POSSESSIVE = ("'s", "\u2019s", "\uff07s")
_MAX_STANDARD_LENGTH = 255


def stopwords_file(name: str | None) -> Path | None:
    """The file that [`load_stopwords`] reads for a name that is none of its own lists."""
    return None if name is None or name == "none" or name in _stopword_lists() else Path(name)


def _stopword_lists() -> dict[str, str]:
    return json.loads((Path(__file__).parent / "stopwords.json").read_text(encoding="utf-8"))


def load_stopwords(name: str | os.PathLike) -> frozenset[str]:
    """
    Returns a stop list: `terrier` (733 words), `lucene` (33), `none`, or the words of a UTF-8 file, one a line.
    """
    lists = _stopword_lists()
    if name == "none":
        return frozenset()
    if name in lists:
        return frozenset(lists[name].split())
    if not Path(name).is_file():
        raise ValueError(f"stop list {str(name)!r} is neither a file nor one of {', '.join([*sorted(lists), 'none'])}")
    try:
        return frozenset(Path(name).read_text(encoding="utf-8").lower().split())
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 ({error.reason} at byte {error.start})") from None


class Analyzer:
    """
    Turns text into index terms.

    Args:
        name (`str`, *optional*, defaults to `"terrier"`): `"terrier"` or `"anserini"`; see the module's first lines.
        stemmer (`str`, *optional*, defaults to `"porter"`): `"porter"`, `"english"` (Porter 2) or `"none"`.
        stopwords (`str`, *optional*): `"terrier"`, `"lucene"`, `"none"` or a file; by default the analyzer's own.
        index_stopwords (`bool`, *optional*, defaults to `False`): drop stop words from queries only, as PISA does, so
            that they count in the length of a document.

    Example:

    ```python
    >>> Analyzer("anserini")("The U.S. wing's stability isn't 1,000 times better.")
    ['u.', 'wing', 'stabil', "isn't", '1,000', 'time', 'better']
    ```
    """

    def __init__(
        self,
        name: str = "terrier",
        stemmer: str = "porter",
        stopwords: str | os.PathLike | None = None,
        index_stopwords: bool = False,
    ):
        if name not in ANALYZERS:
            raise ValueError(f"analyzer must be one of {', '.join(ANALYZERS)}, got {name!r}")
        if stemmer not in STEMMERS:
            raise ValueError(f"stemmer must be one of {', '.join(STEMMERS)}, got {stemmer!r}")
        self.name = name
        self.stopwords = load_stopwords(stopwords or OWN_STOPWORDS[name])
        self.index_stopwords = index_stopwords
        self._stem = _make_stemmer(stemmer)
        self.chunks = _terrier_chunks if name == "terrier" else _standard_chunks
        self._tokens = _terrier_tokens if name == "terrier" else _standard_tokens

    def terms(self, chunk: str, in_query: bool = False) -> list[str]:
        """The terms of one of `self.chunks(text)`."""
        stopwords = self.stopwords if in_query or not self.index_stopwords else ()
        return [self._stem(token) for token in self._tokens(chunk) if token not in stopwords]

    def __call__(self, text: str) -> list[str]:
        """The terms of a document."""
        return [term for chunk in self.chunks(text) for term in self.terms(chunk)]

    def query(self, text: str) -> list[str]:
        """The terms of a query."""
        return [term for chunk in self.chunks(text) for term in self.terms(chunk, in_query=True)]


@cache
def _make_stemmer(name: str) -> Callable[[str], str]:
    if name == "none":
        return str
    try:
        import Stemmer
    except ImportError:
        raise ImportError("stemming needs PyStemmer: pip install 'modeling-cobert[retrieval]'") from None
    return Stemmer.Stemmer(name).stemWord


def _terrier_chunks(text: str) -> list[str]:
    if not text.isascii():
        # "?" is a separator, like every other character that is not ASCII.
        text = text.encode("ascii", "replace").decode("ascii")
    return text.translate(_TERRIER_TABLE).split()


def _terrier_tokens(chunk: str) -> list[str]:
    return [] if _NOISE.search(chunk) else [chunk]


def _standard_chunks(text: str) -> list[str]:
    # str.translate is fast for ASCII only; elsewhere a chunk keeps its punctuation until it is analysed.
    text = text.lower()
    return text.translate(_STANDARD_TABLE).split() if text.isascii() else text.split()


def _standard_tokens(chunk: str) -> list[str]:
    tokens: list[str] = []
    loose = None if chunk.isascii() else _LOOSE_MARKS.match(chunk)
    for word in _STANDARD_WORD.findall(chunk[loose.end() :] if loose else chunk):
        word = word[:-2] if word.endswith(_POSSESSIVE) else word
        tokens.extend(
            word[start : start + _MAX_STANDARD_LENGTH] for start in range(0, len(word), _MAX_STANDARD_LENGTH)
        )
    return tokens
