"""Words, passages and token rows: tokenised once, and equal to what the tokenizer itself would say."""

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from modeling_cobert.passages_cobert import PairTokenizer, split_document

LONG = (
    "Bees see the light, and the flower! Honey-car blue   green\tfast xyz [SEP] slow\n\nred of road wheel drive in a"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tiny.tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def pairs(tokenizer):
    return PairTokenizer(tokenizer, max_length=24)


def test_passages_are_slices_of_one_tokenisation(pairs, tokenizer):
    (document,) = pairs.cut([LONG], passage_words=6, passage_overlap=2)
    assert [end - start for start, end in document.spans][:-1] == [6] * (len(document.spans) - 1)
    for passage in range(len(document.spans)):
        text = document.text(passage)
        alone = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert document.tokens(passage) == alone
    assert " ".join(document.text(0).split()) == document.text(0) == "Bees see the light, and the"


@given(st.text(alphabet=st.sampled_from("ab c\u0301é\u200b\u3000\x00\x1f中文\ud800!\n\u2028🐝"), max_size=60))
def test_any_text(pairs, tokenizer, text):
    (document,) = pairs.cut([text], passage_words=3, passage_overlap=1)
    assert document.spans[-1][1] == len(document.body.words)
    for passage in range(len(document.spans)):
        alone = tokenizer(document.text(passage), add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert document.tokens(passage) == alone


def test_empty_documents_are_one_empty_passage(pairs):
    for empty in ("", "  \n", {"text": ""}, {"title": None, "text": ""}):
        (document,) = pairs.cut([empty], 6, 2)
        assert document.spans == [(0, 0)] and document.tokens(0) == [] and document.text(0) == ""
    assert pairs.cut([], 6, 2) == []


def test_titles(pairs):
    document = {"title": "the sky", "text": "bees see light honey flower red blue"}
    (first,), (every,) = pairs.cut([document], 4, 1), pairs.cut([document], 4, 1, passage_title=True)
    assert [first.text(i) for i in range(len(first.spans))] == [
        "the sky bees see",
        "see light honey flower",
        "flower red blue",
    ]
    assert [every.text(i) for i in range(len(every.spans))] == [
        "the sky bees see light honey",
        "the sky honey flower red blue",
    ]
    assert every.tokens(1) == pairs.tokenize([every.text(1)])[0].ids


@pytest.mark.parametrize("document", [3, None, ["a"], {"title": "x"}, {"text": 3}, {"text": "a", "title": 5}])
def test_what_is_no_document(document):
    with pytest.raises(TypeError, match="document 5 must"):
        split_document(document, 5)


def test_pairs_equal_the_tokenizers_own(pairs, tokenizer):
    query, passage = "how do bees see colour", "bees see red light"
    row = pairs.pair(pairs.query(query), pairs.tokenize([passage])[0].ids)
    expected = tokenizer(query, passage)
    batch = pairs.pad([row])
    assert batch["input_ids"][0].tolist() == expected["input_ids"]
    assert batch["token_type_ids"][0].tolist() == expected["token_type_ids"]
    assert batch["attention_mask"][0].tolist() == expected["attention_mask"]
    single = pairs.single(pairs.tokenize([passage])[0].ids)
    assert single.ids == tokenizer(passage)["input_ids"] and single.second == len(single)


def test_only_the_passage_is_truncated(pairs, tokenizer):
    query, passage = "how do bees see colour", " ".join(["honey"] * 50)
    row = pairs.pair(pairs.query(query), pairs.tokenize([passage])[0].ids)
    expected = tokenizer(query, passage, truncation="only_second", max_length=24)
    assert row.ids == expected["input_ids"] and len(row) == 24


def test_a_query_that_leaves_no_room_is_an_error(pairs):
    assert len(pairs.query("bees " * 20)) == 20
    with pytest.raises(ValueError, match="query has 21 tokens, but a row of 24 has room for 20"):
        pairs.query("bees " * 21)
    with pytest.raises(TypeError, match="query must be a string"):
        pairs.query(None)
    assert pairs.query("") == []


def test_special_tokens_in_text_are_plain_text(pairs, tokenizer):
    ids = pairs.tokenize(["[SEP] [PAD] [CLS] [MASK]"])[0].ids
    assert not set(ids) & {
        tokenizer.sep_token_id,
        tokenizer.pad_token_id,
        tokenizer.cls_token_id,
        tokenizer.mask_token_id,
    }


def test_a_tokenizer_that_is_no_bert():
    """Templates are read off the tokenizer: here one that wraps pairs as <s> a </s> </s> b </s>."""
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<s>", "</s>", "<unk>", "a", "b", "bees", "see"]
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>")
    pairs = PairTokenizer(tokenizer, 9)
    row = pairs.pair(pairs.query("bees"), pairs.tokenize(["see bees see bees see"])[0].ids)
    assert row.ids == [1, 6, 2, 2, 7, 6, 7, 6, 2]
    assert torch.equal(pairs.pad([row])["input_ids"][0], torch.tensor(row.ids))
