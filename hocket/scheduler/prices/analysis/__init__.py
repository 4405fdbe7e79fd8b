"""Price analysis of chapter 6: figures, reductions, rows."""
