"""Makes transformers' Auto classes know Co-BERT: imported with the first public name.

Checkpoints carry the code, so `AutoModel.from_pretrained(..., trust_remote_code=True)` works without this package.
Where it is installed, and one of its names was imported, AutoModel needs no remote code.
"""

from transformers import AutoConfig, AutoModel

from .configuration_cobert import CoBertConfig
from .modeling_cobert import CoBertForGroupwiseRanking

AutoConfig.register("cobert", CoBertConfig)
AutoModel.register(CoBertConfig, CoBertForGroupwiseRanking)
