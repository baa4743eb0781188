"""Which options make another training: each is known, and none of them is taken for another in a folder."""

import json
from collections import Counter
from dataclasses import fields

import pytest

from modeling_cobert.commands import train as train_command
from modeling_cobert.training import decisive
from modeling_cobert.training.arguments import CoBertTrainingArguments
from modeling_cobert.training.decisive import decisive_options
from modeling_cobert.training.trainer import GroupTrainer

BY_STEPS = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 4, "save_steps": 4}
UNSELECTED = {"eval_strategy": "no", "load_best_model_at_end": False}


def options(**training) -> dict:
    return decisive_options(CoBertTrainingArguments(use_cpu=True, **training))


def test_every_option_of_transformers_is_classified():
    """A new one fails here: does it change the weights, or the choice of the best checkpoint?"""
    kinds = [decisive.ALWAYS, decisive.DECISIVE, decisive.SELECTING, decisive.PASSING]
    known = Counter(name for kind in kinds for name in kind)
    assert [name for name, times in known.items() if times > 1] == []
    assert [field.name for field in fields(CoBertTrainingArguments) if field.name not in known] == []


@pytest.mark.parametrize(
    "other",
    [
        {"greater_is_better": False},
        {"train_sampling_strategy": "sequential"},
        {"neftune_noise_alpha": 5.0},
        {"eval_delay": 2},
        BY_STEPS,
        {"optim_args": "a=1"},
        {"dataloader_drop_last": True},
        {"accelerator_config": {"even_batches": False}},
        {"ignore_data_skip": True},
        {"use_liger_kernel": True},
    ],
)
def test_an_option_that_decides_is_named_where_it_is_not_at_its_default(other):
    assert options().keys() == set(decisive.ALWAYS)  # as in settings of earlier versions
    more = {name: value for name, value in options(**other).items() if name not in decisive.ALWAYS}
    assert more.keys() == other.keys() and json.dumps(more)


def test_what_follows_from_another_option_is_no_option():
    for training in ({"metric_for_best_model": "loss"}, {"logging_steps": 3}, UNSELECTED, {"lr_scheduler_kwargs": {}}):
        assert options(**training).keys() == set(decisive.ALWAYS)
    steps = BY_STEPS | {"eval_steps": None, "save_steps": 6}
    assert options(**steps, logging_steps=3)["eval_steps"] == 3
    schedules = [options(lr_scheduler_type="polynomial", lr_scheduler_kwargs={"power": n}) for n in (2, 3)]
    assert schedules[0] != schedules[1]
    # Where nothing is chosen among checkpoints, they may be saved at any time; unless a schedule follows measures.
    assert options(**UNSELECTED) == options(**UNSELECTED, save_strategy="no")
    plateau = {"lr_scheduler_type": "reduce_lr_on_plateau", "load_best_model_at_end": False}
    assert options(**plateau) != options(**plateau, greater_is_better=False)


def test_an_option_of_a_later_version_decides(monkeypatch):
    monkeypatch.setattr(decisive, "DECISIVE", ())
    assert options(neftune_noise_alpha=5.0)["neftune_noise_alpha"] == 5.0


def test_a_training_with_other_options_is_not_returned_as_done(arguments, tmp_path, monkeypatch):
    first = train_command.main(*arguments(num_train_epochs=1))
    monkeypatch.setattr(GroupTrainer, "train", lambda *a, **k: pytest.fail("trained again"))
    assert train_command.main(*arguments(num_train_epochs=1, encoder_chunk_size=3, logging_steps=7)) == first
    others = [{"greater_is_better": False}, {"train_sampling_strategy": "sequential"}, {"neftune_noise_alpha": 5.0}]
    for other in [*others, BY_STEPS]:
        with pytest.raises(ValueError, match="begun with other settings: training[.].* is null, now"):
            train_command.main(*arguments(num_train_epochs=1, **other))
