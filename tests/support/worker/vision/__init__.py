"""Models that take images: a stand-in of a server with one, and files of one for a real vLLM."""
