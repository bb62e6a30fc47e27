"""The tour: every capability once, on one small story, each by the command that a user would type."""
