"""Measures how much a Co-BERT's ranking depends on the candidates' order, on the groups' edges and on their number.

    cobert stability --model outputs/demo/start-promising/seed-42/fold-1 --rows outputs/demo/prepared/rows --fold 1 \\
        --output stability/fold_1

Every query is encoded once and scored again under each change; a table is printed, all values are in
`stability.json`. Killed, the same command goes on; `torchrun --nproc_per_node 2 -- data_scripts/stability.py ...`
shares the queries among processes.
"""

from pathlib import Path

from ..analysis.stability import StabilityOptions, stability, stability_table
from ..data.groups import GroupOptions
from ..evaluation.tables import to_terminal
from ..ranking.options import InputOptions, RankerOptions
from ..steps.files import write_json
from ..steps.folders import SETTINGS
from ..steps.processes import process_state
from .eval import SeenOptions
from .options import OutputOptions

ARGUMENTS = (RankerOptions, InputOptions, GroupOptions, StabilityOptions, OutputOptions, SeenOptions)


def main(
    ranker_options: RankerOptions,
    input_options: InputOptions,
    groups: GroupOptions,
    changes: StabilityOptions,
    options: OutputOptions,
    seen: SeenOptions,
) -> dict:
    """Measures, writes, prints; returns the report."""
    path = Path(options.output) / "stability.json"
    if path.exists() and not (path.parent / ".parts" / SETTINGS).exists():
        raise ValueError(f"{path}: this command has not made it, and would replace it: give another --output")
    state = process_state(ranker_options.use_cpu)
    inputs = input_options.open_inputs(groups, progress=state.is_main_process)
    seen.check(ranker_options, inputs.name, inputs.queries)
    report = stability(ranker_options.load(input_options, state.device), inputs, options.output, changes, state)
    if state.is_main_process:
        write_json(path, {"model": ranker_options.model, **report})
        print(to_terminal(stability_table(report)))
        print(f"written to {path}")
    state.wait_for_everyone()
    return report
