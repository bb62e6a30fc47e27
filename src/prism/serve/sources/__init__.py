"""What the other commands wrote, read back into frozen records; one file for each command."""
