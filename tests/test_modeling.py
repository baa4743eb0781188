"""The model against the paper's equations, its invariances, and what transformers expects of every model."""

import copy

import oracle
import pytest
import tiny
import torch
from torch.testing import assert_close

from modeling_cobert import CoBertForGroupwiseRanking, CoBertRankingOutput
from modeling_cobert.loss_cobert import ranking_loss

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def rows(variant: dict) -> int:
    return tiny.M if variant.get("use_calibrator", True) else 0


def real_candidates(batch: dict, m: int) -> torch.Tensor:
    return batch["document_mask"][:, m:].bool()


@pytest.mark.parametrize("variant", tiny.VARIANTS)
@torch.no_grad()
def test_forward_equals_the_equations(variant):
    fields = tiny.VARIANTS[variant]
    m = rows(fields)
    model, batch = tiny.model(**fields), tiny.batch(m=m)
    output = model(**batch)
    assert output.logits.shape == (tiny.BATCH, tiny.N)
    assert (output.prototype_weights is None) == (m == 0)
    for group in range(tiny.BATCH):
        logits, weights = oracle.rank_group(model, batch, group)
        real = real_candidates(batch, m)[group]
        assert_close(output.logits[group][real], torch.stack(logits), **CLOSE)
        if m:
            real_prototypes = batch["document_mask"][group, :m].bool()
            assert_close(output.prototype_weights[group][real_prototypes], torch.tensor(weights), **CLOSE)
            assert (output.prototype_weights[group][~real_prototypes] == 0).all()
    assert_close(output.loss, ranking_loss("pointwise", output.logits, batch["labels"]))


@torch.no_grad()
def test_scores_depend_on_every_part():
    batch = tiny.batch()
    logits = {
        name: tiny.model(**tiny.VARIANTS[name])(**tiny.batch(m=rows(tiny.VARIANTS[name]))).logits
        for name in tiny.VARIANTS
    }
    names = list(logits)
    for i, name in enumerate(names):
        for other in names[i + 1 :]:
            assert (logits[name] - logits[other]).abs().max() > 1e-2, (name, other)
    model = tiny.model()
    changed = copy.deepcopy(batch)
    changed["input_ids"][0, 0, 1] = 7  # a prototype
    assert (model(**changed).logits[0] - model(**batch).logits[0]).abs().max() > 1e-3
    changed = copy.deepcopy(batch)
    changed["input_ids"][0, tiny.M, 1] = 7  # a candidate moves the scores of the others: they are scored jointly
    assert (model(**changed).logits[0, 1:] - model(**batch).logits[0, 1:]).abs().max() > 1e-3


@pytest.mark.parametrize("variant", ["full", "calibrator", "scorer", "neither", "no_residual", "pooler"])
@torch.no_grad()
def test_permuted_candidates_permute_the_scores_and_nothing_else(variant):
    fields = tiny.VARIANTS[variant]
    m = rows(fields)
    model, batch = tiny.model(**fields), tiny.batch(m=m)
    order = torch.randperm(tiny.N, generator=torch.Generator().manual_seed(3))
    permuted = {
        name: value[:, order] if name == "labels" else torch.cat([value[:, :m], value[:, m:][:, order]], dim=1)
        for name, value in batch.items()
    }
    before, after = model(**batch), model(**permuted)
    real = real_candidates(permuted, m)
    assert_close(after.logits[real], before.logits[:, order][real], **CLOSE)
    assert_close(after.loss, before.loss, **CLOSE)
    if m:
        assert_close(after.prototype_weights, before.prototype_weights, **CLOSE)


@torch.no_grad()
def test_the_release_does_see_positions():
    model, batch = tiny.model(**tiny.VARIANTS["release"]), tiny.batch()
    order = torch.arange(tiny.N).flip(0)
    permuted = {
        name: torch.cat([v[:, : tiny.M], v[:, tiny.M :][:, order]], dim=1)
        for name, v in batch.items()
        if name != "labels"
    }
    assert (model(**permuted).logits[0] - model(**batch).logits[0, order]).abs().max() > 1e-2


