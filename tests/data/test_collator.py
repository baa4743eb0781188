"""The collator against tensors written out by hand, and against the tokens that `rerank` reads."""

import copy
import math

import pytest
import torch
from transformers import BertTokenizer

from modeling_cobert import CoBertConfig, CoBertForGroupwiseRanking
from modeling_cobert.data.collator import GroupCollator
from modeling_cobert.passages_cobert import PairTokenizer

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a b cat dog eel ##s fox é ! the".split()
VALUE = {"teacher_scores": [-3e38]}
PAD, UNK, CLS, SEP, _, A, B, CAT, DOG, EEL, S, FOX, E_ACUTE, BANG, THE = range(len(WORDS))


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer(vocab={word: index for index, word in enumerate(WORDS)})


def group(query_id="q1", query="cat", prototypes=("dog",), candidates=("eels", "the fox"), grades=(1, 0), number=0):
    """As a `GroupView` gives it."""
    return {
        "group": number,
        "query_id": query_id,
        "query": query,
        "prototype_passages": list(prototypes),
        "passages": list(candidates),
        "grades": list(grades),
    }


def collate(tokenizer, max_length, num_prototypes=4, with_query_ids=False):
    return GroupCollator(PairTokenizer(tokenizer, max_length), num_prototypes, with_query_ids)


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
    groups = [
        group("q1", "cat", ["dog"], ["eels", "the fox"], [2, 0]),
        group("q2", "dog cat", ["a", "b", "fox"], ["fox"], [None], number=3),
    ]
    batch = collate(tokenizer, max_length=10, num_prototypes=2)(groups)
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
    batch = collate(tokenizer, max_length=10, num_prototypes=0)([group()])
    assert batch["input_ids"].tolist() == [[[CLS, CAT, SEP, EEL, S, SEP], [CLS, CAT, SEP, THE, FOX, SEP]]]
    assert batch["document_mask"].tolist() == [[1, 1]]


def test_only_the_passage_is_cut_and_special_tokens_are_text(tokenizer):
    collator = collate(tokenizer, max_length=7, num_prototypes=0)
    batch = collator([group(query="the cat", candidates=["fox fox fox fox", "[SEP] fox", ""], grades=[0, 0, 0])])
    assert batch["input_ids"][0].tolist() == [
        [CLS, THE, CAT, SEP, FOX, FOX, SEP],
        [CLS, THE, CAT, SEP, UNK, UNK, SEP],  # "[", "SEP" and "]" are three unknown words, not a separator
        [CLS, THE, CAT, SEP, SEP, PAD, PAD],
    ]


def test_errors_name_the_query(tokenizer):
    collator = collate(tokenizer, max_length=6, num_prototypes=1)
    with pytest.raises(ValueError, match=r"query 'q9', group 0: the query has 4 tokens"):
        collator([group("q9", "cat cat cat cat")])
    with pytest.raises(ValueError, match=r"query 'q7', group 2: a group without candidates"):
        collator([group("q7", candidates=[], grades=[], number=2)])
    with pytest.raises(ValueError, match=r"query 'q8'"):
        collator([group("q8", candidates=["cat", None])])
    with pytest.raises(ValueError, match=r"query 'q8', group 0: a passage is no string"):
        collator([group("q8", candidates=["cat", None])])
    for grades in ([1], [1, 0, 0]):
        with pytest.raises(ValueError, match=rf"query 'q1', group 0: it has {len(grades)} grades, but 2 passages"):
            collator([group(grades=grades)])
    with pytest.raises(ValueError, match=r"query 'q1', group 0: it has 2 grades, but 3 teacher_scores"):
        collator([group() | {"teacher_scores": [1.0, 2.0, 3.0]}])
    with pytest.raises(ValueError, match=r"query 'q1', group 0: it has no grades"):
        collator([{key: value for key, value in group().items() if key != "grades"}])
    with pytest.raises(ValueError, match="at least one group"):
        collator([])


def test_a_grade_is_never_mistaken_for_no_label(tokenizer):
    batch = collate(tokenizer, max_length=10, num_prototypes=0)([group(grades=[-100, -2])])
    assert batch["labels"].tolist() == [[-1, -1]]


