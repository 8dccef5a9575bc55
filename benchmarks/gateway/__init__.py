"""What the gateway's benchmark stands on: an instant engine, a load generator, and the processes around them."""
