"""What transformers, accelerate and peft expect of every model, in every variant: the model is an ordinary one."""

import copy
import inspect
import pickle

import pytest
import tiny
import torch
from torch.testing import assert_close
from transformers import AutoConfig, AutoModel
from transformers.initialization import no_init_weights

from modeling_cobert import CoBertConfig, CoBertForGroupwiseRanking

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
PARTS = ("encoder_config", "calibrator_config", "scorer_config")
every_variant = pytest.mark.parametrize("variant", tiny.VARIANTS)


def make(variant: str = "full", **fields) -> tuple[CoBertForGroupwiseRanking, dict[str, torch.Tensor]]:
    """A tiny model of a variant, and a batch for it."""
    model = tiny.model(**{**tiny.VARIANTS[variant], **fields})
    return model, tiny.batch(m=model.num_prototypes)


def parts_in_use(model) -> list[str]:
    return [name for name in ("encoder", "calibrator", "scorer") if getattr(model, name) is not None]


def without_dropout(config: CoBertConfig) -> CoBertConfig:
    for name in PARTS:
        getattr(config, name).hidden_dropout_prob = getattr(config, name).attention_probs_dropout_prob = 0.0
    return config


# The call


def test_forward_signature():
    names = list(inspect.signature(CoBertForGroupwiseRanking.forward).parameters)
    assert names[:4] == ["self", "input_ids", "attention_mask", "token_type_ids"]
    assert {"labels", "inputs_embeds", "output_hidden_states", "output_attentions"} <= set(names)
    assert not {"head_mask", "kwargs"} & set(names)  # a misspelt argument is an error, not silence
    assert CoBertForGroupwiseRanking.config_class is CoBertConfig
    assert CoBertForGroupwiseRanking.main_input_name == "input_ids"
    with pytest.raises(TypeError, match="document_masks"):
        tiny.model()(**tiny.batch(), document_masks=None)


@every_variant
@torch.no_grad()
def test_determinism(variant):
    model, batch = make(variant)
    assert torch.equal(model(**batch).logits, model(**batch).logits)
    model.train()
    assert not torch.equal(model(**batch).logits, model(**batch).logits)  # dropout


@every_variant
@torch.no_grad()
def test_dummy_inputs_run(variant):
    model, _ = make(variant)
    assert model.dummy_inputs["input_ids"].shape == (2, model.num_prototypes + 2, 5)
    assert model(**model.dummy_inputs).logits.shape == (2, 2)


@every_variant
@torch.no_grad()
def test_inputs_embeds_equal_input_ids(variant):
    model, batch = make(variant)
    expected = model(**batch)
    embeds = model.get_input_embeddings()(batch.pop("input_ids"))
    assert embeds.shape == (tiny.BATCH, model.num_prototypes + tiny.N, tiny.TOKENS, tiny.HIDDEN)
    output = model(inputs_embeds=embeds, **batch)
    assert_close(output.logits, expected.logits, **CLOSE)
    assert_close(output.loss, expected.loss, **CLOSE)


WRONG_SHAPES = {
    "input_ids": ((tiny.BATCH, tiny.TOKENS), r"`input_ids` .* \(batch, m \+ n, tokens\) .* found \(2, 11\)"),
    "attention_mask": ((tiny.BATCH, 10, 12), r"`attention_mask` .* = \(2, 10, 11\), found \(2, 10, 12\)"),
    "token_type_ids": ((20, tiny.TOKENS), r"`token_type_ids` .* = \(2, 10, 11\), found \(20, 11\)"),
    "document_mask": ((tiny.BATCH, tiny.N), r"`document_mask` .* \(batch, m \+ n\) = \(2, 10\), found \(2, 7\)"),
    "labels": ((tiny.BATCH, 10), r"`labels` .* \(batch, n\) = \(2, 7\), found \(2, 10\)"),
}


@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_wrong_shapes_are_told(name):
    model, batch = make()
    shape, message = WRONG_SHAPES[name]
    with pytest.raises(ValueError, match=message):
        model(**{**batch, name: torch.ones(shape, dtype=torch.long)})


def test_wrong_inputs_are_told():
    model, batch = make()
    ids = batch["input_ids"]
    for given in ({}, {"input_ids": ids, "vectors": torch.zeros(2, 10, 24)}):
        with pytest.raises(ValueError, match="pass either input_ids or vectors or inputs_embeds, and only one"):
            model(**given)
    with pytest.raises(ValueError, match=r"`vectors` .* hidden\) = \(any, any, 24\), found \(2, 10, 23\)"):
        model(vectors=torch.zeros(2, 10, 23))
    with pytest.raises(ValueError, match=r"`inputs_embeds` .* = \(any, any, any, 24\), found \(20, 11, 24\)"):
        model(inputs_embeds=torch.zeros(20, 11, 24))


