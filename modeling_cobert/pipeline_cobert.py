# Copyright 2026 The Co-BERT authors.
# SPDX-License-Identifier: Apache-2.0
"""The `text-ranking` pipeline over [`CoBertForGroupwiseRanking.rerank`]."""

from transformers import Pipeline

OPTIONS = ("top_k", "selector", "return_documents", "batch_tokens", "show_progress_bar", "allow_fresh_weights")


class CoBertTextRankingPipeline(Pipeline):
    r"""
    Ranks the documents of a query, or of several.

    Example:

    ```python
    >>> from transformers import pipeline

    >>> ranker = pipeline("text-ranking", model="models/cobert", trust_remote_code=True)
    >>> ranker({"query": "how do bees see", "documents": ["Bees see ultraviolet.", "Bees make honey."]}, top_k=1)
    [{'corpus_id': ..., 'score': ..., 'probability': ...}]
    ```

    Input: a dict with `query` and `documents` (strings, or dicts with `text` and `title`, in first-stage order), or a
    list of such dicts, which gives a list of rankings. Options are those of `rerank`.
    """

    # Pipeline gives these no type but None, and has its subclasses set them so.
    _load_processor = _load_image_processor = _load_video_processor = _load_feature_extractor = False  # type: ignore[assignment]
    _load_tokenizer = True  # type: ignore[assignment]

    def __call__(self, inputs, *args, num_workers=None, batch_size=None, **options):
        """Ranks; `batch_size` changes nothing, since `rerank` makes its own batches (`batch_tokens`) of each query."""
        if isinstance(inputs, list | tuple):
            inputs = list(inputs)
            if not inputs:
                return []
        return super().__call__(inputs, *args, num_workers=num_workers, batch_size=1, **options)

    def _sanitize_parameters(self, **options):
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise TypeError(f"unknown option {', '.join(unknown)}: the pipeline takes {', '.join(OPTIONS)}")
        return {}, options, {}

    def preprocess(self, inputs):
        if not isinstance(inputs, dict) or not {"query", "documents"} <= set(inputs):
            raise ValueError("each input must be a dict with 'query' and 'documents'")
        return {"query": inputs["query"], "documents": inputs["documents"]}

    def _forward(self, model_inputs, **options):
        return {"ranking": self.model.rerank(**model_inputs, tokenizer=self.tokenizer, **options)}

    def postprocess(self, model_outputs):
        return model_outputs["ranking"]
