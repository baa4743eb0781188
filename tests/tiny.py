"""Tiny models, tokenizers and batches, all sizes different from each other so that no swapped axis passes by luck."""

import json
import string
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizer

from modeling_cobert import CoBertConfig, CoBertForGroupwiseRanking

HIDDEN, M, N, TOKENS, BATCH = 24, 3, 7, 11, 2
WORDS = (
    "bees see light honey flower red blue green colour car road wheel drive fast slow the a of and in to sky".split()
)
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *string.ascii_lowercase[1:], *"!?.,[]-"]
VOCAB += [f"##{c}" for c in string.ascii_lowercase]

VARIANTS = {
    "full": {},
    "calibrator": {"use_scorer": False},
    "scorer": {"use_calibrator": False},
    "neither": {"use_calibrator": False, "use_scorer": False},
    "no_residual": {"use_residual": False},
    "pooler": {"encoder_pooling": "pooler"},
    "release": {"encoder_pooling": "pooler", "scorer_positions": True, "mark_overlap": True},
}


def bert_config(layers: int, heads: int, intermediate: int, **fields) -> BertConfig:
    return BertConfig(
        **{
            "vocab_size": len(VOCAB),
            "hidden_size": HIDDEN,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": intermediate,
            "max_position_embeddings": 64,
            "initializer_range": 0.3,  # large enough that every part moves the scores
            **fields,
        }
    )


def config(**fields) -> CoBertConfig:
    return CoBertConfig(
        **{
            "encoder_config": bert_config(5, 4, 40),
            "calibrator_config": bert_config(1, 3, 28),
            "scorer_config": bert_config(2, 2, 36),
            "num_prototypes": M,
            "group_size": N,
            "group_overlap": 2,
            "max_length": 32,
            "passage_words": 10,
            "passage_overlap": 4,
            **fields,
        }
    )


def model(seed: int = 0, **fields) -> CoBertForGroupwiseRanking:
    torch.manual_seed(seed)
    made = CoBertForGroupwiseRanking(config(**fields))
    for name, parameter in made.named_parameters():
        if name.endswith("bias"):  # zero after initialisation, which would hide a forgotten one
            torch.nn.init.normal_(parameter, std=0.1)
    return made.eval()


def tokenizer(folder: Path) -> BertTokenizer:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    made = BertTokenizer(vocab=str(folder / "vocab.txt"), do_lower_case=True)
    made.save_pretrained(folder)
    return made


def checkpoint(folder: Path, **fields) -> Path:
    """A saved Co-BERT with its tokenizer."""
    made = model(**fields)
    made.tokenizer = tokenizer(folder)
    made.save_pretrained(folder)
    return folder


def bert_checkpoint(folder: Path, layers: int = 5, labels: int | None = None, **fields) -> Path:
    """A saved BertModel, or a cross-encoder where `labels` is given, with its tokenizer."""
    torch.manual_seed(layers)
    made_config = bert_config(layers, 4, 40, **fields)
    if labels is None:
        made = BertModel(made_config)
    else:
        made_config.num_labels = labels
        made = BertForSequenceClassification(made_config)
        torch.nn.init.normal_(made.classifier.bias)
    made.save_pretrained(folder)
    tokenizer(folder)
    return folder


def batch(m: int = M, n: int = N, groups: int = BATCH, tokens: int = TOKENS, seed: int = 1) -> dict[str, torch.Tensor]:
    """Groups with ragged rows, a missing prototype and missing candidates."""
    generator = torch.Generator().manual_seed(seed)
    shape = (groups, m + n, tokens)
    lengths = torch.randint(4, tokens + 1, shape[:2], generator=generator)
    attention = (torch.arange(tokens) < lengths.unsqueeze(-1)).long()
    ids = torch.randint(5, len(VOCAB), shape, generator=generator) * attention
    types = (torch.arange(tokens) >= 3).long().expand(shape) * attention
    document_mask = torch.ones(shape[:2], dtype=torch.long)
    labels = torch.randint(0, 3, (groups, n), generator=generator)
    if groups > 1:
        document_mask[1, m - 1] = int(m == 0)
        document_mask[1, -2:] = 0
        labels[1, -2:] = -100
    return {
        "input_ids": ids,
        "attention_mask": attention,
        "token_type_ids": types,
        "document_mask": document_mask,
        "labels": labels,
    }


def forget_files(folder: Path) -> None:
    """Makes a finished folder one of an earlier version, which did not list what it had made."""
    settings = json.loads((folder / "settings.json").read_text())
    del settings["made"]
    (folder / "settings.json").write_text(json.dumps(settings))
