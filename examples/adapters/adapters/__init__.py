"""An example of a project with graphs of its own: graphs, a catalog, and a training loop that runs from the cache."""
