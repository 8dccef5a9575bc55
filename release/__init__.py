"""What a release is made with, besides `make`. The product knows nothing of it."""
