"""How long instructions take and how many bytes values have, given a profile, a cluster and what else runs."""
