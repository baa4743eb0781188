"""Which of all training options the trained weights, or the choice among checkpoints, depend on."""

import json
from dataclasses import fields, is_dataclass

from .arguments import CoBertTrainingArguments

# These stand in the settings of every training.
ALWAYS = (
    *("seed", "data_seed", "num_train_epochs", "max_steps", "learning_rate", "lr_scheduler_type", "warmup_steps"),
    *("optim", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "max_grad_norm"),
    *("metric_for_best_model", "load_best_model_at_end", "bf16", "fp16"),
    *("context_learning_rate", "start_learning_rate"),
)
# These, and any that a later transformers adds, where they are not at their defaults: a folder of an earlier version,
# which says nothing of them, goes on where they are.
DECISIVE = (
    *("lr_scheduler_kwargs", "optim_args", "optim_target_modules", "label_smoothing_factor", "neftune_noise_alpha"),
    *("bf16_full_eval", "fp16_full_eval", "tf32", "full_determinism", "use_cache"),
    *("torch_compile", "torch_compile_backend", "torch_compile_mode", "use_liger_kernel", "liger_kernel_config"),
    *("auto_find_batch_size", "average_tokens_across_devices", "accelerator_config", "parallelism_config"),
    *("fsdp", "fsdp_config", "deepspeed", "ddp_broadcast_buffers", "ddp_static_graph"),
    *("train_sampling_strategy", "length_column_name", "remove_unused_columns", "label_names"),
    *("dataloader_drop_last", "dataloader_in_order"),
    *("ignore_data_skip", "restore_callback_states_from_checkpoint"),
)
# These as well, where checkpoints are chosen among, or a schedule follows the measures.
SELECTING = (
    *("eval_strategy", "eval_steps", "eval_delay", "eval_on_start"),
    *("save_strategy", "save_steps", "greater_is_better"),
)
# A resumption may change these. Of the first line and the second, settings say what matters in other words; those and
# the third say in what portions a step is computed, and whoever ran out of memory must be able to go on with smaller.
PASSING = (
    *("per_device_train_batch_size", "gradient_accumulation_steps"),  # groups_a_step
    *("freeze_encoder", "resume_from_checkpoint"),  # freeze_encoder; a checkpoint of this very training
    *("encoder_chunk_size", "gradient_checkpointing", "gradient_checkpointing_kwargs", "torch_empty_cache_steps"),
    *("use_cpu", "local_rank", "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_backend", "ddp_timeout"),
    *("output_dir", "vectors_dir", "do_train", "do_eval", "do_predict"),
    *("logging_strategy", "logging_steps", "logging_first_step", "logging_nan_inf_filter", "log_on_each_node"),
    *("log_level", "log_level_replica", "disable_tqdm", "report_to", "run_name", "project", "debug"),
    *("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id", "skip_memory_metrics"),
    "include_num_input_tokens_seen",
    # Whole queries are ranked one by one, whatever these say.
    *("per_device_eval_batch_size", "prediction_loss_only", "eval_do_concat_batches", "eval_use_gather_object"),
    *("eval_accumulation_steps", "include_for_metrics", "batch_eval_metrics"),
    # How much of the checkpoints is kept, and where; a training does not go on from one without its optimizer.
    *("save_only_model", "save_on_each_node", "save_total_limit", "enable_jit_checkpoint"),
    *("push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push"),
    "hub_revision",
    *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers"),
    *("dataloader_prefetch_factor", "dataloader_multiprocessing_context"),
)


def decisive_options(args: CoBertTrainingArguments) -> dict:
    """
    What of `args` a training's settings say: another value is another training, which is never gone on with.

    Left out are options that a resumption may change, and those at their defaults that settings did not always name.
    """
    values = {field.name: _plain(getattr(args, field.name)) for field in fields(args)}
    found = {name: values[name] for name in ALWAYS}
    left_out = {*ALWAYS, *PASSING, *_without_effect(values)}
    defaults = _defaults(args)
    for name in sorted(values.keys() - left_out):
        if values[name] != defaults[name]:
            found[name] = values[name]
    return found


def _without_effect(values: dict) -> tuple[str, ...]:
    if not values["load_best_model_at_end"] and values["lr_scheduler_type"] != "reduce_lr_on_plateau":
        return SELECTING
    kinds = (kind for kind in ("eval", "save") if values[f"{kind}_strategy"] != "steps")
    return tuple(f"{kind}_steps" for kind in kinds)


def _defaults(args: CoBertTrainingArguments) -> dict:
    """As they are once the options have been read, which fills some in."""
    defaults = {field.name: _plain(field.default) for field in fields(args)}
    metric = args.metric_for_best_model or "loss"
    return defaults | {"greater_is_better": not metric.endswith("loss")}


def _plain(value: object) -> object:
    """As JSON has it. An empty list or the like is none, and so is a config that is as it comes."""
    if is_dataclass(value):
        known = vars(value)  # which may lack what has been read once and for all
        parts = [part for part in fields(value) if part.name in known]
        value = {part.name: known[part.name] for part in parts if known[part.name] != part.default}
    return None if value in ("", [], {}) else json.loads(json.dumps(value, default=str))
