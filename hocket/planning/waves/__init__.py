"""Waves of batches (Wavelet): how many fit, and when they pay."""
