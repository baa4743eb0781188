"""From a search collection to the groups that Co-BERT trains on: TREC files, first stage, passages, groups."""
