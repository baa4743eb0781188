"""Export: a Co-BERT trained with `--variant neither` becomes a plain BERT cross-encoder with one label.

    cobert export --model outputs/bert-base/fold-1 --output models/bert-base-1

The logits stay the same. It serves as a selector, in BERT-QE, and wherever sentence-transformers takes a CrossEncoder.
"""

from dataclasses import dataclass, field

from ..baselines.cross_encoder import export_cross_encoder


@dataclass
class ExportArguments:
    """From where to where."""

    model: str = field(metadata={"help": "Folder or Hub id of a Co-BERT without calibrator and scorer."})
    output: str = field(metadata={"help": "A new folder for the cross-encoder and its tokenizer."})


ARGUMENTS = (ExportArguments,)


def main(args: ExportArguments) -> None:
    """Exports, and says where to."""
    model = export_cross_encoder(args.model, args.output)
    print(f"{args.output}: {type(model).__name__}, {model.num_parameters():,} parameters")
