"""Plan without a plan file: measure a job and its machine, plan, and keep the results beside the job."""
