"""Profiles published with Harmony (msr-fiddle/harmony), read from shared/data/harmony."""

import gzip
import json
from functools import cache
from pathlib import Path

import numpy as np

from hocket.strategies.swapping.costs import DirectionCosts, LayerProfile

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "harmony"
MODELS = ("bert_large_seqlen512", "gpt2_xl", "resnet1026")


@cache
def read(model: str) -> LayerProfile:
    """Profile of a model: seconds and bytes by microbatch size."""
    with gzip.open(DATA / f"{model}.json.gz") as file:
        held = json.load(file)
    ways = [
        DirectionCosts(*(np.array(held[way][key], float) for key in ("u", "time", "mem"))) for way in ("FWD", "BWD")
    ]
    weights = np.array(held["w_bytes"], float) + np.array(held["b_bytes"], float)
    return LayerProfile(
        ways[0], ways[1], np.array(held["x_bytes_u1"], float), weights, np.array(held["upd_cpu_s"], float)
    )
