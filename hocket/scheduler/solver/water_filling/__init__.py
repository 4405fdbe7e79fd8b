"""Water filling: max-min fairness, level by level."""
