"""Models derived from the user's: in a shorter precision, with subtasks, or with a training step as their forward."""