@pytest.mark.parametrize("variant", tiny.VARIANTS)
@torch.no_grad()
def test_padding_and_batching_change_no_score(variant):
    fields = tiny.VARIANTS[variant]
    m = rows(fields)
    model, batch = tiny.model(**fields), tiny.batch(m=m)
    expected = model(**batch)
    real = real_candidates(batch, m)

    wider = {
        name: torch.nn.functional.pad(batch[name], (0, 6))
        for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    assert_close(model(**{**batch, **wider}).logits[real], expected.logits[real], **CLOSE)

    if not model.config.scorer_positions:
        extra = 4
        padded = {name: torch.nn.functional.pad(batch[name], (0, 0, 0, extra), value=1) for name in wider}
        padded["document_mask"] = torch.nn.functional.pad(batch["document_mask"], (0, extra))
        padded["labels"] = torch.nn.functional.pad(batch["labels"], (0, extra), value=-100)
        output = model(**padded)
        assert_close(output.logits[:, : tiny.N][real], expected.logits[real], **CLOSE)
        assert_close(output.loss, expected.loss, **CLOSE)

    for group in range(tiny.BATCH):
        alone = model(**{name: value[group : group + 1] for name, value in batch.items()})
        assert_close(alone.logits[0][real[group]], expected.logits[group][real[group]], **CLOSE)


@torch.no_grad()
def test_fewer_prototypes_than_m_is_exact():
    model, batch = tiny.model(), tiny.batch(groups=1)
    batch["document_mask"][0, tiny.M - 1] = 0
    masked = model(**batch)
    fewer = tiny.model(num_prototypes=tiny.M - 1)
    kept = {
        name: torch.cat([value[:, : tiny.M - 1], value[:, tiny.M :]], dim=1) if name != "labels" else value
        for name, value in batch.items()
    }
    assert_close(masked.logits, fewer(**kept).logits, **CLOSE)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_fully_padded_group_gives_no_nan_and_no_loss(attention):
    model = tiny.model()
    model.set_attn_implementation(attention)
    batch = tiny.batch()
    for name in ("attention_mask", "document_mask"):
        batch[name][1] = 0
    batch["labels"][1] = -100
    output = model(**batch)
    assert torch.isfinite(output.logits).all()
    alone = model(**{name: value[:1] for name, value in batch.items()})
    assert_close(output.loss, alone.loss, **CLOSE)
    output.loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())

    batch["document_mask"][:], batch["labels"][:] = 0, -100
    output = model(**batch)
    assert output.loss == 0 and torch.isfinite(output.logits).all()
    assert (output.prototype_weights == 0).all()


@torch.no_grad()
def test_without_any_prototype_candidates_are_scored_as_they_are():
    model, batch = tiny.model(), tiny.batch(groups=1)
    batch["document_mask"][0, : tiny.M] = 0
    vectors = model.encode(*(batch[name][0, tiny.M :] for name in ("input_ids", "attention_mask", "token_type_ids")))
    assert_close(model(**batch).logits, model.score(vectors.unsqueeze(0)), **CLOSE)


@torch.no_grad()
def test_a_group_of_one_document():
    model, batch = tiny.model(), tiny.batch(n=1, groups=1)
    logits, _ = oracle.rank_group(model, batch, 0)
    assert_close(model(**batch).logits[0], torch.stack(logits), **CLOSE)


def test_too_few_rows_is_an_error():
    with pytest.raises(ValueError, match="3 prototypes leave no candidate"):
        tiny.model()(**{name: value[:, : tiny.M] for name, value in tiny.batch().items() if name != "labels"})
    with pytest.raises(ValueError, match="no calibrator"):
        tiny.model(use_calibrator=False).calibrate(torch.zeros(1, 1, tiny.HIDDEN), torch.zeros(1, 2, tiny.HIDDEN))
    with pytest.raises(ValueError, match="positions for 7 documents, got a group of 9"):
        tiny.model(scorer_positions=True).score(torch.zeros(1, 9, tiny.HIDDEN))


