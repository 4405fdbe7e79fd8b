"""Plans: the file that people read and edit, and the search that writes it."""
