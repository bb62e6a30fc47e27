"""Change one thing about a plan and solve it again."""
