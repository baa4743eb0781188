"""Steps: atomic files, settings and fingerprints, the loop over shards, processes; nothing of search in it."""
