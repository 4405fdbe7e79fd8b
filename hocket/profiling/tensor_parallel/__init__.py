"""How an unedited model is divided over the devices of a tensor-parallel group: found, proved by trying, applied to its modules."""
