"""The tiny model: a Llama of 108 thousand parameters that is made and warmed up on the spot."""
