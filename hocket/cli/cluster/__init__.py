"""Commands of `hocket cluster`: one file for each command, and the options they share."""
