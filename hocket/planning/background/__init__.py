"""Plans with a background job (DeepPool).

The best plan leaves the background job the most throughput.
"""
