"""Attempts as a JobSet, a TrainJob or an Indexed Job of a Kubernetes cluster, through its REST API."""