# Outputs


@every_variant
def test_hidden_states_and_attentions(variant):
    model, batch = make(variant)
    model.set_attn_implementation("eager")
    pairs = tiny.BATCH * (model.num_prototypes + tiny.N)
    config = model.config.encoder_config
    for by_config in (False, True):
        model.config.output_hidden_states = model.config.output_attentions = by_config
        flags = {} if by_config else {"output_hidden_states": True, "output_attentions": True}
        output = model(**batch, **flags)
        assert [tuple(x.shape) for x in output.hidden_states] == [(pairs, tiny.TOKENS, tiny.HIDDEN)] * (
            config.num_hidden_layers + 1
        )
        shape = (pairs, config.num_attention_heads, tiny.TOKENS, tiny.TOKENS)
        assert [tuple(x.shape) for x in output.attentions] == [shape] * config.num_hidden_layers
        # The encoder's under two names, and each part's under its own.
        assert all(a is b for a, b in zip(output.hidden_states, output.encoder_hidden_states, strict=True))
        assert all(a is b for a, b in zip(output.attentions, output.encoder_attentions, strict=True))
        for part in ("calibrator", "scorer"):
            assert (f"{part}_hidden_states" in output) == (part in parts_in_use(model))
            assert (f"{part}_attentions" in output) == (part in parts_in_use(model))
        assert_close(torch.stack(output.attentions).sum(dim=-1), torch.ones(len(output.attentions), *shape[:3]))
    off = model(**batch, output_hidden_states=False, output_attentions=False)
    assert off.hidden_states is None and off.attentions is None


def test_gradients_reach_hidden_states_and_attentions():
    model, batch = make()
    model.set_attn_implementation("eager")
    output = model(**batch, output_hidden_states=True, output_attentions=True)
    kept = [output.hidden_states[0], output.attentions[0], output.scorer_attentions[-1]]
    for tensor in kept:
        tensor.retain_grad()
    output.logits.flatten()[0].backward()
    assert all(tensor.grad is not None and tensor.grad.abs().sum() > 0 for tensor in kept)


@every_variant
@torch.no_grad()
def test_tuples_hold_what_dicts_hold(variant):
    model, batch = make(variant)
    flags = {"output_hidden_states": True, "output_attentions": True}
    model.set_attn_implementation("eager")
    expected = model(**batch, **flags)
    by_argument = model(**batch, **flags, return_dict=False)
    model.config.return_dict = False
    by_config = model(**batch, **flags)
    for found in (by_argument, by_config):
        assert isinstance(found, tuple) and len(found) == len(expected.to_tuple())
        for one, other in zip(found, expected.to_tuple(), strict=True):
            assert_close(one, other, rtol=0, atol=0)
    assert model(**batch, return_dict=True).logits is not None


# Weights


@every_variant
def test_every_parameter_is_initialised(variant):
    """Built where memory is left as it was found, then initialised: every weight is finite, small or a constant."""
    config = tiny.config(**tiny.VARIANTS[variant])
    with no_init_weights():
        model = CoBertForGroupwiseRanking(config)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, 1e9)
        parameter._is_hf_initialized = False
    for module in model.modules():
        module._is_hf_initialized = False
    model.init_weights()
    for name, parameter in model.named_parameters():
        assert parameter.abs().max() < 5, name
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "LayerNorm" in name:
            assert (parameter == 1).all(), name


@every_variant
def test_loading_initialises_nothing(variant, tmp_path):
    """A checkpoint's weights are what is loaded, bit by bit; a missing one is told and started fresh."""
    model, _ = make(variant)
    model.save_pretrained(tmp_path)
    torch.manual_seed(1)
    loaded, info = CoBertForGroupwiseRanking.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    state = model.state_dict()
    assert loaded.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in loaded.state_dict().items())
    del state["classifier.weight"]
    model.save_pretrained(tmp_path / "part", True, state)  # transformers' order of arguments
    loaded, info = CoBertForGroupwiseRanking.from_pretrained(tmp_path / "part", output_loading_info=True)
    assert set(info["missing_keys"]) == {"classifier.weight"}
    assert 0 < loaded.classifier.weight.abs().max() < 5


