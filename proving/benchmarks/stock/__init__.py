"""Training programs of stock frameworks, as their tutorials write them; nothing of Prism is in them."""
