"""Reports of finished and running runs, made from the files in RUN/ alone. No torch."""
