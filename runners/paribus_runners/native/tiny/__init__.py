"""The tiny models: a Llama of 108 thousand parameters and a mixture of experts, made and warmed up on the spot."""
