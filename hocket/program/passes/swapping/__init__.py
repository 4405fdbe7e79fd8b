"""The swap pass (Harmony): swap-in, swap-out and drop instructions for a device budget."""