@pytest.mark.parametrize("shards", ["1GB", "20KB"])
@torch.no_grad()
def test_sharded_or_not(shards, tmp_path):
    model, batch = make()
    model.save_pretrained(tmp_path, max_shard_size=shards)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shards == "20KB")
    for loaded in (
        CoBertForGroupwiseRanking.from_pretrained(tmp_path),
        AutoModel.from_pretrained(tmp_path),
        CoBertForGroupwiseRanking.from_pretrained(None, config=model.config, state_dict=model.state_dict()),
    ):
        assert torch.equal(loaded(**batch).logits, model(**batch).logits)


def test_weights_without_a_folder_have_no_source():
    model, _ = make()
    loaded = CoBertForGroupwiseRanking.from_pretrained(None, config=model.config, state_dict=model.state_dict())
    assert loaded.text_side.source is None
    with pytest.raises(ValueError, match="not loaded from a checkpoint"):
        loaded.find_tokenizer()


@every_variant
@torch.no_grad()
def test_resized_embeddings_load_again(variant, tmp_path):
    model, batch = make(variant)
    before = model(**batch).logits
    model.resize_token_embeddings(len(tiny.VOCAB) + 5)
    assert_close(model(**batch).logits, before, **CLOSE)
    model.save_pretrained(tmp_path)
    loaded = CoBertForGroupwiseRanking.from_pretrained(tmp_path)
    assert (
        loaded.get_input_embeddings().num_embeddings
        == loaded.config.get_text_config().vocab_size
        == 5 + len(tiny.VOCAB)
    )
    assert torch.equal(loaded(**batch).logits, model(**batch).logits)


# Training


@every_variant
def test_gradient_checkpointing(variant):
    """On: equal gradients, some work done twice. Off again: as if it had never been."""
    torch.manual_seed(0)
    model = CoBertForGroupwiseRanking(without_dropout(tiny.config(**tiny.VARIANTS[variant]))).train()
    batch, runs = tiny.batch(m=model.num_prototypes), []
    for part in parts_in_use(model):
        getattr(model, part).encoder.layer[0].attention.register_forward_hook(lambda *_: runs.append(1))

    def gradients():
        runs.clear()
        model.zero_grad()
        model(**batch).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}, len(runs)

    plain, once = gradients()
    model.gradient_checkpointing_enable()
    again, twice = gradients()
    model.gradient_checkpointing_disable()
    off, single = gradients()
    assert (twice, single) == (2 * once, once) and not model.is_gradient_checkpointing
    for name, gradient in plain.items():
        assert_close(again[name], gradient, rtol=1e-5, atol=1e-6)
        assert torch.equal(off[name], gradient)


@every_variant
def test_every_parameter_gets_a_gradient(variant):
    model, batch = make(variant)
    model.train()(**batch).loss.backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None]


@pytest.mark.parametrize("task", ["SEQ_CLS", "FEATURE_EXTRACTION", None])
def test_peft(task, tmp_path):
    peft = pytest.importorskip("peft")
    model, batch = make()
    expected = model(**batch).logits
    lora = peft.get_peft_model(model, peft.LoraConfig(task_type=task, r=2, target_modules=["query", "value"]))
    assert_close(lora(**batch).logits, expected, **CLOSE)  # an adapter begins as nothing
    lora.train()(**batch).loss.backward()
    assert {n for n, p in lora.named_parameters() if p.requires_grad} == {
        n for n, p in lora.named_parameters() if p.grad is not None
    }
    embeds = model.get_input_embeddings()(batch["input_ids"])
    others = {name: batch[name] for name in ("attention_mask", "token_type_ids", "document_mask")}
    assert_close(lora.eval()(inputs_embeds=embeds, **others).logits, expected, **CLOSE)
    lora.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(tiny.model(), tmp_path)
    assert_close(loaded(**batch).logits, expected, **CLOSE)


# Places and graphs


@every_variant
@torch.no_grad()
def test_sdpa_equals_eager(variant):
    model, batch = make(variant)
    logits = {}
    for implementation in ("sdpa", "eager"):
        model.set_attn_implementation(implementation)
        logits[implementation] = model(**batch).logits
    real = batch["document_mask"][:, model.num_prototypes :].bool()
    assert_close(logits["sdpa"][real], logits["eager"][real], **CLOSE)


SOME = {"encoder": "cpu", "calibrator": "disk", "prototype_weight": "cpu", "scorer": "cpu", "classifier": "disk"}
MOST = {"encoder": "disk", "calibrator": "cpu", "prototype_weight": "disk", "scorer": "disk", "classifier": "cpu"}
DOCUMENTS = ["bees see light " * 9, "car road", "", "honey flower"]


