"""Who evaluates what and when: events in, actions out, no files, no processes, no clocks."""
