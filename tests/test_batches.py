"""Batches: bounded, complete, each distinct row once; several at the same time on a CPU, with the bytes of one."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from modeling_cobert.batches_cobert import in_threads, map_rows, one_thread_a_batch, token_batches
from modeling_cobert.passages_cobert import PairTokenizer, TokenRow


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> PairTokenizer:
    return PairTokenizer(tiny.tokenizer(tmp_path_factory.mktemp("tokenizer")), max_length=24)


@pytest.fixture
def three_threads():
    """As on a machine with three cores; set back, and looked at, in the end."""
    yield from threads_of_torch(3)


@pytest.fixture
def four_threads():
    yield from threads_of_torch(4)


def threads_of_torch(count: int):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert after == count


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(1, 100))
def test_batches_are_bounded_and_complete(lengths, batch_tokens):
    batches = list(token_batches(lengths, batch_tokens))
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[position] for position in batch)
        assert len(batch) == 1 or longest * len(batch) <= batch_tokens


def test_each_distinct_row_is_computed_once(pairs):
    rows = [TokenRow([2, 5, 3], 3), TokenRow([2, 6, 7, 3], 2), TokenRow([2, 5, 3], 3), TokenRow([2, 5, 3], 1)]
    seen, done = [], []

    def function(input_ids, attention_mask, token_type_ids):
        seen.extend(zip(input_ids.tolist(), token_type_ids.tolist(), strict=True))
        return (input_ids * attention_mask).sum(dim=1) + 100 * token_type_ids.sum(dim=1)

    result = map_rows(rows, pairs, function, "cpu", batch_tokens=8, advance=done.append)
    assert result.tolist() == [10, 18 + 200, 10, 10 + 200]
    assert len(seen) == 3 and sum(done) == 3


def test_items_are_worked_on_at_the_same_time(three_threads):
    meeting = threading.Barrier(3, timeout=30)  # breaks unless three arrive

    def meet(item):
        meeting.wait()
        return item, torch.get_num_threads()

    assert list(in_threads(meet, range(6), "cpu")) == [(item, 1) for item in range(6)]


@pytest.mark.parametrize("how", [("meta", False), ("cpu", True)])
def test_elsewhere_one_after_the_other(three_threads, how):
    here = threading.get_ident()
    assert list(in_threads(lambda item: (item, threading.get_ident()), "ab", *how)) == [("a", here), ("b", here)]


def test_threads_have_the_settings_of_their_caller(three_threads):
    def settings(item):
        product = torch.ones(2, 2, requires_grad=True) @ torch.ones(2, 2)
        return product.dtype, product.requires_grad, product.is_inference()

    assert set(in_threads(settings, range(4), "cpu")) == {(torch.float32, True, False)}
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert set(in_threads(settings, range(4), "cpu")) == {(torch.bfloat16, False, False)}
    with torch.inference_mode():
        assert set(in_threads(settings, range(4), "cpu")) == {(torch.float32, False, True)}


def test_an_error_of_one_item_is_raised_and_ends_the_rest(three_threads):
    done = []

    def fail(item):
        done.append(item)
        if item == 1:
            raise ValueError("item 1")
        return item

    with pytest.raises(ValueError, match="item 1"):
        list(in_threads(fail, range(1000), "cpu"))
    assert len(done) < 20


def test_one_thread_a_batch_knows_how_many_there_were_however_deep(three_threads):
    with one_thread_a_batch() as outer:
        with one_thread_a_batch() as inner:
            assert (outer, inner, torch.get_num_threads()) == (3, 3, 1)
    assert torch.get_num_threads() == 3


def test_the_number_of_threads_changes_no_bit(tmp_path, three_threads):
    """Of a whole ranking: wide enough for several threads to share a product, many batches."""
    parts = {"encoder_config": (2, 4), "calibrator_config": (2, 2), "scorer_config": (2, 3)}
    wide = {name: tiny.bert_config(*sizes, 300, hidden_size=192) for name, sizes in parts.items()}
    model = tiny.model(**wide)
    model.tokenizer = tiny.tokenizer(tmp_path)
    documents = [" ".join(["bees", "see", "the", "flower"][: 1 + i % 4] * (1 + i % 5)) for i in range(40)]
    found, at_work = [], []
    for part in (model.encoder, model.calibrator, model.scorer):
        part.register_forward_hook(lambda *_: at_work.append((torch.get_num_threads(), threading.get_ident())))
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        at_work.clear()
        found.append(model.rerank("bees see", documents, batch_tokens=256))
        assert torch.get_num_threads() == threads
        assert {number for number, _ in at_work} == {1}
        assert threads > 1 or len({thread for _, thread in at_work}) == 1
    assert found[0] == found[1] == found[2]


def test_whoever_ranks_at_the_same_time_changes_no_bit(tmp_path, four_threads):
    """One that is done first must not give its threads back while others still rank."""
    model = tiny.model(selector="self")
    model.tokenizer = tiny.tokenizer(tmp_path)
    jobs = [[" ".join(random.Random(i * 99 + j).choices(tiny.WORDS, k=12)) for j in range(20 + i)] for i in range(8)]
    alone = [model.rerank("bees see", documents) for documents in jobs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(15):
            assert list(pool.map(lambda documents: model.rerank("bees see", documents), jobs)) == alone


def test_one_who_leaves_first_has_its_threads_back_the_next_time(three_threads):
    inside, may_leave = threading.Event(), threading.Event()

    def stay():
        with one_thread_a_batch():
            inside.set()
            may_leave.wait(30)

    other = threading.Thread(target=stay)
    with one_thread_a_batch() as before:
        other.start()
        assert inside.wait(30) and before == 3
    may_leave.set()
    other.join()
    with one_thread_a_batch() as again:
        assert again == 3
    assert torch.get_num_threads() == 3
