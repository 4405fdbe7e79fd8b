"""The swap pass (Harmony): swap-ins, swap-outs and drops for a device budget."""
