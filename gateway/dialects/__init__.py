"""Wire formats, without I/O: bytes and dicts in, typed requests out.

openai/     OpenAI's requests, responses, batches and rate-limit headers
anthropic/  Anthropic's messages, converted to OpenAI's
pooling/    embeddings, scores and rankings
tools/      how models write tool calls: formats, readers, grammars
grammar/    structured output: schemas, and a child process that checks them
media_marks.py  images and sounds in conversations, and what stands for them
"""