@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_no_dead_weight(variant):
    """Every weight in a checkpoint is used: it has a gradient, and no table has a row that no input reaches."""
    fields = tiny.VARIANTS[variant]
    model = tiny.model(**fields).train()
    state = model.state_dict()
    for part in ("calibrator", "scorer"):
        assert not any(key.startswith(f"{part}.embeddings.word") or key.startswith(f"{part}.pooler") for key in state)
        assert any(key.startswith(f"{part}.") for key in state) == fields.get(f"use_{part}", True)
    assert ("prototype_weight.weight" in state) == fields.get("use_calibrator", True)
    assert any("pooler" in key for key in state) == (fields.get("encoder_pooling") == "pooler")
    model(**tiny.batch(m=rows(fields))).loss.backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]
    for name, parameter in model.named_parameters():
        if name.startswith(("calibrator.embeddings", "scorer.embeddings")):
            assert (parameter.grad.reshape(len(parameter), -1).abs().sum(dim=1) > 0).all(), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@torch.no_grad()
def test_precisions_and_attentions(dtype, attention):
    batch = tiny.batch()
    # Smaller weights than elsewhere: half precision has few digits for logits of 30.
    fields = {
        f"{p}_config": tiny.bert_config(2, 2, 28, initializer_range=0.05) for p in ("encoder", "calibrator", "scorer")
    }
    expected = tiny.model(**fields)(**batch)
    model = tiny.model(**fields).to(dtype)
    model.set_attn_implementation(attention)
    assert {part.config._attn_implementation for part in (model.encoder, model.calibrator, model.scorer)} == {
        attention
    }
    output = model(**batch)
    assert output.logits.dtype == dtype and output.loss.dtype == torch.float32
    real = real_candidates(batch, tiny.M)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 5e-3}[dtype]
    assert_close(output.logits[real].float(), expected.logits[real], rtol=tolerance, atol=tolerance)


def gradients(model, batch) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(**batch).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_gradient_checkpointing_gives_equal_gradients():
    config, batch = tiny.config(), tiny.batch()
    for part in (config.encoder_config, config.calibrator_config, config.scorer_config):
        part.hidden_dropout_prob = part.attention_probs_dropout_prob = 0.0
    model = CoBertForGroupwiseRanking(config).train()
    plain = gradients(model, batch)
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    assert {
        module.gradient_checkpointing for module in model.modules() if hasattr(module, "gradient_checkpointing")
    } == {True}
    for name, gradient in gradients(model, batch).items():
        assert_close(gradient, plain[name], rtol=1e-5, atol=1e-6)


def test_hidden_states_and_attentions_by_name():
    model, batch = tiny.model(), tiny.batch()
    model.set_attn_implementation("eager")
    output = model(**batch, output_hidden_states=True, output_attentions=True)
    pairs, looks = tiny.BATCH * (tiny.M + tiny.N), tiny.BATCH * tiny.M * tiny.N
    shapes = {
        "encoder": (5, (pairs, tiny.TOKENS, tiny.HIDDEN), (pairs, 4, tiny.TOKENS, tiny.TOKENS)),
        "calibrator": (1, (looks, 2, tiny.HIDDEN), (looks, 3, 2, 2)),
        "scorer": (2, (tiny.BATCH, tiny.N, tiny.HIDDEN), (tiny.BATCH, 2, tiny.N, tiny.N)),
    }
    for part, (layers, hidden, attention) in shapes.items():
        assert [tuple(x.shape) for x in output[f"{part}_hidden_states"]] == [hidden] * (layers + 1)
        assert [tuple(x.shape) for x in output[f"{part}_attentions"]] == [attention] * layers
    # A padded document is attended to by none.
    padded = ~batch["document_mask"][1, tiny.M :].bool()
    assert output.scorer_attentions[0][1][:, :, padded].abs().max() == 0

    kept = [output.encoder_hidden_states[0], output.calibrator_hidden_states[0], output.scorer_hidden_states[-1]]
    for state in kept:
        state.retain_grad()
    output.loss.backward()
    assert all(state.grad is not None and state.grad.abs().sum() > 0 for state in kept)

    model.config.output_hidden_states = True
    assert model(**batch).scorer_hidden_states is not None
    assert model(**batch, output_hidden_states=False).scorer_hidden_states is None


