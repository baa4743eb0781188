"""One small file per neighbour: what lets Co-BERT meet it."""
