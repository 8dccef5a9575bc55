"""What is written in C++ for a CPU, compiled at first use; where it cannot be, torch's own operators serve."""