@torch.no_grad()
def test_tuple_output():
    model, batch = tiny.model(), tiny.batch()
    output = model(**batch)
    assert isinstance(output, CoBertRankingOutput)
    as_tuple = model(**batch, return_dict=False)
    assert isinstance(as_tuple, tuple) and len(as_tuple) == 3
    for found, expected in zip(as_tuple, output.to_tuple(), strict=True):
        assert_close(found, expected)
    batch.pop("labels")
    assert len(model(**batch, return_dict=False)) == 2


def test_embeddings(tmp_path):
    model = tiny.model()
    assert model.get_input_embeddings() is model.encoder.embeddings.word_embeddings
    table = torch.nn.Embedding(len(tiny.VOCAB), tiny.HIDDEN)
    model.set_input_embeddings(table)
    assert model.encoder.embeddings.word_embeddings is table
    model.resize_token_embeddings(len(tiny.VOCAB) + 3)
    assert model.config.encoder_config.vocab_size == len(tiny.VOCAB) + 3
    model.save_pretrained(tmp_path)
    loaded = CoBertForGroupwiseRanking.from_pretrained(tmp_path)
    assert loaded.get_input_embeddings().weight.shape == (len(tiny.VOCAB) + 3, tiny.HIDDEN)
    batch = tiny.batch()
    batch["input_ids"][0, 0, 1] = len(tiny.VOCAB) + 2
    with torch.no_grad():
        assert_close(loaded(**batch).logits, model(**batch).logits, rtol=0, atol=0)


def test_seeded_initialisation():
    def state(seed):
        torch.manual_seed(seed)
        return CoBertForGroupwiseRanking(tiny.config()).state_dict()

    first, again, other = state(1), state(1), state(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])
    # The children's own initializer_range, and zero biases, also for the heads.
    assert 0.2 < first["prototype_weight.weight"].std() < 0.4 and first["classifier.bias"].abs().sum() == 0
    assert 0.25 < first["scorer.encoder.layer.0.output.dense.weight"].std() < 0.35


def test_torch_compile():
    model, batch = tiny.model(), tiny.batch()
    compiled = torch.compile(model, backend="aot_eager")
    output, expected = compiled(**batch), model(**batch)
    assert_close(output.logits, expected.logits, **CLOSE)
    assert_close(output.loss, expected.loss, **CLOSE)
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("variant", tiny.VARIANTS)
@torch.no_grad()
def test_save_and_load(variant, tmp_path):
    fields = tiny.VARIANTS[variant]
    model, batch = tiny.model(**fields), tiny.batch(m=rows(fields))
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1 and not list(tmp_path.glob("*.bin"))
    loaded, info = CoBertForGroupwiseRanking.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert not loaded.training
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert torch.equal(loaded(**batch).logits, model(**batch).logits)
    half = CoBertForGroupwiseRanking.from_pretrained(tmp_path, dtype=torch.bfloat16, attn_implementation="eager")
    assert half.dtype == torch.bfloat16 and half.encoder.config._attn_implementation == "eager"
    mapped = CoBertForGroupwiseRanking.from_pretrained(tmp_path, device_map="auto")
    assert torch.equal(mapped(**batch).logits, model(**batch).logits)


def test_stages_are_what_forward_runs():
    """Encode once, rank in any groups: the public stages give forward's own numbers."""
    model, batch = tiny.model(), tiny.batch()
    with torch.no_grad():
        flat = [batch[name].reshape(-1, tiny.TOKENS) for name in ("input_ids", "attention_mask", "token_type_ids")]
        vectors = torch.cat([model.encode(*(x[i : i + 4] for x in flat)) for i in range(0, len(flat[0]), 4)])
        vectors = vectors.view(tiny.BATCH, tiny.M + tiny.N, tiny.HIDDEN)
        mask = batch["document_mask"]
        candidates, weights = model.calibrate(vectors[:, : tiny.M], vectors[:, tiny.M :], mask[:, : tiny.M])
        logits = model.score(candidates, mask[:, tiny.M :])
        expected = model(**batch)
    real = real_candidates(batch, tiny.M)
    assert_close(logits[real], expected.logits[real], **CLOSE)
    assert_close(weights, expected.prototype_weights, **CLOSE)


def test_the_trainer_does_not_scale_the_loss():
    assert CoBertForGroupwiseRanking.accepts_loss_kwargs is False
    assert tiny.model().can_generate() is False
