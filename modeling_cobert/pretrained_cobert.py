# Copyright 2026 The Co-BERT authors.
# SPDX-License-Identifier: Apache-2.0
"""How a Co-BERT is loaded and saved: what its checkpoint says is checked, and its tokenizer goes with it."""

import os
from typing import Any

from transformers import PreTrainedModel
from transformers.utils import logging

from .checkpoint_cobert import check_config, check_weights
from .configuration_cobert import CoBertConfig
from .initialization_cobert import loading_faults, weights_that_are_none
from .reranking_cobert import TextSide

logger = logging.get_logger(__name__)


class CoBertPreTrainedModel(PreTrainedModel):
    """What every model of this kind has beside its parts: flags, a text side, loading and saving."""

    config: CoBertConfig
    base_model_prefix = "cobert"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    # forward takes no loss arguments: without this the Trainer would scale the loss by the number of micro-batches.
    accepts_loss_kwargs = False
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _no_split_modules = ["BertEmbeddings", "BertLayer"]

    def __init__(self, config: CoBertConfig):
        super().__init__(config)
        self.text_side = TextSide()
        self.loading_faults = ""  # how the checkpoint's weights differ from the model's, if they do

    @property
    def tokenizer(self):
        """The tokenizer that was set or found so far; [`find_tokenizer`] looks for it."""
        return self.text_side.tokenizer

    @tokenizer.setter
    def tokenizer(self, value) -> None:
        self.text_side.tokenizer = value

    def remember_source(self, name_or_path, **hub_options) -> None:
        """Where `rerank` and `save_pretrained` look for the tokenizer: beside the weights, same revision and cache."""
        given = {name: value for name, value in hub_options.items() if value is not None}
        # A folder stays where it is, wherever the process goes.
        name = os.path.abspath(name_or_path) if os.path.isdir(name_or_path) else str(name_or_path)
        self.text_side.source = (name, given)

    def find_tokenizer(self):
        """The tokenizer that was set (`model.tokenizer = ...`), or the one beside this model's checkpoint."""
        return self.text_side.find_tokenizer(self.config.encoder_config)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, output_loading_info: bool = False, **kwargs):
        """Loads as every model does, and remembers what the checkpoint lacked or had too much: `rerank` refuses it."""
        hub = ("revision", "cache_dir", "token", "local_files_only", "subfolder")
        where = {name: kwargs[name] for name in hub if kwargs.get(name) is not None}
        if pretrained_model_name_or_path is not None:  # it is None for weights given as `state_dict`
            kwargs = {"use_safetensors": True, **kwargs}  # a pickle is loaded only for those who ask for it
            if kwargs.get("variant") is None:
                cls._check_sizes(pretrained_model_name_or_path, where)
        loaded: Any = super().from_pretrained(pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs)
        model, info = loaded
        if pretrained_model_name_or_path is not None:
            model.remember_source(pretrained_model_name_or_path, **where)
        name = pretrained_model_name_or_path or "the given weights"
        model.loading_faults = loading_faults(name, info) or weights_that_are_none(name, model)
        if model.start is not None and model.start.drops_what_was_learned():
            model.loading_faults = f"{name}: has a weight for a score that its starting_weights leave out with a 0"
        return (model, info) if output_loading_info else model

    @classmethod
    def _check_sizes(cls, name_or_path, where: dict) -> None:
        check_config(name_or_path, **where)
        config = CoBertConfig.from_pretrained(name_or_path, **where)
        check_weights(name_or_path, config, lambda: cls(config), **where)

    def save_pretrained(
        self,
        save_directory,
        is_main_process: bool = True,
        state_dict: dict | None = None,
        push_to_hub: bool = False,
        *args,
        **kwargs,
    ):
        """Saves weights, config and code as every model does, and the tokenizer with them: the folder is complete."""
        super().save_pretrained(save_directory, is_main_process, state_dict, push_to_hub, *args, **kwargs)
        if is_main_process and not push_to_hub:
            self._save_tokenizer(save_directory)

    def _upload_modified_files(self, working_dir, *args, **kwargs):
        # The last step of every push: the tokenizer joins the weights in one commit, on the same branch or in the same
        # pull request, where an upload of its own would be another (and knows no `create_pr`).
        self._save_tokenizer(working_dir)
        return super()._upload_modified_files(working_dir, *args, **kwargs)

    def _save_tokenizer(self, folder) -> None:
        try:
            tokenizer = self.find_tokenizer()
        except (OSError, ValueError) as error:
            logger.warning(f"No tokenizer is saved in {folder}: {error}")
            return
        tokenizer.save_pretrained(folder)
