"""Flow records made ready for analysis: messages, their sizes, periods and clocks."""
