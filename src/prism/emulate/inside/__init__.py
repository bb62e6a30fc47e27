"""What runs inside the training process: it imports torch and the standard library, nothing else of Prism's needs."""
