"""Rehearsals of failure with real processes: each does harm, waits with folded hands, and checks the end."""
