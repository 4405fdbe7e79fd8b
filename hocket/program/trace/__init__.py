"""What happened, instruction by instruction: one type for what was simulated and what was measured."""
