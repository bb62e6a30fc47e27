"""What each page shows, as documents: one function for the page and the API alike."""