@pytest.mark.parametrize("query", ["the cat!", "É dogs\u00a0 cat", "e\u0301 \u200bcat \ud800 dog"])
def test_tokens_are_those_of_rerank(tokenizer, query, monkeypatch):
    """Passages cut from documents by `rerank` and passages of a group, given as text, are the same token ids."""
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
    collator = collate(tokenizer, max_length=18, num_prototypes=0)
    cut = collator.pairs.cut(documents, 5, 2)
    batch = collator([group("q", query, [], [document.text(0) for document in cut], [0] * 4)])
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
    collator = collate(tokenizer, max_length=18, num_prototypes=2)
    small = group("q1", "cat", ["dog"], ["eels"], [1])
    large = group("q2", "the dog", ["a", "b"], ["fox", "cat cat cat cat", "a"], [0, 1, 0])
    together, alone = model(**collator([small, large])), model(**collator([small]))
    torch.testing.assert_close(together.logits[0, :1], alone.logits[0], atol=1e-5, rtol=0)
    together.loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_exact_vectors():
    """The layout is that of tokens: prototypes, then candidates, zeros for padding; no tokenizer is needed."""
    groups = [
        {"query_id": "q1", "query": None, "prototype_vectors": torch.tensor([[1.0, 2.0]]), "grades": [2, 0]}
        | {"vectors": torch.tensor([[3.0, 4.0], [5.0, 6.0]])},
        {"query_id": "q2", "query": None, "prototype_vectors": torch.arange(6.0).view(3, 2), "grades": [None]}
        | {"vectors": torch.tensor([[7.0, 8.0]])},
    ]
    batch = GroupCollator(None, num_prototypes=2)(groups)
    assert set(batch) == {"vectors", "document_mask", "labels"}
    assert batch["vectors"].tolist() == [
        [[1.0, 2.0], [0.0, 0.0], [3.0, 4.0], [5.0, 6.0]],
        [[0.0, 1.0], [2.0, 3.0], [7.0, 8.0], [0.0, 0.0]],
    ]
    assert batch["document_mask"].tolist() == [[1, 0, 1, 1], [1, 1, 1, 0]]
    assert batch["labels"].tolist() == [[2, 0], [-100, -100]]
    without = GroupCollator(None, num_prototypes=0)(groups)
    assert without["vectors"].tolist() == [[[3.0, 4.0], [5.0, 6.0]], [[7.0, 8.0], [0.0, 0.0]]]
    with pytest.raises(ValueError, match="query 'q1', group None: a group without candidates"):
        GroupCollator(None)([{**groups[0], "grades": [], "vectors": torch.empty(0, 2)}])


def test_exact_teacher_scores(tokenizer):
    """Beside the labels, in single precision; no number where there is no score, nor where there is no candidate."""
    taught = [group() | {"teacher_scores": [1.5, math.nan]}, group(candidates=["a"], grades=[None]) | VALUE]
    batch = collate(tokenizer, max_length=10)(taught)
    untaught = collate(tokenizer, max_length=10)([{k: v for k, v in g.items() if "teacher" not in k} for g in taught])
    scores = batch.pop("teacher_scores")
    assert batch.keys() == untaught.keys() and all(torch.equal(batch[name], untaught[name]) for name in batch)
    expected = torch.tensor([[1.5, math.nan], [-3e38, math.nan]])
    torch.testing.assert_close(scores, expected, rtol=0, atol=0, equal_nan=True)
    vectors = {"prototype_vectors": torch.ones(1, 2), "vectors": torch.ones(2, 2)}
    batch = GroupCollator(None, num_prototypes=1)([taught[0] | vectors])
    assert set(batch) == {"vectors", "document_mask", "labels", "teacher_scores"}
    torch.testing.assert_close(batch["teacher_scores"], expected[:1], rtol=0, atol=0, equal_nan=True)


def test_vectors_in_place_of_tokens(tokenizer):
    model = tiny_model(num_prototypes=1)
    batch = collate(tokenizer, max_length=18, num_prototypes=1)([group(), group("q2", "fox")])
    names = ("input_ids", "attention_mask", "token_type_ids")
    vectors = model.encode(*(batch[name].flatten(0, 1) for name in names)).view(2, 3, -1)
    rest = {name: batch[name] for name in ("document_mask", "labels")}
    assert torch.equal(model(vectors=vectors, **rest).logits, model(**batch).logits)
    given = [
        {"query_id": q, "prototype_vectors": v[:1], "vectors": v[1:], "grades": [1, 0]}
        for q, v in zip(("q1", "q2"), vectors, strict=True)
    ]
    collated = GroupCollator(None, num_prototypes=1)(given)
    assert all(torch.equal(collated[name], rest[name]) for name in rest)
    assert torch.equal(model(**collated).logits, model(**batch).logits)
    with pytest.raises(ValueError, match="only one of them"):
        model(vectors=vectors, **batch)
    with pytest.raises(ValueError, match="only one of them"):
        model(**rest)


def test_query_ids(tokenizer):
    collator = copy.deepcopy(collate(tokenizer, max_length=18, with_query_ids=True))
    assert collator([group("q1"), group("q2")])["query_ids"] == ["q1", "q2"]
