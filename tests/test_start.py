"""Starting from what is known, content beside interaction: against plain loops, and every property of the model."""

import math

import pytest
import tiny
import torch
from huggingface_hub.errors import StrictDataclassError
from torch.testing import assert_close

from modeling_cobert import CoBertConfig, CoBertForGroupwiseRanking
from modeling_cobert.grouping_cobert import best_first, overlapping_spans, standardize, starting_scores
from modeling_cobert.passages_cobert import PairTokenizer
from modeling_cobert.reranking_cobert import encode_list
from modeling_cobert.start_cobert import standardize_rows
from modeling_cobert.training.trainer import part_of
from modeling_cobert.words_cobert import word_vectors

CLOSE = {"atol": 1e-5, "rtol": 0}
WEIGHTS, WIDTH = [0.7, -0.4, 1.3], 10
START = {"starting_weights": WEIGHTS}
CONTENT = {**START, "content_size": WIDTH, "neighbour_weight": 0.6, "selector": "a-bi-encoder"}
WORDS = {**START, "feedback_weight": 0.9}
CANDIDATES = ("labels", "starting_scores", "likeness")  # inputs that prototypes have no row in
NEAR = {**WORDS, "neighbour_weight": 0.6}
ALL = {**CONTENT, **WORDS}
PROMISING = {**NEAR, "neighbour_voters": "promising"}
BOTH = {**ALL, "neighbour_likeness": "both", "neighbour_voters": "promising"}
KINDS = pytest.mark.parametrize(
    "fields",
    [START, CONTENT, WORDS, NEAR, ALL, PROMISING, BOTH],
    ids=["start", "content", "words", "near", "all", "promising", "both"],
)
CONTEXT = {name: fields for name, fields in tiny.VARIANTS.items() if name != "neither"}


def model(variant: str, **fields) -> CoBertForGroupwiseRanking:
    """A tiny model whose context says something: its head does not stay at zero."""
    made = tiny.model(**tiny.VARIANTS[variant], **fields)
    torch.nn.init.normal_(made.classifier.weight, std=0.3)
    return made


def batch(made: CoBertForGroupwiseRanking, seed: int = 1) -> dict[str, torch.Tensor]:
    inputs = tiny.batch(m=made.num_prototypes, seed=seed)
    generator = torch.Generator().manual_seed(seed + 10)
    n = inputs["labels"].shape[1]
    inputs["starting_scores"] = torch.randn(tiny.BATCH, n, 2, generator=generator)
    if made.config.content_size:
        content = torch.randn(tiny.BATCH, made.num_prototypes + n, WIDTH, generator=generator)
        inputs["content"] = torch.nn.functional.normalize(content, dim=-1)
    if made.config.reads_words:
        words = torch.nn.functional.normalize(torch.rand(tiny.BATCH, n, 6, generator=generator), dim=-1)
        inputs["likeness"] = words @ words.transpose(1, 2)
    return inputs


