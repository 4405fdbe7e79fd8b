"""Cost of a background job that shares a device (DeepPool)."""
