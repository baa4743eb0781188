"""The examples in docstrings run as written and print what they say, in a folder with tiny checkpoints."""

import doctest
import importlib
import pkgutil
import re

import pytest
import tiny
from tiny_rows import GROUPS, make_rows
from transformers import PrinterCallback

import modeling_cobert
from modeling_cobert.data.collator import GroupCollator
from modeling_cobert.data.groups import GroupView
from modeling_cobert.data.rows import load_rows
from modeling_cobert.passages_cobert import PairTokenizer
from modeling_cobert.ranking.loading import load_cobert
from modeling_cobert.training.arguments import CoBertTrainingArguments
from modeling_cobert.training.trainer import GroupTrainer

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class FencedParser(doctest.DocTestParser):
    """A Markdown fence ends an example: the standard parser would take it for output."""

    def parse(self, string, name="<string>"):
        return super().parse(re.sub(r"^[ \t]*```.*$", "", string, flags=re.MULTILINE), name)


def examples() -> list[doctest.DocTest]:
    """Every docstring of the package with an example in it."""
    finder = doctest.DocTestFinder(parser=FencedParser(), exclude_empty=True)
    names = sorted(module.name for module in pkgutil.walk_packages(modeling_cobert.__path__, "modeling_cobert."))
    return [test for name in names for test in finder.find(importlib.import_module(name)) if test.examples]


EXAMPLES = examples()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the examples find in their working folder."""
    root = tmp_path_factory.mktemp("examples")
    tiny.checkpoint(root / "models" / "cobert")
    tiny.bert_checkpoint(root / "models" / "cross-encoder", labels=1, max_position_embeddings=256)
    make_rows(root / "prepared" / "demo" / "rows", folds=3)
    return root


@pytest.fixture(scope="module")
def names(folder):
    """What the examples of training speak of without making it."""
    model, rows = load_cobert(folder / "models" / "cobert"), load_rows(folder / "prepared" / "demo" / "rows")
    groups = GroupView(rows.dataset(rows.folds[0].train), GROUPS)
    collator = GroupCollator(PairTokenizer(model.find_tokenizer(), max_length=32), model.num_prototypes)
    args = CoBertTrainingArguments(
        str(folder / "out"), max_steps=1, use_cpu=True, eval_strategy="no", save_strategy="no"
    )
    trainer = GroupTrainer(model=model, args=args, train_dataset=groups, data_collator=collator)
    trainer.remove_callback(PrinterCallback)
    return {
        "model": model,
        "tokenizer": model.find_tokenizer(),
        "rows": rows,
        "fold": rows.folds[0],
        "options": GROUPS,
        "GroupView": GroupView,
        "groups": groups,
        "batch": collator([groups[0]]),
        "trainer": trainer,
    }


@pytest.mark.parametrize("test", EXAMPLES, ids=[test.name for test in EXAMPLES])
def test_example(test, folder, names, monkeypatch):
    monkeypatch.chdir(folder)
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    test.globs = names | test.globs
    runner.run(test, out=told.append)
    assert not runner.failures, "".join(told)