@torch.no_grad()
def by_hand(made: CoBertForGroupwiseRanking, inputs: dict[str, torch.Tensor], group: int) -> list[float]:
    """The logits of one group's real candidates, one by one, from the encoder's vectors on."""
    m, real = made.num_prototypes, inputs["document_mask"][group].bool()
    pairs = {name: inputs[name][group] for name in ("input_ids", "attention_mask", "token_type_ids")}
    vectors = made.encode(**pairs)
    places = [place for place in range(m, len(vectors)) if real[place]]
    own = standardize([float(made.own_relevance(vectors[place])) for place in places])
    start = []
    for place, relevance in zip(places, own, strict=True):
        selector, first_stage = inputs["starting_scores"][group, place - m].tolist()
        start.append(WEIGHTS[0] * relevance + WEIGHTS[1] * selector + WEIGHTS[2] * first_stage)
    if made.config.feedback_weight:
        known, like = standardize(start), inputs["likeness"][group]
        best = sorted(range(len(places)), key=lambda i: -known[i])[: made.config.num_prototypes]
        shares = {i: math.exp(2 * known[i]) / sum(math.exp(2 * known[j]) for j in best) for i in best}
        votes = [sum(share * float(like[p - m, places[i] - m]) for i, share in shares.items()) for p in places]
        start = [s + 0.9 * vote for s, vote in zip(start, standardize(votes), strict=True)]
    joined = vectors
    if made.config.content_size and made.config.has_context:
        joined = vectors + inputs["content"][group] @ made.content.weight.T

    def alike(one: int, other: int) -> float:
        found = {}
        if made.config.content_size:
            found["content"] = float(inputs["content"][group, one] @ inputs["content"][group, other])
        if "likeness" in inputs:
            found["words"] = float(inputs["likeness"][group, one - m, other - m])
        if made.config.neighbour_likeness == "both":
            return (found["content"] + found["words"]) / 2
        return found["content" if made.config.content_size else "words"]

    if made.config.neighbour_weight:
        voices = [1.0] * len(places)
        if made.config.neighbour_voters == "promising":
            voices = [min(max(2 * value, 0.0), 1.0) for value in standardize(start)]
        voters, votes = list(zip(places, voices, start, strict=True)), []
        for place in places:
            others = [(voice * math.exp(20 * alike(place, p)), s) for p, voice, s in voters if p != place]
            total = sum(share for share, _ in others)
            equal = [(voice, s) for p, voice, s in voters if p != place]
            mean = sum(voice * s for voice, s in equal) / sum(voice for voice, _ in equal) if total else 0.0
            votes.append(round(sum(share * s for share, s in others) / total - mean, 9) if total else 0.0)
        start = [s + 0.6 * vote for s, vote in zip(start, standardize(votes), strict=True)]
    if not made.config.has_context:
        return start
    candidates = joined[places].unsqueeze(0)
    prototypes = [place for place in range(m) if real[place]]
    if made.config.use_calibrator:
        relevance = made.own_relevance(vectors[prototypes]).unsqueeze(0)
        candidates, _ = made.calibrate(joined[prototypes].unsqueeze(0), candidates, relevance=relevance)
    context = made.score(candidates)[0].tolist()
    return [s + c for s, c in zip(start, context, strict=True)]


@KINDS
@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_forward_equals_plain_loops(variant, fields):
    made = model(variant, **fields)
    inputs = batch(made)
    logits = made(**inputs).logits
    for group in range(tiny.BATCH):
        real = inputs["document_mask"][group, made.num_prototypes :].bool()
        assert_close(logits[group][real].detach(), torch.tensor(by_hand(made, inputs, group)), **CLOSE)


@pytest.mark.parametrize("variant", CONTEXT)
def test_an_untrained_context_adds_nothing(variant):
    made = tiny.model(**tiny.VARIANTS[variant], starting_weights=[1.0, 0.0, 0.0])
    torch.nn.init.zeros_(made.classifier.bias)  # tiny.model draws all biases
    assert made.classifier.weight.abs().sum() == 0
    inputs = batch(made)
    m = made.num_prototypes
    shape = inputs["input_ids"].shape[:2]
    pairs = {name: inputs[name].flatten(0, 1) for name in ("input_ids", "attention_mask", "token_type_ids")}
    vectors = made.encode(**pairs).view(*shape, -1)[:, m:]
    expected = standardize_rows(made.own_relevance(vectors), inputs["document_mask"][:, m:])
    assert_close(made(**inputs).logits * inputs["document_mask"][:, m:], expected, **CLOSE)


@KINDS
@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_every_weight_that_learns_has_a_gradient(variant, fields):
    """Else several processes would wait for each other."""
    made = model(variant, **fields)
    made(**batch(made)).loss.backward()
    assert [name for name, p in made.named_parameters() if p.requires_grad and p.grad is None] == []


@pytest.mark.parametrize("variant", ["full", "neither"])
def test_a_weight_of_zero_stays_out(variant):
    """Its score may be anything, and no step of a training lets it in."""
    made = model(variant, starting_weights=[0.8, 0.0, 0.5])
    inputs = batch(made)
    other = {**inputs, "starting_scores": inputs["starting_scores"] * torch.tensor([-7.0, 1.0])}
    assert torch.equal(made(**inputs).logits, made(**other).logits)
    optimizer = torch.optim.Adam(made.start.parameters(), lr=0.1)
    made(**inputs).loss.backward()
    optimizer.step()
    own, selector, first_stage = made.start.weight.tolist()
    assert selector == 0 and own != pytest.approx(0.8) and first_stage != pytest.approx(0.5)


