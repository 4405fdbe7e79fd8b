"""Space sharing: pairs of jobs, by column generation."""
