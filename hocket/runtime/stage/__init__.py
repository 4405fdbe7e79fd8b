"""Stages of one worker: layers, data, saved activations."""