def test_a_weight_that_would_be_dropped_is_told(tmp_path):
    """A checkpoint of the time when a weight of 0 could be learned."""
    made = model("neither", starting_weights=[0.0, 1.0, 0.5])
    made.tokenizer = tiny.tokenizer(tmp_path / "tokenizer")
    made.save_pretrained(tmp_path / "new")
    assert CoBertForGroupwiseRanking.from_pretrained(tmp_path / "new").rerank("bees see", documents(3))
    with torch.no_grad():
        made.start.weight[0] = 0.1
    made.save_pretrained(tmp_path / "old")
    with pytest.raises(ValueError, match="old: has a weight for a score that its starting_weights leave out with a 0"):
        CoBertForGroupwiseRanking.from_pretrained(tmp_path / "old").rerank("bees see", documents(3))


@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_pairs_are_read_only_where_they_have_a_say(tmp_path, variant):
    """An encoder that gives no numbers at all spoils every ranking that it has a say in, and no other."""
    made = model(variant, starting_weights=[0.0, 1.0, 0.5], feedback_weight=0.9)
    made.tokenizer = tiny.tokenizer(tmp_path)
    inputs, given = batch(made), documents(9)
    before, ranking = made(**inputs).logits, made.rerank("bees see", given)
    torch.nn.init.constant_(made.encoder.embeddings.LayerNorm.weight, math.nan)
    after = made(**inputs).logits
    assert made.config.reads_pairs == (variant != "neither")
    if made.config.reads_pairs:
        assert after.isnan().any()
    else:
        assert torch.equal(before, after) and made.rerank("bees see", given) == ranking


@KINDS
@pytest.mark.parametrize("variant", ["full", "calibrator", "scorer", "neither"])
def test_order_padding_and_other_groups_change_nothing(variant, fields):
    made = model(variant, **fields)
    inputs, m = batch(made), made.num_prototypes
    before = made(**inputs).logits
    order = torch.randperm(tiny.N, generator=torch.Generator().manual_seed(5))
    rows = torch.cat((torch.arange(m), m + order))
    moved = {name: x[:, order] if name in CANDIDATES else x[:, rows] for name, x in inputs.items()}
    if "likeness" in moved:
        moved["likeness"] = moved["likeness"][:, :, order]
    assert_close(made(**moved).logits, before[:, order], **CLOSE)

    real = int(inputs["document_mask"][1, m:].sum())
    alone = {name: x[1:, :real] if name in CANDIDATES else x[1:, : m + real] for name, x in inputs.items()}
    if "likeness" in alone:
        alone["likeness"] = alone["likeness"][:, :, :real]
    assert_close(made(**alone).logits[0], before[1, :real], **CLOSE)
    # What stands in padded rows reaches nothing.
    changed = {name: x.clone() for name, x in inputs.items()}
    changed["starting_scores"][1, real:] = 1e6
    if "content" in changed:
        changed["content"][1, m + real :] = -7.0
    if "likeness" in changed:
        changed["likeness"][1, real:] = changed["likeness"][1, :, real:] = 50.0
    assert_close(made(**changed).logits[1, :real], before[1, :real], **CLOSE)


def test_gradients_are_finite_also_where_nothing_differs():
    made = model("full", **ALL).train()
    inputs = batch(made)
    inputs["likeness"].fill_(1.0)
    inputs["input_ids"][:] = inputs["input_ids"][:, :1]
    inputs["attention_mask"][:] = inputs["attention_mask"][:, :1]
    inputs["token_type_ids"][:] = inputs["token_type_ids"][:, :1]
    inputs["starting_scores"].zero_()
    inputs["document_mask"][1, made.num_prototypes + 1 :] = 0  # a group of one
    made.eval()  # without dropout all candidates are the same
    made(**inputs).loss.backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in made.parameters())


def test_half_precision_around_a_start_leaves_it_its_digits():
    made = model("neither", **ALL)
    vectors = torch.randn(1, 9, tiny.HIDDEN, generator=torch.Generator().manual_seed(2)).round(decimals=1)
    torch.nn.init.constant_(made.classifier.weight, 0.0)  # what is left is no matrix product of the encoder's
    scores = torch.randn(1, 9, 2, generator=torch.Generator().manual_seed(3))
    content = torch.nn.functional.normalize(
        torch.randn(1, 9, WIDTH, generator=torch.Generator().manual_seed(4)), dim=-1
    )
    known = {"starting_scores": scores, "content": content, "likeness": content @ content.transpose(1, 2)}
    expected = made(vectors=vectors, **known).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = made(vectors=vectors, **known).logits
    assert found.dtype == torch.float32
    assert_close(found, expected, **CLOSE)


