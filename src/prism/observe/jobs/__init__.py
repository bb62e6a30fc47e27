"""Which endpoints train together."""
