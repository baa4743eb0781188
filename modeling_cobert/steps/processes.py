"""This process among those that share the work."""

from datetime import timedelta

import torch
from accelerate import PartialState


def process_state(use_cpu: bool = False) -> PartialState:
    """This process among those that `torchrun` or `accelerate launch` started; alone if there was neither."""
    # Processes wait for the slowest one, which may have hours of work more than the others.
    return PartialState(cpu=use_cpu or not torch.accelerator.is_available(), timeout=timedelta(days=30))
