"""When every op of every rank starts and ends."""
