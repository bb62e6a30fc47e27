"""What a fleet was used for (characterize/), what fails next (predict/), and where a job should run (place/)."""
