"""
Explains the ranking of single queries: prototypes' weights, what calibration and group did, who attended to whom.

    python data_scripts/explain_query.py --model models/cobert --groups groups/cranfield --queries 1 2 --output why

With a collection and a run, as for eval_cobert.py: `--collection demo --run runs/demo.trec --queries 7 --output why`.

The output folder has `explanation.json` and, to open in a browser, `explanation.html`.
"""

import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path

from transformers import HfArgumentParser

from modeling_cobert.analysis.explanation import (
    Explanation,
    document_table,
    explain_query,
    explanation_section,
    prototype_table,
)
from modeling_cobert.evaluation.report import write_report
from modeling_cobert.evaluation.results import write_json
from modeling_cobert.evaluation.tables import to_terminal
from modeling_cobert.ranking.arguments import RankingArguments
from modeling_cobert.steps.shards import process_state


@dataclass
class ExplainArguments:
    """What comes out."""

    output: str = field(metadata={"help": "The folder for explanation.json and explanation.html."})
    top: int = field(default=20, metadata={"help": "How many documents the tables show first."})
    attended: int = field(default=5, metadata={"help": "How many attended candidates are named for each document."})


def main(ranking_args: RankingArguments, args: ExplainArguments) -> list[Explanation]:
    """Explains, writes, prints."""
    if ranking_args.queries is None:
        raise ValueError("name the queries to explain: --queries ID ...")
    inputs = ranking_args.open_inputs()
    ranker = ranking_args.load_ranker(process_state(ranking_args.use_cpu).device)
    inputs.check(ranker)
    explanations = [
        explain_query(ranker, inputs.encode(ranker, query_id), args.attended) for query_id in inputs.queries
    ]
    output = Path(args.output)
    write_json(output / "explanation.json", [explanation.to_dict() for explanation in explanations])
    sections = [explanation_section(explanation, args.top) for explanation in explanations]
    write_report(output / "explanation.html", "Context, explained", sections, f"{ranking_args.model} on {inputs.name}")
    for explanation in explanations:
        print(f"query {explanation.query_id}: {explanation.query}\n")
        if explanation.prototypes:
            print(to_terminal(prototype_table(explanation)))
        print(to_terminal(document_table(explanation, args.top)))
    print(f"written to {output}: explanation.json, explanation.html")
    return explanations


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        main(*HfArgumentParser((RankingArguments, ExplainArguments)).parse_args_into_dataclasses())
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"error: {error}")
