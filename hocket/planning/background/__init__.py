"""Planning with a background job (DeepPool): which plan leaves it the most throughput."""