def test_equal_values_are_not_told_apart_by_their_rounding():
    for value in (0.1, 1e-20, 3e7, -7.3):
        values = torch.full((1, 11), value, requires_grad=True)
        standard = standardize_rows(values, torch.ones(1, 11))
        assert (standard == 0).all()
        standard.sum().backward()
        assert torch.isfinite(values.grad).all()


def test_parts_are_there_when_they_are_needed():
    plain = set(tiny.model(**tiny.VARIANTS["scorer"]).state_dict())
    started = set(tiny.model(**tiny.VARIANTS["scorer"], **START).state_dict())
    assert started - plain == {"start.weight", "prototype_weight.weight", "prototype_weight.bias"}
    full = set(tiny.model(**CONTENT).state_dict()) - set(tiny.model().state_dict())
    assert full == {"start.weight", "neighbours.weight", "neighbours.sharpness", "content.weight"}
    fed = set(tiny.model(**ALL).state_dict()) - set(tiny.model(**CONTENT).state_dict())
    assert fed == {"feedback.weight", "feedback.sharpness"}
    assert tiny.model(**CONTENT, **tiny.VARIANTS["neither"]).content is None  # nothing would read it
    fixed = tiny.model(**ALL, learn_starting_weights=False)
    assert [n for n, p in fixed.named_parameters() if not p.requires_grad] == [
        "start.weight",
        "feedback.weight",
        "feedback.sharpness",
        "neighbours.weight",
        "neighbours.sharpness",
    ]
    assert not fixed.start.weight.grad and fixed.start.weight.tolist() == pytest.approx(WEIGHTS)


def test_saved_and_loaded(tmp_path):
    made = model("full", **ALL)
    torch.nn.init.constant_(made.feedback.weight, 0.0)  # a weight that training has brought to nothing is one
    torch.nn.init.constant_(made.feedback.sharpness, -0.3)
    torch.nn.init.constant_(made.neighbours.weight, 0.25)  # as if learned
    inputs = batch(made)
    made.tokenizer = tiny.tokenizer(tmp_path / "tokenizer")
    made.save_pretrained(tmp_path / "saved")
    loaded = CoBertForGroupwiseRanking.from_pretrained(tmp_path / "saved")
    assert torch.equal(loaded(**inputs).logits, made(**inputs).logits)
    assert loaded.config.starting_weights == WEIGHTS and loaded.config.content_size == WIDTH


def test_what_is_missing_is_said():
    made = model("full", **ALL)
    inputs = batch(made)
    for name in ("starting_scores", "content", "likeness"):
        message = f"pass {name}"
        with pytest.raises(ValueError, match=message):
            made(**{key: x for key, x in inputs.items() if key != name})
    with pytest.raises(ValueError, match=r"`starting_scores` must have the shape \(batch, n, 2\)"):
        made(**inputs | {"starting_scores": inputs["starting_scores"][..., :1]})
    with pytest.raises(ValueError, match=r"`content` must have the shape"):
        made(**inputs | {"content": inputs["content"][:, 1:]})
    with pytest.raises(ValueError, match=r"`likeness` must have the shape \(batch, n, n\)"):
        made(**inputs | {"likeness": inputs["likeness"][:, 1:]})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"starting_weights": [1.0, 0.5]}, "three finite numbers"),
        ({"starting_weights": [0.0, 0.0, 0.0]}, "three finite numbers"),
        ({"starting_weights": [1.0, math.nan, 0.0]}, "three finite numbers"),
        ({"content_size": -1}, "must not be negative"),
        ({"content_size": 8, "selector": "lexical"}, "needs the Hub id or folder of a bi-encoder"),
        ({"neighbour_weight": 0.5}, "`neighbour_weight` needs `starting_weights`"),
        ({"neighbour_weight": math.inf}, "finite"),
        ({**START, "neighbour_likeness": "words"}, "need a `neighbour_weight`"),
        ({**START, "neighbour_voters": "promising"}, "need a `neighbour_weight`"),
        ({**NEAR, "neighbour_likeness": "both"}, "'both'` needs `content_size`"),
        ({**NEAR, "neighbour_likeness": "title"}, "neighbour_likeness"),
        ({"feedback_weight": 0.5}, "`feedback_weight` needs `starting_weights`"),
        ({**START, "feedback_weight": 0.5, "num_prototypes": 0, "use_calibrator": False}, "of at least 1"),
        ({**START, "feedback_weight": math.nan}, "finite"),
    ],
)
def test_config_refuses(fields, message):
    with pytest.raises(StrictDataclassError, match=f"(?s){message}"):
        CoBertConfig(**fields)


