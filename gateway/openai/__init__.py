"""OpenAI's words: `wire.py` request bodies field by field, `requests.py` what they become, `responses.py` chunks and
whole answers, `rate_limits.py` the x-ratelimit headers.
"""
