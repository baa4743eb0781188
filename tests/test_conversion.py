"""The converter against a state dict in the authors' key layout, whose scores a plain walk of their code computes."""

import math

import pytest
import tiny
import torch
from transformers import BertModel

from modeling_cobert import CoBertForGroupwiseRanking
from modeling_cobert.commands.convert import ConversionArguments, main
from modeling_cobert.integrations.original_checkpoint import convert

PARTS = {"QT_BERT": (5, 4, 40), "ATTN_BERT": (1, 3, 28), "QB_BERT": (2, 2, 36)}
OVERLAP = 2


class Theirs(torch.nn.Module):
    """What the released code computes, one pair and one group at a time, with its own names of the weights."""

    def __init__(self, variant: str):
        super().__init__()
        self.variant = variant
        used = {"group_only": ["QT_BERT", "QB_BERT"], "prf_only": ["QT_BERT", "ATTN_BERT"]}.get(variant, list(PARTS))
        for name in used:
            part = torch.nn.Module()
            part.bert = BertModel(tiny.bert_config(*PARTS[name]), add_pooling_layer=name != "QB_BERT")
            part.classifier = torch.nn.Linear(tiny.HIDDEN, 2)
            self.add_module(name, part)
        if variant == "prf_only":
            self.classifier = torch.nn.Linear(tiny.HIDDEN, 2)

    @torch.no_grad()
    def forward(self, rows: list[dict], prototypes: int) -> list[float]:
        """Probabilities of relevance of the rows behind the first `prototypes` ones."""
        pooled = [self.QT_BERT.bert(**row).pooler_output[0] for row in rows]
        feedback, candidates = pooled[:prototypes], pooled[prototypes:]
        if self.variant != "group_only":
            exponentials = [math.exp(self.QT_BERT.classifier(t)[1]) for t in feedback]
            for j, r in enumerate(candidates):
                views = [
                    self.ATTN_BERT.bert(inputs_embeds=torch.stack([t, r])[None]).last_hidden_state[0, 1]
                    for t in feedback
                ]
                mixed = sum(e / sum(exponentials) * view for e, view in zip(exponentials, views, strict=True))
                candidates[j] = mixed if self.variant == "no_resi" else (r + mixed) / 2
        sequence, head = torch.stack(candidates), getattr(self, "classifier", None)
        if self.variant != "prf_only":
            types = torch.tensor([[1 if i < OVERLAP else 0 for i in range(len(candidates))]])
            sequence = self.QB_BERT.bert(inputs_embeds=sequence[None], token_type_ids=types).last_hidden_state[0]
            head = self.QB_BERT.classifier
        return head(sequence).softmax(dim=-1)[:, 1].tolist()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("configs")
    for name, sizes in PARTS.items():
        tiny.bert_config(*sizes).save_pretrained(root / name)
    tiny.tokenizer(root / "QT_BERT")
    return root


def arguments(folders, tmp_path, variant) -> ConversionArguments:
    return ConversionArguments(
        weights=str(tmp_path / "weights.pt"),
        encoder=str(folders / "QT_BERT"),
        calibrator=str(folders / "ATTN_BERT") if variant != "group_only" else None,
        scorer=str(folders / "QB_BERT") if variant != "prf_only" else None,
        variant=variant,
        output=str(tmp_path / "converted"),
        num_prototypes=tiny.M,
        group_size=tiny.N,
        group_overlap=OVERLAP,
        max_length=32,
    )


@pytest.mark.parametrize("saved_in_parallel", [False, True])
@pytest.mark.parametrize("variant", ["cobert", "prf_only", "group_only", "no_resi"])
def test_scores_equal_theirs(variant, saved_in_parallel, folders, tmp_path, capsys):
    torch.manual_seed(5)
    theirs = Theirs(variant).eval()
    state = theirs.state_dict()
    # An old buffer that holds no weight.
    state["QT_BERT.bert.embeddings.position_ids"] = torch.arange(64)[None]
    if saved_in_parallel:
        state = {f"module.{name}": value for name, value in state.items()}
    torch.save(state, tmp_path / "weights.pt")
    main(arguments(folders, tmp_path, variant))
    assert variant in capsys.readouterr().out

    model = CoBertForGroupwiseRanking.from_pretrained(tmp_path / "converted")
    m = 0 if variant == "group_only" else tiny.M
    batch = tiny.batch(m=m, groups=1)
    rows = []
    for document in range(m + tiny.N):
        length = int(batch["attention_mask"][0, document].sum())
        names = ("input_ids", "token_type_ids", "attention_mask")
        rows.append({name: batch[name][:1, document, :length] for name in names})
    with torch.no_grad():
        ours = model(**batch).logits[0].sigmoid().tolist()
    assert ours == pytest.approx(theirs(rows, m), abs=1e-5)
    assert model.config.selector == ("lexical" if variant == "group_only" else "self")
    assert len(model.rerank("bees see", ["bees", "car", "honey"])) == 3


def test_errors(folders, tmp_path):
    torch.manual_seed(5)
    torch.save(Theirs("prf_only").state_dict(), tmp_path / "weights.pt")
    args = arguments(folders, tmp_path, "cobert")
    with pytest.raises(ValueError, match=r"weights.pt: no weights under QB_BERT.bert.\*; is this another variant"):
        main(args)
    assert not (tmp_path / "converted").exists()
    with pytest.raises(ValueError, match="unknown variant 'best'"):
        convert(args.weights, args.encoder, args.calibrator, args.scorer, "best")
    with pytest.raises(ValueError, match="has a scorer: name the folder"):
        convert(args.weights, args.encoder, args.calibrator, None, "cobert")
    torch.save([1, 2], tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="not a state dict of tensors"):
        main(args)


class Evil:
    def __reduce__(self):
        return print, ("code from a pickle ran",)


def test_a_hostile_pickle_is_refused(folders, tmp_path, capsys):
    torch.save({"a": Evil()}, tmp_path / "weights.pt")
    with pytest.raises(Exception, match="[Ww]eights.only"):
        main(arguments(folders, tmp_path, "cobert"))
    assert "code from a pickle ran" not in capsys.readouterr().out


def test_files_that_are_no_state_dict(folders, tmp_path):
    path, args = tmp_path / "weights.pt", arguments(folders, tmp_path, "cobert")
    torch.manual_seed(5)
    state = Theirs("cobert").state_dict()
    torch.save(state, path)
    whole = path.read_bytes()
    for content in (b"", b"not a pickle", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="weights.pt: no file of torch.save, or"):
            main(args)
    gone = "ATTN_BERT.bert.embeddings.position_embeddings.weight"
    torch.save({name: value for name, value in state.items() if name != gone}, path)
    with pytest.raises(ValueError, match="weights.pt: no weights for 'embeddings.position_embeddings.weight'"):
        main(args)
    torch.save({name: value for name, value in state.items() if not name.endswith("layer.0.output.dense.bias")}, path)
    with pytest.raises(ValueError, match="(?s)weights.pt: does not fit the configs.*Missing key"):
        main(args)
    torch.save(state | {"QT_BERT.bert.embeddings.word_embeddings.weight": torch.zeros(3, 2)}, path)
    with pytest.raises(ValueError, match="(?s)weights.pt: does not fit the configs.*size mismatch"):
        main(args)
    assert not (tmp_path / "converted").exists()
