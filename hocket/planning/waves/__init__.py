"""Waves (Wavelet): batches on the same devices at shifted times. How many fit, and when they pay."""
