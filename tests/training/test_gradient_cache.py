"""Gradient caching against the plain step: same loss, same gradients, fewer activations."""

import pytest
import tiny
import torch
from accelerate import debug_launcher
from torch.nn.parallel import DistributedDataParallel

from modeling_cobert.training.gradient_cache import encoder_in_chunks


def gradients(model, batches, chunk_size=None, seed=3):
    model.zero_grad()
    torch.manual_seed(seed)
    losses = []
    with encoder_in_chunks(model, chunk_size):
        for batch in batches:
            loss = model(**batch).loss
            loss.backward()
            losses.append(loss.item())
    return losses, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_equal(one, other):
    assert one[0] == pytest.approx(other[0], abs=1e-6)
    assert one[1].keys() == other[1].keys()
    for name, gradient in one[1].items():
        torch.testing.assert_close(other[1][name], gradient, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def without_dropout(**fields):
    return {
        f"{part}_config": tiny.bert_config(
            *shape, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1
        )
        for part, shape in {"encoder": (5, 4, 40), "calibrator": (1, 3, 28), "scorer": (2, 2, 36)}.items()
    } | fields


@pytest.mark.parametrize("variant", ["full", "scorer", "neither", "release"])
@pytest.mark.parametrize("chunk_size", [1, 6, 1000])
def test_equals_the_plain_step(variant, chunk_size):
    """In training mode, without dropout; 6 does not divide the number of pairs; two batches accumulate."""
    model = tiny.model(**without_dropout(**tiny.VARIANTS[variant])).train()
    batches = [tiny.batch(m=model.num_prototypes, seed=seed) for seed in (1, 2)]
    plain = gradients(model, batches)
    assert any(gradient.abs().max() > 1e-3 for name, gradient in plain[1].items() if name.startswith("encoder."))
    assert_equal(plain, gradients(model, batches, chunk_size))


def test_replays_dropout(monkeypatch):
    """With dropout: equal to the same chunks with their graphs kept, where nothing is run a second time."""
    model = tiny.model().train()
    batches = [tiny.batch()]
    cached = gradients(model, batches, chunk_size=6)
    encode = model.encode

    def keep_graphs(input_ids, attention_mask, token_type_ids, recorder, inputs_embeds=None):
        chunks = zip(*(x.split(6) for x in (input_ids, attention_mask, token_type_ids)), strict=True)
        return torch.cat([encode(*chunk) for chunk in chunks])

    monkeypatch.setattr(model, "encode", keep_graphs)
    kept = gradients(model, batches)
    assert_equal(kept, cached)
    assert kept[0] != gradients(model, batches, seed=4)[0], "dropout did nothing"


def test_keeps_fewer_activations():
    model = tiny.model().train()
    batch = tiny.batch()

    def kept(chunk_size):
        total = 0

        def pack(tensor):
            nonlocal total
            total += tensor.numel() * tensor.element_size()
            return tensor

        with encoder_in_chunks(model, chunk_size), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            model(**batch)
        return total

    assert kept(2) < kept(None) / 2


def test_leaves_the_model_as_it_was():
    model = tiny.model()
    batch = tiny.batch()
    before = model(**batch).logits
    with encoder_in_chunks(model, 3):
        torch.testing.assert_close(model(**batch).logits, before, atol=1e-5, rtol=0)
        assert model(**batch, output_hidden_states=True).encoder_hidden_states[0].shape[0] == before.shape[0] * (
            tiny.M + tiny.N
        )
    assert "encode" not in vars(model)
    with pytest.raises(ValueError, match="at least 1"), encoder_in_chunks(model, 0):
        pass


def under_ddp():
    """Two processes, two accumulated batches each: the mean over all four, as one process computes it plainly."""
    rank = torch.distributed.get_rank()
    model = tiny.model(**without_dropout()).train()
    batches = [tiny.batch(seed=seed) for seed in range(4)]
    expected = {name: g / 2 for name, g in gradients(model, batches)[1].items()}
    model.zero_grad()
    wrapped = DistributedDataParallel(model)
    mine = batches[2 * rank : 2 * rank + 2]
    with encoder_in_chunks(model, 6):
        with wrapped.no_sync():
            wrapped(**mine[0]).loss.backward()
        wrapped(**mine[1]).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], atol=1e-5, rtol=1e-4, msg=name)


def test_under_ddp_and_accumulation():
    debug_launcher(under_ddp, num_processes=2)