@pytest.mark.parametrize("known", [START, CONTENT, ALL], ids=["start", "content", "all"])
def test_a_full_model_starts_as_its_pointwise_twin(tmp_path, known):
    twin = tiny.model(**tiny.VARIANTS["neither"], **known, encoder_pooling="pooler")
    torch.nn.init.constant_(twin.start.weight[2:], 0.9)  # as if learned
    if twin.neighbours is not None:
        torch.nn.init.constant_(twin.neighbours.weight, 0.35)
        torch.nn.init.constant_(twin.neighbours.sharpness, 1.5)
    if twin.feedback is not None:
        torch.nn.init.constant_(twin.feedback.weight, 0.45)
        torch.nn.init.constant_(twin.feedback.sharpness, 0.1)
    twin.tokenizer = tiny.tokenizer(tmp_path)
    twin.save_pretrained(tmp_path)
    parts = {"calibrator_config": {"num_hidden_layers": 1}, "scorer_config": {"num_hidden_layers": 2}}
    full = CoBertForGroupwiseRanking.from_bert_pretrained(tmp_path, num_prototypes=tiny.M, **parts)
    assert full.config.use_scorer and full.start.weight.tolist() == pytest.approx([0.7, -0.4, 0.9])
    inputs = batch(full)
    pointwise = {n: x[:, tiny.M :] if n not in CANDIDATES else x for n, x in inputs.items()}
    real = inputs["document_mask"][:, tiny.M :].bool()
    assert_close(full(**inputs).logits[real], twin(**pointwise).logits[real], **CLOSE)
    other = CoBertForGroupwiseRanking.from_bert_pretrained(tmp_path, starting_weights=[1.0, 0.0, 0.0], **parts)
    assert other.start.weight.tolist() == [1.0, 0.0, 0.0]  # what is asked for wins


def documents(count: int) -> list[dict]:
    return [{"text": " ".join(tiny.WORDS[i % 7 : i % 7 + 3 + i])} for i in range(count)]


@pytest.fixture(scope="module")
def bi_encoder(tmp_path_factory):
    return tiny.bert_checkpoint(tmp_path_factory.mktemp("bi"), layers=2, hidden_size=WIDTH * 2, num_attention_heads=5)


@pytest.mark.parametrize("count", [1, 2, 7, 16])
def test_rerank_starts_from_scores_or_order(tmp_path, count):
    made = model("full", **START)
    made.tokenizer = tiny.tokenizer(tmp_path)
    given = documents(count)
    by_order = made.rerank("bees see", given)
    logs = [{**d, "score": 5 - 3 * math.log(rank)} for rank, d in enumerate(given, start=1)]
    for one, other in zip(made.rerank("bees see", logs), by_order, strict=True):
        assert one["corpus_id"] == other["corpus_id"] and one["score"] == pytest.approx(other["score"], abs=1e-5)
    if count > 2:
        other = [{**d, "score": float(i * i)} for i, d in enumerate(given)]
        assert [r["score"] for r in made.rerank("bees see", other)] != [r["score"] for r in by_order]


