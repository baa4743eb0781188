"""The collator against tensors written out by hand, and against the tokens that `rerank` reads."""

import copy

import pytest
import torch
from transformers import BertTokenizer

from modeling_cobert import CoBertConfig, CoBertForGroupwiseRanking
from modeling_cobert.data.collator import GroupCollator

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a b cat dog eel ##s fox é ! the".split()
PAD, UNK, CLS, SEP, _, A, B, CAT, DOG, EEL, S, FOX, E_ACUTE, BANG, THE = range(len(WORDS))


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer(vocab={word: index for index, word in enumerate(WORDS)})


def row(query_id="q1", query="cat", prototypes=("dog",), candidates=("eels", "the fox"), grades=(1, 0), group=0):
    def part(name, passages, grades):
        ids = [f"{name[0]}{i}" for i in range(len(passages))]
        ranks = list(range(1, len(passages) + 1))
        scores = [float(-rank) for rank in ranks]
        values = {"ids": ids, "passages": list(passages), "ranks": ranks, "scores": scores, "grades": list(grades)}
        return {f"{name}_{key}": value for key, value in values.items()}

    return {
        "query_id": query_id,
        "query": query,
        "group": group,
        **part("prototype", prototypes, [0] * len(prototypes)),
        **part("candidate", candidates, grades),
    }


def tiny_model(**fields):
    torch.manual_seed(0)
    shape = {
        "vocab_size": len(WORDS),
        "hidden_size": 12,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 20,
        "max_position_embeddings": 40,
    }
    config = CoBertConfig(encoder_config=shape, max_length=18, passage_words=5, passage_overlap=2, **fields)
    return CoBertForGroupwiseRanking(config).eval()


def test_exact_tensors(tokenizer):
    """Two prototypes asked for, two groups of unequal size: everything that is padding is masked and unlabelled."""
    rows = [
        row("q1", "cat", ["dog"], ["eels", "the fox"], [2, 0]),
        row("q2", "dog cat", ["a", "b", "fox"], ["fox"], [None], group=3),
    ]
    batch = GroupCollator(tokenizer, max_length=10, num_prototypes=2)(rows)
    expected_ids = [
        [[CLS, CAT, SEP, DOG, SEP, PAD], [PAD] * 6, [CLS, CAT, SEP, EEL, S, SEP], [CLS, CAT, SEP, THE, FOX, SEP]],
        [[CLS, DOG, CAT, SEP, A, SEP], [CLS, DOG, CAT, SEP, B, SEP], [CLS, DOG, CAT, SEP, FOX, SEP], [PAD] * 6],
    ]
    expected_mask = [
        [[1, 1, 1, 1, 1, 0], [0] * 6, [1] * 6, [1] * 6],
        [[1] * 6, [1] * 6, [1] * 6, [0] * 6],
    ]
    expected_types = [
        [[0, 0, 0, 1, 1, 0], [0] * 6, [0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1]],
        [[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1], [0] * 6],
    ]
    assert set(batch) == {"input_ids", "attention_mask", "token_type_ids", "document_mask", "labels"}
    assert batch["input_ids"].tolist() == expected_ids
    assert batch["attention_mask"].tolist() == expected_mask
    assert batch["token_type_ids"].tolist() == expected_types
    assert batch["document_mask"].tolist() == [[1, 0, 1, 1], [1, 1, 1, 0]]
    assert batch["labels"].tolist() == [[2, 0], [-100, -100]]
    assert all(tensor.dtype == torch.long for tensor in batch.values())


def test_no_calibrator_no_prototypes(tokenizer):
    batch = GroupCollator(tokenizer, max_length=10, num_prototypes=0)([row()])
    assert batch["input_ids"].tolist() == [[[CLS, CAT, SEP, EEL, S, SEP], [CLS, CAT, SEP, THE, FOX, SEP]]]
    assert batch["document_mask"].tolist() == [[1, 1]]


def test_only_the_passage_is_cut_and_special_tokens_are_text(tokenizer):
    collator = GroupCollator(tokenizer, max_length=7, num_prototypes=0)
    batch = collator([row(query="the cat", candidates=["fox fox fox fox", "[SEP] fox", ""], grades=[0, 0, 0])])
    assert batch["input_ids"][0].tolist() == [
        [CLS, THE, CAT, SEP, FOX, FOX, SEP],
        [CLS, THE, CAT, SEP, UNK, UNK, SEP],  # "[", "SEP" and "]" are three unknown words, not a separator
        [CLS, THE, CAT, SEP, SEP, PAD, PAD],
    ]


