"""The model card: README.md of a checkpoint, filled from config, rows, arguments and measured results."""

import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..evaluation.measures import DEFAULT_MEASURES
from ..steps.files import atomic_open
from .initial import variant_of

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def write_card(
    folder: str | os.PathLike, config, rows: Mapping, settings: Mapping, results: Mapping, hub_id: str | None = None
) -> None:
    """
    Writes `folder/README.md`, with the metadata that the Hub reads. No path of this machine gets into it.

    Args:
        folder (`str` or `os.PathLike`): the model's folder.
        config ([`CoBertConfig`]): of the model.
        rows (`Mapping`): settings of the rows.
        settings (`Mapping`): of the training.
        results (`Mapping`): what was measured; empty before the test.
        hub_id (`str`, *optional*): the repository that the model goes to.
    """
    folder = Path(folder)
    where = hub_id if hub_id and _HUB_ID.fullmatch(hub_id) else folder.resolve().name
    collection = _name(rows.get("collection", "an unnamed collection"))
    card = ModelCard.from_template(
        _card_data(where, config, collection, settings, results.get("test", {})),
        template_str=resources.files(__package__).joinpath("model_card.md").read_text(encoding="utf-8"),
        title=_text(where.rsplit("/", 1)[-1]),
        where=where.replace('"', ""),
        variant=variant_of(config),
        encoder=config.encoder_config.num_hidden_layers,
        calibrator=config.calibrator_config.num_hidden_layers if config.use_calibrator else None,
        scorer=config.scorer_config.num_hidden_layers if config.use_scorer else None,
        prototypes=config.num_prototypes,
        group_size=config.group_size,
        passage_words=config.passage_words,
        passage_overlap=config.passage_overlap,
        max_length=config.max_length,
        selector=_selector(config.selector),
        starts=config.starting_weights is not None,
        feedback=bool(config.feedback_weight),
        reads_pairs=config.reads_pairs,
        words=config.reads_words or config.content_size,
        near_by_words="words" in config.neighbours_by,
        content=config.content_size,
        collection=_text(collection),
        fold=settings.get("fold"),
        queries=results.get("queries"),
        results=_results(results, _text(_name(rows.get("first_stage", "as given")))),
        facts=_facts(settings, results),
        num_train=len(settings["train"]),
        num_validation=len(settings["validation"]),
    )
    with atomic_open(folder / "README.md") as file:
        file.write(str(card))


def _card_data(where: str, config, collection: str, settings: Mapping, test: Mapping) -> ModelCardData:
    # Folders are no base models to the Hub, and a collection's name is one only where the Hub could know it.
    given = [settings["model"].get(name) for name in ("encoder", "calibrator", "scorer", "checkpoint")]
    base = [config.encoder_config.name_or_path, *given]
    base = list(dict.fromkeys(name for name in base if name and _HUB_ID.fullmatch(name)))
    dataset = (
        collection if _HUB_ID.fullmatch(collection) else re.sub(r"[^\w.-]+", "-", collection).strip("-.") or "unnamed"
    )
    evaluated = [
        EvalResult(
            task_type="text-ranking",
            dataset_type=dataset,
            dataset_name=collection,
            dataset_split="test" if settings.get("fold") is None else f"fold {settings['fold']}",
            metric_type=re.sub(r"\W+", "_", name).lower(),
            metric_name=name,
            metric_value=round(value, 4),
        )
        for name, value in sorted(test.items())
    ]
    return ModelCardData(
        library_name="transformers",
        pipeline_tag="text-ranking",
        tags=["co-bert", "reranker", "cross-encoder", "information-retrieval"],
        base_model=base or None,
        datasets=[dataset],
        model_name=where.rsplit("/", 1)[-1],
        eval_results=evaluated or None,
    )


def _results(results: Mapping, first_stage: str) -> str:
    if not results.get("test"):
        return ""
    names = list(DEFAULT_MEASURES)
    lines = [f"| system | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for system, values in ((f"first stage ({first_stage})", results["first_stage"]), ("this model", results["test"])):
        lines.append(f"| {system} | {' | '.join(f'{values[name]:.4f}' for name in names)} |")
    return "\n".join(lines)


def _facts(settings: Mapping, results: Mapping) -> str:
    training, model, teacher = settings["training"], settings["model"], settings.get("teacher")
    alone = teacher is not None and teacher["weight"] == 1
    by_steps = training["max_steps"] > 0  # which overrides the epochs
    facts = {
        "encoder": model.get("encoder"),
        "calibrator": model.get("calibrator"),
        "scorer": model.get("scorer"),
        "went on from": model.get("checkpoint"),
        "loss": None if alone else model.get("loss") or "pointwise",
        "teacher": _teacher(teacher) if teacher is not None else None,
        "encoder frozen": "yes" if settings["freeze_encoder"] else "no",
        "groups a step": settings["groups_a_step"],
        "order of the groups": settings["feed_order"],
        "steps": training["max_steps"] if by_steps else None,
        "epochs": None if by_steps else f"{training['num_train_epochs']:g}",
        "best epoch": f"{results['epoch']:g}" if "epoch" in results else None,
        "learning rate": f"{training['learning_rate']:g}",
        "warm-up": f"{training['warmup_steps']:g}",
        "schedule": training["lr_scheduler_type"],
        "optimizer": training["optim"],
        "seed": training["seed"],
    }
    facts |= {f"validation {name}": f"{value:.4f}" for name, value in results.get("validation", {}).items()}
    rows = [f"| {name} | {_text(_name(value))} |" for name, value in facts.items() if value is not None]
    return "\n".join(["| | |", "|---|---|", *rows])


def _teacher(teacher: Mapping) -> str:
    how = f"{teacher['loss']}, weight {teacher['weight']:g}, temperature {teacher['temperature']:g}"
    return f"the run {_name(teacher['tag'])} ({teacher['sha256'][:12]}), {how}"


def _selector(selector: str) -> str:
    kinds = {
        "self": "the model's own encoder",
        "lexical": "BM25 over passages",
        "first-stage": "the first-stage order (first passage)",
    }
    return kinds.get(selector, f"`{_text(_name(selector)).replace('`', '')}`")


def _name(value: object) -> str:
    """A folder's own name in place of its path; anything else as it is."""
    text = str(value)
    return Path(text).name if os.path.isabs(text) or text.startswith((".", "~")) or os.path.isdir(text) else text


def _text(value: object) -> str:
    """One line of Markdown without markup of its own."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", " ".join(str(value).split()))
