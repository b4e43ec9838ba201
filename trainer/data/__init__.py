"""Training data: a file's documents, as tokens, packed to sequences in an order that the seed fixes."""
