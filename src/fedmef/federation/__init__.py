"""The server's side: the loop, collection, aggregation, checks."""