@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_rerank_with_words(tmp_path, count):
    """Without context parts a list's groups do not matter: what rerank does is a forward over the whole list."""
    made = model("neither", **WORDS, passage_words=4, passage_overlap=1)
    made.tokenizer = tiny.tokenizer(tmp_path)
    given = [{"title": tiny.WORDS[i % 5], "text": f"{d['text']} {d['text']}"} for i, d in enumerate(documents(count))]
    pairs = PairTokenizer(made.tokenizer, made.config.max_length)
    with torch.no_grad():
        encoded = encode_list(made, pairs, "bees see", given, "lexical", 512)
        scores = torch.tensor([starting_scores(encoded.selector_scores, None)])
        like = word_vectors([f"{d['title']} {d['text']}" for d in given]).likeness().unsqueeze(0)
        expected = made(vectors=encoded.vectors.unsqueeze(0), starting_scores=scores, likeness=like).logits[0]
    for result in made.rerank("bees see", given):
        assert result["score"] == pytest.approx(float(expected[result["corpus_id"]]), abs=1e-5)


@pytest.mark.parametrize("count", [1, 2, 7, 12])
def test_rerank_with_neighbours_by_words(tmp_path, count):
    """Neighbours are those of a group: what rerank does is a forward on each of the list's groups, merged."""
    made = model("neither", starting_weights=[0.0, 1.0, 0.5], neighbour_weight=0.6)
    made.tokenizer = tiny.tokenizer(tmp_path)
    given = documents(count)
    pairs = PairTokenizer(made.tokenizer, made.config.max_length)
    expected = [-math.inf] * count
    with torch.no_grad():
        encoded = encode_list(made, pairs, "bees see", given, "lexical", 512)
        scores = torch.tensor(starting_scores(encoded.selector_scores, None))
        like = word_vectors([d["text"] for d in given]).likeness()
        for first, end in overlapping_spans(count, tiny.N, 2):
            part = {"starting_scores": scores[None, first:end], "likeness": like[None, first:end, first:end]}
            logits = made(vectors=encoded.vectors[None, first:end], **part).logits[0].tolist()
            expected[first:end] = map(max, expected[first:end], logits)
    for result in made.rerank("bees see", given):
        assert result["score"] == pytest.approx(expected[result["corpus_id"]], abs=1e-5)


def test_equal_documents_keep_their_order(tmp_path, bi_encoder):
    """What only rounding could tell apart is not told apart."""
    fields = {**BOTH, "content_size": 2 * WIDTH, "selector": str(bi_encoder), "starting_weights": [0.0, 1.0, 0.5]}
    made = model("neither", **fields | {"neighbour_weight": 9.0, "group_size": 20})
    made.tokenizer = tiny.tokenizer(tmp_path)
    for count in range(1, 15):
        for text in ("", "bees see honey"):
            for voters in (True, False):
                made.neighbours.promising = voters
                ranking = made.rerank("bees see", [text] * count)
                assert [result["corpus_id"] for result in ranking] == list(range(count))


def test_two_documents_do_not_trade_places(tmp_path):
    """What is alike stays in the order it came in, however much neighbours count."""
    made = model("neither", starting_weights=[0.0, 1.0, 0.5], neighbour_weight=9.0, feedback_weight=0.5)
    made.tokenizer = tiny.tokenizer(tmp_path)
    assert [result["corpus_id"] for result in made.rerank("bees see", ["bees", "bees"])] == [0, 1]
    assert [result["corpus_id"] for result in made.rerank("bees see", ["", ""])] == [0, 1]


@pytest.mark.parametrize("count", range(1, 7))
def test_who_alone_is_promising_does_not_lose_by_it(count):
    """With one voter there is nobody else for it to heed: nothing moves, and with nobody promising neither."""
    made = model("neither", **PROMISING)
    start, mask = torch.tensor([[5.0, *[-1.0] * (count - 1)]]), torch.ones(1, count)
    assert_close(made.neighbours(start, torch.rand(1, count, count), mask), start, **CLOSE)
    flat = torch.full((1, count), 0.3)
    assert torch.equal(made.neighbours(flat, torch.rand(1, count, count), mask), flat)


def test_a_vote_does_not_come_or_go_by_a_rounding():
    """A document next to the mean has next to no voice, on either side of it."""
    made = model("neither", **PROMISING)
    torch.nn.init.constant_(made.neighbours.weight, 1.0)
    like, mask = 0.3 * torch.rand(1, 9, 9, generator=torch.Generator().manual_seed(1)), torch.ones(1, 9)
    start = torch.tensor([[3.0, 2.0, 1.5, 1.0, 0.0, -1.0, -1.5, -2.0, -3.0]])
    moved = [made.neighbours(start + shift * torch.eye(9)[4], like, mask) for shift in (-5e-7, 5e-7)]
    assert_close(*moved, **CLOSE)
    assert made.neighbours.voices(start, mask)[0].tolist() == [1.0] * 4 + [0.0] * 5