def test_errors_name_the_query(tokenizer):
    collator = GroupCollator(tokenizer, max_length=6, num_prototypes=1)
    with pytest.raises(ValueError, match=r"query 'q9', group 0: the query has 4 tokens"):
        collator([row("q9", "cat cat cat cat")])
    with pytest.raises(ValueError, match=r"query 'q7', group 2: a group without candidates"):
        collator([row("q7", candidates=[], grades=[], group=2)])
    with pytest.raises(ValueError, match=r"query 'q8'"):
        collator([row("q8", candidates=["cat", None])])
    with pytest.raises(ValueError, match="at least one group"):
        collator([])


def test_a_grade_is_never_mistaken_for_no_label(tokenizer):
    batch = GroupCollator(tokenizer, max_length=10, num_prototypes=0)([row(grades=[-100, -2])])
    assert batch["labels"].tolist() == [[-1, -1]]


@pytest.mark.parametrize("query", ["the cat!", "É dogs\u00a0 cat", "e\u0301 \u200bcat \ud800 dog"])
def test_tokens_are_those_of_rerank(tokenizer, query, monkeypatch):
    """Passages cut from documents by `rerank` and passages of a row, given as text, are the same token ids."""
    model = tiny_model(selector="first-stage", group_size=5, group_overlap=1, num_prototypes=2)
    documents = ["the cats, dogs! fox é eel a b", "É e\u0301\u0301 cat!dog \u200b fox", "", "\ufeffdog [SEP] eels"]
    read = []
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda **batch: read.append(batch) or encode(**batch))
    model.rerank(query, documents, tokenizer=tokenizer)
    seen = {
        tuple(ids[mask.bool()].tolist()) + tuple(types[mask.bool()].tolist())
        for batch in read
        for ids, mask, types in zip(
            *(batch[k] for k in ("input_ids", "attention_mask", "token_type_ids")), strict=True
        )
    }
    collator = GroupCollator(tokenizer, max_length=18, num_prototypes=0)
    cut = collator.pairs.cut(documents, 5, 2)
    batch = collator([row("q", query, [], [document.text(0) for document in cut], [0] * 4)])
    made = {
        tuple(ids[mask.bool()].tolist()) + tuple(types[mask.bool()].tolist())
        for ids, mask, types in zip(
            *(batch[k][0] for k in ("input_ids", "attention_mask", "token_type_ids")), strict=True
        )
    }
    assert made == seen


def test_padding_changes_no_score_and_no_gradient(tokenizer):
    """A small group beside a larger one, with a prototype missing, scores as it does alone; nothing becomes NaN."""
    model = tiny_model(num_prototypes=2)
    collator = GroupCollator(tokenizer, max_length=18, num_prototypes=2)
    small = row("q1", "cat", ["dog"], ["eels"], [1])
    large = row("q2", "the dog", ["a", "b"], ["fox", "cat cat cat cat", "a"], [0, 1, 0])
    together, alone = model(**collator([small, large])), model(**collator([small]))
    torch.testing.assert_close(together.logits[0, :1], alone.logits[0], atol=1e-5, rtol=0)
    together.loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_vectors_in_place_of_tokens(tokenizer):
    model = tiny_model(num_prototypes=1)
    batch = GroupCollator(tokenizer, max_length=18, num_prototypes=1)([row(), row("q2", "fox")])
    names = ("input_ids", "attention_mask", "token_type_ids")
    vectors = model.encode(*(batch[name].flatten(0, 1) for name in names)).view(2, 3, -1)
    rest = {name: batch[name] for name in ("document_mask", "labels")}
    assert torch.equal(model(vectors=vectors, **rest).logits, model(**batch).logits)
    with pytest.raises(ValueError, match="either input_ids or vectors"):
        model(vectors=vectors, **batch)
    with pytest.raises(ValueError, match="either input_ids or vectors"):
        model(**rest)


def test_query_ids(tokenizer):
    collator = copy.deepcopy(GroupCollator(tokenizer, max_length=18, with_query_ids=True))
    assert collator([row("q1"), row("q2")])["query_ids"] == ["q1", "q2"]
