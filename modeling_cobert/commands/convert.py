"""Conversion: turns the authors' weights.pt into a Co-BERT checkpoint that gives the same scores.

    cobert convert --weights weights.pt --variant cobert \\
        --encoder bert-base-msmarco --calibrator bert_uncased_L-2_H-768_A-12 --scorer bert_uncased_L-4_H-768_A-12 \\
        --output cobert-gov2
"""

from dataclasses import dataclass, field
from pathlib import Path

from ..integrations.original_checkpoint import VARIANTS, convert
from ..steps.folders import whole_folder


@dataclass
class ConversionArguments:
    """What to convert, and where to."""

    weights: str = field(metadata={"help": "The authors' state dict, weights.pt."})
    encoder: str = field(metadata={"help": "Folder with the encoder's BERT config and its tokenizer."})
    output: str = field(metadata={"help": "Folder for the checkpoint; made if missing."})
    calibrator: str | None = field(
        default=None, metadata={"help": "Folder with the 2-layer BERT's config; not needed for group_only."}
    )
    scorer: str | None = field(
        default=None, metadata={"help": "Folder with the 4-layer BERT's config; not needed for prf_only."}
    )
    variant: str = field(
        default="cobert", metadata={"help": "Which of their models it is.", "choices": list(VARIANTS)}
    )
    num_prototypes: int = field(default=4, metadata={"help": "m, the feedback passages of a batch."})
    group_size: int = field(default=60, metadata={"help": "n, the candidates of a batch."})
    group_overlap: int = field(default=4, metadata={"help": "o, the candidates that neighbouring batches share."})
    max_length: int = field(default=256, metadata={"help": "The most tokens of a query-passage pair."})


ARGUMENTS = (ConversionArguments,)


def main(args: ConversionArguments) -> None:
    """Converts, and says where to."""
    with whole_folder(args.output) as beside:
        model = convert(
            args.weights,
            args.encoder,
            args.calibrator,
            args.scorer,
            args.variant,
            num_prototypes=args.num_prototypes,
            group_size=args.group_size,
            group_overlap=args.group_overlap,
            max_length=args.max_length,
        )
        model.save_pretrained(beside)
    print(f"{args.variant}: {sum(p.numel() for p in model.parameters()):,} parameters -> {Path(args.output)}")
