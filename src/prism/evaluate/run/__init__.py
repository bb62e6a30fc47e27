"""The processes of an evaluation: engines, workers, models, tasks and what they store."""
