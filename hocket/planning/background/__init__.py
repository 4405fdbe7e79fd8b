"""Plans together with a background job (DeepPool)."""