def test_neighbours_are_told_by_what_the_config_names():
    """Words and content that disagree: the logits follow the one that is named, and both move what both tell."""
    made = {kind: model("neither", **ALL, neighbour_likeness=kind) for kind in ("content", "words", "both")}
    inputs = batch(made["both"])
    other = {**inputs, "content": inputs["content"].flip(1)}
    unlike = {**inputs, "likeness": inputs["likeness"].flip(1)}
    mask = inputs["document_mask"]
    start = {
        kind: m.feed_back(
            m.start_from(torch.zeros(tiny.BATCH, tiny.N, tiny.HIDDEN), inputs["starting_scores"], mask),
            inputs["likeness"],
            mask,
        )
        for kind, m in made.items()
    }
    for kind, m in made.items():
        alike = {
            name: m.compare(x["content"], x["likeness"])
            for name, x in (("as is", inputs), ("content", other), ("words", unlike))
        }
        moved = {name: m.neighbours(start[kind], x, mask) for name, x in alike.items()}
        for name in ("content", "words"):
            assert torch.equal(moved[name], moved["as is"]) == (kind not in (name, "both"))


@pytest.mark.parametrize("score", [None, math.nan, "7", True])
def test_rerank_refuses_scores_of_some_documents(tmp_path, score):
    made = model("full", **START)
    made.tokenizer = tiny.tokenizer(tmp_path)
    given = [{**d, "score": 1.0} for d in documents(3)]
    given[1]["score"] = score
    with pytest.raises(ValueError, match="document 1 has the score"):
        made.rerank("bees see", given)
    plain = model("full")
    plain.tokenizer = made.tokenizer
    assert len(plain.rerank("bees see", given)) == 3  # a model that does not read them


def test_rerank_with_content(tmp_path, bi_encoder):
    """A list of one group: what rerank does is a forward on its chosen passages."""
    made = model("full", **CONTENT | {"content_size": WIDTH * 2, "selector": str(bi_encoder)}, passage_words=60)
    made.tokenizer = tiny.tokenizer(tmp_path)
    given = [{**d, "score": float(-i)} for i, d in enumerate(documents(6))]
    ranking = made.rerank("bees see", given)
    chooser = made.text_side.find_selector(str(bi_encoder), made.config.max_length, "cpu")
    content = chooser.embed_texts([d["text"] for d in given], batch_tokens=512)
    relevance = (content @ chooser.embed_query("bees see")).tolist()
    rows = [*best_first(relevance, tiny.M), *range(6)]
    pairs = made.tokenizer(
        ["bees see"] * len(rows), [given[i]["text"] for i in rows], return_tensors="pt", padding=True
    )
    scores = torch.tensor([starting_scores(relevance, [d["score"] for d in given])])
    with torch.no_grad():
        output = made(
            **{name: x.unsqueeze(0) for name, x in pairs.items()},
            content=content[rows].unsqueeze(0),
            starting_scores=scores,
        )
    for result in ranking:
        assert result["score"] == pytest.approx(float(output.logits[0, result["corpus_id"]]), abs=1e-5)
    with pytest.raises(ValueError, match="'lexical' is a lexical selector: pass the right one"):
        made.rerank("bees see", given, selector="lexical")
    other = tiny.bert_checkpoint(tmp_path / "other", layers=1)
    with pytest.raises(ValueError, match=f"a bi-encoder with vectors of {tiny.HIDDEN} numbers"):
        made.rerank("bees see", given, selector=str(other))


def test_each_parameter_has_the_rate_of_its_part():
    parts = {name: part_of(name) for name in tiny.model(**CONTENT).state_dict()}
    assert {name for name, part in parts.items() if part == "start"} == {
        "start.weight",
        "neighbours.weight",
        "neighbours.sharpness",
    }
    context = ("calibrator.", "scorer.", "classifier.", "content.")
    assert {name for name, part in parts.items() if part == "context"} == {n for n in parts if n.startswith(context)}
    assert part_of("module.scorer.x") == "context" and part_of("prototype_weight.bias") == "encoder"
