"""Export: a Co-BERT trained with `--variant neither` becomes a plain BERT cross-encoder with one label.

```bash
python data_scripts/export_cross_encoder.py --checkpoint outputs/bert-base/fold-1 --output models/bert-base-1
```
"""

import sys
from dataclasses import dataclass, field

from transformers import HfArgumentParser

from modeling_cobert.baselines.cross_encoder import export_cross_encoder


@dataclass
class Arguments:
    """From where to where."""

    checkpoint: str = field(metadata={"help": "Hub id or folder of a Co-BERT without calibrator and scorer."})
    output: str = field(metadata={"help": "A new folder for the cross-encoder and its tokenizer."})


def main(args: Arguments) -> None:
    """Exports, and says where to."""
    model = export_cross_encoder(args.checkpoint, args.output)
    print(f"{args.output}: {type(model).__name__}, {model.num_parameters():,} parameters")


if __name__ == "__main__":
    try:
        main(*HfArgumentParser(Arguments).parse_args_into_dataclasses())
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
