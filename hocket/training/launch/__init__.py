"""Start of workers: local processes or torchrun, rendezvous, failures."""
