"""What several commands are told alike: where results go, and what run they start from."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class OutputOptions:
    """Where the result goes."""

    output: str = field(metadata={"help": "A new folder, or one that the same command has begun."})


@dataclass(frozen=True)
class RunOptions(OutputOptions):
    """The candidates, and where the result goes."""

    run: str = field(metadata={"help": "The TREC run whose documents are the candidates."})


def check_tag(tag: str) -> None:
    """A run's sixth column, which a blank would make two."""
    if tag.split() != [tag]:
        raise ValueError(f"--tag must be non-empty and without white space, got {tag!r}")
