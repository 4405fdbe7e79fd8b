"""Plans that swap tensors to the host (Harmony): packs, budgets, placement."""
