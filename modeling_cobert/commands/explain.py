"""Explains the ranking of single queries: prototypes' weights, what calibration and group did, who attended to whom.

    cobert explain --model outputs/demo/fold-1 --rows prepared/demo/rows --query_ids 1 2 --output why

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
from ..data.groups import GroupOptions
from ..evaluation.report import write_report
from ..evaluation.tables import to_terminal
from ..ranking.options import InputOptions, RankerOptions
from ..steps.files import write_json
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


ARGUMENTS = (RankerOptions, InputOptions, GroupOptions, ExplainOptions)


def main(
    ranker_options: RankerOptions, input_options: InputOptions, groups: GroupOptions, options: ExplainOptions
) -> list[Explanation]:
    """Explains, writes, prints."""
    if input_options.query_ids is None:
        raise ValueError("name the queries to explain: --query_ids ID ...")
    inputs = input_options.open_inputs(groups)
    ranker = ranker_options.load(input_options, process_state(ranker_options.use_cpu).device)
    inputs.check(ranker)
    explanations = [explain_query(ranker, inputs.encode(ranker, q), options.attended) for q in inputs.queries]
    output = Path(options.output)
    write_json(output / "explanation.json", [explanation.to_dict() for explanation in explanations])
    sections = [explanation_section(explanation, options.top) for explanation in explanations]
    subtitle = f"{ranker_options.model} on {inputs.name}"
    write_report(output / "explanation.html", "Context, explained", sections, subtitle)
    for explanation in explanations:
        print(f"query {visible(explanation.query_id)}: {visible(explanation.query)}\n")
        if explanation.prototypes:
            print(to_terminal(prototype_table(explanation)))
        print(to_terminal(document_table(explanation, options.top)))
        print("".join(f"{visible(line)}\n" for line in in_words(explanation)))
    print(f"written to {output}: explanation.json, explanation.html")
    return explanations
