"""Makes transformers' Auto classes and pipelines know Co-BERT: imported with the first public name.

Checkpoints carry the code, so `AutoModel.from_pretrained(..., trust_remote_code=True)` works without this package.
Where it is installed, and one of its names was imported, AutoModel needs no remote code, and `pipeline("text-ranking",
model=..., tokenizer=...)` takes a model that is there already.
"""

from transformers import AutoConfig, AutoModel
from transformers.pipelines import PIPELINE_REGISTRY

from .configuration_cobert import CoBertConfig
from .modeling_cobert import CoBertForGroupwiseRanking
from .pipeline_cobert import CoBertTextRankingPipeline

AutoConfig.register("cobert", CoBertConfig)
AutoModel.register(CoBertConfig, CoBertForGroupwiseRanking)
PIPELINE_REGISTRY.register_pipeline(
    "text-ranking", pipeline_class=CoBertTextRankingPipeline, pt_model=AutoModel, type="text"
)
