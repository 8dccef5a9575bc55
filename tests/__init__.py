"""Where no GPU is, Triton's kernels run in its interpreter: a choice that Triton reads when it is first imported."""

import os

if not os.path.exists("/dev/nvidiactl"):
    os.environ["TRITON_INTERPRET"] = "1"
