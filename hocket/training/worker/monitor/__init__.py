"""Progress of a run: collected from workers, shown, written as a trace."""
