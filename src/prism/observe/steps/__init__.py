"""Where the steps of a job begin and end, and what each rank computes in them."""
