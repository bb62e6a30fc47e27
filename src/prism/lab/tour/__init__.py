"""The tour: every capability once, on one small example, each by the command that a user would type."""
