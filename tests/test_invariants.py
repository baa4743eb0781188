"""A short walk through random models: nothing changes a ranking that must not (`make invariants` goes on)."""

import random

import invariants
import memory_growth
import pytest
import random_models
import torch

from modeling_cobert import CoBertForGroupwiseRanking


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    return random_models.Sandbox(tmp_path_factory.mktemp("sandbox"))


@pytest.mark.parametrize("name", [name for name in invariants.CHECKS if name != "process"])
def test_nothing_changes_a_ranking_that_must_not(name, sandbox):
    for number in range(1 if name == "together" else 3):
        case = random_models.Case(number, random.Random(number), sandbox)
        assert invariants.CHECKS[name][0](case) == "", number


def test_another_process_ranks_in_the_same_way(sandbox):
    for number in range(3):
        assert invariants.check_process(random_models.Case(number, random.Random(number), sandbox)) == ""
    assert invariants.other_process(sandbox.folder / "questions") == []


def test_random_models_tell_documents_apart(sandbox):
    """By hundreds of what may be rounding, or nothing could be seen to change their rankings."""
    for number in range(20):
        case = random_models.Case(number, random.Random(number), sandbox)
        ranking = case.model().rerank("how do bees see", ["bees see blue", "red car", "honey light flower", "road"])
        assert ranking[0]["score"] - ranking[-1]["score"] > 500 * invariants.TOLERANCE


def faults(name: str, sandbox, cases: int = 8) -> int:
    found = 0
    for number in range(cases):
        found += invariants.CHECKS[name][0](random_models.Case(number, random.Random(number), sandbox)) != ""
    return found


def test_the_search_finds_padding_that_is_read(sandbox, monkeypatch):
    score = CoBertForGroupwiseRanking.score

    def unmasked(self, vectors, mask=None, *args, **inputs):
        return score(self, vectors, None, *args, **inputs)

    monkeypatch.setattr(CoBertForGroupwiseRanking, "score", unmasked)
    assert faults("padding", sandbox)


def test_the_search_finds_a_model_that_remembers(sandbox, monkeypatch):
    """A last digit that depends on what was ranked before."""
    encode = CoBertForGroupwiseRanking.encode

    def remembers(self, *args, **inputs):
        self.calls = getattr(self, "calls", 0) + 1
        return encode(self, *args, **inputs) * (1 + 1e-6 * self.calls)

    monkeypatch.setattr(CoBertForGroupwiseRanking, "encode", remembers)
    assert faults("used", sandbox)


def test_the_search_finds_places_that_are_read(sandbox, monkeypatch):
    score = CoBertForGroupwiseRanking.score

    def by_place(self, vectors, *args, **inputs):
        return score(self, vectors, *args, **inputs) + 0.01 * torch.arange(vectors.shape[1])

    monkeypatch.setattr(CoBertForGroupwiseRanking, "score", by_place)
    assert faults("order", sandbox) and faults("given order", sandbox) and faults("equals", sandbox)


def test_memory_does_not_grow():
    found = memory_growth.growth(calls=150, warm_up=100, traced=150)
    assert memory_growth.faults(found) == []


def test_memory_that_grows_is_found(monkeypatch):
    kept, rank = [], memory_growth.rank

    def keeps(model, choose, calls):
        for _ in range(calls):
            rank(model, choose, 1)
            kept.append(bytearray(400))
            kept.append([kept[-1]])

    monkeypatch.setattr(memory_growth, "rank", keeps)
    found = memory_growth.growth(calls=150, warm_up=10, traced=30)
    assert {fault.split(":")[0] for fault in memory_growth.faults(found)} == {"objects", "bytes"}