@pytest.mark.parametrize("device_map", ["auto", {"": "cpu"}, {"": "disk"}, SOME, MOST], ids=str)
@torch.no_grad()
def test_device_maps(device_map, tmp_path):
    """Wherever the weights lie, forward and `rerank` are the same."""
    folder, batch = tiny.checkpoint(tmp_path / "model"), tiny.batch()
    expected = CoBertForGroupwiseRanking.from_pretrained(folder)
    model = CoBertForGroupwiseRanking.from_pretrained(
        folder, device_map=device_map, offload_folder=tmp_path / "offload"
    )
    assert torch.equal(model(**batch).logits, expected(**batch).logits)
    for selector in ("lexical", "self"):
        ranking = model.rerank("bees see", DOCUMENTS, selector=selector)
        assert ranking == expected.rerank("bees see", DOCUMENTS, selector=selector)


@pytest.mark.parametrize("kind", ["cpu", "disk"])
@torch.no_grad()
def test_offload_hooks(kind, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    folder, batch = tiny.checkpoint(tmp_path / "model"), tiny.batch()
    expected, model = (CoBertForGroupwiseRanking.from_pretrained(folder) for _ in range(2))
    if kind == "cpu":
        accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    else:
        accelerate.disk_offload(model, tmp_path / "offload", execution_device=torch.device("cpu"))
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert torch.equal(model(**batch).logits, expected(**batch).logits)
    assert model.rerank("bees see", DOCUMENTS) == expected.rerank("bees see", DOCUMENTS)


@pytest.mark.parametrize("variant", ["full", "neither", "release"])
@torch.no_grad()
def test_torch_export(variant):
    """One graph for any number of groups, documents and tokens: no check looks at a value."""
    model, batch = make(variant)
    del batch["labels"]
    groups, tokens = (torch.export.Dim(name, min=2, max=64) for name in ("groups", "tokens"))
    # Where there are positions in a group, its size is part of the graph.
    documents = torch.export.Dim("documents", min=5, max=64) if variant != "release" else None
    shapes = {name: {0: groups, 1: documents, 2: tokens} for name in batch} | {
        "document_mask": {0: groups, 1: documents}
    }
    exported = torch.export.export(model, (), batch, dynamic_shapes=shapes, strict=False).module()
    size = tiny.N if documents is None else tiny.N + 3
    for other in (batch, tiny.batch(m=model.num_prototypes, n=size, groups=3, tokens=17)):
        other = {name: other[name] for name in batch}
        real = other["document_mask"][:, model.num_prototypes :].bool()
        assert_close(exported(**other).logits[real], model(**other).logits[real], **CLOSE)


# Configuration, copies


def fields(config) -> dict:
    """All but where it was loaded from."""
    return {name: value for name, value in config.to_dict().items() if name != "_name_or_path"}


@every_variant
def test_config_round_trip(variant, tmp_path):
    config = tiny.config(**tiny.VARIANTS[variant], output_attentions=True, return_dict=False)
    config.save_pretrained(tmp_path)
    for loaded in (CoBertConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        assert type(loaded) is CoBertConfig and fields(loaded) == fields(config)
        assert loaded.output_attentions is True and loaded.return_dict is False
    assert CoBertConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    assert CoBertConfig().to_dict() == CoBertConfig(**CoBertConfig().to_diff_dict()).to_dict()
    assert config.hidden_size == tiny.HIDDEN and config.get_text_config() is config.encoder_config
    for name in PARTS:
        part = getattr(config, name)
        part.save_pretrained(tmp_path / name)
        assert fields(type(part).from_pretrained(tmp_path / name)) == fields(part)


@torch.no_grad()
def test_copies_keep_the_tokenizer_and_drop_what_is_loaded_again(tmp_path):
    selector = str(tiny.bert_checkpoint(tmp_path / "selector", layers=2, labels=1))
    model = CoBertForGroupwiseRanking.from_pretrained(tiny.checkpoint(tmp_path / "model", selector=selector))
    model.remember_source(tmp_path / "model", token="hf_secret", revision="main")
    ranking = model.rerank("bees see", DOCUMENTS)
    assert model.text_side.selectors
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.text_side is not model.text_side and not other.text_side.selectors
        assert other.text_side.source == (str(tmp_path / "model"), {"revision": "main"})
        assert other.tokenizer is not None and other.tokenizer is not model.tokenizer
        assert other.rerank("bees see", DOCUMENTS) == ranking
    assert b"hf_secret" not in pickle.dumps(model)
    assert model.text_side.source[1]["token"] == "hf_secret" and model.text_side.selectors
    model.tokenizer = None
    assert model.tokenizer is None and model.find_tokenizer() is model.tokenizer
    assert not [name for name, _ in model.named_modules() if "text" in name]
    assert model.state_dict().keys() == tiny.model().state_dict().keys()
