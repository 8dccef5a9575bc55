"""C++ kernels for CPUs, compiled at first use; without a compiler torch's own operators are used.

    processor.py the processor that kernels are compiled and chosen for
    library.py   builds the kernels once per processor, loads them, and declares their signatures
    kernels.cpp  the exported functions: attention and the whole decoder, by type
    decoder.h    a step of a Llama decoder, in one parallel region
    attention.h  attention over the paged cache
    product.h    products of rows with tiled weights
    operators.h  norms, activation, argmax
    vectors.h    vectors of floats, by the processor's width
    team.h       distributes the pieces of a phase over threads

Read `library.py` first, then `decoder.h`. `worker.attention.cpu` calls the attention kernel, `worker.model.native`
the decoder. The structures in `library.py` mirror those of the headers, and change with them.
"""
