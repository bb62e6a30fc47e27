"""Flow records prepared for analysis: messages, their sizes, periods and clocks."""
