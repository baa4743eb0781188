"""The converter against a state dict in the authors' key layout, whose scores a plain walk of their code computes."""

import errno
import math
import os
import resource
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

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


def test_another_variants_parts_are_not_dropped(folders, tmp_path):
    torch.manual_seed(5)
    args = arguments(folders, tmp_path, "group_only")
    torch.save(Theirs("cobert").state_dict(), tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"weights under ATTN_BERT.\*.*take --variant cobert or no_resi"):
        main(args)
    with pytest.raises(ValueError, match=r"weights under QB_BERT.\*.*take --variant cobert or no_resi"):
        main(arguments(folders, tmp_path, "prf_only"))
    torch.save(Theirs("prf_only").state_dict(), tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"weights under ATTN_BERT.\*.*take --variant prf_only"):
        main(args)
    assert not (tmp_path / "converted").exists()


def test_weights_that_are_no_finite_real_numbers_are_refused(folders, tmp_path):
    torch.manual_seed(5)
    state = Theirs("cobert").state_dict()
    name = "QT_BERT.bert.pooler.dense.weight"
    for change in (math.nan, math.inf):
        torch.save(state | {name: torch.full_like(state[name], change)}, tmp_path / "weights.pt")
        with pytest.raises(ValueError, match=f"weights.pt: {name} has numbers that are not finite"):
            main(arguments(folders, tmp_path, "cobert"))
    for changed in (state[name].to(torch.complex64), state[name].to_sparse(), state[name].to("meta")):
        torch.save(state | {name: changed}, tmp_path / "weights.pt")
        with pytest.raises(ValueError, match=f"weights.pt: {name} is no dense tensor of real numbers"):
            main(arguments(folders, tmp_path, "cobert"))
    assert not (tmp_path / "converted").exists()


def command(args: ConversionArguments) -> list[str]:
    options = [part for name, value in asdict(args).items() for part in (f"--{name}", value) if value is not None]
    return ["convert", *map(str, options)]


@pytest.mark.parametrize(
    "content",
    ["1 Q0 d1 1 2.5 bm25\n", "q1 Q0 d1 1 2.5 bm25\n", "# Notes\n", "{}", "\ufeff1\t2\n", "(lp0\n.", "\x80\x02"],
)
def test_other_files_are_told_in_one_line(content, folders, tmp_path, refuse):
    (tmp_path / "weights.pt").write_text(content, encoding="utf-8")
    said = refuse(*command(arguments(folders, tmp_path, "cobert")))
    assert f"{tmp_path / 'weights.pt'}: no" in said and "bug" not in said


def test_odd_state_dicts_are_told_in_one_line(folders, tmp_path, refuse):
    torch.manual_seed(5)
    state, args = Theirs("cobert").state_dict(), arguments(folders, tmp_path, "cobert")
    torch.save({1: torch.zeros(2)}, tmp_path / "weights.pt")
    assert "weights.pt: not a state dict: its tensors have no names" in refuse(*command(args))
    for part in ("weight", "bias"):
        torch.save(state | {f"QT_BERT.classifier.{part}": torch.tensor(1.0)}, tmp_path / "weights.pt")
        assert "weights.pt: expected a head of two classes under QT_BERT.classifier.*" in refuse(*command(args))
    table = "ATTN_BERT.bert.embeddings.position_embeddings.weight"
    torch.save(state | {table: torch.tensor(1.0)}, tmp_path / "weights.pt")
    assert "weights.pt: does not fit the configs" in refuse(*command(args))


@pytest.fixture
def whole(folders, tmp_path) -> ConversionArguments:
    """What can be converted."""
    torch.manual_seed(5)
    torch.save(Theirs("cobert").state_dict(), tmp_path / "weights.pt")
    return arguments(folders, tmp_path, "cobert")


def in_another_process(args: ConversionArguments, **options) -> subprocess.Popen:
    python = [sys.executable, "-m", "modeling_cobert.cli", *command(args)]
    return subprocess.Popen(python, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_a_conversion_for_which_there_is_no_room_leaves_nothing(whole, tmp_path):
    before = sorted(tmp_path.iterdir())
    limit = (50_000, 50_000)
    full = in_another_process(whole, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    _, said = full.communicate()
    assert full.returncode == 1 and said.startswith("error: ") and said.count("\n") == 1
    assert str(tmp_path) in said and os.strerror(errno.EFBIG) in said and "ulimit -f" in said
    assert sorted(tmp_path.iterdir()) == before
    main(whole)
    CoBertForGroupwiseRanking.from_pretrained(whole.output)


def test_a_conversion_that_was_killed_is_done_by_the_same_command(whole, tmp_path):
    before = sorted(tmp_path.iterdir())
    child = os.fork()
    if child == 0:
        CoBertForGroupwiseRanking._save_tokenizer = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        main(whole)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not Path(whole.output).exists() and sorted(tmp_path.iterdir()) != before
    other = tmp_path / ".converted.b.12345678.tmp"  # of `--output converted.b`
    other.mkdir()
    main(whole)
    assert sorted(tmp_path.iterdir()) == sorted([*before, other, Path(whole.output)])
    assert CoBertForGroupwiseRanking.from_pretrained(whole.output).find_tokenizer()


def test_two_conversions_do_not_write_into_one_folder(whole, tmp_path, refuse):
    before = sorted(tmp_path.iterdir())
    code = "import sys; from pathlib import Path; from modeling_cobert.steps.folders import whole_folder\n"
    code += "with whole_folder(sys.argv[1]) as beside: print(flush=True); (beside / 'a').write_text(sys.stdin.read())"
    with subprocess.Popen(
        [sys.executable, "-c", code, whole.output], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        first.stdout.readline()
        assert f"{whole.output}: process {first.pid} on " in refuse(*command(whole))
        first.stdin.write("of the first")
        first.stdin.close()
    assert sorted(tmp_path.iterdir()) == sorted([*before, Path(whole.output)])
    assert (Path(whole.output) / "a").read_text() == "of the first"
    assert f"{whole.output}: there is something already: give a new folder" in refuse(*command(whole))


def test_an_output_that_cannot_be_replaced_is_refused(whole, tmp_path, refuse, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    whole.output = "."
    assert "cannot be replaced by a whole one: give the name of a folder in it" in refuse(*command(whole))
    whole.output = str(tmp_path / "weights.pt")
    assert "weights.pt: is a file: give a folder" in refuse(*command(whole))
    (tmp_path / "round").symlink_to(tmp_path / "round")
    whole.output = str(tmp_path / "round")
    refuse(*command(whole))
    (tmp_path / "empty").mkdir()
    whole.output = str(tmp_path / "empty")
    main(whole)
    assert (tmp_path / "empty" / "config.json").exists()
    assert oct((tmp_path / "empty").stat().st_mode) == oct((tmp_path / "here").stat().st_mode)
