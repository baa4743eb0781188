"""Costs as tables, in 10^12 multiply-accumulates."""

from collections.abc import Sequence

from ..evaluation.tables import Table
from .macs import TERA, Cost

COST_COLUMNS = ("System", "1st pass T", "2nd pass T", "T a query", "x BERT-Base")
PUBLISHED_COLUMNS = ("paper: 1st", "paper: 2nd", "paper: a query", "paper: x")
NOT_PUBLISHED = "–"
_FIGURES = ("first_pass", "second_pass", "per_query")


def cost_table(title: str, costs: Sequence[Cost], remarks: Sequence[str] = ()) -> Table:
    """
    A row for each system; columns of published figures only where there are any.

    Args:
        title (`str`): above the table.
        costs (`Sequence[Cost]`): the rows.
        remarks (`Sequence[str]`, *optional*): below it, before the notes of the rows.

    Example:

    ```python
    >>> from modeling_cobert.cost.paper import paper_costs
    >>> table = cost_table("Robust04", paper_costs("robust04"))
    >>> table.rows[0]
    ['BERT-Base', '59,356.224', '0.000', '238.378', '1.000x', '59,356.224', '–', '–', '–']

    ```
    """
    published = any(cost.published for cost in costs)
    rows = []
    for cost in costs:
        row = [cost.system, *(_tera(getattr(cost, name) / TERA) for name in _FIGURES), _ratio(cost.ratio)]
        if published:
            row += [*(_tera(cost.published.get(name)) for name in _FIGURES), _ratio(cost.published.get("ratio"))]
        rows.append(row)
    notes = [*remarks, *(f"{cost.system}: {cost.note}" for cost in costs if cost.note)]
    return Table([*COST_COLUMNS, *(PUBLISHED_COLUMNS if published else ())], rows, title, notes)


def _tera(value: float | None) -> str:
    if value is None:
        return NOT_PUBLISHED
    # small models on small collections would be 0.000
    return f"{value:,.3f}" if value >= 1 or value == 0 else f"{value:.3g}"


def _ratio(value: float | None) -> str:
    return NOT_PUBLISHED if value is None else f"{value:.3f}x"
