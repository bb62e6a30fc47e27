"""Who keeps a job waiting: calls, how late each member is to them, and how likely each cause is."""
