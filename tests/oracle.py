"""The paper's equations with plain loops: one pair, one (prototype, candidate), one group at a time, no padding."""

import torch


def encode(model, row: dict[str, torch.Tensor]) -> torch.Tensor:
    """Equation 1: the interaction vector of one query-passage pair, given without padding."""
    output = model.encoder(**{name: value.unsqueeze(0) for name, value in row.items()})
    return output.pooler_output[0] if model.config.encoder_pooling == "pooler" else output.last_hidden_state[0, 0]


def calibrate(model, prototypes: list[torch.Tensor], candidate: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
    """Equations 2 to 4: the candidate's vector as the prototypes' weighted views of it, averaged with itself."""
    views, logits = [], []
    for prototype in prototypes:
        pair = torch.stack([prototype, candidate]).unsqueeze(0)
        views.append(model.calibrator(inputs_embeds=pair).last_hidden_state[0, 1])
        logits.append(float(model.prototype_weight.weight[0] @ prototype + model.prototype_weight.bias[0]))
    exponentials = [torch.tensor(logit - max(logits), dtype=torch.float64).exp() for logit in logits]
    weights = [float(e / sum(exponentials)) for e in exponentials]
    seen = sum(weight * view for weight, view in zip(weights, views, strict=True))
    return ((candidate + seen) / 2 if model.config.use_residual else seen), weights


def score(model, vectors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Equation 5: the relevance logit of every document of a group."""
    sequence = torch.stack(vectors)
    if model.config.use_scorer:
        n = len(vectors)
        places = torch.arange(n) if model.config.scorer_positions else torch.zeros(n, dtype=torch.long)
        types = torch.tensor([int(model.config.mark_overlap and i < model.config.group_overlap) for i in range(n)])
        sequence = model.scorer(
            inputs_embeds=sequence.unsqueeze(0), position_ids=places.unsqueeze(0), token_type_ids=types.unsqueeze(0)
        ).last_hidden_state[0]
    return [model.classifier.weight[0] @ vector + model.classifier.bias[0] for vector in sequence]


def rank_group(model, batch: dict[str, torch.Tensor], group: int) -> tuple[list[torch.Tensor], list[float] | None]:
    """The logits of one group's real candidates, and the weights of its real prototypes."""
    m = model.config.num_prototypes if model.config.use_calibrator else 0
    rows = []
    for document in range(batch["input_ids"].shape[1]):
        length = int(batch["attention_mask"][group, document].sum())
        names = ("input_ids", "token_type_ids", "attention_mask")
        rows.append({name: batch[name][group, document, :length] for name in names})
    real = [bool(flag) for flag in batch["document_mask"][group]]
    prototypes = [encode(model, row) for row, is_real in zip(rows[:m], real[:m], strict=True) if is_real]
    candidates = [encode(model, row) for row, is_real in zip(rows[m:], real[m:], strict=True) if is_real]
    weights = None
    if model.config.use_calibrator:
        pairs = [calibrate(model, prototypes, candidate) for candidate in candidates]
        candidates, weights = [vector for vector, _ in pairs], pairs[0][1]
    return score(model, candidates), weights
