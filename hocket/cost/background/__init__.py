"""Cost of a background job that shares a device (DeepPool): its demand and its profile."""
