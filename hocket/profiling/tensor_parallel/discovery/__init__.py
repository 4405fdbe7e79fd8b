"""Discovery of tensor-parallel blocks in an unedited model, proved by execution."""
