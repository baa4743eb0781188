"""Explains the ranking of single queries: prototypes' weights, what calibration and group did, who attended to whom.

    cobert explain --model outputs/demo/start-promising/seed-42/fold-1 --rows outputs/demo/prepared/rows \\
        --query_ids 1 2 --output why

With a collection and a run, as for `cobert eval`: `--collection demo --run runs/demo.trec --query_ids 7 --output why`.
The output folder has `explanation.json` and, to open in a browser, `explanation.html`.
"""

from dataclasses import dataclass, field
from pathlib import Path

from ..analysis.explanation import (
    Explanation,
    document_table,
    explain_query,
    explanation_section,
    in_words,
    prototype_table,
)
from ..checkpoint_cobert import read_json
from ..data.groups import GroupOptions
from ..evaluation.report import write_report
from ..evaluation.tables import to_terminal
from ..ranking.options import InputOptions, RankerOptions
from ..steps.files import write_json
from ..steps.folders import check_writable
from ..steps.limits import check_numbers
from ..steps.processes import process_state
from ..steps.terminal import visible


@dataclass(frozen=True)
class ExplainOptions:
    """What comes out."""

    output: str = field(metadata={"help": "The folder for explanation.json and explanation.html."})
    top: int = field(default=20, metadata={"help": "How many documents the tables show first."})
    attended: int = field(default=5, metadata={"help": "How many attended candidates are named for each document."})

    def __post_init__(self):
        check_numbers(self, 1, "top")
        check_numbers(self, 0, "attended")


FILES = ("explanation.json", "explanation.html")
# What stands beside each explanation: the fingerprints of the model that it is of.
MODEL = "model"
ARGUMENTS = (RankerOptions, InputOptions, GroupOptions, ExplainOptions)


def check_output(output: Path, query_ids: list[str]) -> None:
    """What is replaced must be an explanation of the same queries."""
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output {output}: is a file: give a folder")
    others = sorted({path.name for path in output.iterdir()} - {*FILES}) if output.is_dir() else []
    if others:
        raise ValueError(
            f"--output {output}: not empty and not of this command (there is {others[0]!r}): give another folder"
        )
    before, page = (output / name for name in FILES)
    if page.exists() and not before.exists():
        raise ValueError(f"{page}: not of this command, which writes {FILES[0]} before it: give another --output")
    if before.exists():
        known = read_json(before)
        known = [one.get("query_id") for one in known if isinstance(one, dict)] if isinstance(known, list) else []
        if sorted(map(str, known)) != sorted(query_ids):
            told = visible(", ".join(map(str, known)))
            raise ValueError(f"{before}: explains other queries ({told}) and would be replaced: give another --output")
    check_writable(output, "--output")


def check_model(output: Path, fingerprint: dict[str, str]) -> None:
    """What is replaced must be an explanation of the same model; older ones do not say of which they are."""
    before = output / FILES[0]
    known = read_json(before) if before.exists() else []
    if any(isinstance(one, dict) and one.get(MODEL, fingerprint) != fingerprint for one in known):
        raise ValueError(f"{before}: explains another model and would be replaced: give another --output")


def main(
    ranker_options: RankerOptions, input_options: InputOptions, groups: GroupOptions, options: ExplainOptions
) -> list[Explanation]:
    """Explains, writes, prints."""
    if input_options.query_ids is None:
        raise ValueError("name the queries to explain: --query_ids ID ...")
    inputs = input_options.open_inputs(groups)
    check_output(Path(options.output), list(inputs.queries))
    ranker = ranker_options.load(input_options, process_state(ranker_options.use_cpu).device)
    fingerprint = ranker.fingerprint()
    check_model(Path(options.output), fingerprint)
    inputs.check(ranker)
    explanations = [explain_query(ranker, inputs.encode(ranker, q), options.attended) for q in inputs.queries]
    output = Path(options.output)
    write_json(output / FILES[0], [one.to_dict() | {MODEL: fingerprint} for one in explanations])
    sections = [explanation_section(explanation, options.top) for explanation in explanations]
    subtitle = f"{ranker_options.model} on {inputs.name}"
    write_report(output / FILES[1], "Context, explained", sections, subtitle)
    for explanation in explanations:
        print(f"query {visible(explanation.query_id)}: {visible(explanation.query)}\n")
        if explanation.prototypes:
            print(to_terminal(prototype_table(explanation)))
        print(to_terminal(document_table(explanation, options.top)))
        print("".join(f"{visible(line)}\n" for line in in_words(explanation)))
    print(f"written to {output}: {', '.join(FILES)}")
    return explanations
